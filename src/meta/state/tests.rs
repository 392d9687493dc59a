//! The plan's rules as stories, each update applied twice and replayed from its encoding.

mod steering;

use std::{sync::Arc, time::Duration};

use super::{Limits, Now, Phase, Report, Request, State};
use crate::{
    compaction::remote::{
        AttemptId, JobSubmission, TaskEnd, TaskProgress, TaskReport, TaskState, TaskSubmission,
    },
    error::{Error, ErrorKind},
    meta::{codec, update::PlanUpdate},
    types::{JobId, TaskId},
};

const LEASE: u64 = 10;

pub(super) fn limits() -> Limits {
    Limits {
        lease: Duration::from_secs(LEASE),
        stall_timeout: Duration::from_secs(60),
        task_attempts_max: 3,
        queue_tasks_max: 10,
        jobs_per_owner_max: 6,
        tasks_per_job_max: 20,
    }
}

pub(super) fn at(seconds: u64) -> Now {
    Now {
        monotonic: Duration::from_secs(seconds),
        unix_ms: 1_700_000_000_000 + seconds * 1000,
    }
}

pub(super) fn submission(owner: &str, number: u128, tasks: u32) -> Request {
    Request::Submit(Arc::new(JobSubmission::sample(
        owner,
        job(number),
        tasks,
        100,
    )))
}

pub(super) fn job(number: u128) -> JobId {
    JobId::from_parts(7, number)
}

/// A plan that checks, with every request, that applying twice and replaying change nothing.
struct Story {
    state: State,
    log: Vec<PlanUpdate>,
}

impl Story {
    fn new() -> Self {
        Self {
            state: State::new(limits()),
            log: Vec::new(),
        }
    }

    fn ask(&mut self, request: &Request, now: Now) -> Result<PlanUpdate, Error> {
        let before = self.state.snapshot();
        let update = self.state.prepare(request, now)?;
        assert_eq!(self.state.snapshot(), before, "prepare changed the plan");
        self.state.apply(&update);
        let once = self.state.snapshot();
        self.state.apply(&update);
        assert_eq!(self.state.snapshot(), once, "applying twice");
        assert!(self.state.index_agrees());
        self.log.push(update.clone());
        let replayed = self.replay();
        assert_eq!(replayed.snapshot(), once, "replay");
        Ok(update)
    }

    fn replay(&self) -> State {
        let mut state = State::new(limits());
        for update in codec::decode_updates(codec::encode_updates(&self.log)).unwrap() {
            state.apply(&update);
        }
        state
    }

    fn submit(&mut self, number: u128, tasks: u32) {
        self.ask(&submission("a", number, tasks), at(0)).unwrap();
    }

    fn assign(&mut self, task: TaskId, node: &str, seconds: u64) -> AttemptId {
        let request = Request::Assign {
            task,
            node: node.into(),
            session: 1,
            hedge: false,
        };
        let update = self.ask(&request, at(seconds)).unwrap();
        update.assigned[0].attempt
    }

    fn running(&mut self, node: &str, attempt: AttemptId, progress: u64, seconds: u64) {
        let running = vec![TaskProgress { attempt, progress }];
        let report = Report {
            node: node.into(),
            session: 1,
            running,
            finished: vec![],
        };
        self.ask(&Request::Report(report), at(seconds)).unwrap();
    }

    fn finish(&mut self, node: &str, attempt: AttemptId, end: TaskEnd, seconds: u64) {
        let report = Report {
            node: node.into(),
            session: 1,
            running: vec![],
            finished: vec![TaskReport { attempt, end }],
        };
        self.ask(&Request::Report(report), at(seconds)).unwrap();
    }

    fn expire(&mut self, seconds: u64) {
        self.ask(&Request::Expire, at(seconds)).unwrap();
    }

    fn state_of(&self, task: TaskId) -> TaskState {
        self.state.task(task).unwrap().state()
    }

    fn attempts(&self, task: TaskId) -> u32 {
        self.state.task(task).unwrap().attempts
    }
}

fn first() -> TaskId {
    TaskId {
        job: job(1),
        index: 0,
    }
}

