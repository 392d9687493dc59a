//! Deletes by time range: what they hide is not read, and its space comes free by itself.

use std::{sync::Arc, time::Duration};

use arrow::datatypes::{DataType, Field, Schema};
use siltstone::{
    clock::{Env, ManualClock},
    config::{CompactionMode, EngineConfig, Millis, WalMode},
    engine::{Engine, ScanRequest, Table},
    store::{
        Store,
        faulty::{Effect, Fault, Faults, Operation},
    },
    types::{MergeOperator, PlannerKind, TableOptions, TableSchema, TimeRange, WriteMode},
};

use crate::{
    snapshots::seen,
    support::{
        eventually, one_second_windows, quiet_config, reading_keys, reading_rows, readings,
        readings_schema, scan,
    },
};

/// An engine over memory, under a clock that stands until it is moved.
pub struct Bench {
    pub store: Store,
    pub faults: Arc<Faults>,
    pub clock: Arc<ManualClock>,
    pub engine: Engine,
}

fn config() -> EngineConfig {
    let mut config = quiet_config("memory:///");
    config.wal.mode = WalMode::None;
    config.gc.grace = Millis(0);
    config
}

impl Bench {
    pub async fn new(now: Duration) -> Self {
        let (store, faults) = Store::open("memory:///").unwrap().with_faults();
        let clock = Arc::new(ManualClock::new(now));
        let env = Env::seeded(clock.clone(), 1);
        let builder = Engine::builder(config()).store(store.clone()).env(env);
        Self {
            store,
            faults,
            clock,
            engine: builder.open().await.unwrap(),
        }
    }

    pub async fn table(&self, options: TableOptions) -> Table {
        let schema = readings_schema(options);
        self.engine.create_table("readings", schema).await.unwrap()
    }

    /// Waits until so many objects were deleted, all of them for `reason`.
    pub async fn deleted(&self, reason: &str, objects: u64) {
        let wanted = [(reason.to_owned(), objects)].into();
        let deleted = async || self.engine.stats().gc.deleted;
        eventually("deletions are counted", async || {
            deleted().await.values().sum::<u64>() == objects
        })
        .await;
        assert_eq!(deleted().await, wanted);
    }

    pub async fn ssts(&self) -> usize {
        let objects = self.store.list("tables").await.unwrap();
        let is_sst = |name: &str| name.contains("/sst/");
        objects.iter().filter(|object| is_sst(&object.name)).count()
    }
}

pub async fn rows(table: &Table) -> Vec<i64> {
    let rows = reading_rows(&scan(table, ScanRequest::all()).await);
    rows.into_iter().map(|row| row.0).collect()
}

#[tokio::test]
async fn a_range_delete_costs_one_record_and_frees_whole_ssts_unread() {
    let bench = Bench::new(Duration::from_secs(100)).await;
    let table = bench.table(one_second_windows()).await;
    table
        .write(readings(&[
            (500, None, None),
            (1_500, None, None),
            (2_500, None, None),
        ]))
        .await
        .unwrap();
    table.flush().await.unwrap();
    table.write(readings(&[(1_600, None, None)])).await.unwrap();
    let before =
        [Operation::Get, Operation::Put, Operation::Create].map(|of| bench.faults.count(of));
    let times = TimeRange {
        start: 1_000,
        end: 2_600,
    };
    table.delete_range(times).await.unwrap();
    let after =
        [Operation::Get, Operation::Put, Operation::Create].map(|of| bench.faults.count(of));
    assert_eq!(
        [after[0], after[1], after[2]],
        [before[0], before[1], before[2] + 1]
    );
    assert_eq!(rows(&table).await, [500]);
    // What is written later is there, flushed or not.
    table
        .write(readings(&[(1_700, None, Some(7))]))
        .await
        .unwrap();
    assert_eq!(rows(&table).await, [500, 1_700]);

    // Whoever reads an SST is held.
    let held = Fault::new(Operation::Get, "/sst/", Effect::Block);
    bench.faults.add(held);
    eventually("the covered ssts are gone", async || {
        bench.ssts().await == 1
    })
    .await;
    assert_eq!(bench.faults.blocked(), 0);
    bench.faults.clear();
    bench.deleted("range_deleted", 2).await;
    table.flush().await.unwrap();
    assert_eq!(rows(&table).await, [500, 1_700]);
    assert_eq!(
        bench.ssts().await,
        2,
        "the row that was deleted unflushed is in no sst"
    );
}

