//! `kill -9` of each process in the middle of its work: nothing acknowledged is lost, and nothing that
//! was finished is done again.

use std::{collections::BTreeMap, path::Path};

use siltstone::{
    config::Millis,
    engine::{Engine, ScanRequest, Table},
    meta::NodeState,
    types::{NodeId, SstId, TaskId, Token},
};
use tempfile::tempdir;
use tokio::time::timeout;

use crate::{
    cluster::{Cluster, PATIENCE, TaskSeen},
    engine_process::{BATCH_ROWS, EngineProcess, Load},
    leftovers::check_nothing_is_left_behind,
    remote::assert_remote,
    support::{assert_same, eventually, flights, last_of_each_key, scan, sst_files},
};

/// Flights of a big job: enough for some seconds of compaction.
const FLIGHTS: usize = 60_000;

/// An engine in this process whose next `compact` is one job of many tasks.
pub async fn engine_with_a_big_job(cluster: &Cluster) -> (Engine, Table) {
    let config = Load::OneBigJob.config(&cluster.root(), Some(cluster.meta()));
    let engine = Engine::open(config).await.unwrap();
    let flights = flights(FLIGHTS);
    let table = engine
        .create_table("flights", Load::OneBigJob.schema(&flights))
        .await
        .unwrap();
    for batch in flights.replay(5_000).unwrap() {
        table.write(batch.unwrap()).await.unwrap();
    }
    table.flush().await.unwrap();
    (engine, table)
}

pub async fn check_flights(table: &Table) {
    check_rows(table).await;
    assert_eq!(
        table.stats().sst_rows,
        FLIGHTS as u64,
        "{:?}",
        table.stats()
    );
}

/// All flights are there, however often.
pub async fn check_rows(table: &Table) {
    let landed = flights(FLIGHTS).landed().unwrap();
    assert_same(&landed, &scan(table, ScanRequest::all()).await);
}

pub async fn finish(compacting: tokio::task::JoinHandle<siltstone::error::Result<()>>) {
    let done = timeout(2 * PATIENCE, compacting).await;
    done.expect("compaction does not end").unwrap().unwrap();
}

pub fn compact(table: &Table) -> tokio::task::JoinHandle<siltstone::error::Result<()>> {
    let table = table.clone();
    tokio::spawn(async move { table.compact().await.map(drop) })
}

