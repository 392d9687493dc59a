//! Submissions, attempts and failures, which are sent and are kept in the plan log. An id that is none is
//! `Invalid`; where it was stored, the reader makes that `Corrupt`.

use crate::{
    compaction::remote::{AttemptId, JobSubmission, TaskSubmission},
    error::{Error, ErrorKind, Result},
    proto as pb,
    types::{OwnerId, Token},
};

impl From<JobSubmission> for pb::SubmitRequest {
    fn from(job: JobSubmission) -> Self {
        let tasks = job.tasks.iter().map(|task| pb::TaskSubmission {
            index: task.index,
            bytes: task.bytes,
        });
        Self {
            owner: job.owner.0,
            job: job.job.to_string(),
            label: job.label,
            body: job.body,
            tasks: tasks.collect(),
        }
    }
}

impl TryFrom<pb::SubmitRequest> for JobSubmission {
    type Error = Error;

    fn try_from(job: pb::SubmitRequest) -> Result<Self> {
        let tasks = job.tasks.iter().map(|task| TaskSubmission {
            index: task.index,
            bytes: task.bytes,
        });
        Ok(Self {
            owner: OwnerId(job.owner),
            job: job.job.parse()?,
            label: job.label,
            body: job.body,
            tasks: tasks.collect(),
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
