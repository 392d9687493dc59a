//! Random polls, reports, losses and restarts: no task is lost, none has two holders, and when failures
//! stop everything finishes.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use proptest::prelude::*;

use super::{
    Report, Request, Setting, State, Target,
    tests::{at, job, limits},
};
use crate::{
    compaction::remote::{
        AttemptId, JobClass, JobSubmission, NodeFacts, Pressure, TaskEnd, TaskProgress, TaskReport,
        TaskState,
    },
    error::ErrorKind,
    meta::{
        codec,
        dispatch::dispatch,
        fairness::Fairness,
        hedging::{Speed, stragglers},
        placement::{Candidate, Room},
        update::PlanUpdate,
    },
    types::{NodeId, OwnerId, TaskId, Token},
};

const NODES: usize = 3;
const SLOTS: u32 = 2;

#[derive(Clone, Debug)]
enum Step {
    Submit {
        number: u128,
        tasks: u32,
        class: JobClass,
    },
    Release {
        number: u128,
    },
    /// A poll arrives; perhaps its answer is lost.
    Poll {
        node: usize,
        answered: bool,
    },
    /// The node's oldest attempt ends.
    Finish {
        node: usize,
        end: u8,
    },
    Crash {
        node: usize,
    },
    /// An operator cancels, retries, raises, or pauses.
    Steer {
        number: u128,
        what: u8,
    },
    RestartMeta,
    Wait {
        seconds: u64,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let node = 0..NODES;
    let class = prop_oneof![
        Just(JobClass::Cleanup),
        Just(JobClass::Upkeep),
        Just(JobClass::Level0),
    ];
    let step = prop_oneof![
        3 => (0..8u128, 1..6u32, class).prop_map(|(number, tasks, class)| Step::Submit { number, tasks, class }),
        1 => (0..6u128).prop_map(|number| Step::Release { number }),
        8 => (node.clone(), any::<bool>()).prop_map(|(node, answered)| Step::Poll { node, answered }),
        5 => (node.clone(), 0..5u8).prop_map(|(node, end)| Step::Finish { node, end }),
        1 => node.prop_map(|node| Step::Crash { node }),
        1 => (0..8u128, 0..6u8).prop_map(|(number, what)| Step::Steer { number, what }),
        1 => Just(Step::RestartMeta),
        2 => (1..15u64).prop_map(|seconds| Step::Wait { seconds }),
    ];
    prop::collection::vec(step, 0..120)
}

fn owner(number: u128) -> OwnerId {
    ["a", "b"][(number % 2) as usize].into()
}

#[derive(Default)]
struct Node {
    session: u64,
    running: BTreeMap<AttemptId, u64>,
    finished: Vec<TaskReport>,
}

struct World {
    state: State,
    log: Vec<PlanUpdate>,
    nodes: Vec<Node>,
    fairness: Fairness,
    /// Whatever runs for longer than a while is slow.
    speed: Speed,
    seconds: u64,
    /// Who was given each attempt, for good.
    given: BTreeMap<Token, (TaskId, usize)>,
}

impl World {
    fn new() -> Self {
        let mut speed = Speed::default();
        (0..9).for_each(|_| speed.learn(100, Duration::from_secs(1)));
        Self {
            state: State::new(limits()),
            log: Vec::new(),
            nodes: (0..NODES).map(|_| Node::default()).collect(),
            fairness: Fairness::default(),
            speed,
            seconds: 0,
            given: BTreeMap::new(),
        }
    }

    fn ask(&mut self, request: &Request) {
        if let Ok(update) = self.state.prepare(request, at(self.seconds)) {
            self.state.apply(&update);
            self.log.push(update);
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Submit {
                number,
                tasks,
                class,
            } => self.submit(number, tasks, class),
            Step::Release { number } => self.ask(&Request::Release(job(number))),
            Step::Poll { node, answered } => self.poll(node, answered),
            Step::Finish { node, end } => self.finish(node, end),
            Step::Crash { node } => {
                let session = self.nodes[node].session + 1;
                self.nodes[node] = Node {
                    session,
                    ..Node::default()
                };
            }
            Step::Steer { number, what } => {
                let target = Target::Job(job(number));
                self.ask(&match what {
                    0 => Request::Cancel(target),
                    1 => Request::Retry(target),
                    2 => Request::Raise(target),
                    3 => Request::Set(Setting::Weight(owner(number), 3)),
                    pause => Request::Set(Setting::PauseOwner(owner(number), pause == 4)),
                });
            }
            Step::RestartMeta => self.restart(),
            Step::Wait { seconds } => self.seconds += seconds,
        }
        self.ask(&Request::Expire);
    }

    fn submit(&mut self, number: u128, tasks: u32, class: JobClass) {
        let pressure = Pressure { class, score: 1 };
        let sample = JobSubmission::sample(&owner(number).0, job(number), tasks, 100);
        self.ask(&Request::Submit(Arc::new(JobSubmission {
            pressure,
            ..sample
        })));
    }

    fn finish(&mut self, node: usize, end: u8) {
        let node = &mut self.nodes[node];
        let Some((attempt, _)) = node.running.pop_first() else {
            return;
        };
        let failed = |kind| TaskEnd::Failed {
            kind,
            message: "it broke".into(),
        };
        let end = match end {
            0 => failed(ErrorKind::Internal),
            1 => failed(ErrorKind::Unavailable),
            2 => failed(ErrorKind::Closed),
            _ => TaskEnd::Done,
        };
        node.finished.push(TaskReport { attempt, end });
    }

