//! Deletion without any grace: what a read, a job or a flush under way needs stays, what nobody needs goes.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use siltstone::{
    clock::Env,
    compaction::{
        Capacity, CompactionContext, CompactionJob, CompactionOutcome, Compactor, LocalCompactor,
    },
    config::{EngineConfig, Millis, WalMode},
    engine::{Engine, ScanRequest, Swept, Table},
    error::{ErrorKind, Result},
    store::{
        Store,
        faulty::{Effect, Fault, Faults, Operation},
        layout,
    },
    types::{JobId, SstId, TaskId, Token},
};
use tokio::sync::watch;

use crate::support::{
    Reading, eventually, one_second_windows, quiet_config, reading_rows, readings, readings_schema,
    scan,
};

/// An engine over memory with scripted faults, no WAL and no grace, that sweeps when it is asked to.
struct Bench {
    store: Store,
    faults: Arc<Faults>,
    engine: Engine,
    table: Table,
}

fn config() -> EngineConfig {
    let mut config = quiet_config("memory:///");
    config.wal.mode = WalMode::None;
    config.gc.grace = Millis(0);
    config
}

async fn open(config: EngineConfig, store: &Store) -> Engine {
    let builder = Engine::builder(config).store(store.clone());
    builder.open().await.unwrap()
}

impl Bench {
    async fn new() -> Self {
        let (store, faults) = Store::open("memory:///").unwrap().with_faults();
        let engine = open(config(), &store).await;
        let schema = readings_schema(one_second_windows());
        let table = engine.create_table("readings", schema).await.unwrap();
        Self {
            store,
            faults,
            engine,
            table,
        }
    }

    /// Flushes `runs` level-0 runs, each of which has a row of its own and overwrites a shared one.
    async fn flush_runs(&self, runs: i64) -> Vec<Reading> {
        for run in 0..runs {
            let rows = [(1, None, Some(run)), (2 + run, None, Some(run))];
            self.table.write(readings(&rows)).await.unwrap();
            self.table.flush().await.unwrap();
        }
        let own = (0..runs).map(|run| (2 + run, None, Some(run)));
        [(1, None, Some(runs - 1))].into_iter().chain(own).collect()
    }

    async fn sweep(&self) -> Swept {
        self.engine.collect_garbage().await.unwrap()
    }

    /// Names of the table's objects in one of its folders.
    async fn objects(&self, folder: &str) -> BTreeSet<String> {
        let table = layout::table(self.table.stats().id);
        let objects = self.store.list(&format!("{table}/{folder}")).await.unwrap();
        objects.into_iter().map(|object| object.name).collect()
    }

    async fn put(&self, name: &str) {
        self.store
            .put(name, Bytes::from_static(b"x"))
            .await
            .unwrap();
    }

    async fn rows(&self) -> Vec<Reading> {
        reading_rows(&scan(&self.table, ScanRequest::all()).await)
    }

    fn sst(&self, sst: SstId) -> String {
        layout::sst(self.table.stats().id, sst)
    }
}

