//! One attempt on its blocking thread: merges what is left of a task, and writes it part by part.
//!
//! An SST that has reached its target size ends with the key that the merge is at. There the merge is
//! [cut](Merge::cut), so that its counts are those of whole keys, and what was written since the last part
//! becomes the next one. The outputs of a part enter `named` before it is written: from then on a result may name
//! them, whatever the store answers.

use std::{
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use tokio::runtime::Handle;

use super::{Attempt, cancelled};
use crate::{
    clock::Env,
    compaction::{CompactionJob, TaskChain, TaskOutcome, TaskPart, results},
    error::{Error, Result},
    merge::{Merge, MergeColumns, MergeOptions, MergeStats, SortedSource},
    sst::{ReadRequest, SstAccess, SstOptions, SstReader, SstRun, SstSource, SstSpec},
    store::{Store, layout},
    threads,
    types::{Key, KeyRange, RowSum, SstId, SstMeta, TaskId},
};

const BATCH_ROWS: usize = 8_192;
/// An SST may turn out smaller than it was estimated. A part has at least this share of its target size.
const PART_SHARE: u64 = 2;

/// One attempt under way.
pub(super) struct Run {
    job: Arc<CompactionJob>,
    attempt: Attempt,
    store: Store,
    env: Env,
    access: SstAccess,
    /// When it began, on the monotonic clock.
    started: Duration,
    /// SSTs begun so far: no two have one name.
    begun: AtomicU32,
    /// SSTs that no part can name yet.
    unnamed: Mutex<Vec<SstMeta>>,
}

/// What has been counted, at the end of a part.
struct Mark {
    stats: MergeStats,
    bytes_read: u64,
    at: Duration,
}

impl Run {
    pub(super) fn new(
        job: &Arc<CompactionJob>,
        attempt: Attempt,
        store: &Store,
        env: &Env,
    ) -> Self {
        let access = SstAccess::by_chunks(store);
        let access = match &attempt.footers {
            Some(cache) => access.cached(cache),
            None => access,
        };
        Self {
            access,
            job: job.clone(),
            attempt,
            store: store.clone(),
            env: env.clone(),
            started: env.monotonic(),
            begun: AtomicU32::new(0),
            unnamed: Mutex::default(),
        }
    }

    pub(super) fn access(&self) -> &SstAccess {
        &self.access
    }

    pub(super) fn memory_bytes(&self) -> Option<u64> {
        self.attempt.memory_bytes
    }

    pub(super) async fn cancelled(&self) {
        self.attempt.cancel.cancelled().await;
    }

    /// Merges what is left of the task, and adds the parts to `chain`: until its end, or until another's part is
    /// met. Blocks.
    pub(super) fn merge(&self, inputs: &[SstReader], chain: &mut TaskChain) -> Result<()> {
        let handle = Handle::current();
        let mut merge = self.begin(inputs, chain, &handle)?;
        let spec = self.output_spec();
        let mut ssts = SstRun::new(&self.store, &handle, &spec);
        let mut mark = self.mark(&merge);
        loop {
            let is_overdue = self.write_sst(&mut merge, &mut ssts, chain.task().id)?;
            let rest = merge.rest();
            let bytes: u64 = self.unnamed().iter().map(|sst| sst.bytes).sum();
            let is_part = bytes >= spec.options.sst_bytes_target / PART_SHARE;
            if rest.is_some() && !is_part && !is_overdue {
                continue;
            }
            let now = self.mark(&merge);
            let part = self.part(chain, &rest, &mark, &now);
            mark = now;
            if !self.write_part(part, chain, &handle)? {
                return Ok(());
            }
            match rest {
                None => return Ok(()),
                Some(rest) if is_overdue => {
                    let (ran, max) = (mark.at - self.started, self.attempt.time_max);
                    return Err(Error::too_large(format!(
                        "it ran for {ran:?}, of {:?} at most, and came to key {rest:?}",
                        max.unwrap_or_default()
                    )));
                }
                Some(_) => {}
            }
        }
    }

    fn begin(&self, inputs: &[SstReader], chain: &TaskChain, handle: &Handle) -> Result<Merge> {
        let job = &self.job;
        let request = ReadRequest {
            keys: chain.rest().unwrap_or_default(),
            batch_rows: BATCH_ROWS,
            ..ReadRequest::default()
        };
        let sources = inputs.iter().map(|sst| {
            let source = sst.source(&request, handle.clone())?;
            Ok(watched(source, &self.attempt))
        });
        let columns = MergeColumns::find(&job.schema, job.schema.stored())?;
        let options = MergeOptions::retained(job.schema.write_mode(), job.retention.clone());
        Ok(Merge::new(
            sources.collect::<Result<_>>()?,
            columns,
            options,
        ))
    }

    /// Writes an SST, or none when no rows are left; returns whether the attempt's time is over.
    fn write_sst(&self, merge: &mut Merge, ssts: &mut SstRun<'_>, task: TaskId) -> Result<bool> {
        let id = SstId::Compacted {
            task,
            token: self.attempt.token,
            part: self.begun.fetch_add(1, Ordering::Relaxed),
        };
        let mut is_overdue = false;
        while let Some(batch) = merge.next() {
            if self.attempt.cancel.is_cancelled() {
                return Err(cancelled());
            }
            ssts.write(&batch?, id)?;
            is_overdue = self.is_overdue();
            if is_overdue || ssts.is_full() {
                merge.cut();
            }
        }
        let sst = ssts.end()?;
        self.unnamed().extend(sst);
        Ok(is_overdue)
    }

    fn is_overdue(&self) -> bool {
        let ran = || self.env.monotonic().saturating_sub(self.started);
        self.attempt.time_max.is_some_and(|max| ran() >= max)
    }

    fn mark(&self, merge: &Merge) -> Mark {
        Mark {
            stats: merge.stats(),
            bytes_read: self.access.stats().bytes(),
            at: self.env.monotonic(),
        }
    }

    /// What was done from `before` until `now`, when the keys from `rest` on are left.
    fn part(
        &self,
        chain: &TaskChain,
        rest: &Option<Key>,
        before: &Mark,
        now: &Mark,
    ) -> TaskOutcome {
        let outputs = std::mem::take(&mut *self.unnamed());
        let written = outputs.iter();
        let written = written.map(|sst| RowSum::new(sst.rows, sst.rows_hash));
        let stats = now.stats.since(&before.stats);
        TaskOutcome {
            task: chain.task().id,
            part: chain.next_part(),
            range: KeyRange {
                start: chain.rest().and_then(|rest| rest.start),
                end: rest.clone().or_else(|| chain.task().range.end.clone()),
            },
            token: self.attempt.token,
            node: self.attempt.node.clone(),
            written: written.sum(),
            outputs,
            read: stats.read,
            shadowed: stats.shadowed,
            deleted: stats.deleted,
            combined: stats.combined,
            expired: stats.expired,
            range_deleted: stats.range_deleted,
            bytes_read: now.bytes_read - before.bytes_read,
            elapsed_ms: (now.at.saturating_sub(before.at)).as_millis() as u64,
        }
    }

    /// Makes `part` the next one of `chain`, or finds another's there; returns whether it is ours.
    fn write_part(
        &self,
        part: TaskOutcome,
        chain: &mut TaskChain,
        handle: &Handle,
    ) -> Result<bool> {
        let token = part.token;
        self.attempt.progress.add_part(&part);
        let outputs = part.outputs.clone();
        let part = TaskPart::Outcome(part);
        let table = self.job.table;
        let first = threads::wait(handle, async {
            tokio::select! {
                biased;
                first = results::write_part(&self.store, table, part) => first,
                () = self.cancelled() => Err(cancelled()),
            }
        })?;
        let is_ours = matches!(&first, TaskPart::Outcome(first) if first.token == token);
        chain.add(first)?;
        if !is_ours {
            threads::wait(handle, self.delete(outputs));
        }
        Ok(is_ours)
    }

    fn output_spec(&self) -> SstSpec {
        let job = &self.job;
        SstSpec {
            schema: job.schema.clone(),
            table: job.table,
            level: job.level_target,
            window: job.window,
            applied_seq: job.retention.applied_seq(),
            options: SstOptions {
                sst_bytes_target: job.sst_bytes_target,
                ..SstOptions::default()
            },
        }
    }

    /// Deletes what was written and is in no part.
    pub(super) async fn delete_unnamed(&self) {
        let unnamed = std::mem::take(&mut *self.unnamed());
        self.delete(unnamed).await;
    }

    async fn delete(&self, ssts: Vec<SstMeta>) {
        for sst in ssts {
            let name = layout::sst(self.job.table, sst.id);
            if let Err(error) = self.store.delete(&name).await {
                tracing::warn!(name, %error, "output of a lost attempt was not deleted");
            }
        }
    }

    fn unnamed(&self) -> MutexGuard<'_, Vec<SstMeta>> {
        self.unnamed.lock().expect("no panic under this lock")
    }
}

/// `source`, counting its rows as progress, and ending when the attempt is cancelled: both also where
/// every row is dropped and nothing is written.
fn watched(source: SstSource, attempt: &Attempt) -> SortedSource {
    let (progress, cancel) = (attempt.progress.clone(), attempt.cancel.clone());
    Box::new(source.map(move |batch| {
        if cancel.is_cancelled() {
            return Err(cancelled());
        }
        let batch = batch?;
        progress.add_rows(batch.num_rows() as u64);
        Ok(batch)
    }))
}
