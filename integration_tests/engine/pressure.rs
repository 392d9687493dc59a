//! Memory and back-pressure: nothing leaks, nobody is poisoned, and every wait has a reason.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use siltstone::{
    clock::Env,
    compaction::{
        Capacity, CompactionContext, CompactionJob, CompactionOutcome, Compactor, LocalCompactor,
    },
    config::{Bytes, EngineConfig, WalMode},
    engine::{Engine, Table},
    error::{Error, Result},
    store::{
        Store,
        faulty::{Effect, Fault, Operation},
    },
};
use tokio::sync::Notify;

use crate::support::{Reading, eventually, one_second_windows, readings, readings_schema};

fn config() -> EngineConfig {
    let mut config = EngineConfig::new("memory:///");
    config.wal.mode = WalMode::None;
    config.memory.memtable_bytes = Bytes(16 << 10);
    config.memory.write_bytes_max = Bytes(64 << 10);
    config
}

fn rows(round: i64) -> Vec<Reading> {
    (0..50).map(|id| (round, Some(id), Some(round))).collect()
}

async fn table(engine: &Engine) -> Table {
    let schema = readings_schema(one_second_windows());
    engine.create_table("readings", schema).await.unwrap()
}

fn waits(table: &Table, reason: &str) -> u64 {
    let waits = table.stats().write_waits;
    waits.get(reason).copied().unwrap_or(0)
}

/// Has no room for jobs, until it is given some.
struct Cramped {
    local: LocalCompactor,
    has_room: AtomicBool,
    gained: Notify,
    /// How often somebody had a plan and asked for room.
    asked: AtomicUsize,
}

#[async_trait]
impl Compactor for Cramped {
    async fn compact(
        &self,
        job: Arc<CompactionJob>,
        context: CompactionContext,
    ) -> Result<CompactionOutcome> {
        self.local.compact(job, context).await
    }

    fn capacity(&self) -> Capacity {
        self.asked.fetch_add(1, Ordering::Relaxed);
        Capacity {
            jobs: usize::from(self.has_room.load(Ordering::Relaxed)),
        }
    }

    async fn gains_room(&self) {
        self.gained.notified().await;
    }

