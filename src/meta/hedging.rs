//! Second attempts at tasks that run far slower than their kind. The first result counts; what the slower one
//! wrote is deleted. Pure.
//!
//! What a task of its size takes is learned from those that were completed. A hedge needs a free slot that no
//! queued task wants, and a node other than the one that is slow.

use std::{collections::BTreeSet, time::Duration};

use super::{
    dispatch::Given,
    placement::{Candidate, Wanted, place},
    state::{Now, Running, State},
};

/// A task is slow when it has run so many times as long as one of its size does.
const SLOW_FACTOR: f64 = 4.0;
/// Nothing that has run for less is slow.
const SLOW_MIN: Duration = Duration::from_secs(10);
/// Completed tasks before anything is called slow.
const LEARNED_MIN: u32 = 5;
/// Weight of the newest completed task in what is learned.
const NEWEST: f64 = 0.1;
/// What every task takes besides reading: small ones are not slow because they are small.
const OVERHEAD_SECS: f64 = 1.0;

/// How fast tasks run, as learned from those that were completed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Speed {
    secs_per_byte: f64,
    learned: u32,
}

impl Speed {
    /// A task that reads `bytes` was completed after `elapsed`.
    pub(super) fn learn(&mut self, bytes: u64, elapsed: Duration) {
        let this = elapsed.as_secs_f64() / bytes.max(1) as f64;
        self.secs_per_byte = match self.learned {
            0 => this,
            _ => self.secs_per_byte * (1.0 - NEWEST) + this * NEWEST,
        };
        self.learned = self.learned.saturating_add(1);
    }

    /// How long a task that reads `bytes` should take, once enough is known.
    pub(super) fn expected(&self, bytes: u64) -> Option<Duration> {
        let secs = OVERHEAD_SECS + self.secs_per_byte * bytes as f64;
        (self.learned >= LEARNED_MIN).then(|| Duration::from_secs_f64(secs.min(1e9)))
    }

    /// After what time a task that reads `bytes` is slow.
    fn slow_after(&self, bytes: u64) -> Option<Duration> {
        let expected = self.expected(bytes)?;
        Some(expected.mul_f64(SLOW_FACTOR).max(SLOW_MIN))
    }
}

/// Second attempts to start now, and when the next task may turn out slow.
pub(super) fn hedge(
    state: &State,
    candidates: &mut [Candidate<'_>],
    speed: &Speed,
    now: Now,
) -> (Vec<Given>, Option<Duration>) {
    let (mut hedges, mut next) = (Vec::new(), None);
    // What is queued and ready comes first.
    if state.queues().next().is_some() {
        return (hedges, next);
    }
    for running in state.running() {
        let Running {
            attempt,
            task,
            holder,
        } = running;
        let (id, Some(slow_after)) = (attempt.task, speed.slow_after(task.bytes)) else {
            continue;
        };
        if task.holders().len() > 1 {
            continue;
        }
        let slow_at = holder.lease.began + slow_after;
        if slow_at > now.monotonic {
            next = [next, Some(slow_at)].into_iter().flatten().min();
            continue;
        }
        let Some(job) = state.job(id.job) else {
            continue;
        };
        let wanted = Wanted {
            needs: &job.submission.needs,
            table: job.submission.table,
            zone: &job.submission.zone,
            memory: task.memory,
            avoid: &BTreeSet::new(),
            never: &[&holder.node],
        };
        let found = place(candidates, &wanted).filter(|node| node.waits);
        if let Some(node) = found {
            node.take(task.bytes, task.memory);
            hedges.push((id, node.facts.id.clone(), node.facts.session));
        }
    }
    (hedges, next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_slow_before_enough_is_known() {
        let mut speed = Speed::default();
        for _ in 0..LEARNED_MIN - 1 {
            speed.learn(1 << 20, Duration::from_secs(2));
        }
        assert_eq!(speed.slow_after(1 << 20), None);
        speed.learn(1 << 20, Duration::from_secs(2));
        assert_eq!(speed.expected(1 << 20), Some(Duration::from_secs(3)));
        assert_eq!(speed.slow_after(1 << 20), Some(Duration::from_secs(12)));
        assert_eq!(speed.slow_after(0), Some(SLOW_MIN));
    }
}
