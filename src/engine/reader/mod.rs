//! Readers: another process, or this one, reads a root whose tables an engine writes. A reader claims no epoch and
//! writes nothing but its checkpoints: by them the engine knows what it must not delete.
//!
//! One task follows the catalog, and the manifest of each table that somebody has a handle on, by asking for the
//! next record; `table` has a step of it, `hold` the checkpoints.

mod hold;
mod table;

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use tokio::sync::{Mutex, Semaphore};
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

use hold::Parts;
use table::FollowedTable;
pub use table::ReaderTable;

use super::{Engine, open::GETS_MAX, table::lock};
use crate::{
    clock::Env,
    config::EngineConfig,
    error::{Error, Result},
    manifest::CatalogFollower,
    sst::{CacheStats, SstCache},
    store::{Store, log::LogSettings},
    types::TableId,
};

/// Tables that are looked at at once.
const TABLES_MAX: usize = 8;

impl Engine {
    /// Opens the root that `config` names for reading, while an engine, in another process or this one, has it
    /// open or none has. The reader sees every row that was flushed, and follows.
    ///
    /// It needs to write to the folders `tables/<id>/checkpoints/` only, and goes by the settings `root`, `store`,
    /// `cache`, `reader` and `gc.log_grace`, which must be the engine's; `cache.disk_dir` must be its own.
    ///
    /// # Errors
    /// `Invalid`: the configuration. `NotFound`: there is no root. `Corrupt`, naming the object: the catalog is
    /// damaged. `Unavailable`.
    pub async fn open_reader(config: EngineConfig) -> Result<Reader> {
        Self::reader(config).open().await
    }

    /// A reader to be opened with other parts than the configuration's.
    pub fn reader(config: EngineConfig) -> ReaderBuilder {
        ReaderBuilder {
            config,
            store: None,
            env: Env::default(),
            name: None,
        }
    }
}

/// Opens a reader with other parts than the configuration's.
pub struct ReaderBuilder {
    config: EngineConfig,
    store: Option<Store>,
    env: Env,
    name: Option<String>,
}

impl ReaderBuilder {
    /// Reads `store` instead of opening the configured root.
    #[must_use]
    pub fn store(mut self, store: Store) -> Self {
        self.store = Some(store);
        self
    }

    /// Takes time and randomness from `env`.
    #[must_use]
    pub fn env(mut self, env: Env) -> Self {
        self.env = env;
        self
    }

    /// What its checkpoints are called in listings. Default: host name and process id.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// As [`Engine::open_reader`].
    ///
    /// # Errors
    /// As for [`Engine::open_reader`].
    pub async fn open(self) -> Result<Reader> {
        let config = self.config;
        config.validate_reader()?;
        let store = match self.store {
            Some(store) => store,
            None => Store::open_existing_with(&config.root, &config.store)?,
        };
        let logs = LogSettings {
            env: self.env.clone(),
            grace: config.gc.log_grace.duration(),
        };
        let catalog = CatalogFollower::open(&store, logs.clone()).await?;
        let parts = Parts {
            store,
            cache: SstCache::open(&config.cache).await?,
            env: self.env,
            name: self.name.unwrap_or_else(own_name),
            lifetime: config.reader.checkpoint_lifetime.duration(),
        };
        let inner = Arc::new(ReaderInner {
            parts: Arc::new(parts),
            logs,
            catalog: Mutex::new(catalog),
            tables: std::sync::Mutex::default(),
            opening: Mutex::default(),
            get_slots: Semaphore::new(GETS_MAX),
            unused: CancellationToken::new(),
            closed: CancellationToken::new(),
            tracker: TaskTracker::new(),
        });
        let refresh = config.reader.refresh.duration();
        inner.tracker.spawn(inner.clone().run(refresh));
        let used = Arc::new(inner.unused.clone().drop_guard());
        Ok(Reader { inner, used })
    }
}

fn own_name() -> String {
    let host = gethostname::gethostname();
    format!("{}-{}", host.to_string_lossy(), std::process::id())
}

/// A root, open for reading. Cheap to clone. [Close](Reader::close) it, or the engine keeps what it has read for the
/// lifetime of its checkpoints.
#[derive(Clone)]
pub struct Reader {
    inner: Arc<ReaderInner>,
    /// The last one to go ends the following.
    #[expect(dead_code, reason = "works by being dropped")]
    used: Arc<DropGuard>,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reader({})", self.inner.parts.store.url())
    }
}

struct ReaderInner {
    parts: Arc<Parts>,
    /// How the engine keeps its logs.
    logs: LogSettings,
    catalog: Mutex<CatalogFollower>,
    /// Those that somebody has a handle on, or reads.
    tables: std::sync::Mutex<Vec<Arc<FollowedTable>>>,
    /// One table at a time is opened.
    opening: Mutex<()>,
    /// Gets that may run at once.
    get_slots: Semaphore,
    /// No handle is left.
    unused: CancellationToken,
    closed: CancellationToken,
    tracker: TaskTracker,
}

