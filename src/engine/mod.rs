//! The engine: one process's handle on a root in an object store. It owns tables, the memory budget, the
//! WAL and background work: a flusher for each table, and the compaction scheduler.
//!
//! `open` recovers, `write` and `flush` bring rows into SSTs, `import` does so with many at once, `scan` and `get`
//! read them, `backpressure` makes writes wait. Fencing is final: whoever meets it stops the engine, and every call says why.

mod alter;
mod backpressure;
mod budget;
mod checkpoint;
mod clone;
mod collect;
mod durability;
mod expire;
mod flush;
mod import;
mod memory;
mod open;
mod publish;
mod range_delete;
mod reader;
mod recovery;
mod scan;
mod snapshot;
mod stats;
mod table;
mod tables;
mod view;
mod warm;
mod write;

use std::{
    collections::{BTreeMap, HashSet},
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use tokio::sync::Semaphore;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use budget::Budget;
pub use checkpoint::CheckpointView;
pub use durability::{Durability, WriteOptions};
pub use import::{ImportOptions, ImportProgress, ImportReport};
pub use open::EngineBuilder;
pub use reader::{Reader, ReaderBuilder, ReaderTable};
pub use scan::{ScanRequest, ScanStats, ScanStream};
pub use snapshot::Snapshot;
pub use stats::{EngineStats, TableStats};
pub use table::Table;
use table::{TableInner, lock};
use view::ReadSource;

use crate::{
    clock::{Backoff, Env},
    compaction::{Compactor, Scheduler},
    config::{EngineConfig, WalMode},
    error::{Error, ErrorKind, Result},
    gc::Sweeper,
    manifest::Catalog,
    metrics::Publisher,
    store::{Store, log::LogSettings},
    types::{TableId, TableSchema},
    wal::Wal,
};
pub use crate::{
    compaction::{CompactionReport, CompactionStats, NodeStats, planner::CompactRange},
    gc::{GcStats, Swept},
    manifest::{CheckpointInfo, CheckpointKind},
};

/// One process's handle on a root in an object store. Cheap to clone; [`close`](Engine::close) it.
#[derive(Clone)]
#[doc(alias = "db")]
pub struct Engine {
    inner: Arc<EngineInner>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Engine({})", self.inner.store.url())
    }
}

struct EngineInner {
    config: EngineConfig,
    store: Store,
    /// Where tables are read.
    source: ReadSource,
    env: Env,
    /// One change to the list of tables at a time.
    catalog: Arc<tokio::sync::Mutex<Catalog>>,
    /// Open tables by name.
    tables: Mutex<BTreeMap<String, Arc<TableInner>>>,
    /// Tables that were dropped, and that reads may still hold.
    dropped: Mutex<BTreeMap<TableId, Arc<TableInner>>>,
    /// Tables whose manifest is damaged, by name.
    damaged: Mutex<BTreeMap<String, Damaged>>,
    /// Dropped tables whose objects are about to be deleted.
    deleting: Mutex<HashSet<TableId>>,
    wal: Option<Wal>,
    scheduler: Scheduler,
    /// Memory for writes.
    budget: Arc<Budget>,
    /// When the largest memtable was looked for last, to free memory ahead of need.
    pressed: Mutex<Duration>,
    /// Deletes what nobody needs.
    sweeper: Sweeper,
    /// What metrics were told.
    publisher: Mutex<Publisher>,
    /// Gets that may run at once.
    get_slots: Semaphore,
    /// Flushes that may run at once.
    flush_slots: Semaphore,
    /// Why the engine can do no more.
    failure: OnceLock<Error>,
    cancel: CancellationToken,
    tracker: TaskTracker,
}

/// A table that is in the catalog, but cannot be opened.
struct Damaged {
    id: TableId,
    error: Error,
}

impl Engine {
    /// An engine to be opened with other parts than the configuration's: a store, a clock, a compactor.
    pub fn builder(config: EngineConfig) -> EngineBuilder {
        EngineBuilder::new(config)
    }

