//! Deciding: what a request means for the plan. Nothing here changes anything.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use super::{Lease, Now, Phase, State, Task};
use crate::{
    compaction::remote::{
        AttemptId, BODY_BYTES_MAX, JobSubmission, NodePoll, TaskEnd, TaskProgress, TaskReport,
    },
    error::{Error, ErrorKind, Result},
    meta::update::{Assigned, Completed, Failed, NewJob, PlanUpdate, Renewed, Requeued},
    types::{JobId, NodeId, TaskId, Token},
};

/// How long a task waits after it found its store unavailable.
const UNAVAILABLE_DELAY: Duration = Duration::from_secs(1);

/// What may be asked of the plan.
#[derive(Clone, Debug)]
pub enum Request {
    /// An engine hands in a job.
    Submit(Arc<JobSubmission>),
    /// An engine wants a job no more.
    Release(JobId),
    /// A node says what it holds.
    Report(Report),
    /// A queued task goes to a node.
    Assign {
        /// The task.
        task: TaskId,
        /// The node.
        node: NodeId,
        /// The node's process.
        session: u64,
    },
    /// Time has passed: leases may have ended.
    Expire,
}

/// The part of a [`NodePoll`] that concerns the plan.
#[derive(Clone, Debug)]
pub struct Report {
    /// The node.
    pub node: NodeId,
    /// Its process.
    pub session: u64,
    /// Attempts it holds.
    pub running: Vec<TaskProgress>,
    /// Attempts that ended.
    pub finished: Vec<TaskReport>,
}

impl From<&NodePoll> for Report {
    fn from(poll: &NodePoll) -> Self {
        Self {
            node: poll.facts.id.clone(),
            session: poll.facts.session,
            running: poll.running.clone(),
            finished: poll.finished.clone(),
        }
    }
}

/// An attempt that ended without a result, and whose it was.
#[derive(Clone, Copy)]
struct Ended<'a> {
    attempt: AttemptId,
    node: &'a NodeId,
    task: &'a Task,
}

impl State {
    /// What `request` means. Changes nothing.
    ///
    /// # Errors
    /// Of a submission: `TooLarge` when the queue is full, `Invalid` when it can never be accepted. Of an
    /// assignment: `Conflict` when the task is not queued.
    pub fn prepare(&self, request: &Request, now: Now) -> Result<PlanUpdate> {
        match request {
            Request::Submit(job) => self.prepare_submit(job, now),
            Request::Release(job) => Ok(PlanUpdate {
                released: self
                    .jobs
                    .contains_key(job)
                    .then_some(*job)
                    .into_iter()
                    .collect(),
                ..PlanUpdate::default()
            }),
            Request::Report(report) => Ok(self.prepare_report(report, now)),
            Request::Assign {
                task,
                node,
                session,
            } => self.prepare_assign(*task, node, *session, now),
            Request::Expire => Ok(self.prepare_expire(now)),
        }
    }

    fn prepare_submit(&self, submission: &Arc<JobSubmission>, now: Now) -> Result<PlanUpdate> {
        let (id, owner) = (submission.job, &submission.owner);
        if let Some(known) = self.job(id) {
            let other = &known.submission.owner;
            if other != owner {
                return Err(Error::invalid(format!(
                    "job {id} of {owner} is known as a job of {other}"
                )));
            }
            return Ok(PlanUpdate::default());
        }
        let (tasks, open) = (submission.tasks.len(), self.open_tasks());
        let (bytes, tasks_max) = (submission.body.len(), self.limits.queue_tasks_max);
        if bytes > BODY_BYTES_MAX {
            return Err(Error::invalid(format!(
                "job {id} has {bytes} bytes; at most {BODY_BYTES_MAX} can be sent"
            )));
        }
        if tasks > tasks_max {
            return Err(Error::invalid(format!(
                "job {id} has {tasks} tasks; queue_tasks_max is {tasks_max}"
            )));
        }
        if open + tasks > tasks_max {
            return Err(Error::too_large(format!(
                "queue is full: {open} tasks, {tasks} more of job {id}, queue_tasks_max {tasks_max}"
            )));
        }
        Ok(PlanUpdate {
            new: vec![NewJob {
                job: submission.clone(),
                submitted_ms: now.unix_ms,
            }],
            ..PlanUpdate::default()
        })
    }

