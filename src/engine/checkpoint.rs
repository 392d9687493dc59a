//! Named checkpoints of a table: made, listed, made to last, ended, read. How they keep SSTs from being deleted
//! is the story of [`manifest::checkpoints`](crate::manifest::checkpoints).
//!
//! A version has whole batches only, and all up to `flushed_seq`. A checkpoint flushes first, and waits for a
//! delete by time range that is on its way and would be in the version without the batches before it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use arrow::array::RecordBatch;

use super::{
    EngineInner, ScanRequest, ScanStream, flush, scan,
    table::{Table, TableInner},
    view::ReadView,
};
use crate::{
    clock::Backoff,
    error::{Error, ErrorKind, Result},
    manifest::{Checkpoint, CheckpointInfo, Purpose, checkpoints},
    store::layout,
    types::{CheckpointId, Seq, TableId, TableSchema},
};

/// How often a checkpoint is looked for again that is replaced just when it is found.
const FINDS_MAX: usize = 16;

/// Makes a checkpoint of `table`.
pub(super) async fn create(
    table: &Table,
    name: &str,
    lifetime: Option<Duration>,
) -> Result<CheckpointInfo> {
    if name.is_empty() {
        return Err(Error::invalid("a checkpoint needs a name"));
    }
    check_lifetime(lifetime)?;
    let (creating, name) = (table.clone(), name.to_owned());
    in_background(table, async move { creating.make(name, lifetime).await }).await
}

/// Has a checkpoint of `table` end at another time.
pub(super) async fn extend(
    table: &Table,
    name: &str,
    lifetime: Option<Duration>,
) -> Result<CheckpointInfo> {
    check_lifetime(lifetime)?;
    let (extending, name) = (table.clone(), name.to_owned());
    in_background(
        table,
        async move { extending.replace(&name, lifetime).await },
    )
    .await
}

/// The checkpoints of `table` that have not ended.
pub(super) async fn list(table: &Table) -> Result<Vec<CheckpointInfo>> {
    let engine = &table.engine;
    engine.check_alive()?;
    table.inner.check_open()?;
    live(engine, table.inner.id()).await
}

/// Ends a checkpoint of `table`.
pub(super) async fn delete(table: &Table, name: &str) -> Result<()> {
    let (engine, inner) = (&table.engine, &table.inner);
    engine.check_alive()?;
    inner.check_open()?;
    let _one = inner.checkpointing.lock().await;
    delete_all(engine, inner.id(), name).await
}

/// The checkpoints of tables that are not in the catalog.
pub(super) async fn of_dropped_tables(
    engine: &EngineInner,
) -> Result<BTreeMap<TableId, Vec<CheckpointInfo>>> {
    engine.check_alive()?;
    let folders = engine.store.list_folders(layout::TABLES).await?;
    let mut dropped = BTreeMap::new();
    for table in folders.iter().filter_map(|folder| folder.parse().ok()) {
        if !engine.is_in_catalog(table).await {
            let live = live(engine, table).await?;
            if !live.is_empty() {
                dropped.insert(table, live);
            }
        }
    }
    Ok(dropped)
}

/// Ends a checkpoint of a table that is not in the catalog.
pub(super) async fn delete_of_dropped(
    engine: &EngineInner,
    table: TableId,
    name: &str,
) -> Result<()> {
    engine.check_alive()?;
    if engine.is_in_catalog(table).await {
        return Err(Error::invalid(format!("table {table} was not dropped")));
    }
    delete_all(engine, table, name).await
}

async fn live(engine: &EngineInner, table: TableId) -> Result<Vec<CheckpointInfo>> {
    let listed = checkpoints::list(&engine.store, table).await?;
    let live = checkpoints::live(&listed, engine.env.unix_ms())?;
    Ok(live.iter().map(|checkpoint| checkpoint.info()).collect())
}

/// Deletes every checkpoint of that name: a crash may have left one that had been replaced.
async fn delete_all(engine: &EngineInner, table: TableId, name: &str) -> Result<()> {
    let store = &engine.store;
    let listed = checkpoints::list(store, table).await?;
    if checkpoints::find(&listed, name, engine.env.unix_ms()).is_none() {
        return Err(not_found(name));
    }
    let readable = listed.iter().filter_map(|one| one.checkpoint.as_ref().ok());
    // The oldest first: while the newest is there, the others count for nothing.
    for checkpoint in readable.filter(|checkpoint| checkpoint.name() == Some(name)) {
        checkpoints::delete(store, table, checkpoint).await?;
    }
    Ok(())
}

