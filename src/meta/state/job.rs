//! A job and its tasks as meta knows them: the large plan, immutable and shared; the small state beside it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use crate::{
    compaction::remote::{JobClass, JobSubmission, Pressure, TaskState, TaskSubmission},
    error::ErrorKind,
    types::{KeyRange, NodeId, Token},
};

/// A submitted job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// As it came, with all tasks that came since. Its body is not kept in the log: after a restart it is empty
    /// until the engine submits the job again.
    pub submission: Arc<JobSubmission>,
    /// When it came, in milliseconds since the Unix epoch.
    pub submitted_ms: u64,
    /// Its place in the order of submission.
    pub sequence: u64,
    /// Grows with every change, from 1.
    pub revision: u64,
    /// An operator wants it to go before all others.
    pub raised: bool,
    /// Its tasks by index.
    pub tasks: BTreeMap<u32, Task>,
}

impl Job {
    pub(super) fn new(submission: Arc<JobSubmission>, submitted_ms: u64, sequence: u64) -> Self {
        let tasks = submission.tasks.iter();
        let tasks = tasks.map(|task| (task.index, Task::new(task)));
        Self {
            tasks: tasks.collect(),
            submission,
            submitted_ms,
            sequence,
            revision: 1,
            raised: false,
        }
    }

    /// Whether a node may need its body, and it is not known: a job that was replayed has none.
    pub fn lacks_body(&self) -> bool {
        let mut tasks = self.tasks.values();
        self.submission.body.is_empty() && tasks.any(|task| task.phase.is_open())
    }

    /// How urgent it is.
    pub fn pressure(&self) -> Pressure {
        match self.raised {
            true => Pressure {
                class: JobClass::Raised,
                ..self.submission.pressure
            },
            false => self.submission.pressure,
        }
    }

    /// The moment, in milliseconds since the Unix epoch, from which on it stands back behind nobody that comes
    /// later. The earlier it is, the sooner the job's tasks are given out.
    pub fn due_ms(&self) -> u64 {
        match self.raised {
            true => 0,
            false => self.submitted_ms + self.submission.pressure.patience_ms(),
        }
    }

    /// Index and state of each of its tasks that has changed since the revision `seen`.
    pub fn states_since(&self, seen: u64) -> Vec<(u32, TaskState)> {
        let tasks = self.tasks.iter();
        tasks
            .filter(|(_, task)| task.revision > seen)
            .map(|(&index, task)| (index, task.state()))
            .collect()
    }
}

/// A task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// About how many bytes it reads.
    pub bytes: u64,
    /// About how many bytes of memory it takes.
    pub memory: u64,
    /// Its key range, unless it is the one that the job has.
    pub range: Option<Box<KeyRange>>,
    /// Failed attempts that counted.
    pub attempts: u32,
    /// Attempts in a row that found the store unavailable.
    pub outages: u32,
    /// Why the last attempt that ended without a result did.
    pub last_failure: Option<String>,
    /// Of the newest attempt; 0 before the first.
    pub token: Token,
    /// Its newest attempt is too slow: what is left of it should be cut.
    pub slow: bool,
    /// The job's revision when the task last changed.
    pub revision: u64,
    /// Nodes that should not get it until then, when there is another: attempts there have failed.
    pub avoid: BTreeMap<NodeId, Duration>,
    /// Where it stands.
    pub phase: Phase,
}

/// Where a task stands. It goes from queued to assigned and back, and from displaced to queued when it is
/// submitted again; failed and cancelled end that unless it is retried, and done ends all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Waits for a node.
    Queued {
        /// Not to be given out before.
        ready_at: Duration,
    },
    /// A node has the task's newest attempt; perhaps another one, which is slow, has an older.
    Assigned {
        /// One, or two when the task is hedged.
        holders: Vec<Holder>,
    },
    /// Its result is complete.
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
    /// It had to give its place in the queue away.
    Displaced,
    /// Somebody does not want it to be run.
    Cancelled {
        /// Why.
        reason: String,
    },
}

/// An attempt, and who has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The attempt.
    pub token: Token,
    /// The node.
    pub node: NodeId,
    /// The node's process.
    pub session: u64,
    /// It was started because the other one was slow.
    pub hedge: bool,
    /// Until when.
    pub lease: Lease,
}

/// A node's right to go on, on the monotonic clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lease {
    /// When the attempt began.
    pub began: Duration,
    /// When it ends.
    pub ends: Duration,
    /// The task's counter when last reported.
    pub progress: u64,
    /// When that counter last moved.
    pub moved: Duration,
}

impl Lease {
    pub(super) fn new(now: Duration, length: Duration) -> Self {
        Self {
            began: now,
            ends: now + length,
            progress: 0,
            moved: now,
        }
    }
}

impl Phase {
    /// Queued, for anybody, at once.
    pub const READY: Phase = Phase::Queued {
        ready_at: Duration::ZERO,
    };

    /// The phase as one word.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Queued { .. } => "queued",
            Self::Assigned { .. } => "running",
            Self::Done { .. } => "done",
            Self::Failed { .. } => "failed",
            Self::Displaced => "displaced",
            Self::Cancelled { .. } => "cancelled",
        }
    }

    /// Whether a node may still be needed for it.
    pub fn is_open(&self) -> bool {
        matches!(self, Self::Queued { .. } | Self::Assigned { .. })
    }
}

impl Task {
    /// A task as it was submitted.
    pub fn new(task: &TaskSubmission) -> Self {
        Self {
            bytes: task.bytes,
            memory: task.memory,
            range: task.range.clone().map(Box::new),
            attempts: 0,
            outages: 0,
            last_failure: None,
            token: Token(0),
            slow: false,
            revision: 1,
            avoid: BTreeMap::new(),
            phase: Phase::READY,
        }
    }

    /// The attempts that are on their way.
    pub fn holders(&self) -> &[Holder] {
        match &self.phase {
            Phase::Assigned { holders } => holders,
            _ => &[],
        }
    }

    /// Where it stands, for its engine.
    pub fn state(&self) -> TaskState {
        match &self.phase {
            Phase::Queued { .. } => TaskState::Queued,
            Phase::Assigned { holders } => match holders.first() {
                Some(first) => TaskState::Running {
                    node: first.node.clone(),
                    token: first.token,
                    slow: self.slow,
                },
                None => TaskState::Queued,
            },
            Phase::Done { node } => TaskState::Done { node: node.clone() },
            Phase::Failed { kind, message } => TaskState::Failed {
                kind: *kind,
                message: message.clone(),
            },
            Phase::Displaced => TaskState::Displaced,
            Phase::Cancelled { reason } => TaskState::Cancelled {
                reason: reason.clone(),
            },
        }
    }

    /// The same without what only this process's clock gives a meaning to.
    pub(super) fn without_times(&self) -> Self {
        let mut task = self.clone();
        task.avoid.clear();
        task.outages = 0;
        task.slow = false;
        match &mut task.phase {
            Phase::Assigned { holders } => {
                let leases = holders.iter_mut().map(|holder| &mut holder.lease);
                leases.for_each(|lease| *lease = Lease::default());
            }
            phase @ Phase::Queued { .. } => *phase = Phase::READY,
            _ => {}
        }
        task
    }
}
