//! Point reads: all keys at once, as a scan of points. An SST is looked into only for keys that its bounds and its
//! filter let through, and only the pages that can hold them are read.

use std::sync::{Arc, atomic::Ordering};

use arrow::{
    array::RecordBatch,
    compute::{concat_batches, max, min},
};

use super::{ReadSet, ScanPlan};
use crate::{
    engine::{
        table::Table,
        view::{ReadAt, ReadCounters, ReadView},
    },
    error::{Error, Result},
    threads,
    types::{Key, TableSchema, TimeRange},
};

/// The rows of an engine's table with the given keys.
pub(in crate::engine) async fn get(
    table: &Table,
    keys: RecordBatch,
    at: ReadAt,
) -> Result<RecordBatch> {
    table.engine.check_alive()?;
    table.inner.check_open()?;
    // Reading blocks a thread, and may need another one of the same pool: not all may go to gets.
    let slot = table.engine.get_slots.acquire().await;
    let _slot = slot.map_err(|_| Error::closed("the engine is closed"))?;
    let view = ReadView::new(&table.engine.source, &table.inner, at);
    get_view(view, keys, &table.inner.reads).await
}

/// The rows that `view` sees with the given keys.
pub(in crate::engine) async fn get_view(
    view: ReadView,
    keys: RecordBatch,
    counters: &Arc<ReadCounters>,
) -> Result<RecordBatch> {
    counters.gets.fetch_add(1, Ordering::Relaxed);
    view.schema().check_keys(&keys)?;
    let reads = counters.clone();
    let rows = threads::run(move || read(view, &keys, reads)).await;
    let rows = rows.map_err(|error| Error::internal("get panicked").with_source(error))??;
    counters.read(&rows);
    Ok(rows)
}

fn read(view: ReadView, keys: &RecordBatch, counters: Arc<ReadCounters>) -> Result<RecordBatch> {
    let columns = view.schema().columns().clone();
    let points = points(view.schema(), keys)?;
    let plan = ScanPlan::of_points(view.schema(), points, times(view.schema(), keys)?)?;
    let mut set = ReadSet::new(view, plan, counters);
    set.open_all()?;
    let mut found = Vec::new();
    for stretch in set.stretches() {
        for piece in set.pieces(stretch, 1)? {
            for batch in set.read(piece)? {
                found.push(batch?);
            }
        }
    }
    Ok(concat_batches(&columns, &found)?)
}

/// The times between which the keys are.
fn times(schema: &TableSchema, keys: &RecordBatch) -> Result<Option<TimeRange>> {
    let column = schema
        .time()
        .and_then(|time| schema.key().iter().position(|&at| at == time));
    let Some(column) = column else {
        return Ok(None);
    };
    let times = TableSchema::times(keys, column)?;
    let bounds = min(&times).zip(max(&times));
    // The greatest time is inside where it is the end.
    Ok(bounds.map(|(start, end)| TimeRange {
        start,
        end: end.saturating_add(1),
    }))
}

/// The keys, ascending, each once.
fn points(schema: &TableSchema, keys: &RecordBatch) -> Result<Vec<Key>> {
    let columns: Vec<usize> = (0..keys.num_columns()).collect();
    let encoded = schema.key_encoder().at(&columns).encode(keys)?;
    let mut points: Vec<Key> = encoded.iter().map(|row| Key::from(row.data())).collect();
    points.sort_unstable();
    points.dedup();
    Ok(points)
}
