//! The plan: which jobs there are, and where each of their tasks stands. Pure: time, tokens' clock and
//! the choice of nodes are arguments.
//!
//! [`State::prepare`] turns a request into a [`PlanUpdate`](super::PlanUpdate) and changes nothing; [`State::apply`] carries
//! an update out and decides nothing. Applying an update, or a sequence of updates, once more changes
//! nothing more, so that a log may hold it twice.
//!
//! Invariants: a task has one current attempt, or two when the second was started as a hedge, on two nodes,
//! the newest with the task's newest token; states move forward only, but for what an operator retries;
//! `index` says the same as the jobs; no more tasks are open than `queue_tasks_max`.
//!
//! `prepare` has requests about jobs, `reports` those about attempts, `steer` those of operators.

mod apply;
mod index;
mod job;
mod prepare;
#[cfg(test)]
mod random_tests;
mod reports;
mod settings;
mod steer;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;

pub use index::{Lane, Lanes, Place};
pub use job::{Holder, Job, Lease, Phase, Task};
pub use prepare::{Report, Request};
pub use settings::{Setting, Settings};
pub use steer::Target;

use self::index::Index;
use super::update::PlanSnapshot;
use crate::{
    compaction::remote::{AttemptId, JobSubmission},
    config::MetaConfig,
    types::{JobId, NodeId, OwnerId, TaskId, Token},
};

/// The two clocks, read once a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// The monotonic clock; leases run on it.
    pub monotonic: Duration,
    /// Milliseconds since the Unix epoch; leads the tokens.
    pub unix_ms: u64,
}

/// What the plan is held to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// See [`MetaConfig::lease`].
    pub lease: Duration,
    /// See [`MetaConfig::stall_timeout`].
    pub stall_timeout: Duration,
    /// See [`MetaConfig::task_attempts_max`].
    pub task_attempts_max: u32,
    /// See [`MetaConfig::queue_tasks_max`].
    pub queue_tasks_max: usize,
    /// See [`MetaConfig::jobs_per_owner_max`].
    pub jobs_per_owner_max: usize,
    /// See [`MetaConfig::tasks_per_job_max`].
    pub tasks_per_job_max: usize,
}

impl From<&MetaConfig> for Limits {
    fn from(config: &MetaConfig) -> Self {
        Self {
            lease: config.lease.duration(),
            stall_timeout: config.stall_timeout.duration(),
            task_attempts_max: config.task_attempts_max,
            queue_tasks_max: config.queue_tasks_max,
            jobs_per_owner_max: config.jobs_per_owner_max,
            tasks_per_job_max: config.tasks_per_job_max,
        }
    }
}

/// The plan.
#[derive(Clone, Debug)]
pub struct State {
    limits: Limits,
    jobs: BTreeMap<JobId, Job>,
    settings: Settings,
    last_token: Token,
    next_sequence: u64,
    index: Index,
}

/// An attempt that is on its way.
#[derive(Clone, Copy)]
pub(super) struct Running<'a> {
    pub attempt: AttemptId,
    pub task: &'a Task,
    pub holder: &'a Holder,
}

