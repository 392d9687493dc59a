//! A table of an open engine: its parts, and the handle that users hold.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use arrow::array::RecordBatch;
use futures::Stream;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{
    CheckpointView, EngineInner, ImportOptions, ImportReport, ScanRequest, ScanStream, Snapshot,
    TableStats, WriteOptions, alter,
    backpressure::Pace,
    checkpoint, durability, flush, import,
    memory::Memory,
    range_delete, scan,
    stats::amplification,
    view::{ReadAt, ReadCounters},
    write,
};
use crate::{
    compaction::{CompactionReport, planner::CompactRange},
    error::{Error, Result},
    gc::{HeldBack, Pending},
    manifest::{CheckpointInfo, Manifest, Shape},
    types::{Alteration, Seq, TableId, TableSchema, TimeRange},
    wal::EntryKind,
};

/// A handle on one table. Cheap to clone.
#[derive(Clone)]
pub struct Table {
    pub(super) engine: Arc<EngineInner>,
    pub(super) inner: Arc<TableInner>,
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Table({:?})", self.inner.name)
    }
}

/// The parts of a table.
pub(super) struct TableInner {
    pub(super) name: String,
    pub(super) manifest: Arc<Manifest>,
    pub(super) memory: Arc<Memory>,
    /// Bytes of `memory` that the engine's budget counts; measured and set under this lock.
    pub(super) bytes_counted: Mutex<u64>,
    /// There is a frozen memtable.
    pub(super) flush_wanted: Notify,
    /// Ends the table's background work.
    pub(super) cancel: CancellationToken,
    pub(super) counters: Counters,
    pub(super) reads: Arc<ReadCounters>,
    /// What its writes are slowed down by.
    pub(super) pace: Pace,
    /// SSTs on their way into the manifest: not to be deleted.
    pub(super) pending: Pending,
    /// One change of the schema at a time.
    pub(super) altering: tokio::sync::Mutex<()>,
    /// Held by a range delete, or an import, from before it has its seq until it is in the manifest; snapshots wait
    /// for it, so that none sees it come.
    pub(super) range_deleting: tokio::sync::Mutex<()>,
    /// One change to its named checkpoints at a time.
    pub(super) checkpointing: tokio::sync::Mutex<()>,
    /// What the last sweep of its obsolete SSTs found.
    pub(super) held_back: Mutex<HeldBack>,
    /// One import at a time.
    pub(super) importing: tokio::sync::Mutex<()>,
}

/// What the table counts.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) batches_written: AtomicU64,
    pub(super) rows_written: AtomicU64,
    pub(super) bytes_written: AtomicU64,
    pub(super) flushes: AtomicU64,
    pub(super) flush_failures: AtomicU64,
    pub(super) bytes_flushed: AtomicU64,
    pub(super) imports: AtomicU64,
    pub(super) rows_imported: AtomicU64,
    pub(super) bytes_imported: AtomicU64,
    pub(super) flush_error: Mutex<Option<String>>,
    pub(super) write_waits: Mutex<BTreeMap<String, u64>>,
    pub(super) write_waited: Mutex<BTreeMap<String, Duration>>,
}

impl Counters {
    /// Notes a batch that was made durable and visible.
    pub(super) fn wrote(&self, batch: &RecordBatch) {
        self.batches_written.fetch_add(1, Ordering::Relaxed);
        self.rows_written
            .fetch_add(batch.num_rows() as u64, Ordering::Relaxed);
        self.bytes_written
            .fetch_add(batch.get_array_memory_size() as u64, Ordering::Relaxed);
    }

    /// Notes a write that has to wait for `reason`, once a write: `noted` tells.
    pub(super) fn waited(&self, reason: &str, noted: &mut bool) {
        if !std::mem::replace(noted, true) {
            *lock(&self.write_waits)
                .entry(reason.to_owned())
                .or_default() += 1;
            tracing::debug!(reason, "write waits");
        }
    }

    /// Notes how long a write has waited for `reason`.
    pub(super) fn waited_for(&self, reason: &str, time: Duration) {
        *lock(&self.write_waited)
            .entry(reason.to_owned())
            .or_default() += time;
    }
}

