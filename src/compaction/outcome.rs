//! What tasks and jobs produced.

use bytes::Bytes;

use super::codec;
use crate::{
    error::Result,
    types::{NodeId, RowSum, SstMeta, TaskId, Token},
};

/// What one attempt at a task produced. Its rows balance: what was read was written or dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskOutcome {
    /// The task.
    pub task: TaskId,
    /// The attempt.
    pub token: Token,
    /// Who ran it.
    pub node: NodeId,
    /// The SSTs it wrote, in key order, disjoint.
    pub outputs: Vec<SstMeta>,
    /// Input rows inside the task's range.
    pub read: RowSum,
    /// Output rows.
    pub written: RowSum,
    /// Rows dropped because a newer version of their key hides them from everybody.
    pub shadowed: RowSum,
    /// Tombstones dropped because nothing is left for them to hide.
    pub deleted: RowSum,
    /// Rows that became part of a newer one of their key.
    pub combined: RowSum,
    /// Rows dropped because they are past the time to live.
    pub expired: RowSum,
    /// Rows dropped because a range delete hides them.
    pub range_deleted: RowSum,
    /// Bytes read from the store.
    pub bytes_read: u64,
    /// How long it ran, in milliseconds.
    pub elapsed_ms: u64,
}

impl TaskOutcome {
    /// All rows that were dropped.
    pub fn dropped(&self) -> RowSum {
        let dropped = [
            self.shadowed,
            self.deleted,
            self.combined,
            self.expired,
            self.range_deleted,
        ];
        dropped.into_iter().sum()
    }

    /// Bytes of the outputs.
    pub fn bytes_written(&self) -> u64 {
        self.outputs.iter().map(|sst| sst.bytes).sum()
    }

    /// The outcome as a result object.
    pub fn encode(&self) -> Bytes {
        codec::encode_outcome(self)
    }

    /// The outcome in `bytes`, the object `name`.
    ///
    /// # Errors
    /// `Corrupt`, naming the object, when it is truncated, damaged or from a newer version.
    pub fn decode(name: &str, bytes: &Bytes) -> Result<Self> {
        codec::decode_outcome(name, bytes)
    }
}

/// The outcomes of all tasks of a job, in task order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompactionOutcome {
    /// One a task.
    pub tasks: Vec<TaskOutcome>,
}

impl CompactionOutcome {
    /// All outputs, in key order.
    pub fn outputs(&self) -> impl Iterator<Item = &SstMeta> {
        self.tasks.iter().flat_map(|task| &task.outputs)
    }
}
