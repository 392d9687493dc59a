//! The engine on a store that fails, delays and lies: nothing acknowledged is lost, nothing is doubled,
//! and when the faults end everything goes on.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use async_trait::async_trait;
use siltstone::{
    clock::Env,
    compaction::{
        Capacity, CompactionContext, CompactionJob, CompactionOutcome, Compactor, LocalCompactor,
    },
    config::{EngineConfig, WalMode},
    engine::{Engine, ScanRequest, Table},
    error::{Error, ErrorKind, Result},
    store::{
        Store,
        faulty::{Effect, Fault, Faults, Operation},
    },
    types::{TableOptions, WriteMode},
};

use crate::support::{
    eventually, one_second_windows, quiet_config, readings, readings_schema, scan,
};

/// An engine over memory with scripted faults and no WAL.
struct Bench {
    store: Store,
    faults: Arc<Faults>,
    engine: Engine,
    table: Table,
}

fn config() -> EngineConfig {
    let mut config = quiet_config("memory:///");
    config.wal.mode = WalMode::None;
    config
}

impl Bench {
    async fn new(options: TableOptions) -> Self {
        let (store, faults) = Store::open("memory:///").unwrap().with_faults();
        let engine = Engine::builder(config())
            .store(store.clone())
            .open()
            .await
            .unwrap();
        let table = engine
            .create_table("readings", readings_schema(options))
            .await
            .unwrap();
        Self {
            store,
            faults,
            engine,
            table,
        }
    }

    /// Flushes `runs` level-0 runs, each of which has a row of its own and overwrites a shared one.
    async fn flush_runs(&self, runs: i64) {
        for run in 0..runs {
            self.table
                .write(readings(&[
                    (1, None, Some(run)),
                    (2 + run, None, Some(run)),
                ]))
                .await
                .unwrap();
            self.table.flush().await.unwrap();
        }
    }

    async fn rows(&self) -> usize {
        scan(&self.table, ScanRequest::all()).await.num_rows()
    }

    async fn reopen(self) -> Self {
        let Self {
            store,
            faults,
            engine,
            ..
        } = self;
        engine.close().await.ok();
        let engine = Engine::builder(config())
            .store(store.clone())
            .open()
            .await
            .unwrap();
        let table = engine.table("readings").unwrap();
        Self {
            store,
            faults,
            engine,
            table,
        }
    }
}

