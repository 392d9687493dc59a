//! What nobody can see any more leaves the version by itself, on a timer: SSTs whose rows are all past their time to
//! live or range-deleted, unread; and range deletes that have nothing left to hide.

use std::{sync::Arc, time::Duration};

use super::{
    EngineInner,
    table::{TableInner, lock},
};
use crate::{
    error::Result,
    manifest::{Departure, Edit, SstRef, Version, hidden},
};

const INTERVAL: Duration = Duration::from_secs(1);

/// Looks at every table until the engine ends.
pub(super) async fn run(engine: Arc<EngineInner>) {
    loop {
        tokio::select! {
            biased;
            () = engine.cancel.cancelled() => return,
            () = tokio::time::sleep(INTERVAL) => {}
        }
        let tables: Vec<Arc<TableInner>> = lock(&engine.tables).values().cloned().collect();
        for table in tables {
            if !table.manifest.version().range_deletes.is_empty() {
                // A snapshot that kept rows from being deleted may be gone.
                engine.scheduler.wake();
            }
            tokio::select! {
                biased;
                () = table.cancel.cancelled() => {}
                expired = expire(&table) => if let Err(error) = expired {
                    tracing::warn!(table = %table.name, %error, "expired ssts stay for now");
                }
            }
        }
    }
}

/// Takes out of the version what nobody can see. Issues no request when there is nothing.
pub(super) async fn expire(table: &TableInner) -> Result<()> {
    for departure in [Departure::Expired, Departure::RangeDeleted] {
        if hidden(table, &table.manifest.version(), departure).is_none() {
            continue;
        }
        let commit = table
            .manifest
            .commit(|version| Ok(hidden(table, version, departure)));
        let version = commit.await?;
        let (why, deletes) = (departure.as_str(), version.range_deletes.len());
        tracing::debug!(table = %table.name, why, deletes_left = deletes, "hidden ssts left the version");
    }
    Ok(())
}

/// Takes out the SSTs that are hidden for this reason, and the range deletes that have ended.
fn hidden(table: &TableInner, version: &Version, departure: Departure) -> Option<Edit> {
    let range_deletes_ended = hidden::ended_range_deletes(version, table.memory.unflushed());
    let ssts = hidden::hidden_ssts(version, &table.manifest.pins()).into_iter();
    let removed: Vec<SstRef> = ssts
        .filter(|(_, why)| *why == departure)
        .map(|(sst, _)| sst)
        .collect();
    if removed.is_empty() && range_deletes_ended.is_empty() {
        return None;
    }
    Some(Edit {
        removed,
        departure,
        // Nothing up to it is unflushed; so its seq is not taken again after a restart, when SSTs would seem to
        // have had another delete applied, and no entry that the WAL refused comes back.
        flushed_seq: range_deletes_ended.last().copied(),
        range_deletes_ended,
        ..Edit::default()
    })
}
