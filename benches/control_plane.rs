//! What a meta service with a durable plan can do: tasks given out and completed a second with many nodes, the
//! latency of a one-task job, and the memory of a long queue. Nodes are simulated, and do no work. Prints its
//! figures.
//!
//! `cargo bench --bench control_plane -- [nodes] [tasks] [owners] [waiting tasks]`; by default 1,000 nodes,
//! 50,000 tasks, 1,000 owners, 100,000 waiting tasks of ten SSTs each. A connection takes two files: allow enough
//! by `ulimit -n`. Linux only.

use std::{
    collections::BTreeMap,
    fs,
    sync::Arc,
    time::{Duration, Instant},
};

use siltstone::{
    clock::Env,
    compaction::remote::{
        CAPABILITY, JobService, JobSubmission, NodeFacts, NodePoll, Pressure, TaskEnd, TaskReport,
        TaskState, TaskSubmission,
    },
    config::MetaConfig,
    error::Result,
    meta::{MetaService, PlanLog, open_plan_log},
    node::MetaLink,
    rpc::{InProcess, JobsClient, NodesClient, embed},
    types::{JobId, TableId},
};
use tokio::{
    sync::mpsc,
    task::{JoinHandle, JoinSet},
};

const WAIT: Duration = Duration::from_secs(20);
/// Owners that submit at once while throughput is measured, and tasks of each of their jobs.
const SUBMITTERS: u64 = 10;
const TASKS_PER_JOB: u32 = 100;
/// One-task jobs whose latency is measured.
const LATENCIES: usize = 500;
/// About what ten inputs take in an encoded job.
const BODY_BYTES: usize = 2_500;

fn submission(owner: u64, number: u128, tasks: u32) -> JobSubmission {
    let tasks = (0..tasks).map(|index| TaskSubmission {
        index,
        bytes: 256 << 20,
        memory: 1 << 20,
        range: None,
    });
    JobSubmission {
        owner: format!("owner-{owner:04}").as_str().into(),
        job: JobId::from_parts(1, number),
        table: TableId::from_parts(1, owner.into()),
        label: "table 1, window 1".into(),
        pressure: Pressure::default(),
        needs: Arc::default(),
        zone: String::new(),
        body: vec![7; BODY_BYTES].into(),
        tasks: tasks.collect(),
    }
}

