//! The one exchange between a node and the meta service: a poll and its reply.
//!
//! A poll says all that the node holds; the reply says all that it may go on with. Whatever the reply
//! does not mention is to be stopped, so that crashes and lost messages need no message of their own:
//! an assignment that got lost is sent again, a report that got lost is repeated until acknowledged.

use std::time::Duration;

use std::collections::BTreeSet;

use bytes::Bytes;

use crate::{
    error::ErrorKind,
    types::{JobId, KeyRange, NodeId, TaskId, Token},
};

/// What a node must be capable of to run jobs in this version's format.
pub const CAPABILITY: &str = "job-3";
/// What a node must be capable of to delete objects, as cleanup jobs of this version's format name them.
pub const CLEANUP_CAPABILITY: &str = "cleanup-1";
/// What a node says that keeps the body of a job for as long as it holds a task of it, or has one to report: it is
/// not sent it again.
pub const KEEPS_JOBS: &str = "keeps-jobs";

/// One attempt at a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AttemptId {
    /// The task.
    pub task: TaskId,
    /// The attempt.
    pub token: Token,
}

/// What a node is, for as long as its process lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFacts {
    /// Its id.
    pub id: NodeId,
    /// Numbers the process: grows with each start, so that of two processes with one id the newer
    /// is the node.
    pub session: u64,
    /// The machine it runs on.
    pub host: String,
    /// Version of its software.
    pub version: String,
    /// What it can do, in words that both sides know; see [`CAPABILITY`].
    pub capabilities: Vec<String>,
    /// Tasks it can run at once.
    pub slots: u32,
    /// Memory for its tasks together, in bytes.
    pub memory_bytes: u64,
    /// The pool that it is of: jobs may ask for one. Empty for none in particular.
    pub pool: String,
    /// Where it is; empty for nowhere.
    pub zone: String,
}

/// What a node says each time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePoll {
    /// Who it is.
    pub facts: NodeFacts,
    /// Slots in which nothing runs.
    pub slots_free: u32,
    /// It takes nothing new, and will end.
    pub draining: bool,
    /// Every attempt it holds.
    pub running: Vec<TaskProgress>,
    /// Every attempt that ended and whose end meta has not acknowledged.
    pub finished: Vec<TaskReport>,
}

/// How far a running attempt has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskProgress {
    /// The attempt.
    pub attempt: AttemptId,
    /// A counter that the merging thread advances. One that stands still is a task that hangs.
    pub progress: u64,
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskReport {
    /// The attempt.
    pub attempt: AttemptId,
    /// How it ended.
    pub end: TaskEnd,
}

/// The two ends of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskEnd {
    /// The task's result is complete.
    Done,
    /// It does not, for this reason.
    Failed {
        /// What kind of failure: decides whether the task is tried again.
        kind: ErrorKind,
        /// In words.
        message: String,
    },
}

/// What meta answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PollReply {
    /// Attempts to start, unless they run already.
    pub assignments: Vec<Assignment>,
    /// The body of each job among the assignments, once.
    pub jobs: Vec<(JobId, Bytes)>,
    /// Running attempts that may go on. Those not listed must stop.
    pub renewed: Vec<AttemptId>,
    /// Ended attempts that need not be reported again.
    pub acknowledged: Vec<AttemptId>,
    /// How long the node may go on without another reply.
    pub lease: Duration,
    /// An operator wants the node to end as soon as what runs has ended.
    pub drain: bool,
}

/// An attempt that a node is to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The attempt.
    pub attempt: AttemptId,
    /// The task's key range; `None` for the one that the job has at its index.
    pub range: Option<KeyRange>,
    /// About how many bytes of memory it may take.
    pub memory: u64,
}

#[cfg(test)]
impl PollReply {
    /// The attempts to start.
    pub(crate) fn attempts(&self) -> Vec<AttemptId> {
        let assignments = self.assignments.iter();
        assignments.map(|assignment| assignment.attempt).collect()
    }
}

impl NodePoll {
    /// The jobs whose bodies the node has.
    pub(crate) fn kept_jobs(&self) -> BTreeSet<JobId> {
        if !self
            .facts
            .capabilities
            .iter()
            .any(|word| word == KEEPS_JOBS)
        {
            return BTreeSet::new();
        }
        let running = self.running.iter().map(|running| running.attempt);
        let ended = self.finished.iter().map(|report| report.attempt);
        running
            .chain(ended)
            .map(|attempt| attempt.task.job)
            .collect()
    }
}

#[cfg(test)]
impl NodeFacts {
    /// A node with `slots` slots, memory for anything, and all capabilities.
    pub(crate) fn sample(id: &str, slots: u32) -> Self {
        Self {
            id: id.into(),
            session: 1,
            host: "here".into(),
            version: "1".into(),
            capabilities: [CAPABILITY, CLEANUP_CAPABILITY, KEEPS_JOBS]
                .map(str::to_owned)
                .into(),
            slots,
            memory_bytes: 1 << 30,
            pool: String::new(),
            zone: String::new(),
        }
    }
}
