//! Deletion by nodes: what nobody needs is deleted there, whatever happens to nodes, to the store and to the meta
//! service; and by the engine when there is nobody else.

use std::sync::Arc;

use siltstone::{
    clock::Env,
    config::{EngineConfig, Millis, NodeConfig},
    engine::{Engine, Table},
    gc::GcStats,
    node::{Node, NodeView},
    rpc::NodesClient,
    store::{
        Store,
        faulty::{Effect, Fault, Faults, Operation},
        layout,
    },
    types::{JobId, SstId, TaskId},
};
use tokio::task::JoinHandle;

use crate::{
    cluster::Cluster,
    inspect::siltstone,
    leftovers::check_nothing_is_left_behind,
    looks::Service,
    support::{eventually, flights, one_second_windows, readings_schema},
};

/// An engine that compacts when it is asked to, and keeps nothing that nobody needs.
fn config(cluster: &Cluster) -> EngineConfig {
    let mut config = cluster.engine_config();
    config.gc.grace = Millis(0);
    config.compaction.l0_runs_trigger = 100;
    config.compaction.l0_runs_slowdown = 150;
    config.compaction.l0_runs_stop = 200;
    config
}

async fn open(config: EngineConfig) -> (Engine, Table) {
    let engine = Engine::open(config).await.unwrap();
    let schema = readings_schema(one_second_windows());
    let table = engine.create_table("readings", schema).await.unwrap();
    (engine, table)
}

/// Names of `objects` objects that look as if a flush long ago had been killed after its upload.
async fn leave_behind(table: &Table, engine: &Engine, objects: u128) -> Vec<String> {
    let name = |number| layout::sst(table.stats().id, SstId::flushed(1, number));
    let names: Vec<String> = (0..objects).map(name).collect();
    for name in &names {
        engine.store().put(name, "x".into()).await.unwrap();
    }
    names
}

async fn is_there(engine: &Engine, name: &str) -> bool {
    engine.store().size(name).await.unwrap().is_some()
}

fn deleted_by(stats: &GcStats) -> Vec<(&str, u64)> {
    let by = stats.deleted_by.iter();
    by.map(|(by, &objects)| (by.as_str(), objects)).collect()
}

fn left(stats: &GcStats) -> Vec<(&str, u64)> {
    let left = stats.left_to_engine.iter();
    left.map(|(reason, &objects)| (reason.as_str(), objects))
        .collect()
}

/// A node in this process, whose store has scripted faults.
struct FaultyNode {
    run: JoinHandle<siltstone::error::Result<()>>,
    faults: Arc<Faults>,
    view: NodeView,
}

