//! A change of the plan, entry by entry, so that whoever applies it decides nothing; and the plan, whole.

use std::{sync::Arc, time::Duration};

use super::state::Job;
use crate::{
    compaction::remote::{AttemptId, JobSubmission},
    error::ErrorKind,
    types::{JobId, NodeId, TaskId, Token},
};

/// A change of the plan. Applied in the order of the fields; each entry changes nothing when it has been
/// applied before, or when its attempt is no longer the task's newest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanUpdate {
    /// Jobs to take up.
    pub new: Vec<NewJob>,
    /// Tasks that a node gets.
    pub assigned: Vec<Assigned>,
    /// Leases that go on. Not logged: after a restart every lease gets a full grace.
    pub renewed: Vec<Renewed>,
    /// Tasks whose result exists.
    pub completed: Vec<Completed>,
    /// Tasks that are given up.
    pub failed: Vec<Failed>,
    /// Tasks that go back into the queue.
    pub requeued: Vec<Requeued>,
    /// Jobs that their engines want no more.
    pub released: Vec<JobId>,
}

impl PlanUpdate {
    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.renewed.is_empty() && !self.is_durable()
    }

    /// Whether it says more than renewals, and must be logged.
    pub fn is_durable(&self) -> bool {
        !(self.new.is_empty()
            && self.assigned.is_empty()
            && self.completed.is_empty()
            && self.failed.is_empty()
            && self.requeued.is_empty()
            && self.released.is_empty())
    }
}

/// A job to take up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewJob {
    /// The job.
    pub job: Arc<JobSubmission>,
    /// When it came, in milliseconds since the Unix epoch.
    pub submitted_ms: u64,
}

/// A task that a node gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assigned {
    /// The attempt.
    pub attempt: AttemptId,
    /// The node.
    pub node: NodeId,
    /// The node's process.
    pub session: u64,
    /// When it came, on the monotonic clock. Not logged.
    pub at: Duration,
}

/// A lease that goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewed {
    /// The attempt.
    pub attempt: AttemptId,
    /// The task's counter.
    pub progress: u64,
    /// When it was reported, on the monotonic clock.
    pub at: Duration,
}

/// A task whose result exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completed {
    /// The task.
    pub task: TaskId,
    /// Who reported it.
    pub node: NodeId,
}

/// A task that is given up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failed {
    /// The last attempt.
    pub attempt: AttemptId,
    /// Failed attempts that counted.
    pub attempts: u32,
    /// What went wrong last.
    pub kind: ErrorKind,
    /// In words.
    pub message: String,
}

/// A task that goes back into the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requeued {
    /// The attempt that ended.
    pub attempt: AttemptId,
    /// Failed attempts that counted, after this one.
    pub attempts: u32,
    /// Why it ended.
    pub reason: String,
    /// Not to be given out before, on the monotonic clock. Not logged.
    pub ready_at: Duration,
    /// The node that should not get it again until then, when there is another. Not logged.
    pub avoid: Option<(NodeId, Duration)>,
}

/// The plan, whole. Times of leases and delays are not in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanSnapshot {
    /// The newest token.
    pub last_token: Token,
    /// The next job's place in the order of submission.
    pub next_sequence: u64,
    /// Every job, by id.
    pub jobs: Vec<(JobId, Job)>,
}