#[tokio::test]
async fn a_range_delete_ends_when_nothing_is_left_to_hide() {
    let bench = Bench::new(Duration::from_secs(100)).await;
    let table = bench.table(one_second_windows()).await;
    table
        .write(readings(&[(100, None, None), (900, None, None)]))
        .await
        .unwrap();
    table.flush().await.unwrap();
    let times = TimeRange { start: 0, end: 500 };
    table.delete_range(times).await.unwrap();
    assert_eq!(table.stats().range_deletes, 1);
    let snapshot = table.snapshot().await.unwrap();
    table.compact().await.unwrap();
    assert_eq!(rows(&table).await, [900]);
    eventually("the range delete ends", async || {
        table.stats().range_deletes == 0
    })
    .await;
    assert_eq!(rows(&table).await, [900]);
    assert_eq!(seen(&snapshot).await.len(), 1);
    // Seqs go on above it after a restart, or it would hide what is written then.
    table
        .delete_range(TimeRange { start: 0, end: 500 })
        .await
        .unwrap();
    bench.engine.close().await.unwrap();
    let engine = Engine::builder(config())
        .store(bench.store.clone())
        .open()
        .await
        .unwrap();
    let table = engine.table("readings").unwrap();
    table.write(readings(&[(300, None, None)])).await.unwrap();
    assert_eq!(rows(&table).await, [300, 900]);
}

#[tokio::test]
async fn a_snapshot_from_before_a_range_delete_keeps_its_rows() {
    for mode in [WriteMode::Upsert, WriteMode::Append] {
        let bench = Bench::new(Duration::from_secs(100)).await;
        let options = TableOptions {
            write_mode: mode,
            ..one_second_windows()
        };
        let table = bench.table(options).await;
        table.write(readings(&[(100, None, None)])).await.unwrap();
        table.flush().await.unwrap();
        let snapshot = table.snapshot().await.unwrap();
        table.delete_range(TimeRange::ALL).await.unwrap();
        table.write(readings(&[(200, None, None)])).await.unwrap();
        table.compact().await.unwrap();
        assert_eq!(rows(&table).await, [200]);
        assert_eq!(seen(&snapshot).await, [(100, None, None)]);
        let got = snapshot
            .get(reading_keys(&[(100, None), (200, None)]))
            .await
            .unwrap();
        assert_eq!(reading_rows(&got), [(100, None, None)]);
        drop(snapshot);
        table.write(readings(&[(150, None, None)])).await.unwrap();
        table.compact().await.unwrap();
        assert_eq!(table.stats().sst_rows, 2, "the row goes with the snapshot");
    }
}

#[tokio::test]
async fn a_range_delete_that_waits_for_the_store_holds_up_snapshots_but_no_writes() {
    let bench = Bench::new(Duration::from_secs(100)).await;
    let table = bench.table(one_second_windows()).await;
    table.write(readings(&[(100, None, None)])).await.unwrap();
    bench
        .faults
        .add(Fault::new(Operation::Create, "/manifest/", Effect::Block));
    let deleting = tokio::spawn({
        let table = table.clone();
        async move { table.delete_range(TimeRange::ALL).await }
    });
    eventually("the commit is on its way", async || {
        bench.faults.blocked() > 0
    })
    .await;
    table.write(readings(&[(200, None, None)])).await.unwrap();
    assert_eq!(rows(&table).await, [100, 200]);
    let snapshot = tokio::spawn({
        let table = table.clone();
        async move { table.snapshot().await }
    });
    tokio::task::yield_now().await;
    assert!(!snapshot.is_finished());
    bench.faults.release();
    deleting.await.unwrap().unwrap();
    assert_eq!(rows(&table).await, [200]);
    let snapshot = snapshot.await.unwrap().unwrap();
    assert_eq!(seen(&snapshot).await, [(200, None, None)]);
}

#[tokio::test]
async fn a_range_delete_needs_a_time_column() {
    let bench = Bench::new(Duration::from_secs(100)).await;
    let columns = Arc::new(Schema::new(vec![Field::new("k", DataType::Int64, false)]));
    let schema = TableSchema::new(columns, &["k"], None, TableOptions::default()).unwrap();
    let table = bench.engine.create_table("plain", schema).await.unwrap();
    let error = table.delete_range(TimeRange::ALL).await.unwrap_err();
    assert!(error.to_string().contains("time column"), "{error}");
}