impl FaultyNode {
    async fn start(cluster: &Cluster, root: &str) -> Self {
        let (store, faults) = Store::open(root).unwrap().with_faults();
        let link = NodesClient::new(&[cluster.meta().to_owned()]).unwrap();
        let config = NodeConfig {
            id: Some("faulty".into()),
            slots: 1,
            ..NodeConfig::default()
        };
        let node = Node::new(config, Arc::new(link), Env::default()).unwrap();
        let node = node.with_store(root, store);
        let (view, mut ready) = (node.view(), node.ready());
        let run = tokio::spawn(node.run(std::future::pending()));
        ready.wait_for(|ready| *ready).await.unwrap();
        Self { run, faults, view }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_delete_what_nobody_needs() {
    let cluster = Cluster::start(0).await;
    let program = env!("CARGO_BIN_EXE_compaction-node");
    let arguments = ["--meta", cluster.meta(), "--id", "n1", "--slots", "1"];
    let node = Service::start(program, &arguments, 2).await;
    node.is_ready(200).await;

    let engine = Engine::open(config(&cluster)).await.unwrap();
    let flights = flights(5_000);
    let schema = flights.table_schema().unwrap();
    let table = engine.create_table("flights", schema).await.unwrap();
    for batch in flights.replay(1_000).unwrap() {
        table.write(batch.unwrap()).await.unwrap();
        table.flush().await.unwrap();
    }
    table.compact().await.unwrap();
    let id = table.stats().id;
    leave_behind(&table, &engine, 1_100).await;
    // What an engine left that was killed before it had read how its deletions ended.
    let task = TaskId {
        job: JobId::from_parts(1, 1),
        index: 0,
    };
    let result = layout::result(id, task, 0);
    engine.store().put(&result, "x".into()).await.unwrap();
    check_nothing_is_left_behind(&engine, &table, &cluster.root()).await;
    eventually("what was replaced is gone", async || {
        table.stats().obsolete_ssts == 0
    })
    .await;
    let stats = engine.stats().gc;
    assert_eq!(stats.deleted["uncommitted"], 1_100, "{stats:?}");
    assert_eq!(stats.deleted["ended_job_result"], 1, "{stats:?}");
    assert!(stats.deleted["left_table"] > 1, "{stats:?}");

    engine.drop_table("flights").await.unwrap();
    let folder = layout::table(id);
    eventually("the dropped table is gone", async || {
        let is_counted = engine.stats().gc.deleted.contains_key("dropped_table");
        is_counted && engine.store().list(&folder).await.unwrap().is_empty()
    })
    .await;
    engine.close().await.unwrap();
    let stats = engine.stats().gc;
    assert!(stats.deleted["dropped_table"] > 1, "{stats:?}");
    assert_eq!(deleted_by(&stats), [("nodes", stats.objects_deleted())]);
    assert_eq!((left(&stats), stats.failures), (vec![], 0));
    let told = node.metrics().await;
    let deleted = told["siltstone_node_objects_deleted_total{node=\"n1\"}"];
    assert_eq!(deleted, stats.objects_deleted() as f64);
    assert_eq!(
        told["siltstone_node_delete_failures_total{node=\"n1\"}"],
        0.0
    );
    eventually("every job is released", async || {
        cluster.tasks().await.is_empty()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_whose_deletion_fails_is_tried_until_it_is_gone() {
    let cluster = Cluster::start(0).await;
    let (engine, table) = open(config(&cluster)).await;
    let node = FaultyNode::start(&cluster, engine.store().url()).await;
    let names = leave_behind(&table, &engine, 3).await;
    let fault = Fault::new(Operation::Delete, &names[1], Effect::Fail);
    node.faults.add(fault.times(2));
    for round in 0..2 {
        let swept = engine.collect_garbage().await.unwrap();
        assert_eq!(swept.failed.len(), 1, "{swept:?}");
        let failed = &swept.failed[0];
        assert!(
            failed.contains("node faulty") && failed.contains(&names[1]),
            "{failed}"
        );
        for (at, name) in names.iter().enumerate() {
            assert_eq!(is_there(&engine, name).await, at == 1, "round {round}");
        }
        let stats = engine.stats().gc;
        assert_eq!(stats.objects_failing, 1);
        assert_eq!(stats.failures, round + 1);
        assert_eq!(deleted_by(&stats), [("nodes", 2)]);
    }
    let swept = engine.collect_garbage().await.unwrap();
    assert_eq!(swept.failed, [""; 0]);
    assert!(!is_there(&engine, &names[1]).await);
    let stats = engine.stats().gc;
    assert_eq!((stats.objects_failing, stats.failures), (0, 2));
    assert_eq!(deleted_by(&stats), [("nodes", 3)]);
    assert_eq!(left(&stats), []);
    let did = node.view.stats();
    assert_eq!((did.objects_deleted, did.delete_failures), (3, 2));
    check_nothing_is_left_behind(&engine, &table, &cluster.root()).await;
    engine.close().await.unwrap();
    node.run.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_node_had_begun_another_ends() {
    let mut cluster = Cluster::start(0).await;
    let (engine, table) = open(config(&cluster)).await;
    let node = FaultyNode::start(&cluster, engine.store().url()).await;
    let names = leave_behind(&table, &engine, 150).await;
    let last = names.iter().max().unwrap();
    node.faults
        .add(Fault::new(Operation::Delete, last, Effect::Block));
    let sweep = {
        let engine = engine.clone();
        tokio::spawn(async move { engine.collect_garbage().await })
    };
    eventually("a deletion is under way", async || {
        node.faults.blocked() == 1
    })
    .await;
    assert!(is_there(&engine, last).await);
    let shown = siltstone(&["jobs", "--meta", cluster.meta()]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(
        shown.contains("cleanup") && shown.contains("delete 150 objects"),
        "{shown}"
    );
    cluster.start_node("node-1").await;
    // As if by `kill -9`: it says nothing more.
    node.run.abort();
    let swept = sweep.await.unwrap().unwrap();
    assert_eq!(swept.deleted["uncommitted"], 150);
    assert_eq!(swept.failed, [""; 0]);
    for name in &names {
        assert!(!is_there(&engine, name).await);
    }
    let stats = engine.stats().gc;
    assert_eq!(deleted_by(&stats), [("nodes", 150)]);
    assert_eq!(node.view.stats().objects_deleted, 0, "it ended nothing");
    check_nothing_is_left_behind(&engine, &table, &cluster.root()).await;
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_nodes_or_meta_the_engine_deletes_and_says_why() {
    let mut cluster = Cluster::start(0).await;
    let mut config = config(&cluster);
    config.compaction.remote.fallback_after = Millis(300);
    let local = {
        let mut local = config.compaction.clone();
        local.mode = siltstone::config::CompactionMode::Local;
        local
    };
    let (engine, table) = open(config).await;
    let sweep = async |objects: u128| {
        let names = leave_behind(&table, &engine, objects).await;
        let swept = engine.collect_garbage().await.unwrap();
        assert_eq!(swept.deleted["uncommitted"], objects as u64);
        for name in &names {
            assert!(!is_there(&engine, name).await);
        }
        engine.stats().gc
    };
    let stats = sweep(2).await;
    assert_eq!(left(&stats), [("no nodes", 2)]);
    cluster.kill_meta().await;
    let stats = sweep(3).await;
    assert_eq!(left(&stats), [("no nodes", 2), ("unavailable", 3)]);
    cluster.restart_meta().await;
    cluster.start_node("node-1").await;
    let stats = sweep(4).await;
    assert_eq!(left(&stats), [("no nodes", 2), ("unavailable", 3)]);
    assert_eq!(deleted_by(&stats), [("engine", 5), ("nodes", 4)]);
    // Where nobody else was meant to delete nothing is missed.
    engine.set_compaction(&local).await.unwrap();
    let stats = sweep(5).await;
    assert_eq!(left(&stats), [("no nodes", 2), ("unavailable", 3)]);
    assert_eq!(deleted_by(&stats), [("engine", 10), ("nodes", 4)]);
    engine.close().await.unwrap();
}
