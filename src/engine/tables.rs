//! Tables come and go: one change to the catalog at a time. A change runs as a task of its own, so that
//! a caller that goes away leaves nothing half done.

use std::sync::Arc;

use super::{
    EngineInner, collect, flush,
    table::{TableInner, lock},
    warm,
};
use crate::{
    clock::Backoff,
    error::{Error, Result},
    manifest::{Catalog, Manifest},
    sst,
    types::{Seq, TableId, TableSchema},
};

/// Creates a table, and starts its background work.
pub(super) async fn create(
    engine: Arc<EngineInner>,
    name: String,
    schema: TableSchema,
) -> Result<Arc<TableInner>> {
    engine.check_alive()?;
    sst::check_storable(&schema)?;
    let mut catalog = engine.catalog.lock().await;
    check_name(&catalog, &name)?;
    let id = TableId::from_parts(engine.env.unix_ms(), engine.env.random());
    let (store, epoch, logs) = (&engine.store, catalog.epoch(), engine.log_settings());
    // A table that the catalog lists always has a manifest.
    let manifest = Manifest::create(store, id, epoch, schema, logs).await;
    let manifest = manifest.map_err(|error| engine.fail_if_fenced(error))?;
    add(&engine, &mut catalog, &name, manifest).await
}

/// Whether a table may be called `name`.
pub(super) fn check_name(catalog: &Catalog, name: &str) -> Result<()> {
    if name.is_empty() {
        return Err(Error::invalid("a table needs a name"));
    }
    match catalog.tables().any(|(other, _)| other == name) {
        false => Ok(()),
        true => Err(Error::invalid(format!("table {name:?} exists already"))),
    }
}

/// Adds a table, whose manifest exists, to the catalog, and starts its background work.
pub(super) async fn add(
    engine: &Arc<EngineInner>,
    catalog: &mut Catalog,
    name: &str,
    manifest: Manifest,
) -> Result<Arc<TableInner>> {
    // Until the outcome is known, so that the list of open tables agrees with the catalog.
    let mut backoff = Backoff::for_outage();
    while let Err(error) = catalog.create(name, manifest.table()).await {
        wait_or_fail(engine, error, &mut backoff).await?;
    }
    let table = TableInner::new(name, manifest, engine.cancel.child_token());
    Ok(start(engine, Arc::new(table)))
}

/// Waits before a change to the catalog is tried again, if the store is away.
///
/// # Errors
/// `error`, when waiting does not help.
pub(super) async fn wait_or_fail(
    engine: &EngineInner,
    error: Error,
    backoff: &mut Backoff,
) -> Result<()> {
    if !error.is_unavailable() {
        return Err(engine.fail_if_fenced(error));
    }
    tracing::warn!(%error, "the catalog cannot be changed, and will be tried again");
    tokio::select! {
        biased;
        () = engine.cancel.cancelled() => Err(error),
        () = backoff.pause() => Ok(()),
    }
}

/// Drops a table, open or damaged.
pub(super) async fn drop_table(engine: Arc<EngineInner>, name: String) -> Result<()> {
    engine.check_alive()?;
    let mut catalog = engine.catalog.lock().await;
    let open = lock(&engine.tables).get(&name).cloned();
    let damaged = lock(&engine.damaged).get(&name).map(|damaged| damaged.id);
    let id = open.as_ref().map(|table| table.id()).or(damaged);
    let id = id.ok_or_else(|| Error::not_found(format!("table {name:?} does not exist")))?;
    let mut backoff = Backoff::for_outage();
    while let Err(error) = catalog.drop_table(id).await {
        wait_or_fail(&engine, error, &mut backoff).await?;
    }
    // While the catalog is ours: a sweep that finds the table in no catalog leaves it to us.
    lock(&engine.deleting).insert(id);
    lock(&engine.damaged).remove(&name);
    if let Some(table) = &open {
        lock(&engine.dropped).insert(id, table.clone());
        lock(&engine.tables).remove(&name);
        engine.scheduler.remove_table(id);
        table.cancel.cancel();
        engine.count(table);
    }
    if let Some(wal) = &engine.wal {
        wal.release(id, Seq(u64::MAX));
    }
    engine
        .tracker
        .spawn(collect::delete_dropped(engine.clone(), id, open));
    Ok(())
}

/// Lists a table as open, and starts its background work.
pub(super) fn start(engine: &Arc<EngineInner>, table: Arc<TableInner>) -> Arc<TableInner> {
    lock(&engine.tables).insert(table.name.clone(), table.clone());
    engine
        .tracker
        .spawn(flush::run(engine.clone(), table.clone()));
    if engine.source.cache.keeps_pages() {
        let warming = warm::run(engine.clone(), table.clone());
        engine.tracker.spawn(warming);
    }
    engine
        .scheduler
        .add_table(&table.name, table.manifest.clone());
    table
}