fn output(job: JobId, token: u64) -> SstId {
    SstId::Compacted {
        task: TaskId { job, index: 0 },
        token: Token(token),
        part: 0,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_scan_or_a_snapshot_reads_stays_until_it_ends() {
    let bench = Bench::new().await;
    let rows = bench.flush_runs(12).await;
    let snapshot = bench.table.snapshot().await.unwrap();
    // A scan that has begun, and waits for its first bytes.
    bench
        .faults
        .add(Fault::new(Operation::Get, "sst", Effect::Block).times(1));
    let scan = bench.table.scan(ScanRequest::all()).await.unwrap();
    eventually("the scan reads", async || bench.faults.blocked() == 1).await;
    let before = bench.objects("sst").await;
    bench.table.compact().await.unwrap();
    let swept = bench.sweep().await;
    assert_eq!(swept.kept["read"], before.len() as u64, "{swept:?}");
    assert!(bench.objects("sst").await.is_superset(&before));
    bench.faults.release();
    let batches = scan.collect().await.unwrap();
    assert_eq!(
        batches.iter().flat_map(reading_rows).collect::<Vec<_>>(),
        rows
    );
    eventually("the scan's ssts are deleted", async || {
        bench.sweep().await;
        bench.objects("sst").await.is_disjoint(&before)
    })
    .await;
    // The snapshot reads what the merge has kept for it.
    bench.flush_runs(1).await;
    bench.table.compact().await.unwrap();
    bench.sweep().await;
    let batches = snapshot.scan(ScanRequest::all()).await.unwrap();
    let batches = batches.collect().await.unwrap();
    assert_eq!(
        batches.iter().flat_map(reading_rows).collect::<Vec<_>>(),
        rows
    );
    let deleted = bench.engine.stats().gc.deleted;
    assert!(deleted["left_table"] >= 12, "{deleted:?}");
}

/// Runs jobs to their end, and keeps the outcome to itself until it is let go.
struct Reluctant {
    honest: LocalCompactor,
    finished: watch::Sender<bool>,
    released: watch::Receiver<bool>,
}

#[async_trait]
impl Compactor for Reluctant {
    async fn compact(
        &self,
        job: Arc<CompactionJob>,
        context: CompactionContext,
    ) -> Result<CompactionOutcome> {
        let outcome = self.honest.compact(job, context).await?;
        self.finished.send_replace(true);
        let mut released = self.released.clone();
        released.wait_for(|released| *released).await.unwrap();
        Ok(outcome)
    }

    fn capacity(&self) -> Capacity {
        self.honest.capacity()
    }

    fn kind(&self) -> &'static str {
        "reluctant"
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn inputs_outputs_and_results_of_a_live_job_stay() {
    let bench = Bench::new().await;
    let rows = bench.flush_runs(4).await;
    let (finished, mut is_finished) = watch::channel(false);
    let (release, released) = watch::channel(false);
    let honest = LocalCompactor::new(bench.store.clone(), &config().compaction, Env::default());
    bench.engine.set_compactor(Some(Arc::new(Reluctant {
        honest,
        finished,
        released,
    })));
    let table = bench.table.clone();
    let compacting = tokio::spawn(async move { table.compact().await });
    is_finished.wait_for(|finished| *finished).await.unwrap();

    // A second attempt at its task is under way as well.
    let results = bench.objects("results").await;
    let [result] = &results.iter().collect::<Vec<_>>()[..] else {
        panic!("{results:?}");
    };
    let Some(layout::ObjectName::Result(_, task, 0)) = layout::parse(result) else {
        panic!("{result}");
    };
    let second = bench.sst(output(task.job, 5));
    bench.put(&second).await;
    let before = bench.objects("").await;
    let swept = bench.sweep().await;
    assert!(swept.deleted.is_empty(), "{swept:?}");
    assert_eq!(
        swept.kept["job"], 3,
        "the result, its output, and the attempt's"
    );
    assert_eq!(bench.objects("").await, before);

    release.send_replace(true);
    compacting.await.unwrap().unwrap();
    bench.sweep().await;
    assert_eq!(bench.rows().await, rows);
    let left = bench.objects("sst").await;
    assert_eq!(left.len(), 1, "the output that counts: {left:?}");
    assert!(bench.objects("results").await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_sst_whose_commit_is_under_way_stays() {
    let bench = Bench::new().await;
    bench
        .table
        .write(readings(&[(1, None, Some(7))]))
        .await
        .unwrap();
    bench
        .faults
        .add(Fault::new(Operation::Create, "manifest", Effect::Block));
    let table = bench.table.clone();
    let flushing = tokio::spawn(async move { table.flush().await });
    eventually("the flush is about to commit", async || {
        bench.faults.blocked() == 1
    })
    .await;
    let before = bench.objects("sst").await;
    let swept = bench.sweep().await;
    assert_eq!((before.len(), swept.kept["being_written"]), (1, 1));
    assert_eq!(bench.objects("sst").await, before);
    bench.faults.release();
    flushing.await.unwrap().unwrap();
    assert_eq!(bench.sweep().await.kept["live"], 1);
    assert_eq!(bench.rows().await, [(1, None, Some(7))]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_lost_attempts_and_killed_engines_left_behind_goes_and_nothing_else() {
    let bench = Bench::new().await;
    let rows = bench.flush_runs(2).await;
    let live = bench.objects("sst").await;
    let (ended, table) = (JobId::from_parts(1, 1), bench.table.stats().id);
    let task = TaskId {
        job: ended,
        index: 0,
    };
    let orphans = [
        (bench.sst(SstId::flushed(1, 1)), "uncommitted"),
        (bench.sst(output(ended, 1)), "lost_attempt"),
        (layout::result(table, task, 0), "ended_job_result"),
        (layout::probe(1, 1), "probe"),
        (
            layout::sst(
                siltstone::types::TableId::from_parts(1, 1),
                SstId::flushed(1, 1),
            ),
            "dropped_table",
        ),
    ];
    let strangers = [
        layout::sst(table, SstId::flushed(1, 1)).replace("parquet", "csv"),
        format!("{}/notes", layout::table(table)),
        "tables/notes/sst/01.parquet".to_owned(),
        "probe/mine".to_owned(),
    ];
    // A flush of an engine whose clock is ahead.
    let ahead_ms = Env::default().unix_ms() + 3_600_000;
    let young = bench.sst(SstId::flushed(ahead_ms, 1));
    let open_now = layout::probe(ahead_ms, 1);
    for name in orphans.iter().map(|(name, _)| name).chain(&strangers) {
        bench.put(name).await;
    }
    bench.put(&young).await;
    bench.put(&open_now).await;

    let swept = bench.sweep().await;
    let stats = bench.engine.stats().gc;
    let wanted = orphans.iter().map(|(_, reason)| (reason.to_string(), 1));
    assert_eq!(stats.deleted, wanted.collect());
    assert_eq!(
        (swept.kept["within_grace"], swept.kept["live"]),
        (2, 2),
        "{swept:?}"
    );
    for name in strangers.iter().chain(&live).chain([&young, &open_now]) {
        assert!(
            bench.store.size(name).await.unwrap().is_some(),
            "{name} is gone"
        );
    }
    assert_eq!(bench.rows().await, rows);
    assert_eq!(
        (stats.objects_deleted(), stats.sweeps, stats.failures),
        (5, 1, 0)
    );
    assert_eq!(bench.sweep().await.objects_deleted(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn orphans_are_swept_without_being_asked_for() {
    let (store, _) = Store::open("memory:///").unwrap().with_faults();
    let mut config = config();
    config.gc.orphans_interval = Millis(100);
    let engine = open(config, &store).await;
    let schema = readings_schema(one_second_windows());
    let table = engine.create_table("readings", schema).await.unwrap();
    for sweep in 0..2 {
        let orphan = layout::sst(table.stats().id, SstId::flushed(1, sweep));
        store.put(&orphan, Bytes::from_static(b"x")).await.unwrap();
        eventually("it is gone", async || {
            store.size(&orphan).await.unwrap().is_none()
        })
        .await;
    }
    assert!(engine.stats().gc.sweeps >= 2);
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_bulk_deletion_only_what_failed_is_tried_again() {
    let bench = Bench::new().await;
    bench.flush_runs(3).await;
    let mut inputs = bench.objects("sst").await.into_iter();
    let stubborn = inputs.next().unwrap();
    bench
        .faults
        .add(Fault::new(Operation::Delete, &stubborn, Effect::Fail).times(3));
    bench.table.compact().await.unwrap();
    let deletes = || bench.faults.count(Operation::Delete);
    eventually("the others are gone", async || {
        bench.table.stats().obsolete_ssts == 1
    })
    .await;
    for input in inputs {
        assert_eq!(bench.store.size(&input).await.unwrap(), None);
    }
    let stats = bench.engine.stats().gc;
    assert_eq!(
        (stats.objects_deleted(), stats.objects_failing),
        (2, 1),
        "{stats:?}"
    );
    assert!(
        stats.failures >= 1 && stats.last_error.is_some(),
        "{stats:?}"
    );
    let (before, failed) = (deletes(), bench.engine.stats().gc.failures);
    eventually("it is gone, too", async || {
        bench.table.stats().obsolete_ssts == 0
    })
    .await;
    assert_eq!(bench.store.size(&stubborn).await.unwrap(), None);
    let stats = bench.engine.stats().gc;
    assert_eq!((stats.failures, stats.objects_failing), (3, 0), "{stats:?}");
    let again = stats.failures - failed + 1;
    assert!(
        deletes() - before <= again,
        "only the one that had failed is deleted again"
    );
}

/// An engine that has taken the root of `before` over, and has written to its table and to another.
async fn successor(before: &Bench) -> (Engine, Vec<Reading>) {
    let engine = open(config(), &before.store).await;
    let table = engine.table("readings").unwrap();
    let rows: Vec<Reading> = (0..4).map(|run| (100 + run, None, Some(run))).collect();
    for row in &rows[..2] {
        table.write(readings(&[*row])).await.unwrap();
        table.flush().await.unwrap();
    }
    table.compact().await.unwrap();
    for row in &rows[2..] {
        table.write(readings(&[*row])).await.unwrap();
        table.flush().await.unwrap();
    }
    let schema = readings_schema(one_second_windows());
    let created = engine.create_table("created", schema).await.unwrap();
    created.write(readings(&rows)).await.unwrap();
    created.flush().await.unwrap();
    (engine, rows)
}

async fn check_successor(engine: Engine, rows: &[Reading]) {
    for table in ["readings", "created"] {
        let table = engine.table(table).unwrap();
        let mut seen = reading_rows(&scan(&table, ScanRequest::all()).await);
        seen.retain(|(at, _, _)| *at >= 100);
        assert_eq!(seen, rows);
    }
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_was_overtaken_deletes_nothing_of_the_newer_one() {
    let before = Bench::new().await;
    before.flush_runs(2).await;
    let (engine, rows) = successor(&before).await;
    let kind = before.engine.collect_garbage().await.unwrap_err().kind();
    assert_eq!(kind, ErrorKind::Fenced);
    check_successor(engine, &rows).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_is_overtaken_while_it_lists_deletes_nothing_of_the_newer_one() {
    // First the folders of tables are listed, then each folder.
    for folder in ["tables", "tables/0"] {
        let before = Bench::new().await;
        before.flush_runs(2).await;
        eventually("the sweep at open is over", async || {
            before.engine.stats().store.of(Operation::List).done > 0
        })
        .await;
        let sleep = Fault::new(Operation::List, folder, Effect::Block);
        before.faults.add(sleep.times(1));
        let sweeping = before.engine.clone();
        let sweeping = tokio::spawn(async move { sweeping.collect_garbage().await });
        eventually("the sweep is about to list", async || {
            before.faults.blocked() == 1
        })
        .await;
        let (engine, rows) = successor(&before).await;
        before.faults.release();
        let kind = sweeping.await.unwrap().unwrap_err().kind();
        assert_eq!(kind, ErrorKind::Fenced, "{folder}");
        check_successor(engine, &rows).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_table_is_read_to_the_end_and_then_leaves_nothing() {
    let bench = Bench::new().await;
    let rows = bench.flush_runs(3).await;
    let id = bench.table.stats().id;
    let mut scan = bench.table.scan(ScanRequest::all()).await.unwrap();
    bench.engine.drop_table("readings").await.unwrap();
    for _ in 0..3 {
        bench.sweep().await;
        tokio::time::sleep(Duration::from_millis(60)).await;
    }
    let mut seen = Vec::new();
    while let Some(batch) = scan.next().await {
        seen.extend(reading_rows(&batch.unwrap()));
    }
    assert_eq!(seen, rows);
    drop(scan);
    let folder = layout::table(id);
    let is_empty = async || bench.store.list(&folder).await.unwrap().is_empty();
    eventually("its objects are gone", &is_empty).await;
    // An attempt that does not know writes one more.
    let late = layout::sst(id, output(JobId::from_parts(1, 1), 1));
    bench.put(&late).await;
    assert_eq!(bench.sweep().await.deleted["dropped_table"], 1);
    assert!(is_empty().await);
}
