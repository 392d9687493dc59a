//! A job and its tasks as meta knows them: the large plan, immutable and shared; the small state beside it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use crate::{
    compaction::remote::{JobStatus, JobSubmission, TaskState},
    error::ErrorKind,
    types::{NodeId, Token},
};

/// A submitted job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// As it came.
    pub submission: Arc<JobSubmission>,
    /// When it came, in milliseconds since the Unix epoch.
    pub submitted_ms: u64,
    /// Its place in the order of submission.
    pub sequence: u64,
    /// Grows with every change, from 1.
    pub revision: u64,
    /// Its tasks by index.
    pub tasks: BTreeMap<u32, Task>,
}

impl Job {
    pub(super) fn new(submission: Arc<JobSubmission>, submitted_ms: u64, sequence: u64) -> Self {
        let tasks = submission.tasks.iter();
        let tasks = tasks.map(|task| (task.index, Task::new(task.bytes)));
        Self {
            tasks: tasks.collect(),
            submission,
            submitted_ms,
            sequence,
            revision: 1,
        }
    }

    /// Where it stands, for its engine.
    pub fn status(&self) -> JobStatus {
        let tasks = self.tasks.iter();
        JobStatus {
            revision: self.revision,
            tasks: tasks.map(|(&index, task)| (index, task.state())).collect(),
        }
    }
}

/// A task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// About how many bytes it reads.
    pub bytes: u64,
    /// Failed attempts that counted.
    pub attempts: u32,
    /// Why the last attempt that ended without a result did.
    pub last_failure: Option<String>,
    /// Of the newest attempt; 0 before the first.
    pub token: Token,
    /// Nodes that should not get it until then, when there is another: attempts there have failed.
    pub avoid: BTreeMap<NodeId, Duration>,
    /// Where it stands.
    pub phase: Phase,
}

/// Where a task stands. It goes from queued to assigned and back; failed ends that, and done ends all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Waits for a node.
    Queued {
        /// Not to be given out before.
        ready_at: Duration,
    },
    /// A node has the task's newest attempt.
    Assigned {
        /// The node.
        node: NodeId,
        /// The node's process.
        session: u64,
        /// Until when.
        lease: Lease,
    },
    /// Its result object exists.
    Done {
        /// Who reported it.
        node: NodeId,
    },
    /// Given up.
    Failed {
        /// What went wrong last.
        kind: ErrorKind,
        /// In words.
        message: String,
    },
}

/// A node's right to go on, on the monotonic clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lease {
    /// When it ends.
    pub ends: Duration,
    /// The task's counter when last reported.
    pub progress: u64,
    /// When that counter last moved.
    pub moved: Duration,
}

impl Phase {
    /// Queued, for anybody, at once.
    pub const READY: Phase = Phase::Queued {
        ready_at: Duration::ZERO,
    };

    /// Whether a node may still be needed for it.
    pub fn is_open(&self) -> bool {
        matches!(self, Self::Queued { .. } | Self::Assigned { .. })
    }
}

impl Task {
    fn new(bytes: u64) -> Self {
        Self {
            bytes,
            attempts: 0,
            last_failure: None,
            token: Token(0),
            avoid: BTreeMap::new(),
            phase: Phase::READY,
        }
    }

    /// Where it stands, for its engine.
    pub fn state(&self) -> TaskState {
        match &self.phase {
            Phase::Queued { .. } => TaskState::Queued,
            Phase::Assigned { node, .. } => TaskState::Running {
                node: node.clone(),
                token: self.token,
            },
            Phase::Done { node } => TaskState::Done { node: node.clone() },
            Phase::Failed { kind, message } => TaskState::Failed {
                kind: *kind,
                message: message.clone(),
            },
        }
    }

    /// The same without what only this process's clock gives a meaning to.
    pub(super) fn without_times(&self) -> Self {
        let mut task = self.clone();
        task.avoid.clear();
        match &mut task.phase {
            Phase::Assigned { lease, .. } => *lease = Lease::default(),
            phase @ Phase::Queued { .. } => *phase = Phase::READY,
            Phase::Done { .. } | Phase::Failed { .. } => {}
        }
        task
    }
}