#[tokio::test(flavor = "multi_thread")]
async fn the_task_of_a_killed_node_goes_to_another() {
    let mut cluster = Cluster::start(2).await;
    let (engine, table) = engine_with_a_big_job(&cluster).await;
    let compacting = compact(&table);
    // Meta notices a dead node when its lease is over: until then the task is still listed as running,
    // unless it was done before the kill. Then it was not in the middle, and there is another try.
    loop {
        eventually("node-1 runs a task", async || {
            cluster
                .tasks()
                .await
                .iter()
                .any(|task| task.is_running_on("node-1"))
        })
        .await;
        cluster.kill_node("node-1").await;
        if cluster
            .tasks()
            .await
            .iter()
            .any(|task| task.is_running_on("node-1"))
        {
            break;
        }
        cluster.start_node("node-1").await;
    }
    finish(compacting).await;
    check_flights(&table).await;
    let compaction = engine.stats().compaction;
    assert!(
        compaction.fallbacks.is_empty() && compaction.jobs_failed.is_empty(),
        "{compaction:#?}"
    );
    assert!(
        compaction.nodes[&NodeId::from("node-2")].tasks > 0,
        "{compaction:#?}"
    );
    let nodes = cluster.node_states().await;
    assert_ne!(nodes.get("node-1"), Some(&NodeState::Active), "{nodes:?}");
    check_nothing_is_left_behind(&engine, &table, &cluster.root()).await;
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_comes_later_gets_its_share() {
    let mut cluster = Cluster::start(1).await;
    let (engine, table) = engine_with_a_big_job(&cluster).await;
    let compacting = compact(&table);
    eventually("node-1 runs a task", async || {
        cluster
            .tasks()
            .await
            .iter()
            .any(|task| task.is_running_on("node-1"))
    })
    .await;
    cluster.start_node("node-2").await;
    finish(compacting).await;
    check_flights(&table).await;
    assert_remote(&engine.stats().compaction, 2);
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_meta_service_loses_and_repeats_nothing() {
    let mut cluster = Cluster::start(2).await;
    let (engine, table) = engine_with_a_big_job(&cluster).await;
    let compacting = compact(&table);
    half_done(&cluster).await;
    cluster.kill_meta().await;
    assert_eq!(table.stats().jobs, 1, "the job was done before the kill");
    cluster.restart_meta().await;
    finish(compacting).await;
    check_flights(&table).await;
    assert_remote(&engine.stats().compaction, 2);
    for (task, tokens) in attempts(&cluster.root(), &table) {
        assert_eq!(tokens.len(), 1, "task {task} was run again: {tokens:?}");
    }
    engine.close().await.unwrap();
}

/// Waits until some job has both a task that is done and one that runs.
pub async fn half_done(cluster: &Cluster) {
    eventually("a job is half done", async || {
        let tasks = cluster.tasks().await;
        let done = tasks.iter().filter(|task| task.is_done());
        done.map(|task| &task.job).any(|job| {
            tasks
                .iter()
                .any(|task| task.job == *job && task.is_running())
        })
    })
    .await;
}

/// The attempts at each task that left SSTs behind.
pub fn attempts(root: &Path, table: &Table) -> BTreeMap<TaskId, Vec<Token>> {
    let mut attempts: BTreeMap<TaskId, Vec<Token>> = BTreeMap::new();
    for file in sst_files(root, table) {
        let name = file.file_stem().unwrap().to_string_lossy().into_owned();
        if let Ok(SstId::Compacted { task, token, .. }) = name.parse() {
            let tokens = attempts.entry(task).or_default();
            if !tokens.contains(&token) {
                tokens.push(token);
            }
        }
    }
    attempts
}

/// The table is what the first `acknowledged` batches make it, or those and the one after: it was on its
/// way, and is there wholly or not at all.
pub async fn check_acknowledged(table: &Table, flights_written: usize, acknowledged: usize) {
    let replay = flights(flights_written).replay(BATCH_ROWS).unwrap();
    let batches: Vec<_> = replay
        .map(|batch| batch.unwrap())
        .take(acknowledged + 1)
        .collect();
    let scanned = scan(table, ScanRequest::all()).await;
    let wanted = last_of_each_key(&table.schema(), &batches[..acknowledged]);
    if scanned != wanted {
        assert_same(&last_of_each_key(&table.schema(), &batches), &scanned);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_killed_while_writing_has_every_acknowledged_row() {
    let dir = tempdir().unwrap();
    let mut process = EngineProcess::start(Load::Steady, dir.path(), None, FLIGHTS);
    process.acknowledges(137).await;
    let acknowledged = process.kill().await;
    assert!(
        acknowledged < FLIGHTS * 3 / BATCH_ROWS,
        "it was done already"
    );

    let engine = Engine::open(Load::Steady.config(dir.path(), None))
        .await
        .unwrap();
    let table = engine.table("flights").unwrap();
    check_acknowledged(&table, FLIGHTS, acknowledged).await;
    table.compact().await.unwrap();
    check_acknowledged(&table, FLIGHTS, acknowledged).await;
    engine.close().await.unwrap();
}

/// How often the engine is killed in a row; more for a long run.
const KILLS: &str = "SILTSTONE_TEST_KILLS";

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_killed_again_and_again_has_every_acknowledged_row_whatever_its_wal() {
    let kills = std::env::var(KILLS).map_or(4, |kills| kills.parse().unwrap());
    for load in [Load::Steady, Load::SteadyObjectWal] {
        let dir = tempdir().unwrap();
        let mut acknowledged = 0;
        for kill in 0..kills {
            let mut process = EngineProcess::resume(load, dir.path(), None, FLIGHTS, acknowledged);
            // Now before the first flush, now after some.
            let more = [3, 40, 11, 70][kill % 4];
            process.acknowledges(acknowledged + more).await;
            let before = acknowledged;
            acknowledged = process.kill().await;
            assert!(acknowledged < FLIGHTS * 3 / BATCH_ROWS, "all was written");
            assert!(acknowledged >= before + more);
            // Every other time the next process finds what the kill left, not what this one makes of it.
            if kill % 2 == 0 {
                continue;
            }
            let mut config = load.config(dir.path(), None);
            config.gc.grace = Millis(0);
            let engine = Engine::open(config).await.unwrap();
            let table = engine.table("flights").unwrap();
            check_acknowledged(&table, FLIGHTS, acknowledged).await;
            check_nothing_is_left_behind(&engine, &table, dir.path()).await;
            engine.close().await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_killed_while_writing_and_compacting_remotely_has_every_acknowledged_row() {
    let cluster = Cluster::start(2).await;
    let root = cluster.root();
    let mut process = EngineProcess::start(Load::Steady, &root, Some(cluster.meta()), FLIGHTS);
    process.acknowledges(20).await;
    eventually("a task runs", async || {
        cluster.tasks().await.iter().any(TaskSeen::is_running)
    })
    .await;
    let acknowledged = process.kill().await;

    let config = Load::Steady.config(&root, Some(cluster.meta()));
    let engine = Engine::open(config).await.unwrap();
    let table = engine.table("flights").unwrap();
    check_acknowledged(&table, FLIGHTS, acknowledged).await;
    table.compact().await.unwrap();
    check_acknowledged(&table, FLIGHTS, acknowledged).await;
    let compaction = engine.stats().compaction;
    assert!(
        compaction.fallbacks.is_empty() && compaction.jobs_failed.is_empty(),
        "{compaction:#?}"
    );
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_killed_in_a_remote_job_uses_every_finished_task() {
    let cluster = Cluster::start(2).await;
    let root = cluster.root();
    let mut process = EngineProcess::start(Load::OneBigJob, &root, Some(cluster.meta()), FLIGHTS);
    let batches = (FLIGHTS * 3).div_ceil(BATCH_ROWS);
    process.acknowledges(batches).await;
    half_done(&cluster).await;
    assert_eq!(process.kill().await, batches);

    let config = Load::OneBigJob.config(&root, Some(cluster.meta()));
    let engine = Engine::open(config).await.unwrap();
    let table = engine.table("flights").unwrap();
    assert_eq!(
        engine.stats().compaction.jobs_resumed,
        1,
        "{:#?}",
        engine.stats()
    );
    let waited = timeout(2 * PATIENCE, engine.wait_compacted()).await;
    waited.expect("the resumed job does not end").unwrap();
    check_flights(&table).await;
    let compaction = engine.stats().compaction;
    assert_eq!(compaction.jobs_committed, 1, "{compaction:#?}");
    assert!(compaction.tasks_reused > 0, "{compaction:#?}");
    assert!(
        compaction.fallbacks.is_empty() && compaction.jobs_failed.is_empty(),
        "{compaction:#?}"
    );
    for (task, tokens) in attempts(&root, &table) {
        assert_eq!(tokens.len(), 1, "task {task} was run again: {tokens:?}");
    }
    engine.close().await.unwrap();
}