pub(super) fn not_found(name: &str) -> Error {
    Error::not_found(format!("checkpoint {name:?} does not exist, or has ended"))
}

fn check_lifetime(lifetime: Option<Duration>) -> Result<()> {
    match lifetime {
        Some(lifetime) if lifetime.as_millis() == 0 => Err(Error::invalid(
            "the lifetime of a checkpoint is less than a millisecond",
        )),
        _ => Ok(()),
    }
}

/// Runs `work` to its end, even if the caller goes away.
async fn in_background<T: Send + 'static>(
    table: &Table,
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<T> {
    table.engine.check_alive()?;
    table.inner.check_open()?;
    let done = table.engine.tracker.spawn(work).await;
    done.map_err(|error| Error::internal("checkpointing panicked").with_source(error))?
}

impl EngineInner {
    /// Whether the catalog has the table.
    pub(super) async fn is_in_catalog(&self, table: TableId) -> bool {
        let catalog = self.catalog.lock().await;
        catalog.tables().any(|(_, id)| id == table)
    }

    /// When something ends that lasts for `lifetime` from now.
    fn expires_ms(&self, lifetime: Option<Duration>) -> Option<u64> {
        let lifetime_ms = u64::try_from(lifetime?.as_millis()).unwrap_or(u64::MAX);
        Some(self.env.unix_ms().saturating_add(lifetime_ms))
    }

    /// Does something to `table` until the store has answered.
    ///
    /// # Errors
    /// `Closed`; others than `Unavailable`.
    pub(super) async fn insist<T, F: Future<Output = Result<T>>>(
        &self,
        table: &TableInner,
        mut step: impl FnMut() -> F,
    ) -> Result<T> {
        let mut backoff = Backoff::for_outage();
        loop {
            match step().await {
                Ok(done) => return Ok(done),
                Err(error) => self.wait_out(table, error, &mut backoff).await?,
            }
        }
    }
}

impl Table {
    async fn make(&self, name: String, lifetime: Option<Duration>) -> Result<CheckpointInfo> {
        let (engine, inner) = (&self.engine, &self.inner);
        let (store, id) = (&engine.store, inner.id());
        let _one = inner.checkpointing.lock().await;
        let listed = engine
            .insist(inner, || checkpoints::list(store, id))
            .await?;
        if checkpoints::find(&listed, &name, engine.env.unix_ms()).is_some() {
            return Err(Error::invalid(format!(
                "checkpoint {name:?} of table {:?} exists already",
                inner.name
            )));
        }
        loop {
            let version = Arc::new(self.flushed_version().await?.for_reading());
            let now_ms = engine.env.unix_ms();
            let checkpoint = Checkpoint {
                id: CheckpointId::from_parts(now_ms, engine.env.random()),
                purpose: Purpose::Named(name.clone()),
                created_ms: now_ms,
                expires_ms: engine.expires_ms(lifetime),
                seq: version.flushed_seq,
                expiry: inner.manifest.expiry(),
                version,
            };
            if self.hold(&checkpoint).await? {
                return Ok(checkpoint.info());
            }
        }
    }

    /// Puts `checkpoint` there; whether it holds, as of who creates one. Otherwise it is deleted again.
    async fn hold(&self, checkpoint: &Checkpoint) -> Result<bool> {
        let (engine, inner) = (&self.engine, &self.inner);
        let (store, id) = (&engine.store, inner.id());
        let put = || checkpoints::put(store, id, checkpoint);
        engine.insist(inner, put).await?;
        // While this engine leads, its version is the manifest's tip; while the table is open, the catalog has it.
        let leads = engine.insist(inner, || inner.manifest.check_leads()).await;
        let holds = leads.and(inner.check_open()).map(|()| {
            let tip = inner.manifest.version();
            tip.has_all_of(&checkpoint.version)
        });
        let delete = || checkpoints::delete(store, id, checkpoint);
        match &holds {
            Ok(true) => {}
            Ok(false) => engine.insist(inner, delete).await?,
            Err(_) => {
                if let Err(error) = delete().await {
                    tracing::warn!(table = %inner.name, checkpoint = %checkpoint.id, %error, "checkpoint that failed was not deleted");
                }
            }
        }
        holds
    }

