//! Mode `"auto"` with real nodes: jobs run where it was decided, and rows are the same wherever that is.

use std::sync::Arc;

use arrow::{
    array::{ArrayRef, Int64Array, RecordBatch},
    datatypes::{DataType, Field, Schema},
};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use siltstone::{
    compaction::cost::Side,
    config::{Bytes, CompactionMode, EngineConfig},
    engine::{CompactionStats, Engine, ScanRequest, Table},
    types::{NodeId, TableOptions, TableSchema},
};

use crate::{
    cluster::{Cluster, PATIENCE},
    support::{assert_same, flights, flights::Flights, scan},
};

/// A configuration that compacts here or on the nodes, whichever costs less; here one task at a time.
fn config(cluster: &Cluster) -> EngineConfig {
    let mut config = cluster.engine_config();
    config.compaction.mode = CompactionMode::Auto;
    config.compaction.local.jobs_max = 1;
    config.compaction.local.tasks_max = 1;
    // Nothing is compacted but what is asked for.
    config.compaction.l0_runs_trigger = 100;
    config.compaction.l0_runs_slowdown = 150;
    config.compaction.l0_runs_stop = 200;
    config
}

async fn create(engine: &Engine, name: &str, flights: &Flights) -> Table {
    let schema = flights.table_schema().unwrap();
    engine.create_table(name, schema).await.unwrap()
}

async fn write(table: &Table, flights: &Flights) {
    for batch in flights.replay(3_000).unwrap() {
        table.write(batch.unwrap()).await.unwrap();
        table.flush().await.unwrap();
    }
}

async fn assert_landed(table: &Table, flights: &Flights) {
    let landed = flights.landed().unwrap();
    assert_same(&landed, &scan(table, ScanRequest::all()).await);
}

fn tasks(compaction: &CompactionStats, node: &str) -> u64 {
    let node = compaction.nodes.get(&NodeId::from(node));
    node.map_or(0, |did| did.tasks)
}

