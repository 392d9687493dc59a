//! Shares by numbers, and what is placed before what: many rounds over a plan whose tasks end at once.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use super::{Dispatch, dispatch};
use crate::{
    compaction::remote::{
        AttemptId, JobClass, JobSubmission, Needs, NodeFacts, Pressure, TaskEnd, TaskReport,
        TaskState,
    },
    error::ErrorKind,
    meta::{
        fairness::Fairness,
        hedging::{Speed, stragglers},
        placement::{Candidate, Room},
        state::{Limits, Now, Report, Request, Setting, State, Target},
    },
    types::{JobId, OwnerId, TableId, TaskId},
};

/// A plan, and nodes that run what they are given for one round.
struct Fleet {
    state: State,
    fairness: Fairness,
    nodes: Vec<NodeFacts>,
    seconds: u64,
}

impl Fleet {
    fn new(nodes: Vec<NodeFacts>) -> Self {
        Self {
            state: State::new(Limits {
                lease: Duration::from_secs(10_000),
                stall_timeout: Duration::from_secs(10_000),
                task_attempts_max: 3,
                queue_tasks_max: 100_000,
                jobs_per_owner_max: 1_000,
                tasks_per_job_max: 100_000,
            }),
            fairness: Fairness::default(),
            nodes,
            seconds: 0,
        }
    }

    fn now(&self) -> Now {
        Now {
            monotonic: Duration::from_secs(self.seconds),
            unix_ms: 1_700_000_000_000 + self.seconds * 1000,
        }
    }

    fn ask(&mut self, request: Request) {
        let update = self.state.prepare(&request, self.now()).unwrap();
        self.state.apply(&update);
    }

    fn submit(&mut self, job: JobSubmission) {
        self.ask(Request::Submit(Arc::new(job)));
    }

    fn dispatch(&mut self) -> Dispatch {
        self.dispatch_at(|_| (u32::MAX, u64::MAX))
    }

    /// A round in which each node has as many slots and as much memory free as `room` says.
    fn dispatch_at(&mut self, room: impl Fn(&NodeFacts) -> (u32, u64)) -> Dispatch {
        let now = self.now();
        self.state.wake(now);
        let tables = VecDeque::new();
        let candidates = self.nodes.iter().map(|facts| {
            let (slots, memory) = room(facts);
            let room = Room {
                slots: slots.min(facts.slots),
                memory: memory.min(facts.memory_bytes),
                read: 0,
            };
            Candidate::new(facts, &tables, room, true)
        });
        let mut candidates: Vec<_> = candidates.collect();
        let nodes = self.nodes.iter().map(|facts| (&facts.id, facts));
        let nodes: BTreeMap<_, _> = nodes.collect();
        let fairness = &mut self.fairness;
        dispatch(&self.state, &mut candidates, &nodes, fairness, now)
    }

    fn assign(&mut self, plan: &Dispatch) -> Vec<AttemptId> {
        let mut attempts = Vec::new();
        for (task, node, session) in &plan.assignments {
            self.ask(Request::Assign {
                task: *task,
                node: node.clone(),
                session: *session,
                hedge: false,
            });
            let token = self.state.task(*task).unwrap().token;
            attempts.push(AttemptId { task: *task, token });
        }
        attempts
    }

    /// Gives out what there is room for, and has it end. Tells whose tasks those were.
    fn round(&mut self) -> Vec<OwnerId> {
        let plan = self.dispatch();
        let given = self.assign(&plan);
        let owner = |attempt: &AttemptId| {
            let job = self.state.job(attempt.task.job).unwrap();
            job.submission.owner.clone()
        };
        let owners = given.iter().map(owner).collect();
        let end = TaskEnd::Done;
        let finished = given.into_iter().map(|attempt| TaskReport {
            attempt,
            end: end.clone(),
        });
        let report = Report {
            node: "any".into(),
            session: 1,
            running: vec![],
            finished: finished.collect(),
        };
        self.ask(Request::Report(report));
        owners
    }

    /// The tasks of one round, by job number.
    fn order(&mut self) -> Vec<u128> {
        let plan = self.dispatch();
        let tasks = plan.assignments.iter().map(|(task, ..)| task.job);
        let numbers = (0..50).map(|number| (job(number), number));
        let numbers: BTreeMap<_, _> = numbers.collect();
        tasks.map(|job| numbers[&job]).collect()
    }
}

fn job(number: u128) -> JobId {
    JobId::from_parts(1, number)
}

fn sample(owner: &str, number: u128, tasks: u32) -> JobSubmission {
    JobSubmission::sample(owner, job(number), tasks, 100)
}

fn of(class: JobClass, number: u128) -> JobSubmission {
    let pressure = Pressure { class, score: 0 };
    JobSubmission {
        pressure,
        ..sample("o", number, 1)
    }
}

