//! The write-ahead log of one engine: every batch written but not yet in an SST. Entries of all tables
//! share its segments, in the order they were queued.
//!
//! [`Wal`] is the handle, the same for every kind of log. `local` appends to files on a local disk and
//! fsyncs them in groups, and `binding` ties them to a root; `object` creates objects in a numbered log. `record` is the format of files,
//! `group` that of objects; `segments` knows which of them are still needed. [`inspect`] describes both for
//! people.
//!
//! Invariants:
//! * An entry whose append returned is replayed by every later open, until its table releases it.
//! * An entry is replayed whole or not at all; one whose append failed may be.
//! * An entry is not replayed unless all that were queued before it are, but for those whose append
//!   failed.

mod binding;
mod group;
mod handle;
pub mod inspect;
mod local;
mod object;
mod record;
mod replay;
mod segments;

use arrow::array::RecordBatch;

use crate::types::{Seq, TableId};

pub use handle::{Encoded, Queued, Wal};
pub use local::WalLock;
pub use object::ObjectWalOptions;

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
    /// Segments: files, the one being written included, or objects.
    pub segments: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Entries appended.
    pub appends: u64,
    /// Fsyncs, or objects, that made them durable.
    pub syncs: u64,
}

#[cfg(test)]
mod tests;
