//! The record of what was decided: of the last jobs with all inputs, of all in numbers.
//!
//! It is kept in memory and told by the stats, and each decision is logged. The manifest does not have it: there a job
//! is what must be true for good, whereas where it runs is decided anew by each engine that takes it up.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{
    compaction::cost::{Costs, Decision},
    types::{JobId, TableId},
};

/// Jobs that are remembered with all that their decision went by.
const RECENT_MAX: usize = 64;

/// Where jobs were run, when that was to be decided.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Decisions {
    /// Decisions by side, `local`, `remote` or `split`, and by reason: `cost`, `explores`, `local full`, `remote full`,
    /// `no nodes`, `away`.
    pub counts: BTreeMap<String, BTreeMap<String, u64>>,
    /// The last ones, oldest first.
    pub recent: Vec<JobDecision>,
}

/// Where one job was run, and all that this went by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct JobDecision {
    /// The job.
    pub job: JobId,
    /// Its table.
    pub table: TableId,
    /// When it was decided, in milliseconds since the Unix epoch.
    pub decided_ms: u64,
    /// What was known.
    pub costs: Costs,
    /// What followed from it.
    pub decision: Decision,
    /// Why, in a sentence.
    pub why: String,
    /// How long it then took, in milliseconds; `None` while it runs, and when it was stopped.
    pub took_ms: Option<u64>,
    /// Why it failed, if it did.
    pub error: Option<String>,
}

impl Decisions {
    /// Takes in a decision.
    pub(super) fn add(&mut self, decided: JobDecision) {
        let side = decided.decision.side.as_str().to_owned();
        let reason = decided.decision.reason.as_str().to_owned();
        let of_side = self.counts.entry(side).or_default();
        *of_side.entry(reason).or_default() += 1;
        if self.recent.len() == RECENT_MAX {
            self.recent.remove(0);
        }
        self.recent.push(decided);
    }

    /// Takes in how the last decision on `job` turned out.
    pub(super) fn ended(&mut self, job: JobId, took_ms: u64, error: Option<String>) {
        let mut newest = self.recent.iter_mut().rev();
        if let Some(decided) = newest.find(|decided| decided.job == job) {
            decided.took_ms = Some(took_ms);
            decided.error = error;
        }
    }
}
