//! The words that engines, the meta service and nodes exchange about jobs, and the traits that carry
//! them. `rpc` implements [`JobService`] over gRPC; a meta service in the same process implements it
//! directly. [`NodePoll`] and [`PollReply`] are the one exchange between a node and meta.
//! [`RemoteCompactor`] is the engine's end of it.

mod compactor;
mod poll;
#[cfg(test)]
mod tests;

pub use compactor::{Fallbacks, RemoteCompactor};
pub use poll::{
    AttemptId, CAPABILITY, NodeFacts, NodePoll, PollReply, TaskEnd, TaskProgress, TaskReport,
};

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::{
    error::{ErrorKind, Result},
    types::{JobId, NodeId, OwnerId, Token},
};

/// Size in bytes up to which a job's body is accepted: several must fit into one message.
pub const BODY_BYTES_MAX: usize = 32 << 20;

/// A job as an engine hands it to the meta service. The same job may be submitted again at any time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobSubmission {
    /// Whose job it is.
    pub owner: OwnerId,
    /// Its id.
    pub job: JobId,
    /// What it is for, in words: `"table trips, window 12"`.
    pub label: String,
    /// [`CompactionJob::encode`](super::CompactionJob::encode); meta does not look inside.
    pub body: Bytes,
    /// The tasks still to be run.
    pub tasks: Vec<TaskSubmission>,
}

/// A task of a submitted job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskSubmission {
    /// Its position in the job.
    pub index: u32,
    /// About how many bytes it reads.
    pub bytes: u64,
}

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
    },
    /// Its result object exists.
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
}

/// Where a submitted job stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobStatus {
    /// Grows with every change of the job.
    pub revision: u64,
    /// Index and state of each submitted task.
    pub tasks: Vec<(u32, TaskState)>,
}

/// The meta service as an engine sees it.
#[async_trait]
pub trait JobService: Send + Sync + 'static {
    /// Queues the job's tasks. Idempotent: a job that is known stays as it is. One that is neither watched
    /// nor released is forgotten after a while.
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

    /// Forgets a job that was committed or given up; its running tasks are stopped. Idempotent.
    async fn release(&self, job: JobId) -> Result<()>;
}
