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
    manifest::{Edit, Version},
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
        let (mut change, mut backoff) = (Change::new(changes), Backoff::for_outage());
        loop {
            match change.make(&engine, &inner).await {
                Ok(schema) => return Ok(schema),
                Err(error) => engine.wait_out(&inner, error, &mut backoff).await?,
            }
        }
    };
    let altered = table.engine.tracker.spawn(altering).await;
    altered.map_err(|error| Error::internal("alteration panicked").with_source(error))?
}

/// A change on its way.
struct Change {
    alterations: Vec<Alteration>,
    /// What was tried: one of them may be in the manifest although its answer was lost.
    tried: Vec<TableSchema>,
    /// Whether a flush chooses the width of windows.
    is_choice: bool,
}

impl Change {
    fn new(alterations: Vec<Alteration>) -> Self {
        Self {
            alterations,
            tried: Vec::new(),
            is_choice: false,
        }
    }

    /// Of windows of different widths, those of the newer one hold the newer rows. With a third width, or the first
    /// one again, that would not be so.
    fn check_windows(&self, version: &Version) -> Result<()> {
        // What the first flush chooses completes the change that left it to it.
        if version.schema.options().window == Windowing::Auto && self.is_choice {
            return Ok(());
        }
        let sets = |alteration: &Alteration| matches!(alteration, Alteration::SetWindow(_));
        let mut windows = version.windows.keys();
        let strange = windows.find(|window| !version.schema.has_window(**window));
        match strange {
            Some(window) if self.alterations.iter().any(sets) => Err(Error::invalid(format!(
                "windows cannot be changed again while ssts are left of an earlier change, as in {window}"
            ))),
            _ => Ok(()),
        }
    }

    /// Makes the change; the caller holds `altering`.
    async fn make(&mut self, engine: &EngineInner, table: &TableInner) -> Result<TableSchema> {
        let now_ms = engine.env.unix_ms();
        let version = table.manifest.commit(|version| {
            if self.tried.contains(&version.schema) {
                return Ok(None);
            }
            self.check_windows(version)?;
            let next = version.schema.altered(&self.alterations, now_ms)?;
            sst::check_storable(&next)?;
            self.tried.push(next.clone());
            Ok(Some(Edit {
                schema: Some(next),
                ..Edit::default()
            }))
        });
        let schema = version.await?.schema.clone();
        if table.memory.set_schema(schema.clone()) {
            table.flush_wanted.notify_one();
        }
        Ok(schema)
    }
}

/// Bytes of rows in memory, and the least and the greatest of their times.
type Sample = (u64, (i64, i64));

/// Chooses the width of windows by what is about to be flushed, if that has been left to the first flush.
pub(super) async fn choose_window_of_flush(
    engine: &EngineInner,
    table: &TableInner,
    slot: &Arc<Slot>,
) -> Result<()> {
    choose_window(engine, table, || {
        let times = slot.memtable.view().times()?;
        Ok(times.map(|times| (slot.memtable.bytes(), times)))
    })
    .await
}

/// Chooses the width of windows by rows that are about to be written to SSTs, if that has been left to the first.
pub(super) async fn choose_window(
    engine: &EngineInner,
    table: &TableInner,
    sample: impl FnOnce() -> Result<Option<Sample>>,
) -> Result<()> {
    let _one = table.altering.lock().await;
    let schema = table.manifest.version().schema.clone();
    if schema.options().window != Windowing::Auto {
        return Ok(());
    }
    let (Some((bytes, times)), Some(unit)) = (sample()?, schema.time_unit()) else {
        return Ok(());
    };
    let width = WindowWidth::for_rate(bytes, times, unit);
    tracing::info!(table = %table.name, ?width, "width of windows chosen");
    let fixed = Alteration::SetWindow(Windowing::Fixed(width));
    let mut choice = Change {
        is_choice: true,
        ..Change::new(vec![fixed])
    };
    choice.make(engine, table).await.map(drop)
}
