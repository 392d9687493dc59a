//! What becomes of attempts: leases that progress renews, results, and each class of failure.
//!
//! | what ended the attempt | what becomes of the task |
//! |---|---|
//! | store unavailable | queued again, after longer and longer pauses; not counted |
//! | handed back | queued again at once; not counted |
//! | too large | given up: its engine cuts it |
//! | damaged or missing input, invalid | counted: only when nodes agree is the task at fault |
//! | panic, hung, node lost | counted |
//!
//! A task that was counted `task_attempts_max` times is given up. While a hedge is on its way, the end of
//! the other attempt leaves the task to it.

use std::time::Duration;

use super::{Now, Phase, Report, State, Task};
use crate::{
    compaction::remote::{AttemptId, TaskEnd, TaskProgress, TaskReport},
    error::ErrorKind,
    meta::update::{Cause, Completed, Failed, PlanUpdate, Renewed, Requeued},
    types::{NodeId, TaskId},
};

/// How long a task waits after it found its store unavailable, for the first time in a row; then twice as
/// long each time.
const OUTAGE_DELAY_MIN: Duration = Duration::from_secs(1);
const OUTAGE_DELAY_MAX: Duration = Duration::from_secs(60);
/// How long a task waits after its first failed attempt that counted; then twice as long each time.
const FAILURE_DELAY: Duration = Duration::from_millis(250);

/// An attempt that ended without a result, and whose it was.
#[derive(Clone, Copy)]
struct Ended<'a> {
    attempt: AttemptId,
    node: &'a NodeId,
    task: &'a Task,
}

impl State {
    pub(super) fn prepare_report(&self, report: &Report, now: Now) -> PlanUpdate {
        let mut update = PlanUpdate::default();
        for TaskReport { attempt, end } in &report.finished {
            let task = self.task(attempt.task);
            match (end, task) {
                // A complete result is final, whoever wrote it, and however the task stands.
                (TaskEnd::Done, Some(task)) if !matches!(task.phase, Phase::Done { .. }) => {
                    update.completed.push(Completed {
                        task: attempt.task,
                        node: report.node.clone(),
                    });
                }
                (TaskEnd::Failed { kind, message }, Some(task))
                    if self.holds(&report.node, report.session, *attempt) =>
                {
                    let ended = Ended {
                        attempt: *attempt,
                        node: &report.node,
                        task,
                    };
                    self.end(ended, *kind, message, now, &mut update);
                }
                _ => {}
            }
        }
        for running in &report.running {
            self.prepare_running(report, *running, now, &mut update);
        }
        self.prepare_restarted(report, now, &mut update);
        update
    }

    fn prepare_running(
        &self,
        report: &Report,
        running: TaskProgress,
        now: Now,
        update: &mut PlanUpdate,
    ) {
        let TaskProgress { attempt, progress } = running;
        if !self.holds(&report.node, report.session, attempt) {
            return;
        }
        let (Some(task), Some(holder)) = (self.task(attempt.task), self.holder(attempt)) else {
            return;
        };
        let (lease, stall) = (&holder.lease, self.limits.stall_timeout);
        let moved = lease.progress != progress;
        if moved || now.monotonic.saturating_sub(lease.moved) <= stall {
            update.renewed.push(Renewed {
                attempt,
                progress,
                at: now.monotonic,
            });
            return;
        }
        let ended = Ended {
            attempt,
            node: &report.node,
            task,
        };
        let reason = format!("no progress for {stall:?} on node {}", report.node);
        self.count(
            ended,
            (ErrorKind::Internal, Cause::Stalled),
            reason,
            now,
            update,
        );
    }

    /// A node whose process is a newer one has lost what the older one held.
    fn prepare_restarted(&self, report: &Report, now: Now, update: &mut PlanUpdate) {
        let done = Self::completed_by(update);
        for running in self.running_on(&report.node) {
            let is_lost = running.holder.session < report.session;
            if is_lost && !done.contains(&running.attempt.task) {
                let node = &report.node;
                let reason = format!("node {node} started anew");
                let ended = Ended {
                    attempt: running.attempt,
                    node,
                    task: running.task,
                };
                let how = (ErrorKind::Internal, Cause::Restarted);
                self.count(ended, how, reason, now, update);
            }
        }
    }

