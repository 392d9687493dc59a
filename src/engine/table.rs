//! A table of an open engine: its parts, and the handle that users hold.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use arrow::array::RecordBatch;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{
    EngineInner, ScanRequest, ScanStream, TableStats, flush, get, memory::Memory, scan, write,
};
use crate::{
    error::{Error, Result},
    manifest::Manifest,
    types::{Seq, TableId, TableSchema},
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
    pub(super) schema: TableSchema,
    pub(super) manifest: Arc<Manifest>,
    pub(super) memory: Arc<Memory>,
    /// Bytes of `memory` that the engine's budget counts; measured and set under this lock.
    pub(super) bytes_counted: Mutex<u64>,
    /// There is a frozen memtable.
    pub(super) flush_wanted: Notify,
    /// Ends the table's background work.
    pub(super) cancel: CancellationToken,
    pub(super) counters: Counters,
}

/// What the table counts.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) flushes: AtomicU64,
    pub(super) flush_error: Mutex<Option<String>>,
    pub(super) write_waits: Mutex<BTreeMap<String, u64>>,
}

impl TableInner {
    pub(super) fn new(name: &str, manifest: Manifest, cancel: CancellationToken) -> Self {
        let version = manifest.version();
        Self {
            name: name.to_owned(),
            schema: version.schema.clone(),
            memory: Arc::new(Memory::new(version.schema.clone(), version.flushed_seq)),
            manifest: Arc::new(manifest),
            bytes_counted: Mutex::new(0),
            flush_wanted: Notify::new(),
            cancel,
            counters: Counters::default(),
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

    /// Its schema.
    pub fn schema(&self) -> &TableSchema {
        &self.inner.schema
    }

    /// Writes a batch, with the table's columns, atomically. When it returns, every later read sees the
    /// batch and, with a WAL, it is durable. Returns the batch's seq.
    ///
    /// Of equal keys inside an upsert table's batch the last row wins. When the future is dropped, the batch
    /// is written all the same, unless it was still waiting to be admitted; never in part.
    ///
    /// # Errors
    /// `Invalid`, naming the column, when the batch does not have the table's columns. `Unavailable` when
    /// the WAL could not be written: the batch is not visible, and may come back after a restart. `Fenced`
    /// when another engine has taken over. `Closed`.
    pub async fn write(&self, batch: RecordBatch) -> Result<Seq> {
        self.inner.schema.check_batch(&batch)?;
        write::write(self, EntryKind::Put, batch).await
    }

    /// Deletes the rows with the given keys: batches with the key's columns, in key order. Keys that are
    /// not there are no error. Otherwise as [`Table::write`].
    pub async fn delete(&self, keys: RecordBatch) -> Result<Seq> {
        self.inner.schema.check_keys(&keys)?;
        write::write(self, EntryKind::Delete, keys).await
    }

    /// The rows with the given keys (batches with the key's columns, in key order), in key order. Keys that
    /// are not there are left out; a key given twice is returned once. An append table may return several
    /// rows for a key.
    ///
    /// # Errors
    /// `Invalid`, naming the column; `Corrupt` or `NotFound`, naming the object; `Unavailable`.
    pub async fn get(&self, keys: RecordBatch) -> Result<RecordBatch> {
        self.inner.schema.check_keys(&keys)?;
        get::get(self, keys).await
    }

    /// Rows in key order, each key of an upsert table once, as they are at this moment.
    ///
    /// # Errors
    /// `Invalid` for a column that is not in the table, or a time range without a time column. What goes
    /// wrong later comes out of the stream: `Corrupt` or `NotFound`, naming the object; `Unavailable`.
    pub async fn scan(&self, request: ScanRequest) -> Result<ScanStream> {
        scan::scan(self, request)
    }

    /// Writes everything written so far to SSTs; returns when the manifest has them. Waits while the store
    /// is away: [`TableStats::flush_error`] says why.
    ///
    /// # Errors
    /// `Fenced` when another engine has taken over; `Closed`.
    pub async fn flush(&self) -> Result<()> {
        flush::flush(self).await
    }

    /// Flushes, then merges level 0 of each window into level 1; returns when that is committed.
    ///
    /// # Errors
    /// As for [`Table::flush`]; why a job failed.
    pub async fn compact(&self) -> Result<()> {
        self.flush().await?;
        self.engine.scheduler.compact(self.inner.id()).await
    }

    /// Numbers about it.
    pub fn stats(&self) -> TableStats {
        let version = self.inner.manifest.version();
        let mut stats = TableStats {
            id: self.inner.id(),
            ssts: 0,
            sst_bytes: 0,
            sst_rows: 0,
            ssts_by_level: BTreeMap::new(),
            windows: version.windows.len() as u64,
            l0_runs_max: version.l0_runs_max() as u64,
            memtable_bytes: self.inner.memory.bytes(),
            memtable_rows: self.inner.memory.rows(),
            flushed_seq: version.flushed_seq,
            visible_seq: self.inner.memory.visible(),
            obsolete_ssts: version.obsolete.len() as u64,
            jobs: version.jobs.len() as u64,
            flushes: self.inner.counters.flushes.load(Ordering::Relaxed),
            flush_error: lock(&self.inner.counters.flush_error).clone(),
            write_waits: lock(&self.inner.counters.write_waits).clone(),
        };
        for sst in version.ssts() {
            stats.ssts += 1;
            stats.sst_bytes += sst.bytes;
            stats.sst_rows += sst.rows;
            *stats.ssts_by_level.entry(sst.level).or_default() += 1;
        }
        stats
    }
}

pub(super) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().expect("no panic under this lock")
}
