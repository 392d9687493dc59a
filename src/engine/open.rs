//! Opening an engine: check the root, take it over, load the tables, replay the WAL, start the work.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, OnceLock},
};

use futures::{StreamExt, future::BoxFuture, stream};
use tokio::sync::Semaphore;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Damaged, Engine, EngineInner, budget::Budget, collect, expire, recovery::WalSource,
    table::TableInner, tables, view::ReadSource,
};
use crate::{
    clock::Env,
    compaction::{Compactor, LocalCompactor, Scheduler},
    config::{CompactionMode, EngineConfig},
    error::{Error, ErrorKind, Result},
    gc::Sweeper,
    manifest::{Catalog, Manifest},
    metrics::{self, Publisher},
    sst::SstCache,
    store::{
        Store, layout,
        log::{Log, LogSettings},
    },
    types::TableId,
};

/// Tables opened at once.
const OPENS_MAX: usize = 16;
const FLUSHES_MAX: usize = 2;
pub(super) const GETS_MAX: usize = 64;

/// A service that lives as long as the engine does, such as an embedded meta.
type Companion = Box<dyn FnOnce(CancellationToken) -> BoxFuture<'static, ()> + Send>;

/// Opens an engine with other parts than the configuration's.
pub struct EngineBuilder {
    config: EngineConfig,
    store: Option<Store>,
    env: Env,
    compactor: Option<Arc<dyn Compactor>>,
    companions: Vec<Companion>,
    abandon_wal: bool,
}

impl EngineBuilder {
    pub(super) fn new(config: EngineConfig) -> Self {
        Self {
            config,
            store: None,
            env: Env::default(),
            compactor: None,
            companions: Vec::new(),
            abandon_wal: false,
        }
    }

    /// Works on `store` instead of opening the configured root.
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

    /// Has `compactor` run the jobs. Needed for `mode = "remote"`.
    #[must_use]
    pub fn compactor(mut self, compactor: Arc<dyn Compactor>) -> Self {
        self.compactor = Some(compactor);
        self
    }

    /// Runs a service until the engine closes; it is given the token that tells it to end.
    #[must_use]
    pub fn companion(
        mut self,
        service: impl FnOnce(CancellationToken) -> BoxFuture<'static, ()> + Send + 'static,
    ) -> Self {
        self.companions.push(Box::new(service));
        self
    }

    /// Opens the root even if rows may be only in a WAL that is not the configured one, as after the loss of
    /// the machine that had it. Those rows are given up.
    #[must_use]
    pub fn abandon_wal(mut self) -> Self {
        self.abandon_wal = true;
        self
    }

    /// Opens the root, creating it when it is empty; takes it over from an earlier engine, which is fenced;
    /// recovers everything acknowledged; resumes recorded compaction jobs.
    ///
    /// # Errors
    /// `Invalid`: the configuration; a root that holds something else; rows may be only in another WAL than
    /// the configured one. `Corrupt`, naming the object:
    /// catalog, manifest or WAL is damaged. `Unavailable`: the store does not answer, or another engine on
    /// this machine holds the WAL.
    pub async fn open(self) -> Result<Engine> {
        self.config.validate()?;
        let mode = self.config.compaction.mode;
        if mode.uses_nodes() && self.compactor.is_none() {
            let mode = mode.as_str();
            return Err(Error::invalid(format!(
                "compaction.mode is {mode:?}, but the builder was given no compactor"
            )));
        }
        let store = match self.store {
            Some(store) => store,
            None => Store::open_with(&self.config.root, &self.config.store, self.env.clone())?,
        };
        check_root(&store, &self.env).await?;
        let logs = LogSettings {
            env: self.env.clone(),
            grace: self.config.gc.log_grace.duration(),
        };
        // Before anything is taken over: an engine that runs here already must not be fenced by one that
        // cannot open.
        let wal = WalSource::find(&self.config, &store, &self.env).await?;
        let (settings, identity) = (logs.clone(), wal.identity());
        let catalog = match self.abandon_wal {
            false => Catalog::open(&store, settings, identity).await?,
            true => Catalog::open_abandoning(&store, settings, identity).await?,
        };
        let cancel = CancellationToken::new();
        let opened = open_tables(&store, &catalog, &logs, &cancel).await?;
        let log = Log::new(store.clone(), layout::wal(&self.config.name), logs);
        let wal = wal.open(&self.config, log, &catalog, &opened).await?;
        let compactor = self
            .compactor
            .unwrap_or_else(|| local_compactor(&store, &self.config, &self.env));
        let scheduler = Scheduler::new(
            store.clone(),
            self.env.clone(),
            self.config.compaction.clone(),
            compactor,
            mode != CompactionMode::Off,
            cancel.child_token(),
        );
        let cache = SstCache::open(&self.config.cache).await?;
        let publisher = Publisher::new(metrics::ENGINE, ("engine", &self.config.name));
        let budget = Budget::new(self.config.memory.write_bytes_max.0);
        let catalog = Arc::new(tokio::sync::Mutex::new(catalog));
        let (env, grace_ms) = (self.env.clone(), self.config.gc.grace.0);
        let delegate = Arc::new(scheduler.clone());
        let sweeper = Sweeper::new(store.clone(), env, delegate, catalog.clone(), grace_ms);
        let engine = Engine {
            inner: Arc::new(EngineInner {
                config: self.config,
                source: ReadSource {
                    store: store.clone(),
                    cache,
                },
                store,
                env: self.env,
                catalog,
                sweeper,
                tables: Mutex::default(),
                dropped: Mutex::default(),
                damaged: Mutex::new(opened.damaged),
                deleting: Mutex::default(),
                wal,
                scheduler,
                budget,
                pressed: Mutex::default(),
                publisher: Mutex::new(publisher),
                get_slots: Semaphore::new(GETS_MAX),
                flush_slots: Semaphore::new(FLUSHES_MAX),
                failure: OnceLock::new(),
                cancel,
                tracker: TaskTracker::new(),
            }),
        };
        engine.start(opened.tables, self.companions);
        Ok(engine)
    }
}

