//! What services tell over HTTP: metrics, and whether they are alive and of use.

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::TcpStream,
    process::Stdio,
    time::Duration,
};

use siltstone::{Engine, config::CompactionMode, config::EngineConfig};
use tempfile::tempdir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    time::timeout,
};

use crate::{
    cluster::PATIENCE,
    support::{flights, url_of},
};

/// A service, and what it said: the address of its HTTP surface, and its other line.
pub struct Service {
    _child: Child,
    http: String,
    said: String,
}

impl Service {
    pub async fn start(program: &str, arguments: &[&str], lines: usize) -> Self {
        let mut command = Command::new(program);
        command.args(arguments).args(["--http", "127.0.0.1:0"]);
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.kill_on_drop(true).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        let (mut http, mut said) = (None, String::new());
        for _ in 0..lines {
            let line = timeout(PATIENCE, output.next_line()).await.unwrap();
            let line = line.unwrap().expect("a line");
            match line.strip_prefix("metrics on http://") {
                Some(address) => {
                    http = Some(address.trim_end_matches("/metrics").to_owned());
                }
                None => said = line,
            }
        }
        tokio::spawn(async move { while let Ok(Some(_)) = output.next_line().await {} });
        Self {
            _child: child,
            http: http.expect("an address"),
            said,
        }
    }

    /// Status and body of a page.
    async fn get(&self, path: &str) -> (u16, String) {
        let (http, path) = (self.http.clone(), path.to_owned());
        let got = tokio::task::spawn_blocking(move || {
            let mut stream = TcpStream::connect(&http).unwrap();
            let request =
                format!("GET {path} HTTP/1.1\r\nHost: {http}\r\nConnection: close\r\n\r\n");
            stream.write_all(request.as_bytes()).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            answer
        });
        let answer = got.await.unwrap();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        let body = answer.split_once("\r\n\r\n").unwrap().1;
        (status, body.to_owned())
    }

    /// Every metric with its labels, and its value.
    pub async fn metrics(&self) -> BTreeMap<String, f64> {
        let (status, body) = self.get("/metrics").await;
        assert_eq!(status, 200, "{body}");
        let values = body.lines().filter(|line| !line.starts_with('#'));
        let values = values.filter_map(|line| line.rsplit_once(' '));
        values
            .map(|(name, value)| (name.to_owned(), value.parse().unwrap()))
            .collect()
    }

    pub async fn is_ready(&self, wanted: u16) -> String {
        let ready = async {
            loop {
                let (status, body) = self.get("/readyz").await;
                if status == wanted {
                    return body;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        timeout(PATIENCE, ready).await.expect("it gets ready")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn services_tell_what_they_did_and_whether_they_are_of_use() {
    let dir = tempdir().unwrap();
    let meta = env!("CARGO_BIN_EXE_compaction-meta");
    let log = url_of(&dir.path().join("plan"));
    std::fs::create_dir(dir.path().join("plan")).unwrap();
    let arguments = ["--listen", "127.0.0.1:0", "--plan-log", &log];
    let meta = Service::start(meta, &arguments, 2).await;
    let address = meta.said.rsplit(' ').next().unwrap().to_owned();
    assert_eq!(meta.get("/healthz").await, (200, "ok\n".into()));
    assert_eq!(meta.is_ready(200).await, "ready\n");
    let program = env!("CARGO_BIN_EXE_compaction-node");
    let arguments = ["--meta", &address, "--id", "n1", "--slots", "1"];
    let node = Service::start(program, &arguments, 2).await;
    node.is_ready(200).await;

    let root = dir.path().join("root");
    std::fs::create_dir(&root).unwrap();
    let mut config = EngineConfig::new(url_of(&root));
    config.compaction.mode = CompactionMode::Remote;
    config.compaction.remote.meta = vec![address];
    let engine = Engine::open(config).await.unwrap();
    let flights = flights(3_000);
    let schema = flights.table_schema().unwrap();
    let table = engine.create_table("flights", schema).await.unwrap();
    for batch in flights.replay(3_000).unwrap() {
        table.write(batch.unwrap()).await.unwrap();
        table.flush().await.unwrap();
    }
    table.compact().await.unwrap();
    let compaction = engine.stats().compaction;
    let tasks: u64 = compaction.nodes.values().map(|node| node.tasks).sum();
    engine.close().await.unwrap();

    let told = meta.metrics().await;
    let completed = told["siltstone_meta_tasks_completed_total{service=\"meta\"}"];
    assert_eq!(completed, tasks as f64, "{told:#?}");
    assert_eq!(
        told["siltstone_meta_nodes{service=\"meta\",state=\"active\"}"],
        1.0
    );
    let done = node.metrics().await;
    let ended = done["siltstone_node_tasks_ended_total{node=\"n1\",outcome=\"done\"}"];
    assert_eq!(ended, tasks as f64, "{done:#?}");
    assert!(done["siltstone_node_rows_merged_total{node=\"n1\"}"] > 0.0);
    let of_node = "{node=\"n1\"}";
    for (counter, of_engine) in [
        ("read_bytes", compaction.bytes_read()),
        ("written_bytes", compaction.bytes_written()),
    ] {
        let counted = done[&format!("siltstone_node_{counter}_total{of_node}")];
        assert_eq!(counted, of_engine as f64, "{counter}");
    }
    let footers = done["siltstone_node_footers_total{node=\"n1\",outcome=\"miss\"}"];
    assert!(footers > 0.0, "{footers}");
    // Each with what it means.
    let (_, page) = meta.get("/metrics").await;
    for name in told.keys() {
        let name = name.split('{').next().unwrap();
        assert!(page.contains(&format!("# HELP {name} ")), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_no_meta_answers_is_alive_and_of_no_use() {
    let program = env!("CARGO_BIN_EXE_compaction-node");
    let arguments = ["--meta", "http://127.0.0.1:1", "--id", "n1"];
    let node = Service::start(program, &arguments, 1).await;
    assert_eq!(node.get("/healthz").await.0, 200);
    let why = node.is_ready(503).await;
    assert_eq!(why, "no meta service has answered yet\n");
    let told = async {
        let failed = "siltstone_node_polls_failed_total{node=\"n1\"}";
        while node.metrics().await[failed] < 1.0 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    timeout(PATIENCE, told)
        .await
        .expect("failed polls are counted");
}
