//! The plan log's bodies: `PlanBatch` for edits, `PlanSnapshot` for snapshots; see `meta.proto`.
//!
//! Moments of the monotonic clock are left out: they mean nothing to another process, and after a replay
//! every lease gets a full grace. For the same reason renewals are left out. The bodies of jobs are left out
//! because their engines have them.

use std::{collections::HashMap, str::FromStr, sync::Arc, time::Duration};

use bytes::Bytes;

use super::{
    state::{Holder, Job, Lease, Phase, Settings, Task},
    update::{
        Assigned, Cancelled, Cause, Completed, Failed, NewJob, PlanSnapshot, PlanUpdate, Requeued,
    },
};
use crate::{
    compaction::remote::{AttemptId, JobSubmission, TaskState, TaskSubmission},
    error::{Error, ErrorKind, Result},
    proto::{self as pb, required, stored_id},
    types::{NodeId, OwnerId, Token},
};

/// The version of the format that is written, and the only one that is read.
const FORMAT: u32 = 2;

pub(super) fn encode_updates(updates: &[PlanUpdate]) -> Bytes {
    pb::encode(&pb::PlanBatch {
        updates: updates.iter().map(update_to_proto).collect(),
        format: FORMAT,
    })
}

pub(super) fn decode_updates(body: Bytes) -> Result<Vec<PlanUpdate>> {
    let batch: pb::PlanBatch = pb::decode(body, "plan update")?;
    check_format(batch.format)?;
    batch.updates.into_iter().map(update_from_proto).collect()
}

pub(super) fn encode_snapshot(snapshot: &PlanSnapshot) -> Bytes {
    let jobs = snapshot.jobs.iter();
    pb::encode(&pb::PlanSnapshot {
        last_token: snapshot.last_token.0,
        next_sequence: snapshot.next_sequence,
        jobs: jobs.map(|(_, job)| job_to_proto(job)).collect(),
        settings: Some(settings_to_proto(&snapshot.settings)),
        format: FORMAT,
    })
}

pub(super) fn decode_snapshot(body: Bytes) -> Result<PlanSnapshot> {
    let snapshot: pb::PlanSnapshot = pb::decode(body, "plan snapshot")?;
    check_format(snapshot.format)?;
    let jobs = snapshot.jobs.into_iter().map(|job| {
        let job = job_from_proto(job)?;
        Ok((job.submission.job, job))
    });
    Ok(PlanSnapshot {
        last_token: Token(snapshot.last_token),
        next_sequence: snapshot.next_sequence,
        jobs: jobs.collect::<Result<_>>()?,
        settings: settings_from_proto(required(snapshot.settings, "settings")?)?,
    })
}

/// # Errors
/// `Corrupt`, naming both versions: what is not known must not be dropped.
fn check_format(format: u32) -> Result<()> {
    match format {
        FORMAT => Ok(()),
        // Version 1 did not say so.
        other => Err(Error::corrupt(format!(
            "format version {} of the plan; this siltstone reads version {FORMAT}",
            other.max(1)
        ))),
    }
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
        hedge: entry.hedge,
    });
    let completed = update.completed.iter().map(|entry| pb::PlanCompleted {
        task: entry.task.to_string(),
        node: entry.node.0.clone(),
    });
    let failed = update.failed.iter().map(|entry| pb::PlanFailed {
        attempt: Some(
            AttemptId {
                task: entry.task,
                token: entry.token,
            }
            .into(),
        ),
        attempts: entry.attempts,
        failure: Some(failure_to_proto(entry.kind, &entry.message)),
    });
    let requeued = update.requeued.iter().map(|entry| pb::PlanRequeued {
        attempt: Some(entry.attempt.into()),
        attempts: entry.attempts,
        reason: entry.reason.clone(),
    });
    let cancelled = update.cancelled.iter().map(|entry| pb::PlanCancelled {
        task: entry.task.to_string(),
        reason: entry.reason.clone(),
    });
    pb::PlanUpdate {
        new: new.collect(),
        assigned: assigned.collect(),
        slowed: update.slowed.iter().copied().map(Into::into).collect(),
        completed: completed.collect(),
        failed: failed.collect(),
        requeued: requeued.collect(),
        released: to_text(&update.released),
        displaced: to_text(&update.displaced),
        cancelled: cancelled.collect(),
        retried: to_text(&update.retried),
        raised: to_text(&update.raised),
        settings: update.settings.as_ref().map(settings_to_proto),
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
            hedge: entry.hedge,
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
        let AttemptId { task, token } = attempt_from_proto(entry.attempt)?;
        Ok(Failed {
            task,
            token,
            attempts: entry.attempts,
            kind,
            message,
            cause: Cause::default(),
        })
    });
    let requeued = update.requeued.into_iter().map(|entry| {
        Ok(Requeued {
            attempt: attempt_from_proto(entry.attempt)?,
            attempts: entry.attempts,
            reason: entry.reason,
            cause: Cause::default(),
            ready_at: Duration::ZERO,
            outages: 0,
            avoid: None,
        })
    });
    let cancelled = update.cancelled.into_iter().map(|entry| {
        Ok(Cancelled {
            task: stored_id(&entry.task)?,
            reason: entry.reason,
        })
    });
    let slowed = update.slowed.into_iter();
    let slowed = slowed.map(|attempt| attempt_from_proto(Some(attempt)));
    Ok(PlanUpdate {
        displaced: from_text(&update.displaced)?,
        new: new.collect::<Result<_>>()?,
        assigned: assigned.collect::<Result<_>>()?,
        renewed: Vec::new(),
        slowed: slowed.collect::<Result<_>>()?,
        completed: completed.collect::<Result<_>>()?,
        failed: failed.collect::<Result<_>>()?,
        requeued: requeued.collect::<Result<_>>()?,
        cancelled: cancelled.collect::<Result<_>>()?,
        retried: from_text(&update.retried)?,
        raised: from_text(&update.raised)?,
        released: from_text(&update.released)?,
        settings: update.settings.map(settings_from_proto).transpose()?,
    })
}

