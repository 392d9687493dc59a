//! The remote compactor against a scripted meta service, in paused time.

mod attending;

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use tokio::sync::Semaphore;

use super::{
    Attendance, Fleet, FleetSeen, FleetView, JobService, JobStatus, JobSubmission, Needs, Orders,
    RemoteCompactor, TaskState, TaskSubmission,
};
use crate::{
    clock::{Env, ManualClock},
    compaction::{
        Attempt, Capacity, CompactionContext, CompactionJob, CompactionOutcome, Compactor, Task,
        execute, proof,
        tests::{Bench, until},
    },
    config::{Fallback, Millis, RemoteConfig},
    error::{Error, ErrorKind, Result},
    node::{
        TaskRunner,
        fake::{Writer, job, memory},
    },
    store::{
        Store,
        faulty::{Effect, Fault, Operation},
    },
    types::{JobId, Token},
};

/// Accepts every job, and answers watches with `state` for its only task.
#[derive(Default)]
struct Script {
    state: Mutex<Option<TaskState>>,
    /// There is no node.
    lacks_nodes: AtomicBool,
    /// Releases that fail before one succeeds.
    release_failures: Mutex<u32>,
    released: Mutex<Vec<JobId>>,
}

#[async_trait]
impl JobService for Script {
    async fn submit(&self, _job: JobSubmission) -> Result<()> {
        Ok(())
    }

    async fn watch(&self, _job: JobId, seen: u64, wait: Duration) -> Result<JobStatus> {
        if seen > 0 {
            tokio::time::sleep(wait).await;
        }
        let state = self.state.lock().unwrap().clone();
        Ok(JobStatus {
            jobs_window: 8,
            nodes: u32::from(!self.lacks_nodes.load(Ordering::Relaxed)),
            revision: 1,
            tasks: state.into_iter().map(|state| (0, state)).collect(),
        })
    }

    async fn attend(&self, _attendance: Attendance, _wait: Duration) -> Result<Orders> {
        std::future::pending().await
    }

    async fn release(&self, job: JobId) -> Result<()> {
        let mut failures = self.release_failures.lock().unwrap();
        if *failures > 0 {
            *failures -= 1;
            return Err(Error::unavailable("scripted"));
        }
        self.released.lock().unwrap().push(job);
        Ok(())
    }

    async fn fleet(&self, _needs: &Needs) -> Result<Fleet> {
        Ok(Fleet::default())
    }
}

impl Script {
    fn released(&self) -> Vec<JobId> {
        self.released.lock().unwrap().clone()
    }
}

fn compactor(script: &Arc<Script>, store: &Store) -> RemoteCompactor {
    let (config, env) = (RemoteConfig::default(), Env::default());
    RemoteCompactor::new(script.clone(), store.clone(), "o".into(), config, env)
}

