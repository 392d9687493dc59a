//! A meta service in numbers: what it has now, and what has happened since this process took the plan over.

use std::{collections::BTreeMap, time::Duration};

use serde::Serialize;

use super::{
    state::{Phase, State},
    update::{Cause, PlanUpdate},
};

/// A meta service in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MetaStats {
    /// Nodes, by state.
    pub nodes: BTreeMap<&'static str, u64>,
    /// Slots of the nodes that take tasks.
    pub slots: u64,
    /// Of these, those with a task.
    pub slots_used: u64,
    /// Bytes of memory for tasks on the nodes that take some.
    pub memory_bytes: u64,
    /// Of these, those that their tasks may take.
    pub memory_used: u64,
    /// Engines that attend.
    pub engines: u64,
    /// SSTs that they leave alone because jobs with them failed.
    pub ssts_quarantined: u64,
    /// Owners with jobs.
    pub owners: u64,
    /// Jobs.
    pub jobs: u64,
    /// Their tasks, by state.
    pub tasks: BTreeMap<&'static str, u64>,
    /// About how many bytes queued tasks read.
    pub queued_bytes: u64,
    /// Since the submission of the oldest job with a queued task.
    pub oldest_wait: Duration,
    /// How long the nodes there are need for what is queued; `None` before enough tasks have been completed, or
    /// when there are no nodes.
    pub clear_estimate: Option<Duration>,
    /// The plan log does not answer: nothing is given out.
    pub log_away: bool,
    /// What has happened since the service was opened.
    pub events: MetaEvents,
}

/// Counts of what has happened since a meta service was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MetaEvents {
    /// Jobs submitted; one that was known does not count again.
    pub jobs_submitted: u64,
    /// Jobs that their engines have released.
    pub jobs_released: u64,
    /// Submissions that were not accepted, by kind of error.
    pub submissions_refused: BTreeMap<&'static str, u64>,
    /// Attempts given to nodes.
    pub attempts: u64,
    /// Attempts that ended without a result, by cause.
    pub attempts_ended: BTreeMap<&'static str, u64>,
    /// Second attempts beside ones that were slow.
    pub hedges: u64,
    /// Hedges whose result came first.
    pub hedges_won: u64,
    /// Hedges that came second.
    pub hedges_wasted: u64,
    /// Tasks completed.
    pub tasks_completed: u64,
    /// About how many bytes they read.
    pub bytes_completed: u64,
    /// Tasks given up, by what went wrong last.
    pub tasks_failed: BTreeMap<&'static str, u64>,
    /// Queued tasks that gave way to others.
    pub tasks_displaced: u64,
    /// Tasks that were too slow on every node: their engines were to cut what was left of them.
    pub tasks_slow: u64,
    /// Tasks that operators have cancelled, or that their engines have cut.
    pub tasks_cancelled: u64,
}

impl MetaEvents {
    /// Counts `update`, which is about to be applied to `state`.
    pub(super) fn add(&mut self, state: &State, update: &PlanUpdate) {
        let is_new = |job| state.job(job).is_none();
        let new = update.new.iter().filter(|new| is_new(new.job.job));
        self.jobs_submitted += new.count() as u64;
        self.jobs_released += update.released.len() as u64;
        self.attempts += update.assigned.len() as u64;
        let hedges = update.assigned.iter().filter(|entry| entry.hedge);
        self.hedges += hedges.count() as u64;
        self.tasks_displaced += update.displaced.len() as u64;
        self.tasks_slow += update.slowed.len() as u64;
        self.tasks_cancelled += update.cancelled.len() as u64;
        let mut ended = |cause: Cause| {
            *self.attempts_ended.entry(cause.as_str()).or_default() += 1;
        };
        update.requeued.iter().for_each(|entry| ended(entry.cause));
        let failed = update.failed.iter().filter(|entry| entry.token.0 > 0);
        failed.for_each(|entry| ended(entry.cause));
        for entry in &update.failed {
            *self.tasks_failed.entry(entry.kind.as_str()).or_default() += 1;
        }
        for entry in &update.completed {
            let Some(task) = state.task(entry.task) else {
                continue;
            };
            if matches!(task.phase, Phase::Done { .. }) {
                continue;
            }
            self.tasks_completed += 1;
            self.bytes_completed = self.bytes_completed.saturating_add(task.bytes);
            if let Some(hedge) = task.holders().iter().find(|holder| holder.hedge) {
                match hedge.node == entry.node {
                    true => self.hedges_won += 1,
                    false => self.hedges_wasted += 1,
                }
            }
        }
    }
}
