//! The plan: which jobs there are, and where each of their tasks stands. Pure: time, tokens' clock and
//! the choice of nodes are arguments.
//!
//! [`State::prepare`] turns a request into a [`PlanUpdate`](super::PlanUpdate) and changes nothing; [`State::apply`] carries
//! an update out and decides nothing. Applying an update, or a sequence of updates, once more changes
//! nothing more, so that a log may hold it twice.
//!
//! Invariants: a task has at most one current attempt, its token is the task's newest; states move
//! forward only; `index` says the same as the jobs.

mod apply;
mod job;
mod prepare;
#[cfg(test)]
mod random_tests;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

pub use job::{Job, Lease, Phase, Task};
pub use prepare::{Report, Request};

use super::update::PlanSnapshot;
use crate::{
    compaction::remote::AttemptId,
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
}

impl From<&MetaConfig> for Limits {
    fn from(config: &MetaConfig) -> Self {
        Self {
            lease: config.lease.duration(),
            stall_timeout: config.stall_timeout.duration(),
            task_attempts_max: config.task_attempts_max,
            queue_tasks_max: config.queue_tasks_max,
        }
    }
}

/// The plan.
#[derive(Clone, Debug)]
pub struct State {
    limits: Limits,
    jobs: BTreeMap<JobId, Job>,
    last_token: Token,
    next_sequence: u64,
    index: Index,
}

/// Open tasks by where they stand, so that nobody looks at all jobs to find them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Index {
    /// In the order of submission.
    queued: BTreeMap<OwnerId, BTreeSet<(u64, TaskId)>>,
    assigned: BTreeMap<NodeId, BTreeSet<TaskId>>,
    open: usize,
}

impl State {
    /// An empty plan.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            jobs: BTreeMap::new(),
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
        state.index = Index::of(&state.jobs);
        state
    }

    /// The plan, whole, without what only this process's clock gives a meaning to.
    pub fn snapshot(&self) -> PlanSnapshot {
        let without_times = |job: &Job| Job {
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
                .map(|(&id, job)| (id, without_times(job)))
                .collect(),
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
            if let Phase::Assigned { lease: current, .. } = &mut task.phase {
                *current = Lease {
                    ends: now.monotonic + lease,
                    progress: 0,
                    moved: now.monotonic,
                };
            }
        }
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

    /// Tasks that are queued or running.
    pub fn open_tasks(&self) -> usize {
        self.index.open
    }

    /// Owners with queued tasks.
    pub fn waiting_owners(&self) -> impl Iterator<Item = &OwnerId> {
        self.index.queued.keys()
    }

    /// An owner's queued tasks in the order of submission.
    pub fn queue_of(&self, owner: &OwnerId) -> impl Iterator<Item = (TaskId, &Task)> {
        let queue = self.index.queued.get(owner).into_iter().flatten();
        queue.filter_map(|&(_, id)| Some((id, self.task(id)?)))
    }

    /// The attempts that `node` holds, with their tasks.
    pub fn assigned_to(&self, node: &NodeId) -> impl Iterator<Item = (AttemptId, &Task)> {
        let tasks = self.index.assigned.get(node).into_iter().flatten();
        tasks.filter_map(|&id| {
            let task = self.task(id)?;
            let token = task.token;
            Some((AttemptId { task: id, token }, task))
        })
    }

    /// Whether `attempt` is its task's current one and `session` of `node` has it.
    pub fn holds(&self, node: &NodeId, session: u64, attempt: AttemptId) -> bool {
        self.task(attempt.task).is_some_and(|task| {
            task.token == attempt.token
                && matches!(&task.phase, Phase::Assigned { node: n, session: s, .. }
                    if n == node && *s == session)
        })
    }

    /// When the next lease ends.
    pub fn next_lease_end(&self) -> Option<Duration> {
        self.assigned().map(|(.., lease)| lease.ends).min()
    }

    /// Whether the index says the same as the jobs.
    #[cfg(test)]
    pub(super) fn index_agrees(&self) -> bool {
        self.index == Index::of(&self.jobs)
    }

    fn assigned(&self) -> impl Iterator<Item = (AttemptId, &NodeId, &Task, &Lease)> {
        let nodes = self.index.assigned.keys();
        nodes.flat_map(|node| {
            self.assigned_to(node)
                .filter_map(move |(id, task)| match &task.phase {
                    Phase::Assigned { lease, .. } => Some((id, node, task, lease)),
                    _ => None,
                })
        })
    }
}

impl Index {
    fn of(jobs: &BTreeMap<JobId, Job>) -> Self {
        let mut index = Self::default();
        for (&id, job) in jobs {
            for (&at, task) in &job.tasks {
                index.add(job, TaskId { job: id, index: at }, &task.phase);
            }
        }
        index
    }

    fn add(&mut self, job: &Job, id: TaskId, phase: &Phase) {
        self.open += usize::from(phase.is_open());
        match phase {
            Phase::Queued { .. } => {
                let owner = job.submission.owner.clone();
                let queue = self.queued.entry(owner).or_default();
                queue.insert((job.sequence, id));
            }
            Phase::Assigned { node, .. } => {
                self.assigned.entry(node.clone()).or_default().insert(id);
            }
            Phase::Done { .. } | Phase::Failed { .. } => {}
        }
    }

    fn remove(&mut self, job: &Job, id: TaskId, phase: &Phase) {
        self.open -= usize::from(phase.is_open());
        match phase {
            Phase::Queued { .. } => {
                let owner = &job.submission.owner;
                if let Some(queue) = self.queued.get_mut(owner) {
                    queue.remove(&(job.sequence, id));
                    if queue.is_empty() {
                        self.queued.remove(owner);
                    }
                }
            }
            Phase::Assigned { node, .. } => {
                if let Some(tasks) = self.assigned.get_mut(node) {
                    tasks.remove(&id);
                    if tasks.is_empty() {
                        self.assigned.remove(node);
                    }
                }
            }
            Phase::Done { .. } | Phase::Failed { .. } => {}
        }
    }
}