    /// A version that has everything written so far, and no delete by time range without all that was written
    /// before it.
    pub(super) async fn flushed_version(&self) -> Result<Arc<crate::manifest::Version>> {
        let _settled = self.inner.range_deleting.lock().await;
        flush::flush(self).await?;
        Ok(self.inner.manifest.version())
    }

    async fn replace(&self, name: &str, lifetime: Option<Duration>) -> Result<CheckpointInfo> {
        let (engine, inner) = (&self.engine, &self.inner);
        let (store, id) = (&engine.store, inner.id());
        let _one = inner.checkpointing.lock().await;
        let listed = engine
            .insist(inner, || checkpoints::list(store, id))
            .await?;
        let now_ms = engine.env.unix_ms();
        let old = checkpoints::find(&listed, name, now_ms).ok_or_else(|| not_found(name))?;
        let new = old.renewed(engine.expires_ms(lifetime), now_ms, engine.env.random());
        let put = || checkpoints::put(store, id, &new);
        engine.insist(inner, put).await?;
        let was_there = engine
            .insist(inner, || checkpoints::exists(store, id, &old))
            .await;
        match was_there {
            Ok(true) => {}
            // It ended meanwhile: what it held may be gone.
            Ok(false) => {
                let delete = || checkpoints::delete(store, id, &new);
                engine.insist(inner, delete).await?;
                return Err(not_found(name));
            }
            Err(error) => return Err(error),
        }
        let delete = || checkpoints::delete(store, id, &old);
        engine.insist(inner, delete).await?;
        Ok(new.info())
    }
}

/// A table as it was at a checkpoint. Cheap to clone. While one is held, what it shows stays readable, even if
/// the checkpoint ends or is deleted; but it does not outlive the engine, and not the table.
///
/// Its columns are those that the table had then.
#[derive(Clone)]
pub struct CheckpointView {
    table: Table,
    checkpoint: Arc<Checkpoint>,
}

impl std::fmt::Debug for CheckpointView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (table, id) = (self.table.name(), self.checkpoint.id);
        write!(f, "CheckpointView({table:?} at {id})")
    }
}

impl CheckpointView {
    pub(super) async fn open(table: &Table, name: &str) -> Result<Self> {
        let (engine, inner) = (&table.engine, &table.inner);
        let (store, id) = (&engine.store, inner.id());
        for _ in 0..FINDS_MAX {
            engine.check_alive()?;
            let listed = checkpoints::list(store, id).await?;
            let found = checkpoints::find(&listed, name, engine.env.unix_ms());
            let checkpoint = found.ok_or_else(|| not_found(name))?;
            // As of who replaces a checkpoint: first it is held, then it is still there.
            inner.manifest.pin_version(&checkpoint.version);
            if checkpoints::exists(store, id, &checkpoint).await? {
                inner.check_open()?;
                let table = table.clone();
                return Ok(Self { table, checkpoint });
            }
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            format!("checkpoint {name:?} is replaced all the time"),
        ))
    }

    /// Its numbers.
    pub fn info(&self) -> CheckpointInfo {
        self.checkpoint.info()
    }

    /// The last batch that it is known to have.
    pub fn seq(&self) -> Seq {
        self.checkpoint.seq
    }

    /// The schema that the table had.
    pub fn schema(&self) -> &TableSchema {
        &self.checkpoint.version.schema
    }

    /// As [`Table::scan`], at this checkpoint.
    ///
    /// # Errors
    /// As for [`Table::scan`].
    pub async fn scan(&self, request: ScanRequest) -> Result<ScanStream> {
        let view = self.view()?;
        scan::scan_view(view, &request, self.table.inner.reads.clone())
    }

    /// As [`Table::get`], at this checkpoint.
    ///
    /// # Errors
    /// As for [`Table::get`].
    pub async fn get(&self, keys: RecordBatch) -> Result<RecordBatch> {
        // As in `scan::get`.
        let slot = self.table.engine.get_slots.acquire().await;
        let _slot = slot.map_err(|_| Error::closed("the engine is closed"))?;
        scan::get_view(self.view()?, keys, &self.table.inner.reads).await
    }

    fn view(&self) -> Result<ReadView> {
        let (engine, inner) = (&self.table.engine, &self.table.inner);
        engine.check_alive()?;
        inner.check_open()?;
        let (version, expiry) = (self.checkpoint.version.clone(), self.checkpoint.expiry);
        Ok(ReadView::of_version(
            &engine.source,
            inner.id(),
            version,
            expiry,
        ))
    }
}
