//! The way of a frozen memtable to SSTs: wait for its writers, merge and write one SST a window, commit,
//! release the WAL. A failed flush is tried again for ever, and says so in the stats.

use std::sync::{Arc, atomic::Ordering};

use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use super::{
    EngineInner, alter,
    memory::Slot,
    table::{Table, TableInner, lock},
};
use crate::{
    clock::{Backoff, Env},
    error::{Error, ErrorKind, Result},
    gc::PendingSsts,
    manifest::{Edit, Pins, Version},
    merge::{Merge, MergeColumns, MergeOptions, SortedSource},
    sst::{RunHooks, SstOptions, SstSpec, write_run},
    store::{Store, layout},
    threads,
    types::{ColumnMap, Retention, Seq, SstId, SstMeta, TableId},
};

const BATCH_ROWS: usize = 8_192;

/// Freezes what was written to `table` so far, and waits until it is in the manifest.
pub(super) async fn flush(table: &Table) -> Result<()> {
    let (engine, inner) = (&table.engine, &table.inner);
    engine.check_alive()?;
    inner.check_open()?;
    match inner.memory.freeze_all() {
        None => Ok(()),
        Some(seq) => {
            inner.flush_wanted.notify_one();
            wait_flushed(engine, inner, seq).await
        }
    }
}

/// Waits until every batch up to `seq` is in SSTs.
pub(super) async fn wait_flushed(engine: &EngineInner, table: &TableInner, seq: Seq) -> Result<()> {
    let mut versions = table.manifest.subscribe();
    while versions.borrow_and_update().flushed_seq < seq {
        tokio::select! {
            biased;
            _ = versions.changed() => {}
            () = table.cancel.cancelled() => {
                engine.check_alive()?;
                table.check_open()?;
            }
        }
    }
    Ok(())
}

/// Flushes the frozen memtables of `table`, oldest first, until its background work is to end.
pub(super) async fn run(engine: Arc<EngineInner>, table: Arc<TableInner>) {
    loop {
        while let Some(slot) = table.memory.oldest_frozen() {
            tokio::select! {
                biased;
                () = table.cancel.cancelled() => return,
                // A flush may wait for the store for long, and whoever else meets the newer engine would meet it again
                // and again meanwhile.
                error = table.manifest.fenced() => return engine.fail(error),
                flushed = flush_slot(&engine, &table, &slot) => {
                    if let Err(error) = flushed {
                        return engine.fail(error);
                    }
                }
            }
        }
        tokio::select! {
            biased;
            () = table.cancel.cancelled() => return,
            error = table.manifest.fenced() => return engine.fail(error),
            () = table.flush_wanted.notified() => {}
        }
    }
}

/// Fails only when the engine is fenced.
async fn flush_slot(
    engine: &Arc<EngineInner>,
    table: &Arc<TableInner>,
    slot: &Arc<Slot>,
) -> Result<()> {
    slot.wait_complete().await;
    retry(table, || alter::choose_window_of_flush(engine, table, slot)).await?;
    let (ssts, pending) = retry(table, || write_ssts(engine, table, slot)).await?;
    let seq = slot.seq_last();
    let commit = || {
        table.manifest.commit(|version| {
            let is_flushed = version.flushed_seq >= seq;
            Ok((!is_flushed).then(|| Edit {
                added: ssts.clone(),
                flushed_seq: Some(seq),
                ..Edit::default()
            }))
        })
    };
    retry(table, commit).await?;
    pending.settle();
    table.memory.forget_flushed(seq);
    table.pace.flushed(ssts.len(), engine.env.monotonic());
    let bytes = ssts.iter().map(|sst| sst.bytes).sum();
    table.counters.flushes.fetch_add(1, Ordering::Relaxed);
    table
        .counters
        .bytes_flushed
        .fetch_add(bytes, Ordering::Relaxed);
    engine.count(table);
    if let Some(wal) = &engine.wal {
        wal.release(table.id(), seq);
    }
    engine.scheduler.wake();
    tracing::debug!(table = %table.name, ssts = ssts.len(), %seq, "memtable flushed");
    Ok(())
}

