//! A node against a scripted meta service, in paused time.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use tokio::{runtime::Handle, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use super::{MetaLink, Node, NodeView, TaskRunner, fake::job};
use crate::{
    clock::Env,
    compaction::{
        Attempt, CompactionJob, Task,
        cleanup::CleanupJob,
        remote::{Assignment, AttemptId, NodePoll, PollReply, TaskEnd, TaskReport},
    },
    config::{Millis, NodeConfig},
    error::{Error, ErrorKind, Result},
    types::{JobId, TableId, TaskId, Token},
};

const LEASE: Duration = Duration::from_secs(10);

fn env() -> Env {
    Env::following_tokio(Duration::from_millis(10))
}

/// What each task of the job does, by index.
#[derive(Clone, Copy)]
enum Work {
    Succeed,
    Panic,
    UntilCancelled,
    IgnoreCancel,
}

struct Works(Vec<Work>);

#[async_trait]
impl TaskRunner for Works {
    async fn run(&self, _job: Arc<CompactionJob>, task: Task, attempt: Attempt) -> Result<()> {
        let index = task.id.index;
        match self.0[index as usize] {
            Work::Succeed => Ok(()),
            Work::Panic => panic!("task {index} is broken"),
            Work::UntilCancelled => {
                attempt.cancel.cancelled().await;
                Err(Error::closed("cancelled"))
            }
            Work::IgnoreCancel => std::future::pending().await,
        }
    }

    async fn clean(&self, _job: Arc<CleanupJob>, attempt: Attempt) -> Result<()> {
        attempt.progress.add_deleted(3);
        attempt.progress.add_kept(2);
        attempt.cancel.cancelled().await;
        Ok(())
    }
}

#[derive(Default)]
struct Script {
    /// Given out, and renewed while here.
    assigned: BTreeSet<AttemptId>,
    away: bool,
    polls: Vec<NodePoll>,
    reports: Vec<TaskReport>,
}

struct Meta {
    script: Mutex<Script>,
    body: bytes::Bytes,
}

impl Meta {
    fn change<T>(&self, change: impl FnOnce(&mut Script) -> T) -> T {
        change(&mut self.script.lock().unwrap())
    }

    fn ends(&self) -> Vec<TaskEnd> {
        self.change(|script| script.reports.iter().map(|r| r.end.clone()).collect())
    }

    fn last_poll(&self) -> NodePoll {
        self.change(|script| script.polls.last().unwrap().clone())
    }
}

#[async_trait]
impl MetaLink for Meta {
    async fn poll(&self, poll: NodePoll, wait: Duration) -> Result<PollReply> {
        let has_news = self.change(|script| {
            script.polls.push(poll.clone());
            let running = poll.running.iter().map(|running| running.attempt);
            !poll.finished.is_empty() || running.collect::<BTreeSet<_>>() != script.assigned
        });
        if !has_news {
            tokio::time::sleep(wait.min(LEASE / 3)).await;
        }
        self.change(|script| {
            if script.away {
                return Err(Error::unavailable("scripted"));
            }
            for report in &poll.finished {
                script.assigned.remove(&report.attempt);
                script.reports.push(report.clone());
            }
            let running = poll.running.iter().map(|running| running.attempt);
            let running: BTreeSet<_> = running.collect();
            Ok(PollReply {
                assignments: script
                    .assigned
                    .difference(&running)
                    .map(|&attempt| Assignment {
                        attempt,
                        range: None,
                        memory: 0,
                    })
                    .collect(),
                jobs: vec![(job_id(), self.body.clone())],
                renewed: script.assigned.intersection(&running).copied().collect(),
                acknowledged: poll.finished.iter().map(|report| report.attempt).collect(),
                lease: LEASE,
                drain: false,
            })
        })
    }

    fn address(&self) -> String {
        "script".into()
    }
}

fn job_id() -> JobId {
    JobId::from_parts(1, 1)
}

fn attempt(index: u32) -> AttemptId {
    AttemptId {
        task: TaskId {
            job: job_id(),
            index,
        },
        token: Token(1 + u64::from(index)),
    }
}

struct Fixture {
    meta: Arc<Meta>,
    stop: CancellationToken,
    run: JoinHandle<Result<()>>,
    view: NodeView,
}

/// A node with two slots whose job's tasks do `works`, all of them assigned.
fn start(works: &[Work]) -> Fixture {
    start_with(works, job(1, works.len()).encode())
}

fn start_with(works: &[Work], body: bytes::Bytes) -> Fixture {
    let meta = Arc::new(Meta {
        script: Mutex::default(),
        body,
    });
    meta.change(|script| script.assigned = (0..works.len() as u32).map(attempt).collect());
    let config = NodeConfig {
        slots: 2,
        drain_timeout: Millis::secs(20),
        ..NodeConfig::default()
    };
    let node = Node::new(config, meta.clone(), env()).unwrap();
    let node = node
        .with_runner(Arc::new(Works(works.to_vec())))
        .with_runtime(Handle::current());
    let (stop, view) = (CancellationToken::new(), node.view());
    let run = tokio::spawn(node.run(stop.clone().cancelled_owned()));
    Fixture {
        meta,
        stop,
        run,
        view,
    }
}

fn kind(end: &TaskEnd) -> Option<ErrorKind> {
    match end {
        TaskEnd::Done => None,
        TaskEnd::Failed { kind, .. } => Some(*kind),
    }
}