    fn poll(&mut self, at_node: usize, answered: bool) {
        let id = NodeId(format!("n{at_node}"));
        let node = &mut self.nodes[at_node];
        node.running
            .values_mut()
            .for_each(|progress| *progress += 1);
        let report = Report {
            node: id.clone(),
            session: node.session,
            running: node
                .running
                .iter()
                .map(|(&attempt, &progress)| TaskProgress { attempt, progress })
                .collect(),
            finished: node.finished.clone(),
        };
        self.ask(&Request::Report(report));
        self.place(at_node, &id);
        if answered {
            self.answer(at_node, &id);
        }
    }

    fn place(&mut self, at_node: usize, id: &NodeId) {
        let node = &self.nodes[at_node];
        let unknown = self.state.assigned_to(id);
        let unknown = unknown.filter(|(attempt, _)| !node.running.contains_key(attempt));
        let used = node.running.len() + unknown.count();
        let facts: Vec<NodeFacts> = (0..NODES)
            .map(|node| NodeFacts {
                session: self.nodes[node].session,
                ..NodeFacts::sample(&format!("n{node}"), SLOTS)
            })
            .collect();
        let tables = VecDeque::new();
        let room = Room {
            slots: SLOTS.saturating_sub(used as u32),
            memory: 1 << 30,
            read: 0,
        };
        let mut candidates = [Candidate::new(&facts[at_node], &tables, room, true)];
        let now = at(self.seconds);
        self.state.wake(now);
        let nodes = facts.iter().map(|facts| (&facts.id, facts));
        let nodes = nodes.collect();
        let plan = dispatch(
            &self.state,
            &mut candidates,
            &nodes,
            &mut self.fairness,
            now,
        );
        let slow = stragglers(&self.state, &mut candidates, &self.speed, now);
        let hedges = slow.hedges;
        let first = plan.assignments.into_iter().map(|given| (given, false));
        let second = hedges.into_iter().map(|given| (given, true));
        for ((task, node, session), hedge) in first.chain(second).collect::<Vec<_>>() {
            self.ask(&Request::Assign {
                task,
                node,
                session,
                hedge,
            });
            let token = self.state.task(task).expect("just assigned").token;
            let earlier = self.given.insert(token, (task, at_node));
            assert_eq!(earlier, None, "token {token} given twice");
        }
        for attempt in slow.too_slow {
            self.ask(&Request::CallSlow(attempt));
        }
    }

    fn answer(&mut self, at_node: usize, id: &NodeId) {
        let node = &mut self.nodes[at_node];
        node.finished.clear();
        let session = node.session;
        node.running
            .retain(|&attempt, _| self.state.holds(id, session, attempt));
        for (attempt, _) in self.state.assigned_to(id) {
            if self.state.holds(id, session, attempt) {
                node.running.entry(attempt).or_default();
            }
        }
        assert!(
            node.running.len() <= SLOTS as usize,
            "too much for node {id}"
        );
    }

    fn restart(&mut self) {
        let before = self.state.snapshot();
        // Half of the log as a snapshot, the rest as updates.
        let mut state = State::new(limits());
        let (older, newer) = self.log.split_at(self.log.len() / 2);
        older.iter().for_each(|update| state.apply(update));
        let snapshot = codec::encode_snapshot(&state.snapshot());
        let mut state = State::from_snapshot(limits(), codec::decode_snapshot(snapshot).unwrap());
        for update in codec::decode_updates(codec::encode_updates(newer)).unwrap() {
            state.apply(&update);
        }
        assert_eq!(state.snapshot(), before, "replay across a snapshot");
        state.restart(at(self.seconds));
        self.state = state;
        // Their engines submit again what has come back without its body.
        let jobs = self.state.jobs().map(|(_, job)| JobSubmission {
            body: vec![1].into(),
            tasks: vec![],
            ..job.submission.as_ref().clone()
        });
        for job in jobs.collect::<Vec<_>>() {
            self.ask(&Request::Submit(Arc::new(job)));
        }
        assert!(self.state.jobs().all(|(_, job)| !job.lacks_body()));
    }

    fn check(&self) {
        assert!(self.state.index_agrees());
        assert!(self.state.holders_agree());
        assert!(self.state.open_tasks() <= limits().queue_tasks_max);
        for (id, job) in self.state.jobs() {
            for (&index, task) in &job.tasks {
                let id = TaskId { job: id, index };
                for holder in task.holders() {
                    let (given, to) = self.given[&holder.token];
                    assert_eq!((given, format!("n{to}")), (id, holder.node.0.clone()));
                }
            }
        }
    }

    fn settle(&mut self) {
        for owner in ["a", "b"] {
            self.ask(&Request::Set(Setting::PauseOwner(owner.into(), false)));
        }
        for _ in 0..400 {
            self.seconds += 3;
            self.ask(&Request::Expire);
            for node in 0..NODES {
                while !self.nodes[node].running.is_empty() {
                    self.finish(node, 9);
                }
                self.poll(node, true);
            }
            self.check();
            if self.state.open_tasks() == 0 {
                return;
            }
        }
        panic!("{} tasks never finish", self.state.open_tasks());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn no_task_is_lost_and_none_has_two_holders(steps in steps()) {
        let mut world = World::new();
        for step in &steps {
            let counts = |state: &State| state.jobs().map(|(id, job)| (id, job.tasks.len())).collect::<Vec<_>>();
            let before = counts(&world.state);
            world.step(step);
            world.check();
            if !matches!(step, Step::Submit { .. } | Step::Release { .. }) {
                prop_assert_eq!(before, counts(&world.state));
            }
        }
        world.settle();
        for (_, job) in world.state.jobs() {
            for (index, state) in job.states_since(0) {
                // Displaced ones are their engines' to submit again.
                let ended = !matches!(state, TaskState::Queued | TaskState::Running { .. });
                prop_assert!(ended, "task {} is {:?}", index, state);
            }
        }
    }
}
