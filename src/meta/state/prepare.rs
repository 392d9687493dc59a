//! Deciding: what a request means for the plan. Nothing here changes anything.

use std::{collections::BTreeSet, sync::Arc};

use super::{Job, Now, Phase, Setting, State, Target};
use crate::{
    compaction::remote::{
        AttemptId, BODY_BYTES_MAX, JobSubmission, NodePoll, TaskProgress, TaskReport,
        TaskSubmission,
    },
    error::{Error, ErrorKind, Result},
    meta::update::{Assigned, Cancelled, Cause, Failed, NewJob, PlanUpdate},
    types::{JobId, NodeId, TaskId, Token},
};

/// What may be asked of the plan.
#[derive(Clone, Debug)]
pub enum Request {
    /// An engine hands in a job, or more tasks of one.
    Submit(Arc<JobSubmission>),
    /// An engine wants a job no more.
    Release(JobId),
    /// A node says what it holds.
    Report(Report),
    /// A task goes to a node.
    Assign {
        /// The task.
        task: TaskId,
        /// The node.
        node: NodeId,
        /// The node's process.
        session: u64,
        /// Whether it is a second attempt beside one that is slow; else the task is queued.
        hedge: bool,
    },
    /// No node is large enough for a queued task.
    Refuse {
        /// The task.
        task: TaskId,
        /// What is too small.
        message: String,
    },
    /// A task's newest attempt is too slow.
    CallSlow(AttemptId),
    /// Time has passed: leases may have ended.
    Expire,
    /// An operator does not want tasks to be run.
    Cancel(Target),
    /// An operator wants tasks that were given up or cancelled to be run after all.
    Retry(Target),
    /// An operator wants tasks to go before all others.
    Raise(Target),
    /// An operator sets something.
    Set(Setting),
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

impl State {
    /// What `request` means. Changes nothing.
    ///
    /// # Errors
    /// Of a submission: `TooLarge` when the queue is full or the owner has too many jobs, `Invalid` when it can
    /// never be accepted. Of an assignment: `Conflict` when the task cannot be given out. Of an operator's
    /// wish: `NotFound` when there is nothing that it concerns.
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
                hedge,
            } => self.prepare_assign(*task, (node, *session), *hedge, now),
            Request::Refuse { task, message } => Ok(self.prepare_refuse(*task, message)),
            Request::CallSlow(attempt) => Ok(PlanUpdate {
                slowed: vec![*attempt],
                ..PlanUpdate::default()
            }),
            Request::Expire => Ok(self.prepare_expire(now)),
            Request::Cancel(target) => self.prepare_cancel(target),
            Request::Retry(target) => self.prepare_retry(target),
            Request::Raise(target) => self.prepare_raise(target),
            Request::Set(setting) => Ok(self.prepare_set(setting)),
        }
    }

    fn prepare_submit(&self, submission: &Arc<JobSubmission>, now: Now) -> Result<PlanUpdate> {
        let (id, owner) = (submission.job, &submission.owner);
        let known = self.job(id);
        if let Some(known) = known {
            let other = &known.submission.owner;
            if other != owner {
                return Err(Error::invalid(format!(
                    "job {id} of {owner} is known as a job of {other}"
                )));
            }
        }
        // Those that are not on their way, or at their end.
        let is_new = |task: &&TaskSubmission| {
            let task = known.and_then(|job| job.tasks.get(&task.index));
            task.is_none_or(|task| matches!(task.phase, Phase::Displaced))
        };
        let new = submission.tasks.iter().filter(is_new).cloned();
        let new: Vec<TaskSubmission> = new.collect();
        let has_body = known.is_some_and(|job| !job.submission.body.is_empty());
        let cancelled = known.map(|known| superseded(known, submission));
        let cancelled = cancelled.unwrap_or_default();
        if known.is_some() && new.is_empty() && has_body {
            return Ok(PlanUpdate {
                cancelled,
                ..PlanUpdate::default()
            });
        }
        self.check_size(submission)?;
        if known.is_none() {
            self.check_owner(submission)?;
        }
        Ok(PlanUpdate {
            displaced: self.make_room(submission, new.len())?,
            new: vec![NewJob {
                job: Arc::new(JobSubmission {
                    tasks: new,
                    ..submission.as_ref().clone()
                }),
                submitted_ms: now.unix_ms,
            }],
            cancelled,
            ..PlanUpdate::default()
        })
    }

    /// Whether `submission` can be accepted at all.
    fn check_size(&self, submission: &JobSubmission) -> Result<()> {
        let id = submission.job;
        let (bytes, tasks) = (submission.body.len(), submission.tasks.len());
        if bytes > BODY_BYTES_MAX {
            return Err(Error::invalid(format!(
                "job {id} has {bytes} bytes; at most {BODY_BYTES_MAX} can be sent"
            )));
        }
        for (name, max) in [
            ("tasks_per_job_max", self.limits.tasks_per_job_max),
            ("queue_tasks_max", self.limits.queue_tasks_max),
        ] {
            if tasks > max {
                return Err(Error::invalid(format!(
                    "job {id} has {tasks} tasks; {name} is {max}"
                )));
            }
        }
        Ok(())
    }

    fn check_owner(&self, submission: &JobSubmission) -> Result<()> {
        let owner = &submission.owner;
        let jobs = self.index.jobs.get(owner).copied().unwrap_or_default();
        let max = self.limits.jobs_per_owner_max;
        if jobs >= max {
            return Err(Error::too_large(format!(
                "owner {owner} has {jobs} jobs; jobs_per_owner_max is {max}"
            )));
        }
        Ok(())
    }

    /// The tasks that give way to `tasks` tasks of `submission`: those of the lowest pressure, if it is lower than
    /// its own, and of these the newest.
    fn make_room(&self, submission: &JobSubmission, tasks: usize) -> Result<Vec<TaskId>> {
        let (id, open, max) = (
            submission.job,
            self.open_tasks(),
            self.limits.queue_tasks_max,
        );
        let lacking = (open + tasks).saturating_sub(max);
        let ranked = self.index.ranked.iter();
        let lower = ranked.take_while(|(pressure, ..)| *pressure < submission.pressure);
        let others = lower.filter(|(.., task)| task.0.job != id);
        let displaced: Vec<TaskId> = others.map(|(.., task)| task.0).take(lacking).collect();
        if displaced.len() < lacking {
            return Err(Error::too_large(format!(
                "queue is full: {open} tasks, {tasks} more of job {id}, queue_tasks_max {max}, and no more \
                 than {} of lower pressure",
                displaced.len()
            )));
        }
        Ok(displaced)
    }

    fn prepare_assign(
        &self,
        task: TaskId,
        (node, session): (&NodeId, u64),
        hedge: bool,
        now: Now,
    ) -> Result<PlanUpdate> {
        let found = self.task(task);
        let is_due = found.is_some_and(|task| match &task.phase {
            Phase::Queued { .. } => !hedge,
            Phase::Assigned { holders } => {
                hedge && holders.len() == 1 && holders.iter().all(|held| held.node != *node)
            }
            _ => false,
        });
        if !is_due {
            return Err(Error::conflict(format!(
                "task {task} cannot be given to node {node}"
            )));
        }
        let token = Token::next_remote(self.last_token, now.unix_ms);
        Ok(PlanUpdate {
            assigned: vec![Assigned {
                attempt: AttemptId { task, token },
                node: node.clone(),
                session,
                hedge,
                at: now.monotonic,
            }],
            ..PlanUpdate::default()
        })
    }

    fn prepare_refuse(&self, task: TaskId, message: &str) -> PlanUpdate {
        let found = self.task(task);
        let queued = found.filter(|task| matches!(task.phase, Phase::Queued { .. }));
        let failed = queued.map(|found| Failed {
            task,
            token: Token(0),
            attempts: found.attempts,
            kind: ErrorKind::TooLarge,
            message: message.to_owned(),
            cause: Cause::default(),
        });
        PlanUpdate {
            failed: failed.into_iter().collect(),
            ..PlanUpdate::default()
        }
    }

    /// The tasks that `update` completes.
    pub(super) fn completed_by(update: &PlanUpdate) -> BTreeSet<TaskId> {
        update.completed.iter().map(|entry| entry.task).collect()
    }
}

/// The tasks of `known` that `submission` has no use for any more: it names all that its engine lacked when it made
/// it. An older submission, which comes late, names what was whole then; so it does not cancel the halves.
fn superseded(known: &Job, submission: &JobSubmission) -> Vec<Cancelled> {
    let named: BTreeSet<u32> = submission.tasks.iter().map(|task| task.index).collect();
    if named.is_empty() {
        return Vec::new();
    }
    let open = known.tasks.iter();
    let open = open.filter(|(_, task)| task.phase.is_open() || task.phase == Phase::Displaced);
    let open = open.map(|(&index, _)| TaskId {
        job: submission.job,
        index,
    });
    let is_of_use = |task: &TaskId| {
        let mut line = std::iter::successors(Some(*task), TaskId::whole);
        line.any(|task| named.contains(&task.index))
    };
    let cancelled = open.filter(|task| !is_of_use(task)).map(|task| Cancelled {
        task,
        reason: "its engine has its result, or has cut it".to_owned(),
    });
    cancelled.collect()
}
