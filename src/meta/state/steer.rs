//! What operators wish: to cancel, retry or raise jobs, and to set weights and pauses.

use super::{Job, Phase, Setting, State};
use crate::{
    error::{Error, Result},
    meta::update::{Cancelled, PlanUpdate},
    types::{JobId, OwnerId, TableId, TaskId},
};

/// Which tasks an operator means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// One.
    Task(TaskId),
    /// Those of a job.
    Job(JobId),
    /// Those of all jobs of a table.
    Table(TableId),
    /// Those of all jobs of an owner.
    Owner(OwnerId),
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Task(task) => write!(f, "task {task}"),
            Self::Job(job) => write!(f, "job {job}"),
            Self::Table(table) => write!(f, "table {table}"),
            Self::Owner(owner) => write!(f, "owner {owner}"),
        }
    }
}

impl Target {
    fn has_job(&self, id: JobId, job: &Job) -> bool {
        match self {
            Self::Task(task) => task.job == id,
            Self::Job(job) => *job == id,
            Self::Table(table) => job.submission.table == *table,
            Self::Owner(owner) => job.submission.owner == *owner,
        }
    }

    fn has_task(&self, id: TaskId) -> bool {
        match self {
            Self::Task(task) => *task == id,
            _ => true,
        }
    }
}

impl State {
    /// The tasks of `target` whose phase is as wanted.
    ///
    /// # Errors
    /// `NotFound` when there is none.
    fn tasks_of(&self, target: &Target, is_meant: impl Fn(&Phase) -> bool) -> Result<Vec<TaskId>> {
        let jobs = self
            .jobs
            .iter()
            .filter(|(id, job)| target.has_job(**id, job));
        let tasks = jobs.flat_map(|(&job, found)| {
            let tasks = found.tasks.iter();
            tasks.map(move |(&index, task)| (TaskId { job, index }, task))
        });
        let meant = tasks.filter(|(id, task)| target.has_task(*id) && is_meant(&task.phase));
        let meant: Vec<TaskId> = meant.map(|(id, _)| id).collect();
        match meant.is_empty() {
            true => Err(Error::not_found(format!("{target} has no such tasks"))),
            false => Ok(meant),
        }
    }

    pub(super) fn prepare_cancel(&self, target: &Target) -> Result<PlanUpdate> {
        let open = |phase: &Phase| phase.is_open() || matches!(phase, Phase::Displaced);
        let tasks = self.tasks_of(target, open)?.into_iter();
        let cancelled = tasks.map(|task| Cancelled {
            task,
            reason: format!("an operator cancelled {target}"),
        });
        Ok(PlanUpdate {
            cancelled: cancelled.collect(),
            ..PlanUpdate::default()
        })
    }

    pub(super) fn prepare_retry(&self, target: &Target) -> Result<PlanUpdate> {
        let ended = |phase: &Phase| matches!(phase, Phase::Failed { .. } | Phase::Cancelled { .. });
        let retried = self.tasks_of(target, ended)?;
        let (open, max) = (self.open_tasks(), self.limits.queue_tasks_max);
        if open + retried.len() > max {
            return Err(Error::too_large(format!(
                "queue is full: {open} tasks, {} to be tried again, queue_tasks_max {max}",
                retried.len()
            )));
        }
        Ok(PlanUpdate {
            retried,
            ..PlanUpdate::default()
        })
    }

    pub(super) fn prepare_raise(&self, target: &Target) -> Result<PlanUpdate> {
        let mut raised: Vec<JobId> = self
            .tasks_of(target, Phase::is_open)?
            .into_iter()
            .map(|task| task.job)
            .collect();
        raised.dedup();
        Ok(PlanUpdate {
            raised,
            ..PlanUpdate::default()
        })
    }

    pub(super) fn prepare_set(&self, setting: &Setting) -> PlanUpdate {
        let settings = self.settings.with(setting);
        PlanUpdate {
            settings: (settings != self.settings).then_some(settings),
            ..PlanUpdate::default()
        }
    }
}