impl State {
    /// An empty plan.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            jobs: BTreeMap::new(),
            settings: Settings::default(),
            last_token: Token(0),
            next_sequence: 0,
            index: Index::default(),
        }
    }

    /// The plan that `snapshot` holds.
    pub fn from_snapshot(limits: Limits, snapshot: PlanSnapshot) -> Self {
        let mut state = Self::new(limits);
        state.last_token = snapshot.last_token;
        state.next_sequence = snapshot.next_sequence;
        state.jobs = snapshot.jobs.into_iter().collect();
        state.settings = snapshot.settings;
        state.index = Index::of(&state.jobs, Duration::ZERO);
        state
    }

    /// The plan as the log keeps it: without the bodies of jobs, which their engines have, and without what only
    /// this process's clock gives a meaning to.
    pub fn snapshot(&self) -> PlanSnapshot {
        let as_logged = |job: &Job| Job {
            submission: Arc::new(JobSubmission {
                body: Bytes::new(),
                ..job.submission.as_ref().clone()
            }),
            tasks: job
                .tasks
                .iter()
                .map(|(&index, task)| (index, task.without_times()))
                .collect(),
            ..job.clone()
        };
        PlanSnapshot {
            last_token: self.last_token,
            next_sequence: self.next_sequence,
            jobs: self
                .jobs
                .iter()
                .map(|(&id, job)| (id, as_logged(job)))
                .collect(),
            settings: self.settings.clone(),
        }
    }

    /// Gives every lease a full grace from `now`: for the time after a replay, in which running tasks
    /// come back by being reported.
    pub fn restart(&mut self, now: Now) {
        let lease = self.limits.lease;
        for task in self
            .jobs
            .values_mut()
            .flat_map(|job| job.tasks.values_mut())
        {
            if let Phase::Assigned { holders } = &mut task.phase {
                for holder in holders {
                    holder.lease = Lease::new(now.monotonic, lease);
                }
            }
        }
    }

    /// Moves tasks that have become ready by `now` into the queues: the plan stays what it is.
    pub fn wake(&mut self, now: Now) {
        self.index.wake(&self.jobs, now.monotonic);
    }

    /// When the next task that is not ready yet will be.
    pub fn next_ready(&self) -> Option<Duration> {
        self.index.delayed.first().map(|(ready_at, _)| *ready_at)
    }

    /// A job.
    pub fn job(&self, job: JobId) -> Option<&Job> {
        self.jobs.get(&job)
    }

    /// Every job, by id.
    pub fn jobs(&self) -> impl Iterator<Item = (JobId, &Job)> {
        self.jobs.iter().map(|(&id, job)| (id, job))
    }

    /// A task.
    pub fn task(&self, task: TaskId) -> Option<&Task> {
        self.jobs.get(&task.job)?.tasks.get(&task.index)
    }

    /// What operators have set.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Tasks that are queued or running.
    pub fn open_tasks(&self) -> usize {
        self.index.open
    }

    /// About how many bytes these read.
    pub fn open_bytes(&self) -> u64 {
        u64::try_from(self.index.open_bytes).unwrap_or(u64::MAX)
    }

    /// Tasks that are queued, ready or not.
    pub fn queued_tasks(&self) -> usize {
        self.index.ranked.len()
    }

    /// Every owner with jobs, and how many it has.
    pub fn owners(&self) -> impl Iterator<Item = (&OwnerId, usize)> {
        self.index.jobs.iter().map(|(owner, &jobs)| (owner, jobs))
    }

    /// Owners with tasks that are ready, and those, by lane.
    pub fn queues(&self) -> impl Iterator<Item = (&OwnerId, &Lanes)> {
        self.index.queued.iter()
    }

    /// An owner's tasks that are ready, by lane.
    pub fn lanes_of(&self, owner: &OwnerId) -> impl Iterator<Item = (&Lane, &BTreeSet<Place>)> {
        self.index.queued.get(owner).into_iter().flatten()
    }

    /// Nodes whose tasks, or what is known of them, have changed since this was last called.
    pub fn take_touched(&mut self) -> BTreeSet<NodeId> {
        std::mem::take(&mut self.index.touched)
    }

    /// Every node that holds attempts, by id, and those with their tasks.
    pub fn assignments(
        &self,
    ) -> impl Iterator<Item = (&NodeId, impl Iterator<Item = (AttemptId, &Task)>)> {
        let nodes = self.index.assigned.iter();
        nodes.map(|(node, tasks)| {
            let tasks = tasks
                .iter()
                .filter_map(|&(task, token)| Some((AttemptId { task, token }, self.task(task)?)));
            (node, tasks)
        })
    }

    /// The attempts that `node` holds, with their tasks.
    pub fn assigned_to(&self, node: &NodeId) -> impl Iterator<Item = (AttemptId, &Task)> {
        let running = self.running_on(node);
        running.map(|running| (running.attempt, running.task))
    }

    /// Whether `attempt` is a current one of its task and `session` of `node` has it.
    pub fn holds(&self, node: &NodeId, session: u64, attempt: AttemptId) -> bool {
        self.holder(attempt)
            .is_some_and(|holder| holder.node == *node && holder.session == session)
    }

    /// Who has `attempt`, if it is a current one of its task.
    pub fn holder(&self, attempt: AttemptId) -> Option<&Holder> {
        let holders = self.task(attempt.task)?.holders();
        holders.iter().find(|holder| holder.token == attempt.token)
    }

    /// When the next lease ends.
    pub fn next_lease_end(&self) -> Option<Duration> {
        self.running()
            .map(|running| running.holder.lease.ends)
            .min()
    }

    /// Every attempt that is on its way.
    pub(super) fn running(&self) -> impl Iterator<Item = Running<'_>> {
        let nodes = self.index.assigned.keys();
        nodes.flat_map(|node| self.running_on(node))
    }

    fn running_on(&self, node: &NodeId) -> impl Iterator<Item = Running<'_>> {
        let tasks = self.index.assigned.get(node).into_iter().flatten();
        tasks.filter_map(|&(id, token)| {
            let task = self.task(id)?;
            let mut holders = task.holders().iter();
            Some(Running {
                attempt: AttemptId { task: id, token },
                task,
                holder: holders.find(|holder| holder.token == token)?,
            })
        })
    }

    /// Whether the index says the same as the jobs.
    #[cfg(test)]
    pub(super) fn index_agrees(&self) -> bool {
        let mut expected = Index::of(&self.jobs, self.index.woken());
        expected.touched = self.index.touched.clone();
        self.index == expected
    }

    /// Whether no task is held twice, but for hedges, which are on two nodes.
    #[cfg(test)]
    pub(super) fn holders_agree(&self) -> bool {
        let tasks = self.jobs.values().flat_map(|job| job.tasks.values());
        tasks
            .filter(|task| matches!(task.phase, Phase::Assigned { .. }))
            .all(|task| match task.holders() {
                [one] => one.token <= task.token,
                [one, other] => {
                    other.hedge
                        && one.node != other.node
                        && one.token < other.token
                        && other.token == task.token
                }
                _ => false,
            })
    }
}