async fn write_results(store: &Store, job: &Arc<CompactionJob>) {
    for index in 0..job.tasks.len() as u32 {
        let attempt = Attempt::new(Token(1), "n".into());
        let writer = Writer::new(store, &[]);
        writer
            .run(job.clone(), job.task(index).unwrap(), attempt)
            .await
            .unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn job_whose_results_are_all_there_is_released_too() {
    let (script, store, job) = (Arc::new(Script::default()), memory(), job(1, 2));
    write_results(&store, &job).await;
    let compactor = compactor(&script, &store);
    let outcome = compactor.compact(job.clone(), CompactionContext::default());
    assert_eq!(outcome.await.unwrap().parts.len(), 2);
    compactor.close().await;
    assert_eq!(script.released(), [job.id]);
}

#[tokio::test(start_paused = true)]
async fn release_is_repeated_until_meta_has_heard_it() {
    let (script, store, job) = (Arc::new(Script::default()), memory(), job(1, 1));
    write_results(&store, &job).await;
    *script.release_failures.lock().unwrap() = 4;
    let compactor = compactor(&script, &store);
    let outcome = compactor.compact(job.clone(), CompactionContext::default());
    outcome.await.unwrap();
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(script.released(), [job.id]);
    // Closing does not wait for a meta that is away.
    *script.release_failures.lock().unwrap() = u32::MAX;
    let outcome = compactor.compact(job, CompactionContext::default());
    outcome.await.unwrap();
    let closed = tokio::time::timeout(Duration::from_secs(15), compactor.close()).await;
    closed.unwrap();
}

#[tokio::test(start_paused = true)]
async fn failed_job_is_released_and_a_cancelled_one_goes_on() {
    let (script, store, job) = (Arc::new(Script::default()), memory(), job(1, 1));
    let compactor = compactor(&script, &store);
    let context = CompactionContext::default();
    let cancel = context.cancel.clone();
    let (ended, ()) = tokio::join!(compactor.compact(job.clone(), context), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        cancel.cancel();
    });
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::Closed);
    let dropped = compactor.compact(job.clone(), CompactionContext::default());
    let dropped = tokio::time::timeout(Duration::from_secs(1), dropped).await;
    assert!(dropped.is_err());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(script.released(), [], "the next engine takes it up again");

    *script.state.lock().unwrap() = Some(TaskState::Failed {
        kind: ErrorKind::Corrupt,
        message: "it broke".into(),
    });
    let failed = compactor.compact(job.clone(), CompactionContext::default());
    assert_eq!(failed.await.unwrap_err().kind(), ErrorKind::Corrupt);
    compactor.close().await;
    assert_eq!(script.released(), [job.id]);
}

