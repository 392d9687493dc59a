//! What the plan has gone through since this process took it over, in numbers. What is now is read from the
//! plan itself.

use std::collections::BTreeMap;

use super::{
    state::{Phase, State},
    update::PlanUpdate,
};

/// Counts of what has happened since the service was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetaStats {
    /// Jobs submitted; one that was known does not count again.
    pub jobs_submitted: u64,
    /// Jobs that their engines have released.
    pub jobs_released: u64,
    /// Attempts given to nodes.
    pub attempts: u64,
    /// Of these, second ones beside one that is slow.
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
    /// Attempts that ended without a result, and counted.
    pub attempts_failed: u64,
    /// Attempts that ended because their store was not to be had.
    pub attempts_unavailable: u64,
    /// Attempts that their nodes handed back.
    pub attempts_handed_back: u64,
    /// Leases that ended because a node fell silent or a task did not move.
    pub leases_lost: u64,
    /// Queued tasks that gave way to others.
    pub tasks_displaced: u64,
    /// Tasks that operators have cancelled.
    pub tasks_cancelled: u64,
    /// Submissions refused because there was no room.
    pub submissions_refused: u64,
}

impl MetaStats {
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
        self.tasks_cancelled += update.cancelled.len() as u64;
        for entry in &update.failed {
            *self.tasks_failed.entry(entry.kind.as_str()).or_default() += 1;
            self.attempts_failed += u64::from(entry.token.0 > 0);
        }
        for entry in &update.requeued {
            let Some(task) = state.task(entry.attempt.task) else {
                continue;
            };
            if entry.attempts > task.attempts {
                self.attempts_failed += 1;
            } else if entry.outages > 0 {
                self.attempts_unavailable += 1;
            } else {
                self.attempts_handed_back += 1;
            }
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
