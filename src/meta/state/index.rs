//! Open tasks by where they stand, so that nobody looks at all jobs to find them. Says the same as the jobs.
//!
//! ```text
//! owner ─ lane (what a node needs; about how much memory) ─ tasks that are ready, the most urgent first
//! delayed: those that are not ready yet, by when they are
//! ranked:  all that are queued, by pressure: who gives way when the queue is full
//! ```

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use super::{Job, Phase, Task};
use crate::{
    compaction::remote::{Needs, Pressure},
    types::{JobId, NodeId, OwnerId, TaskId, Token},
};

/// Tasks that are alike to a node: when there is no room for the first, there is none for the others.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane {
    /// What a node must have.
    pub needs: Arc<Needs>,
    /// The memory that they take, in powers of two.
    pub memory_log2: u32,
}

impl Lane {
    /// The lane of a job's task.
    pub fn of(job: &Job, task: &Task) -> Self {
        Self {
            needs: job.submission.needs.clone(),
            memory_log2: task.memory.max(1).ilog2(),
        }
    }
}

/// A task's place among those of its owner: when it is due, then the order of submission.
pub type Place = (u64, u64, TaskId);

/// A task's place among all that are queued, the first to give way in front.
pub(super) type Rank = (Pressure, Reverse<u64>, Reverse<TaskId>);

/// The lanes of an owner.
pub type Lanes = BTreeMap<Lane, BTreeSet<Place>>;

/// See the head of this file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Index {
    pub queued: BTreeMap<OwnerId, Lanes>,
    pub delayed: BTreeSet<(Duration, TaskId)>,
    pub ranked: BTreeSet<Rank>,
    pub assigned: BTreeMap<NodeId, BTreeSet<(TaskId, Token)>>,
    /// Nodes whose tasks have changed since somebody asked.
    pub touched: BTreeSet<NodeId>,
    pub jobs: BTreeMap<OwnerId, usize>,
    pub open: usize,
    /// What the open ones read; each size is what some engine said.
    pub open_bytes: u128,
    /// What is ready by then is in `queued`.
    woken: Duration,
}

impl Index {
    pub(super) fn of(jobs: &BTreeMap<JobId, Job>, woken: Duration) -> Self {
        let mut index = Self {
            woken,
            ..Self::default()
        };
        for (&id, job) in jobs {
            index.add_job(job);
            for (&at, task) in &job.tasks {
                index.add(job, TaskId { job: id, index: at }, task);
            }
        }
        index
    }

    /// Until when tasks have been woken.
    #[cfg(test)]
    pub(super) fn woken(&self) -> Duration {
        self.woken
    }

    pub(super) fn add_job(&mut self, job: &Job) {
        *self.jobs.entry(job.submission.owner.clone()).or_default() += 1;
    }

    pub(super) fn remove_job(&mut self, job: &Job) {
        let owner = &job.submission.owner;
        if let Some(jobs) = self.jobs.get_mut(owner) {
            *jobs -= 1;
            if *jobs == 0 {
                self.jobs.remove(owner);
            }
        }
    }

    pub(super) fn add(&mut self, job: &Job, id: TaskId, task: &Task) {
        if task.phase.is_open() {
            self.open += 1;
            self.open_bytes += u128::from(task.bytes);
        }
        match &task.phase {
            Phase::Queued { ready_at } => {
                self.ranked.insert(rank(job, id));
                if *ready_at > self.woken {
                    self.delayed.insert((*ready_at, id));
                } else {
                    self.enqueue(job, id, task);
                }
            }
            Phase::Assigned { holders } => {
                for holder in holders {
                    let tasks = self.assigned.entry(holder.node.clone()).or_default();
                    tasks.insert((id, holder.token));
                    self.touched.insert(holder.node.clone());
                }
            }
            _ => {}
        }
    }

    pub(super) fn remove(&mut self, job: &Job, id: TaskId, task: &Task) {
        if task.phase.is_open() {
            self.open -= 1;
            self.open_bytes -= u128::from(task.bytes);
        }
        match &task.phase {
            Phase::Queued { ready_at } => {
                self.ranked.remove(&rank(job, id));
                self.delayed.remove(&(*ready_at, id));
                self.dequeue(job, id, task);
            }
            Phase::Assigned { holders } => {
                for holder in holders {
                    if let Some(tasks) = self.assigned.get_mut(&holder.node) {
                        tasks.remove(&(id, holder.token));
                        self.touched.insert(holder.node.clone());
                        if tasks.is_empty() {
                            self.assigned.remove(&holder.node);
                        }
                    }
                }
            }
            _ => {}
        }
    }

    /// Moves what is ready by `now` into the queues.
    pub(super) fn wake(&mut self, jobs: &BTreeMap<JobId, Job>, now: Duration) {
        self.woken = self.woken.max(now);
        while let Some(&(ready_at, id)) = self.delayed.first()
            && ready_at <= self.woken
        {
            self.delayed.pop_first();
            let job = jobs.get(&id.job);
            if let Some((job, task)) = job.and_then(|job| Some((job, job.tasks.get(&id.index)?))) {
                self.enqueue(job, id, task);
            }
        }
    }

    fn enqueue(&mut self, job: &Job, id: TaskId, task: &Task) {
        let owner = job.submission.owner.clone();
        let lanes = self.queued.entry(owner).or_default();
        let lane = lanes.entry(Lane::of(job, task)).or_default();
        lane.insert((job.due_ms(), job.sequence, id));
    }

    fn dequeue(&mut self, job: &Job, id: TaskId, task: &Task) {
        let owner = &job.submission.owner;
        let Some(lanes) = self.queued.get_mut(owner) else {
            return;
        };
        let lane = Lane::of(job, task);
        if let Some(places) = lanes.get_mut(&lane) {
            places.remove(&(job.due_ms(), job.sequence, id));
            if places.is_empty() {
                lanes.remove(&lane);
            }
        }
        if lanes.is_empty() {
            self.queued.remove(owner);
        }
    }
}

fn rank(job: &Job, id: TaskId) -> Rank {
    (job.pressure(), Reverse(job.sequence), Reverse(id))
}