impl Engine {
    fn start(&self, tables: Vec<Arc<TableInner>>, companions: Vec<Companion>) {
        let inner = &self.inner;
        for companion in companions {
            inner.tracker.spawn(companion(inner.cancel.clone()));
        }
        for table in &tables {
            inner.count(table);
            table.freeze(inner.config.memory.memtable_bytes.0);
            tables::start(inner, table.clone());
        }
        let scheduler = inner.scheduler.clone();
        inner.tracker.spawn(async move { scheduler.run().await });
        inner.tracker.spawn(collect::run(inner.clone()));
        inner.tracker.spawn(collect::heartbeat(inner.clone()));
        inner.tracker.spawn(expire::run(inner.clone()));
    }
}

impl EngineInner {
    /// A compactor in this process.
    pub(super) fn local_compactor(&self) -> Arc<dyn Compactor> {
        local_compactor(&self.store, &self.config, &self.env)
    }
}

fn local_compactor(store: &Store, config: &EngineConfig, env: &Env) -> Arc<dyn Compactor> {
    Arc::new(LocalCompactor::new(
        store.clone(),
        &config.compaction,
        env.clone(),
    ))
}

/// Refuses a place that holds something else than a Siltstone root, and a store that cannot hold one.
async fn check_root(store: &Store, env: &Env) -> Result<()> {
    if Catalog::exists(store).await? {
        // A root can be copied to a store that is not fit for one.
        return store.probe(env).await;
    }
    let foreign = store.list_top().await?;
    if let Some(name) = foreign.iter().find(|name| !layout::is_known_top(name)) {
        return Err(Error::invalid(format!(
            "{} is not a siltstone root: it has no catalog, but holds {name:?}",
            store.url()
        )));
    }
    store.probe(env).await
}

/// The tables that could be opened, and why the others could not.
pub(super) struct Opened {
    pub(super) tables: Vec<Arc<TableInner>>,
    pub(super) damaged: BTreeMap<String, Damaged>,
}

/// Opens every table. A damaged one does not keep the others from working.
async fn open_tables(
    store: &Store,
    catalog: &Catalog,
    logs: &LogSettings,
    cancel: &CancellationToken,
) -> Result<Opened> {
    let tables: Vec<(String, TableId)> = catalog
        .tables()
        .map(|(name, id)| (name.to_owned(), id))
        .collect();
    let epoch = catalog.epoch();
    let mut opening = stream::iter(tables)
        .map(|(name, id)| async move {
            let manifest = Manifest::open(store, id, epoch, logs.clone()).await;
            (
                manifest.map_err(|error| error.context(format!("table {name:?}"))),
                name,
                id,
            )
        })
        .buffered(OPENS_MAX);
    let mut opened = Opened {
        tables: Vec::new(),
        damaged: BTreeMap::new(),
    };
    while let Some((manifest, name, id)) = opening.next().await {
        match manifest {
            Ok(manifest) => {
                let table = TableInner::new(&name, manifest, cancel.child_token());
                opened.tables.push(Arc::new(table));
            }
            Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound) => {
                tracing::error!(table = name, %error, "table cannot be opened");
                opened.damaged.insert(name, Damaged { id, error });
            }
            Err(error) => return Err(error),
        }
    }
    Ok(opened)
}