fn decided(compaction: &CompactionStats, side: &str, reason: &str) -> u64 {
    let reasons = compaction.decisions.counts.get(side);
    let jobs = reasons.and_then(|reasons| reasons.get(reason));
    jobs.copied().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_does_what_there_is_no_room_for_here() {
    let cluster = Cluster::start(1).await;
    let mut config = config(&cluster);
    // It takes a while.
    config.compaction.local.bytes_per_second_max = Some(Bytes(64 << 10));
    let engine = Engine::open(config).await.unwrap();
    let flights = flights(3_000);
    let (first, second) = (
        create(&engine, "first", &flights).await,
        create(&engine, "second", &flights).await,
    );
    write(&first, &flights).await;
    write(&second, &flights).await;
    let here = {
        let first = first.clone();
        tokio::spawn(async move { first.compact().await })
    };
    let begun = async {
        while engine.stats().compaction.decisions.recent.is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, begun).await.unwrap();
    second.compact().await.unwrap();
    let compaction = engine.stats().compaction;
    assert_eq!(compaction.mode, "auto");
    assert!(decided(&compaction, "local", "cost") > 0, "{compaction:#?}");
    let full = decided(&compaction, "remote", "local full");
    assert!(full > 0, "{compaction:#?}");
    assert!(tasks(&compaction, "node-1") >= full, "{compaction:#?}");
    here.await.unwrap().unwrap();
    let compaction = engine.stats().compaction;
    assert!(tasks(&compaction, "local") > 0, "{compaction:#?}");
    assert!(compaction.fallbacks.is_empty() && compaction.jobs_failed.is_empty());
    assert_landed(&first, &flights).await;
    assert_landed(&second, &flights).await;
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_fleet_this_process_decides_at_once_and_modes_change_while_it_runs() {
    let mut cluster = Cluster::start(0).await;
    let config = config(&cluster);
    let engine = Engine::open(config.clone()).await.unwrap();
    let flights = flights(2_000);
    let table = create(&engine, "flights", &flights).await;
    let compact = async || {
        write(&table, &flights).await;
        table.compact().await.unwrap();
        assert_landed(&table, &flights).await;
        engine.stats().compaction
    };
    let alone = compact().await;
    assert_eq!(decided(&alone, "local", "no nodes"), alone.jobs_committed);
    cluster.kill_meta().await;
    // What was heard of the fleet is believed for a moment.
    let away = async {
        loop {
            let compaction = compact().await;
            if decided(&compaction, "local", "away") > 0 {
                return compaction;
            }
        }
    };
    let away = tokio::time::timeout(PATIENCE, away).await.unwrap();
    let why = &away.decisions.recent.last().unwrap().why;
    assert!(why.contains(cluster.meta()), "{why}");
    assert!(away.fallbacks.is_empty(), "{away:#?}");
    assert_eq!(
        away.nodes.keys().collect::<Vec<_>>(),
        [&NodeId::from("local")]
    );

    cluster.restart_meta().await;
    cluster.start_node("node-1").await;
    let mut modes = config.compaction.clone();
    modes.mode = CompactionMode::Remote;
    engine.set_compaction(&modes).await.unwrap();
    let remote = compact().await;
    assert!(tasks(&remote, "node-1") > 0, "{remote:#?}");
    assert_eq!(tasks(&remote, "local"), tasks(&away, "local"));
    modes.mode = CompactionMode::Local;
    engine.set_compaction(&modes).await.unwrap();
    let local = compact().await;
    assert_eq!(tasks(&local, "node-1"), tasks(&remote, "node-1"));
    assert!(local.decisions.recent.is_empty());
    modes.mode = CompactionMode::Auto;
    engine.set_compaction(&modes).await.unwrap();
    let auto = compact().await;
    assert_eq!(auto.mode, "auto");
    assert!(!auto.decisions.recent.is_empty());
    engine.close().await.unwrap();
}

/// Columns of numbers that do not compress, beside the key.
const COLUMNS: usize = 16;

fn numbers_schema() -> TableSchema {
    let number = |name: String| Field::new(name, DataType::Int64, false);
    let columns = (0..COLUMNS).map(|at| number(format!("column_{at}")));
    let columns = std::iter::once(number("id".into())).chain(columns);
    let schema = Schema::new(columns.collect::<Vec<_>>());
    TableSchema::new(schema.into(), &["id"], None, TableOptions::default()).unwrap()
}

/// Rows with the ids from `first` on.
fn numbers(first: i64, rows: i64, random: &mut SmallRng) -> RecordBatch {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(first..first + rows));
    let columns = (0..COLUMNS).map(|_| {
        let numbers = (0..rows).map(|_| random.random::<i64>());
        Arc::new(Int64Array::from_iter_values(numbers)) as ArrayRef
    });
    let columns: Vec<ArrayRef> = std::iter::once(ids).chain(columns).collect();
    RecordBatch::try_new(numbers_schema().columns().clone(), columns).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn both_sides_share_a_job_that_neither_does_soon() {
    let cluster = Cluster::start(1).await;
    let mut config = config(&cluster);
    config.memory.memtable_bytes = Bytes::mib(16);
    config.compaction.task_bytes_target = Bytes::mib(2);
    // Once there is a job, level 0 presses as much as it can: what is done soonest wins.
    config.compaction.l0_runs_trigger = 2;
    config.compaction.l0_runs_slowdown = 2;
    let modes = config.compaction.clone();
    config.compaction.mode = CompactionMode::Off;
    let engine = Engine::open(config).await.unwrap();
    let table = engine
        .create_table("numbers", numbers_schema())
        .await
        .unwrap();
    // Runs that begin apart, so that there is where to cut, and overlap.
    let random = &mut SmallRng::seed_from_u64(7);
    for run in 0..8 {
        let batch = numbers(run * 12_000, 16_000, random);
        table.write(batch).await.unwrap();
        table.flush().await.unwrap();
    }
    let before = scan(&table, ScanRequest::all()).await;
    engine.set_compaction(&modes).await.unwrap();
    table.compact().await.unwrap();
    assert_same(&before, &scan(&table, ScanRequest::all()).await);
    let compaction = engine.stats().compaction;
    let [decided] = &compaction.decisions.recent[..] else {
        panic!("{compaction:#?}");
    };
    assert_eq!(decided.costs.write_pressure_percent, 100);
    let (decision, all) = (&decided.decision, u64::from(decided.costs.tasks));
    assert_eq!(decision.side, Side::Split, "{decided:#?}");
    let here = u64::from(decision.tasks_local);
    assert!(all >= 4 && (1..all).contains(&here), "{decided:#?}");
    assert_eq!(tasks(&compaction, "local"), here, "{compaction:#?}");
    assert_eq!(tasks(&compaction, "node-1"), all - here, "{compaction:#?}");
    assert!(decided.took_ms.is_some());
    assert!(compaction.jobs_failed.is_empty(), "{compaction:#?}");
    engine.close().await.unwrap();
}
