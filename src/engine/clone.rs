//! Clones: tables that begin with the SSTs of another, and share them until compaction rewrites them.
//!
//! An SST that a table has as a clone carries its home: the table that wrote it, in whose folder it is. It leaves the
//! clone's version without becoming obsolete there. For each home that a clone begins with, a checkpoint in the
//! home's folder names the clone, and never ends by itself.
//!
//! # Making one, under the lock of the catalog
//! 1. The source is flushed; its version is held, so that this process deletes nothing of it.
//! 2. The checkpoints are put. Then the engine makes sure that it still leads: a newer one would have begun to sweep
//!    without knowing them.
//! 3. The clone's manifest is created, with all SSTs in its first edit; then the catalog gets its name.
//!
//! # Ending its checkpoint
//! The one in the folder of a home goes when the clone needs no SST of it any more, which once true stays true:
//! * The catalog has the clone, and its current version names none; SSTs never come back into a version.
//! * Or the catalog does not have it, no change of it is on its way, and it never will: it was dropped, or was never finished, by this engine, which has
//!   given up the lock, or by one before it, which the catalog keeps out. That this engine still leads after it has
//!   listed the checkpoint proves that no newer one has put it there.
//!
//! And none of the clone's checkpoints names one, and then no read of this process holds a version that does: in this
//! order, for the same reasons as in [`manifest::checkpoints`](crate::manifest::checkpoints).

use std::sync::Arc;

use super::{
    EngineInner,
    table::{Table, TableInner, lock},
    tables,
};
use crate::{
    clock::Backoff,
    error::Result,
    manifest::{Checkpoint, Manifest, Purpose, Version, checkpoints},
    types::{CheckpointId, SstMeta, TableId},
};

/// Creates the table `name` as a clone of `source`.
pub(super) async fn create(source: Table, name: String) -> Result<Arc<TableInner>> {
    let (engine, inner) = (&source.engine, &source.inner);
    engine.check_alive()?;
    // Before the lock: it may take long.
    tables::check_name(&*engine.catalog.lock().await, &name)?;
    let version = source.flushed_version().await?;
    let mut catalog = engine.catalog.lock().await;
    tables::check_name(&catalog, &name)?;
    inner.check_open()?;
    let id = TableId::from_parts(engine.env.unix_ms(), engine.env.random());
    let cloned = cloned(&version, inner.id());
    let holds = holds(engine, inner, &version, id);
    let manifest = async {
        for (home, hold) in &holds {
            let mut backoff = Backoff::for_outage();
            while let Err(error) = checkpoints::put(&engine.store, *home, hold).await {
                tables::wait_or_fail(engine, error, &mut backoff).await?;
            }
        }
        let leads = engine.insist(inner, || inner.manifest.check_leads()).await;
        leads?;
        let (store, epoch, logs) = (&engine.store, catalog.epoch(), engine.log_settings());
        let manifest = Manifest::create_with(store, id, epoch, &cloned, logs).await;
        manifest.map_err(|error| engine.fail_if_fenced(error))
    };
    let manifest = match manifest.await {
        Ok(manifest) => manifest,
        Err(error) => {
            // Those that are left are found when they hold what could be deleted.
            for (home, hold) in &holds {
                let _ = checkpoints::delete(&engine.store, *home, hold).await;
            }
            return Err(error);
        }
    };
    // Whatever the answer, from here on the catalog may have it.
    tables::add(engine, &mut catalog, &name, manifest).await
}

/// What a clone of the table `source` begins with.
fn cloned(version: &Version, source: TableId) -> Version {
    let mut cloned = version.for_reading();
    for window in cloned.windows.values_mut() {
        let window = Arc::make_mut(window);
        let ssts = window.l0.iter_mut();
        for sst in ssts.chain(window.levels.values_mut().flatten()) {
            *sst = Arc::new(SstMeta {
                home: Some(sst.home_in(source)),
                ..sst.as_ref().clone()
            });
        }
    }
    cloned
}

/// The checkpoints that hold the SSTs of `version`, of the table `source`, for `clone`; each with the table in whose
/// folder it belongs.
fn holds(
    engine: &EngineInner,
    source: &TableInner,
    version: &Version,
    clone: TableId,
) -> Vec<(TableId, Checkpoint)> {
    let now_ms = engine.env.unix_ms();
    let homes = version.by_home(source.id()).into_iter();
    let holds = homes.map(|(home, version)| {
        let hold = Checkpoint {
            id: CheckpointId::from_parts(now_ms, engine.env.random()),
            purpose: Purpose::Clone(clone),
            created_ms: now_ms,
            expires_ms: None,
            seq: version.flushed_seq,
            version: Arc::new(version),
            expiry: source.manifest.expiry(),
        };
        (home, hold)
    });
    holds.collect()
}

/// Ends the checkpoints of clones in the folder of `home` that need nothing of it any more. A failure is traced, and
/// made up for later.
pub(super) async fn release(engine: &EngineInner, home: TableId) {
    if let Err(error) = try_release(engine, home).await {
        tracing::warn!(table = %home, %error, "checkpoints of clones were not looked through");
    }
}

async fn try_release(engine: &EngineInner, home: TableId) -> Result<()> {
    let listed = checkpoints::list(&engine.store, home).await?;
    for checkpoint in listed.iter().filter_map(|one| one.checkpoint.as_ref().ok()) {
        let Purpose::Clone(clone) = checkpoint.purpose else {
            continue;
        };
        if !needs(engine, clone, home).await? {
            checkpoints::delete(&engine.store, home, checkpoint).await?;
            tracing::debug!(table = %home, %clone, "clone shares nothing any more");
        }
    }
    Ok(())
}

/// Whether `clone` may need an SST in the folder of `home`, given that there is a checkpoint for it.
async fn needs(engine: &EngineInner, clone: TableId, home: TableId) -> Result<bool> {
    let table = {
        let mut catalog = engine.catalog.lock().await;
        let is_there = catalog.tables().any(|(_, id)| id == clone);
        if !is_there {
            catalog.check_leads().await?;
            if !catalog.is_settled() {
                return Ok(true);
            }
        }
        let find = |table: &&Arc<TableInner>| table.id() == clone;
        let open = lock(&engine.tables).values().find(find).cloned();
        let dropped = lock(&engine.dropped).get(&clone).cloned();
        match (is_there, open) {
            // Damaged: nobody knows.
            (true, None) => return Ok(true),
            (true, Some(table)) if table.manifest.version().names_home(home) => return Ok(true),
            (true, Some(table)) => Some(table),
            (false, _) => dropped,
        }
    };
    let now_ms = engine.env.unix_ms();
    let held = checkpoints::held(&engine.store, clone, now_ms).await?;
    let is_read = |table: Arc<TableInner>| {
        let mut pinned = table.manifest.pinned();
        pinned.push(table.manifest.version());
        pinned.iter().any(|version| version.names_home(home))
    };
    Ok(held.names_home(home) || table.is_some_and(is_read))
}
