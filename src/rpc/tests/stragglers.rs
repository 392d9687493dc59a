//! A task that is slow wherever it runs: it is cut, and its parts are run elsewhere.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;

use super::{node, until};
use crate::{
    clock::{Env, ManualClock},
    compaction::{
        Attempt, CompactionContext, CompactionJob, Compactor, RemoteCompactor, Task, execute,
        proof, remote::TaskState, tests::Bench,
    },
    config::{MetaConfig, Millis, RemoteConfig},
    error::{Error, Result},
    meta::{MemoryPlanLog, MetaService},
    node::TaskRunner,
    rpc::InProcess,
    store::Store,
};

/// Runs every task but the first, which hangs until it is stopped.
struct Hanging {
    store: Store,
    stopped: AtomicUsize,
}

#[async_trait]
impl TaskRunner for Hanging {
    async fn run(&self, job: Arc<CompactionJob>, task: Task, attempt: Attempt) -> Result<()> {
        if task.id.index == 0 {
            attempt.cancel.cancelled().await;
            self.stopped.fetch_add(1, Ordering::Relaxed);
            return Err(Error::closed("stopped"));
        }
        let ran = execute(&job, &task, attempt, &self.store, &Env::default()).await;
        ran.map(drop)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_of_a_task_that_is_slow_everywhere_is_shared_out() {
    let clock = Arc::new(ManualClock::new(Duration::from_secs(1_700_000_000)));
    let config = MetaConfig {
        lease: Millis(60_000),
        stall_timeout: Millis(600_000),
        ..MetaConfig::default()
    };
    let (log, env) = (
        Box::new(MemoryPlanLog::default()),
        Env::seeded(clock.clone(), 7),
    );
    let service = MetaService::open(config, log, env).await.unwrap();
    let bench = Bench::overlapping().await;
    let runner = Arc::new(Hanging {
        store: bench.store.clone(),
        stopped: AtomicUsize::new(0),
    });
    let _nodes = ["a", "b"].map(|id| {
        let link = Arc::new(InProcess(service.clone()));
        node(id, 2, link, &runner)
    });
    let (config, env) = (RemoteConfig::default(), Env::default());
    let store = bench.store.clone();
    let compactor = RemoteCompactor::new(service.clone(), store, "o".into(), config, env);
    let job = bench.job(&[10_000, 15_000, 20_000, 25_000, 30_000, 35_000]);
    let time_passes = async {
        until("all others done", async || {
            let jobs = service.jobs().await.unwrap();
            let is_done = |state: &TaskState| matches!(state, TaskState::Done { .. });
            jobs.first().is_some_and(|job| job.count(is_done) == 6)
        })
        .await;
        // The service sleeps by the machine's clock: asking wakes it.
        while service.stats().await.unwrap().events.tasks_slow == 0 {
            clock.advance(Duration::from_millis(500));
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        std::future::pending().await
    };
    let outcome = tokio::select! {
        outcome = compactor.compact(job.clone(), CompactionContext::default()) => outcome.unwrap(),
        never = time_passes => never,
    };
    proof::prove(&job, &outcome).unwrap();
    assert_eq!(bench.written(&outcome).await, bench.merged());
    assert_eq!(outcome.splits.len(), 1);
    assert_eq!(outcome.splits[0].task, job.task_id(0));
    let events = service.stats().await.unwrap().events;
    assert_eq!((events.hedges, events.tasks_slow), (1, 1));
    assert_eq!((events.tasks_cancelled, events.tasks_completed), (1, 8));
    until("both attempts at it are stopped", async || {
        runner.stopped.load(Ordering::Relaxed) == 2
    })
    .await;
}
