//! An operator sees what an engine has in quarantine, and has it tried again, through the meta service.

use std::time::{Duration, Instant};

use serde_json::Value;
use siltstone::{
    config::{CompactionMode, EngineConfig},
    engine::{Engine, Table},
};

use crate::{
    cluster::Cluster,
    steering::{ask, ask_json, until},
    support::{eventually, quiet_config, readings, small_engine, sst_files, url_of},
};

/// Four runs of one window are merged: the fourth makes the plan.
const RUNS: i64 = 4;

fn config(cluster: &Cluster) -> EngineConfig {
    let mut config = quiet_config(&cluster.engine_config().root);
    config.name = "orders".to_owned();
    config.compaction = cluster.engine_config().compaction;
    config.compaction.mode = CompactionMode::Remote;
    config.compaction.l0_runs_trigger = RUNS as usize;
    config
}

/// An engine with a table whose first SST is torn, and of which a job is due; the SST's file, and what was in it.
async fn damaged(cluster: &Cluster) -> (Engine, Table, std::path::PathBuf, Vec<u8>) {
    let (engine, table) = small_engine(config(cluster)).await;
    let (mut torn, mut whole) = (None, Vec::new());
    for run in 0..RUNS {
        let rows = [(1, None, Some(run)), (2 + run, None, Some(run))];
        table.write(readings(&rows)).await.unwrap();
        table.flush().await.unwrap();
        if run == 0 {
            let file = sst_files(&cluster.root(), &table).pop().unwrap();
            whole = std::fs::read(&file).unwrap();
            std::fs::write(&file, &whole[..whole.len() / 2]).unwrap();
            torn = Some(file);
        }
    }
    (engine, table, torn.unwrap(), whole)
}

fn holds_one(quarantine: &Value) -> bool {
    quarantine[0]["ssts"]
        .as_array()
        .is_some_and(|ssts| ssts.len() == 1)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repaired_sst_is_tried_again_when_an_operator_says_so() {
    let mut cluster = Cluster::start(1).await;
    let (engine, table, file, whole) = damaged(&cluster).await;
    let (name, id) = (
        file.file_stem().unwrap().to_str().unwrap(),
        table.stats().id.to_string(),
    );
    let listed = until(&cluster, &["quarantine"], holds_one).await;
    let held = &listed[0]["ssts"][0];
    assert_eq!(
        (&listed[0]["owner"], &listed[0]["left_out"]),
        (&"orders".into(), &0.into())
    );
    assert_eq!(
        (&held["table"], &held["table_id"]),
        (&"readings".into(), &id.as_str().into())
    );
    assert_eq!((&held["sst"], &held["failures"]), (&name.into(), &1.into()));
    assert!(held["reason"].as_str().unwrap().contains(name), "{held}");
    let left_ms = held["retry_in_ms"].as_u64().unwrap();
    let by_itself = Instant::now() + Duration::from_millis(left_ms);
    assert!(
        left_ms > 30_000,
        "too little time for what follows: {left_ms} ms"
    );
    let said = ask(&cluster, &["quarantine"]).await.unwrap();
    assert!(said.contains("orders") && said.contains(name), "{said}");
    let owners = ask_json(&cluster, &["owners"]).await;
    let known = &owners[0]["engines"][0];
    assert_eq!(
        (&owners[0]["owner"], &known["attends"]),
        (&"orders".into(), &true.into())
    );
    assert_eq!(known["version"], env!("CARGO_PKG_VERSION"));

    // A meta service that is started again hears of it by itself.
    cluster.kill_meta().await;
    cluster.restart_meta().await;
    until(&cluster, &["quarantine"], holds_one).await;

    let retry = ["retry", "--quarantine", "--owner"];
    let other = "01M8MHKN0PQ0K1QNDJED1BP34C";
    for (arguments, what) in [
        (&["nobody"][..], "no engine of owner nobody attends"),
        (
            &["orders", "--table", other],
            "nothing of table 01M8MHKN0PQ0K1QNDJED1BP34C",
        ),
    ] {
        let error = ask(&cluster, &[&retry, arguments].concat())
            .await
            .unwrap_err();
        assert!(error.contains(what), "{error}");
    }
    assert_eq!(engine.stats().compaction.jobs_committed, 0);
    std::fs::write(&file, whole).unwrap();
    ask(
        &cluster,
        &[&retry[..], &["orders", "--table", &id]].concat(),
    )
    .await
    .unwrap();
    eventually("the repaired SST is merged", async || {
        engine.stats().compaction.jobs_committed == 1
    })
    .await;
    assert!(Instant::now() < by_itself, "it was due by itself");
    assert_eq!(table.stats().ssts, 1);
    until(&cluster, &["quarantine"], |listed| {
        listed == &Value::Array(vec![])
    })
    .await;
    let error = ask(&cluster, &[&retry[..], &["orders"]].concat())
        .await
        .unwrap_err();
    assert!(
        error.contains("owner orders has nothing in quarantine"),
        "{error}"
    );
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn two_databases_of_one_name_are_seen() {
    let cluster = Cluster::start(0).await;
    let first = Engine::open(config(&cluster)).await.unwrap();
    let is_alone = |owners: &Value| owners[0]["engines"][0]["has_namesakes"] == false;
    until(&cluster, &["owners"], is_alone).await;
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(&cluster);
    config.root = url_of(dir.path());
    config.compaction.mode = CompactionMode::Auto;
    let second = Engine::open(config).await.unwrap();
    let is_shared = |owners: &Value| owners[0]["engines"][1]["has_namesakes"] == true;
    until(&cluster, &["owners"], is_shared).await;
    let said = ask(&cluster, &["owners"]).await.unwrap();
    assert!(said.contains("2 engines use this name"), "{said}");
    first.close().await.unwrap();
    second.close().await.unwrap();
}
