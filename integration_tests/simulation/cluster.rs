//! A cluster: who is there, how they start and end, and what must hold when it has come to rest.

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use rand::{Rng, RngCore, SeedableRng, rngs::SmallRng};
use siltstone::{
    config::{Bytes, MetaConfig, Millis, NodeConfig},
    error::ErrorKind,
    meta::{MetaService, ObjectPlanLog},
    node::{Node, NodeView},
    store::{Store, faulty::Weather},
};
use tokio::{runtime::Handle, task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    chaos,
    database::Database,
    host::{Exchange, Host, Line, Meta},
    told::{self, Told},
};

/// What all parts of a simulation share.
pub struct World {
    began: Instant,
    random: Mutex<SmallRng>,
    told: Mutex<Told>,
    /// Every process there ever was.
    hosts: Mutex<Vec<Arc<Host>>>,
    pub exchange: Exchange,
    pub plans: Store,
    /// What happens to requests when nothing befalls anybody.
    pub fair: Weather,
    /// Objects of the databases, by the URL of their roots.
    pub roots: Vec<(String, Store)>,
}

impl World {
    pub fn tell(&self, what: impl Into<String>) {
        let what = what.into();
        tracing::info!(target: "simulation", "{what}");
        let event = format!("{:?} {what}", self.began.elapsed());
        self.told.lock().unwrap().events.push(event);
    }

    pub fn count(&self, what: &'static str, by: u64) {
        if by > 0 {
            *self
                .told
                .lock()
                .unwrap()
                .counts
                .entry(what.to_owned())
                .or_default() += by;
        }
    }

    fn random(&self) -> MutexGuard<'_, SmallRng> {
        self.random.lock().unwrap()
    }

    /// A number below `end`.
    pub fn below(&self, end: u64) -> u64 {
        self.random().random_range(0..end)
    }

    /// A time up to `max`.
    pub fn up_to(&self, max: Duration) -> Duration {
        Duration::from_millis(self.below(max.as_millis() as u64 + 1))
    }

    pub fn host(&self, name: String) -> Arc<Host> {
        let host = Host::new(name, self.random().next_u64(), self.began, self.fair);
        self.hosts.lock().unwrap().push(host.clone());
        host
    }

    /// Those who live.
    pub fn hosts(&self) -> Vec<Arc<Host>> {
        let mut hosts = self.hosts.lock().unwrap();
        hosts.retain(|host| !host.is_dead());
        hosts.clone()
    }
}

/// A compaction node.
pub struct RunningNode {
    pub host: Arc<Host>,
    pub view: NodeView,
    pub shutdown: CancellationToken,
    pub run: JoinHandle<siltstone::error::Result<()>>,
}

/// A cluster.
pub struct Cluster {
    pub world: Arc<World>,
    pub nodes: Vec<RunningNode>,
    nodes_ever: u64,
    metas_ever: u64,
}

impl Cluster {
    /// The cluster that `seed` makes up.
    pub fn new(seed: u64) -> Self {
        let mut random = SmallRng::seed_from_u64(seed);
        let databases = random.random_range(1..3);
        // So that tasks take some milliseconds here, and some seconds there.
        let delays = [2, 10, 50, 200];
        let fair = Weather {
            delay_max: Duration::from_millis(delays[random.random_range(0..delays.len())]),
            ..Weather::FAIR
        };
        let root = |number| {
            let url = format!("memory:///database-{number}");
            let objects = Store::open(&url).unwrap();
            (url, objects)
        };
        let began = Instant::now();
        told::begin(began);
        Self {
            world: Arc::new(World {
                began,
                random: Mutex::new(random),
                told: Mutex::default(),
                hosts: Mutex::default(),
                exchange: Exchange::default(),
                fair,
                plans: Store::open("memory:///").unwrap(),
                roots: (0..databases).map(root).collect(),
            }),
            nodes: Vec::new(),
            nodes_ever: 0,
            metas_ever: 0,
        }
    }

    /// Lives through all that happens, and tells of it.
    pub async fn run(mut self) -> Told {
        let world = self.world.clone();
        self.start_meta().await;
        for _ in 0..1 + world.below(3) {
            self.start_node();
        }
        let calm = CancellationToken::new();
        let databases: Vec<_> = (0..world.roots.len())
            .map(|number| {
                let database = Database::new(&world, number);
                tokio::spawn(database.live(calm.clone()))
            })
            .collect();
        let patience = Duration::from_secs(300 + world.below(600));
        chaos::rage(&mut self, patience).await;
        calm.cancel();
        self.heal().await;
        for database in databases {
            database.await.unwrap();
        }
        self.rest().await;
        let mut told = world.told.lock().unwrap();
        std::mem::take(&mut *told)
    }

