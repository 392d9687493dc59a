//! Deletes by time range: one line in the manifest.
//!
//! 1. It takes a seq, after which later batches come, and waits until all before it are visible.
//! 2. Then it is committed. Until then the memtable that it took its seq in is not complete: no row of a later
//!    seq can reach an SST before, and be combined there with one that is to be deleted. A snapshot waits for that, so that none sees it come; a read that began before
//!    holds its version.

use std::sync::Arc;

use super::{
    EngineInner,
    table::{Table, TableInner},
};
use crate::{
    clock::Backoff,
    error::{Error, Result},
    manifest::Edit,
    types::{RangeDelete, Seq, TimeRange},
};

/// Deletes the rows of `table` with a time in `times`.
pub(super) async fn delete_range(table: &Table, times: TimeRange) -> Result<Seq> {
    let (engine, inner) = (table.engine.clone(), table.inner.clone());
    engine.check_alive()?;
    inner.check_open()?;
    if inner.memory.schema().time().is_none() {
        return Err(Error::invalid(
            "a delete by time range needs a table with a time column",
        ));
    }
    if times.start >= times.end && !times.contains(i64::MAX) {
        return Ok(inner.memory.visible());
    }
    let deleting = async move { commit(&engine, &inner, times).await };
    let deleted = table.engine.tracker.spawn(deleting).await;
    deleted.map_err(|error| Error::internal("range delete panicked").with_source(error))?
}

async fn commit(engine: &EngineInner, table: &Arc<TableInner>, times: TimeRange) -> Result<Seq> {
    let _one = table.range_deleting.lock().await;
    let ticket = table.memory.begin();
    let seq = ticket.seq;
    ticket.show();
    table.memory.wait_visible(seq).await;
    let delete = RangeDelete { seq, times };
    let mut backoff = Backoff::for_outage();
    loop {
        let committed = table.manifest.commit(|version| {
            let is_there = version.range_deletes.contains(&delete);
            Ok((!is_there).then(|| Edit {
                range_deletes: vec![delete],
                ..Edit::default()
            }))
        });
        let Err(error) = committed.await else {
            return Ok(seq);
        };
        engine.wait_out(table, error, &mut backoff).await?;
    }
}
