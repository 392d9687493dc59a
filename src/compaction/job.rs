//! A compaction job: self-contained and immutable.

use std::sync::Arc;

use bytes::Bytes;

use super::{codec, plan::memory_estimate};
use crate::{
    error::Result,
    types::{JobId, KeyRange, Retention, SstMeta, TableId, TableSchema, TaskId, Window},
};

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

    /// Ids of all tasks, in key order.
    pub fn task_ids(&self) -> impl Iterator<Item = TaskId> {
        let job = self.id;
        (0..self.tasks.len() as u32).map(move |index| TaskId { job, index })
    }

    /// Inputs that can hold keys of the task at `index`.
    pub fn inputs_of(&self, index: u32) -> impl Iterator<Item = &Arc<SstMeta>> {
        let range = &self.tasks[index as usize];
        self.inputs
            .iter()
            .filter(|sst| range.overlaps(&sst.key_min, &sst.key_max))
    }

    /// Bytes of all inputs.
    pub fn input_bytes(&self) -> u64 {
        self.inputs.iter().map(|sst| sst.bytes).sum()
    }

    /// About how many input bytes the task at `index` reads: the inputs that overlap it, shared equally
    /// with the other tasks that they overlap.
    pub fn task_bytes(&self, index: u32) -> u64 {
        let overlapping = |sst: &SstMeta| {
            let tasks = self.tasks.iter();
            tasks
                .filter(|range| range.overlaps(&sst.key_min, &sst.key_max))
                .count()
                .max(1) as u64
        };
        self.inputs_of(index)
            .map(|sst| sst.bytes / overlapping(sst))
            .sum()
    }

    /// About how many bytes of memory the task at `index` takes.
    pub fn task_memory(&self, index: u32) -> u64 {
        let inputs: Vec<Arc<SstMeta>> = self.inputs_of(index).cloned().collect();
        memory_estimate(&inputs)
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
