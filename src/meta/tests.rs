//! The service: long polls, placement over waiting nodes, takeover. What goes wrong has files of its own.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::task::JoinHandle;

use super::{MemoryPlanLog, MetaService, NodeState, ObjectPlanLog, PlanLog};
use crate::{
    clock::{Env, ManualClock},
    compaction::remote::{
        AttemptId, CAPABILITY, JobService, JobSubmission, NodeFacts, NodePoll, PollReply, TaskEnd,
        TaskProgress, TaskReport, TaskState,
    },
    config::MetaConfig,
    error::{ErrorKind, Result},
    store::Store,
    types::JobId,
};

mod attendance;
mod broken_nodes;
mod format;
mod lifetimes;
mod outages;

const WAIT: Duration = Duration::from_secs(3);

/// An environment whose clock follows tokio's paused one.
pub(crate) fn env() -> Env {
    Env::following_tokio(Duration::from_millis(10))
}

async fn open(log: impl PlanLog) -> Arc<MetaService> {
    let service = MetaService::open(MetaConfig::default(), Box::new(log), env()).await;
    service.unwrap()
}

fn job(number: u128) -> JobId {
    JobId::from_parts(1, number)
}

fn submission(owner: &str, number: u128, tasks: u32) -> JobSubmission {
    JobSubmission::sample(owner, job(number), tasks, 1)
}

fn node(id: &str, slots: u32) -> NodePoll {
    NodePoll {
        facts: NodeFacts::sample(id, slots),
        slots_free: slots,
        draining: false,
        running: vec![],
        finished: vec![],
    }
}

fn holding(mut poll: NodePoll, running: &[AttemptId]) -> NodePoll {
    poll.slots_free -= running.len() as u32;
    let running = running.iter().map(|&attempt| TaskProgress {
        attempt,
        progress: 1,
    });
    poll.running = running.collect();
    poll
}

fn finished(mut poll: NodePoll, attempts: &[AttemptId]) -> NodePoll {
    let done = attempts.iter().map(|&attempt| TaskReport {
        attempt,
        end: TaskEnd::Done,
    });
    poll.finished = done.collect();
    poll
}

fn waiting(service: &Arc<MetaService>, poll: NodePoll) -> JoinHandle<Result<PollReply>> {
    let service = service.clone();
    tokio::spawn(async move { service.poll(poll, WAIT).await })
}

/// A node all of whose tasks end at once with `end`. It polls on through outages.
fn polling(service: &Arc<MetaService>, mut poll: NodePoll, end: TaskEnd) -> JoinHandle<()> {
    let service = service.clone();
    tokio::spawn(async move {
        loop {
            let Ok(reply) = service.poll(poll.clone(), WAIT).await else {
                tokio::time::sleep(Duration::from_millis(200)).await;
                continue;
            };
            poll.finished.clear();
            let ended = reply.attempts().into_iter().map(|attempt| TaskReport {
                attempt,
                end: end.clone(),
            });
            poll.finished.extend(ended);
        }
    })
}