async fn seconds(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn ends_are_reported_at_once_and_a_panic_ends_one_task() {
    let node = start(&[Work::Succeed, Work::Panic]);
    seconds(1).await;
    let ends = node.meta.ends();
    assert_eq!(ends.len(), 2, "{ends:?}");
    assert!(ends.contains(&TaskEnd::Done));
    let panicked = TaskEnd::Failed {
        kind: ErrorKind::Internal,
        message: "task panicked: task 1 is broken".into(),
    };
    assert!(ends.contains(&panicked), "{ends:?}");
    assert_eq!(node.meta.last_poll().finished, [], "acknowledged once");
    node.stop.cancel();
    node.run.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn silence_about_a_task_stops_it() {
    let node = start(&[Work::UntilCancelled, Work::UntilCancelled]);
    seconds(1).await;
    assert_eq!(node.meta.last_poll().running.len(), 2);
    node.meta
        .change(|script| script.assigned.remove(&attempt(0)));
    seconds(8).await;
    let poll = node.meta.last_poll();
    assert_eq!(poll.running.len(), 1);
    assert_eq!(poll.slots_free, 1);
    assert_eq!(node.meta.ends(), [], "a disowned task is not spoken of");
    node.stop.cancel();
    seconds(30).await;
    node.run.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn tasks_stop_when_meta_is_away_for_a_lease() {
    let node = start(&[Work::UntilCancelled]);
    seconds(1).await;
    node.meta.change(|script| script.away = true);
    seconds(8).await;
    assert_eq!(node.meta.last_poll().running.len(), 1, "not yet");
    seconds(5).await;
    node.meta.change(|script| script.away = false);
    seconds(5).await;
    let ends = node.meta.ends();
    assert_eq!(
        ends.iter().map(kind).collect::<Vec<_>>(),
        [Some(ErrorKind::Closed)]
    );
    node.stop.cancel();
    node.run.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn draining_hands_back_what_does_not_finish() {
    let node = start(&[Work::UntilCancelled, Work::IgnoreCancel]);
    seconds(1).await;
    node.stop.cancel();
    seconds(1).await;
    // What arrives while it drains is handed back at once.
    node.meta
        .change(|script| script.assigned.insert(attempt(2)));
    seconds(5).await;
    let poll = node.meta.last_poll();
    assert!(poll.draining && poll.slots_free == 0);
    assert_eq!(poll.running.len(), 2);
    let ends: Vec<_> = node.meta.ends().iter().map(kind).collect();
    assert_eq!(ends, [Some(ErrorKind::Closed)]);
    seconds(30).await;
    node.run.await.unwrap().unwrap();
    let ends: Vec<_> = node.meta.ends().iter().map(kind).collect();
    assert_eq!(ends, [Some(ErrorKind::Closed); 3]);
}

#[tokio::test(start_paused = true)]
async fn more_than_the_slots_is_handed_back() {
    let node = start(&[Work::UntilCancelled; 3]);
    seconds(1).await;
    assert_eq!(node.meta.last_poll().running.len(), 2);
    let ends: Vec<_> = node.meta.ends().iter().map(kind).collect();
    assert_eq!(ends, [Some(ErrorKind::Closed)]);
    node.run.abort();
}

/// A job at which Arrow's decoder panics: a byte of a sound one is changed.
fn poisonous() -> bytes::Bytes {
    let sound = job(1, 1).encode();
    let changed = (0..sound.len()).flat_map(|at| [99, 255].map(|byte| (at, byte)));
    let changed = changed.map(|(at, byte)| {
        let mut bytes = sound.to_vec();
        bytes[at] = byte;
        bytes::Bytes::from(bytes)
    });
    let panics = |body: &bytes::Bytes| {
        let decoded = CompactionJob::decode(body.clone());
        decoded.is_err_and(|error| error.to_string().contains("bit width"))
    };
    changed
        .into_iter()
        .find(panics)
        .expect("one byte is enough")
}

#[tokio::test(start_paused = true)]
async fn job_that_does_not_decode_ends_its_tasks_only() {
    for (body, wanted, word) in [
        (poisonous(), ErrorKind::Corrupt, "bit width"),
        (
            bytes::Bytes::from_static(b"nonsense"),
            ErrorKind::Corrupt,
            "job",
        ),
    ] {
        let node = start_with(&[Work::Succeed, Work::Succeed], body);
        seconds(1).await;
        let ends = node.meta.ends();
        assert_eq!(ends.len(), 2, "{ends:?}");
        for end in ends {
            let TaskEnd::Failed { kind, message } = end else {
                panic!("{end:?}");
            };
            assert_eq!(kind, wanted);
            assert!(message.contains(word), "{message}");
        }
        node.stop.cancel();
        node.run.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn cleanup_jobs_are_run_as_such_and_counted_as_such() {
    let body = CleanupJob {
        id: job_id(),
        table: TableId::from_parts(1, 1),
        store_url: "memory:///".into(),
        names: vec!["x".into()],
    };
    // Such a job has one task.
    let node = start_with(&[Work::Panic, Work::Panic], body.encode());
    seconds(1).await;
    let poll = node.meta.last_poll();
    let running: Vec<_> = poll
        .running
        .iter()
        .map(|running| (running.attempt.task.index, running.progress))
        .collect();
    assert_eq!(running, [(0, 5)], "what it did moves its counter");
    let ends: Vec<_> = node.meta.ends().iter().map(kind).collect();
    assert_eq!(ends, [Some(ErrorKind::Invalid)]);
    // Meta is silent about it: it ends.
    node.meta.change(|script| script.assigned.clear());
    seconds(20).await;
    let stats = node.view.stats();
    assert_eq!((stats.objects_deleted, stats.delete_failures), (3, 2));
    assert_eq!(stats.rows_merged, 0);
    node.stop.cancel();
    node.run.await.unwrap().unwrap();
}
