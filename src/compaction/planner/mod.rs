//! Planners choose what to merge: pure functions over a version, with no clock and no store.

#[cfg(test)]
mod tests;
mod time_window;

pub use time_window::{manual, plan};

use crate::config::CompactionConfig;

/// What a planner goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "picker")]
pub struct PlannerConfig {
    /// Level-0 runs in a window that make a job.
    pub l0_runs_trigger: usize,
    /// Input bytes of one job at most, where it can be helped.
    pub job_bytes_max: u64,
    /// For how long a past window must be quiet before it is settled, in milliseconds.
    pub window_settle_ms: u64,
}

impl From<&CompactionConfig> for PlannerConfig {
    fn from(config: &CompactionConfig) -> Self {
        Self {
            l0_runs_trigger: config.l0_runs_trigger,
            job_bytes_max: config.job_bytes_max.0,
            window_settle_ms: config.window_settle.0,
        }
    }
}