    pub(super) fn prepare_expire(&self, now: Now) -> PlanUpdate {
        let mut update = PlanUpdate::default();
        for running in self.running() {
            let holder = running.holder;
            if holder.lease.ends <= now.monotonic {
                let (node, lease) = (&holder.node, self.limits.lease);
                let reason = format!("node {node} said nothing of it for {lease:?}");
                let ended = Ended {
                    attempt: running.attempt,
                    node,
                    task: running.task,
                };
                let how = (ErrorKind::Internal, Cause::Silent);
                self.count(ended, how, reason, now, &mut update);
            }
        }
        update
    }

    /// What becomes of a task whose attempt ended with an error of `kind`.
    fn end(
        &self,
        ended: Ended<'_>,
        kind: ErrorKind,
        message: &str,
        now: Now,
        update: &mut PlanUpdate,
    ) {
        let (node, task) = (ended.node, ended.task);
        let reason = format!("node {node}: {kind}: {message}");
        let requeued = |cause, delay, outages| Requeued {
            attempt: ended.attempt,
            attempts: task.attempts,
            reason: reason.clone(),
            cause,
            ready_at: now.monotonic + delay,
            outages,
            avoid: Some((node.clone(), now.monotonic + delay + self.limits.lease)),
        };
        match kind {
            // The store is away, which is nobody's fault; or it is away for this node only, whose
            // credentials or network are at fault: then another fares better.
            ErrorKind::Unavailable => {
                let delay = backed_off(OUTAGE_DELAY_MIN, task.outages).min(OUTAGE_DELAY_MAX);
                let delay = jittered(delay, ended.attempt);
                update
                    .requeued
                    .push(requeued(Cause::Unavailable, delay, task.outages + 1));
            }
            // Handed back.
            ErrorKind::Closed => {
                let handed_back = requeued(Cause::HandedBack, Duration::ZERO, 0);
                update.requeued.push(handed_back);
            }
            // It is too large for every node: the engine decides.
            ErrorKind::TooLarge if task.holders().len() < 2 => update.failed.push(Failed {
                task: ended.attempt.task,
                token: ended.attempt.token,
                attempts: task.attempts + 1,
                kind,
                message: message.to_owned(),
                cause: Cause::Failed,
            }),
            // These may be the node's own: a root that it does not serve or has not mounted, a disk or a
            // build of its own. Only when nodes agree is the task at fault.
            ErrorKind::Corrupt | ErrorKind::Invalid | ErrorKind::NotFound => {
                self.count(ended, (kind, Cause::Failed), reason, now, update);
            }
            _ => {
                let how = (ErrorKind::Internal, Cause::Failed);
                self.count(ended, how, reason, now, update);
            }
        }
    }

    /// Counts a failed attempt: the task is tried again, preferably elsewhere, or given up with `kind`.
    fn count(
        &self,
        ended: Ended<'_>,
        (kind, cause): (ErrorKind, Cause),
        reason: String,
        now: Now,
        update: &mut PlanUpdate,
    ) {
        let (attempt, attempts) = (ended.attempt, ended.task.attempts + 1);
        let others = ended.task.holders().iter();
        let ended_too = |token| {
            let mut requeued = update.requeued.iter();
            let other = AttemptId { token, ..attempt };
            requeued.any(|entry| entry.attempt == other)
        };
        let goes_on = others
            .map(|holder| holder.token)
            .any(|token| token != attempt.token && !ended_too(token));
        if attempts < self.limits.task_attempts_max || goes_on {
            let delay = jittered(backed_off(FAILURE_DELAY, attempts - 1), attempt);
            let ready_at = now.monotonic + delay;
            update.requeued.push(Requeued {
                attempt,
                attempts,
                reason,
                cause,
                ready_at,
                outages: 0,
                avoid: Some((ended.node.clone(), ready_at + self.limits.lease)),
            });
            return;
        }
        // Both attempts of a hedged task end here: the first has been requeued above.
        update
            .requeued
            .retain(|entry| entry.attempt.task != attempt.task);
        let task = attempt.task;
        update.failed.push(Failed {
            task,
            token: attempt.token,
            attempts,
            kind,
            message: format!("{attempts} attempts at task {task} failed; the last: {reason}"),
            cause,
        });
    }
}

/// `first`, doubled `times` times.
fn backed_off(first: Duration, times: u32) -> Duration {
    first * (1 << times.min(8))
}

/// Between half of `delay` and the whole, by the attempt: tasks that failed together do not come back together,
/// and replicas agree on when they do.
fn jittered(delay: Duration, attempt: AttemptId) -> Duration {
    let AttemptId { task, token } = attempt;
    let TaskId { index, .. } = task;
    let mixed = (token.0 ^ u64::from(index).rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let share = (mixed >> 56) as u32;
    delay / 2 + delay * share / 512
}
