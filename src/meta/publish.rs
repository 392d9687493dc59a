//! A meta service's stats as metrics.

use std::time::Duration;

use super::stats::MetaStats;
use crate::metrics::{self, Samples};

/// The value of every metric.
pub(super) fn samples(stats: &MetaStats) -> Samples {
    let mut samples = Samples::default();
    for (state, &nodes) in &stats.nodes {
        samples.put_by(metrics::META_NODES, [("state", state)], nodes);
    }
    for (metric, used, all) in [
        (metrics::META_SLOTS, stats.slots_used, stats.slots),
        (metrics::META_MEMORY, stats.memory_used, stats.memory_bytes),
    ] {
        samples.put_by(metric, [("use", "used")], used);
        samples.put_by(metric, [("use", "free")], all.saturating_sub(used));
    }
    samples.put(metrics::META_ENGINES, stats.engines);
    samples.put(metrics::META_SSTS_QUARANTINED, stats.ssts_quarantined);
    samples.put(metrics::META_OWNERS, stats.owners);
    samples.put(metrics::META_JOBS, stats.jobs);
    for (state, &tasks) in &stats.tasks {
        samples.put_by(metrics::META_TASKS, [("state", state)], tasks);
    }
    samples.put(metrics::META_QUEUED_BYTES, stats.queued_bytes);
    samples.put(metrics::META_OLDEST_WAIT, millis(stats.oldest_wait));
    if let Some(estimate) = stats.clear_estimate {
        samples.put(metrics::META_CLEAR_ESTIMATE, millis(estimate));
    }
    samples.put(metrics::META_LOG_AWAY, stats.log_away.into());
    of_events(stats, &mut samples);
    samples
}

fn of_events(stats: &MetaStats, samples: &mut Samples) {
    let events = &stats.events;
    for (metric, value) in [
        (metrics::META_JOBS_SUBMITTED, events.jobs_submitted),
        (metrics::META_JOBS_RELEASED, events.jobs_released),
        (metrics::META_ATTEMPTS, events.attempts),
        (metrics::META_TASKS_COMPLETED, events.tasks_completed),
        (metrics::META_BYTES_COMPLETED, events.bytes_completed),
        (metrics::META_TASKS_DISPLACED, events.tasks_displaced),
        (metrics::META_TASKS_SLOW, events.tasks_slow),
        (metrics::META_TASKS_CANCELLED, events.tasks_cancelled),
    ] {
        samples.put(metric, value);
    }
    for (metric, by_reason) in [
        (
            metrics::META_SUBMISSIONS_REFUSED,
            &events.submissions_refused,
        ),
        (metrics::META_ATTEMPTS_ENDED, &events.attempts_ended),
        (metrics::META_TASKS_FAILED, &events.tasks_failed),
    ] {
        for (reason, &value) in by_reason {
            samples.put_by(metric, [("reason", reason)], value);
        }
    }
    for (outcome, value) in [
        ("started", events.hedges),
        ("won", events.hedges_won),
        ("wasted", events.hedges_wasted),
    ] {
        samples.put_by(metrics::META_HEDGES, [("outcome", outcome)], value);
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
