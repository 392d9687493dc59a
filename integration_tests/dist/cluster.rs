//! Processes under test: started, awaited, killed, restarted; what they log is printed when a test fails.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use siltstone::{
    compaction::remote::TaskState,
    config::{Bytes, CompactionMode, ENV_PREFIX, EngineConfig},
    meta::NodeState,
    rpc::AdminClient,
    types::JobId,
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    time::timeout,
};

use crate::support::url_of;

const META: &str = env!("CARGO_BIN_EXE_compaction-meta");
const NODE: &str = env!("CARGO_BIN_EXE_compaction-node");

/// How long a process may take to get ready.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A meta service and its nodes. Dropping it kills them.
pub struct Cluster {
    dir: TempDir,
    meta: Child,
    address: String,
    nodes: BTreeMap<String, Child>,
}

impl Cluster {
    /// A meta service that keeps its plan log on disk, and `nodes` nodes with one slot each: `node-1`, …
    pub async fn start(nodes: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (meta, ready) = start_meta(dir.path(), "127.0.0.1:0").await;
        let address = ready.rsplit(' ').next().unwrap().to_owned();
        assert!(
            address.starts_with("http://127.0.0.1:"),
            "meta said {ready:?}"
        );
        let mut cluster = Self {
            dir,
            meta,
            address,
            nodes: BTreeMap::new(),
        };
        for number in 1..=nodes {
            cluster.start_node(&format!("node-{number}")).await;
        }
        cluster
    }

    /// Address of the meta service.
    pub fn meta(&self) -> &str {
        &self.address
    }

    /// A folder for an engine's root.
    pub fn root(&self) -> PathBuf {
        let root = self.dir.path().join("root");
        std::fs::create_dir_all(&root).unwrap();
        root
    }

    /// A configuration of an engine on [`Cluster::root`] that compacts on the nodes and nowhere else, in
    /// many small tasks.
    pub fn engine_config(&self) -> EngineConfig {
        let mut config = EngineConfig::new(url_of(&self.root()));
        config.memory.memtable_bytes = Bytes(1 << 20);
        config.compaction.mode = CompactionMode::Remote;
        config.compaction.task_bytes_target = Bytes(128 << 10);
        config.compaction.remote.meta = vec![self.address.clone()];
        config
    }

    /// Starts a node; returns once it has polled the meta service.
    pub async fn start_node(&mut self, id: &str) {
        let node = start_node(self.dir.path(), &self.address, id).await;
        self.nodes.insert(id.to_owned(), node);
    }

    /// `kill -9` of a node.
    pub async fn kill_node(&mut self, id: &str) {
        let mut node = self.nodes.remove(id).expect("a running node");
        node.kill().await.unwrap();
    }

    /// Waits until a node, which was told to end, has ended.
    pub async fn node_end(&mut self, id: &str) -> std::process::ExitStatus {
        let mut node = self.nodes.remove(id).expect("a running node");
        let ended = timeout(PATIENCE, node.wait()).await;
        ended.expect("the node ends in time").unwrap()
    }

    /// Asks a node to end, as a supervisor does.
    pub async fn terminate_node(&self, id: &str) {
        let process = self.nodes[id].id().expect("a running node").to_string();
        let mut kill = Command::new("kill");
        let killed = kill.args(["-TERM", &process]).status().await;
        assert!(killed.unwrap().success());
    }

    /// `kill -9` of the meta service.
    pub async fn kill_meta(&mut self) {
        self.meta.kill().await.unwrap();
    }

    /// The tasks of all jobs that the meta service knows; none while it does not answer.
    pub async fn tasks(&self) -> Vec<TaskSeen> {
        let jobs = self.admin().jobs().await.unwrap_or_default();
        let tasks = jobs.into_iter().flat_map(|job| {
            job.tasks.into_iter().map(move |task| TaskSeen {
                job: job.job,
                state: task.state,
            })
        });
        tasks.collect()
    }

    /// Whether every node has said that no task occupies a slot.
    pub async fn is_at_rest(&self) -> bool {
        let nodes = self.admin().nodes().await.unwrap();
        let active = nodes.iter().filter(|node| node.state == NodeState::Active);
        active
            .clone()
            .all(|node| node.slots_free == node.facts.slots)
    }

    /// The nodes that the meta service knows.
    pub async fn node_states(&self) -> BTreeMap<String, NodeState> {
        let nodes = self.admin().nodes().await.unwrap();
        nodes
            .into_iter()
            .map(|node| (node.facts.id.0, node.state))
            .collect()
    }

    fn admin(&self) -> AdminClient {
        AdminClient::new(std::slice::from_ref(&self.address)).unwrap()
    }

    /// Starts the meta service again where it was, on the log that it left.
    pub async fn restart_meta(&mut self) {
        let listen = self.address.trim_start_matches("http://").to_owned();
        let (meta, _) = start_meta(self.dir.path(), &listen).await;
        self.meta = meta;
    }
}

/// A task that the meta service knows.
#[derive(Clone, Debug)]
pub struct TaskSeen {
    pub job: JobId,
    pub state: TaskState,
}

impl TaskSeen {
    pub fn is_running(&self) -> bool {
        matches!(self.state, TaskState::Running { .. })
    }

    pub fn is_running_on(&self, id: &str) -> bool {
        matches!(&self.state, TaskState::Running { node, .. } if node.0 == id)
    }

    pub fn is_done(&self) -> bool {
        matches!(self.state, TaskState::Done { .. })
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let logs = std::fs::read_dir(self.dir.path()).into_iter().flatten();
        let mut logs: Vec<_> = logs.map(|entry| entry.unwrap().path()).collect();
        logs.retain(|log| log.extension().is_some_and(|extension| extension == "log"));
        logs.sort();
        for log in logs {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            let end: Vec<&str> = said.lines().rev().take(40).collect();
            eprintln!("--- the end of {}", log.display());
            end.iter().rev().for_each(|line| eprintln!("{line}"));
        }
    }
}

async fn start_meta(dir: &Path, listen: &str) -> (Child, String) {
    let mut command = Command::new(META);
    let log = url_of(dir);
    command.args(["--listen", listen, "--plan-log", &log, "--lease", "2s"]);
    start(command, &dir.join("meta.log")).await
}

/// Starts a node of the meta service at `meta`, which logs to a file in `dir`; returns once it has polled.
pub async fn start_node(dir: &Path, meta: &str, id: &str) -> Child {
    let mut command = Command::new(NODE);
    command.args(["--meta", meta, "--id", id, "--slots", "1"]);
    let (node, ready) = start(command, &dir.join(format!("{id}.log"))).await;
    assert!(
        ready.contains(id) && ready.contains("ready"),
        "{id} said {ready:?}"
    );
    node
}

/// Starts `command`; returns with the first line that it prints.
async fn start(mut command: Command, log: &Path) -> (Child, String) {
    let open = |log: &Path| -> File {
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .unwrap()
    };
    for (variable, _) in std::env::vars_os() {
        if variable.to_string_lossy().starts_with(ENV_PREFIX) {
            command.env_remove(variable);
        }
    }
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(open(log))
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let first = timeout(PATIENCE, lines.next_line()).await;
    let ready = match first {
        Ok(Ok(Some(line))) => line,
        other => {
            let said = std::fs::read_to_string(log).unwrap_or_default();
            panic!("{command:?} did not get ready: {other:?}\n{said}");
        }
    };
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    (child, ready)
}
