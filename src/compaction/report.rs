//! What a manual compaction did.

use std::time::Duration;

use super::{CompactionOutcome, Plan};

/// What a manual compaction did. Jobs that were under way already when it was called do not count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompactionReport {
    /// Jobs run and committed.
    pub jobs: u64,
    /// SSTs that only changed their level.
    pub ssts_moved: u64,
    /// SSTs merged.
    pub ssts_read: u64,
    /// Bytes of the SSTs merged.
    pub bytes_read: u64,
    /// SSTs that came of it.
    pub ssts_written: u64,
    /// Bytes of the SSTs that came of it.
    pub bytes_written: u64,
    /// Rows merged, tombstones and shadowed versions included.
    pub rows_read: u64,
    /// Rows that came of it.
    pub rows_written: u64,
    /// Rows dropped because a newer version of their key, or a tombstone, hides them.
    pub rows_shadowed: u64,
    /// Tombstones dropped.
    pub rows_deleted: u64,
    /// Rows that became part of a newer one of their key.
    pub rows_combined: u64,
    /// Rows dropped because they were past the time to live.
    pub rows_expired: u64,
    /// Rows dropped because a range delete hid them.
    pub rows_range_deleted: u64,
    /// How long it took, waiting for other jobs included.
    pub elapsed: Duration,
    /// Names of SSTs in the range that no job could take, and why.
    pub skipped: Vec<(String, String)>,
}

impl CompactionReport {
    /// What a move did.
    pub(super) fn of_move(plan: &Plan) -> Self {
        Self {
            ssts_moved: plan.inputs.len() as u64,
            ..Self::default()
        }
    }

    /// What a committed job did.
    pub(super) fn of_job(inputs: u64, input_bytes: u64, outcome: &CompactionOutcome) -> Self {
        let mut report = Self {
            jobs: 1,
            ssts_read: inputs,
            bytes_read: input_bytes,
            ..Self::default()
        };
        for part in &outcome.parts {
            report.ssts_written += part.outputs.len() as u64;
            report.bytes_written += part.bytes_written();
            report.rows_read += part.read.rows;
            report.rows_written += part.written.rows;
            report.rows_shadowed += part.shadowed.rows;
            report.rows_deleted += part.deleted.rows;
            report.rows_combined += part.combined.rows;
            report.rows_expired += part.expired.rows;
            report.rows_range_deleted += part.range_deleted.rows;
        }
        report
    }

    /// Adds what another job did.
    pub(super) fn add(&mut self, other: Self) {
        self.jobs += other.jobs;
        self.ssts_moved += other.ssts_moved;
        self.ssts_read += other.ssts_read;
        self.bytes_read += other.bytes_read;
        self.ssts_written += other.ssts_written;
        self.bytes_written += other.bytes_written;
        self.rows_read += other.rows_read;
        self.rows_written += other.rows_written;
        self.rows_shadowed += other.rows_shadowed;
        self.rows_deleted += other.rows_deleted;
        self.rows_combined += other.rows_combined;
        self.rows_expired += other.rows_expired;
        self.rows_range_deleted += other.rows_range_deleted;
    }
}