impl TableInner {
    pub(super) fn new(name: &str, manifest: Manifest, cancel: CancellationToken) -> Self {
        let version = manifest.version();
        Self {
            name: name.to_owned(),
            memory: Arc::new(Memory::new(
                version.schema.clone(),
                version.flushed_seq,
                // Rows with a seq below a range delete's are hidden: none may be taken again.
                version.range_deletes.last().map_or(Seq(0), |last| last.seq),
            )),
            manifest: Arc::new(manifest),
            bytes_counted: Mutex::new(0),
            flush_wanted: Notify::new(),
            cancel,
            counters: Counters::default(),
            reads: Arc::default(),
            pace: Pace::default(),
            pending: Pending::default(),
            altering: tokio::sync::Mutex::default(),
            range_deleting: tokio::sync::Mutex::default(),
            checkpointing: tokio::sync::Mutex::default(),
            held_back: Mutex::default(),
            importing: tokio::sync::Mutex::default(),
        }
    }

    pub(super) fn id(&self) -> TableId {
        self.manifest.table()
    }

    pub(super) fn check_open(&self) -> Result<()> {
        if self.cancel.is_cancelled() {
            return Err(Error::closed(format!(
                "table {:?} is closed or dropped",
                self.name
            )));
        }
        Ok(())
    }

    /// Freezes the active memtable, if it holds `bytes` or more, and has it flushed.
    pub(super) fn freeze(&self, bytes: u64) {
        if self.memory.freeze(bytes) {
            self.flush_wanted.notify_one();
        }
    }
}

impl Table {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Its schema, as it is now.
    pub fn schema(&self) -> TableSchema {
        self.inner.memory.schema()
    }

    /// Writes a batch, with the table's columns, atomically. When it returns, every later read sees the
    /// batch and, with a WAL, it is durable. Returns the batch's seq.
    ///
    /// Of equal keys inside an upsert table's batch the last row wins. When the future is dropped, the batch
    /// is written all the same, unless it was still waiting to be admitted; never in part.
    ///
    /// # Errors
    /// `Invalid`, naming the column, when the batch does not have the table's columns. `Unavailable` when
    /// the local WAL could not be written: the batch is not visible, and may come back after a restart. A
    /// WAL on an object store that is away is waited for. `Fenced` when another engine has taken over: the
    /// batch may be in the table or not. `Closed`.
    pub async fn write(&self, batch: RecordBatch) -> Result<Seq> {
        self.write_with(batch, WriteOptions::default()).await
    }

    /// As [`Table::write`], with options.
    pub async fn write_with(&self, batch: RecordBatch, options: WriteOptions) -> Result<Seq> {
        let schema = self.schema();
        schema.check_batch(&batch)?;
        let batch = schema.label(&batch)?;
        write::write(self, EntryKind::Put, batch, options.durability).await
    }

    /// Deletes the rows with the given keys: batches with the key's columns, in key order. Keys that are
    /// not there are no error. Otherwise as [`Table::write`].
    pub async fn delete(&self, keys: RecordBatch) -> Result<Seq> {
        self.delete_with(keys, WriteOptions::default()).await
    }

    /// As [`Table::delete`], with options.
    pub async fn delete_with(&self, keys: RecordBatch, options: WriteOptions) -> Result<Seq> {
        let schema = self.schema();
        schema.check_keys(&keys)?;
        let keys = schema.label_keys(&keys)?;
        write::write(self, EntryKind::Delete, keys, options.durability).await
    }

    /// Brings many rows in at once: `batches` with the table's columns become SSTs without passing the WAL and the
    /// memtables, and all of them are visible and durable when this returns, or none. Rows that were written before
    /// it returns and are not newer than its end are older than those of the import; of equal keys inside it the last
    /// row counts, whatever the merge operators.
    ///
    /// Memory is bounded by [`ImportOptions::memory_bytes`]. Waits while level 0 is full, and while the store is away.
    /// One import of a table goes on at a time; others wait. When the future is dropped, nothing is imported, unless
    /// all rows were written already: then it is made all the same.
    ///
    /// # Errors
    /// What `batches` answers. `Invalid`, naming the column, when a batch does not have the table's columns; naming
    /// the row, when they are not [sorted](ImportOptions::sorted) although they should be. `Conflict` when the windows
    /// of the table were changed meanwhile. `Unavailable` when the store refuses an SST, or an earlier one cannot be
    /// read again. Nothing is imported then. `Fenced`; `Closed`.
    pub async fn import(
        &self,
        batches: impl Stream<Item = Result<RecordBatch>>,
        options: ImportOptions,
    ) -> Result<ImportReport> {
        import::import(self, batches, options).await
    }