/// Waits until all tasks of `job` have ended; tells where.
async fn ended(service: &MetaService, job: JobId) -> Vec<TaskState> {
    let (mut seen, mut states) = (0, BTreeMap::new());
    loop {
        let status = service.watch(job, seen, WAIT).await.unwrap();
        seen = status.revision;
        states.extend(status.tasks);
        let open =
            |state: &TaskState| matches!(state, TaskState::Queued | TaskState::Running { .. });
        if !states.values().any(open) {
            return states.into_values().collect();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn two_idle_nodes_get_one_task_each() {
    let service = open(MemoryPlanLog::default()).await;
    for id in ["a", "b"] {
        let reply = service.poll(node(id, 4), WAIT).await.unwrap();
        assert!(
            reply.assignments.is_empty(),
            "the first answer comes at once"
        );
    }
    let (a, b) = (
        waiting(&service, node("a", 4)),
        waiting(&service, node("b", 4)),
    );
    tokio::time::sleep(Duration::from_millis(50)).await;
    service.submit(submission("o", 1, 2)).await.unwrap();
    let (a, b) = (a.await.unwrap().unwrap(), b.await.unwrap().unwrap());
    assert_eq!((a.assignments.len(), b.assignments.len()), (1, 1));
    assert_eq!(a.jobs, [(job(1), vec![1, 2, 3].into())]);
    service.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn fast_poller_leaves_a_place_for_who_was_just_answered() {
    let service = open(MemoryPlanLog::default()).await;
    for id in ["a", "b"] {
        service.poll(node(id, 4), WAIT).await.unwrap();
    }
    // Only a is waiting; b is on its way back.
    let a = waiting(&service, node("a", 4));
    tokio::time::sleep(Duration::from_millis(20)).await;
    service.submit(submission("o", 1, 4)).await.unwrap();
    let a = a.await.unwrap().unwrap();
    let b = service.poll(node("b", 4), WAIT).await.unwrap();
    assert_eq!((a.assignments.len(), b.assignments.len()), (2, 2));
    service.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn owners_take_turns() {
    let service = open(MemoryPlanLog::default()).await;
    service.submit(submission("big", 1, 50)).await.unwrap();
    service.submit(submission("small", 2, 2)).await.unwrap();
    let reply = service.poll(node("a", 4), WAIT).await.unwrap();
    let small = reply.attempts().into_iter();
    let small = small.filter(|attempt| attempt.task.job == job(2)).count();
    assert_eq!((reply.assignments.len(), small), (4, 2));
    service.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn lost_answer_is_said_again_and_silence_stops() {
    let service = open(MemoryPlanLog::default()).await;
    service.submit(submission("o", 1, 1)).await.unwrap();
    let first = service.poll(node("a", 2), WAIT).await.unwrap();
    let again = service.poll(node("a", 2), WAIT).await.unwrap();
    assert_eq!(first.assignments, again.assignments);
    let attempt = first.attempts()[0];
    let held = waiting(&service, holding(node("a", 2), &[attempt]));
    tokio::time::sleep(Duration::from_millis(500)).await;
    service.release(job(1)).await.unwrap();
    let reply = held.await.unwrap().unwrap();
    assert!(reply.renewed.is_empty(), "released: {reply:?}");
    service.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn node_that_keeps_a_job_is_not_sent_it_again() {
    let service = open(MemoryPlanLog::default()).await;
    service.submit(submission("o", 1, 3)).await.unwrap();
    let first = service.poll(node("a", 1), WAIT).await.unwrap();
    assert_eq!((first.assignments.len(), first.jobs.len()), (1, 1));
    let poll = finished(node("a", 1), &first.attempts());
    let second = service.poll(poll, WAIT).await.unwrap();
    assert_eq!((second.assignments.len(), second.jobs.len()), (1, 0));
    // One that does not say so is.
    let mut poll = finished(node("a", 1), &second.attempts());
    poll.facts.capabilities = vec![CAPABILITY.into()];
    let third = service.poll(poll, WAIT).await.unwrap();
    assert_eq!((third.assignments.len(), third.jobs.len()), (1, 1));
    service.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn lists_are_watched() {
    let service = open(MemoryPlanLog::default()).await;
    let empty = service.watch_nodes(0, WAIT).await.unwrap();
    assert_eq!(empty.items, []);
    let unchanged = service.watch_nodes(empty.revision, WAIT).await.unwrap();
    assert_eq!(unchanged, empty, "after the wait");
    let (changed, polled) = tokio::join!(
        service.watch_nodes(empty.revision, Duration::from_secs(50)),
        service.poll(node("a", 2), WAIT),
    );
    let (changed, polled) = (changed.unwrap(), polled.unwrap());
    assert_eq!((changed.items.len(), polled.assignments.len()), (1, 0));
    let (jobs, submitted) = tokio::join!(
        service.watch_jobs(changed.revision, Duration::from_secs(50)),
        service.submit(submission("o", 1, 1)),
    );
    submitted.unwrap();
    let jobs = jobs.unwrap();
    assert_eq!(jobs.items.len(), 1);
    assert_ne!(jobs.revision, changed.revision, "not for the wait's end");
    service.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn what_is_left_of_a_job_is_estimated_from_what_was_completed() {
    let service = open(MemoryPlanLog::default()).await;
    let bytes = 100 << 20;
    let sized = |number| JobSubmission::sample("o", job(number), 6, bytes);
    service.submit(sized(1)).await.unwrap();
    let estimate = async || service.jobs().await.unwrap()[0].done_estimate;
    assert_eq!(estimate().await, None, "there are no nodes");
    for _ in 0..6 {
        let reply = service.poll(node("a", 1), WAIT).await.unwrap();
        tokio::time::sleep(Duration::from_secs(4)).await;
        let poll = finished(node("a", 1), &reply.attempts());
        service
            .poll(
                NodePoll {
                    draining: true,
                    ..poll
                },
                WAIT,
            )
            .await
            .unwrap();
    }
    assert_eq!(estimate().await, None, "it is done");
    service.release(job(1)).await.unwrap();
    service.submit(sized(2)).await.unwrap();
    service.poll(node("b", 2), WAIT).await.unwrap();
    // Six of four seconds, and one for overhead each, two at a time.
    let done_in = estimate().await.unwrap().as_secs_f64();
    assert!((12.0..=16.0).contains(&done_in), "{done_in}");
    service.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn watch_waits_for_a_change() {
    let service = open(MemoryPlanLog::default()).await;
    let error = service.watch(job(1), 0, WAIT).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    service.submit(submission("o", 1, 1)).await.unwrap();
    let status = service.watch(job(1), 0, WAIT).await.unwrap();
    assert_eq!(status.tasks, [(0, TaskState::Queued)]);
    let unchanged = service.watch(job(1), status.revision, WAIT).await.unwrap();
    assert_eq!(unchanged.revision, status.revision);
    assert_eq!(unchanged.tasks, [], "only what has changed is said again");
    let watch = {
        let service = service.clone();
        tokio::spawn(async move { service.watch(job(1), status.revision + 1, WAIT).await })
    };
    let reply = service.poll(node("a", 1), WAIT).await.unwrap();
    let poll = finished(node("a", 1), &reply.attempts());
    let reply = service.poll(poll, WAIT).await.unwrap();
    assert_eq!(reply.acknowledged.len(), 1);
    let status = watch.await.unwrap().unwrap();
    assert_eq!(status.tasks, [(0, TaskState::Done { node: "a".into() })]);
    service.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn silent_node_loses_its_tasks_to_another() {
    let service = open(MemoryPlanLog::default()).await;
    service.submit(submission("o", 1, 1)).await.unwrap();
    let lost = service.poll(node("a", 1), WAIT).await.unwrap();
    loop {
        let reply = service.poll(node("b", 1), WAIT).await.unwrap();
        if let [attempt] = reply.attempts()[..] {
            assert!(attempt.token > lost.attempts()[0].token);
            break;
        }
    }
    let nodes = service.nodes().await.unwrap();
    let states: Vec<_> = nodes.iter().map(|node| node.state).collect();
    assert_eq!(states, [NodeState::Silent, NodeState::Active]);
    let jobs = service.jobs().await.unwrap();
    assert_eq!(jobs[0].tasks[0].attempts, 1);
    assert_eq!(
        jobs[0].count(|state| matches!(state, TaskState::Running { .. })),
        1
    );
    service.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn older_process_of_a_node_is_told_to_end() {
    let service = open(MemoryPlanLog::default()).await;
    let mut newer = node("a", 1);
    newer.facts.session = 2;
    service.poll(newer, WAIT).await.unwrap();
    let error = service.poll(node("a", 1), WAIT).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Fenced);
    service.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn reopened_service_goes_on_and_the_old_one_is_out() {
    let store = Store::open("memory:///").unwrap();
    let log = || ObjectPlanLog::new(store.clone(), Env::default());
    let old = open(log()).await;
    old.submit(submission("o", 1, 3)).await.unwrap();
    let given = old.poll(node("a", 2), WAIT).await.unwrap().attempts();
    let poll = finished(holding(node("a", 2), &given[1..]), &given[..1]);
    let third = old.poll(poll, WAIT).await.unwrap().attempts();
    assert_eq!(third.len(), 1);

    let new = open(log()).await;
    let poll = holding(node("a", 2), &[given[1], third[0]]);
    let reply = new.poll(poll, WAIT).await.unwrap();
    assert_eq!(reply.renewed, [given[1], third[0]], "tasks come back");
    assert_eq!(reply.assignments, [], "nothing is run again");
    let error = new.watch(job(1), 0, WAIT).await.unwrap_err();
    assert_eq!(
        error.kind(),
        ErrorKind::NotFound,
        "its body is not in the log"
    );
    new.submit(submission("o", 1, 3)).await.unwrap();
    let done = new.watch(job(1), 0, WAIT).await.unwrap();
    assert_eq!(done.tasks[0].1, TaskState::Done { node: "a".into() });

    let error = old.submit(submission("o", 2, 1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let ended = old.run(std::future::pending()).await.unwrap_err();
    assert_eq!(ended.kind(), ErrorKind::Fenced);
    new.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn restarted_service_says_a_lost_assignment_once_it_has_the_job_again() {
    let store = Store::open("memory:///").unwrap();
    let log = || ObjectPlanLog::new(store.clone(), Env::default());
    let old = open(log()).await;
    old.submit(submission("o", 1, 1)).await.unwrap();
    let lost = old.poll(node("a", 1), WAIT).await.unwrap().attempts();
    let new = open(log()).await;
    let first = new.poll(node("a", 1), WAIT).await.unwrap();
    assert_eq!(first.assignments, [], "there is nothing to hand on yet");
    let held = waiting(&new, node("a", 1));
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!held.is_finished(), "nor is there anything to say");
    new.submit(submission("o", 1, 1)).await.unwrap();
    let reply = held.await.unwrap().unwrap();
    assert_eq!((reply.attempts(), reply.jobs.len()), (lost, 1));
    new.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn long_log_is_replayed_from_a_snapshot() {
    let store = Store::open("memory:///").unwrap();
    let log = || ObjectPlanLog::new(store.clone(), Env::default());
    let old = open(log()).await;
    for number in 0..300 {
        old.submit(submission("o", number, 1)).await.unwrap();
    }
    let jobs = old.jobs().await.unwrap();
    old.close().await.unwrap();
    let replay = log().open().await.unwrap();
    assert!(replay.snapshot.is_some() && replay.updates.len() < 256);
    let new = open(log()).await;
    assert_eq!(new.jobs().await.unwrap(), jobs);
    new.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn numbers_beyond_reason_do_no_harm() {
    let service = open(MemoryPlanLog::default()).await;
    let mut huge = submission("o", 1, 4);
    huge.tasks.iter_mut().for_each(|task| task.bytes = u64::MAX);
    service.submit(huge).await.unwrap();
    let mut boaster = node("a", 2);
    boaster.slots_free = 100;
    let reply = service.poll(boaster, WAIT).await.unwrap();
    assert_eq!(reply.assignments.len(), 2, "no more than its slots");
    let nodes = service.nodes().await.unwrap();
    assert_eq!(nodes[0].bytes, u64::MAX);
    service.close().await.unwrap();
}
