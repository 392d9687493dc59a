//! The write-ahead log of one engine: every batch written but not yet in an SST, in files on a local
//! disk, fsynced in groups. Entries of all tables share the files, in the order they were appended.
//!
//! [`LocalWal`] is the log; `record` is the format, `replay` reads what an earlier process left behind,
//! [`inspect`] describes a segment for people.
//!
//! Invariants:
//! * An entry whose append returned is replayed by every later open, until its table releases it.
//! * An entry is replayed whole or not at all; one whose append failed may be.
//! * After a failed write or fsync nothing is appended any more.

pub mod inspect;
mod local;
mod record;
mod replay;

use arrow::array::RecordBatch;

use crate::types::{Seq, TableId};

pub use local::{LocalWal, WalLock};

/// What an entry does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// Writes the rows of the batch.
    Put,
    /// Deletes the keys of the batch.
    Delete,
}

/// One batch of one table.
#[derive(Clone, Debug, PartialEq)]
pub struct WalEntry {
    /// The table it belongs to.
    pub table: TableId,
    /// The batch's seq.
    pub seq: Seq,
    /// What it does.
    pub kind: EntryKind,
    /// The rows or keys, of any schema.
    pub batch: RecordBatch,
}

/// What a log holds and has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WalStats {
    /// Segment files, the one being written included.
    pub segments: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Entries appended.
    pub appends: u64,
    /// Fsyncs that made them durable.
    pub syncs: u64,
}

#[cfg(test)]
mod tests;
