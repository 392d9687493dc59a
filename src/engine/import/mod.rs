//! Bulk load: rows become SSTs without passing the WAL and the memtables, all at once.
//!
//! 1. The rows are brought into order, cut by window and written as SSTs: straight through when they come sorted,
//!    else by an external sort ([`sort`]). That takes as long as it takes; writes, flushes and compactions go on.
//! 2. All rows carry one seq, which is far ahead of those that are being written: nobody knows yet when the import
//!    will be done, and what is written until then is to be older.
//! 3. The seq is taken. Everything before it is flushed; nothing after it is, for the import holds a ticket of the
//!    memtable of later writes. Snapshots and deletes by time range wait for what is left.
//! 4. One edit makes the SSTs live, in the deepest level where they meet nothing, else in level 0 ([`place`]), and
//!    says that everything up to the seq is in SSTs.
//!
//! So the import lies between the writes before step 3 and those after it, whatever they and merges do meanwhile: no
//! tombstone and no delete that is newer than it can be gone by the time it is there.
//!
//! Until step 3 an import that fails, or whose caller goes away, leaves nothing: what it wrote is deleted. From
//! step 3 on it is made.

mod place;
mod rows;
mod sort;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use arrow::array::RecordBatch;
use futures::{Stream, StreamExt};
use serde::Serialize;
use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot},
};

use super::{
    EngineInner,
    table::{Table, TableInner},
};
use crate::{
    clock::Backoff,
    compaction::Claim,
    error::{Error, ErrorKind, Result},
    gc::PendingSsts,
    manifest::{Edit, Version},
    store::layout,
    threads,
    types::{Seq, SstId, SstMeta, TableSchema, Window},
};
use rows::Input;
use sort::{Loader, Written};

/// Batches that wait to be taken.
const BATCHES_AHEAD: usize = 2;

/// How rows are imported.
#[derive(Clone, Debug)]
pub struct ImportOptions {
    /// The rows come in key order: nothing needs to be sorted, and nothing is held in memory. Rows of one key may
    /// follow each other; the last one counts. Where time does not lead the key, rows are sorted into windows all the
    /// same. Default: false.
    pub sorted: bool,
    /// Memory for sorting. What does not fit is sorted in parts, which are written to the store and read again.
    /// Default: 256 MiB.
    pub memory_bytes: u64,
    /// Told how far the import has come.
    pub progress: Arc<ImportProgress>,
}

impl Default for ImportOptions {
    fn default() -> Self {
        Self {
            sorted: false,
            memory_bytes: 256 << 20,
            progress: Arc::default(),
        }
    }
}

/// How far an import has come.
#[derive(Debug, Default)]
pub struct ImportProgress {
    rows_read: AtomicU64,
    rows_spilled: AtomicU64,
    rows_written: AtomicU64,
    bytes_written: AtomicU64,
}

impl ImportProgress {
    /// Rows taken from the input.
    pub fn rows_read(&self) -> u64 {
        self.rows_read.load(Ordering::Relaxed)
    }

    /// Rows written to be sorted later; a row counts each time.
    pub fn rows_spilled(&self) -> u64 {
        self.rows_spilled.load(Ordering::Relaxed)
    }

    /// Rows in the SSTs that are to stay.
    pub fn rows_written(&self) -> u64 {
        self.rows_written.load(Ordering::Relaxed)
    }

    /// Bytes of those of these SSTs that are complete.
    pub fn bytes_written(&self) -> u64 {
        self.bytes_written.load(Ordering::Relaxed)
    }
}

/// What an import did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ImportReport {
    /// Rows taken from the input.
    pub rows_read: u64,
    /// Rows imported: of an upsert table, of each key one.
    pub rows: u64,
    /// Bytes of the SSTs.
    pub bytes: u64,
    /// SSTs.
    pub ssts: u64,
    /// Of these, those in level 0, because what is there already shares keys with them.
    pub ssts_in_level_0: u64,
    /// Rows that were written to be sorted later; a row counts each time.
    pub rows_spilled: u64,
    /// The seq of all rows; that of the last write before when there are none.
    pub seq: Seq,
    /// How long it took.
    pub elapsed: Duration,
}

/// Imports `batches` into `table`.
pub(super) async fn import(
    table: &Table,
    batches: impl Stream<Item = Result<RecordBatch>>,
    options: ImportOptions,
) -> Result<ImportReport> {
    let (engine, inner) = (&table.engine, &table.inner);
    engine.check_alive()?;
    inner.check_open()?;
    let started = engine.env.monotonic();
    let (input, received) = mpsc::channel(BATCHES_AHEAD);
    let (told, ended) = oneshot::channel();
    let import = Import {
        engine: engine.clone(),
        table: inner.clone(),
        // Before anything is asked of the caller, who may change the table meanwhile.
        schema: inner.manifest.version().schema.clone(),
        pending: Arc::new(inner.pending.begin()),
        options,
    };
    // As a task of its own, so that it tidies up, or is made, if the caller goes away.
    engine.tracker.spawn(async move {
        let _ = told.send(import.run(received).await);
    });
    feed(batches, input).await;
    let ended = ended
        .await
        .map_err(|error| Error::internal("import panicked").with_source(error))?;
    let mut report = ended?;
    report.elapsed = engine.env.monotonic() - started;
    Ok(report)
}