    /// A meta service that takes over from whatever there was.
    pub async fn start_meta(&mut self) {
        let world = self.world.clone();
        self.metas_ever += 1;
        let host = world.host(format!("meta-{}", self.metas_ever));
        let store = host.store(&world.plans);
        let config = MetaConfig {
            stall_timeout: Millis::secs(60),
            ..MetaConfig::default()
        };
        loop {
            let log = Box::new(ObjectPlanLog::new(store.clone(), host.env.clone()));
            match MetaService::open(config.clone(), log, host.env.clone()).await {
                Ok(service) => {
                    world.tell(format!("{} serves", host.name));
                    *world.exchange.lock().unwrap() = Some(Meta { service, host });
                    return;
                }
                Err(error) => {
                    // One that came later, and is faster, may be in the way.
                    let kind = error.kind();
                    let is_passing = matches!(kind, ErrorKind::Unavailable | ErrorKind::Conflict);
                    assert!(is_passing, "{error}");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        }
    }

    /// The meta service that answers, if there is one.
    pub fn meta(&self) -> Option<Meta> {
        let meta = self.world.exchange.lock().unwrap().clone();
        meta.filter(|meta| !meta.host.is_dead())
    }

    pub fn start_node_if_below(&mut self, max: usize) {
        self.nodes.retain(|node| !node.run.is_finished());
        if self.nodes.len() < max {
            self.start_node();
        }
    }

    pub fn start_node(&mut self) {
        let world = &self.world;
        self.nodes_ever += 1;
        let name = format!("node-{}", self.nodes_ever);
        let host = world.host(name.clone());
        let config = NodeConfig {
            id: Some(name),
            slots: 1 + world.below(3) as usize,
            memory: Some(Bytes::mib(64 << world.below(4))),
            drain_timeout: Millis::secs(5 + world.below(40)),
            ..NodeConfig::default()
        };
        let line = Arc::new(Line::new(&host, &world.exchange));
        let mut node = Node::new(config, line, host.env.clone()).unwrap();
        node = node.with_runtime(Handle::current());
        for (url, objects) in &world.roots {
            node = node.with_store(url, host.store(objects));
        }
        let (view, shutdown) = (node.view(), CancellationToken::new());
        world.tell(format!("{} starts", host.name));
        self.nodes.push(RunningNode {
            run: tokio::spawn(node.run(shutdown.clone().cancelled_owned())),
            host,
            view,
            shutdown,
        });
    }

    /// Counts what a node did that is about to go.
    pub fn farewell(&self, node: &RunningNode) {
        let stats = node.view.stats();
        for (outcome, ended) in stats.tasks_ended {
            let what = match outcome {
                "done" => "tasks done on nodes",
                _ => "tasks failed on nodes",
            };
            self.world.count(what, ended);
        }
        self.world
            .count("objects deleted by nodes", stats.objects_deleted);
    }

    /// Everybody lives, and reaches everybody.
    async fn heal(&mut self) {
        let world = self.world.clone();
        world.tell("all is healed");
        for host in world.hosts() {
            host.set_weather(world.fair);
            host.heal();
        }
        if self.meta().is_none() {
            self.start_meta().await;
        }
        self.nodes.retain(|node| !node.run.is_finished());
        if self.nodes.is_empty() {
            self.start_node();
        }
    }

    /// All databases have closed: nothing may be left at meta and on the nodes.
    async fn rest(&mut self) {
        let meta = self.meta().unwrap();
        let began = Instant::now();
        loop {
            let jobs = meta.service.jobs().await.unwrap();
            let busy = self.nodes.iter().map(|node| node.view.stats());
            let busy: u64 = busy.map(|stats| stats.slots_used + stats.memory_used).sum();
            if jobs.is_empty() && busy == 0 {
                break;
            }
            // Meta forgets jobs that nobody has watched for an hour.
            let waited = began.elapsed();
            assert!(
                waited < Duration::from_secs(2 * 3600),
                "left: {jobs:?}, {busy}"
            );
            tokio::time::sleep(Duration::from_secs(10)).await;
        }
        for node in std::mem::take(&mut self.nodes) {
            self.farewell(&node);
            node.shutdown.cancel();
            let ended = tokio::time::timeout(Duration::from_secs(120), node.run).await;
            // Its tasks ended long ago, and one that was told to drain may be gone.
            ended.expect("it ends").unwrap().unwrap();
        }
        for (_, objects) in &self.world.roots {
            for object in objects.list("").await.unwrap() {
                self.world.tell(format!("{} {}", object.name, object.bytes));
            }
        }
        meta.service.close().await.unwrap();
        self.world
            .count("seconds of simulated time", began.elapsed().as_secs());
    }
}