    /// Waits until every batch up to `seq` is durable: in the WAL or, without one, in SSTs, for which it has
    /// the table flushed. Batches whose write failed do not count.
    ///
    /// # Errors
    /// `Invalid` for a seq that was not written yet. Why it never will be: `Fenced` or `Closed`.
    pub async fn await_durable(&self, seq: Seq) -> Result<()> {
        durability::wait(self, seq).await
    }

    /// Deletes every row whose time lies in `times` (in the unit of the time column), written before this call.
    /// Costs one line in the manifest, however many rows there are. When it returns, it is durable and every
    /// later read sees it. Returns its seq.
    ///
    /// Waits while the store is away. When the future is dropped, the rows may be deleted all the same.
    ///
    /// # Errors
    /// `Invalid` without a time column; `Fenced`; `Closed`.
    pub async fn delete_range(&self, times: TimeRange) -> Result<Seq> {
        range_delete::delete_range(self, times).await
    }

    /// Pins what is visible now, to be read again and again. Waits for a delete by time range that is on its way.
    ///
    /// # Errors
    /// `Closed` or `Fenced`.
    pub async fn snapshot(&self) -> Result<Snapshot> {
        Snapshot::new(self).await
    }

    /// Has what is visible now outlive compactions, deletes, the engine and the table itself, under `name`, for
    /// `lifetime` or for ever. Flushes first. Costs one object; the SSTs that it holds are not deleted before
    /// it ends.
    ///
    /// Waits while the store is away; a checkpoint that has begun is made even if the future is dropped.
    ///
    /// # Errors
    /// `Invalid` for an empty name, for a lifetime of zero, and for a name that another checkpoint of the table
    /// has, which it names. `Fenced`; `Closed`.
    pub async fn create_checkpoint(
        &self,
        name: &str,
        lifetime: Option<Duration>,
    ) -> Result<CheckpointInfo> {
        checkpoint::create(self, name, lifetime).await
    }

    /// Its checkpoints that have not ended, oldest first: named ones, and those of readers and clones.
    ///
    /// # Errors
    /// `Corrupt`, naming the object, when one cannot be read; `Unavailable`; `Closed`.
    pub async fn checkpoints(&self) -> Result<Vec<CheckpointInfo>> {
        checkpoint::list(self).await
    }

    /// Has the checkpoint called `name` end `lifetime` from now, or never.
    ///
    /// Waits while the store is away, as [`Table::create_checkpoint`].
    ///
    /// # Errors
    /// `NotFound` when there is none, or it has ended; `Invalid` for a lifetime of zero; `Fenced`; `Closed`.
    pub async fn extend_checkpoint(
        &self,
        name: &str,
        lifetime: Option<Duration>,
    ) -> Result<CheckpointInfo> {
        checkpoint::extend(self, name, lifetime).await
    }

    /// Ends the checkpoint called `name`. Views of it that are held stay readable.
    ///
    /// # Errors
    /// `NotFound` when there is none; `Unavailable`: call again; `Closed`.
    pub async fn delete_checkpoint(&self, name: &str) -> Result<()> {
        checkpoint::delete(self, name).await
    }

    /// The table as it was when the checkpoint called `name` was made, for reading. It stays readable while the
    /// view is held, even if the checkpoint ends.
    ///
    /// # Errors
    /// `NotFound` when there is none, or it has ended; `Unavailable`; `Closed`.
    pub async fn at_checkpoint(&self, name: &str) -> Result<CheckpointView> {
        CheckpointView::open(self, name).await
    }

    /// Changes schema and options: all of `changes` or none, as one new version of the schema, which is returned.
    /// Nothing is rewritten: SSTs stay as they are, and are read under the new schema; compaction writes it.
    /// Batches that are being written under the old schema are taken all the same.
    ///
    /// Waits while the store is away; a change that has begun is made even if the future is dropped.
    ///
    /// # Errors
    /// `Invalid`, naming the column; nothing has changed then. `Fenced`; `Closed`.
    pub async fn alter(&self, changes: &[Alteration]) -> Result<TableSchema> {
        alter::alter(self, changes.to_vec()).await
    }

    /// The rows with the given keys (batches with the key's columns, in key order), in key order. Keys that
    /// are not there are left out; a key given twice is returned once. An append table may return several
    /// rows for a key.
    ///
    /// # Errors
    /// `Invalid`, naming the column; `Corrupt` or `NotFound`, naming the object; `Unavailable`.
    pub async fn get(&self, keys: RecordBatch) -> Result<RecordBatch> {
        scan::get(self, keys, ReadAt::Now).await
    }

