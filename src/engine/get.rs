//! Point reads: one small merge a key, over the memtables and those SSTs whose bounds and filters let
//! the key through.

use std::{collections::BTreeSet, sync::atomic::Ordering};

use arrow::{array::RecordBatch, compute::concat_batches};

use super::{
    scan::Output,
    table::Table,
    view::{ReadAt, ReadCounters, ReadView},
};
use crate::{
    error::{Error, Result},
    types::Key,
};

/// The rows with the given keys.
pub(super) async fn get(table: &Table, keys: RecordBatch, at: ReadAt) -> Result<RecordBatch> {
    table.engine.check_alive()?;
    table.inner.check_open()?;
    // Reading blocks a thread, and may need another one of the same pool: not all may go to gets.
    let slot = table.engine.get_slots.acquire().await;
    let _slot = slot.map_err(|_| Error::closed("the engine is closed"))?;
    let view = ReadView::new(&table.engine.store, &table.inner, at);
    get_view(view, keys, &table.inner.reads).await
}

/// The rows that `view` sees with the given keys.
pub(super) async fn get_view(
    view: ReadView,
    keys: RecordBatch,
    counters: &ReadCounters,
) -> Result<RecordBatch> {
    counters.gets.fetch_add(1, Ordering::Relaxed);
    view.schema().check_keys(&keys)?;
    let rows = tokio::task::spawn_blocking(move || read(&view, &keys)).await;
    let rows = rows.map_err(|error| Error::internal("get panicked").with_source(error))??;
    counters.read(&rows);
    Ok(rows)
}

fn read(view: &ReadView, keys: &RecordBatch) -> Result<RecordBatch> {
    let schema = view.schema();
    let key_columns: Vec<usize> = (0..keys.num_columns()).collect();
    let encoded = schema.key_encoder().at(&key_columns).encode(keys)?;
    let wanted: BTreeSet<Key> = encoded.iter().map(|row| Key::from(row.data())).collect();
    let output = Output::new(schema.stored(), schema.columns().clone())?;
    let mut found = Vec::new();
    for key in &wanted {
        for batch in view.merge_key(key)? {
            found.push(output.of(&batch?)?);
        }
    }
    Ok(concat_batches(schema.columns(), &found)?)
}
