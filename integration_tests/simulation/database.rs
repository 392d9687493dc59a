//! A database: an engine, whoever takes over from it, and a client that knows what should be in it.

mod settling;

use std::{sync::Arc, time::Duration};

use siltstone::{
    compaction::{AutoCompactor, Compactor, LocalCompactor, RemoteCompactor, remote::FleetView},
    config::{Bytes, CompactionMode, EngineConfig, Fallback, Millis, RemoteConfig, WalMode},
    engine::{Engine, ScanRequest, Snapshot, Table},
    error::{ErrorKind, Result},
    store::Store,
    types::{OwnerId, PlannerKind, TableOptions, TimeRange},
};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    cluster::World,
    host::{Host, Line},
    oracle::{Change, Key, Oracle},
    support::{
        Reading, one_second_windows, reading_keys, reading_rows, readings, readings_schema,
        try_scan,
    },
};

/// No single operation takes as long, whatever happens.
const PATIENCE: Duration = Duration::from_secs(1_800);
const TABLE: &str = "readings";
const WINDOWS: u64 = 5;

/// A database and its client.
pub struct Database {
    world: Arc<World>,
    number: usize,
    config: EngineConfig,
    options: TableOptions,
    objects: Store,
    oracle: Oracle,
    engines_ever: u64,
    values_ever: i64,
}

/// An engine that has the database.
struct Session {
    host: Arc<Host>,
    engine: Engine,
    table: Table,
    snapshots: Vec<(Snapshot, Oracle)>,
}

impl Database {
    pub fn new(world: &Arc<World>, number: usize) -> Self {
        let (url, objects) = world.roots[number].clone();
        let mut config = EngineConfig::new(url);
        config.name = format!("database-{number}");
        config.wal.mode = WalMode::ObjectStore;
        config.memory.memtable_bytes = Bytes(4 << 10);
        config.memory.write_bytes_max = Bytes(64 << 10);
        config.cache.metadata_bytes = Bytes(0);
        config.cache.data_bytes = Bytes(0);
        config.gc.grace = Millis::secs(world.below(60));
        config.gc.orphans_interval = Millis::secs(60);
        config.gc.log_grace = Millis::secs(120);
        let compaction = &mut config.compaction;
        compaction.mode = match world.below(6) {
            0 => CompactionMode::Local,
            1 => CompactionMode::Auto,
            _ => CompactionMode::Remote,
        };
        compaction.l0_runs_trigger = 2;
        compaction.l0_runs_slowdown = 6;
        compaction.l0_runs_stop = 10;
        compaction.sst_bytes_target = Bytes(1 << (10 + world.below(3)));
        compaction.task_bytes_target = Bytes(2 << (10 + world.below(3)));
        compaction.planning.level_bytes_min = Bytes(8 << 10);
        compaction.planning.level_ratio = 2;
        compaction.planning.tier_runs = 2;
        compaction.planning.settle = Millis::secs(30);
        // In process, with no address to call.
        compaction.remote.meta = vec!["http://meta".into()];
        let planners = [
            PlannerKind::TimeWindow,
            PlannerKind::Leveled,
            PlannerKind::Tiered,
        ];
        let options = TableOptions {
            planner: Some(planners[world.below(3) as usize]),
            ..one_second_windows()
        };
        Self {
            world: world.clone(),
            number,
            config,
            options,
            objects,
            oracle: Oracle::default(),
            engines_ever: 0,
            values_ever: 0,
        }
    }

    /// Works until all is calm, and then until all is done.
    pub async fn live(mut self, calm: CancellationToken) {
        let mut session = self.open().await;
        while !calm.is_cancelled() {
            if session.host.is_dead() {
                self.count(&session.engine.stats());
                sleep(self.world.up_to(Duration::from_secs(20))).await;
                session = self.open().await;
                continue;
            }
            if self.world.below(150) == 0 {
                session = self.overtake(session).await;
                continue;
            }
            if self.world.below(60) == 0 {
                self.die_soon(&session.host);
            }
            self.step(&mut session).await;
            if self.world.below(3) == 0 {
                sleep(self.world.up_to(Duration::from_secs(4))).await;
            }
        }
        if session.host.is_dead() {
            session = self.open().await;
        }
        self.settle(session).await;
    }

    fn tell(&self, what: impl AsRef<str>) {
        self.world
            .tell(format!("database-{}: {}", self.number, what.as_ref()));
    }

