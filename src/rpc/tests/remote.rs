//! The remote compactor against a meta service in the same process.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use tokio::time::Instant;

use super::{meta, node, until};
use crate::{
    clock::Env,
    compaction::{
        Capacity, CompactionContext, CompactionJob, CompactionOutcome, Compactor, RemoteCompactor,
        remote::{Fleet, JobService, JobSubmission, Needs},
    },
    config::{Fallback, MetaConfig, Millis, RemoteConfig},
    error::{Error, ErrorKind, Result},
    meta::{MemoryPlanLog, MetaService, Wish, state::Target, tests::env},
    node::fake::{Writer, job, memory, result_name},
    rpc::{InProcess, JobsClient, embed},
};

struct Fixture {
    service: Arc<MetaService>,
    writer: Arc<Writer>,
    compactor: Arc<RemoteCompactor>,
}

async fn fixture(held: &[u32]) -> Fixture {
    fixture_of(meta(MemoryPlanLog::default()).await, held)
}

fn fixture_of(service: Arc<MetaService>, held: &[u32]) -> Fixture {
    let store = memory();
    let config = RemoteConfig::default();
    let (jobs, owner) = (service.clone(), "o".into());
    let compactor = RemoteCompactor::new(jobs, store.clone(), owner, config, Env::default());
    Fixture {
        writer: Writer::new(&store, held),
        compactor: Arc::new(compactor),
        service,
    }
}

impl Fixture {
    fn node(&self, id: &str) -> super::RunningNode {
        let link = Arc::new(InProcess(self.service.clone()));
        node(id, 2, link, &self.writer)
    }

    async fn compact(&self, job: &Arc<CompactionJob>) -> Result<CompactionOutcome> {
        let context = CompactionContext::default();
        self.compactor.compact(job.clone(), context).await
    }

    async fn is_released(&self) {
        until("released", async || {
            self.service.jobs().await.unwrap().is_empty()
        })
        .await;
    }
}

#[tokio::test]
async fn outcomes_come_in_task_order_and_results_are_not_made_again() {
    let f = fixture(&[]).await;
    let _nodes = [f.node("a"), f.node("b")];
    let job = job(1, 5);
    let first = f.compact(&job).await.unwrap();
    let order: Vec<u64> = first.parts.iter().map(|part| part.read.rows).collect();
    assert_eq!(order, [0, 1, 2, 3, 4]);
    let again = f.compact(&job).await.unwrap();
    assert_eq!(again, first);
    assert_eq!(f.writer.ran().len(), 5);
    // One result is lost: only that task runs again.
    let name = result_name(&job, 3);
    f.writer.store.delete(&name).await.unwrap();
    f.compact(&job).await.unwrap();
    assert_eq!((f.writer.ran().len(), f.writer.runs_of(3)), (6, 2));
    f.is_released().await;
    assert_eq!(f.compactor.capacity().jobs, 8);
}

#[tokio::test]
async fn failure_keeps_kind_and_message() {
    let f = fixture(&[]).await;
    let _node = f.node("a");
    let error = Error::corrupt("sst x.parquet: footer is damaged");
    f.writer.fail.lock().unwrap().insert(1, error);
    let error = f.compact(&job(1, 2)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let message = error.message();
    assert!(message.contains("node a"), "{message}");
    assert!(
        message.ends_with("sst x.parquet: footer is damaged"),
        "{message}"
    );
    f.is_released().await;
}

#[tokio::test]
async fn damaged_or_foreign_result_is_named() {
    let f = fixture(&[]).await;
    let _node = f.node("a");
    let (one, two) = (job(1, 2), job(2, 2));
    f.compact(&one).await.unwrap();
    let name = result_name(&one, 1);
    let foreign = result_name(&two, 0);
    let bytes = f.writer.store.get(&name).await.unwrap();
    f.writer.store.put(&foreign, bytes.clone()).await.unwrap();
    f.writer.store.put(&name, bytes.slice(..20)).await.unwrap();
    for (job, name) in [(&one, &name), (&two, &foreign)] {
        let error = f.compact(job).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.message().contains(name), "{error}");
    }
}

#[tokio::test]
async fn cancelled_or_dropped_job_goes_on_and_is_taken_up_again() {
    let f = fixture(&[0]).await;
    let _node = f.node("a");
    let context = CompactionContext::default();
    let cancel = context.cancel.clone();
    let running = {
        let compactor = f.compactor.clone();
        tokio::spawn(async move { compactor.compact(job(1, 1), context).await })
    };
    until("started", async || f.writer.runs_of(0) == 1).await;
    // Twice as many as the node has slots.
    let window = 4;
    assert_eq!(f.compactor.capacity().jobs, window - 1);
    cancel.cancel();
    let error = running.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);

    let compactor = f.compactor.clone();
    let dropped = tokio::spawn(async move {
        let context = CompactionContext::default();
        compactor.compact(job(2, 1), context).await
    });
    until("started", async || f.writer.runs_of(0) == 2).await;
    dropped.abort();
    assert!(dropped.await.unwrap_err().is_cancelled());
    f.compactor.close().await;
    assert_eq!(f.compactor.capacity().jobs, window);
    assert_eq!(f.service.jobs().await.unwrap().len(), 2);

    f.writer.hold.cancel();
    for number in 1..=2 {
        f.compact(&job(number, 1)).await.unwrap();
    }
    assert_eq!(f.writer.runs_of(0), 2, "nothing was begun again");
    f.is_released().await;
}

