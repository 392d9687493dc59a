//! What operators are shown of nodes, jobs, owners and engines, and what they may wish.

use std::{collections::BTreeSet, time::Duration};

use super::state::{Setting, Target};
use crate::{
    compaction::{
        QuarantinedSst,
        remote::{NodeFacts, Pressure, TaskState},
    },
    types::{JobId, NodeId, OwnerId, TableId},
};

/// A list, as of a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing<T> {
    /// Another with every change of what meta knows; never 0.
    pub revision: u64,
    /// What there is.
    pub items: Vec<T>,
}

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
    /// The table that it compacts.
    pub table: TableId,
    /// How urgent it is.
    pub pressure: Pressure,
    /// What it is for, in words.
    pub label: String,
    /// When it came, in milliseconds since the Unix epoch.
    pub submitted_ms: u64,
    /// How long what is left of it takes, if its nodes have nothing else to do; `None` while that is not known.
    pub done_estimate: Option<Duration>,
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
    /// The newest running attempt's counter when last reported.
    pub progress: u64,
    /// The nodes that run it: two when it is hedged.
    pub nodes: Vec<NodeId>,
}

/// An owner, as meta sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerInfo {
    /// The owner.
    pub owner: OwnerId,
    /// Its share of the fleet, in proportion to those of the others.
    pub weight: u32,
    /// Its tasks are kept back.
    pub paused: bool,
    /// Of its tables with jobs, those whose tasks are kept back.
    pub paused_tables: BTreeSet<TableId>,
    /// Its jobs.
    pub jobs: usize,
    /// Its queued tasks.
    pub queued: usize,
    /// Its running tasks.
    pub running: usize,
    /// Since the submission of its oldest job with a queued task.
    pub oldest_wait: Duration,
    /// Jobs that it should have outstanding at most.
    pub jobs_window: u32,
    /// Its engines that have attended lately: one, unless several use its name.
    pub engines: Vec<EngineInfo>,
}

/// An engine, as meta sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineInfo {
    /// Tells this opening of the engine from every other.
    pub session: u64,
    /// The machine that it runs on.
    pub host: String,
    /// Its version.
    pub version: String,
    /// Whether it attends: otherwise it has ended, or cannot reach meta.
    pub attends: bool,
    /// Time since it last said that it is there.
    pub silent: Duration,
    /// Whether others attend under its name: each should have one of its own.
    pub has_namesakes: bool,
    /// SSTs that it leaves alone because jobs with them failed.
    pub quarantined: u64,
}

/// What an engine leaves alone because jobs with it failed, as meta sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuarantineInfo {
    /// Whose they are.
    pub owner: OwnerId,
    /// The engine.
    pub engine: EngineInfo,
    /// The SSTs.
    pub ssts: Vec<QuarantinedSst>,
    /// How many more there are.
    pub left_out: u64,
}

/// Why a task is where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The task.
    pub task: TaskInfo,
    /// Whole sentences, the most important first.
    pub reasons: Vec<String>,
}

/// What an operator may wish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Tasks are not to be run. Their engines give the jobs up, and leave the inputs alone for a while.
    Cancel(Target),
    /// Tasks that were given up or cancelled are to be tried again.
    Retry(Target),
    /// Jobs are to go before all others.
    Raise(Target),
    /// The engine of an owner is to try again at once what it has in quarantine, of one table or of all.
    RetryQuarantined {
        /// The owner.
        owner: OwnerId,
        /// The table; `None` for all.
        table: Option<TableId>,
    },
    /// Something is set.
    Set(Setting),
}