/// A node that ends whatever it is given at once, and tells when it was given it.
async fn node(number: usize, link: Arc<dyn MetaLink>, given: mpsc::UnboundedSender<Instant>) {
    let slots = 2;
    let mut poll = NodePoll {
        facts: NodeFacts {
            id: format!("node-{number:04}").as_str().into(),
            session: 1,
            host: "bench".into(),
            version: "1".into(),
            capabilities: vec![CAPABILITY.into()],
            slots,
            memory_bytes: 1 << 30,
            pool: String::new(),
            zone: String::new(),
        },
        slots_free: slots,
        draining: false,
        running: vec![],
        finished: vec![],
    };
    loop {
        let reply = match link.poll(poll.clone(), WAIT).await {
            Ok(reply) => reply,
            Err(error) => {
                eprintln!("node {number}: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        poll.finished.clear();
        for assignment in reply.assignments {
            let _ = given.send(Instant::now());
            poll.finished.push(TaskReport {
                attempt: assignment.attempt,
                end: TaskEnd::Done,
            });
        }
    }
}

/// Waits until all tasks of a job have been completed.
async fn completed(service: &dyn JobService, job: JobId, tasks: u32) -> Result<()> {
    let (mut seen, mut done) = (0, BTreeMap::new());
    while done.len() < tasks as usize {
        let status = service.watch(job, seen, WAIT).await?;
        seen = status.revision;
        for (index, state) in status.tasks {
            match state {
                TaskState::Done { .. } => drop(done.insert(index, ())),
                TaskState::Queued | TaskState::Running { .. } => {}
                other => panic!("task {index} of job {job} is {other:?}"),
            }
        }
    }
    Ok(())
}

/// How everybody reaches the service.
trait Way: Send + Sync {
    fn link(&self) -> Arc<dyn MetaLink>;
    fn service(&self) -> Arc<dyn JobService>;
}

struct Direct(Arc<MetaService>);

impl Way for Direct {
    fn link(&self) -> Arc<dyn MetaLink> {
        Arc::new(InProcess(self.0.clone()))
    }

    fn service(&self) -> Arc<dyn JobService> {
        self.0.clone()
    }
}

struct Grpc(Vec<String>);

impl Way for Grpc {
    fn link(&self) -> Arc<dyn MetaLink> {
        Arc::new(NodesClient::new(&self.0).expect("an address"))
    }

    fn service(&self) -> Arc<dyn JobService> {
        Arc::new(JobsClient::new(&self.0).expect("an address"))
    }
}

struct Fleet {
    way: Box<dyn Way>,
    nodes: Vec<JoinHandle<()>>,
    given: mpsc::UnboundedReceiver<Instant>,
}

impl Fleet {
    /// A fleet whose nodes all wait for tasks.
    async fn start(way: Box<dyn Way>, meta: &MetaService, nodes: usize) -> Self {
        let (send, given) = mpsc::unbounded_channel();
        let nodes: Vec<_> = (0..nodes)
            .map(|number| tokio::spawn(node(number, way.link(), send.clone())))
            .collect();
        while meta.nodes().await.expect("the nodes").len() < nodes.len() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Self { way, nodes, given }
    }

    /// Tasks completed a second, of `tasks` tasks of some owners that submit at once.
    async fn throughput(&mut self, first: u128, tasks: u32) -> f64 {
        let jobs = tasks / TASKS_PER_JOB;
        let started = Instant::now();
        let mut owners = JoinSet::new();
        for owner in 0..SUBMITTERS {
            let service = self.way.service();
            owners.spawn(async move {
                for number in (owner..jobs.into()).step_by(SUBMITTERS as usize) {
                    let job = submission(owner, first + u128::from(number), TASKS_PER_JOB);
                    let id = job.job;
                    service.submit(job).await?;
                    completed(service.as_ref(), id, TASKS_PER_JOB).await?;
                    service.release(id).await?;
                }
                Ok::<_, siltstone::Error>(())
            });
        }
        while let Some(ended) = owners.join_next().await {
            ended.expect("no panic").expect("all is completed");
        }
        let elapsed = started.elapsed();
        let mut given = 0;
        while self.given.try_recv().is_ok() {
            given += 1;
        }
        assert_eq!(
            given,
            jobs * TASKS_PER_JOB,
            "every task ran on a node, once"
        );
        f64::from(given) / elapsed.as_secs_f64()
    }

    /// Of one-task jobs, while all nodes wait: from submit to assignment, and from submit to its completion.
    async fn latencies(&mut self, first: u128) -> (Vec<Duration>, Vec<Duration>) {
        let service = self.way.service();
        let (mut assigned, mut ended) = (Vec::new(), Vec::new());
        for number in 0..LATENCIES {
            let job = submission(0, first + number as u128, 1);
            let id = job.job;
            let started = Instant::now();
            service.submit(job).await.expect("it is accepted");
            completed(service.as_ref(), id, 1).await.expect("it ends");
            ended.push(started.elapsed());
            let given = self.given.recv().await.expect("it was given");
            assigned.push(given - started);
            service.release(id).await.expect("it is released");
        }
        (assigned, ended)
    }

    fn stop(self) {
        self.nodes.iter().for_each(JoinHandle::abort);
    }
}

fn percentile(times: &mut [Duration], percent: usize) -> Duration {
    times.sort_unstable();
    times[(times.len() - 1) * percent / 100]
}

fn show_latency(name: &str, mut times: Vec<Duration>) {
    let (p50, p99) = (percentile(&mut times, 50), percentile(&mut times, 99));
    println!("  {name:34} p50 {p50:>10.2?}  p99 {p99:>10.2?}");
}

/// Resident memory of this process in bytes.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let word = line.and_then(|line| line.split_whitespace().nth(1));
    word.and_then(|word| word.parse::<u64>().ok())
        .unwrap_or_default()
        * 1024
}

/// How many files this process may have open.
fn files_max() -> usize {
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    let word = line.and_then(|line| line.split_whitespace().nth(3));
    word.and_then(|word| word.parse().ok())
        .unwrap_or(usize::MAX)
}

fn plan_log(dir: &tempfile::TempDir) -> Box<dyn PlanLog> {
    let url = format!("file://{}", dir.path().display());
    open_plan_log(&url, Env::default()).expect("a plan log")
}

async fn open(dir: &tempfile::TempDir, waiting: usize) -> Arc<MetaService> {
    let config = MetaConfig {
        queue_tasks_max: waiting * 2,
        ..MetaConfig::default()
    };
    let service = MetaService::open(config, plan_log(dir), Env::default()).await;
    service.expect("a meta service")
}

async fn measure(name: &str, way: Box<dyn Way>, meta: &MetaService, nodes: usize, tasks: u32) {
    println!("\n{name}, {nodes} nodes of 2 slots");
    let mut fleet = Fleet::start(way, meta, nodes).await;
    let (assigned, ended) = fleet.latencies(0).await;
    show_latency("one-task job, submit to assignment", assigned);
    show_latency("one-task job, submit to completion", ended);
    let rate = fleet.throughput(1 << 32, tasks).await;
    println!("  {tasks} tasks, completed                {rate:>10.0} a second");
    fleet.stop();
}

/// The memory of a queue, and what a task behind it waits.
async fn wait_long(owners: u64, waiting: usize) {
    println!("\n{waiting} waiting tasks of {owners} owners, each of 10 SSTs in {BODY_BYTES} bytes");
    let dir = tempfile::tempdir().expect("a folder");
    let meta = open(&dir, waiting).await;
    let (before, started) = (resident(), Instant::now());
    let mut submitting = JoinSet::new();
    for owner in 0..owners {
        let meta = meta.clone();
        let jobs = waiting as u64 / owners;
        submitting.spawn(async move {
            for number in 0..jobs {
                let number = u128::from(owner * jobs + number);
                let job = submission(owner, number, 1);
                meta.submit(job).await.expect("there is room");
            }
        });
    }
    while let Some(ended) = submitting.join_next().await {
        ended.expect("no panic");
    }
    let rate = waiting as f64 / started.elapsed().as_secs_f64();
    let each = resident().saturating_sub(before) / waiting as u64;
    println!("  submitted                           {rate:>10.0} a second");
    println!("  memory                              {each:>10} bytes a task, the body included");
    let mut fleet = Fleet::start(Box::new(Direct(meta.clone())), &meta, 10).await;
    let started = Instant::now();
    let mut given = 0;
    while given < waiting.min(20_000) {
        fleet.given.recv().await.expect("a node");
        given += 1;
    }
    let rate = given as f64 / started.elapsed().as_secs_f64();
    println!("  given to 10 nodes of 2 slots        {rate:>10.0} a second");
    fleet.stop();
    meta.close().await.expect("it closes");
    let started = Instant::now();
    let meta = open(&dir, waiting).await;
    println!(
        "  opened again in                     {:>10.2?}",
        started.elapsed()
    );
    meta.close().await.expect("it closes");
}

fn main() {
    let numbers: Vec<usize> = std::env::args()
        .filter_map(|word| word.parse().ok())
        .collect();
    let number = |at: usize, default| numbers.get(at).copied().unwrap_or(default);
    let (nodes, tasks) = (number(0, 1_000), number(1, 50_000));
    let (owners, waiting) = (number(2, 1_000), number(3, 100_000));
    let (files, needed) = (files_max(), nodes * 2 + 100);
    if files < needed {
        eprintln!("{nodes} nodes take {needed} open files; the limit is {files}: see ulimit -n");
        std::process::exit(1);
    }
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let tasks = u32::try_from(tasks).expect("a number of tasks");
        let dir = tempfile::tempdir().expect("a folder");
        let meta = open(&dir, waiting).await;
        let direct = Box::new(Direct(meta.clone()));
        measure("in process", direct, &meta, nodes, tasks).await;
        meta.close().await.expect("it closes");

        let dir = tempfile::tempdir().expect("a folder");
        let meta = open(&dir, waiting).await;
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let stopped = async { drop(stopped.await) };
        let served = embed("127.0.0.1:0", meta.clone(), stopped).await;
        let served = served.expect("a free port");
        let grpc = Box::new(Grpc(vec![format!("http://{}", served.address())]));
        measure("over gRPC on loopback", grpc, &meta, nodes, tasks).await;
        drop(stop);
        served.wait().await.expect("it ends");

        wait_long(owners as u64, waiting).await;
    });
}
