//! Runs one task of a job, the same way in the engine and on a node.
//!
//! 1. The parts of the task's result are read: an attempt goes on after the last of them, and a task whose parts
//!    reach its end is done.
//! 2. The inputs that overlap the rest are opened; a missing one fails the task. Should the merge need more memory
//!    than the attempt has, it is `TooLarge`.
//! 3. On a blocking thread they are merged (see `parts`), and each time that about an SST has been written the
//!    next part of the result is: what an attempt has finished stays finished.
//! 4. When another attempt's part was first, what ours wrote of it is deleted, and ours goes on after the other's,
//!    beginning again at 1. When the rest was split, the attempt ends.
//!
//! An attempt that fails deletes what no part can name. One that dies, or that does not learn whether its part
//! was written, leaves its outputs: their names tell whose they are.

mod parts;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::{StreamExt, TryStreamExt, stream};
use tokio_util::sync::CancellationToken;

use self::parts::Run;
use super::{
    CompactionJob, Task, TaskChain, TaskOutcome,
    plan::{Source, merge_memory},
    results,
};
use crate::{
    clock::Env,
    error::{Error, Result},
    sst::{SstAccess, SstCache, SstReader},
    store::Store,
    threads,
    types::{KeyRange, NodeId, Token},
};

/// Inputs opened at once.
const OPENS_MAX: usize = 16;

/// One attempt at a task.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// Orders the attempts; goes into the names of the outputs.
    pub token: Token,
    /// Who runs it.
    pub node: NodeId,
    /// Advanced by the merging thread as it goes.
    pub progress: Arc<Progress>,
    /// Stops the attempt.
    pub cancel: CancellationToken,
    /// Memory that it may use, in bytes. `None`: as much as it needs.
    pub memory_bytes: Option<u64>,
    /// Where opened inputs are kept for the next attempt on this node. `None`: nowhere.
    pub footers: Option<SstCache>,
    /// How long it may run: then it finishes the SST that it is at, and fails with `TooLarge`. `None`: for ever.
    pub time_max: Option<Duration>,
}

impl Attempt {
    /// An attempt without limits.
    pub fn new(token: Token, node: NodeId) -> Self {
        Self {
            token,
            node,
            progress: Arc::default(),
            cancel: CancellationToken::new(),
            memory_bytes: None,
            footers: None,
            time_max: None,
        }
    }
}

/// How far an attempt has come. A task whose counters stand still hangs.
#[derive(Debug, Default)]
pub struct Progress {
    rows: AtomicU64,
    rows_written: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    deleted: AtomicU64,
    kept: AtomicU64,
}

impl Progress {
    /// Grows with whatever the attempt does.
    pub fn steps(&self) -> u64 {
        self.rows() + self.objects_deleted() + self.objects_kept()
    }

    /// Rows merged so far.
    pub fn rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }

    /// Counts `rows` more rows as merged.
    pub fn add_rows(&self, rows: u64) {
        self.rows.fetch_add(rows, Ordering::Relaxed);
    }

    /// Rows written, in parts that are done, whoever's came first.
    pub fn rows_written(&self) -> u64 {
        self.rows_written.load(Ordering::Relaxed)
    }

    /// Bytes read from the store for these.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read.load(Ordering::Relaxed)
    }

    /// Bytes of their outputs.
    pub fn bytes_written(&self) -> u64 {
        self.bytes_written.load(Ordering::Relaxed)
    }

    /// Counts a part as done.
    pub fn add_part(&self, part: &TaskOutcome) {
        let bytes = part.outputs.iter().map(|sst| sst.bytes).sum();
        for (counter, more) in [
            (&self.rows_written, part.written.rows),
            (&self.bytes_read, part.bytes_read),
            (&self.bytes_written, bytes),
        ] {
            counter.fetch_add(more, Ordering::Relaxed);
        }
    }

    /// Objects deleted so far.
    pub fn objects_deleted(&self) -> u64 {
        self.deleted.load(Ordering::Relaxed)
    }

    /// Counts `objects` more objects as deleted.
    pub fn add_deleted(&self, objects: u64) {
        self.deleted.fetch_add(objects, Ordering::Relaxed);
    }

    /// Objects that should have been deleted so far, and may still be there.
    pub fn objects_kept(&self) -> u64 {
        self.kept.load(Ordering::Relaxed)
    }

    /// Counts `objects` more objects as not deleted.
    pub fn add_kept(&self, objects: u64) {
        self.kept.fetch_add(objects, Ordering::Relaxed);
    }
}

