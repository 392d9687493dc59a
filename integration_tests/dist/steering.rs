//! An operator at work while an engine compacts: draining, pausing, cancelling, and asking why.

use std::{
    process::{Command, Stdio},
    time::Duration,
};

use serde_json::Value;
use siltstone::{
    Engine, Table,
    engine::{CompactionReport, ScanRequest},
    error::{ErrorKind, Result},
};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    task::JoinHandle,
    time::timeout,
};

use crate::{
    cluster::{Cluster, PATIENCE},
    support::{assert_same, flights, flights::Flights, scan},
};

const SILTSTONE: &str = env!("CARGO_BIN_EXE_siltstone");

/// The tool, asked about the meta service of `cluster`: what it printed, when it succeeded.
pub async fn ask(cluster: &Cluster, arguments: &[&str]) -> std::result::Result<String, String> {
    let arguments = [arguments, &["--meta", cluster.meta()]].concat();
    let mut command = Command::new(SILTSTONE);
    command.args(&arguments);
    let output = tokio::task::spawn_blocking(move || command.output());
    let output = output.await.unwrap().unwrap();
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout).unwrap()),
        false => Err(String::from_utf8(output.stderr).unwrap()),
    }
}

pub async fn ask_json(cluster: &Cluster, arguments: &[&str]) -> Value {
    let said = ask(cluster, &[arguments, &["--json"]].concat()).await;
    serde_json::from_str(&said.unwrap()).unwrap()
}