    fn kind(&self) -> &'static str {
        "cramped"
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_lacked_room_starts_as_soon_as_there_is_some() {
    let store = Store::open("memory:///").unwrap();
    let cramped = Arc::new(Cramped {
        local: LocalCompactor::new(store.clone(), &config().compaction, Env::default()),
        has_room: AtomicBool::new(false),
        gained: Notify::new(),
        asked: AtomicUsize::new(0),
    });
    let builder = Engine::builder(config()).store(store);
    let engine = builder.compactor(cramped.clone()).open().await.unwrap();
    let table = table(&engine).await;
    for round in 0..config().compaction.l0_runs_trigger as i64 {
        table
            .write(readings(&[(0, None, Some(round))]))
            .await
            .unwrap();
        table.flush().await.unwrap();
    }
    eventually("there is no room for a plan", async || {
        cramped.asked.load(Ordering::Relaxed) > 0
    })
    .await;
    assert_eq!(engine.stats().compaction.jobs_started, 0);
    cramped.has_room.store(true, Ordering::Relaxed);
    cramped.gained.notify_one();
    let merged = eventually("the runs are merged", async || table.stats().ssts == 1);
    // The scheduler looks once a minute by itself.
    let merged = tokio::time::timeout(Duration::from_secs(20), merged).await;
    merged.expect("the scheduler was not told");
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_writes_leak_nothing_and_a_store_that_is_away_poisons_nobody() {
    let (store, faults) = Store::open("memory:///").unwrap().with_faults();
    let engine = Engine::builder(config()).store(store).open().await.unwrap();
    let table = table(&engine).await;
    for operation in [Operation::Put, Operation::Upload] {
        faults.add(Fault::new(operation, "/sst/", Effect::Fail));
    }
    let writers: Vec<_> = (0..60)
        .map(|round| {
            let table = table.clone();
            tokio::spawn(async move { table.write(readings(&rows(round))).await })
        })
        .collect();
    eventually("writes wait for memory", async || {
        waits(&table, "memory") > 0
    })
    .await;
    eventually("it is told how long", async || {
        let waited = table.stats().write_waited_ms;
        waited.get("memory fills").is_some_and(|&ms| ms > 0)
    })
    .await;
    assert!(
        waits(&table, "memory fills") > 0,
        "{:?}",
        table.stats().write_waits
    );
    eventually("the failure is told", async || {
        table.stats().flush_error.is_some()
    })
    .await;
    // Of those that wait every other one goes away.
    let mut cancelled = 0;
    let mut written = 0;
    for (at, writer) in writers.into_iter().enumerate() {
        if at % 2 == 0 && !writer.is_finished() {
            writer.abort();
            cancelled += u64::from(writer.await.is_err());
        } else {
            written += 1;
            tokio::spawn(async move { writer.await.unwrap().unwrap() });
        }
    }
    assert!(cancelled > 0);
    faults.clear();
    let total = || engine.stats().tables["readings"].batches_written;
    eventually("the others are written", async || total() >= written).await;
    table.flush().await.unwrap();
    eventually("all memory is back", async || {
        let stats = engine.stats();
        (stats.memtable_bytes, stats.write_bytes_reserved) == (0, 0)
    })
    .await;
    // A batch larger than the budget goes alone.
    let large: Vec<Reading> = (0..20_000).map(|id| (1, Some(id), None)).collect();
    table.write(readings(&large)).await.unwrap();
    table.flush().await.unwrap();
    assert_eq!(engine.stats().write_bytes_reserved, 0);
    engine.close().await.unwrap();
}

/// Takes jobs and does nothing about them.
struct Stuck;

#[async_trait]
impl Compactor for Stuck {
    async fn compact(
        &self,
        _: Arc<CompactionJob>,
        context: CompactionContext,
    ) -> Result<CompactionOutcome> {
        context.cancel.cancelled().await;
        Err(Error::closed("stopped"))
    }

    fn capacity(&self) -> Capacity {
        Capacity { jobs: 1 }
    }

    fn kind(&self) -> &'static str {
        "stuck"
    }

    fn waiting(&self) -> Option<String> {
        Some("for ever".into())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_are_slowed_down_then_stopped_while_compaction_is_behind_and_go_on_after() {
    let mut config = config();
    config.compaction.l0_runs_trigger = 2;
    config.compaction.l0_runs_slowdown = 3;
    config.compaction.l0_runs_stop = 6;
    let store = Store::open("memory:///").unwrap();
    let engine = Engine::builder(config.clone())
        .store(store.clone())
        .compactor(Arc::new(Stuck))
        .open()
        .await
        .unwrap();
    let table = table(&engine).await;
    let writing = {
        let table = table.clone();
        tokio::spawn(async move {
            for round in 0..20 {
                table.write(readings(&rows(round))).await.unwrap();
                table.flush().await.unwrap();
            }
        })
    };
    eventually("writes are stopped", async || {
        waits(&table, "level-0 runs") > 0
    })
    .await;
    assert_eq!(table.stats().l0_runs_max, 6);
    assert!(
        waits(&table, "level-0 runs grow") >= 2,
        "{:?}",
        table.stats().write_waits
    );
    let local = LocalCompactor::new(store, &config.compaction, Env::default());
    let local = Arc::new(local);
    engine.set_compactor(Some(local.clone()));
    let written = tokio::time::timeout(Duration::from_secs(60), writing).await;
    written.expect("writes go on").unwrap();
    engine.wait_compacted().await.unwrap();
    assert_eq!(local.memory_reserved(), 0);
    engine.close().await.unwrap();
}
