//! The plan log's bodies: `PlanBatch` for edits, `PlanSnapshot` for snapshots; see `meta.proto`.
//!
//! Moments of the monotonic clock are left out: they mean nothing to another process, and after a replay
//! every lease gets a full grace. For the same reason renewals are left out.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;

use super::{
    state::{Job, Lease, Phase, Task},
    update::{Assigned, Completed, Failed, NewJob, PlanSnapshot, PlanUpdate, Requeued},
};
use crate::{
    compaction::remote::{AttemptId, JobSubmission},
    error::{Error, ErrorKind, Result},
    proto::{self as pb, required, stored_id},
    types::{NodeId, Token},
};

pub(super) fn encode_updates(updates: &[PlanUpdate]) -> Bytes {
    pb::encode(&pb::PlanBatch {
        updates: updates.iter().map(update_to_proto).collect(),
    })
}

pub(super) fn decode_updates(body: Bytes) -> Result<Vec<PlanUpdate>> {
    let batch: pb::PlanBatch = pb::decode(body, "plan update")?;
    batch.updates.into_iter().map(update_from_proto).collect()
}

pub(super) fn encode_snapshot(snapshot: &PlanSnapshot) -> Bytes {
    let jobs = snapshot.jobs.iter();
    pb::encode(&pb::PlanSnapshot {
        last_token: snapshot.last_token.0,
        next_sequence: snapshot.next_sequence,
        jobs: jobs.map(|(_, job)| job_to_proto(job)).collect(),
    })
}

pub(super) fn decode_snapshot(body: Bytes) -> Result<PlanSnapshot> {
    let snapshot: pb::PlanSnapshot = pb::decode(body, "plan snapshot")?;
    let jobs = snapshot.jobs.into_iter().map(|job| {
        let job = job_from_proto(job)?;
        Ok((job.submission.job, job))
    });
    Ok(PlanSnapshot {
        last_token: Token(snapshot.last_token),
        next_sequence: snapshot.next_sequence,
        jobs: jobs.collect::<Result<_>>()?,
    })
}

fn update_to_proto(update: &PlanUpdate) -> pb::PlanUpdate {
    let new = update.new.iter().map(|new| pb::PlanNewJob {
        job: Some(submission_to_proto(&new.job)),
        submitted_ms: new.submitted_ms,
    });
    let assigned = update.assigned.iter().map(|entry| pb::PlanAssigned {
        attempt: Some(entry.attempt.into()),
        node: entry.node.0.clone(),
        session: entry.session,
    });
    let completed = update.completed.iter().map(|entry| pb::PlanCompleted {
        task: entry.task.to_string(),
        node: entry.node.0.clone(),
    });
    let failed = update.failed.iter().map(|entry| pb::PlanFailed {
        attempt: Some(entry.attempt.into()),
        attempts: entry.attempts,
        failure: Some(failure_to_proto(entry.kind, &entry.message)),
    });
    let requeued = update.requeued.iter().map(|entry| pb::PlanRequeued {
        attempt: Some(entry.attempt.into()),
        attempts: entry.attempts,
        reason: entry.reason.clone(),
    });
    pb::PlanUpdate {
        new: new.collect(),
        assigned: assigned.collect(),
        completed: completed.collect(),
        failed: failed.collect(),
        requeued: requeued.collect(),
        released: update.released.iter().map(ToString::to_string).collect(),
    }
}

fn update_from_proto(update: pb::PlanUpdate) -> Result<PlanUpdate> {
    let new = update.new.into_iter().map(|new| {
        Ok(NewJob {
            job: Arc::new(submission_from_proto(required(new.job, "job")?)?),
            submitted_ms: new.submitted_ms,
        })
    });
    let assigned = update.assigned.into_iter().map(|entry| {
        Ok(Assigned {
            attempt: attempt_from_proto(entry.attempt)?,
            node: NodeId(entry.node),
            session: entry.session,
            at: Duration::ZERO,
        })
    });
    let completed = update.completed.into_iter().map(|entry| {
        Ok(Completed {
            task: stored_id(&entry.task)?,
            node: NodeId(entry.node),
        })
    });
    let failed = update.failed.into_iter().map(|entry| {
        let (kind, message) = required(entry.failure, "failure")?.into();
        Ok(Failed {
            attempt: attempt_from_proto(entry.attempt)?,
            attempts: entry.attempts,
            kind,
            message,
        })
    });
    let requeued = update.requeued.into_iter().map(|entry| {
        Ok(Requeued {
            attempt: attempt_from_proto(entry.attempt)?,
            attempts: entry.attempts,
            reason: entry.reason,
            ready_at: Duration::ZERO,
            avoid: None,
        })
    });
    let released = update.released.iter().map(|job| stored_id(job));
    Ok(PlanUpdate {
        new: new.collect::<Result<_>>()?,
        assigned: assigned.collect::<Result<_>>()?,
        renewed: Vec::new(),
        completed: completed.collect::<Result<_>>()?,
        failed: failed.collect::<Result<_>>()?,
        requeued: requeued.collect::<Result<_>>()?,
        released: released.collect::<Result<_>>()?,
    })
}

