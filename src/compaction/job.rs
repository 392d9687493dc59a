//! A compaction job: self-contained and immutable; and its tasks.

use std::sync::Arc;

use bytes::Bytes;

use super::{codec, memory_estimate};
use crate::{
    error::Result,
    types::{JobId, KeyRange, Retention, SstMeta, TableId, TableSchema, TaskId, Window},
};

/// One key range of a job: the unit of dispatch, lease and retry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Its id.
    pub id: TaskId,
    /// Its keys.
    pub range: KeyRange,
}

/// A plan with an id: the unit of commit. Whoever runs it needs this and the inputs, never the manifest.
#[derive(Clone, Debug, PartialEq)]
pub struct CompactionJob {
    /// Its id.
    pub id: JobId,
    /// The table it belongs to.
    pub table: TableId,
    /// URL of the root that holds the inputs and takes the outputs.
    pub store_url: String,
    /// Schema of the outputs.
    pub schema: TableSchema,
    /// What to merge; all in one window.
    pub inputs: Vec<Arc<SstMeta>>,
    /// The window of inputs and outputs.
    pub window: Window,
    /// Level of the outputs.
    pub level_target: u8,
    /// What may be dropped.
    pub retention: Retention,
    /// Size in bytes at which an output SST ends and the next begins.
    pub sst_bytes_target: u64,
    /// The key range of each task; together they cover every key once, in order.
    pub tasks: Vec<KeyRange>,
}

impl CompactionJob {
    /// Id of the task at `index`.
    pub fn task_id(&self, index: u32) -> TaskId {
        TaskId {
            job: self.id,
            index,
        }
    }

    /// The task at `index`, as it was planned.
    pub fn task(&self, index: u32) -> Option<Task> {
        let range = self.tasks.get(index as usize)?.clone();
        let id = self.task_id(index);
        Some(Task { id, range })
    }

    /// The tasks as they were planned, in key order.
    pub fn planned_tasks(&self) -> impl Iterator<Item = Task> {
        (0..self.tasks.len() as u32).filter_map(|index| self.task(index))
    }

    /// Inputs that can hold keys in `range`.
    pub fn inputs_in(&self, range: &KeyRange) -> impl Iterator<Item = &Arc<SstMeta>> {
        self.inputs
            .iter()
            .filter(|sst| range.overlaps(&sst.key_min, &sst.key_max))
    }

    /// About how many bytes of memory a task with the keys in `range` needs, by what is known of its inputs
    /// before they are opened.
    pub fn task_memory(&self, range: &KeyRange) -> u64 {
        memory_estimate(self.inputs_in(range))
    }

    /// Bytes of all inputs.
    pub fn input_bytes(&self) -> u64 {
        self.inputs.iter().map(|sst| sst.bytes).sum()
    }

    /// Whether it makes level 0 smaller.
    pub fn relieves_level_0(&self) -> bool {
        self.inputs.iter().any(|sst| sst.level == 0)
    }

    /// The job as bytes for the wire.
    pub fn encode(&self) -> Bytes {
        codec::encode_job(self)
    }

    /// The job in `bytes`.
    ///
    /// # Errors
    /// `Corrupt` when they are not a job.
    pub fn decode(bytes: Bytes) -> Result<Self> {
        codec::decode_job(bytes)
    }
}