fn failed(kind: ErrorKind) -> TaskEnd {
    TaskEnd::Failed {
        kind,
        message: "it broke".into(),
    }
}

fn done(node: &str) -> TaskState {
    TaskState::Done { node: node.into() }
}

#[test]
fn lease_goes_on_for_its_owner_only() {
    let mut story = Story::new();
    story.submit(1, 1);
    let attempt = story.assign(first(), "n", 0);
    story.running("other", attempt, 1, 8);
    story.running("n", attempt, 1, 5);
    story.expire(14);
    assert!(story.state.holds(&"n".into(), 1, attempt));
    story.expire(15);
    assert_eq!(story.state_of(first()), TaskState::Queued);
    assert_eq!(story.attempts(first()), 1, "a lost node counts");
    story.running("n", attempt, 2, 16);
    assert_eq!(story.state_of(first()), TaskState::Queued, "too late");
}

#[test]
fn hung_task_loses_its_lease_though_polled() {
    let mut story = Story::new();
    story.submit(1, 1);
    let attempt = story.assign(first(), "n", 0);
    for seconds in (5..=60).step_by(5) {
        story.running("n", attempt, 0, seconds);
        story.expire(seconds);
        assert!(story.state.holds(&"n".into(), 1, attempt), "{seconds}");
    }
    story.running("n", attempt, 0, 65);
    assert_eq!(story.state_of(first()), TaskState::Queued);
    assert_eq!(story.attempts(first()), 1);
}

#[test]
fn each_kind_of_failure_has_its_consequence() {
    for (kind, attempts, requeued) in [
        (ErrorKind::Unavailable, 0, true),
        (ErrorKind::Closed, 0, true),
        (ErrorKind::Internal, 1, true),
        (ErrorKind::Conflict, 1, true),
        (ErrorKind::Corrupt, 1, true),
        (ErrorKind::Invalid, 1, true),
        (ErrorKind::NotFound, 1, true),
        (ErrorKind::TooLarge, 1, false),
    ] {
        let mut story = Story::new();
        story.submit(1, 1);
        let attempt = story.assign(first(), "n", 0);
        story.finish("n", attempt, failed(kind), 1);
        assert_eq!(story.attempts(first()), attempts, "{kind}");
        let message = "it broke".to_owned();
        let wanted = match requeued {
            true => TaskState::Queued,
            false => TaskState::Failed { kind, message },
        };
        assert_eq!(story.state_of(first()), wanted, "{kind}");
        let waits = matches!(story.state.task(first()).unwrap().phase,
            Phase::Queued { ready_at } if ready_at > at(1).monotonic);
        let is_handed_back = kind == ErrorKind::Closed;
        assert_eq!(waits, requeued && !is_handed_back, "{kind}");
        let avoids = !story.state.task(first()).unwrap().avoid.is_empty();
        assert_eq!(avoids, requeued, "{kind}");
    }
}

#[test]
fn attempts_are_bounded() {
    let mut story = Story::new();
    story.submit(1, 1);
    for round in 0..3 {
        let attempt = story.assign(first(), "n", round * 100);
        story.expire(round * 100 + 50);
        assert!(!story.state.holds(&"n".into(), 1, attempt));
    }
    let TaskState::Failed { kind, message } = story.state_of(first()) else {
        panic!("still {:?}", story.state_of(first()));
    };
    assert_eq!(kind, ErrorKind::Internal);
    assert!(
        message.contains("3 attempts") && message.contains("node n"),
        "{message}"
    );
    assert_eq!(story.state.open_tasks(), 0);
}

#[test]
fn last_failure_says_why_a_task_was_given_up() {
    for (last, wanted) in [
        (ErrorKind::Corrupt, ErrorKind::Corrupt),
        (ErrorKind::Invalid, ErrorKind::Invalid),
        (ErrorKind::NotFound, ErrorKind::NotFound),
        // To the engine these would speak of the engine itself.
        (ErrorKind::Fenced, ErrorKind::Internal),
        (ErrorKind::Conflict, ErrorKind::Internal),
    ] {
        let mut story = Story::new();
        story.submit(1, 1);
        for (node, kind) in [
            ("a", ErrorKind::Internal),
            ("b", ErrorKind::Invalid),
            ("c", last),
        ] {
            let attempt = story.assign(first(), node, 0);
            story.finish(node, attempt, failed(kind), 1);
        }
        let TaskState::Failed { kind, message } = story.state_of(first()) else {
            panic!("still {:?}", story.state_of(first()));
        };
        assert_eq!(kind, wanted);
        assert!(message.contains("3 attempts"), "{message}");
        assert!(message.contains("node c") && message.contains("it broke"));
    }
}