    /// An engine that takes over, on a new host.
    async fn open(&mut self) -> Session {
        loop {
            self.engines_ever += 1;
            let name = format!("engine-{}-{}", self.number, self.engines_ever);
            let host = self.world.host(name);
            let store = host.store(&self.objects);
            let builder = Engine::builder(self.config.clone())
                .store(store.clone())
                .env(host.env.clone())
                .compactor(self.compactor(&host, store));
            let opening = async {
                let engine = builder.open().await?;
                let table = match engine.table(TABLE) {
                    Ok(table) => table,
                    Err(error) if error.kind() == ErrorKind::NotFound => {
                        let schema = readings_schema(self.options.clone());
                        engine.create_table(TABLE, schema).await?
                    }
                    Err(error) => return Err(error),
                };
                Ok((engine, table))
            };
            let opened = tokio::select! {
                biased;
                () = host.death() => continue,
                opened = timeout(PATIENCE, opening) => opened.expect("it opens in time"),
            };
            match opened {
                Ok((engine, table)) => {
                    self.tell(format!("{} is open", host.name));
                    let stats = engine.stats();
                    assert!(stats.damaged.is_empty(), "{:?}", stats.damaged);
                    let session = Session {
                        host,
                        engine,
                        table,
                        snapshots: Vec::new(),
                    };
                    return session;
                }
                Err(error) => {
                    host.kill();
                    let kind = error.kind();
                    assert!(is_passing(kind), "{error:?}");
                    sleep(Duration::from_secs(1)).await;
                }
            }
        }
    }

    /// As `compose` makes it, but with meta behind a line of the simulation.
    fn compactor(&self, host: &Arc<Host>, store: Store) -> Arc<dyn Compactor> {
        let (config, env) = (&self.config.compaction, host.env.clone());
        let line = Arc::new(Line::new(host, &self.world.exchange));
        let owner = OwnerId(self.config.name.clone());
        let local = Arc::new(LocalCompactor::new(store.clone(), config, env.clone()));
        match config.mode {
            CompactionMode::Local | CompactionMode::Off => local,
            CompactionMode::Remote => {
                let remote = config.remote.clone();
                Arc::new(RemoteCompactor::new(line, store, owner, remote, env))
            }
            CompactionMode::Auto => {
                let fleet = Arc::new(FleetView::new(line, &config.remote, env.clone()));
                let remote = RemoteConfig {
                    fallback: Fallback::Local,
                    ..config.remote.clone()
                };
                let remote = RemoteCompactor::new(fleet.clone(), store, owner, remote, env.clone());
                let remote = Arc::new(remote.with_fallback(local.clone()));
                Arc::new(AutoCompactor::new(
                    local,
                    remote,
                    fleet,
                    config.local.clone(),
                    env,
                ))
            }
        }
    }

    /// Has the engine die in the middle of something.
    fn die_soon(&self, host: &Arc<Host>) {
        let (world, host) = (self.world.clone(), host.clone());
        let after = world.up_to(Duration::from_millis(500));
        tokio::spawn(async move {
            sleep(after).await;
            if !host.is_dead() {
                world.count("engines killed", 1);
                host.kill();
            }
        });
    }

    /// Suspends the engine, has another one take over, and wakes it up.
    async fn overtake(&mut self, old: Session) -> Session {
        self.tell(format!("{} is suspended", old.host.name));
        self.world.count("engines overtaken", 1);
        old.host.cut();
        let new = self.open().await;
        if old.host.is_dead() {
            return new;
        }
        old.host.heal();
        let rows = self.rows();
        let write = timeout(PATIENCE, old.table.write(readings(&rows)));
        let written = tokio::select! {
            biased;
            () = old.host.death() => return new,
            written = write => written.expect("it ends in time"),
        };
        match written {
            Ok(seq) => panic!(
                "{} acknowledged {seq} although it was overtaken",
                old.host.name
            ),
            Err(error) => self.tell(format!("{} is refused: {error}", old.host.name)),
        }
        self.world.count("zombies refused", 1);
        new
    }

    fn key(&self) -> Key {
        let world = &self.world;
        let at = (world.below(WINDOWS) * 1_000 + world.below(10) * 100) as i64;
        let id = world.below(5) as i32;
        (at, (id > 0).then_some(id))
    }