    /// Creates a table.
    ///
    /// # Errors
    /// `Invalid` for an empty name, one that a table has already, or a column that Parquet cannot hold;
    /// `Fenced`; `Unavailable`. Waits while the store is away; a table whose creation has begun is created
    /// even if the future is dropped.
    pub async fn create_table(&self, name: &str, schema: TableSchema) -> Result<Table> {
        let created = tables::create(self.inner.clone(), name.to_owned(), schema);
        let created = self.inner.tracker.spawn(created).await;
        let created =
            created.map_err(|error| Error::internal("create panicked").with_source(error));
        Ok(self.handle(created??))
    }

    /// Creates the table `target` with the schema, the options and all rows of the table `source`, without copying
    /// any: both have the same SSTs until compaction rewrites them. Flushes `source` first. From then on neither
    /// sees what is done to the other, and either can be dropped.
    ///
    /// # Errors
    /// As for [`Engine::table`] and [`Engine::create_table`]. Waits while the store is away.
    pub async fn clone_table(&self, source: &str, target: &str) -> Result<Table> {
        let source = self.table(source)?;
        let cloned = clone::create(source, target.to_owned());
        let cloned = self.inner.tracker.spawn(cloned).await;
        let cloned = cloned.map_err(|error| Error::internal("clone panicked").with_source(error));
        Ok(self.handle(cloned??))
    }

    /// The table called `name`.
    ///
    /// # Errors
    /// `NotFound`, naming it; `Corrupt`, naming the object, when its manifest is damaged; `Closed` or
    /// `Fenced`.
    pub fn table(&self, name: &str) -> Result<Table> {
        self.inner.check_alive()?;
        if let Some(damaged) = lock(&self.inner.damaged).get(name) {
            return Err(damaged.error.clone());
        }
        let table = lock(&self.inner.tables).get(name).cloned();
        let table =
            table.ok_or_else(|| Error::not_found(format!("table {name:?} does not exist")))?;
        Ok(self.handle(table))
    }

    /// Names of all tables, sorted; damaged ones too.
    pub fn tables(&self) -> Vec<String> {
        let mut names: Vec<String> = lock(&self.inner.tables).keys().cloned().collect();
        names.extend(lock(&self.inner.damaged).keys().cloned());
        names.sort();
        names
    }

    /// Drops a table, damaged or not: its jobs are cancelled, its handles are closed, and it is gone from the
    /// catalog. Its objects are deleted in the background, once no scan reads them.
    ///
    /// # Errors
    /// `NotFound`; `Fenced`. Waits while the store is away.
    pub async fn drop_table(&self, name: &str) -> Result<()> {
        let dropped = tables::drop_table(self.inner.clone(), name.to_owned());
        let dropped = self.inner.tracker.spawn(dropped).await;
        dropped.map_err(|error| Error::internal("drop panicked").with_source(error))?
    }

    /// Tables that were dropped, and the checkpoints that hold objects of theirs. Lists the folders of all
    /// tables.
    ///
    /// # Errors
    /// `Corrupt`, naming the object, when a checkpoint cannot be read; `Unavailable`; `Closed`.
    pub async fn dropped_tables(&self) -> Result<BTreeMap<TableId, Vec<CheckpointInfo>>> {
        checkpoint::of_dropped_tables(&self.inner).await
    }

    /// Ends the checkpoint called `name` of a table that was dropped: what only it holds is deleted.
    ///
    /// # Errors
    /// `NotFound` when there is none; `Invalid` when the table is there; `Unavailable`: call again; `Closed`.
    pub async fn delete_dropped_checkpoint(&self, table: TableId, name: &str) -> Result<()> {
        checkpoint::delete_of_dropped(&self.inner, table, name).await
    }

    /// Has `compactor` run the jobs that start from now on; `None` stops automatic compaction.
    pub fn set_compactor(&self, compactor: Option<Arc<dyn Compactor>>) {
        let automatic = compactor.is_some();
        let compactor = compactor.unwrap_or_else(|| self.inner.local_compactor());
        self.inner.scheduler.set_compactor(compactor, automatic);
    }