impl Reader {
    /// Names of all tables, sorted, as of now.
    ///
    /// # Errors
    /// `Corrupt`, naming the object; `Unavailable`; `Closed`.
    pub async fn tables(&self) -> Result<Vec<String>> {
        self.inner.check_open()?;
        self.inner.refresh_catalog().await?;
        let catalog = self.inner.catalog.lock().await;
        Ok(catalog.tables().keys().cloned().collect())
    }

    /// The table called `name`, as it is now, to be followed.
    ///
    /// # Errors
    /// `NotFound`, naming it; `Corrupt`, naming the object; `Unavailable`; `Closed`.
    pub async fn table(&self, name: &str) -> Result<ReaderTable> {
        let inner = &self.inner;
        inner.check_open()?;
        inner.refresh_catalog().await?;
        let id = inner.find(name).await;
        let id = id.ok_or_else(|| Error::not_found(format!("table {name:?} does not exist")))?;
        let _one = inner.opening.lock().await;
        let known = {
            let tables = lock(&inner.tables);
            let mut known = tables.iter().filter(|table| table.follows(id));
            known.next().cloned()
        };
        if let Some(table) = known {
            table.advance(inner).await?;
            return Ok(self.handle(table));
        }
        let table = FollowedTable::open(inner, name, id).await?;
        self.add(table).await
    }

    /// A table at its checkpoint called `checkpoint`: it stays as it was then, and readable while the handle is
    /// held, even if the checkpoint ends. `table` is its name or, as for one that was dropped, its id.
    ///
    /// # Errors
    /// `NotFound` when there is no such table or checkpoint; `Corrupt`, naming the object; `Unavailable`; `Closed`.
    pub async fn table_at(&self, table: &str, checkpoint: &str) -> Result<ReaderTable> {
        let inner = &self.inner;
        inner.check_open()?;
        inner.refresh_catalog().await?;
        let id = inner.find(table).await.or_else(|| table.parse().ok());
        let id = id.ok_or_else(|| Error::not_found(format!("table {table:?} does not exist")))?;
        let table = FollowedTable::open_at(inner, table, id, checkpoint).await?;
        self.add(table).await
    }

    /// Ends: no read begins afterwards, and its checkpoints are deleted; reads that are running may meet SSTs that
    /// are deleted, and fail.
    ///
    /// # Errors
    /// `Unavailable` when checkpoints could not be deleted: they expire.
    pub async fn close(&self) -> Result<()> {
        self.inner.closed.cancel();
        self.inner.get_slots.close();
        self.inner.tracker.close();
        self.inner.tracker.wait().await;
        let tables = std::mem::take(&mut *lock(&self.inner.tables));
        let mut ended = Ok(());
        for table in tables {
            ended = ended.and(table.holder.give_up().await);
        }
        self.inner.parts.cache.close().await;
        ended
    }

    /// What it keeps of the SSTs that it reads.
    pub fn cache_stats(&self) -> CacheStats {
        self.inner.parts.cache.stats()
    }

    async fn add(&self, table: FollowedTable) -> Result<ReaderTable> {
        let table = Arc::new(table);
        lock(&self.inner.tables).push(table.clone());
        // What was closed meanwhile does not look again.
        if let Err(error) = self.inner.check_open() {
            table.holder.give_up().await?;
            return Err(error);
        }
        Ok(self.handle(table))
    }

    fn handle(&self, table: Arc<FollowedTable>) -> ReaderTable {
        ReaderTable {
            reader: self.clone(),
            table,
        }
    }
}

impl ReaderInner {
    fn check_open(&self) -> Result<()> {
        match self.closed.is_cancelled() {
            false => Ok(()),
            true => Err(Error::closed("the reader is closed")),
        }
    }

    async fn refresh_catalog(&self) -> Result<()> {
        self.catalog.lock().await.refresh().await
    }

    async fn find(&self, name: &str) -> Option<TableId> {
        self.catalog.lock().await.tables().get(name).copied()
    }

    /// Follows until the reader is closed, or nobody has a handle and no read is running.
    async fn run(self: Arc<Self>, refresh: Duration) {
        loop {
            tokio::select! {
                biased;
                () = self.closed.cancelled() => return,
                () = tokio::time::sleep(refresh) => {}
                () = self.unused.cancelled(), if lock(&self.tables).is_empty() => return,
            }
            tokio::select! {
                biased;
                () = self.closed.cancelled() => return,
                () = self.round() => {}
            }
        }
    }

    /// Looks at everything once.
    async fn round(&self) {
        if let Err(error) = self.refresh_catalog().await {
            tracing::warn!(%error, "reader could not follow the catalog");
        }
        let tables = {
            let mut tables = lock(&self.tables);
            // Only this list has it.
            tables.retain(|table| Arc::strong_count(table) > 1 || !table.holder.is_released());
            tables.clone()
        };
        let rounds = stream::iter(tables).map(|table| async move {
            // The list has it, and this.
            let is_used = || Arc::strong_count(&table) > 2;
            table.round(self, is_used).await;
        });
        rounds.buffer_unordered(TABLES_MAX).collect::<()>().await;
    }
}