    /// Rows to write, with values that never were there.
    fn rows(&mut self) -> Vec<Reading> {
        let rows = 1 + self.world.below(40);
        (0..rows)
            .map(|_| {
                self.values_ever += 1;
                let (at, id) = self.key();
                (at, id, Some(self.values_ever))
            })
            .collect()
    }

    async fn step(&mut self, session: &mut Session) {
        match self.world.below(20) {
            0..=8 => {
                let change = Change::Put(self.rows());
                self.change(session, change).await;
            }
            9 => {
                let keys = (0..1 + self.world.below(10)).map(|_| self.key()).collect();
                self.change(session, Change::Delete(keys)).await;
            }
            10 => {
                let start = (self.world.below(WINDOWS) * 1_000) as i64;
                let end = start + 100 * self.world.below(15) as i64 + 100;
                self.change(session, Change::DeleteRange(start, end)).await;
            }
            11..=13 => self.read(session).await,
            14 => {
                let taken = self
                    .attempt(session, "snapshot", session.table.snapshot())
                    .await;
                if let Some(Ok(snapshot)) = taken {
                    session.snapshots.push((snapshot, self.oracle.clone()));
                }
            }
            15 => {
                if !session.snapshots.is_empty() {
                    let (snapshot, oracle) = session.snapshots.remove(0);
                    let rows = self.attempt(session, "scan of a snapshot", async {
                        let stream = snapshot.scan(ScanRequest::default()).await?;
                        let batches = stream.collect().await?;
                        Ok(batches.iter().flat_map(reading_rows).collect::<Vec<_>>())
                    });
                    if let Some(Ok(rows)) = rows.await {
                        oracle
                            .check(&rows)
                            .unwrap_or_else(|wrong| panic!("a snapshot: {wrong}"));
                    }
                }
            }
            16 | 17 => drop(self.attempt(session, "flush", session.table.flush()).await),
            18 => drop(
                self.attempt(session, "compact", session.table.compact())
                    .await,
            ),
            _ => drop(
                self.attempt(session, "gc", session.engine.collect_garbage())
                    .await,
            ),
        }
    }

    async fn change(&mut self, session: &Session, change: Change) {
        let table = &session.table;
        let made = match &change {
            Change::Put(rows) => {
                self.attempt(session, "write", table.write(readings(rows)))
                    .await
            }
            Change::Delete(keys) => {
                self.attempt(session, "delete", table.delete(reading_keys(keys)))
                    .await
            }
            &Change::DeleteRange(start, end) => {
                let times = TimeRange { start, end };
                self.attempt(session, "delete of a range", table.delete_range(times))
                    .await
            }
        };
        match made {
            Some(Ok(_)) => {
                self.world.count("writes", 1);
                self.oracle.made(&change);
            }
            _ => {
                self.world.count("writes in doubt", 1);
                self.oracle.doubtful(&change);
            }
        }
    }

    async fn read(&self, session: &Session) {
        let reading = async {
            let batch = try_scan(&session.table, ScanRequest::default()).await?;
            Ok(reading_rows(&batch))
        };
        if let Some(Ok(rows)) = self.attempt(session, "scan", reading).await {
            self.world.count("scans checked", 1);
            self.check(&rows);
        }
    }

    fn check(&self, rows: &[Reading]) {
        let checked = self.oracle.check(rows);
        checked.unwrap_or_else(|wrong| panic!("database-{}: {wrong}", self.number));
    }

    /// What `operation` came to; `None` when the engine died meanwhile.
    async fn attempt<T>(
        &self,
        session: &Session,
        what: &str,
        operation: impl Future<Output = Result<T>>,
    ) -> Option<Result<T>> {
        let ended = tokio::select! {
            biased;
            () = session.host.death() => None,
            ended = timeout(PATIENCE, operation) => Some(ended),
        };
        let Some(ended) = ended else {
            self.tell(format!("{what}: the engine dies"));
            return None;
        };
        let Ok(ended) = ended else {
            panic!("{what} does not end: {:#?}", session.engine.stats());
        };
        match &ended {
            Ok(_) => self.tell(format!("{what}: done")),
            Err(error) => {
                self.tell(format!("{what}: {error}"));
                assert!(is_passing(error.kind()), "{what}: {error:?}");
            }
        }
        Some(ended)
    }
}

/// Whether an operation may fail so for a while.
fn is_passing(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Unavailable | ErrorKind::Closed | ErrorKind::Fenced
    )
}
