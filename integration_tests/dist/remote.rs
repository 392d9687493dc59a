//! Compaction on nodes gives what compaction in the engine's process gives, and really runs there.

use std::{collections::BTreeMap, net::TcpListener};

use siltstone::{
    config::{Bytes, CompactionMode, Fallback, Millis},
    engine::{CompactionStats, Engine, ScanRequest, Table},
    types::NodeId,
};
use tempfile::tempdir;

use crate::{
    cluster::{Cluster, start_node},
    engine_process::Load,
    support::{
        WEATHER_KEY, assert_same, flights,
        flights::{Answers, sorted_by},
        scan, sst_files, weather, weather_schema,
    },
};

/// Fails unless every task ran on one of `nodes` nodes, and each of them had some.
#[track_caller]
pub fn assert_remote(compaction: &CompactionStats, nodes: usize) {
    assert_eq!(compaction.mode, "remote");
    assert!(
        compaction.fallbacks.is_empty(),
        "fell back: {compaction:#?}"
    );
    assert!(compaction.jobs_failed.is_empty(), "failed: {compaction:#?}");
    let ids = (1..=nodes).map(|number| NodeId(format!("node-{number}")));
    let ids: Vec<NodeId> = ids.collect();
    assert_eq!(
        compaction.nodes.keys().cloned().collect::<Vec<_>>(),
        ids,
        "{compaction:#?}"
    );
    for (node, did) in &compaction.nodes {
        let worked =
            did.tasks > 0 && did.rows_read > 0 && did.bytes_read > 0 && did.bytes_written > 0;
        assert!(worked, "{node} was idle: {compaction:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_compact_a_year_of_flights() {
    let cluster = Cluster::start(2).await;
    let mut config = cluster.engine_config();
    config.memory.memtable_bytes = Bytes::mib(8);
    config.compaction.task_bytes_target = Bytes(512 << 10);
    let engine = Engine::open(config).await.unwrap();
    let flights = flights(usize::MAX);
    let table = engine
        .create_table("flights", flights.table_schema().unwrap())
        .await
        .unwrap();
    for batch in flights.replay(10_000).unwrap() {
        table.write(batch.unwrap()).await.unwrap();
    }
    table.compact().await.unwrap();
    let all = scan(&table, ScanRequest::all()).await;
    assert_same(&flights.landed().unwrap(), &all);
    let mut answers = Answers::of(&all).unwrap();
    let published = Answers::published();
    answers
        .carriers
        .retain(|name, _| published.carriers.contains_key(name));
    assert_eq!(answers, published);
    assert_eq!(table.stats().sst_rows, 336_776);
    assert_remote(&engine.stats().compaction, 2);
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_compact_the_weather() {
    let cluster = Cluster::start(2).await;
    let mut config = cluster.engine_config();
    config.memory.memtable_bytes = Bytes(256 << 10);
    config.compaction.task_bytes_target = Bytes(16 << 10);
    let engine = Engine::open(config).await.unwrap();
    let weather = weather();
    let table = engine
        .create_table("weather", weather_schema())
        .await
        .unwrap();
    for start in (0..weather.num_rows()).step_by(500) {
        let rows = (weather.num_rows() - start).min(500);
        table.write(weather.slice(start, rows)).await.unwrap();
    }
    table.compact().await.unwrap();
    let wanted = sorted_by(&weather, &WEATHER_KEY).unwrap();
    assert_same(&wanted, &scan(&table, ScanRequest::all()).await);
    assert_remote(&engine.stats().compaction, 2);
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_engine_changes_who_compacts() {
    let cluster = Cluster::start(1).await;
    let remote = cluster.engine_config();
    let mut local = remote.clone();
    local.compaction.mode = CompactionMode::Local;
    let engine = Engine::open(local).await.unwrap();
    let flights = flights(5_000);
    let table = engine
        .create_table("flights", flights.table_schema().unwrap())
        .await
        .unwrap();
    let nodes = async || {
        for batch in flights.replay(5_000).unwrap() {
            table.write(batch.unwrap()).await.unwrap();
            table.flush().await.unwrap();
        }
        table.compact().await.unwrap();
        let nodes = engine.stats().compaction.nodes;
        nodes
            .into_iter()
            .map(|(node, did)| (node.0, did.tasks))
            .collect::<BTreeMap<_, _>>()
    };
    let first = nodes().await;
    assert_eq!(first.keys().collect::<Vec<_>>(), ["local"]);
    engine.set_compaction(&remote.compaction).await.unwrap();
    let second = nodes().await;
    assert_eq!(second["local"], first["local"], "it still compacts here");
    assert!(second["node-1"] > 0, "{second:?}");
    assert_same(
        &flights.landed().unwrap(),
        &scan(&table, ScanRequest::all()).await,
    );
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_can_serve_its_own_meta() {
    let dir = tempdir().unwrap();
    let root = dir.path().join("root");
    std::fs::create_dir(&root).unwrap();
    let mut config = Load::Steady.config(&root, Some("replaced"));
    config.compaction.remote.meta.clear();
    let (engine, meta) = loop {
        // Port 0 would do for the engine, but then nobody could tell the node which one it took.
        let free = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap();
        config.compaction.remote.serve = Some(free.to_string());
        match Engine::open(config.clone()).await {
            Ok(engine) => break (engine, format!("http://{free}")),
            Err(error) => assert!(error.to_string().contains("cannot listen"), "{error}"),
        }
    };
    let _node = start_node(dir.path(), &meta, "node-1").await;
    let flights = flights(5_000);
    let table = engine
        .create_table("flights", flights.table_schema().unwrap())
        .await
        .unwrap();
    for batch in flights.replay(1_000).unwrap() {
        table.write(batch.unwrap()).await.unwrap();
        // Several runs: one alone would only be moved.
        table.flush().await.unwrap();
    }
    table.compact().await.unwrap();
    assert_same(
        &flights.landed().unwrap(),
        &scan(&table, ScanRequest::all()).await,
    );
    assert_remote(&engine.stats().compaction, 1);
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_compacts_a_clone_whose_ssts_are_in_the_folder_of_its_source() {
    let cluster = Cluster::start(1).await;
    let mut config = cluster.engine_config();
    config.compaction.remote.fallback = Fallback::Wait;
    // Nothing is compacted but what is asked for.
    config.compaction.l0_runs_trigger = 100;
    config.compaction.l0_runs_slowdown = 150;
    config.compaction.l0_runs_stop = 200;
    let engine = Engine::open(config).await.unwrap();
    let flights = flights(5_000);
    let schema = flights.table_schema().unwrap();
    let source = engine.create_table("flights", schema).await.unwrap();
    for batch in flights.replay(5_000).unwrap() {
        source.write(batch.unwrap()).await.unwrap();
        source.flush().await.unwrap();
    }
    let landed = flights.landed().unwrap();
    let clone = engine.clone_table("flights", "clone").await.unwrap();
    let shared = clone.stats();
    assert!(shared.ssts > 2, "{shared:?}");
    assert_eq!(shared.sst_bytes_shared, shared.sst_bytes);
    // It goes its own way.
    let changed = landed.slice(0, 100);
    let keys = changed.project(clone.schema().key()).unwrap();
    clone.delete(keys).await.unwrap();
    let files = |table: &Table| {
        let files = sst_files(&cluster.root(), table).into_iter();
        files
            .map(|file| (std::fs::read(&file).unwrap(), file))
            .collect::<Vec<_>>()
    };
    let (before, of_source) = (source.stats(), files(&source));
    assert!(files(&clone).is_empty());

    clone.compact().await.unwrap();
    let compaction = engine.stats().compaction;
    assert_remote(&compaction, 1);
    let did = compaction.nodes[&NodeId("node-1".into())];
    assert!(did.rows_read >= shared.sst_rows, "{did:?} of {shared:?}");
    let rest = landed.slice(100, landed.num_rows() - 100);
    assert_same(&rest, &scan(&clone, ScanRequest::all()).await);
    let stats = clone.stats();
    assert_eq!(
        (stats.sst_bytes_shared, stats.sst_rows),
        (0, rest.num_rows() as u64)
    );
    assert!(!files(&clone).is_empty());
    // The source is as it was, and its files are the same.
    let after = source.stats();
    assert_eq!((after.ssts, &after.shape), (before.ssts, &before.shape));
    assert!(files(&source) == of_source);
    assert_same(&landed, &scan(&source, ScanRequest::all()).await);
    engine.close().await.unwrap();
}

#[path = "../../examples/remote.rs"]
mod example;

#[test]
fn the_example_of_a_cluster_in_one_process_runs() {
    example::main().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_nodes_the_engine_does_it_and_with_them_they_do() {
    let mut cluster = Cluster::start(0).await;
    let mut config = cluster.engine_config();
    config.compaction.remote.fallback = Fallback::Local;
    config.compaction.remote.fallback_after = Millis(300);
    let engine = Engine::open(config).await.unwrap();
    let flights = flights(3_000);
    let schema = flights.table_schema().unwrap();
    let table = engine.create_table("flights", schema).await.unwrap();
    let compact = async || {
        for batch in flights.replay(3_000).unwrap() {
            table.write(batch.unwrap()).await.unwrap();
            table.flush().await.unwrap();
        }
        table.compact().await.unwrap();
        let landed = flights.landed().unwrap();
        assert_same(&landed, &scan(&table, ScanRequest::all()).await);
        engine.stats().compaction
    };
    let alone = compact().await;
    assert_eq!(alone.fallbacks.keys().collect::<Vec<_>>(), ["no nodes"]);
    assert_eq!(alone.fallbacks["no nodes"], alone.jobs_committed);
    let who: Vec<&str> = alone.nodes.keys().map(|node| node.0.as_str()).collect();
    assert_eq!(who, ["local"]);
    cluster.start_node("node-1").await;
    let together = compact().await;
    assert_eq!(
        together.fallbacks, alone.fallbacks,
        "work goes back to the fleet"
    );
    assert!(together.nodes[&NodeId::from("node-1")].tasks > 0);
    assert_eq!(
        together.nodes[&NodeId::from("local")],
        alone.nodes[&NodeId::from("local")]
    );
    engine.close().await.unwrap();
}