fn append() -> TableOptions {
    TableOptions {
        write_mode: WriteMode::Append,
        ..one_second_windows()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_away_delays_flushes_and_poisons_nothing() {
    for operation in [Operation::Put, Operation::Create] {
        let bench = Bench::new(append()).await;
        bench
            .table
            .write(readings(&[(1, None, Some(1))]))
            .await
            .unwrap();
        bench
            .faults
            .add(Fault::new(operation, "tables/", Effect::Fail));
        let flush = tokio::spawn({
            let table = bench.table.clone();
            async move { table.flush().await }
        });
        eventually("the failure is told", async || {
            bench.table.stats().flush_error.is_some()
        })
        .await;
        assert!(!flush.is_finished(), "flush answered while it was blocked");
        bench
            .table
            .write(readings(&[(1, None, Some(2))]))
            .await
            .unwrap();
        assert_eq!(bench.rows().await, 2);
        bench.faults.clear();
        flush.await.unwrap().unwrap();
        bench.table.flush().await.unwrap();
        assert_eq!(bench.table.stats().flush_error, None);
        assert_eq!(bench.reopen().await.rows().await, 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_doubles_nothing() {
    for (operation, name) in [(Operation::Put, "/sst/"), (Operation::Create, "/manifest/")] {
        let bench = Bench::new(append()).await;
        for round in 0..4 {
            bench
                .faults
                .add(Fault::new(operation, name, Effect::LoseAnswer).times(1));
            bench
                .table
                .write(readings(&[(1, None, Some(round))]))
                .await
                .unwrap();
            bench.table.flush().await.unwrap();
        }
        assert_eq!(bench.rows().await, 4);
        bench
            .faults
            .add(Fault::new(operation, name, Effect::LoseAnswer).times(2));
        bench.table.compact().await.unwrap();
        assert_eq!(bench.rows().await, 4);
        assert_eq!(bench.table.stats().ssts, 1);
        assert_eq!(bench.reopen().await.rows().await, 4);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn compaction_waits_for_the_store_and_then_goes_on() {
    let bench = Bench::new(one_second_windows()).await;
    bench.flush_runs(4).await;
    for operation in [Operation::Get, Operation::Put, Operation::Create] {
        bench
            .faults
            .add(Fault::new(operation, "tables/", Effect::Fail).times(3));
    }
    bench.table.compact().await.unwrap();
    let stats = bench.engine.stats();
    assert_eq!(stats.compaction.jobs_committed, 1);
    assert!(
        stats.compaction.jobs_failed.is_empty(),
        "{:?}",
        stats.compaction.jobs_failed
    );
    assert_eq!((bench.rows().await, bench.table.stats().ssts), (5, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_or_damaged_input_is_named_and_stays() {
    let bench = Bench::new(one_second_windows()).await;
    bench.flush_runs(3).await;
    let other = bench
        .engine
        .create_table("other", readings_schema(one_second_windows()))
        .await
        .unwrap();
    other.write(readings(&[(1, None, Some(1))])).await.unwrap();
    let objects = bench.store.list("tables").await.unwrap();
    let input = objects
        .iter()
        .find(|object| object.name.ends_with(".parquet"))
        .unwrap();
    let whole = bench.store.get(&input.name).await.unwrap();
    let mut flipped = whole.to_vec();
    flipped[20] ^= 1;
    for damaged in [
        None,
        Some(flipped.into()),
        Some(whole.slice(..whole.len() / 2)),
    ] {
        match damaged {
            None => bench.store.delete(&input.name).await.unwrap(),
            Some(damaged) => bench.store.put(&input.name, damaged).await.unwrap(),
        }
        let error = bench.table.compact().await.unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Corrupt),
            "{error}"
        );
        assert!(error.to_string().contains(&input.name), "{error}");
        // It alone is left alone, until somebody asks for another try.
        let listed = bench.engine.stats().compaction.quarantine;
        let [held] = &listed[..] else {
            panic!("{listed:?}");
        };
        assert!(input.name.ends_with(&format!("{}.parquet", held.sst)));
        assert!(held.reason.contains(&input.name), "{held:?}");
        assert_eq!(bench.table.retry_quarantined().unwrap(), 1);
        assert_eq!(bench.engine.stats().compaction.ssts_quarantined, 0);
        let stats = bench.table.stats();
        assert_eq!((stats.ssts, stats.jobs, stats.obsolete_ssts), (3, 0, 0));
    }
    other.compact().await.unwrap();
    bench.store.put(&input.name, whole).await.unwrap();
    bench.table.compact().await.unwrap();
    assert_eq!((bench.rows().await, bench.table.stats().ssts), (4, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_input_is_left_alone_while_the_rest_of_the_table_is_compacted() {
    let bench = Bench::new(one_second_windows()).await;
    // Two windows, four runs each.
    for run in 0..4 {
        let rows = [(1, None, Some(run)), (5_001, None, Some(run))];
        bench.table.write(readings(&rows)).await.unwrap();
        bench.table.flush().await.unwrap();
    }
    let objects = bench.store.list("tables").await.unwrap();
    let mut ssts = objects
        .iter()
        .filter(|object| object.name.ends_with(".parquet"));
    let input = &ssts.next().unwrap().name;
    let whole = bench.store.get(input).await.unwrap();
    let torn = whole.slice(..whole.len() / 2);
    bench.store.put(input, torn).await.unwrap();
    let local = LocalCompactor::new(bench.store.clone(), &config().compaction, Env::default());
    bench.engine.set_compactor(Some(Arc::new(local)));
    eventually("the other window is merged", async || {
        let compaction = bench.engine.stats().compaction;
        compaction.jobs_committed == 1 && compaction.ssts_quarantined == 1
    })
    .await;
    let quarantine = bench.engine.stats().compaction.quarantine;
    assert!(quarantine[0].reason.contains(input), "{quarantine:?}");
    assert_eq!(bench.table.stats().ssts, 5);
    // Repaired, it is taken up on request, a minute before it would be by itself.
    bench.store.put(input, whole).await.unwrap();
    assert_eq!(bench.table.retry_quarantined().unwrap(), 1);
    eventually("the window is merged", async || {
        bench.table.stats().ssts == 2
    })
    .await;
    assert_eq!(bench.engine.stats().compaction.quarantine, []);
    assert_eq!(bench.rows().await, 2);
}

/// Panics with every job, at once or later.
struct Panicking {
    at_once: bool,
    jobs: AtomicUsize,
}

#[async_trait]
impl Compactor for Panicking {
    async fn compact(
        &self,
        _job: Arc<CompactionJob>,
        _context: CompactionContext,
    ) -> Result<CompactionOutcome> {
        self.jobs.fetch_add(1, Ordering::Relaxed);
        if !self.at_once {
            tokio::task::yield_now().await;
        }
        panic!("scripted panic");
    }

    fn capacity(&self) -> Capacity {
        Capacity { jobs: 1 }
    }

    fn kind(&self) -> &'static str {
        "panicking"
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_compactor_panics_has_failed_and_its_inputs_are_left_alone() {
    for at_once in [false, true] {
        let bench = Bench::new(one_second_windows()).await;
        bench.flush_runs(4).await;
        let panicking = Arc::new(Panicking {
            at_once,
            jobs: AtomicUsize::new(0),
        });
        bench.engine.set_compactor(Some(panicking.clone()));
        let jobs = || panicking.jobs.load(Ordering::Relaxed);
        eventually("the inputs are left alone, or another panic", async || {
            jobs() > 1 || (jobs() == 1 && bench.table.stats().jobs == 0)
        })
        .await;
        let compaction = bench.engine.stats().compaction;
        assert_eq!((jobs(), compaction.jobs_resumed), (1, 0));
        assert_eq!(compaction.jobs_failed, [("internal".to_owned(), 1)].into());
        assert_eq!(compaction.ssts_quarantined, 4);
        let reason = &compaction.quarantine[0].reason;
        assert!(reason.contains("panicked: scripted panic"), "{reason}");
        // Whoever asks for a compaction is told.
        let error = bench.table.compact().await.unwrap_err();
        assert!(error.to_string().contains("scripted panic"), "{error}");
        assert_eq!((jobs(), bench.table.stats().jobs), (2, 0));
        let local = LocalCompactor::new(bench.store.clone(), &config().compaction, Env::default());
        bench.engine.set_compactor(Some(Arc::new(local)));
        bench.table.compact().await.unwrap();
        assert_eq!((bench.rows().await, bench.table.stats().ssts), (5, 1));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scan_keeps_what_it_reads_from_being_deleted() {
    let mut config = config();
    config.gc.grace.0 = 0;
    let store = Store::open("memory:///").unwrap();
    let engine = Engine::builder(config)
        .store(store.clone())
        .open()
        .await
        .unwrap();
    let table = engine
        .create_table("readings", readings_schema(one_second_windows()))
        .await
        .unwrap();
    let bench = Bench {
        faults: Arc::default(),
        store,
        engine,
        table,
    };
    bench.flush_runs(3).await;
    // Far more rows than a scan reads ahead.
    let rows: Vec<_> = (10..200_010).map(|at| (at, None, Some(at))).collect();
    // Twice, so that every window has something to merge.
    for _ in 0..2 {
        bench.table.write(readings(&rows)).await.unwrap();
        bench.table.flush().await.unwrap();
    }
    let folder = format!("tables/{}", bench.table.stats().id);
    let ssts = async || {
        let objects = bench.store.list(&folder).await.unwrap();
        objects
            .iter()
            .filter(|object| object.name.ends_with(".parquet"))
            .count() as u64
    };
    let before = ssts().await;
    let stream = bench.table.scan(ScanRequest::all()).await.unwrap();
    bench.table.compact().await.unwrap();
    let obsolete = bench.table.stats().obsolete_ssts;
    assert_eq!(obsolete, before);
    // Sweeps, told by what they delete of another table, pass it by.
    let schema = readings_schema(one_second_windows());
    let other = bench.engine.create_table("other", schema).await.unwrap();
    for round in 0..3 {
        other
            .write(readings(&[(1, None, Some(round))]))
            .await
            .unwrap();
        other.compact().await.unwrap();
        eventually("the other table is swept", async || {
            other.stats().obsolete_ssts == 0
        })
        .await;
    }
    assert_eq!(bench.table.stats().obsolete_ssts, obsolete);
    let read: usize = stream
        .collect()
        .await
        .unwrap()
        .iter()
        .map(|batch| batch.num_rows())
        .sum();
    assert_eq!(read, 200_004);
    eventually("the inputs are deleted", async || {
        bench.table.stats().obsolete_ssts == 0
    })
    .await;
    assert_eq!(ssts().await, bench.table.stats().ssts);
    assert_eq!(bench.rows().await, 200_004);
}

/// Runs jobs to their end, but never says so.
struct Silent {
    honest: LocalCompactor,
    is_done: Arc<AtomicBool>,
}

#[async_trait]
impl Compactor for Silent {
    async fn compact(
        &self,
        job: Arc<CompactionJob>,
        context: CompactionContext,
    ) -> Result<CompactionOutcome> {
        self.honest.compact(job, context.clone()).await?;
        self.is_done.store(true, Ordering::Relaxed);
        context.cancel.cancelled().await;
        Err(Error::closed("stopped"))
    }

    fn capacity(&self) -> Capacity {
        self.honest.capacity()
    }

    fn kind(&self) -> &'static str {
        "silent"
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reopened_engine_resumes_its_jobs_and_uses_what_was_finished() {
    let bench = Bench::new(one_second_windows()).await;
    bench.flush_runs(4).await;
    let is_done = Arc::new(AtomicBool::new(false));
    let honest = LocalCompactor::new(bench.store.clone(), &config().compaction, Env::default());
    let silent = Silent {
        honest,
        is_done: is_done.clone(),
    };
    bench.engine.set_compactor(Some(Arc::new(silent)));
    eventually("the job's tasks are done", async || {
        is_done.load(Ordering::Relaxed)
    })
    .await;
    assert_eq!((bench.table.stats().jobs, bench.table.stats().ssts), (1, 4));
    let bench = bench.reopen().await;
    eventually("the job is committed", async || {
        bench.table.stats().jobs == 0
    })
    .await;
    let compaction = bench.engine.stats().compaction;
    assert_eq!(
        (
            compaction.jobs_resumed,
            compaction.tasks_reused,
            compaction.jobs_committed
        ),
        (1, 1, 1)
    );
    assert_eq!((bench.rows().await, bench.table.stats().ssts), (5, 1));
}
