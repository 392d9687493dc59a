//! The way of a write: admission, seq, WAL, memtable, visible.
//!
//! From the moment it has a seq a write runs as a task of its own: a caller that stops polling, or drops
//! its future, holds nobody up. Sorting and encoding run on blocking threads where they take long; none is held
//! while the WAL is waited for, whose store may need one itself.

use std::sync::Arc;

use super::{
    EngineInner,
    budget::Reservation,
    durability::{self, Durability},
    memory::Ticket,
    table::{Table, TableInner},
};
use crate::{
    error::{Error, Result},
    threads,
    types::Seq,
    wal::{Encoded, EntryKind, Queued, WalEntry},
};
use arrow::array::{Array, ArrayRef, RecordBatch};

/// Bytes of a batch from which on it is encoded for the WAL on a blocking thread.
const INLINE_BYTES_MAX: usize = 256 << 10;

/// Seq, operation and the key's encoding of a row, about.
const ROW_BYTES: usize = 32;

/// Writes a checked and labelled batch.
pub(super) async fn write(
    table: &Table,
    kind: EntryKind,
    batch: RecordBatch,
    durability: Durability,
) -> Result<Seq> {
    let (engine, inner) = (&table.engine, &table.inner);
    engine.check_alive()?;
    inner.check_open()?;
    if batch.num_rows() == 0 {
        return Ok(inner.memory.visible());
    }
    let reservation = engine.admit(inner, bytes_of(&batch)).await?;
    let write = Write {
        engine: engine.clone(),
        table: inner.clone(),
        ticket: inner.memory.begin(),
        kind,
        batch,
        reservation,
        durability,
    };
    let seq = write.ticket.seq;
    let written = engine.tracker.spawn(write.run()).await;
    written.map_err(|error| Error::internal("write panicked").with_source(error))??;
    inner.memory.wait_visible(seq).await;
    Ok(seq)
}

/// A write that has its seq.
struct Write {
    engine: Arc<EngineInner>,
    table: Arc<TableInner>,
    ticket: Ticket,
    kind: EntryKind,
    batch: RecordBatch,
    /// Memory for the batch until the memtable counts it, or the write has failed.
    reservation: Reservation,
    durability: Durability,
}

impl Write {
    async fn run(self) -> Result<()> {
        let queued = self.log().await?;
        // Even a small batch may set off a merge of large chunks.
        let inserting = threads::run(move || self.insert(queued));
        let inserted = inserting.await;
        inserted.map_err(|error| Error::internal("memtable insert panicked").with_source(error))?
    }

    /// Brings the batch into the WAL, if there is one. When that is to be waited for later, by what is
    /// returned, it is only queued.
    async fn log(&self) -> Result<Option<Queued>> {
        let Some(wal) = &self.engine.wal else {
            return Ok(None);
        };
        let entry = WalEntry {
            table: self.table.id(),
            seq: self.ticket.seq,
            kind: self.kind,
            batch: self.batch.clone(),
        };
        let logged = async {
            let queued = wal.queue_encoded(encode(entry).await?).await?;
            match self.durability {
                Durability::Synced => queued.durable().await.map(|()| None),
                Durability::Buffered => Ok(Some(queued)),
            }
        };
        logged
            .await
            .map_err(|error| self.engine.fail_if_fenced(error))
    }

    fn insert(mut self, queued: Option<Queued>) -> Result<()> {
        insert(&self.ticket, self.kind, &self.batch)?;
        self.table.counters.wrote(&self.batch);
        let seq = self.ticket.seq;
        self.ticket.is_durable_later = queued.is_some() || self.engine.wal.is_none();
        drop(self.ticket);
        let (engine, table) = (self.engine, self.table);
        engine.count(&table);
        drop(self.reservation);
        table.freeze(engine.config.memory.memtable_bytes.0);
        engine.relieve_wal();
        if let Some(queued) = queued {
            let settling = durability::settle(engine.clone(), table, seq, queued);
            engine.tracker.spawn(settling);
        }
        Ok(())
    }
}

/// Encodes an entry for the WAL.
async fn encode(entry: WalEntry) -> Result<Encoded> {
    if entry.batch.get_array_memory_size() <= INLINE_BYTES_MAX {
        return Encoded::new(&entry);
    }
    let encoding = threads::run(move || Encoded::new(&entry));
    let encoded = encoding.await;
    encoded.map_err(|error| Error::internal("encoding for the wal panicked").with_source(error))?
}

/// About how much memory `batch` takes in the queue and in a memtable: its own rows, though it may be a slice
/// of more, and what the engine adds to each.
fn bytes_of(batch: &RecordBatch) -> u64 {
    let column = |column: &ArrayRef| {
        let data = column.to_data();
        let bytes = data.get_slice_memory_size();
        bytes.unwrap_or_else(|_| column.get_array_memory_size())
    };
    let bytes: usize = batch.columns().iter().map(column).sum();
    (bytes + batch.num_rows() * ROW_BYTES) as u64
}

/// Inserts a batch, labelled under any version of the table's schema, under the seq of `ticket`.
pub(super) fn insert(ticket: &Ticket, kind: EntryKind, batch: &RecordBatch) -> Result<()> {
    let memtable = &ticket.slot.memtable;
    let stored = match kind {
        EntryKind::Put => memtable.schema().puts(batch, ticket.seq)?,
        EntryKind::Delete => memtable.schema().tombstones(batch, ticket.seq)?,
    };
    memtable.insert(&stored)
}
