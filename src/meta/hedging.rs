//! What is done about tasks that run far slower than their kind. Pure.
//!
//! - A slow node is met by a second attempt on another one. The first result counts; what the slower one wrote is
//!   deleted.
//! - When the second attempt is slow as well, or there is no other node, it is the task: its engine is told, cuts
//!   what is left of it in two, and gives it up for the new tasks.
//!
//! Either needs a free slot that no queued task wants. What a task of its size takes is learned from those that
//! were completed.

use std::{collections::BTreeSet, time::Duration};

use super::{
    dispatch::Given,
    placement::{Candidate, Wanted, place},
    state::{Job, Now, Running, State, Task},
};
use crate::{compaction::remote::AttemptId, types::NodeId};

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
    /// A task that reads `bytes` was completed after `elapsed`. One that reads nothing teaches nothing.
    pub(super) fn learn(&mut self, bytes: u64, elapsed: Duration) {
        if bytes == 0 {
            return;
        }
        let this = elapsed.as_secs_f64() / bytes as f64;
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

/// What to do about slow tasks.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Stragglers {
    /// Second attempts to start.
    pub hedges: Vec<Given>,
    /// The newest attempts of tasks of which the rest should be cut.
    pub too_slow: Vec<AttemptId>,
    /// When the next task may turn out slow.
    pub next: Option<Duration>,
}

/// What to do now about slow tasks, where there is room on `candidates`.
pub(super) fn stragglers(
    state: &State,
    candidates: &mut [Candidate<'_>],
    speed: &Speed,
    now: Now,
) -> Stragglers {
    let mut found = Stragglers::default();
    // What is queued and ready comes first.
    if state.queues().next().is_some() {
        return found;
    }
    for Running { attempt, task, .. } in state.running() {
        let is_newest = attempt.token == task.token;
        let (id, Some(slow_after)) = (attempt.task, speed.slow_after(task.bytes)) else {
            continue;
        };
        let Some(job) = state.job(id.job).filter(|_| is_newest && !task.slow) else {
            continue;
        };
        let holders = task.holders();
        let began = holders.iter().map(|holder| holder.lease.began).max();
        let slow_at = began.unwrap_or(now.monotonic) + slow_after;
        if slow_at > now.monotonic {
            found.next = [found.next, Some(slow_at)].into_iter().flatten().min();
            continue;
        }
        let nodes: Vec<&NodeId> = holders.iter().map(|holder| &holder.node).collect();
        let anywhere = wanted(job, task, &[]);
        let has_room = candidates.iter().any(|node| node.has_room(&anywhere));
        let hedge = match nodes.len() {
            1 => place(candidates, &wanted(job, task, &nodes)),
            _ => None,
        };
        match hedge {
            Some(node) if node.waits => {
                node.take(task.bytes, task.memory);
                let (node, session) = (node.facts.id.clone(), node.facts.session);
                found.hedges.push((id, node, session));
            }
            // It will be back at once.
            Some(_) => {}
            None if has_room => found.too_slow.push(attempt),
            None => {}
        }
    }
    found
}

/// Where a slow task of `job`, or a part of it, could go.
fn wanted<'a>(job: &'a Job, task: &Task, never: &'a [&'a NodeId]) -> Wanted<'a> {
    static NOBODY: BTreeSet<&NodeId> = BTreeSet::new();
    Wanted {
        needs: &job.submission.needs,
        table: job.submission.table,
        zone: &job.submission.zone,
        memory: task.memory,
        avoid: &NOBODY,
        never,
    }
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
        // Deleting takes its time, too.
        speed.learn(0, Duration::from_secs(60));
        assert_eq!(speed.expected(1 << 20), Some(Duration::from_secs(3)));
    }
}