#[tokio::test(start_paused = true)]
async fn task_that_is_cancelled_because_its_result_is_there_is_no_failure() {
    let (script, store, job) = (Arc::new(Script::default()), memory(), job(1, 1));
    let compactor = compactor(&script, &store);
    let compact = compactor.compact(job.clone(), CompactionContext::default());
    let (outcome, ()) = tokio::join!(compact, async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        write_results(&store, &job).await;
        *script.state.lock().unwrap() = Some(TaskState::Cancelled {
            reason: "another engine has its result".into(),
        });
    });
    assert_eq!(outcome.unwrap().parts.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn reason_for_waiting_goes_with_its_cause() {
    let (store, faults) = memory().with_faults();
    let (script, job) = (Arc::new(Script::default()), job(1, 1));
    write_results(&store, &job).await;
    let compactor = compactor(&script, &store);
    faults.add(Fault::new(Operation::List, "", Effect::Fail).times(5));
    let outcome = compactor.compact(job, CompactionContext::default());
    let (outcome, waiting) = tokio::join!(outcome, async {
        tokio::time::sleep(Duration::from_millis(60)).await;
        compactor.waiting()
    });
    outcome.unwrap();
    assert!(waiting.is_some_and(|reason| reason.contains("list")));
    assert_eq!(compactor.waiting(), None);
}

/// Runs what is submitted, at once, but for task 0: that is given too little memory, or is slow until it is not
/// wanted any more, or everybody has seen that.
struct Executing {
    store: Store,
    is_slow: bool,
    submitted: Mutex<Vec<JobSubmission>>,
    states: Mutex<BTreeMap<u32, TaskState>>,
}

#[async_trait]
impl JobService for Executing {
    async fn submit(&self, submission: JobSubmission) -> Result<()> {
        for submitted in &submission.tasks {
            let index = submitted.index;
            if self.states.lock().unwrap().contains_key(&index) {
                continue;
            }
            let state = match index {
                0 if self.is_slow => TaskState::Running {
                    node: "n".into(),
                    token: Token(1),
                    slow: true,
                },
                0 => self.run(&submission, submitted, Some(1_000)).await?,
                _ => self.run(&submission, submitted, None).await?,
            };
            self.states.lock().unwrap().insert(index, state);
        }
        self.submitted.lock().unwrap().push(submission);
        Ok(())
    }

    async fn watch(&self, _job: JobId, seen: u64, _wait: Duration) -> Result<JobStatus> {
        if seen > 0 {
            let submission = self.submitted.lock().unwrap().last().cloned().unwrap();
            let state = self.run(&submission, &submission.tasks[0], None).await?;
            let index = submission.tasks[0].index;
            self.states.lock().unwrap().insert(index, state);
        }
        let states = self.states.lock().unwrap().clone();
        Ok(JobStatus {
            jobs_window: 8,
            nodes: 1,
            revision: states.len() as u64,
            tasks: states.into_iter().collect(),
        })
    }

    async fn attend(&self, _attendance: Attendance, _wait: Duration) -> Result<Orders> {
        std::future::pending().await
    }

    async fn release(&self, _job: JobId) -> Result<()> {
        Ok(())
    }

    async fn fleet(&self, _needs: &Needs) -> Result<Fleet> {
        Ok(Fleet::default())
    }
}

impl Executing {
    async fn run(
        &self,
        submission: &JobSubmission,
        submitted: &TaskSubmission,
        memory_bytes: Option<u64>,
    ) -> Result<TaskState> {
        let job = Arc::new(CompactionJob::decode(submission.body.clone())?);
        let index = submitted.index;
        let planned = || job.tasks[index as usize].clone();
        let task = Task {
            id: job.task_id(index),
            range: submitted.range.clone().unwrap_or_else(planned),
        };
        let attempt = Attempt {
            memory_bytes,
            ..Attempt::new(Token(u64::from(index) + 1), "n".into())
        };
        let node = attempt.node.clone();
        let ran = execute(&job, &task, attempt, &self.store, &Env::default()).await;
        Ok(match ran {
            Ok(_) => TaskState::Done { node },
            Err(error) => TaskState::Failed {
                kind: error.kind(),
                message: error.message().to_owned(),
            },
        })
    }
}

/// Has `job` compacted; tells the tasks of each submission, and whether each has a range of its own.
async fn submitted(bench: &Bench, job: Arc<CompactionJob>, is_slow: bool) -> Vec<Vec<(u32, bool)>> {
    let service = Arc::new(Executing {
        store: bench.store.clone(),
        is_slow,
        submitted: Mutex::default(),
        states: Mutex::default(),
    });
    let compactor = RemoteCompactor::new(
        service.clone(),
        bench.store.clone(),
        "o".into(),
        RemoteConfig::default(),
        Env::default(),
    );
    let outcome = compactor.compact(job.clone(), CompactionContext::default());
    let outcome = outcome.await.unwrap();
    proof::prove(&job, &outcome).unwrap();
    assert_eq!(bench.written(&outcome).await, bench.merged());
    let submitted = service.submitted.lock().unwrap();
    assert_eq!(outcome.splits.len(), submitted.len() - 1);
    let tasks = |submission: &JobSubmission| {
        let tasks = submission.tasks.iter();
        tasks
            .map(|task| (task.index, task.range.is_some()))
            .collect()
    };
    submitted.iter().map(tasks).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_is_too_large_or_too_slow_everywhere_is_cut_and_submitted_again() {
    for is_slow in [false, true] {
        let bench = Bench::overlapping().await;
        let job = bench.job(&[30_000]);
        let submitted = submitted(&bench, job.clone(), is_slow).await;
        let first = vec![(0, false), (1, false)];
        let halves = job.task_id(0).halves().unwrap();
        let halves = halves.map(|half| (half.index, true));
        assert_eq!(submitted, [first, halves.into()], "{is_slow}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_task_that_cannot_be_cut_goes_on() {
    let bench = Bench::overlapping().await;
    let submitted = submitted(&bench, bench.job(&[10]), true).await;
    assert_eq!(submitted, [vec![(0, false), (1, false)]]);
}

/// Runs jobs in this process, each until it is told to end.
struct Here(Semaphore);

#[async_trait]
impl Compactor for Here {
    async fn compact(
        &self,
        _job: Arc<CompactionJob>,
        _context: CompactionContext,
    ) -> Result<CompactionOutcome> {
        self.0.acquire().await.unwrap().forget();
        Ok(CompactionOutcome::default())
    }

    fn capacity(&self) -> Capacity {
        Capacity { jobs: 8 }
    }

    fn kind(&self) -> &'static str {
        "here"
    }
}

#[tokio::test(start_paused = true)]
async fn no_more_jobs_fall_back_at_once_than_may_and_the_others_wait_for_the_fleet() {
    let (script, store) = (Arc::new(Script::default()), memory());
    script.lacks_nodes.store(true, Ordering::Relaxed);
    let config = RemoteConfig {
        fallback: Fallback::Local,
        fallback_after: Millis(0),
        fallback_jobs_max: 1,
        ..RemoteConfig::default()
    };
    let here = Arc::new(Here(Semaphore::new(0)));
    let (service, owner) = (script.clone(), "o".into());
    let compactor = RemoteCompactor::new(service, store.clone(), owner, config, Env::default());
    let compactor = Arc::new(compactor.with_fallback(here.clone()));
    let spawn = |number| {
        let compactor = compactor.clone();
        let compact = async move {
            let context = CompactionContext::default();
            compactor.compact(job(number, 1), context).await
        };
        tokio::spawn(compact)
    };
    let is_held = || {
        compactor
            .waiting()
            .is_some_and(|why| why.contains("fallback_jobs_max"))
    };
    let first = spawn(1);
    until(|| compactor.fallbacks().jobs.get("no nodes") == Some(&1)).await;
    assert_eq!(compactor.fallbacks_held(), 0);
    let second = spawn(2);
    until(is_held).await;
    assert_eq!(compactor.fallbacks_held(), 1);
    // It looks again and again, is counted once, and takes the place when it comes free.
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(compactor.fallbacks_held(), 1);
    assert_eq!(compactor.fallbacks().jobs["no nodes"], 1);
    here.0.add_permits(1);
    first.await.unwrap().unwrap();
    until(|| compactor.fallbacks().jobs["no nodes"] == 2).await;
    assert!(!is_held());
    // Another one goes to the fleet, which has come back.
    let third = spawn(3);
    until(is_held).await;
    script.lacks_nodes.store(false, Ordering::Relaxed);
    write_results(&store, &job(3, 1)).await;
    let node = "n".into();
    *script.state.lock().unwrap() = Some(TaskState::Done { node });
    third.await.unwrap().unwrap();
    assert_eq!(
        (
            compactor.fallbacks().jobs["no nodes"],
            compactor.fallbacks_held()
        ),
        (2, 2)
    );
    here.0.add_permits(1);
    second.await.unwrap().unwrap();
}

#[tokio::test]
async fn the_wait_for_a_node_is_measured_once_a_job_and_fades() {
    let (script, clock) = (
        Arc::new(Script::default()),
        Arc::new(ManualClock::default()),
    );
    let env = Env::seeded(clock.clone(), 7);
    let fleet = FleetView::new(script.clone(), &RemoteConfig::default(), env);
    let unmeasured = fleet.queue_time();
    let watch = async |job| fleet.watch(job, 0, Duration::ZERO).await.unwrap();
    let job = |number| JobSubmission::sample("o", JobId::from_parts(1, number), 1, 1);
    fleet.submit(job(1)).await.unwrap();
    *script.state.lock().unwrap() = Some(TaskState::Queued);
    clock.advance(Duration::from_secs(10));
    watch(job(1).job).await;
    assert_eq!(fleet.queue_time(), unmeasured);
    *script.state.lock().unwrap() = Some(TaskState::Running {
        node: "n".into(),
        token: Token(1),
        slow: false,
    });
    watch(job(1).job).await;
    assert_eq!(fleet.queue_time(), Duration::from_secs(10));
    clock.advance(Duration::from_secs(60));
    watch(job(1).job).await;
    let faded = fleet.queue_time() - unmeasured;
    assert_eq!(faded, (Duration::from_secs(10) - unmeasured) / 2);
    // A job that is taken at once makes it shorter.
    fleet.submit(job(2)).await.unwrap();
    watch(job(2).job).await;
    assert_eq!(fleet.queue_time(), Duration::from_secs(7));

    // Jobs under way tell that nodes are gone before anyone asks.
    assert_eq!(fleet.seen(), FleetSeen::Unknown);
    fleet.look().await;
    script.lacks_nodes.store(true, Ordering::Relaxed);
    watch(job(2).job).await;
    assert_eq!(fleet.seen(), FleetSeen::There(Fleet::default()));
}