    /// Waits until no compaction job runs, and no table has work that the triggers ask for.
    ///
    /// # Errors
    /// `Closed`.
    pub async fn wait_compacted(&self) -> Result<()> {
        self.inner.scheduler.wait_idle().await
    }

    /// Sweeps all that is stored, now, and deletes what nobody needs. The engine does so by itself every
    /// [`orphans_interval`](crate::config::GcConfig::orphans_interval). In remote mode this waits for nodes to delete,
    /// which they do when they have room, for a quarter of an hour at most before the engine does it itself.
    ///
    /// # Errors
    /// The first failure to find out what there is, or whether this engine still leads; the rest was swept all the
    /// same. Objects that could not be deleted are in [`Swept::failed`]. `Fenced`; `Closed`.
    pub async fn collect_garbage(&self) -> Result<Swept> {
        self.inner.check_alive()?;
        let (swept, failure) = collect::sweep_everything(&self.inner).await;
        self.inner.check_alive()?;
        failure.map_or(Ok(swept), Err)
    }

    /// Numbers about everything.
    pub fn stats(&self) -> EngineStats {
        let tables: Vec<_> = lock(&self.inner.tables).values().cloned().collect();
        let wal = self.inner.wal.as_ref();
        let wal_error = wal.and_then(Wal::trouble);
        let wal = wal.map(Wal::stats).unwrap_or_default();
        let stats = |table: Arc<TableInner>| (table.name.clone(), self.handle(table).stats());
        let damaged = lock(&self.inner.damaged);
        let reason = |(name, table): (&String, &Damaged)| (name.clone(), table.error.to_string());
        EngineStats {
            tables: tables.into_iter().map(stats).collect(),
            damaged: damaged.iter().map(reason).collect(),
            compaction: self.inner.scheduler.snapshot(),
            store: self.inner.store.stats(),
            cache: self.inner.source.cache.stats(),
            memtable_bytes: self.inner.budget.memtables(),
            write_bytes_reserved: self.inner.budget.reserved(),
            wal_segments: wal.segments,
            wal_bytes: wal.bytes,
            wal_appends: wal.appends,
            wal_syncs: wal.syncs,
            gc: self.inner.sweeper.stats(),
            wal_error,
        }
    }

    /// Tells the recorder of the `metrics` facade that is installed what has changed since the last call.
    /// Nothing is told without it: call it when metrics are asked for, or on a timer where they are pushed.
    /// All of them carry the engine's [name](EngineConfig::name) as the label `engine`.
    pub fn publish_metrics(&self) {
        let samples = publish::samples(&self.stats());
        lock(&self.inner.publisher).publish(samples);
    }

    /// The configuration it was opened with.
    pub fn config(&self) -> &EngineConfig {
        &self.inner.config
    }

    /// The store it works on.
    pub fn store(&self) -> &Store {
        &self.inner.store
    }

    /// Where it takes time and randomness from.
    pub fn env(&self) -> &Env {
        &self.inner.env
    }

