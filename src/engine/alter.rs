//! Changes of a table's schema, and the width of its windows where that is chosen by the first flush.
//!
//! 1. The new schema is committed; reads that begin from now on are under it.
//! 2. Then writes are: the active memtable is frozen with its old schema, and the next has the new one. A batch that
//!    was checked under the old schema is brought up to date when it is inserted, or replayed.

use std::sync::Arc;

use super::{
    EngineInner,
    memory::Slot,
    table::{Table, TableInner},
};
use crate::{
    clock::Backoff,
    error::{Error, Result},
    manifest::Edit,
    sst,
    types::{Alteration, TableSchema, WindowWidth, Windowing},
};

/// Changes the schema of `table`.
pub(super) async fn alter(table: &Table, changes: Vec<Alteration>) -> Result<TableSchema> {
    let (engine, inner) = (table.engine.clone(), table.inner.clone());
    engine.check_alive()?;
    inner.check_open()?;
    let altering = async move {
        let _one = inner.altering.lock().await;
        let mut backoff = Backoff::for_outage();
        loop {
            match change(&inner, &changes).await {
                Ok(schema) => return Ok(schema),
                Err(error) => engine.wait_out(&inner, error, &mut backoff).await?,
            }
        }
    };
    let altered = table.engine.tracker.spawn(altering).await;
    altered.map_err(|error| Error::internal("alteration panicked").with_source(error))?
}

/// Makes the change; the caller holds `altering`.
async fn change(table: &TableInner, changes: &[Alteration]) -> Result<TableSchema> {
    // Not the version's: a change whose outcome was unknown may be in it already.
    let next = table.memory.schema().altered(changes)?;
    sst::check_storable(&next)?;
    let commit = table.manifest.commit(|version| {
        let is_made = version.schema == next;
        Ok((!is_made).then(|| Edit {
            schema: Some(next.clone()),
            ..Edit::default()
        }))
    });
    commit.await?;
    if table.memory.set_schema(next.clone()) {
        table.flush_wanted.notify_one();
    }
    Ok(next)
}

/// Chooses the width of windows by what is about to be flushed, if that has been left to the first flush.
pub(super) async fn choose_window(
    engine: &EngineInner,
    table: &TableInner,
    slot: &Arc<Slot>,
) -> Result<()> {
    let _one = table.altering.lock().await;
    let schema = table.memory.schema();
    if schema.options().window != Windowing::Auto {
        return Ok(());
    }
    let view = slot.memtable.view();
    let (Some(times), Some(unit)) = (view.times()?, schema.time_unit()) else {
        return Ok(());
    };
    let width = WindowWidth::for_rate(slot.memtable.bytes(), times, unit);
    engine.check_alive()?;
    tracing::info!(table = %table.name, ?width, "width of windows chosen");
    let fixed = Alteration::SetWindow(Windowing::Fixed(width));
    change(table, &[fixed]).await.map(drop)
}