    fn prepare_assign(
        &self,
        task: TaskId,
        node: &NodeId,
        session: u64,
        now: Now,
    ) -> Result<PlanUpdate> {
        let phase = self.task(task).map(|task| &task.phase);
        if !matches!(phase, Some(Phase::Queued { .. })) {
            return Err(Error::conflict(format!("task {task} is not queued")));
        }
        let token = Token::next_remote(self.last_token, now.unix_ms);
        Ok(PlanUpdate {
            assigned: vec![Assigned {
                attempt: AttemptId { task, token },
                node: node.clone(),
                session,
                at: now.monotonic,
            }],
            ..PlanUpdate::default()
        })
    }

    fn prepare_report(&self, report: &Report, now: Now) -> PlanUpdate {
        let mut update = PlanUpdate::default();
        for TaskReport { attempt, end } in &report.finished {
            let task = self.task(attempt.task);
            match (end, task) {
                // A result object is final, whoever wrote it, and however the task stands.
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
        let Some(task) = self.task(attempt.task) else {
            return;
        };
        let Phase::Assigned { lease, .. } = &task.phase else {
            return;
        };
        let (moved, stall) = (lease.progress != progress, self.limits.stall_timeout);
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
        self.count(ended, ErrorKind::Internal, reason, now, update);
    }

    /// A node whose process is a newer one has lost what the older one held.
    fn prepare_restarted(&self, report: &Report, now: Now, update: &mut PlanUpdate) {
        let done: BTreeSet<TaskId> = update.completed.iter().map(|entry| entry.task).collect();
        for (attempt, task) in self.assigned_to(&report.node) {
            let lost =
                matches!(task.phase, Phase::Assigned { session, .. } if session < report.session);
            if lost && !done.contains(&attempt.task) {
                let node = &report.node;
                let reason = format!("node {node} started anew");
                let ended = Ended {
                    attempt,
                    node,
                    task,
                };
                self.count(ended, ErrorKind::Internal, reason, now, update);
            }
        }
    }

    fn prepare_expire(&self, now: Now) -> PlanUpdate {
        let mut update = PlanUpdate::default();
        for (attempt, node, task, Lease { ends, .. }) in self.assigned() {
            if *ends <= now.monotonic {
                let lease = self.limits.lease;
                let reason = format!("node {node} said nothing of it for {lease:?}");
                let ended = Ended {
                    attempt,
                    node,
                    task,
                };
                self.count(ended, ErrorKind::Internal, reason, now, &mut update);
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
        let node = ended.node;
        let reason = format!("node {node}: {kind}: {message}");
        let requeued = |ready_at| Requeued {
            attempt: ended.attempt,
            attempts: ended.task.attempts,
            reason: reason.clone(),
            ready_at,
            avoid: Some((node.clone(), now.monotonic + self.limits.lease)),
        };
        match kind {
            // The store is away, which is nobody's fault; or it is away for this node only, whose
            // credentials or network are at fault: then another fares better.
            ErrorKind::Unavailable => update
                .requeued
                .push(requeued(now.monotonic + UNAVAILABLE_DELAY)),
            // Handed back.
            ErrorKind::Closed => update.requeued.push(requeued(now.monotonic)),
            // It is too large for every node: the engine decides.
            ErrorKind::TooLarge => update.failed.push(Failed {
                attempt: ended.attempt,
                attempts: ended.task.attempts + 1,
                kind,
                message: message.to_owned(),
            }),
            // These may be the node's own: a root that it does not serve or has not mounted, a disk or a
            // build of its own. Only when nodes agree is the task at fault.
            ErrorKind::Corrupt | ErrorKind::Invalid | ErrorKind::NotFound => {
                self.count(ended, kind, reason, now, update);
            }
            _ => self.count(ended, ErrorKind::Internal, reason, now, update),
        }
    }

    /// Counts a failed attempt: the task is tried again, preferably elsewhere, or given up with `kind`.
    fn count(
        &self,
        ended: Ended<'_>,
        kind: ErrorKind,
        reason: String,
        now: Now,
        update: &mut PlanUpdate,
    ) {
        let (attempt, attempts) = (ended.attempt, ended.task.attempts + 1);
        if attempts < self.limits.task_attempts_max {
            update.requeued.push(Requeued {
                attempt,
                attempts,
                reason,
                ready_at: now.monotonic,
                avoid: Some((ended.node.clone(), now.monotonic + self.limits.lease)),
            });
        } else {
            let task = attempt.task;
            update.failed.push(Failed {
                attempt,
                attempts,
                kind,
                message: format!("{attempts} attempts at task {task} failed; the last: {reason}"),
            });
        }
    }
}
