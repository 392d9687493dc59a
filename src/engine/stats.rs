//! What an engine tells about itself: plain numbers, read at one moment.

use std::collections::BTreeMap;

use serde::Serialize;

use super::ScanStats;
use crate::{
    compaction::CompactionStats,
    gc::GcStats,
    manifest::Shape,
    sst::CacheStats,
    store::StoreStats,
    types::{Seq, TableId},
};

/// The whole engine.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct EngineStats {
    /// Tables by name.
    pub tables: BTreeMap<String, TableStats>,
    /// Why tables that are in the catalog could not be opened, by name.
    pub damaged: BTreeMap<String, String>,
    /// Compaction, over all tables since the engine was opened.
    pub compaction: CompactionStats,
    /// Requests to the store since it was opened.
    pub store: StoreStats,
    /// What is kept of SSTs that are read.
    pub cache: CacheStats,
    /// Bytes of all memtables, active and frozen.
    pub memtable_bytes: u64,
    /// Bytes of the write budget that batches under way hold; zero when nothing is written.
    pub write_bytes_reserved: u64,
    /// WAL segments: files or objects.
    pub wal_segments: u64,
    /// Bytes in them.
    pub wal_bytes: u64,
    /// Entries appended to the WAL since the engine was opened.
    pub wal_appends: u64,
    /// Fsyncs of the WAL since then.
    pub wal_syncs: u64,
    /// What was deleted since then.
    pub gc: GcStats,
    /// Why writes to the WAL are delayed or fail, until one succeeds.
    pub wal_error: Option<String>,
}

impl EngineStats {
    /// Bytes that flushes, imports and compaction wrote since the engine was opened, divided by those that flushes
    /// and imports wrote. 1 while they wrote nothing.
    pub fn write_amplification(&self) -> f64 {
        let tables = self.tables.values();
        let written: u64 = tables
            .map(|table| table.bytes_flushed + table.bytes_imported)
            .sum();
        amplification(written, self.compaction.bytes_written())
    }
}

/// One table. Counters count since the engine was opened.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TableStats {
    /// Its id; its objects are in `tables/<id>/`.
    pub id: TableId,
    /// Live SSTs.
    pub ssts: u64,
    /// Bytes of live SSTs.
    pub sst_bytes: u64,
    /// Of these, bytes of SSTs that the table has as a clone, in the folders of others.
    pub sst_bytes_shared: u64,
    /// Rows in live SSTs, shadowed versions and tombstones included.
    pub sst_rows: u64,
    /// Live SSTs by level.
    pub ssts_by_level: BTreeMap<u8, u64>,
    /// Windows with live SSTs.
    pub windows: u64,
    /// Level-0 runs of the window that has most of them.
    pub l0_runs_max: u64,
    /// Live SSTs by level and by window.
    pub shape: Shape,
    /// What compaction is behind by: bytes of level 0 in windows with `l0_runs_trigger` level-0 runs or more.
    pub debt_bytes: u64,
    /// Sorted runs of SSTs that the read of one key may have to look into, in the worst window.
    pub read_runs_max: u64,
    /// The same on average over the windows.
    pub read_runs_mean: f64,
    /// Bytes of live SSTs, divided by what they would about come to if all were merged.
    pub space_amplification: f64,
    /// Bytes that flushes, imports and compaction of the table wrote, divided by those that flushes and imports
    /// wrote.
    pub write_amplification: f64,
    /// Bytes of its memtables, active and frozen.
    pub memtable_bytes: u64,
    /// Rows in its memtables.
    pub memtable_rows: u64,
    /// Bytes of the active memtable among them.
    pub memtable_active_bytes: u64,
    /// Memtables that are frozen and not flushed yet.
    pub memtables_frozen: u64,
    /// Every batch up to here is in SSTs.
    pub flushed_seq: Seq,
    /// Every batch up to here is visible.
    pub visible_seq: Seq,
    /// Every batch up to here is durable: in the WAL, or in SSTs.
    pub durable_seq: Seq,
    /// SSTs that left the version and are not deleted yet.
    pub obsolete_ssts: u64,
    /// Of these, those that checkpoints held when they were looked through last.
    pub obsolete_ssts_held: u64,
    /// Checkpoints that could not be read then: while there is one, no object of the table is deleted.
    pub checkpoints_damaged: u64,
    /// Range deletes that may still hide rows.
    pub range_deletes: u64,
    /// Jobs recorded and not yet committed.
    pub jobs: u64,
    /// Batches written, deletes included.
    pub batches_written: u64,
    /// Rows of these batches.
    pub rows_written: u64,
    /// Bytes of their Arrow arrays.
    pub bytes_written: u64,
    /// Flushes done.
    pub flushes: u64,
    /// Attempts at a flush that failed.
    pub flush_failures: u64,
    /// Bytes of the SSTs that flushes wrote.
    pub bytes_flushed: u64,
    /// Imports made.
    pub imports: u64,
    /// Rows that they brought.
    pub rows_imported: u64,
    /// Bytes of the SSTs that they wrote.
    pub bytes_imported: u64,
    /// Why the last flush failed, until one succeeds.
    pub flush_error: Option<String>,
    /// Times a write had to wait, by reason.
    pub write_waits: BTreeMap<String, u64>,
    /// How long writes have waited in sum, by reason, in milliseconds.
    pub write_waited_ms: BTreeMap<String, u64>,
    /// What the scans and gets that have ended touched, and left alone.
    pub reads: ScanStats,
    /// Scans begun.
    pub scans: u64,
    /// Gets begun.
    pub gets: u64,
    /// Rows that scans and gets returned.
    pub rows_read: u64,
    /// Bytes of their Arrow arrays.
    pub bytes_read: u64,
}

impl TableStats {
    /// Fills in what follows from the table's shape.
    pub(super) fn with_shape(self, shape: Shape, l0_runs_trigger: usize) -> Self {
        let total = shape.total();
        let (read_runs_max, read_runs_mean) = shape.read_runs();
        let levels = shape.levels.iter();
        Self {
            ssts: total.ssts,
            sst_bytes: total.bytes,
            sst_rows: total.rows,
            ssts_by_level: levels.map(|(level, shape)| (*level, shape.ssts)).collect(),
            windows: shape.windows.len() as u64,
            debt_bytes: shape.debt_bytes(l0_runs_trigger),
            read_runs_max,
            read_runs_mean,
            space_amplification: shape.space_amplification(),
            shape,
            ..self
        }
    }
}

/// `written` bytes, and those that compaction wrote after them, for each byte written.
pub(super) fn amplification(written: u64, compacted: u64) -> f64 {
    match written {
        0 => 1.0,
        _ => (written + compacted) as f64 / written as f64,
    }
}
