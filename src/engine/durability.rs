//! When a written batch is safe from a crash, and how to wait for it.

use std::sync::Arc;

use super::{
    EngineInner,
    table::{Table, TableInner, lock},
};
use crate::{
    error::{Error, Result},
    types::Seq,
    wal::Queued,
};

/// What a write waits for.
///
/// | WAL | `Synced` | `Buffered` |
/// |---|---|---|
/// | local | fsynced, with its neighbours | visible, and queued for the WAL |
/// | object store | its object is durable | visible, and queued for the WAL |
/// | none | visible | visible |
///
/// What a crash can take: of `Synced` batches none (without a WAL: all that were not flushed); of `Buffered`
/// ones the last, across all tables of the engine: if one is lost, so is every later `Buffered` batch that
/// was begun after it had returned, unless that was flushed. A batch is lost whole. The exception is a local
/// disk that refuses a write: the batches of that moment are flushed instead, and lost if the crash comes
/// first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// The batch survives a crash from the moment the write returns.
    #[default]
    Synced,
    /// The batch is safe when [`Table::await_durable`] has returned for its seq.
    Buffered,
}

/// How a batch is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteOptions {
    /// What the write waits for. Default: [`Durability::Synced`].
    pub durability: Durability,
}

/// Waits until every batch of `table` up to `seq` is durable.
pub(super) async fn wait(table: &Table, seq: Seq) -> Result<()> {
    let (engine, inner) = (&table.engine, &table.inner);
    let taken = inner.memory.taken();
    if seq > taken {
        let name = &inner.name;
        return Err(Error::invalid(format!(
            "seq {seq} of table {name:?} has not been written; the last is {taken}"
        )));
    }
    if engine.wal.is_none() && inner.memory.durable() < seq {
        inner.memory.freeze_all();
        inner.flush_wanted.notify_one();
    }
    tokio::select! {
        biased;
        () = inner.memory.wait_durable(seq) => Ok(()),
        () = inner.cancel.cancelled() => {
            engine.check_alive()?;
            inner.check_open()
        }
    }
}

/// Notes when a batch that is only queued for the WAL is in it. One that the WAL did not take is flushed
/// instead.
pub(super) async fn settle(
    engine: Arc<EngineInner>,
    table: Arc<TableInner>,
    seq: Seq,
    queued: Queued,
) {
    match queued.durable().await {
        Ok(()) => table.memory.settle(seq),
        Err(error) => {
            tracing::warn!(table = %table.name, %seq, %error, "a buffered batch is not in the wal, and is flushed");
            engine.fail_if_fenced(error);
            table.freeze(0);
        }
    }
}

impl EngineInner {
    /// Has the tables flushed whose rows keep the WAL longer than it should be.
    pub(super) fn relieve_wal(&self) {
        let pins = self.wal.as_ref().map(|wal| wal.pins()).unwrap_or_default();
        if pins.is_empty() {
            return;
        }
        let tables = lock(&self.tables);
        let pinning = tables.values().filter(|table| pins.contains(&table.id()));
        // One that is being flushed will let go soon: it need not be cut into many small SSTs.
        for table in pinning.filter(|table| table.memory.oldest_frozen().is_none()) {
            table.freeze(0);
        }
    }
}