fn with_memory(mut job: JobSubmission, memory: u64) -> JobSubmission {
    job.tasks.iter_mut().for_each(|task| task.memory = memory);
    job
}

#[test]
fn small_owner_is_done_as_soon_as_its_share_allows() {
    let mut fleet = Fleet::new(vec![NodeFacts::sample("n", 4)]);
    fleet.submit(sample("big", 1, 10_000));
    fleet.round();
    fleet.submit(sample("small", 2, 10));
    // Four a round, of which two are its share.
    let rounds: Vec<usize> = (0..5)
        .map(|_| {
            let owners = fleet.round();
            owners.iter().filter(|owner| owner.0 == "small").count()
        })
        .collect();
    assert_eq!(rounds, [2, 2, 2, 2, 2]);
    assert_eq!(fleet.state.queued_tasks(), 10_000 - 4 - 10);
}

#[test]
fn weights_of_three_to_one_give_three_to_one() {
    let mut fleet = Fleet::new(vec![NodeFacts::sample("n", 3)]);
    fleet.submit(sample("a", 1, 5_000));
    fleet.submit(sample("b", 2, 5_000));
    fleet.ask(Request::Set(Setting::Weight("a".into(), 3)));
    let mut counts = BTreeMap::<String, usize>::new();
    for _ in 0..400 {
        for owner in fleet.round() {
            *counts.entry(owner.0).or_default() += 1;
        }
    }
    assert_eq!(counts, [("a".into(), 900), ("b".into(), 300)].into());
}

#[test]
fn pressure_goes_first_and_nothing_waits_for_ever() {
    let mut fleet = Fleet::new(vec![NodeFacts::sample("n", 9)]);
    fleet.submit(of(JobClass::Cleanup, 1));
    fleet.submit(of(JobClass::Upkeep, 2));
    fleet.submit(of(JobClass::Level0, 3));
    assert_eq!(fleet.order(), [3, 2, 1]);
    // Whoever comes after a job's patience is over stands behind it.
    fleet.seconds = 700;
    fleet.submit(of(JobClass::Level0, 4));
    fleet.submit(of(JobClass::Upkeep, 5));
    assert_eq!(fleet.order(), [3, 2, 1, 4, 5]);
    fleet.ask(Request::Raise(Target::Job(job(5))));
    assert_eq!(fleet.order(), [5, 3, 2, 1, 4]);
}

#[test]
fn what_is_paused_is_kept_back() {
    let mut fleet = Fleet::new(vec![NodeFacts::sample("n", 9)]);
    fleet.submit(sample("a", 1, 1));
    fleet.submit(JobSubmission {
        table: TableId::from_parts(1, 2),
        ..sample("a", 2, 1)
    });
    fleet.submit(sample("b", 3, 1));
    let table = TableId::from_parts(1, 1);
    fleet.ask(Request::Set(Setting::PauseTable(table, true)));
    assert_eq!(fleet.order(), [2]);
    fleet.ask(Request::Set(Setting::PauseOwner("a".into(), true)));
    assert_eq!(fleet.order(), []);
    fleet.ask(Request::Set(Setting::PauseTable(table, false)));
    assert_eq!(fleet.order(), [3]);
    fleet.ask(Request::Set(Setting::PauseOwner("a".into(), false)));
    assert_eq!(fleet.order().len(), 3);
}

#[test]
fn needs_that_no_node_has_keep_nobody_else_waiting() {
    let mut fleet = Fleet::new(vec![NodeFacts::sample("n", 9)]);
    for number in 1..=3 {
        fleet.submit(JobSubmission {
            needs: Arc::new(Needs {
                pool: "large".into(),
                ..Needs::default()
            }),
            ..sample("o", number, 1)
        });
    }
    fleet.submit(sample("o", 4, 1));
    assert_eq!(fleet.order(), [4]);
    fleet.nodes[0].pool = "large".into();
    assert_eq!(fleet.order(), [1, 2, 3, 4]);
}

#[test]
fn large_task_is_not_passed_by_for_ever() {
    let mut fleet = Fleet::new(vec![NodeFacts::sample("n", 8)]);
    let memory = fleet.nodes[0].memory_bytes;
    fleet.submit(with_memory(sample("o", 1, 1), memory));
    fleet.submit(with_memory(sample("o", 2, 1), memory / 100));
    // Something small runs on the node at all times.
    let busy = |facts: &NodeFacts| (facts.slots - 1, facts.memory_bytes / 2);
    let early = fleet.dispatch_at(busy).assignments;
    assert_eq!(early.len(), 1, "the small one fits beside");
    fleet.seconds = 600;
    assert_eq!(fleet.dispatch_at(busy).assignments, [], "the node is kept");
    assert_eq!(
        fleet.order(),
        [1],
        "and it is the large one's once it is free"
    );
}