fn to_text<'a, T: ToString + 'a>(ids: impl IntoIterator<Item = &'a T>) -> Vec<String> {
    ids.into_iter().map(ToString::to_string).collect()
}

fn from_text<T: FromStr<Err = Error>, C: FromIterator<T>>(texts: &[String]) -> Result<C> {
    texts.iter().map(|text| stored_id(text)).collect()
}

fn settings_to_proto(settings: &Settings) -> pb::PlanSettings {
    let weights = settings
        .weights
        .iter()
        .map(|(owner, &weight)| pb::SetWeight {
            owner: owner.0.clone(),
            weight,
        });
    let owners = settings.paused_owners.iter();
    pb::PlanSettings {
        weights: weights.collect(),
        paused_owners: owners.map(|owner| owner.0.clone()).collect(),
        paused_tables: to_text(&settings.paused_tables),
    }
}

fn settings_from_proto(settings: pb::PlanSettings) -> Result<Settings> {
    let weights = settings.weights.into_iter();
    let owners = settings.paused_owners.into_iter();
    Ok(Settings {
        weights: weights
            .map(|set| (OwnerId(set.owner), set.weight))
            .collect(),
        paused_owners: owners.map(OwnerId).collect(),
        paused_tables: from_text(&settings.paused_tables)?,
    })
}

fn job_to_proto(job: &Job) -> pb::PlanJob {
    let tasks = job.tasks.iter();
    pb::PlanJob {
        job: Some(submission_to_proto(&job.submission)),
        submitted_ms: job.submitted_ms,
        sequence: job.sequence,
        revision: job.revision,
        raised: job.raised,
        tasks: tasks
            .map(|(&index, task)| task_to_proto(index, task))
            .collect(),
    }
}

fn job_from_proto(job: pb::PlanJob) -> Result<Job> {
    let submission = submission_from_proto(required(job.job, "job")?)?;
    let submitted: HashMap<u32, &TaskSubmission> = submission
        .tasks
        .iter()
        .map(|task| (task.index, task))
        .collect();
    let tasks = job.tasks.into_iter().map(|task| {
        let index = required(task.status.as_ref(), "status")?.index;
        let submitted = required(submitted.get(&index), "submission of a task")?;
        Ok((index, task_from_proto(task, submitted)?))
    });
    Ok(Job {
        tasks: tasks.collect::<Result<_>>()?,
        submission: Arc::new(submission),
        submitted_ms: job.submitted_ms,
        sequence: job.sequence,
        revision: job.revision,
        raised: job.raised,
    })
}

fn task_to_proto(index: u32, task: &Task) -> pb::PlanTask {
    let holders = task.holders().iter().map(|holder| pb::PlanHolder {
        token: holder.token.0,
        node: holder.node.0.clone(),
        session: holder.session,
        hedge: holder.hedge,
    });
    pb::PlanTask {
        status: Some((index, task.state()).into()),
        attempts: task.attempts,
        last_failure: task.last_failure.clone().unwrap_or_default(),
        token: task.token.0,
        holders: holders.collect(),
        revision: task.revision,
    }
}

fn task_from_proto(task: pb::PlanTask, submitted: &TaskSubmission) -> Result<Task> {
    let status = required(task.status, "status")?;
    let (_, state): (u32, TaskState) = status.try_into().map_err(stored)?;
    let holders = task.holders.into_iter().map(|holder| Holder {
        token: Token(holder.token),
        node: NodeId(holder.node),
        session: holder.session,
        hedge: holder.hedge,
        lease: Lease::default(),
    });
    Ok(Task {
        attempts: task.attempts,
        last_failure: Some(task.last_failure).filter(|failure| !failure.is_empty()),
        token: Token(task.token),
        revision: task.revision,
        phase: match state {
            TaskState::Queued => Phase::READY,
            TaskState::Running { .. } => Phase::Assigned {
                holders: holders.collect(),
            },
            TaskState::Done { node } => Phase::Done { node },
            TaskState::Failed { kind, message } => Phase::Failed { kind, message },
            TaskState::Displaced => Phase::Displaced,
            TaskState::Cancelled { reason } => Phase::Cancelled { reason },
        },
        ..Task::new(submitted)
    })
}

/// Without the body, which is most of it: engines submit again what a replayed plan lacks.
fn submission_to_proto(job: &JobSubmission) -> pb::SubmitRequest {
    pb::SubmitRequest {
        body: Bytes::new(),
        ..job.into()
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_version_of_the_plan_is_refused_by_name() {
        for (format, name) in [(0, "version 1"), (3, "version 3")] {
            let batch = pb::encode(&pb::PlanBatch {
                updates: vec![],
                format,
            });
            let error = decode_updates(batch).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            assert!(error.message().contains(name), "{error}");
            let snapshot = pb::encode(&pb::PlanSnapshot {
                format,
                ..pb::PlanSnapshot::default()
            });
            let error = decode_snapshot(snapshot).unwrap_err();
            assert!(error.message().contains(name), "{error}");
        }
    }
}