/// The seq of a range delete that has ended must not be that of another: SSTs remember it as applied.
#[tokio::test]
async fn a_range_delete_after_a_restart_is_not_taken_for_one_that_ended() {
    let bench = Bench::new(Duration::from_secs(100)).await;
    let table = bench.table(one_second_windows()).await;
    let written = [(100, None, None), (500, None, None), (900, None, None)];
    table.write(readings(&written)).await.unwrap();
    table.flush().await.unwrap();
    table
        .delete_range(TimeRange { start: 0, end: 200 })
        .await
        .unwrap();
    table.compact().await.unwrap();
    eventually("the range delete ends", async || {
        table.stats().range_deletes == 0
    })
    .await;
    bench.engine.close().await.unwrap();
    let engine = Engine::builder(config())
        .store(bench.store.clone())
        .open()
        .await
        .unwrap();
    let table = engine.table("readings").unwrap();
    table
        .delete_range(TimeRange {
            start: 800,
            end: 1_000,
        })
        .await
        .unwrap();
    table.write(readings(&[(700, None, None)])).await.unwrap();
    assert_eq!(rows(&table).await, [500, 700]);
    table.compact().await.unwrap();
    eventually("the range delete ends", async || {
        table.stats().range_deletes == 0
    })
    .await;
    assert_eq!(rows(&table).await, [500, 700]);
    assert_eq!(table.stats().sst_rows, 2);
}

/// While a range delete waits for the store, rows from before and after it meet in no SST, and are not combined.
#[tokio::test]
async fn a_range_delete_on_its_way_stands_between_rows() {
    let bench = Bench::new(Duration::from_secs(100)).await;
    let options = TableOptions {
        operators: [("value".to_owned(), MergeOperator::Sum)].into(),
        ..one_second_windows()
    };
    let table = bench.table(options).await;
    table
        .write(readings(&[(100, None, Some(1))]))
        .await
        .unwrap();
    bench
        .faults
        .add(Fault::new(Operation::Create, "/manifest/", Effect::Block));
    let deleting = tokio::spawn({
        let table = table.clone();
        async move { table.delete_range(TimeRange::ALL).await }
    });
    eventually("the commit is on its way", async || {
        bench.faults.blocked() > 0
    })
    .await;
    table
        .write(readings(&[(100, None, Some(2))]))
        .await
        .unwrap();
    let flushing = tokio::spawn({
        let table = table.clone();
        async move { table.flush().await }
    });
    tokio::task::yield_now().await;
    bench.faults.release();
    deleting.await.unwrap().unwrap();
    flushing.await.unwrap().unwrap();
    let left = reading_rows(&scan(&table, ScanRequest::all()).await);
    assert_eq!(left, [(100, None, Some(2))]);
}

/// A delete that cuts through the SSTs of a table at rest has them rewritten, and ends.
#[tokio::test]
async fn a_range_delete_through_a_settled_sst_is_applied_by_itself() {
    let (store, _) = Store::open("memory:///").unwrap().with_faults();
    let mut config = config();
    config.compaction.mode = CompactionMode::Local;
    config.compaction.planning.settle = Millis(0);
    let engine = Engine::builder(config).store(store).open().await.unwrap();
    for planner in [
        PlannerKind::TimeWindow,
        PlannerKind::Leveled,
        PlannerKind::Tiered,
    ] {
        let options = TableOptions {
            planner: Some(planner),
            ..one_second_windows()
        };
        let table = engine
            .create_table(&format!("{planner:?}"), readings_schema(options))
            .await
            .unwrap();
        table
            .write(readings(&[(100, None, None), (900, None, None)]))
            .await
            .unwrap();
        table.compact().await.unwrap();
        let snapshot = table.snapshot().await.unwrap();
        table
            .delete_range(TimeRange { start: 0, end: 500 })
            .await
            .unwrap();
        engine.wait_compacted().await.unwrap();
        assert_eq!(
            table.stats().sst_rows,
            2,
            "{planner:?}: the snapshot keeps them"
        );
        drop(snapshot);
        eventually("it is applied", async || table.stats().sst_rows == 1).await;
        eventually("it ends", async || table.stats().range_deletes == 0).await;
        assert_eq!(rows(&table).await, [900]);
    }
    engine.close().await.unwrap();
}