#[test]
fn what_is_too_large_for_every_node_is_said_so() {
    let mut fleet = Fleet::new(vec![NodeFacts::sample("n", 8), NodeFacts::sample("m", 8)]);
    let memory = fleet.nodes[0].memory_bytes;
    fleet.submit(with_memory(sample("o", 1, 1), memory + 1));
    fleet.submit(with_memory(sample("o", 2, 1), memory));
    let plan = fleet.dispatch();
    let (task, message) = &plan.too_large[0];
    assert_eq!((plan.too_large.len(), task.job), (1, job(1)));
    assert!(message.contains(&memory.to_string()), "{message}");
    assert_eq!(plan.assignments.len(), 1);
    // Those that cannot do it anyway say nothing of its size.
    fleet
        .nodes
        .iter_mut()
        .for_each(|node| node.capabilities.clear());
    assert_eq!(fleet.dispatch().too_large, []);
}

#[test]
fn delayed_task_is_not_given_out_before_its_time() {
    let mut fleet = Fleet::new(vec![NodeFacts::sample("n", 1)]);
    fleet.submit(sample("o", 1, 1));
    let plan = fleet.dispatch();
    let attempt = fleet.assign(&plan)[0];
    let end = TaskEnd::Failed {
        kind: ErrorKind::Unavailable,
        message: "store is away".into(),
    };
    fleet.ask(Request::Report(Report {
        node: "n".into(),
        session: 1,
        running: vec![],
        finished: vec![TaskReport { attempt, end }],
    }));
    assert_eq!(fleet.dispatch().assignments, []);
    let ready = fleet.state.next_ready().unwrap();
    assert!(ready > Duration::ZERO && ready <= Duration::from_secs(1));
    fleet.seconds = 1;
    assert_eq!(fleet.dispatch().assignments.len(), 1);
}

#[test]
fn slow_task_gets_a_second_attempt_elsewhere_when_there_is_room() {
    let mut fleet = Fleet::new(vec![NodeFacts::sample("a", 2)]);
    fleet.submit(sample("o", 1, 1));
    let plan = fleet.dispatch();
    let first = fleet.assign(&plan)[0];
    fleet.nodes.push(NodeFacts::sample("b", 2));
    let mut speed = Speed::default();
    (0..9).for_each(|_| speed.learn(100, Duration::from_secs(9)));
    let hedges = |fleet: &Fleet, only_a: bool| {
        let tables = VecDeque::new();
        let nodes = fleet.nodes.iter().take(if only_a { 1 } else { 2 });
        let candidates = nodes.map(|facts| {
            let room = Room {
                slots: 1,
                memory: facts.memory_bytes,
                read: 0,
            };
            Candidate::new(facts, &tables, room, true)
        });
        let mut candidates: Vec<_> = candidates.collect();
        let found = stragglers(&fleet.state, &mut candidates, &speed, fleet.now());
        (found.hedges, found.too_slow, found.next)
    };
    fleet.seconds = 39;
    let next = Some(Duration::from_secs(40));
    assert_eq!(hedges(&fleet, false), (vec![], vec![], next));
    fleet.seconds = 40;
    let alone = hedges(&fleet, true);
    assert_eq!(alone.0, [], "not where it is slow");
    assert_eq!(alone.1, [first], "but it can be cut");
    let (second, cut, _) = hedges(&fleet, false);
    assert_eq!(second, [(first.task, "b".into(), 1)]);
    assert_eq!(cut, []);
    fleet.submit(sample("o", 2, 1));
    assert_eq!(hedges(&fleet, false).0, [], "what is queued comes first");
    fleet.ask(Request::Release(job(2)));
    let task: TaskId = first.task;
    fleet.ask(Request::Assign {
        task,
        node: "b".into(),
        session: 1,
        hedge: true,
    });
    assert_eq!(fleet.state.task(task).unwrap().holders().len(), 2);
    let next = Some(Duration::from_secs(80));
    assert_eq!(
        hedges(&fleet, false),
        (vec![], vec![], next),
        "two are enough"
    );
    fleet.seconds = 80;
    let newest = AttemptId {
        token: fleet.state.task(task).unwrap().token,
        ..first
    };
    let (none, cut, _) = hedges(&fleet, false);
    assert_eq!((none, cut), (vec![], vec![newest]), "both are slow");
    fleet.ask(Request::CallSlow(newest));
    assert!(matches!(
        fleet.state.task(task).unwrap().state(),
        TaskState::Running { slow: true, .. }
    ));
    assert_eq!(hedges(&fleet, false).1, [], "it is said once");
}
