//! The way of a write: admission, seq, WAL, memtable, visible.
//!
//! From the moment it has a seq a write runs as a task of its own: a caller that stops polling, or drops
//! its future, holds nobody up. Sorting and encoding run on blocking threads where they take long.

use std::sync::Arc;

use arrow::array::RecordBatch;
use tokio::runtime::Handle;

use super::{
    EngineInner,
    memory::Ticket,
    table::{Table, TableInner},
};
use crate::{
    error::{Error, Result},
    types::Seq,
    wal::{EntryKind, WalEntry},
};

/// Bytes of a batch from which on it is encoded for the WAL on a blocking thread.
const INLINE_BYTES_MAX: usize = 256 << 10;

/// Writes a checked and labelled batch.
pub(super) async fn write(table: &Table, kind: EntryKind, batch: RecordBatch) -> Result<Seq> {
    let (engine, inner) = (&table.engine, &table.inner);
    engine.check_alive()?;
    inner.check_open()?;
    if batch.num_rows() == 0 {
        return Ok(inner.memory.visible());
    }
    engine.admit(inner).await?;
    let write = Write {
        engine: engine.clone(),
        table: inner.clone(),
        ticket: inner.memory.begin(),
        kind,
        batch,
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
}

impl Write {
    async fn run(self) -> Result<()> {
        let is_large = self.batch.get_array_memory_size() > INLINE_BYTES_MAX;
        if !is_large {
            self.append().await?;
        }
        let handle = Handle::current();
        // Even a small batch may set off a merge of large chunks.
        let inserting = tokio::task::spawn_blocking(move || {
            if is_large {
                handle.block_on(self.append())?;
            }
            insert(&self.ticket, self.kind, &self.batch)?;
            self.table.counters.wrote(&self.batch);
            drop(self.ticket);
            self.engine.count(&self.table);
            self.table
                .freeze(self.engine.config.memory.memtable_bytes.0);
            Ok(())
        });
        let inserted = inserting.await;
        inserted.map_err(|error| Error::internal("memtable insert panicked").with_source(error))?
    }

    /// Makes the batch durable, if there is a WAL.
    async fn append(&self) -> Result<()> {
        let Some(wal) = &self.engine.wal else {
            return Ok(());
        };
        let entry = WalEntry {
            table: self.table.id(),
            seq: self.ticket.seq,
            kind: self.kind,
            batch: self.batch.clone(),
        };
        wal.append(entry).await
    }
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
