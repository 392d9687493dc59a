//! Room in the queue, hedges, and what operators wish.

use super::*;
use crate::{
    compaction::remote::{JobClass, Pressure},
    meta::{
        state::{Setting, Target},
        update::Failed,
    },
    types::TableId,
};

fn of(class: JobClass, number: u128, tasks: u32) -> Request {
    let pressure = Pressure { class, score: 1 };
    Request::Submit(Arc::new(JobSubmission {
        pressure,
        ..JobSubmission::sample("a", job(number), tasks, 100)
    }))
}

fn task(number: u128, index: u32) -> TaskId {
    TaskId {
        job: job(number),
        index,
    }
}

#[test]
fn higher_pressure_displaces_the_lowest_when_the_queue_is_full() {
    let mut story = Story::new();
    story.ask(&of(JobClass::Upkeep, 1, 4), at(0)).unwrap();
    story.ask(&of(JobClass::Cleanup, 2, 2), at(0)).unwrap();
    story.ask(&of(JobClass::Upkeep, 3, 4), at(0)).unwrap();
    // What runs keeps its place.
    let running = story.assign(task(2, 0), "n", 0);
    let update = story.ask(&of(JobClass::Level0, 4, 3), at(1)).unwrap();
    // The lowest first; among equals the newest.
    assert_eq!(update.displaced, [task(2, 1), task(3, 3), task(3, 2)]);
    assert_eq!(story.state.open_tasks(), limits().queue_tasks_max);
    assert!(story.state.holds(&"n".into(), 1, running));
    assert_eq!(story.state_of(task(3, 3)), TaskState::Displaced);
    // All or none.
    let before = story.state.snapshot();
    let error = story.ask(&of(JobClass::Level0, 5, 7), at(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    assert!(error.message().contains("queue is full"), "{error}");
    assert_eq!(story.state.snapshot(), before);
    // Equals do not displace one another.
    let error = story.ask(&of(JobClass::Upkeep, 6, 1), at(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
}

#[test]
fn displaced_task_is_queued_again_when_it_is_submitted_again() {
    let mut story = Story::new();
    story.ask(&of(JobClass::Upkeep, 1, 10), at(0)).unwrap();
    story.ask(&of(JobClass::Level0, 2, 1), at(0)).unwrap();
    assert_eq!(story.state_of(task(1, 9)), TaskState::Displaced);
    let error = story.ask(&of(JobClass::Upkeep, 1, 10), at(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge, "there is no room yet");
    story.ask(&Request::Release(job(2)), at(1)).unwrap();
    let update = story.ask(&of(JobClass::Upkeep, 1, 10), at(2)).unwrap();
    let queued: Vec<u32> = update.new[0]
        .job
        .tasks
        .iter()
        .map(|task| task.index)
        .collect();
    assert_eq!(queued, [9], "the others are where they were");
    assert_eq!(story.state_of(task(1, 9)), TaskState::Queued);
}

#[test]
fn more_tasks_of_a_known_job_are_added() {
    let mut story = Story::new();
    story.submit(1, 2);
    let attempt = story.assign(first(), "n", 0);
    story.submit(1, 4);
    assert!(story.state.holds(&"n".into(), 1, attempt));
    assert_eq!(story.state.open_tasks(), 4);
    assert_eq!(story.state.owners().collect::<Vec<_>>(), [(&"a".into(), 1)]);
    let tasks = &story.state.job(job(1)).unwrap().submission.tasks;
    assert_eq!(tasks.len(), 4);
}

#[test]
fn owner_and_job_have_their_caps() {
    let mut story = Story::new();
    for number in 1..=6 {
        story.submit(number, 1);
    }
    let error = story.ask(&submission("a", 7, 1), at(0)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    assert!(
        error.message().contains("jobs_per_owner_max is 6"),
        "{error}"
    );
    story.ask(&submission("b", 8, 1), at(0)).unwrap();
    story.submit(1, 2);
    let error = story.ask(&submission("b", 9, 21), at(0)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(
        error.message().contains("tasks_per_job_max is 20"),
        "{error}"
    );
}

/// A task with a slow attempt on "a", and a hedge on "b".
fn hedged(story: &mut Story) -> (AttemptId, AttemptId) {
    story.submit(1, 1);
    let slow = story.assign(first(), "a", 0);
    let hedge = Request::Assign {
        task: first(),
        node: "b".into(),
        session: 1,
        hedge: true,
    };
    let update = story.ask(&hedge, at(5)).unwrap();
    let error = story.ask(&hedge, at(5)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "two are enough");
    (slow, update.assigned[0].attempt)
}

#[test]
fn first_result_of_a_hedged_task_counts_and_the_other_stops() {
    for winner in ["a", "b"] {
        let mut story = Story::new();
        let (slow, hedge) = hedged(&mut story);
        assert!(story.state.holds(&"a".into(), 1, slow));
        assert!(story.state.holds(&"b".into(), 1, hedge));
        let attempt = if winner == "a" { slow } else { hedge };
        story.finish(winner, attempt, TaskEnd::Done, 6);
        assert_eq!(story.state_of(first()), done(winner));
        assert!(!story.state.holds(&"a".into(), 1, slow));
        assert!(!story.state.holds(&"b".into(), 1, hedge));
    }
}

#[test]
fn failure_of_one_attempt_leaves_the_task_to_the_other() {
    let mut story = Story::new();
    let (slow, hedge) = hedged(&mut story);
    story.finish("a", slow, failed(ErrorKind::TooLarge), 6);
    assert!(story.state.holds(&"b".into(), 1, hedge));
    assert_eq!(story.attempts(first()), 1);
    story.finish("b", hedge, failed(ErrorKind::Internal), 7);
    assert_eq!(story.state_of(first()), TaskState::Queued);
    assert_eq!(story.attempts(first()), 2);
}

#[test]
fn both_attempts_of_a_hedged_task_may_be_lost_at_once() {
    let mut story = Story::new();
    hedged(&mut story);
    story.expire(50);
    assert_eq!(story.state_of(first()), TaskState::Queued);
    assert_eq!(story.attempts(first()), 1);
    // At the last of its attempts that fails it.
    let mut story = Story::new();
    story.submit(2, 1);
    for round in 0..2 {
        story.assign(task(2, 0), "n", round * 100);
        story.expire(round * 100 + 50);
    }
    story.assign(task(2, 0), "a", 300);
    let hedge = Request::Assign {
        task: task(2, 0),
        node: "b".into(),
        session: 1,
        hedge: true,
    };
    story.ask(&hedge, at(300)).unwrap();
    story.expire(350);
    let state = story.state_of(task(2, 0));
    assert!(matches!(state, TaskState::Failed { .. }), "{state:?}");
}

#[test]
fn outages_are_waited_out_longer_and_longer_and_never_counted() {
    let mut story = Story::new();
    story.submit(1, 1);
    let (mut seconds, mut waits) = (0, Vec::new());
    for _ in 0..60 {
        story.state.wake(at(seconds));
        let attempt = story.assign(first(), "n", seconds);
        story.finish("n", attempt, failed(ErrorKind::Unavailable), seconds);
        let Phase::Queued { ready_at } = story.state.task(first()).unwrap().phase else {
            panic!("an outage must not fail it");
        };
        waits.push(ready_at - at(seconds).monotonic);
        seconds = ready_at.as_secs() + 1;
    }
    assert_eq!(story.attempts(first()), 0);
    assert!(waits[0] <= Duration::from_secs(1) && waits[0] >= Duration::from_millis(500));
    assert!(
        waits[20..]
            .iter()
            .all(|&wait| wait <= Duration::from_secs(60))
    );
    assert!(
        waits[20..]
            .iter()
            .all(|&wait| wait >= Duration::from_secs(30))
    );
    assert!(
        waits[20..].windows(2).any(|pair| pair[0] != pair[1]),
        "jitter"
    );
    assert!(seconds > 1800, "an outage of half an hour and more");
}

#[test]
fn cancelled_tasks_end_and_can_be_retried() {
    let targets = [
        Target::Task(first()),
        Target::Job(job(1)),
        Target::Table(TableId::from_parts(1, 1)),
        Target::Owner("a".into()),
    ];
    for target in targets {
        let mut story = Story::new();
        story.submit(1, 1);
        let attempt = story.assign(first(), "n", 0);
        story.ask(&Request::Cancel(target.clone()), at(1)).unwrap();
        assert!(
            !story.state.holds(&"n".into(), 1, attempt),
            "its node stops"
        );
        let TaskState::Cancelled { reason } = story.state_of(first()) else {
            panic!("{target} is still {:?}", story.state_of(first()));
        };
        assert!(reason.contains(&target.to_string()), "{reason}");
        let error = story
            .ask(&Request::Cancel(target.clone()), at(2))
            .unwrap_err();
        assert_eq!(
            error.kind(),
            ErrorKind::NotFound,
            "nothing is left to cancel"
        );
        story.ask(&Request::Retry(target), at(3)).unwrap();
        assert_eq!(story.state_of(first()), TaskState::Queued);
    }
}

#[test]
fn task_that_was_given_up_is_retried_from_the_beginning() {
    let mut story = Story::new();
    story.submit(1, 1);
    let error = story.ask(&Request::Retry(Target::Job(job(1))), at(0));
    assert_eq!(error.unwrap_err().kind(), ErrorKind::NotFound);
    for round in 0..3 {
        story.assign(first(), "n", round * 100);
        story.expire(round * 100 + 50);
    }
    assert!(matches!(story.state_of(first()), TaskState::Failed { .. }));
    story
        .ask(&Request::Retry(Target::Job(job(1))), at(400))
        .unwrap();
    assert_eq!(story.state_of(first()), TaskState::Queued);
    assert_eq!(story.attempts(first()), 0);
    story.assign(first(), "n", 400);
}

#[test]
fn retry_respects_the_size_of_the_queue() {
    let mut story = Story::new();
    story.submit(1, 4);
    let target = Target::Job(job(1));
    story.ask(&Request::Cancel(target.clone()), at(0)).unwrap();
    story.submit(2, 7);
    let error = story
        .ask(&Request::Retry(target.clone()), at(1))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    story.ask(&Request::Release(job(2)), at(2)).unwrap();
    story.ask(&Request::Retry(target), at(3)).unwrap();
}

#[test]
fn task_that_no_node_can_hold_fails_as_too_large() {
    let mut story = Story::new();
    story.submit(1, 2);
    let refuse = Request::Refuse {
        task: first(),
        message: "it takes more than there is".into(),
    };
    let update = story.ask(&refuse, at(1)).unwrap();
    assert!(matches!(
        update.failed[..],
        [Failed {
            token: crate::types::Token(0),
            ..
        }]
    ));
    let TaskState::Failed { kind, .. } = story.state_of(first()) else {
        panic!("still {:?}", story.state_of(first()));
    };
    assert_eq!(kind, ErrorKind::TooLarge);
    // One that has been given out meanwhile goes on.
    let attempt = story.assign(task(1, 1), "n", 2);
    let refuse = Request::Refuse {
        task: task(1, 1),
        message: String::new(),
    };
    assert!(story.ask(&refuse, at(3)).unwrap().is_empty());
    assert!(story.state.holds(&"n".into(), 1, attempt));
}

#[test]
fn settings_outlive_jobs_and_snapshots() {
    let mut story = Story::new();
    for setting in [
        Setting::Weight("a".into(), 7),
        Setting::PauseOwner("b".into(), true),
        Setting::PauseTable(TableId::from_parts(1, 9), true),
    ] {
        story.ask(&Request::Set(setting.clone()), at(0)).unwrap();
        let again = story.ask(&Request::Set(setting), at(0)).unwrap();
        assert!(again.is_empty(), "what is so already is not logged");
    }
    let snapshot = codec::encode_snapshot(&story.state.snapshot());
    let restored = State::from_snapshot(limits(), codec::decode_snapshot(snapshot).unwrap());
    assert_eq!(restored.settings(), story.state.settings());
    assert_eq!(restored.settings().weight(&"a".into()), 7);
    assert_eq!(restored.settings().weight(&"b".into()), 1);
}
