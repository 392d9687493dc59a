//! What compaction tells about itself.

use std::collections::{BTreeMap, HashSet};

use serde::Serialize;

use super::{CompactionOutcome, Decisions, TaskOutcome};
use crate::types::{NodeId, TableId};

/// Compaction since the engine was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CompactionStats {
    /// `"local"`, `"remote"`, `"auto"` or `"off"`.
    pub mode: String,
    /// Jobs running now.
    pub jobs_running: u64,
    /// Why running jobs wait for something outside of the engine: the last word of a meta service that
    /// cannot be reached, until it can be.
    pub waiting: Option<String>,
    /// Jobs recorded, to be run.
    pub jobs_started: u64,
    /// Jobs committed.
    pub jobs_committed: u64,
    /// SSTs that only changed their level: trivial moves.
    pub ssts_moved: u64,
    /// Jobs resumed from the manifest when the engine was opened.
    pub jobs_resumed: u64,
    /// Jobs that failed, by reason.
    pub jobs_failed: BTreeMap<String, u64>,
    /// Outcomes that the proof refused, by clause: nothing of them was committed.
    pub proof_failures: BTreeMap<String, u64>,
    /// SSTs that are left alone for a while because a job with them failed.
    pub ssts_quarantined: u64,
    /// Each of them, and why. [`Table::retry_quarantined`](crate::Table::retry_quarantined) has them tried again.
    pub quarantine: Vec<QuarantinedSst>,
    /// Tasks of resumed jobs of whose results an earlier process had left parts.
    pub tasks_reused: u64,
    /// Parts of results that a later attempt at the same task went on after, in committed jobs.
    pub parts_reused: u64,
    /// Tasks that were too large, or too slow, and whose rest was split, in committed jobs.
    pub tasks_split: u64,
    /// Jobs that fell back from remote to local, by reason.
    pub fallbacks: BTreeMap<String, u64>,
    /// Jobs that were due to fall back, and had to wait because as many did as `compaction.remote.fallback_jobs_max`
    /// allows.
    pub fallbacks_held: u64,
    /// In mode `"auto"`, where jobs were run, and on what grounds.
    pub decisions: Decisions,
    /// Rows that committed jobs dropped, by cause: `shadowed` by a newer version of their key, `deleted`
    /// tombstones that had nothing left to hide, `combined` with a newer row, `expired`, `range_deleted`.
    pub rows_dropped: BTreeMap<String, u64>,
    /// What each node did, of committed jobs. Tasks run by the engine itself are under `"local"`.
    pub nodes: BTreeMap<NodeId, NodeStats>,
    /// The last failure in words.
    pub last_error: Option<String>,
}

/// An SST that is left alone for a while because a job with it failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct QuarantinedSst {
    /// Name of the table.
    pub table: String,
    /// Its id.
    pub table_id: TableId,
    /// The SST's id.
    pub sst: String,
    /// Why the last job with it failed.
    pub reason: String,
    /// Jobs that have failed with it.
    pub failures: u32,
    /// When the first of them failed, in milliseconds since the Unix epoch.
    pub since_ms: u64,
    /// In how many milliseconds it is tried again.
    pub retry_in_ms: u64,
}

/// What one node did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NodeStats {
    /// Tasks of which it wrote a part at least.
    pub tasks: u64,
    /// Rows of their inputs.
    pub rows_read: u64,
    /// Bytes read from the store.
    pub bytes_read: u64,
    /// Bytes of the outputs.
    pub bytes_written: u64,
}

impl CompactionStats {
    /// Rows that committed jobs merged.
    pub fn rows_read(&self) -> u64 {
        self.nodes.values().map(|node| node.rows_read).sum()
    }

    /// Bytes that committed jobs read from the store.
    pub fn bytes_read(&self) -> u64 {
        self.nodes.values().map(|node| node.bytes_read).sum()
    }

    /// Bytes of the SSTs that committed jobs wrote.
    pub fn bytes_written(&self) -> u64 {
        self.nodes.values().map(|node| node.bytes_written).sum()
    }

    /// Counts a committed job.
    pub(super) fn add_committed(&mut self, outcome: &CompactionOutcome) {
        self.jobs_committed += 1;
        self.parts_reused += outcome.parts_reused();
        self.tasks_split += outcome.splits.len() as u64;
        let mut seen = HashSet::new();
        for part in &outcome.parts {
            let node = self.nodes.entry(part.node.clone()).or_default();
            node.tasks += u64::from(seen.insert((part.task, &part.node)));
            node.rows_read += part.read.rows;
            node.bytes_read += part.bytes_read;
            node.bytes_written += part.bytes_written();
            for (cause, rows) in dropped(part) {
                *self.rows_dropped.entry(cause.to_owned()).or_default() += rows;
            }
        }
    }
}

/// Rows that were dropped, by cause.
fn dropped(part: &TaskOutcome) -> [(&'static str, u64); 5] {
    [
        ("shadowed", part.shadowed.rows),
        ("deleted", part.deleted.rows),
        ("combined", part.combined.rows),
        ("expired", part.expired.rows),
        ("range_deleted", part.range_deleted.rows),
    ]
}