/// Hands on `batches` until they end, fail, or nobody takes them any more.
async fn feed(batches: impl Stream<Item = Result<RecordBatch>>, input: mpsc::Sender<Input>) {
    let mut batches = std::pin::pin!(batches);
    loop {
        let next = tokio::select! {
            biased;
            next = batches.next() => next,
            // It failed, or was stopped: no other batch may ever come.
            () = input.closed() => return,
        };
        let (is_last, next) = match next {
            Some(Ok(batch)) => (false, Input::Batch(batch)),
            Some(Err(error)) => (true, Input::Failed(error)),
            None => (true, Input::End),
        };
        if input.send(next).await.is_err() || is_last {
            return;
        }
    }
}

/// An import on its way.
struct Import {
    engine: Arc<EngineInner>,
    table: Arc<TableInner>,
    /// The columns that the rows have: those of the table when the import was called.
    schema: TableSchema,
    pending: Arc<PendingSsts>,
    options: ImportOptions,
}

impl Import {
    async fn run(self, input: mpsc::Receiver<Input>) -> Result<ImportReport> {
        let _one = tokio::select! {
            biased;
            one = self.table.importing.lock() => one,
            () = self.table.cancel.cancelled() => return Err(self.closed()),
        };
        // Its SSTs may have to go to level 0.
        self.engine.wait_for_compaction(&self.table).await?;
        let seq = self.table.memory.seq_ahead();
        let written = match self.write(seq, input).await {
            Ok(written) if written.ssts.is_empty() => {
                self.pending.settle();
                return Ok(ImportReport {
                    seq: self.table.memory.visible(),
                    ..self.report(&written, 0)
                });
            }
            Ok(written) => written,
            Err(error) => {
                self.tidy_up().await;
                return Err(error);
            }
        };
        if let Err(error) = self.engine.wait_for_compaction(&self.table).await {
            self.tidy_up().await;
            return Err(error);
        }
        let committed = self.commit(seq, &written).await;
        // What was claimed for it is free.
        self.engine.scheduler.wake();
        match committed {
            Ok(level_0) => {
                self.pending.settle();
                let report = self.report(&written, level_0);
                self.count(&report);
                Ok(ImportReport { seq, ..report })
            }
            Err(NotMade::Refused(error)) => {
                self.tidy_up().await;
                Err(error)
            }
            // The manifest may name them, now or when it is read next.
            Err(NotMade::InDoubt(error)) => Err(error),
        }
    }

    /// Step 1: writes the SSTs.
    async fn write(&self, seq: Seq, input: mpsc::Receiver<Input>) -> Result<Written> {
        let loader = Loader {
            engine: self.engine.clone(),
            table: self.table.clone(),
            pending: self.pending.clone(),
            options: self.options.clone(),
            schema: self.schema.clone(),
            seq,
            handle: Handle::current(),
        };
        let loading = threads::run(move || loader.load(input));
        let loaded = loading.await;
        loaded.map_err(|error| Error::internal("import panicked").with_source(error))?
    }

    /// Step 3 and 4: makes the SSTs live. Returns how many are in level 0.
    async fn commit(&self, seq: Seq, written: &Written) -> Result<u64, NotMade> {
        let (engine, table) = (&self.engine, &self.table);
        let _settled = table.range_deleting.lock().await;
        let Some((ticket, frozen)) = table.memory.begin_ahead(seq) else {
            let what =
                "more was written during the import than it can be put behind: import it again";
            return Err(NotMade::Refused(Error::unavailable(what)));
        };
        ticket.show();
        if let Some(frozen) = frozen {
            table.flush_wanted.notify_one();
            let flushed = super::flush::wait_flushed(engine, table, frozen).await;
            flushed.map_err(NotMade::Refused)?;
        }
        let places = Places::claim(engine, table, &written.ssts);
        let mut backoff = Backoff::for_outage();
        loop {
            let mut refused = None;
            let committed = table.manifest.commit(|version| {
                // Nobody else can have flushed so far.
                if version.flushed_seq >= seq {
                    return Ok(None);
                }
                if let Err(error) = check_windows(version, &written.schema) {
                    refused = Some(error.clone());
                    return Err(error);
                }
                Ok(Some(Edit {
                    added: places.placed(version, &written.ssts),
                    flushed_seq: Some(seq),
                    ..Edit::default()
                }))
            });
            match committed.await {
                Ok(version) => {
                    let added = written.ssts.iter().filter(|sst| {
                        let live = version.find((&***sst).into());
                        live.is_some_and(|live| live.level == 0)
                    });
                    return Ok(added.count() as u64);
                }
                Err(error) => match refused {
                    Some(error) => return Err(NotMade::Refused(error)),
                    None => engine
                        .wait_out(table, error, &mut backoff)
                        .await
                        .map_err(NotMade::InDoubt)?,
                },
            }
        }
    }

