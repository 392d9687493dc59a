//! The words that engines, the meta service and nodes exchange about jobs, and the traits that carry
//! them. `rpc` implements [`JobService`] over gRPC; a meta service in the same process implements it
//! directly. [`NodePoll`] and [`PollReply`] are the one exchange between a node and meta.
//! [`RemoteCompactor`] is the engine's end of it.

mod attendance;
mod body;
mod compactor;
mod fleet;
mod poll;
mod submission;
#[cfg(test)]
mod tests;

pub(crate) use attendance::host_name;
pub use attendance::{Attendance, Orders, QUARANTINE_LISTED_MAX, RetryOrder};
pub use body::JobBody;
pub use compactor::{Fallbacks, RemoteCompactor};
pub use fleet::{FleetSeen, FleetView};
pub use poll::{
    Assignment, AttemptId, CAPABILITY, CLEANUP_CAPABILITY, KEEPS_JOBS, NodeFacts, NodePoll,
    PollReply, TaskEnd, TaskProgress, TaskReport,
};
pub use submission::{BODY_BYTES_MAX, JobClass, JobSubmission, Needs, Pressure, TaskSubmission};

use std::time::Duration;

use async_trait::async_trait;

use crate::{
    error::{ErrorKind, Result},
    types::{JobId, NodeId, Token},
};

/// Where a submitted task stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskState {
    /// Waits for a node.
    Queued,
    /// A node has it.
    Running {
        /// The node.
        node: NodeId,
        /// The attempt.
        token: Token,
        /// It is far slower than its kind: what is left of it should be cut and shared out.
        slow: bool,
    },
    /// Its result is complete.
    Done {
        /// Who reported it.
        node: NodeId,
    },
    /// It will not be tried again.
    Failed {
        /// What went wrong last.
        kind: ErrorKind,
        /// The message that came with it.
        message: String,
    },
    /// The queue was full, and a task of higher pressure took its place: submit it again when there is room.
    Displaced,
    /// Somebody does not want it to be run.
    Cancelled {
        /// Why.
        reason: String,
    },
}

/// Where a submitted job stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobStatus {
    /// Grows with every change of the job.
    pub revision: u64,
    /// Index and state of each submitted task.
    pub tasks: Vec<(u32, TaskState)>,
    /// Jobs that the owner should have outstanding at most, by its share of the nodes there are.
    pub jobs_window: u32,
    /// Nodes that could run its tasks, with room or without. 0: it waits for some to come.
    pub nodes: u32,
}

/// What there is for jobs with some needs, and what is ahead of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fleet {
    /// Nodes that could run them, with room or without.
    pub nodes: u32,
    /// Slots of these.
    pub slots: u32,
    /// About how many bytes the tasks read that wait or run, of all owners.
    pub bytes_ahead: u64,
}

/// The meta service as an engine sees it.
#[async_trait]
pub trait JobService: Send + Sync + 'static {
    /// Queues the job's tasks. Idempotent: tasks that are known stay as they are, but those that were
    /// displaced are queued again, and those that are not named although later ones are will not be run. A job that is neither watched nor released is forgotten after a while.
    ///
    /// # Errors
    /// `Unavailable` when meta cannot be reached; `TooLarge` when its queue is full; `Invalid` when the
    /// job can never be accepted.
    async fn submit(&self, job: JobSubmission) -> Result<()>;

    /// The job's status as soon as its revision is above `seen`, or after `wait` as it then is.
    ///
    /// # Errors
    /// `NotFound` when meta does not know the job: submit it again. `Unavailable`.
    async fn watch(&self, job: JobId, seen: u64, wait: Duration) -> Result<JobStatus>;

    /// Says that an engine is there, and what it has in quarantine; answered as soon as there is something to say, or
    /// after `wait`, which meta may shorten. A newer call of the same session ends an older one. May be dropped at any
    /// time; what its answer would have said is said again.
    ///
    /// # Errors
    /// `Conflict` when a newer call has come; `Invalid`; `Unavailable`.
    async fn attend(&self, attendance: Attendance, wait: Duration) -> Result<Orders>;

    /// Forgets a job that was committed or given up; its running tasks are stopped. Idempotent.
    async fn release(&self, job: JobId) -> Result<()>;

    /// What there is for jobs with `needs`: asked before a job is submitted.
    ///
    /// # Errors
    /// `Unavailable` when meta cannot be reached, or gives out nothing.
    async fn fleet(&self, needs: &Needs) -> Result<Fleet>;
}
