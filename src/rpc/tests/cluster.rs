//! Meta and nodes over real sockets: the whole way of a job, and the loss of either side.

use std::{collections::BTreeSet, net::SocketAddr, sync::Arc, time::Duration};

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::{SOON, meta, node, until};
use crate::{
    clock::Env,
    compaction::{
        CompactionContext, CompactionJob, Compactor, RemoteCompactor,
        remote::{JobService, JobSubmission, TaskState},
        tests::Bench,
    },
    config::RemoteConfig,
    error::ErrorKind,
    meta::{MemoryPlanLog, MetaService, NodeState, ObjectPlanLog},
    node::fake::{Writer, job, memory},
    rpc::{AdminClient, InProcess, JobsClient, NodesClient, embed, serve},
    types::KeyRange,
};

fn submission(job: &CompactionJob) -> JobSubmission {
    JobSubmission {
        body: job.encode(),
        ..JobSubmission::sample("o", job.id, job.tasks.len() as u32, 1)
    }
}

async fn done(service: &dyn JobService, job: &CompactionJob) -> usize {
    let status = service.watch(job.id, 0, Duration::ZERO).await;
    let Ok(status) = status else { return 0 };
    let is_done = |(_, state): &&(u32, TaskState)| matches!(state, TaskState::Done { .. });
    status.tasks.iter().filter(is_done).count()
}

async fn listen(address: SocketAddr) -> TcpListener {
    TcpListener::bind(address).await.unwrap()
}

#[tokio::test]
async fn job_goes_all_the_way() {
    let service = meta(MemoryPlanLog::default()).await;
    let stop = CancellationToken::new();
    let embedded = embed("127.0.0.1:0", service, stop.clone().cancelled_owned());
    let embedded = embedded.await.unwrap();
    // The first address does not answer: the second is used.
    let address = format!("http://{}", embedded.address());
    let addresses = ["http://127.0.0.1:1".to_owned(), address.clone()];
    let store = memory();
    let writer = Writer::new(&store, &[]);
    let nodes = ["a", "b"].map(|id| {
        let link = Arc::new(NodesClient::new(&addresses).unwrap());
        node(id, 2, link, &writer)
    });
    let (jobs, admin) = (
        JobsClient::new(&addresses).unwrap(),
        AdminClient::new(&addresses).unwrap(),
    );
    let job = job(1, 6);
    let error = jobs.watch(job.id, 0, Duration::ZERO).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.message().contains(&job.id.to_string()), "{error}");
    jobs.submit(submission(&job)).await.unwrap();
    let status = jobs.watch(job.id, 1, Duration::from_secs(5)).await.unwrap();
    assert!(status.revision > 1, "a long poll over the wire");
    until("six tasks done", async || done(&jobs, &job).await == 6).await;
    let listed = admin.jobs().await.unwrap();
    assert_eq!((listed.len(), listed[0].tasks.len()), (1, 6));
    let listed = admin.nodes().await.unwrap();
    assert!(listed.iter().all(|node| node.state == NodeState::Active));
    jobs.release(job.id).await.unwrap();
    assert!(admin.jobs().await.unwrap().is_empty());
    for node in nodes {
        drop(node._stop);
        node.run.await.unwrap().unwrap();
    }
    stop.cancel();
    tokio::time::timeout(SOON, embedded.wait())
        .await
        .unwrap()
        .unwrap();
    let error = jobs.release(job.id).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains(&address), "{error}");
    assert!(error.message().contains("127.0.0.1:1"), "{error}");
}

