//! The rows of one table that are in no SST yet, in memory, by column.
//!
//! A memtable is a list of immutable sorted chunks. An insert sorts its batch into a chunk of its own;
//! now and then chunks of similar size are merged, so that there are few of them and each row is merged
//! a logarithmic number of times. Nothing that was inserted is ever dropped, but for rows of an upsert
//! table that a later row of the same batch replaces.
//!
//! Rows are ordered by key, then by seq, newest first, then as they were inserted.
//!
//! A memtable may be shared: a mutex guards the list of chunks, which is locked only to be copied or
//! changed, never while rows are sorted or merged; a second mutex lets one insert at a time merge.

mod chunk;
mod view;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use arrow::array::RecordBatch;

use crate::{
    error::{Error, Result},
    types::{Seq, TableSchema},
};
use chunk::{Chunk, seqs};

pub use view::MemtableView;

/// Chunks of a tier that are merged into one of the next tier; also the ratio of the tiers' sizes.
const MERGE_CHUNKS: usize = 8;
/// Rows of a merged chunk at most: bounds the time that an insert can take.
const MERGE_ROWS_MAX: usize = 512 << 10;
/// Bytes of a merged chunk at most: keeps 32-bit offsets from overflowing.
const MERGE_BYTES_MAX: u64 = 256 << 20;

/// Sorted rows of one table in memory.
#[derive(Debug)]
pub struct Memtable {
    schema: TableSchema,
    state: Mutex<State>,
    /// Held by the one insert that merges.
    merging: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    /// In the order of insertion.
    chunks: Vec<Arc<Chunk>>,
    rows: u64,
    bytes: u64,
    seqs: Option<(Seq, Seq)>,
}

impl Memtable {
    /// An empty memtable for a table of `schema`.
    pub fn new(schema: TableSchema) -> Self {
        Self {
            schema,
            state: Mutex::default(),
            merging: Mutex::default(),
        }
    }

    /// The table's schema.
    pub fn schema(&self) -> &TableSchema {
        &self.schema
    }

    /// Adds the rows of `batch`, which has the table's stored columns and one seq, as
    /// [`TableSchema::puts`] and [`TableSchema::tombstones`] make it. They are seen all at once. Copies
    /// what it keeps. Seqs need not grow from one insert to the next.
    ///
    /// # Errors
    /// `Internal` when the columns are others or the seqs differ; nothing was added.
    pub fn insert(&self, batch: &RecordBatch) -> Result<()> {
        if batch.schema_ref() != self.schema.stored() {
            return Err(Error::internal(
                "batch for the memtable does not have the table's stored columns",
            ));
        }
        let Some(seq) = one_seq(batch, &self.schema)? else {
            return Ok(());
        };
        let chunk = Chunk::sort(&self.schema, batch)?;
        self.lock().push(chunk, seq);
        let merging = match self.merging.try_lock() {
            Ok(merging) => merging,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(()),
        };
        self.merge(&merging);
        Ok(())
    }

    /// The rows as they are now; inserts that follow do not change it. Cheap.
    pub fn view(&self) -> MemtableView {
        let chunks = self.lock().chunks.clone();
        MemtableView::new(self.schema.clone(), chunks)
    }

    /// Memory held by the rows and their keys.
    pub fn bytes(&self) -> u64 {
        self.lock().bytes
    }

    /// Number of rows, all versions of all keys.
    pub fn rows(&self) -> u64 {
        self.lock().rows
    }

    /// The least and the greatest seq, `None` when there are no rows.
    pub fn seq_range(&self) -> Option<(Seq, Seq)> {
        self.lock().seqs
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows() == 0
    }

    /// Merges chunks until none are due. Only the holder of `merging` removes chunks, so those that it
    /// is merging stay where they are while others push theirs.
    fn merge(&self, _merging: &MutexGuard<'_, ()>) {
        loop {
            let due = self.lock().due();
            let Some((start, chunks)) = due else {
                return;
            };
            let merged = match Chunk::merge(&self.schema, &chunks) {
                Ok(merged) => merged,
                Err(error) => {
                    // The rows are all there; reads have more to merge.
                    tracing::warn!(%error, "memtable chunks stay unmerged");
                    return;
                }
            };
            self.lock().replace(start, chunks.len(), merged);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change is made whole under the lock, none can panic half-way.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn push(&mut self, chunk: Chunk, seq: Seq) {
        self.rows += chunk.rows() as u64;
        self.bytes += chunk.bytes();
        let (min, max) = self.seqs.unwrap_or((seq, seq));
        self.seqs = Some((min.min(seq), max.max(seq)));
        self.chunks.push(Arc::new(chunk));
    }

    /// The chunks to be merged next, with the position of the first: the newest ones up to some tier,
    /// when there are enough of that tier among them that the merged chunk will be of the next.
    fn due(&self) -> Option<(usize, Vec<Arc<Chunk>>)> {
        let mut tier_max = 0;
        let mut start = self.chunks.len();
        while start > 0 {
            let tier = tier(&self.chunks[start - 1]);
            if tier > tier_max {
                if self.is_due(start, tier_max) {
                    break;
                }
                tier_max = tier;
            }
            start -= 1;
        }
        let is_due = self.is_due(start, tier_max);
        is_due.then(|| (start, self.chunks[start..].to_vec()))
    }

    fn is_due(&self, start: usize, tier_max: u32) -> bool {
        let chunks = &self.chunks[start..];
        let of_tier = chunks.iter().filter(|chunk| tier(chunk) == tier_max);
        let rows: usize = chunks.iter().map(|chunk| chunk.rows()).sum();
        let bytes: u64 = chunks.iter().map(|chunk| chunk.bytes()).sum();
        of_tier.count() >= MERGE_CHUNKS && rows <= MERGE_ROWS_MAX && bytes <= MERGE_BYTES_MAX
    }

    fn replace(&mut self, start: usize, count: usize, merged: Chunk) {
        let merged = Arc::new(merged);
        self.bytes += merged.bytes();
        for old in self.chunks.splice(start..start + count, [merged]) {
            self.bytes -= old.bytes();
        }
    }
}

fn tier(chunk: &Chunk) -> u32 {
    chunk.rows().max(1).ilog(MERGE_CHUNKS)
}

/// The one seq of all rows; `None` when there are no rows.
fn one_seq(batch: &RecordBatch, schema: &TableSchema) -> Result<Option<Seq>> {
    let seqs = seqs(batch, schema);
    let Some(&first) = seqs.values().first() else {
        return Ok(None);
    };
    if let Some(other) = seqs.values().iter().find(|&&seq| seq != first) {
        return Err(Error::internal(format!(
            "batch for the memtable has seqs {first} and {other}"
        )));
    }
    Ok(Some(Seq(first)))
}

#[cfg(test)]
mod tests;
