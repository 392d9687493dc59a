//! Jobs that end before their time, and a fleet that is replaced while one runs.

use siltstone::{error::ErrorKind, manifest::inspect};
use std::collections::BTreeSet;
use tokio::time::timeout;

use crate::{
    cluster::{Cluster, PATIENCE},
    crashes::{
        attempts, check_flights, check_rows, compact, engine_with_a_big_job, finish, half_done,
    },
    leftovers::ssts_there,
    steering::ask,
    support::eventually,
};

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_table_takes_its_job_from_meta_and_the_nodes() {
    let cluster = Cluster::start(2).await;
    let (engine, table) = engine_with_a_big_job(&cluster).await;
    let compacting = compact(&table);
    half_done(&cluster).await;
    engine.drop_table("flights").await.unwrap();
    let ended = timeout(PATIENCE, compacting).await.unwrap().unwrap();
    assert!(ended.is_err());
    eventually("meta has forgotten the job", async || {
        cluster.tasks().await.is_empty()
    })
    .await;
    eventually("the nodes have stopped", async || {
        cluster.is_at_rest().await
    })
    .await;
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_job_stops_on_the_nodes_and_its_outputs_go() {
    let cluster = Cluster::start(2).await;
    let (engine, table) = engine_with_a_big_job(&cluster).await;
    let compacting = compact(&table);
    half_done(&cluster).await;
    let job = cluster.tasks().await[0].job.to_string();
    ask(&cluster, &["cancel", "--job", &job]).await.unwrap();
    let ended = timeout(PATIENCE, compacting).await.unwrap().unwrap();
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::Conflict);
    eventually("the nodes have stopped", async || {
        cluster.is_at_rest().await
    })
    .await;
    let version = inspect::version(engine.store(), table.stats().id).await;
    let version = version.unwrap().version.unwrap();
    let live: BTreeSet<String> = version.ssts().map(|sst| sst.id.to_string()).collect();
    eventually("only the inputs are left", async || {
        ssts_there(&cluster.root(), &table) == live
    })
    .await;
    check_rows(&table).await;
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_that_is_replaced_under_a_job_repeats_nothing() {
    let mut cluster = Cluster::start(2).await;
    let (engine, table) = engine_with_a_big_job(&cluster).await;
    let compacting = compact(&table);
    half_done(&cluster).await;
    for (old, new) in [("node-1", "node-3"), ("node-2", "node-4")] {
        cluster.start_node(new).await;
        // A meta service that was just restarted has yet to hear of it.
        eventually("the node is known", async || {
            cluster.node_states().await.contains_key(old)
        })
        .await;
        match old {
            "node-1" => cluster.terminate_node(old).await,
            _ => drop(ask(&cluster, &["drain", old]).await.unwrap()),
        }
        let ended = cluster.node_end(old).await;
        assert!(ended.success(), "{old} ended with {ended}");
        cluster.kill_meta().await;
        cluster.restart_meta().await;
    }
    finish(compacting).await;
    check_flights(&table).await;
    let attempts = attempts(&cluster.root(), &table);
    for (task, tokens) in &attempts {
        assert_eq!(tokens.len(), 1, "task {task} was run again: {tokens:?}");
    }
    let compaction = engine.stats().compaction;
    let tasks: u64 = compaction.nodes.values().map(|node| node.tasks).sum();
    assert_eq!(tasks, attempts.len() as u64, "{compaction:#?}");
    assert!(compaction.jobs_failed.is_empty(), "{compaction:#?}");
    assert!(compaction.fallbacks.is_empty(), "{compaction:#?}");
    engine.close().await.unwrap();
}
