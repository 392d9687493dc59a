//! Messages as domain types, and back. What comes over the wire is checked here: a message that lacks a
//! field or names an id that is none is `Invalid`. What the plan log holds too is converted in
//! `compaction::codec`.

use std::time::Duration;

use crate::{
    compaction::remote::{
        JobStatus, NodeFacts, NodePoll, PollReply, TaskEnd, TaskProgress, TaskReport, TaskState,
    },
    error::{Error, Result},
    meta::{JobInfo, NodeInfo, NodeState, TaskInfo},
    proto as pb,
    types::{NodeId, OwnerId, Token},
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

impl From<(u32, TaskState)> for pb::TaskStatus {
    fn from((index, state): (u32, TaskState)) -> Self {
        use pb::task_status::State;
        let state = match state {
            TaskState::Queued => State::Queued(pb::TaskQueued {}),
            TaskState::Running { node, token } => State::Running(pb::TaskRunning {
                node: node.0,
                token: token.0,
            }),
            TaskState::Done { node } => State::Done(pb::TaskDone { node: node.0 }),
            TaskState::Failed { kind, message } => State::Failed((kind, message).into()),
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
        let state = match required(status.state, "state of a task")? {
            State::Queued(_) => TaskState::Queued,
            State::Running(running) => TaskState::Running {
                node: NodeId(running.node),
                token: Token(running.token),
            },
            State::Done(done) => TaskState::Done {
                node: NodeId(done.node),
            },
            State::Failed(failure) => {
                let (kind, message) = failure.into();
                TaskState::Failed { kind, message }
            }
        };
        Ok((status.index, state))
    }
}

impl From<JobStatus> for pb::WatchReply {
    fn from(status: JobStatus) -> Self {
        Self {
            revision: status.revision,
            tasks: all(status.tasks),
        }
    }
}

impl TryFrom<pb::WatchReply> for JobStatus {
    type Error = Error;

    fn try_from(reply: pb::WatchReply) -> Result<Self> {
        Ok(Self {
            revision: reply.revision,
            tasks: list(reply.tasks)?,
        })
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
        })
    }
}

impl From<NodeInfo> for pb::NodeListing {
    fn from(info: NodeInfo) -> Self {
        let state = match info.state {
            NodeState::Active => pb::NodeState::Active,
            NodeState::Draining => pb::NodeState::Draining,
            NodeState::Silent => pb::NodeState::Silent,
            NodeState::Gone => pb::NodeState::Gone,
        };
        Self {
            node: Some(info.facts.into()),
            state: state.into(),
            slots_free: info.slots_free,
            tasks: info.tasks as u32,
            bytes: info.bytes,
            silent_ms: millis(info.silent),
        }
    }
}

impl TryFrom<pb::NodeListing> for NodeInfo {
    type Error = Error;

    fn try_from(listing: pb::NodeListing) -> Result<Self> {
        let state = match listing.state() {
            pb::NodeState::Active => NodeState::Active,
            pb::NodeState::Draining => NodeState::Draining,
            pb::NodeState::Silent => NodeState::Silent,
            pb::NodeState::Gone => NodeState::Gone,
            pb::NodeState::Unspecified => {
                let state = listing.state;
                return Err(Error::invalid(format!("node state {state} is not known")));
            }
        };
        Ok(Self {
            facts: required(listing.node, "node")?.try_into()?,
            state,
            slots_free: listing.slots_free,
            tasks: listing.tasks as usize,
            bytes: listing.bytes,
            silent: Duration::from_millis(listing.silent_ms),
        })
    }
}

impl From<TaskInfo> for pb::TaskListing {
    fn from(info: TaskInfo) -> Self {
        Self {
            status: Some((info.index, info.state).into()),
            bytes: info.bytes,
            attempts: info.attempts,
            last_failure: info.last_failure.unwrap_or_default(),
            progress: info.progress,
        }
    }
}

impl TryFrom<pb::TaskListing> for TaskInfo {
    type Error = Error;

    fn try_from(listing: pb::TaskListing) -> Result<Self> {
        let (index, state) = required(listing.status, "status")?.try_into()?;
        Ok(Self {
            index,
            bytes: listing.bytes,
            state,
            attempts: listing.attempts,
            last_failure: Some(listing.last_failure).filter(|failure| !failure.is_empty()),
            progress: listing.progress,
        })
    }
}

impl From<JobInfo> for pb::JobListing {
    fn from(info: JobInfo) -> Self {
        Self {
            job: info.job.to_string(),
            owner: info.owner.0,
            label: info.label,
            submitted_ms: info.submitted_ms,
            tasks: all(info.tasks),
        }
    }
}

impl TryFrom<pb::JobListing> for JobInfo {
    type Error = Error;

    fn try_from(listing: pb::JobListing) -> Result<Self> {
        Ok(Self {
            job: listing.job.parse()?,
            owner: OwnerId(listing.owner),
            label: listing.label,
            submitted_ms: listing.submitted_ms,
            tasks: list(listing.tasks)?,
        })
    }
}