    /// Rows in key order, each key of an upsert table once, as they are at this moment.
    ///
    /// # Errors
    /// `Invalid` for a column that is not in the table, or a time range without a time column. What goes
    /// wrong later comes out of the stream: `Corrupt` or `NotFound`, naming the object; `Unavailable`.
    pub async fn scan(&self, request: ScanRequest) -> Result<ScanStream> {
        scan::scan(self, request, ReadAt::Now)
    }

    /// Writes everything written so far to SSTs; returns when the manifest has them. Waits while the store
    /// is away: [`TableStats::flush_error`] says why.
    ///
    /// # Errors
    /// `Fenced` when another engine has taken over; `Closed`.
    pub async fn flush(&self) -> Result<()> {
        flush::flush(self).await
    }

    /// Flushes, then brings the table into its resting shape: of each window one sorted run, without
    /// tombstones that nothing needs. Returns, when that is committed, what was done.
    ///
    /// # Errors
    /// As for [`Table::flush`]; why a job failed: the others were run all the same.
    pub async fn compact(&self) -> Result<CompactionReport> {
        self.compact_range(&CompactRange::default()).await
    }

    /// As [`Table::compact`], for a range: SSTs outside are left as they are, as far as the order of
    /// versions allows.
    pub async fn compact_range(&self, range: &CompactRange) -> Result<CompactionReport> {
        self.flush().await?;
        self.engine.scheduler.compact(self.inner.id(), range).await
    }

    /// Has automatic compaction take up at once what it leaves alone because jobs with it failed; returns how many
    /// SSTs that are. [`CompactionStats::quarantine`](crate::compaction::CompactionStats::quarantine) lists them.
    ///
    /// # Errors
    /// `NotFound` when the table was dropped.
    pub fn retry_quarantined(&self) -> Result<u64> {
        self.engine.scheduler.retry_quarantined(self.inner.id())
    }

    /// Numbers about it.
    pub fn stats(&self) -> TableStats {
        let (inner, engine) = (&self.inner, &self.engine);
        let version = inner.manifest.version();
        let counters = &inner.counters;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let held_back = *lock(&inner.held_back);
        let bytes_flushed = load(&counters.bytes_flushed);
        let bytes_imported = load(&counters.bytes_imported);
        let bytes_compacted = engine.scheduler.bytes_written(inner.id());
        let stats = TableStats {
            id: inner.id(),
            l0_runs_max: version.l0_runs_max() as u64,
            sst_bytes_shared: version
                .ssts()
                .filter(|sst| sst.home.is_some())
                .map(|sst| sst.bytes)
                .sum(),
            write_amplification: amplification(bytes_flushed + bytes_imported, bytes_compacted),
            memtable_bytes: inner.memory.bytes(),
            memtable_rows: inner.memory.rows(),
            memtable_active_bytes: inner.memory.active_bytes(),
            memtables_frozen: inner.memory.frozen() as u64,
            flushed_seq: version.flushed_seq,
            visible_seq: inner.memory.visible(),
            durable_seq: inner.memory.durable(),
            obsolete_ssts: version.obsolete.len() as u64,
            obsolete_ssts_held: held_back.ssts,
            checkpoints_damaged: held_back.checkpoints_damaged,
            range_deletes: version.range_deletes.len() as u64,
            jobs: version.jobs.len() as u64,
            batches_written: load(&counters.batches_written),
            rows_written: load(&counters.rows_written),
            bytes_written: load(&counters.bytes_written),
            flushes: load(&counters.flushes),
            flush_failures: load(&counters.flush_failures),
            bytes_flushed,
            imports: load(&counters.imports),
            rows_imported: load(&counters.rows_imported),
            bytes_imported,
            flush_error: lock(&counters.flush_error).clone(),
            write_waits: lock(&counters.write_waits).clone(),
            write_waited_ms: lock(&counters.write_waited)
                .iter()
                .map(|(reason, time)| (reason.clone(), time.as_millis() as u64))
                .collect(),
            scans: load(&inner.reads.scans),
            gets: load(&inner.reads.gets),
            reads: inner.reads.all_touched(),
            rows_read: load(&inner.reads.rows_read),
            bytes_read: load(&inner.reads.bytes_read),
            ..TableStats::default()
        };
        stats.with_shape(
            Shape::of(&version),
            engine.config.compaction.l0_runs_trigger,
        )
    }
}

pub(super) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().expect("no panic under this lock")
}