fn job_to_proto(job: &Job) -> pb::PlanJob {
    let tasks = job.tasks.iter();
    pb::PlanJob {
        job: Some(submission_to_proto(&job.submission)),
        submitted_ms: job.submitted_ms,
        sequence: job.sequence,
        revision: job.revision,
        tasks: tasks
            .map(|(&index, task)| task_to_proto(index, task))
            .collect(),
    }
}

fn job_from_proto(job: pb::PlanJob) -> Result<Job> {
    let submission = submission_from_proto(required(job.job, "job")?)?;
    let bytes: BTreeMap<u32, u64> = submission
        .tasks
        .iter()
        .map(|task| (task.index, task.bytes))
        .collect();
    let tasks = job.tasks.into_iter().map(|task| {
        let status = required(task.status.clone(), "status")?;
        let bytes = bytes.get(&status.index).copied().unwrap_or_default();
        Ok((status.index, task_from_proto(task, status, bytes)?))
    });
    Ok(Job {
        tasks: tasks.collect::<Result<_>>()?,
        submission: Arc::new(submission),
        submitted_ms: job.submitted_ms,
        sequence: job.sequence,
        revision: job.revision,
    })
}

fn task_to_proto(index: u32, task: &Task) -> pb::PlanTask {
    use pb::task_status::State;
    let mut of_session = 0;
    let state = match &task.phase {
        Phase::Queued { .. } => State::Queued(pb::TaskQueued {}),
        Phase::Assigned { node, session, .. } => {
            of_session = *session;
            State::Running(pb::TaskRunning {
                node: node.0.clone(),
                token: task.token.0,
            })
        }
        Phase::Done { node } => State::Done(pb::TaskDone {
            node: node.0.clone(),
        }),
        Phase::Failed { kind, message } => State::Failed(failure_to_proto(*kind, message)),
    };
    pb::PlanTask {
        status: Some(pb::TaskStatus {
            index,
            state: Some(state),
        }),
        attempts: task.attempts,
        last_failure: task.last_failure.clone().unwrap_or_default(),
        token: task.token.0,
        session: of_session,
    }
}

fn task_from_proto(task: pb::PlanTask, status: pb::TaskStatus, bytes: u64) -> Result<Task> {
    use pb::task_status::State;
    let phase = match required(status.state, "state")? {
        State::Queued(_) => Phase::READY,
        State::Running(running) => Phase::Assigned {
            node: NodeId(running.node),
            session: task.session,
            lease: Lease::default(),
        },
        State::Done(done) => Phase::Done {
            node: NodeId(done.node),
        },
        State::Failed(failure) => {
            let (kind, message) = failure.into();
            Phase::Failed { kind, message }
        }
    };
    Ok(Task {
        bytes,
        attempts: task.attempts,
        last_failure: Some(task.last_failure).filter(|failure| !failure.is_empty()),
        token: Token(task.token),
        avoid: BTreeMap::new(),
        phase,
    })
}

fn submission_to_proto(job: &JobSubmission) -> pb::SubmitRequest {
    job.clone().into()
}

fn submission_from_proto(job: pb::SubmitRequest) -> Result<JobSubmission> {
    job.try_into().map_err(stored)
}

fn attempt_from_proto(attempt: Option<pb::AttemptId>) -> Result<AttemptId> {
    required(attempt, "attempt")?.try_into().map_err(stored)
}

/// What is wrong with a message that was sent is the sender's fault; here it was stored.
fn stored(error: Error) -> Error {
    Error::corrupt(error.message())
}

fn failure_to_proto(kind: ErrorKind, message: &str) -> pb::Failure {
    (kind, message.to_owned()).into()
}
