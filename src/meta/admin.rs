//! What operators are shown of nodes and jobs.

use std::time::Duration;

use crate::{
    compaction::remote::{NodeFacts, TaskState},
    types::{JobId, OwnerId},
};

/// What meta thinks of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// It polls, and takes tasks.
    Active,
    /// It polls, and takes no more tasks.
    Draining,
    /// It has not polled for a lease: its tasks went to others.
    Silent,
    /// It has ended, or has been silent for long.
    Gone,
}

impl NodeState {
    /// The state as one word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Draining => "draining",
            Self::Silent => "silent",
            Self::Gone => "gone",
        }
    }
}

/// A node, as meta sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeInfo {
    /// What it said of itself.
    pub facts: NodeFacts,
    /// What meta thinks of it.
    pub state: NodeState,
    /// Slots in which nothing ran at its last poll.
    pub slots_free: u32,
    /// Tasks it holds.
    pub tasks: usize,
    /// About how many bytes they read.
    pub bytes: u64,
    /// Time since its last poll.
    pub silent: Duration,
}

/// A job, as meta sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobInfo {
    /// Its id.
    pub job: JobId,
    /// Whose it is.
    pub owner: OwnerId,
    /// What it is for, in words.
    pub label: String,
    /// When it came, in milliseconds since the Unix epoch.
    pub submitted_ms: u64,
    /// Its tasks by index.
    pub tasks: Vec<TaskInfo>,
}

impl JobInfo {
    /// How many of its tasks are in a state that `is` accepts.
    pub fn count(&self, is: impl Fn(&TaskState) -> bool) -> usize {
        self.tasks.iter().filter(|task| is(&task.state)).count()
    }
}

/// A task, as meta sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskInfo {
    /// Position in the job.
    pub index: u32,
    /// About how many bytes it reads.
    pub bytes: u64,
    /// Where it stands, and on which node.
    pub state: TaskState,
    /// Failed attempts that counted.
    pub attempts: u32,
    /// Why the last attempt that ended without a result did.
    pub last_failure: Option<String>,
    /// The running attempt's counter when last reported.
    pub progress: u64,
}