    /// Deletes what was written; no edit names it, nor will. What cannot be deleted now is swept later.
    async fn tidy_up(&self) {
        let ssts = self.pending.ssts();
        delete(&self.engine, &self.table, &ssts).await;
        self.pending.settle();
    }

    fn count(&self, report: &ImportReport) {
        let (engine, table) = (&self.engine, &self.table);
        if let Some(wal) = &engine.wal {
            wal.release(table.id(), table.manifest.version().flushed_seq);
        }
        let add = |counter: &AtomicU64, by| {
            counter.fetch_add(by, Ordering::Relaxed);
        };
        add(&table.counters.imports, 1);
        add(&table.counters.rows_imported, report.rows);
        add(&table.counters.bytes_imported, report.bytes);
        table
            .memory
            .forget_flushed(table.manifest.version().flushed_seq);
        engine.count(table);
        tracing::info!(table = %table.name, ?report, "rows imported");
    }

    fn report(&self, written: &Written, ssts_in_level_0: u64) -> ImportReport {
        let progress = &self.options.progress;
        ImportReport {
            rows_read: progress.rows_read(),
            rows: written.ssts.iter().map(|sst| sst.rows).sum(),
            bytes: written.ssts.iter().map(|sst| sst.bytes).sum(),
            ssts: written.ssts.len() as u64,
            ssts_in_level_0,
            rows_spilled: progress.rows_spilled(),
            ..ImportReport::default()
        }
    }

    fn closed(&self) -> Error {
        let why = self.engine.check_alive();
        let why = why.and_then(|()| self.table.check_open());
        why.err()
            .unwrap_or_else(|| Error::closed("the import was stopped"))
    }
}

/// Why an import was not made.
enum NotMade {
    /// It never will be.
    Refused(Error),
    /// It may turn out to be made.
    InDoubt(Error),
}

/// Deletes SSTs that are in no version.
async fn delete(engine: &EngineInner, table: &TableInner, ssts: &[SstId]) {
    let names: Vec<String> = ssts
        .iter()
        .map(|&sst| layout::sst(table.id(), sst))
        .collect();
    for (name, ended) in names.iter().zip(engine.store.delete_all(&names).await) {
        if let Err(error) = ended {
            tracing::warn!(name, %error, "sst of an import was not deleted");
        }
    }
}

/// SSTs are cut by the windows of `schema`: were they changed, the newest rows would be in old windows.
fn check_windows(version: &Version, schema: &TableSchema) -> Result<()> {
    if version.schema.window_width() == schema.window_width() {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Conflict,
        "the windows of the table were changed during the import: import it again",
    ))
}

/// The levels that SSTs go to, window by window, with the right to go there. What has no such right goes to level 0.
struct Places {
    claimed: Vec<(Window, u8, Claim)>,
}

impl Places {
    fn claim(engine: &EngineInner, table: &TableInner, ssts: &[Arc<SstMeta>]) -> Self {
        let version = table.manifest.version();
        let claims = ssts.chunk_by(|left, right| left.window == right.window);
        let claims = claims.filter_map(|ssts| {
            let window = ssts.first()?.window;
            let level = place::level_for(&version, window, ssts);
            let footprint = place::footprint(window, ssts, level)?;
            let claim = engine.scheduler.claim(table.id(), footprint)?;
            Some((window, level, claim))
        });
        Self {
            claimed: claims.collect(),
        }
    }

    /// `ssts` at their levels in `version`, which may have changed since.
    fn placed(&self, version: &Version, ssts: &[Arc<SstMeta>]) -> Vec<Arc<SstMeta>> {
        let windows = ssts.chunk_by(|left, right| left.window == right.window);
        let placed = windows.flat_map(|ssts| {
            let window = ssts[0].window;
            let mut claimed = self.claimed.iter();
            let claimed = claimed.find(|(other, _, _)| *other == window);
            let level = claimed.map_or(0, |(_, level, _)| *level);
            let is_free = level == place::level_for(version, window, ssts);
            let level = if is_free { level } else { 0 };
            ssts.iter().map(move |sst| {
                Arc::new(SstMeta {
                    level,
                    ..sst.as_ref().clone()
                })
            })
        });
        placed.collect()
    }
}
