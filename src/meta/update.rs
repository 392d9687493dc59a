//! A change of the plan, entry by entry, so that whoever applies it decides nothing; and the plan, whole.

use std::{sync::Arc, time::Duration};

use super::state::{Job, Settings};
use crate::{
    compaction::remote::{AttemptId, JobSubmission},
    error::ErrorKind,
    types::{JobId, NodeId, TaskId, Token},
};

/// A change of the plan. Applied in the order of the fields; each entry changes nothing when it has been
/// applied before, or when what it speaks of has moved on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanUpdate {
    /// Queued tasks that give way to those of `new`.
    pub displaced: Vec<TaskId>,
    /// Jobs to take up; of a known job, tasks to be added or queued again.
    pub new: Vec<NewJob>,
    /// Tasks that a node gets.
    pub assigned: Vec<Assigned>,
    /// Leases that go on. Not logged: after a restart every lease gets a full grace.
    pub renewed: Vec<Renewed>,
    /// The newest attempts of tasks that are too slow: their engines should cut what is left of them.
    pub slowed: Vec<AttemptId>,
    /// Tasks whose result exists.
    pub completed: Vec<Completed>,
    /// Tasks that are given up.
    pub failed: Vec<Failed>,
    /// Attempts that ended without a result; their tasks go back into the queue, unless another attempt is
    /// on its way.
    pub requeued: Vec<Requeued>,
    /// Tasks that somebody does not want to be run.
    pub cancelled: Vec<Cancelled>,
    /// Tasks that were given up or cancelled, to be tried again from the beginning.
    pub retried: Vec<TaskId>,
    /// Jobs that go before all others.
    pub raised: Vec<JobId>,
    /// Jobs that their engines want no more.
    pub released: Vec<JobId>,
    /// What operators have set, whole, when they have set anything.
    pub settings: Option<Settings>,
}

impl PlanUpdate {
    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether it says more than renewals, and must be logged.
    pub fn is_durable(&self) -> bool {
        let Self {
            displaced,
            new,
            assigned,
            renewed: _,
            slowed,
            completed,
            failed,
            requeued,
            cancelled,
            retried,
            raised,
            released,
            settings,
        } = self;
        !(displaced.is_empty()
            && new.is_empty()
            && assigned.is_empty()
            && slowed.is_empty()
            && completed.is_empty()
            && failed.is_empty()
            && requeued.is_empty()
            && cancelled.is_empty()
            && retried.is_empty()
            && raised.is_empty()
            && released.is_empty()
            && settings.is_none())
    }
}

/// A job to take up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewJob {
    /// The job, with the tasks to be queued.
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
    /// A second attempt beside one that is slow.
    pub hedge: bool,
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
    /// The task.
    pub task: TaskId,
    /// The last attempt, which failed it; 0 when no node could be found for it.
    pub token: Token,
    /// Failed attempts that counted.
    pub attempts: u32,
    /// What went wrong last.
    pub kind: ErrorKind,
    /// In words.
    pub message: String,
    /// What ended the last attempt. Not logged.
    pub cause: Cause,
}

/// What ended an attempt that has no result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cause {
    /// It failed.
    #[default]
    Failed,
    /// Its store was not to be had.
    Unavailable,
    /// Its node handed it back.
    HandedBack,
    /// Its node fell silent, and the lease ended.
    Silent,
    /// It made no progress although its node lived, and the lease was not renewed.
    Stalled,
    /// Its node's process was replaced.
    Restarted,
}

impl Cause {
    /// The cause as one word, for metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Failed => "failed",
            Self::Unavailable => "unavailable",
            Self::HandedBack => "handed back",
            Self::Silent => "node silent",
            Self::Stalled => "no progress",
            Self::Restarted => "node restarted",
        }
    }
}

/// An attempt that ended without a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requeued {
    /// The attempt that ended.
    pub attempt: AttemptId,
    /// Failed attempts that counted, after this one.
    pub attempts: u32,
    /// Why it ended.
    pub reason: String,
    /// The same as a class. Not logged.
    pub cause: Cause,
    /// Not to be given out before, on the monotonic clock. Not logged.
    pub ready_at: Duration,
    /// Attempts in a row that found the store unavailable. Not logged.
    pub outages: u32,
    /// The node that should not get it again until then, when there is another. Not logged.
    pub avoid: Option<(NodeId, Duration)>,
}

/// A task that somebody does not want to be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cancelled {
    /// The task.
    pub task: TaskId,
    /// Why.
    pub reason: String,
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
    /// What operators have set.
    pub settings: Settings,
}
