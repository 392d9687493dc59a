//! Messages as domain types, and back. What comes over the wire is checked here: a message that lacks a
//! field or names an id that is none is `Invalid`. What the plan log holds too is converted in
//! `compaction::codec`.

mod admin;
mod attendance;

pub(super) use attendance::attendance_to_proto;

use std::time::Duration;

use crate::{
    compaction::remote::{
        Assignment, Fleet, JobStatus, NodeFacts, NodePoll, PollReply, TaskEnd, TaskProgress,
        TaskReport,
    },
    error::{Error, Result},
    proto as pb,
    types::{KeyRange, NodeId},
};

/// A field that must be there.
fn required<T>(field: Option<T>, name: &str) -> Result<T> {
    field.ok_or_else(|| Error::invalid(format!("message without {name}")))
}

fn list<M, T: TryFrom<M, Error = Error>>(messages: Vec<M>) -> Result<Vec<T>> {
    messages.into_iter().map(T::try_from).collect()
}

fn all<D, M: From<D>>(values: impl IntoIterator<Item = D>) -> Vec<M> {
    values.into_iter().map(M::from).collect()
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl From<JobStatus> for pb::WatchReply {
    fn from(status: JobStatus) -> Self {
        Self {
            revision: status.revision,
            tasks: all(status.tasks),
            jobs_window: status.jobs_window,
            nodes: status.nodes,
        }
    }
}

impl TryFrom<pb::WatchReply> for JobStatus {
    type Error = Error;

    fn try_from(reply: pb::WatchReply) -> Result<Self> {
        Ok(Self {
            revision: reply.revision,
            tasks: list(reply.tasks)?,
            jobs_window: reply.jobs_window,
            nodes: reply.nodes,
        })
    }
}

impl From<Fleet> for pb::FleetReply {
    fn from(fleet: Fleet) -> Self {
        Self {
            nodes: fleet.nodes,
            slots: fleet.slots,
            bytes_ahead: fleet.bytes_ahead,
        }
    }
}

impl From<pb::FleetReply> for Fleet {
    fn from(reply: pb::FleetReply) -> Self {
        Self {
            nodes: reply.nodes,
            slots: reply.slots,
            bytes_ahead: reply.bytes_ahead,
        }
    }
}

impl From<NodeFacts> for pb::NodeFacts {
    fn from(facts: NodeFacts) -> Self {
        Self {
            id: facts.id.0,
            session: facts.session,
            host: facts.host,
            version: facts.version,
            capabilities: facts.capabilities,
            slots: facts.slots,
            memory_bytes: facts.memory_bytes,
            pool: facts.pool,
            zone: facts.zone,
        }
    }
}

impl TryFrom<pb::NodeFacts> for NodeFacts {
    type Error = Error;

    fn try_from(facts: pb::NodeFacts) -> Result<Self> {
        if facts.id.is_empty() {
            return Err(Error::invalid("node without an id"));
        }
        Ok(Self {
            id: NodeId(facts.id),
            session: facts.session,
            host: facts.host,
            version: facts.version,
            capabilities: facts.capabilities,
            slots: facts.slots,
            memory_bytes: facts.memory_bytes,
            pool: facts.pool,
            zone: facts.zone,
        })
    }
}

impl From<TaskProgress> for pb::TaskProgress {
    fn from(running: TaskProgress) -> Self {
        Self {
            attempt: Some(running.attempt.into()),
            progress: running.progress,
        }
    }
}

impl TryFrom<pb::TaskProgress> for TaskProgress {
    type Error = Error;

    fn try_from(running: pb::TaskProgress) -> Result<Self> {
        Ok(Self {
            attempt: required(running.attempt, "attempt")?.try_into()?,
            progress: running.progress,
        })
    }
}

impl From<TaskReport> for pb::TaskReport {
    fn from(report: TaskReport) -> Self {
        Self {
            attempt: Some(report.attempt.into()),
            failure: match report.end {
                TaskEnd::Done => None,
                TaskEnd::Failed { kind, message } => Some((kind, message).into()),
            },
        }
    }
}

impl TryFrom<pb::TaskReport> for TaskReport {
    type Error = Error;

    fn try_from(report: pb::TaskReport) -> Result<Self> {
        Ok(Self {
            attempt: required(report.attempt, "attempt")?.try_into()?,
            end: match report.failure {
                None => TaskEnd::Done,
                Some(failure) => {
                    let (kind, message) = failure.into();
                    TaskEnd::Failed { kind, message }
                }
            },
        })
    }
}

/// A poll and how long it waits.
pub(super) fn poll_to_proto(poll: NodePoll, wait: Duration) -> pb::PollRequest {
    pb::PollRequest {
        node: Some(poll.facts.into()),
        slots_free: poll.slots_free,
        draining: poll.draining,
        running: all(poll.running),
        finished: all(poll.finished),
        wait_ms: millis(wait),
    }
}

impl TryFrom<pb::PollRequest> for NodePoll {
    type Error = Error;

    fn try_from(poll: pb::PollRequest) -> Result<Self> {
        Ok(Self {
            facts: required(poll.node, "node")?.try_into()?,
            slots_free: poll.slots_free,
            draining: poll.draining,
            running: list(poll.running)?,
            finished: list(poll.finished)?,
        })
    }
}

impl From<Assignment> for pb::Assignment {
    fn from(assignment: Assignment) -> Self {
        Self {
            attempt: Some(assignment.attempt.into()),
            range: assignment.range.as_ref().map(Into::into),
            memory: assignment.memory,
        }
    }
}

impl TryFrom<pb::Assignment> for Assignment {
    type Error = Error;

    fn try_from(assignment: pb::Assignment) -> Result<Self> {
        Ok(Self {
            attempt: required(assignment.attempt, "attempt")?.try_into()?,
            range: assignment.range.map(KeyRange::from),
            memory: assignment.memory,
        })
    }
}

impl From<PollReply> for pb::PollResponse {
    fn from(reply: PollReply) -> Self {
        let jobs = reply.jobs.into_iter().map(|(job, body)| pb::JobBody {
            job: job.to_string(),
            body,
        });
        Self {
            assignments: all(reply.assignments),
            jobs: jobs.collect(),
            renewed: all(reply.renewed),
            acknowledged: all(reply.acknowledged),
            lease_ms: millis(reply.lease),
            drain: reply.drain,
        }
    }
}

impl TryFrom<pb::PollResponse> for PollReply {
    type Error = Error;

    fn try_from(reply: pb::PollResponse) -> Result<Self> {
        let jobs = reply.jobs.into_iter();
        Ok(Self {
            assignments: list(reply.assignments)?,
            jobs: jobs
                .map(|job| Ok((job.job.parse()?, job.body)))
                .collect::<Result<_>>()?,
            renewed: list(reply.renewed)?,
            acknowledged: list(reply.acknowledged)?,
            lease: Duration::from_millis(reply.lease_ms),
            drain: reply.drain,
        })
    }
}
