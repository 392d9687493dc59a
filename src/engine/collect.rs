//! The engine's deletions: obsolete SSTs now and then, the objects of dropped tables. And its heartbeat,
//! one request: whether another engine has taken the root over. Without it an engine that does nothing but
//! write to a WAL of its own would not notice.

use std::{
    collections::HashSet,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use super::{
    EngineInner, clone,
    table::{TableInner, lock},
};
use crate::{error::Result, gc, store::layout, types::TableId};

const INTERVAL_MAX: Duration = Duration::from_secs(30);
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// How often an engine asks whether another has taken over.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// Asks now and then whether another engine has taken over, until this one ends.
pub(super) async fn heartbeat(engine: Arc<EngineInner>) {
    loop {
        tokio::select! {
            () = engine.cancel.cancelled() => return,
            () = tokio::time::sleep(HEARTBEAT) => {}
        }
        let leads = engine.catalog.lock().await.check_leads().await;
        if let Err(error) = leads {
            tracing::warn!(%error, "heartbeat failed");
            engine.fail_if_fenced(error);
        }
    }
}

/// Sweeps until the engine ends.
pub(super) async fn run(engine: Arc<EngineInner>) {
    tokio::select! {
        () = engine.cancel.cancelled() => return,
        deleted = delete_unknown_tables(&engine) => if let Err(error) = deleted {
            tracing::warn!(%error, "tables that are not in the catalog were not deleted");
        }
    }
    loop {
        tokio::select! {
            () = engine.cancel.cancelled() => return,
            () = tokio::time::sleep(engine.sweep_interval()) => {}
        }
        let tables: Vec<Arc<TableInner>> = lock(&engine.tables).values().cloned().collect();
        for table in tables {
            let is_held = lock(&table.swept).held > 0;
            if is_held {
                clone::release(&engine, table.id()).await;
            }
            let (grace_ms, now_ms) = (engine.config.gc.grace.0, engine.env.unix_ms());
            let swept = gc::sweep_obsolete(&engine.store, &table.manifest, grace_ms, now_ms);
            tokio::select! {
                () = table.cancel.cancelled() => {}
                swept = swept => match swept {
                    Ok(swept) => {
                        let ssts = swept.deleted as u64;
                        engine.ssts_deleted.fetch_add(ssts, Ordering::Relaxed);
                        *lock(&table.swept) = swept;
                        if ssts > 0 {
                            tracing::debug!(table = %table.name, ssts, "obsolete ssts deleted");
                        }
                    }
                    Err(error) => tracing::warn!(table = %table.name, %error, "obsolete ssts were not all deleted"),
                }
            }
        }
    }
}

/// Deletes the objects of the dropped table `id`, once no read of `table`, its last handle if it was open,
/// holds them; those that checkpoints hold when these have ended. What the engine does not get round to, the
/// next one finds.
pub(super) async fn delete_dropped(
    engine: Arc<EngineInner>,
    id: TableId,
    table: Option<Arc<TableInner>>,
) {
    let deleted = async {
        loop {
            let mut pause = INTERVAL_MIN;
            let is_read = table.as_ref().is_some_and(|table| table.manifest.is_read());
            if !is_read {
                lock(&engine.dropped).remove(&id);
                clone::release(&engine, id).await;
                match gc::delete_table(&engine.store, id, engine.env.unix_ms()).await {
                    Ok(swept) => {
                        let (objects, is_held) = (swept.deleted, swept.is_held);
                        if objects > 0 {
                            tracing::info!(table = %id, objects, is_held, "dropped table deleted");
                        }
                        if !is_held {
                            return;
                        }
                        pause = engine.sweep_interval();
                    }
                    Err(error) => {
                        tracing::warn!(table = %id, %error, "dropped table was not deleted")
                    }
                }
            }
            tokio::time::sleep(pause).await;
        }
    };
    tokio::select! {
        () = engine.cancel.cancelled() => {}
        () = deleted => {}
    }
}

/// Deletes tables that were dropped, or never finished being created, by an engine before.
async fn delete_unknown_tables(engine: &Arc<EngineInner>) -> Result<()> {
    let unknown = {
        let mut catalog = engine.catalog.lock().await;
        let folders = engine.store.list_folders(layout::TABLES).await?;
        // In this order: a table that a newer engine creates comes after its claim, so if there is no claim
        // yet, none of the folders listed is such a table. Ids never come back.
        let leads = catalog.check_leads().await;
        leads.map_err(|error| engine.fail_if_fenced(error))?;
        let known: HashSet<TableId> = catalog.tables().map(|(_, id)| id).collect();
        gc::unknown_tables(&folders, &known)
    };
    for table in unknown {
        let deleted = delete_dropped(engine.clone(), table, None);
        engine.tracker.spawn(deleted);
    }
    Ok(())
}

impl EngineInner {
    /// How often what is obsolete is looked through.
    fn sweep_interval(&self) -> Duration {
        let grace = self.config.gc.grace.duration();
        grace.clamp(INTERVAL_MIN, INTERVAL_MAX)
    }
}