/// Asks until `holds` of the answer.
pub async fn until(cluster: &Cluster, arguments: &[&str], holds: impl Fn(&Value) -> bool) -> Value {
    let asked = async {
        loop {
            let answer = ask_json(cluster, arguments).await;
            if holds(&answer) {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let answer = timeout(PATIENCE, asked).await;
    answer.unwrap_or_else(|_| panic!("{arguments:?} never answered as wanted"))
}

/// An engine with a table of flights in several runs, which has not been compacted.
async fn engine(cluster: &Cluster) -> (Engine, Table, Flights) {
    let engine = Engine::open(cluster.engine_config()).await.unwrap();
    let flights = flights(3_000);
    let schema = flights.table_schema().unwrap();
    let table = engine.create_table("flights", schema).await.unwrap();
    for batch in flights.replay(3_000).unwrap() {
        table.write(batch.unwrap()).await.unwrap();
        table.flush().await.unwrap();
    }
    (engine, table, flights)
}

fn compacting(table: &Table) -> JoinHandle<Result<CompactionReport>> {
    let table = table.clone();
    tokio::spawn(async move { table.compact().await })
}

#[tokio::test(flavor = "multi_thread")]
async fn paused_owner_waits_is_explained_and_goes_on() {
    let cluster = Cluster::start(1).await;
    let (engine, table, flights) = engine(&cluster).await;
    table.compact().await.unwrap();
    // Its name is that of the engine.
    let owner = "siltstone";
    ask(&cluster, &["pause", "--owner", owner]).await.unwrap();
    ask(&cluster, &["weight", owner, "3"]).await.unwrap();
    for batch in flights.replay(3_000).unwrap() {
        table.write(batch.unwrap()).await.unwrap();
        table.flush().await.unwrap();
    }
    let compacting = compacting(&table);
    let is_queued = |owners: &Value| {
        let mut owners = owners.as_array().unwrap().iter();
        owners.any(|owner| owner["queued"].as_u64() > Some(0))
    };
    let owners = until(&cluster, &["owners"], is_queued).await;
    let known = &owners[0];
    assert_eq!(known["owner"], owner);
    assert_eq!(
        (&known["paused"], &known["weight"]),
        (&true.into(), &3.into())
    );
    let jobs = ask_json(&cluster, &["jobs"]).await;
    let job = jobs[0]["job"].as_str().unwrap().to_owned();
    let task = format!("{job}-0");
    let why = ask(&cluster, &["explain", "--task", &task]).await.unwrap();
    assert!(why.contains("queued") && why.contains("is paused"), "{why}");
    // Neither does a restart of the meta service end a pause.
    let mut cluster = cluster;
    cluster.kill_meta().await;
    cluster.restart_meta().await;
    let owners = until(&cluster, &["owners"], is_queued).await;
    assert_eq!(owners[0]["paused"], true);
    assert!(!compacting.is_finished());
    ask(&cluster, &["resume", "--owner", owner]).await.unwrap();
    let report = timeout(PATIENCE, compacting).await.unwrap().unwrap();
    assert!(report.unwrap().jobs > 0);
    let all = scan(&table, ScanRequest::all()).await;
    assert_same(&flights.landed().unwrap(), &all);
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelled_job_ends_and_leaves_the_table_as_it_was() {
    // Nobody is there to run it.
    let cluster = Cluster::start(0).await;
    let (engine, table, flights) = engine(&cluster).await;
    let compacting = compacting(&table);
    let jobs = until(&cluster, &["jobs"], |jobs| jobs[0]["job"].is_string()).await;
    let (job, id) = (&jobs[0]["job"], jobs[0]["table"].as_str().unwrap());
    assert_eq!(id, table.stats().id.to_string());
    let task = format!("{}-0", job.as_str().unwrap());
    let why = ask(&cluster, &["explain", "--task", &task]).await.unwrap();
    assert!(why.contains("there are no nodes that take tasks"), "{why}");
    ask(&cluster, &["cancel", "--table", id]).await.unwrap();
    let ended = timeout(PATIENCE, compacting).await.unwrap().unwrap();
    let error = ended.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict);
    let said = error.to_string();
    assert!(said.contains("an operator cancelled table"), "{said}");
    let all = scan(&table, ScanRequest::all()).await;
    assert_same(&flights.landed().unwrap(), &all);
    let error = ask(&cluster, &["cancel", "--owner", "nobody"]).await;
    assert!(
        error
            .unwrap_err()
            .contains("owner nobody has no such tasks")
    );
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_node_and_meta_are_replaced_under_load() {
    let mut cluster = Cluster::start(2).await;
    let (engine, table, flights) = engine(&cluster).await;
    for round in 0..2 {
        for (old, new) in [("node-1", "node-3"), ("node-2", "node-4")] {
            let (old, new) = if round == 0 { (old, new) } else { (new, old) };
            let load = {
                let (table, flights) = (table.clone(), flights.clone());
                tokio::spawn(async move {
                    for batch in flights.replay(1_500).unwrap() {
                        table.write(batch.unwrap()).await.unwrap();
                        table.flush().await.unwrap();
                    }
                })
            };
            cluster.start_node(new).await;
            // A meta service that was just restarted has yet to hear of it.
            let is_known = |nodes: &Value| {
                let mut nodes = nodes.as_array().unwrap().iter();
                nodes.any(|node| node["node"] == old)
            };
            until(&cluster, &["nodes"], is_known).await;
            ask(&cluster, &["drain", old]).await.unwrap();
            let ended = cluster.node_end(old).await;
            assert!(ended.success(), "{old} ended with {ended}");
            cluster.kill_meta().await;
            cluster.restart_meta().await;
            load.await.unwrap();
        }
    }
    table.compact().await.unwrap();
    let all = scan(&table, ScanRequest::all()).await;
    assert_same(&flights.landed().unwrap(), &all);
    let compaction = engine.stats().compaction;
    assert!(compaction.jobs_failed.is_empty(), "{compaction:#?}");
    assert!(compaction.fallbacks.is_empty(), "{compaction:#?}");
    assert!(
        compaction
            .nodes
            .keys()
            .all(|node| node.0.starts_with("node-"))
    );
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_are_watched_as_they_come() {
    let mut cluster = Cluster::start(0).await;
    let mut watching = tokio::process::Command::new(SILTSTONE)
        .args(["nodes", "--watch", "--json", "--meta", cluster.meta()])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    let mut next = async || {
        let line = timeout(PATIENCE, lines.next_line()).await;
        let line = line.expect("a line in time").unwrap().unwrap();
        serde_json::from_str::<Value>(&line).unwrap()
    };
    assert_eq!(next().await, Value::Array(vec![]));
    cluster.start_node("node-1").await;
    while next().await[0]["node"] != "node-1" {}
    watching.kill().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_is_explained_from_outside() {
    let cluster = Cluster::start(0).await;
    let (engine, table, _) = engine(&cluster).await;
    let compacting = compacting(&table);
    until(&cluster, &["jobs"], |jobs| jobs[0]["job"].is_string()).await;
    let root = cluster.root();
    let root = root.to_str().unwrap();
    let said = ask(&cluster, &["explain", root, "flights"]).await.unwrap();
    for word in [
        "window [",
        "level 0 has",
        "that a job has",
        "tasks done",
        "there are no nodes",
    ] {
        assert!(said.contains(word), "{word:?} is missing from: {said}");
    }
    let json = ask_json(&cluster, &["explain", root, "flights"]).await;
    assert_eq!(json["jobs"].as_array().unwrap().len(), 1, "{json}");
    let error = ask(&cluster, &["explain", root, "nothing"]).await;
    assert!(error.unwrap_err().contains("has no table \"nothing\""));
    compacting.abort();
    engine.close().await.unwrap();
}
