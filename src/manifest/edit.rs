//! Changes to a version, and the record of a job in it.

use std::sync::Arc;

use crate::types::{
    JobId, KeyRange, RangeDelete, Retention, Seq, SstId, SstMeta, TableSchema, Window,
};

/// A live SST, by name and place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SstRef {
    /// Its window.
    pub window: Window,
    /// Its name.
    pub id: SstId,
}

impl From<&SstMeta> for SstRef {
    fn from(sst: &SstMeta) -> Self {
        Self {
            window: sst.window,
            id: sst.id,
        }
    }
}

/// A trivial move: a live SST that changes its level and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SstMove {
    /// The SST.
    pub sst: SstRef,
    /// The level it moves to.
    pub level: u8,
}

/// A compaction job as its table remembers it: written before the job is handed out, gone in the same
/// commit that swaps its SSTs. Together with the version it gives the same job again after a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobRecord {
    /// Its id.
    pub id: JobId,
    /// What it merges; all live, and in `window`.
    pub inputs: Vec<SstId>,
    /// The window of inputs and outputs.
    pub window: Window,
    /// Level of the outputs.
    pub level_target: u8,
    /// What may be dropped.
    pub retention: Retention,
    /// Size in bytes at which an output SST ends.
    pub sst_bytes_target: u64,
    /// Key range of each task.
    pub tasks: Vec<KeyRange>,
    /// When it was recorded, in milliseconds since the Unix epoch.
    pub created_ms: u64,
}

/// Why SSTs leave a version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Departure {
    /// A compaction has put others in their place, or found that no row is left.
    #[default]
    Replaced,
    /// All their rows are past their time to live.
    Expired,
    /// A range delete hides all their rows.
    RangeDeleted,
}

impl Departure {
    /// The reason in words.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Replaced => "replaced",
            Self::Expired => "expired",
            Self::RangeDeleted => "range-deleted",
        }
    }
}

/// A change to a version: all of it or nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Edit {
    /// A new schema; the first edit of a table has one.
    pub schema: Option<TableSchema>,
    /// SSTs that enter.
    pub added: Vec<Arc<SstMeta>>,
    /// SSTs that leave; they become obsolete, unless they are another table's.
    pub removed: Vec<SstRef>,
    /// Why these leave.
    pub departure: Departure,
    /// SSTs that change their level and nothing else; their objects stay.
    pub moved: Vec<SstMove>,
    /// Every batch up to here is in SSTs from now on.
    pub flushed_seq: Option<Seq>,
    /// Jobs that are about to be handed out.
    pub jobs_started: Vec<JobRecord>,
    /// Jobs that are committed by this edit, or given up.
    pub jobs_ended: Vec<JobId>,
    /// When the edit is made, in milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// Obsolete SSTs whose objects are gone.
    pub deleted: Vec<SstId>,
    /// Range deletes, of seqs above all that were taken before.
    pub range_deletes: Vec<RangeDelete>,
    /// Seqs of range deletes that no row can need any more.
    pub range_deletes_ended: Vec<Seq>,
}