    /// Stops: no call succeeds afterwards. With a WAL nothing is lost, and nothing flushed but buffered rows that a
    /// full local disk refused; without one, tables are flushed first. Compaction jobs under way stay in the manifest and are resumed at the
    /// next open.
    ///
    /// With a WAL, rows that were not flushed are in it only, and the next engine must have the same WAL.
    /// When every table was flushed before, the root is marked clean, and the next engine may have any.
    ///
    /// This waits while the store is away, unless all rows are in a local WAL; dropping the future closes nothing,
    /// and loses nothing.
    ///
    /// # Errors
    /// Why the engine had stopped before, such as `Fenced`; what the last flush or the WAL answers;
    /// `Unavailable` when rows that were written while it closed are neither in the WAL nor in SSTs. The engine is
    /// closed all the same.
    pub async fn close(&self) -> Result<()> {
        let inner = &self.inner;
        let mut result = match inner.failure.get() {
            Some(error) if error.kind() != ErrorKind::Closed => Err(error.clone()),
            _ => Ok(()),
        };
        for name in self.tables() {
            // Not once the engine has stopped.
            if let Ok(table) = self.table(&name) {
                result = result.and(inner.secure(&table).await);
            }
        }
        let _ = inner.failure.set(Error::closed("the engine is closed"));
        inner.cancel.cancel();
        inner.scheduler.stop().await;
        inner.tracker.close();
        inner.tracker.wait().await;
        inner.source.cache.close().await;
        result = result.and(inner.check_secured());
        if let Some(wal) = &inner.wal {
            match wal.close().await {
                Ok(holds_rows) if !holds_rows && result.is_ok() => inner.mark_clean().await,
                closed => result = result.and(closed.map(drop)),
            }
        }
        result
    }

    fn handle(&self, inner: Arc<TableInner>) -> Table {
        Table {
            engine: self.inner.clone(),
            inner,
        }
    }
}

impl EngineInner {
    /// # Errors
    /// Why the engine can do no more.
    fn check_alive(&self) -> Result<()> {
        self.failure
            .get()
            .map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Has the rows of `table` outlive the engine.
    async fn secure(&self, table: &Table) -> Result<()> {
        match self.config.wal.mode {
            WalMode::None => table.flush().await,
            // Rows that it refused are flushed.
            WalMode::Local => table.await_durable(table.inner.memory.visible()).await,
            // It takes what is queued, sooner or later.
            WalMode::ObjectStore => Ok(()),
        }
    }

    /// # Errors
    /// `Unavailable`, naming the table, when rows are in memory only.
    fn check_secured(&self) -> Result<()> {
        for table in lock(&self.tables).values() {
            // The flusher may have been stopped between its commit and this.
            table
                .memory
                .forget_flushed(table.manifest.version().flushed_seq);
            let (durable, visible) = (table.memory.durable(), table.memory.visible());
            if durable < visible {
                let name = &table.name;
                return Err(Error::unavailable(format!(
                    "table {name:?}: batches after seq {durable}, up to {visible}, are neither in the wal nor flushed"
                )));
            }
        }
        Ok(())
    }

    /// How the logs of catalog and tables are kept.
    fn log_settings(&self) -> LogSettings {
        LogSettings {
            env: self.env.clone(),
            grace: self.config.gc.log_grace.duration(),
        }
    }

    /// Records that every row is in SSTs. If that fails, the next engine must have the same WAL: no harm.
    async fn mark_clean(&self) {
        if let Err(error) = self.catalog.lock().await.mark_wal_clean().await {
            tracing::warn!(%error, "the root was not marked clean");
        }
    }

    /// `error`, after which the engine ends if a newer one has taken over.
    fn fail_if_fenced(&self, error: Error) -> Error {
        if error.kind() == ErrorKind::Fenced {
            self.fail(error.clone());
        }
        error
    }

    /// Waits before a change to `table` is tried again, if the store is away.
    ///
    /// # Errors
    /// `error`, when waiting does not help; `Closed`.
    async fn wait_out(
        &self,
        table: &TableInner,
        error: Error,
        backoff: &mut Backoff,
    ) -> Result<()> {
        if !error.is_unavailable() {
            return Err(self.fail_if_fenced(error));
        }
        tracing::warn!(table = %table.name, %error, "the manifest cannot be changed, and will be tried again");
        tokio::select! {
            biased;
            () = table.cancel.cancelled() => {
                self.check_alive()?;
                table.check_open()
            }
            () = backoff.pause() => Ok(()),
        }
    }

    /// Ends the engine: every call answers `error` from now on.
    fn fail(&self, error: Error) {
        tracing::error!(%error, "the engine stops");
        let _ = self.failure.set(error);
        self.cancel.cancel();
    }
}