#[tokio::test]
async fn big_jobs_can_be_sent() {
    let service = meta(MemoryPlanLog::default()).await;
    let stop = CancellationToken::new();
    let embedded = embed("127.0.0.1:0", service, stop.clone().cancelled_owned());
    let embedded = embedded.await.unwrap();
    let addresses = [format!("http://{}", embedded.address())];
    let jobs = JobsClient::new(&addresses).unwrap();
    let mut big = submission(&job(1, 1));
    big.body = vec![7; 20 << 20].into();
    jobs.submit(big).await.unwrap();
    stop.cancel();
    embedded.wait().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_1_000_tasks_and_10_000_inputs_go_all_the_way() {
    let service = meta(MemoryPlanLog::default()).await;
    let stop = CancellationToken::new();
    let embedded = embed("127.0.0.1:0", service.clone(), stop.cancelled_owned());
    let addresses = [format!("http://{}", embedded.await.unwrap().address())];
    let (store, mut bench) = (memory(), Bench::new());
    bench.write([(0, 1, None)].into_iter()).await;
    let key = |number: usize| bench.key(number as i64);
    let inputs = (0..10_000).map(|number| Arc::new(bench.sst(number, key(number * 10))));
    let ends = (1..1_000).map(|number| Some(key(number * 100)));
    let starts = std::iter::once(None).chain(ends.clone());
    let ranges = starts.zip(ends.chain([None]));
    let job = Arc::new(CompactionJob {
        inputs: inputs.collect(),
        tasks: ranges.map(|(start, end)| KeyRange { start, end }).collect(),
        ..job(1, 0).as_ref().clone()
    });
    let writer = Writer::new(&store, &[]);
    let _nodes = ["a", "b", "c", "d"].map(|id| {
        let link = Arc::new(NodesClient::new(&addresses).unwrap());
        node(id, 8, link, &writer)
    });
    let jobs = Arc::new(JobsClient::new(&addresses).unwrap());
    let (config, env) = (RemoteConfig::default(), Env::default());
    let compactor = RemoteCompactor::new(jobs, store, "o".into(), config, env);
    let outcome = compactor.compact(job, CompactionContext::default());
    assert_eq!(outcome.await.unwrap().parts.len(), 1_000);
    assert_eq!(writer.ran().len(), 1_000, "each task once");
    let by: BTreeSet<String> = writer.ran().into_iter().map(|(_, node)| node).collect();
    assert_eq!(by.len(), 4, "on all nodes");
}

#[tokio::test]
async fn meta_reopened_in_the_middle_runs_nothing_again() {
    let store = memory();
    let log = || ObjectPlanLog::new(store.clone(), Env::default());
    let start = |service: Arc<MetaService>, listener: TcpListener| {
        let stop = CancellationToken::new();
        let serving = serve(listener, service, stop.clone().cancelled_owned());
        (tokio::spawn(serving), stop)
    };
    let listener = listen("127.0.0.1:0".parse().unwrap()).await;
    let address = listener.local_addr().unwrap();
    let (served, stop) = start(meta(log()).await, listener);

    let writer = Writer::new(&store, &[2, 3]);
    let addresses = [format!("http://{address}")];
    let link = Arc::new(NodesClient::new(&addresses).unwrap());
    let _node = node("a", 2, link, &writer);
    let jobs = JobsClient::new(&addresses).unwrap();
    let job = job(1, 4);
    jobs.submit(submission(&job)).await.unwrap();
    until("two tasks done", async || done(&jobs, &job).await == 2).await;
    until("two tasks running", async || writer.ran().len() == 4).await;

    stop.cancel();
    served.await.unwrap().unwrap();
    let (served, stop) = start(meta(log()).await, listen(address).await);
    // The new meta has renewed the running tasks for longer than a lease.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    writer.hold.cancel();
    until("all done", async || done(&jobs, &job).await == 4).await;
    assert_eq!(writer.ran().len(), 4, "{:?}", writer.ran());
    stop.cancel();
    served.await.unwrap().unwrap();
}

#[tokio::test]
async fn lost_node_loses_its_tasks_to_another() {
    let service = meta(MemoryPlanLog::default()).await;
    let store = memory();
    let (hangs, works) = (Writer::new(&store, &[0]), Writer::new(&store, &[]));
    let link = || Arc::new(InProcess(service.clone()));
    let job = job(1, 1);
    let lost = node("lost", 1, link(), &hangs);
    service.submit(submission(&job)).await.unwrap();
    until("started", async || hangs.runs_of(0) == 1).await;
    lost.run.abort();
    let _other = node("other", 1, link(), &works);
    until("done", async || done(&*service, &job).await == 1).await;
    assert_eq!(works.ran(), [(0, "other".to_owned())]);
    let nodes = service.nodes().await.unwrap();
    assert_eq!(nodes[0].state, NodeState::Silent);
    let jobs = service.jobs().await.unwrap();
    assert_eq!(jobs[0].tasks[0].attempts, 1);
    service.close().await.unwrap();
}