/// Runs `task` of `job` until its result is complete; returns the outcomes that it consists of, some of which may
/// be other attempts'. CPU work runs on a blocking thread. A cancelled attempt ends when that thread has stopped,
/// at its next batch.
///
/// `store` is the root at `job.store_url`.
///
/// # Errors
/// `Closed` when cancelled, or when the rest of the task was split; `TooLarge` when it is that, for the attempt's
/// memory or time; `Corrupt` or `NotFound` name the input; `Invalid` when the job has no such task; `Unavailable`.
pub async fn execute(
    job: &Arc<CompactionJob>,
    task: &Task,
    attempt: Attempt,
    store: &Store,
    env: &Env,
) -> Result<Vec<TaskOutcome>> {
    let planned = job.task(task.id.index);
    if task.id.job != job.id || planned.is_some_and(|planned| planned != *task) {
        let (id, range) = (task.id, &task.range);
        return Err(Error::invalid(format!(
            "job {} has no task {id} of {range:?}",
            job.id
        )));
    }
    // When this future is dropped, the merging thread stops at its next batch.
    let cancel = attempt.cancel.child_token();
    let _stop = cancel.clone().drop_guard();
    let attempt = Attempt {
        cancel: cancel.clone(),
        ..attempt
    };
    let ended = run(job, task, attempt, store, env).await;
    ended.map_err(|error| error.context(format!("task {}", task.id)))
}

async fn run(
    job: &Arc<CompactionJob>,
    task: &Task,
    attempt: Attempt,
    store: &Store,
    env: &Env,
) -> Result<Vec<TaskOutcome>> {
    let run = Arc::new(Run::new(job, attempt, store, env));
    let mut chain = TaskChain::new(task.clone());
    let mut inputs: Option<Vec<SstReader>> = None;
    loop {
        let open = async {
            results::extend_chain(store, job.table, &mut chain).await?;
            match (chain.rest(), inputs.take()) {
                (None, _) => Ok(Vec::new()),
                (Some(_), Some(inputs)) => Ok(inputs),
                (Some(rest), None) => open_inputs(job, run.access(), &rest).await,
            }
        };
        let opened = tokio::select! {
            biased;
            opened = open => opened?,
            () = run.cancelled() => return Err(cancelled()),
        };
        if let Some(split) = chain.split() {
            let tasks = split.children.len();
            return Err(Error::closed(format!(
                "its rest was split into {tasks} tasks"
            )));
        }
        let Some(rest) = chain.rest() else {
            return Ok(chain.outcomes().to_vec());
        };
        check_memory(&opened, &rest, run.memory_bytes())?;
        let merging = run.clone();
        let merge = move || {
            let ended = merging.merge(&opened, &mut chain);
            ended.map(|()| (chain, opened))
        };
        let merged = threads::run(merge).await;
        let merged = merged
            .unwrap_or_else(|error| Err(Error::internal("merge panicked").with_source(error)));
        match merged {
            Ok((merged, opened)) => (chain, inputs) = (merged, Some(opened)),
            Err(error) => {
                // No part names them: the attempt ends here.
                run.delete_unnamed().await;
                return Err(error);
            }
        }
    }
}

async fn open_inputs(
    job: &CompactionJob,
    access: &SstAccess,
    range: &KeyRange,
) -> Result<Vec<SstReader>> {
    let inputs: Vec<_> = job.inputs_in(range).cloned().collect();
    let inputs = stream::iter(inputs)
        .map(|sst| SstReader::open(access, &job.schema, job.table, sst))
        .buffered(OPENS_MAX);
    inputs.try_collect().await
}

/// Refuses a merge of the keys `range` of `inputs` that needs more memory than there is.
fn check_memory(inputs: &[SstReader], range: &KeyRange, memory_bytes: Option<u64>) -> Result<()> {
    let needed = merge_memory(inputs.iter().map(|sst| source(sst, range)));
    match memory_bytes {
        Some(bytes) if needed > bytes => Err(Error::too_large(format!(
            "merging {} inputs needs {needed} bytes of memory, the attempt has {bytes}",
            inputs.len()
        ))),
        _ => Ok(()),
    }
}

/// What a merge reads of `sst`: row group by row group, the next one while it decodes one.
fn source(sst: &SstReader, range: &KeyRange) -> Source {
    let groups = sst.row_group_bounds();
    let ends = groups.iter().skip(1).map(|group| &group.first_key);
    let ends = ends.chain([&sst.meta().key_max]);
    // The last versions of a key may lie in the next row group.
    let overlapping = groups.iter().zip(ends);
    let overlapping = overlapping.filter(|(group, end)| range.overlaps(&group.first_key, end));
    let bytes: Vec<u64> = overlapping.map(|(group, _)| group.bytes).collect();
    let at_once = bytes.windows(2).map(|pair| pair.iter().sum()).max();
    Source {
        level: sst.meta().level,
        bytes: bytes.iter().sum(),
        // A lone one is there twice: encoded, and decoded.
        memory: at_once.unwrap_or_else(|| bytes.first().map_or(0, |bytes| bytes * 2)),
    }
}

fn cancelled() -> Error {
    Error::closed("it was cancelled")
}

#[cfg(test)]
mod tests;
