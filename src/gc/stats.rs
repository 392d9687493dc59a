//! What was deleted, counted.

use std::collections::BTreeMap;

use serde::Serialize;

/// Deletion since the engine was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GcStats {
    /// Objects deleted, by [reason](super::Deleted::as_str).
    pub deleted: BTreeMap<String, u64>,
    /// The same objects by who deleted them: `nodes`, or the `engine`.
    pub deleted_by: BTreeMap<String, u64>,
    /// Objects that nodes should have deleted, and that the engine had to, by reason: `no nodes` that could;
    /// `unavailable` without a meta service and `too large` for a full queue, for as long as a fallback waits; `failed`
    /// on the nodes; `overdue` because they did not come to it.
    pub left_to_engine: BTreeMap<String, u64>,
    /// Attempts at a deletion that failed.
    pub failures: u64,
    /// Objects whose last deletion failed: they will be tried again.
    pub objects_failing: u64,
    /// Why the last deletion or listing failed, until a sweep of everything ends well.
    pub last_error: Option<String>,
    /// Sweeps of everything that is stored, ended.
    pub sweeps: u64,
}

impl GcStats {
    /// Objects deleted, for whatever reason.
    pub fn objects_deleted(&self) -> u64 {
        self.deleted.values().sum()
    }
}
