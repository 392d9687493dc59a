//! What an engine tells about itself: plain numbers, read at one moment.

use std::collections::BTreeMap;

use crate::{
    compaction::CompactionStats,
    types::{Seq, TableId},
};

/// The whole engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineStats {
    /// Tables by name.
    pub tables: BTreeMap<String, TableStats>,
    /// Compaction, over all tables since the engine was opened.
    pub compaction: CompactionStats,
    /// Bytes of all memtables, active and frozen.
    pub memtable_bytes: u64,
    /// WAL segments on disk.
    pub wal_segments: u64,
    /// WAL bytes on disk.
    pub wal_bytes: u64,
}

/// One table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableStats {
    /// Its id; its objects are in `tables/<id>/`.
    pub id: TableId,
    /// Live SSTs.
    pub ssts: u64,
    /// Bytes of live SSTs.
    pub sst_bytes: u64,
    /// Rows in live SSTs, shadowed versions and tombstones included.
    pub sst_rows: u64,
    /// Live SSTs by level.
    pub ssts_by_level: BTreeMap<u8, u64>,
    /// Windows with live SSTs.
    pub windows: u64,
    /// Level-0 runs of the window that has most of them.
    pub l0_runs_max: u64,
    /// Bytes of its memtables, active and frozen.
    pub memtable_bytes: u64,
    /// Rows in its memtables.
    pub memtable_rows: u64,
    /// Every batch up to here is in SSTs.
    pub flushed_seq: Seq,
    /// Every batch up to here is visible.
    pub visible_seq: Seq,
    /// SSTs that left the version and are not deleted yet.
    pub obsolete_ssts: u64,
    /// Range deletes that may still hide rows.
    pub range_deletes: u64,
    /// Jobs recorded and not yet committed.
    pub jobs: u64,
    /// Flushes done since the engine was opened.
    pub flushes: u64,
    /// Why the last flush failed, until one succeeds.
    pub flush_error: Option<String>,
    /// Times a write had to wait, by reason.
    pub write_waits: BTreeMap<String, u64>,
}