#[test]
fn done_is_final_whoever_says_it() {
    let mut story = Story::new();
    story.submit(1, 1);
    let old = story.assign(first(), "a", 0);
    story.expire(20);
    let new = story.assign(first(), "b", 21);
    assert!(new.token > old.token);
    story.finish("a", old, failed(ErrorKind::Internal), 22);
    assert!(story.state.holds(&"b".into(), 1, new), "old token ignored");
    story.finish("a", old, TaskEnd::Done, 23);
    assert_eq!(story.state_of(first()), done("a"));
    story.finish("b", new, failed(ErrorKind::Corrupt), 24);
    story.finish("b", new, TaskEnd::Done, 25);
    story.running("b", new, 5, 26);
    story.expire(99);
    assert_eq!(story.state_of(first()), done("a"));
}

#[test]
fn submitting_again_changes_nothing() {
    let mut story = Story::new();
    story.submit(1, 2);
    let attempt = story.assign(first(), "n", 0);
    story.finish("n", attempt, TaskEnd::Done, 1);
    let update = story.ask(&submission("a", 1, 2), at(2)).unwrap();
    assert!(update.is_empty());
    assert_eq!(story.state_of(first()), done("n"));
    let error = story.ask(&submission("b", 1, 2), at(3)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "another owner's job");
}

/// A submission of job 1 that lacks the tasks `indexes`.
fn lacking(indexes: &[u32]) -> Request {
    let mut job = JobSubmission::sample("a", job(1), 0, 100);
    let tasks = indexes.iter().map(|&index| TaskSubmission {
        index,
        bytes: 100,
        ..TaskSubmission::default()
    });
    job.tasks = tasks.collect();
    Request::Submit(Arc::new(job))
}

#[test]
fn task_that_its_engine_has_cut_is_run_no_more() {
    let mut story = Story::new();
    story.submit(1, 3);
    let attempt = story.assign(first(), "a", 0);
    story.ask(&Request::CallSlow(attempt), at(1)).unwrap();
    let slow = TaskState::Running {
        node: "a".into(),
        token: attempt.token,
        slow: true,
    };
    assert_eq!(story.state_of(first()), slow);
    let seen = story.state.job(job(1)).unwrap().revision;
    let [left, right] = first().halves().unwrap().map(|half| half.index);
    let cut = lacking(&[1, 2, left, right]);
    let update = story.ask(&cut, at(2)).unwrap();
    assert_eq!(update.cancelled.len(), 1);
    let known = story.state.job(job(1)).unwrap();
    let changed = known.states_since(seen);
    let changed: Vec<u32> = changed.into_iter().map(|(index, _)| index).collect();
    assert_eq!(changed, [0, left, right]);
    assert!(!story.state.holds(&"a".into(), 1, attempt), "it is stopped");
    // Neither what comes late, nor a body alone, undoes that.
    for late in [&[0, 1, 2][..], &[]] {
        let update = story.ask(&lacking(late), at(3)).unwrap();
        assert!(update.is_empty(), "{update:?}");
    }
}

