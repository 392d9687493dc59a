//! What compaction tells about itself.

use std::collections::BTreeMap;

use super::CompactionOutcome;
use crate::types::NodeId;

/// Compaction since the engine was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompactionStats {
    /// `"local"`, `"remote"` or `"off"`.
    pub mode: String,
    /// Jobs running now.
    pub jobs_running: u64,
    /// Why running jobs wait for something outside of the engine: the last word of a meta service that
    /// cannot be reached, until it can be.
    pub waiting: Option<String>,
    /// Jobs committed.
    pub jobs_committed: u64,
    /// Jobs resumed from the manifest when the engine was opened.
    pub jobs_resumed: u64,
    /// Jobs that failed, by reason.
    pub jobs_failed: BTreeMap<String, u64>,
    /// SSTs that are left alone for a while because a job with them failed.
    pub ssts_quarantined: u64,
    /// Tasks whose result an earlier attempt, or an earlier process, had left.
    pub tasks_reused: u64,
    /// Jobs that fell back from remote to local, by reason.
    pub fallbacks: BTreeMap<String, u64>,
    /// What each node did, of committed jobs. Tasks run by the engine itself are under `"local"`.
    pub nodes: BTreeMap<NodeId, NodeStats>,
    /// The last failure in words.
    pub last_error: Option<String>,
}

/// What one node did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeStats {
    /// Tasks.
    pub tasks: u64,
    /// Rows of their inputs.
    pub rows_read: u64,
    /// Bytes read from the store.
    pub bytes_read: u64,
    /// Bytes of the outputs.
    pub bytes_written: u64,
}

impl CompactionStats {
    /// Counts a committed job.
    pub(super) fn add_committed(&mut self, outcome: &CompactionOutcome) {
        self.jobs_committed += 1;
        for task in &outcome.tasks {
            let node = self.nodes.entry(task.node.clone()).or_default();
            node.tasks += 1;
            node.rows_read += task.read.rows;
            node.bytes_read += task.bytes_read;
            node.bytes_written += task.bytes_written();
        }
    }
}
