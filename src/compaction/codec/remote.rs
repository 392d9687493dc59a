//! Submissions, attempts and failures, which are sent and are kept in the plan log. An id that is none is
//! `Invalid`; where it was stored, the reader makes that `Corrupt`.

use std::sync::Arc;

use crate::{
    compaction::remote::{
        AttemptId, JobClass, JobSubmission, Needs, Pressure, TaskState, TaskSubmission,
    },
    error::{Error, ErrorKind, Result},
    proto as pb,
    types::{KeyRange, NodeId, OwnerId, Token},
};

impl From<JobClass> for pb::JobClass {
    fn from(class: JobClass) -> Self {
        match class {
            JobClass::Cleanup => Self::Cleanup,
            JobClass::Upkeep => Self::Upkeep,
            JobClass::Level0 => Self::Level0,
            JobClass::Raised => Self::Raised,
        }
    }
}

impl TryFrom<pb::JobClass> for JobClass {
    type Error = Error;

    fn try_from(class: pb::JobClass) -> Result<Self> {
        match class {
            pb::JobClass::Cleanup => Ok(Self::Cleanup),
            pb::JobClass::Upkeep => Ok(Self::Upkeep),
            pb::JobClass::Level0 => Ok(Self::Level0),
            pb::JobClass::Raised => Ok(Self::Raised),
            pb::JobClass::Unspecified => Err(Error::invalid("job without a class")),
        }
    }
}

impl From<&Needs> for pb::Needs {
    fn from(needs: &Needs) -> Self {
        Self {
            capabilities: needs.capabilities.clone(),
            pool: needs.pool.clone(),
        }
    }
}

impl From<pb::Needs> for Needs {
    fn from(needs: pb::Needs) -> Self {
        Self {
            capabilities: needs.capabilities,
            pool: needs.pool,
        }
    }
}

impl From<&TaskSubmission> for pb::TaskSubmission {
    fn from(task: &TaskSubmission) -> Self {
        Self {
            index: task.index,
            bytes: task.bytes,
            memory: task.memory,
            range: task.range.as_ref().map(Into::into),
        }
    }
}

impl From<pb::TaskSubmission> for TaskSubmission {
    fn from(task: pb::TaskSubmission) -> Self {
        Self {
            index: task.index,
            bytes: task.bytes,
            memory: task.memory,
            range: task.range.map(KeyRange::from),
        }
    }
}

impl From<&JobSubmission> for pb::SubmitRequest {
    fn from(job: &JobSubmission) -> Self {
        Self {
            owner: job.owner.0.clone(),
            job: job.job.to_string(),
            label: job.label.clone(),
            body: job.body.clone(),
            tasks: job.tasks.iter().map(Into::into).collect(),
            table: job.table.to_string(),
            job_class: pb::JobClass::from(job.pressure.class).into(),
            score: job.pressure.score,
            needs: Some(job.needs.as_ref().into()),
            zone: job.zone.clone(),
        }
    }
}

impl TryFrom<pb::SubmitRequest> for JobSubmission {
    type Error = Error;

    fn try_from(job: pb::SubmitRequest) -> Result<Self> {
        let class = job.job_class().try_into()?;
        Ok(Self {
            owner: OwnerId(job.owner),
            job: job.job.parse()?,
            table: job.table.parse()?,
            label: job.label,
            pressure: Pressure {
                class,
                score: job.score,
            },
            needs: Arc::new(job.needs.unwrap_or_default().into()),
            zone: job.zone,
            body: job.body,
            tasks: job.tasks.into_iter().map(Into::into).collect(),
        })
    }
}

impl From<AttemptId> for pb::AttemptId {
    fn from(attempt: AttemptId) -> Self {
        Self {
            task: attempt.task.to_string(),
            token: attempt.token.0,
        }
    }
}

impl TryFrom<pb::AttemptId> for AttemptId {
    type Error = Error;

    fn try_from(attempt: pb::AttemptId) -> Result<Self> {
        Ok(Self {
            task: attempt.task.parse()?,
            token: Token(attempt.token),
        })
    }
}

impl From<(ErrorKind, String)> for pb::Failure {
    fn from((kind, message): (ErrorKind, String)) -> Self {
        Self {
            kind: pb::ErrorKind::from(kind).into(),
            message,
        }
    }
}

impl From<pb::Failure> for (ErrorKind, String) {
    fn from(failure: pb::Failure) -> Self {
        (failure.kind().into(), failure.message)
    }
}

impl From<(u32, TaskState)> for pb::TaskStatus {
    fn from((index, state): (u32, TaskState)) -> Self {
        use pb::task_status::State;
        let state = match state {
            TaskState::Queued => State::Queued(pb::TaskQueued {}),
            TaskState::Running { node, token, slow } => State::Running(pb::TaskRunning {
                node: node.0,
                token: token.0,
                slow,
            }),
            TaskState::Done { node } => State::Done(pb::TaskDone { node: node.0 }),
            TaskState::Failed { kind, message } => State::Failed((kind, message).into()),
            TaskState::Displaced => State::Displaced(pb::TaskDisplaced {}),
            TaskState::Cancelled { reason } => State::Cancelled(pb::TaskCancelled { reason }),
        };
        Self {
            index,
            state: Some(state),
        }
    }
}

impl TryFrom<pb::TaskStatus> for (u32, TaskState) {
    type Error = Error;

    fn try_from(status: pb::TaskStatus) -> Result<Self> {
        use pb::task_status::State;
        let state = match status
            .state
            .ok_or_else(|| Error::invalid("message without the state of a task"))?
        {
            State::Queued(_) => TaskState::Queued,
            State::Running(running) => TaskState::Running {
                node: NodeId(running.node),
                token: Token(running.token),
                slow: running.slow,
            },
            State::Done(done) => TaskState::Done {
                node: NodeId(done.node),
            },
            State::Failed(failure) => {
                let (kind, message) = failure.into();
                TaskState::Failed { kind, message }
            }
            State::Displaced(_) => TaskState::Displaced,
            State::Cancelled(cancelled) => TaskState::Cancelled {
                reason: cancelled.reason,
            },
        };
        Ok((status.index, state))
    }
}