#[derive(Default)]
struct Counting(AtomicUsize);

#[async_trait]
impl Compactor for Counting {
    async fn compact(
        &self,
        _job: Arc<CompactionJob>,
        _context: CompactionContext,
    ) -> Result<CompactionOutcome> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(CompactionOutcome::default())
    }

    fn capacity(&self) -> Capacity {
        Capacity { jobs: 1 }
    }

    fn kind(&self) -> &'static str {
        "local"
    }
}

#[tokio::test]
async fn outage_is_waited_out_or_falls_back_and_is_counted() {
    let nowhere = ["http://127.0.0.1:1".to_owned()];
    for (fallback, times) in [(Fallback::Wait, 0), (Fallback::Local, 1)] {
        let config = RemoteConfig {
            fallback,
            fallback_after: Millis(100),
            ..RemoteConfig::default()
        };
        let local = Arc::new(Counting::default());
        let compactor = RemoteCompactor::new(
            Arc::new(JobsClient::new(&nowhere).unwrap()),
            memory(),
            "o".into(),
            config,
            Env::default(),
        )
        .with_fallback(local.clone());
        let compact = compactor.compact(job(1, 1), CompactionContext::default());
        let ended = tokio::time::timeout(Duration::from_secs(2), compact).await;
        assert_eq!(ended.is_ok(), times > 0, "{fallback:?}");
        assert_eq!(local.0.load(Ordering::Relaxed), times);
        let fallbacks = compactor.fallbacks();
        assert_eq!(fallbacks.jobs.values().sum::<u64>() as usize, times);
        let named = |reason: &String| reason.contains("127.0.0.1:1");
        assert_eq!(fallbacks.last_reason.is_some_and(|r| named(&r)), times > 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_task_stops_within_a_second() {
    let (log, env) = (Box::new(MemoryPlanLog::default()), env());
    let service = MetaService::open(MetaConfig::default(), log, env).await;
    let f = fixture_of(service.unwrap(), &[0]);
    let _node = f.node("a");
    let job = job(1, 1);
    let slots_free = async || {
        let nodes = f.service.nodes().await.unwrap();
        nodes.first().map(|node| node.slots_free)
    };
    let cancel = async {
        until("it runs", async || {
            f.writer.runs_of(0) == 1 && slots_free().await == Some(1)
        })
        .await;
        let wish = Wish::Cancel(Target::Job(job.id));
        f.service.steer(wish).await.unwrap();
        Instant::now()
    };
    let (ended, cancelled) = tokio::join!(f.compact(&job), cancel);
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::Conflict);
    until("it has stopped", async || slots_free().await == Some(2)).await;
    assert!(cancelled.elapsed() < Duration::from_secs(1));
}

#[tokio::test]
async fn the_fleet_tells_what_there_is_and_what_is_ahead() {
    let f = fixture(&[0]).await;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let stopped = async { drop(stopped.await) };
    let served = embed("127.0.0.1:0", f.service.clone(), stopped)
        .await
        .unwrap();
    let client = JobsClient::new(&[format!("http://{}", served.address())]).unwrap();
    let any = Needs::default();
    assert_eq!(client.fleet(&any).await.unwrap(), Fleet::default());
    let _nodes = [f.node("a"), f.node("b")];
    until("two nodes", async || {
        client.fleet(&any).await.unwrap().nodes == 2
    })
    .await;
    let job = JobSubmission::sample("another", crate::types::JobId::from_parts(9, 9), 3, 100);
    client.submit(job).await.unwrap();
    let fleet = client.fleet(&any).await.unwrap();
    let wanted = Fleet {
        nodes: 2,
        slots: 4,
        bytes_ahead: 300,
    };
    assert_eq!(fleet, wanted);
    let elsewhere = Needs {
        pool: "large".into(),
        ..Needs::default()
    };
    let fleet = client.fleet(&elsewhere).await.unwrap();
    assert_eq!((fleet.nodes, fleet.slots), (0, 0));
    drop(stop);
    served.wait().await.unwrap();
    let away = client.fleet(&any).await.unwrap_err();
    assert_eq!(away.kind(), ErrorKind::Unavailable);
}
