//! What tasks and jobs produced.
//!
//! The result of a task is a chain of **parts**, one object each, in key order. A part is the outcome of one
//! attempt for a stretch of the task's keys, or a split: the rest of the keys is left to other tasks.

use bytes::Bytes;

use super::{Task, codec};
use crate::{
    error::Result,
    types::{KeyRange, NodeId, RowSum, SstMeta, TaskId, Token},
};

/// A part of a task's result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskPart {
    /// What an attempt made of its keys.
    Outcome(TaskOutcome),
    /// Its keys are left to other tasks. The last part of a task that has one.
    Split(TaskSplit),
}

impl TaskPart {
    /// The task.
    pub fn task(&self) -> TaskId {
        match self {
            Self::Outcome(outcome) => outcome.task,
            Self::Split(split) => split.task,
        }
    }

    /// Position among the parts of the task, from 0.
    pub fn part(&self) -> u32 {
        match self {
            Self::Outcome(outcome) => outcome.part,
            Self::Split(split) => split.part,
        }
    }

    /// The keys it covers.
    pub fn range(&self) -> &KeyRange {
        match self {
            Self::Outcome(outcome) => &outcome.range,
            Self::Split(split) => &split.range,
        }
    }

    /// The part as a result object.
    pub fn encode(&self) -> Bytes {
        codec::encode_part(self)
    }

    /// The part in `bytes`, the object `name`.
    ///
    /// # Errors
    /// `Corrupt`, naming the object, when it is truncated, damaged or from another version.
    pub fn decode(name: &str, bytes: &Bytes) -> Result<Self> {
        codec::decode_part(name, bytes)
    }
}

/// What one attempt at a task made of a stretch of its keys. Its rows balance: what was read was written or
/// dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskOutcome {
    /// The task.
    pub task: TaskId,
    /// Position among the parts of the task's result, from 0.
    pub part: u32,
    /// The keys it covers.
    pub range: KeyRange,
    /// The attempt.
    pub token: Token,
    /// Who ran it.
    pub node: NodeId,
    /// The SSTs it wrote, in key order, disjoint.
    pub outputs: Vec<SstMeta>,
    /// Input rows with these keys.
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
    /// How long it took, in milliseconds.
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
}

/// The rest of a task, cut into other tasks of the same job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskSplit {
    /// The task.
    pub task: TaskId,
    /// Position among the parts of the task's result, from 0.
    pub part: u32,
    /// Keys of the task that no part before covers: all of the rest.
    pub range: KeyRange,
    /// Tasks that cover the range once, in key order. Their indexes are theirs alone, whoever cuts other tasks of the
    /// job at the same time, and greater than the task's own: see [`TaskId::halves`].
    pub children: Vec<Task>,
}

/// What all tasks of a job produced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompactionOutcome {
    /// The outcomes, in key order.
    pub parts: Vec<TaskOutcome>,
    /// How tasks were split, by ascending index.
    pub splits: Vec<TaskSplit>,
}

impl CompactionOutcome {
    /// All outputs, in key order.
    pub fn outputs(&self) -> impl Iterator<Item = &SstMeta> {
        self.parts.iter().flat_map(|part| &part.outputs)
    }

    /// Outcomes that a later attempt at their task found, and went on after.
    pub fn parts_reused(&self) -> u64 {
        let resumed = self.parts.windows(2).filter(|pair| {
            let [before, after] = pair else { return false };
            before.task == after.task && before.token != after.token
        });
        resumed.count() as u64
    }
}