/// Runs `step` until it succeeds, or the engine is fenced.
async fn retry<T, F: Future<Output = Result<T>>>(
    table: &TableInner,
    mut step: impl FnMut() -> F,
) -> Result<T> {
    let mut backoff = Backoff::for_outage();
    loop {
        match step().await {
            Ok(done) => {
                *lock(&table.counters.flush_error) = None;
                return Ok(done);
            }
            Err(error) if error.kind() == ErrorKind::Fenced => return Err(error),
            Err(error) => {
                tracing::warn!(table = %table.name, %error, "flush failed, and will be tried again");
                *lock(&table.counters.flush_error) = Some(error.to_string());
                table
                    .counters
                    .flush_failures
                    .fetch_add(1, Ordering::Relaxed);
            }
        }
        backoff.pause().await;
    }
}

async fn write_ssts(
    engine: &EngineInner,
    table: &TableInner,
    slot: &Arc<Slot>,
) -> Result<(Vec<Arc<SstMeta>>, Arc<PendingSsts>)> {
    let permit = engine.flush_slots.acquire().await;
    let _permit = permit.map_err(|_| Error::closed("the engine is closed"))?;
    let pending = Arc::new(table.pending.begin());
    let writing = SlotWriter {
        pending: pending.clone(),
        store: engine.store.clone(),
        env: engine.env.clone(),
        version: table.manifest.version(),
        // Not before the memtable is complete: what a later snapshot reads at is not below any of its seqs.
        pins: table.manifest.pins(),
        table: table.id(),
        cancel: table.cancel.clone(),
    };
    let slot = slot.clone();
    let written = threads::run(move || {
        let mut ssts = Vec::new();
        let result = writing.write(&slot, &mut ssts);
        (result, ssts)
    });
    let written = written.await;
    let (result, ssts) =
        written.map_err(|error| Error::internal("flush panicked").with_source(error))?;
    if let Err(error) = result {
        // No edit names them, and the next attempt writes others. What cannot be deleted now is swept later.
        for sst in ssts {
            let name = layout::sst(table.id(), sst.id);
            if let Err(error) = engine.store.delete(&name).await {
                tracing::warn!(name, %error, "sst of a failed flush was not deleted");
            }
        }
        pending.settle();
        return Err(error);
    }
    Ok((ssts, pending))
}

/// Writes the SSTs of one memtable. Blocks.
struct SlotWriter {
    pending: Arc<PendingSsts>,
    store: Store,
    env: Env,
    version: Arc<Version>,
    pins: Pins,
    table: TableId,
    cancel: CancellationToken,
}

impl SlotWriter {
    /// Adds each SST to `ssts` as soon as it is durable.
    fn write(&self, slot: &Slot, ssts: &mut Vec<Arc<SstMeta>>) -> Result<()> {
        let (view, handle) = (slot.memtable.view(), Handle::current());
        // Rows of an older schema are brought up to date before they are combined.
        let schema = &self.version.schema;
        let map = ColumnMap::new(schema.stored().clone(), view.schema().stored().fields())?;
        let columns = MergeColumns::find(schema, schema.stored())?;
        let retention = Retention {
            read_points: self.pins.read_points.clone(),
            drop_tombstones: false,
            expiry: self.pins.expiry,
            range_deletes: self.version.range_deletes.clone(),
        };
        for (window, batches) in view.by_window(schema.window_width(), BATCH_ROWS)? {
            let map = map.clone();
            let batches = batches.into_iter().map(move |batch| map.apply(&batch));
            let source: SortedSource = Box::new(batches);
            let options = MergeOptions::retained(schema.write_mode(), retention.clone());
            let merged = Merge::new(vec![source], columns.clone(), options);
            let spec = SstSpec {
                schema: schema.clone(),
                table: self.table,
                level: 0,
                window,
                applied_seq: retention.applied_seq(),
                options: SstOptions {
                    sst_bytes_target: u64::MAX,
                    ..SstOptions::default()
                },
            };
            let hooks = RunHooks {
                id_of: &mut |_| {
                    let id = SstId::flushed(self.env.unix_ms(), self.env.random());
                    self.pending.add(id)
                },
                progress: &mut |_| {},
                finished: &mut |sst| ssts.push(Arc::new(sst.clone())),
                cancelled: &|| self.cancel.is_cancelled(),
            };
            write_run(&self.store, &handle, &spec, merged, hooks)?;
        }
        Ok(())
    }
}