#[test]
fn what_an_engine_says_late_cancels_no_task_that_it_has_cut_since() {
    let mut story = Story::new();
    story.submit(1, 3);
    let halves = |index| {
        let whole = TaskId { index, ..first() };
        whole.halves().unwrap().map(|half| half.index)
    };
    let ([a, b], [c, d]) = (halves(1), halves(0));
    let [e, f] = halves(a);
    story.ask(&lacking(&[0, 2, a, b]), at(1)).unwrap();
    let update = story.ask(&lacking(&[2, b, c, d, e, f]), at(2)).unwrap();
    let cancelled = update.cancelled.iter();
    let cancelled: Vec<u32> = cancelled.map(|cancelled| cancelled.task.index).collect();
    assert_eq!(cancelled, [0, a]);
    for late in [&[0, 1, 2][..], &[0, 2, a, b]] {
        let update = story.ask(&lacking(late), at(3)).unwrap();
        assert!(update.is_empty(), "{update:?}");
    }
    // Of what is named, or cut from what is named, everything stays; the rest has ended.
    let update = story.ask(&lacking(&[a, b]), at(4)).unwrap();
    let cancelled = update.cancelled.iter();
    let cancelled: Vec<u32> = cancelled.map(|cancelled| cancelled.task.index).collect();
    assert_eq!(cancelled, [2, c, d]);
}

#[test]
fn queue_is_bounded_and_known_jobs_are_accepted() {
    let mut story = Story::new();
    story.submit(1, 6);
    story.submit(2, 4);
    let error = story.ask(&submission("b", 3, 1), at(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    assert!(error.message().contains("queue_tasks_max 10"), "{error}");
    story.submit(2, 4);
    let error = story.ask(&submission("b", 3, 11), at(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "can never fit");
    story.ask(&Request::Release(job(2)), at(2)).unwrap();
    story.ask(&submission("b", 3, 1), at(3)).unwrap();
}

#[test]
fn released_job_is_gone_with_its_tasks() {
    let mut story = Story::new();
    story.submit(1, 2);
    let attempt = story.assign(first(), "n", 0);
    story.ask(&Request::Release(job(1)), at(1)).unwrap();
    story.ask(&Request::Release(job(1)), at(1)).unwrap();
    assert!(story.state.job(job(1)).is_none());
    assert!(!story.state.holds(&"n".into(), 1, attempt));
    assert_eq!(story.state.open_tasks(), 0);
    story.finish("n", attempt, TaskEnd::Done, 2);
}

#[test]
fn restart_gives_grace_and_tasks_come_back() {
    let mut story = Story::new();
    story.submit(1, 2);
    let attempt = story.assign(first(), "n", 0);
    let second = TaskId {
        index: 1,
        ..first()
    };
    let lost = story.assign(second, "m", 0);
    // The new process's clock starts anew.
    let mut state = story.replay();
    state.restart(at(1000));
    let mut story = Story {
        log: story.log,
        state,
    };
    story.expire(1009);
    assert!(story.state.holds(&"n".into(), 1, attempt));
    story.running("n", attempt, 77, 1009);
    story.expire(1012);
    assert!(story.state.holds(&"n".into(), 1, attempt));
    assert!(!story.state.holds(&"m".into(), 1, lost));
}

#[test]
fn newer_process_of_a_node_has_lost_what_the_older_held() {
    let mut story = Story::new();
    story.submit(1, 2);
    let attempt = story.assign(first(), "n", 0);
    let report = Report {
        node: "n".into(),
        session: 2,
        running: vec![],
        finished: vec![],
    };
    story.ask(&Request::Report(report), at(1)).unwrap();
    assert_eq!(story.state_of(first()), TaskState::Queued);
    assert_eq!(story.attempts(first()), 1);
    assert!(!story.state.holds(&"n".into(), 1, attempt));
}

#[test]
fn snapshot_survives_its_encoding() {
    let mut story = Story::new();
    story.submit(1, 4);
    let tasks = story.state.job(job(1)).unwrap().submission.tasks.clone();
    let ids = tasks.iter().map(|task| TaskId {
        index: task.index,
        ..first()
    });
    let attempts: Vec<_> = ids.map(|task| story.assign(task, "n", 1)).collect();
    story.finish("n", attempts[0], TaskEnd::Done, 2);
    story.finish("n", attempts[1], failed(ErrorKind::Corrupt), 2);
    story.finish("n", attempts[2], failed(ErrorKind::Internal), 2);
    let snapshot = story.state.snapshot();
    let decoded = codec::decode_snapshot(codec::encode_snapshot(&snapshot)).unwrap();
    assert_eq!(decoded, snapshot);
    let state = State::from_snapshot(limits(), decoded);
    assert!(state.index_agrees());
    assert_eq!(state.snapshot(), snapshot);
}
