//! What operators are shown, and what they wish, as messages and back.

use std::time::Duration;

use super::{
    all,
    attendance::{table_or_all, text_of},
    list, millis, required,
};
use crate::{
    compaction::remote::Pressure,
    error::{Error, Result},
    meta::{
        Explanation, JobInfo, NodeInfo, NodeState, OwnerInfo, TaskInfo, Wish,
        state::{Setting, Target},
    },
    proto as pb,
    types::{NodeId, OwnerId},
};

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
            nodes: info.nodes.into_iter().map(|node| node.0).collect(),
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
            nodes: listing.nodes.into_iter().map(NodeId).collect(),
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
            table: info.table.to_string(),
            job_class: pb::JobClass::from(info.pressure.class).into(),
            score: info.pressure.score,
            done_estimate_ms: info.done_estimate.map(millis),
        }
    }
}

impl TryFrom<pb::JobListing> for JobInfo {
    type Error = Error;

    fn try_from(listing: pb::JobListing) -> Result<Self> {
        let class = listing.job_class().try_into()?;
        Ok(Self {
            job: listing.job.parse()?,
            table: listing.table.parse()?,
            pressure: Pressure {
                class,
                score: listing.score,
            },
            owner: OwnerId(listing.owner),
            label: listing.label,
            submitted_ms: listing.submitted_ms,
            done_estimate: listing.done_estimate_ms.map(Duration::from_millis),
            tasks: list(listing.tasks)?,
        })
    }
}

impl From<OwnerInfo> for pb::OwnerListing {
    fn from(info: OwnerInfo) -> Self {
        let tables = info.paused_tables.iter();
        Self {
            owner: info.owner.0,
            weight: info.weight,
            paused: info.paused,
            paused_tables: tables.map(ToString::to_string).collect(),
            jobs: info.jobs as u32,
            queued: info.queued as u32,
            running: info.running as u32,
            oldest_wait_ms: millis(info.oldest_wait),
            jobs_window: info.jobs_window,
            engines: all(info.engines),
        }
    }
}

impl TryFrom<pb::OwnerListing> for OwnerInfo {
    type Error = Error;

    fn try_from(listing: pb::OwnerListing) -> Result<Self> {
        let tables = listing.paused_tables.iter();
        Ok(Self {
            owner: OwnerId(listing.owner),
            weight: listing.weight,
            paused: listing.paused,
            paused_tables: tables.map(|table| table.parse()).collect::<Result<_>>()?,
            jobs: listing.jobs as usize,
            queued: listing.queued as usize,
            running: listing.running as usize,
            oldest_wait: Duration::from_millis(listing.oldest_wait_ms),
            jobs_window: listing.jobs_window,
            engines: listing.engines.into_iter().map(Into::into).collect(),
        })
    }
}

impl From<Explanation> for pb::ExplainTaskReply {
    fn from(explanation: Explanation) -> Self {
        Self {
            task: Some(explanation.task.into()),
            reasons: explanation.reasons,
        }
    }
}

impl TryFrom<pb::ExplainTaskReply> for Explanation {
    type Error = Error;

    fn try_from(reply: pb::ExplainTaskReply) -> Result<Self> {
        Ok(Self {
            task: required(reply.task, "task")?.try_into()?,
            reasons: reply.reasons,
        })
    }
}

impl From<Target> for pb::Target {
    fn from(target: Target) -> Self {
        use pb::target::Which;
        let which = match target {
            Target::Task(task) => Which::Task(task.to_string()),
            Target::Job(job) => Which::Job(job.to_string()),
            Target::Table(table) => Which::Table(table.to_string()),
            Target::Owner(owner) => Which::Owner(owner.0),
        };
        Self { which: Some(which) }
    }
}

impl TryFrom<pb::Target> for Target {
    type Error = Error;

    fn try_from(target: pb::Target) -> Result<Self> {
        use pb::target::Which;
        Ok(match required(target.which, "target")? {
            Which::Task(task) => Self::Task(task.parse()?),
            Which::Job(job) => Self::Job(job.parse()?),
            Which::Table(table) => Self::Table(table.parse()?),
            Which::Owner(owner) => Self::Owner(OwnerId(owner)),
        })
    }
}

impl From<Wish> for pb::SteerRequest {
    fn from(wish: Wish) -> Self {
        use pb::{set_pause::Which, steer_request::What};
        let pause = |which, paused| {
            What::Pause(pb::SetPause {
                which: Some(which),
                paused,
            })
        };
        let what = match wish {
            Wish::Cancel(target) => What::Cancel(target.into()),
            Wish::Retry(target) => What::Retry(target.into()),
            Wish::Raise(target) => What::Raise(target.into()),
            Wish::RetryQuarantined { owner, table } => {
                What::RetryQuarantined(pb::RetryQuarantined {
                    owner: owner.0,
                    table: text_of(table),
                })
            }
            Wish::Set(Setting::Weight(owner, weight)) => What::Weight(pb::SetWeight {
                owner: owner.0,
                weight,
            }),
            Wish::Set(Setting::PauseOwner(owner, paused)) => pause(Which::Owner(owner.0), paused),
            Wish::Set(Setting::PauseTable(table, paused)) => {
                pause(Which::Table(table.to_string()), paused)
            }
        };
        Self { what: Some(what) }
    }
}

impl TryFrom<pb::SteerRequest> for Wish {
    type Error = Error;

    fn try_from(request: pb::SteerRequest) -> Result<Self> {
        use pb::{set_pause::Which, steer_request::What};
        Ok(match required(request.what, "wish")? {
            What::Cancel(target) => Self::Cancel(target.try_into()?),
            What::Retry(target) => Self::Retry(target.try_into()?),
            What::Raise(target) => Self::Raise(target.try_into()?),
            What::RetryQuarantined(retry) => Self::RetryQuarantined {
                owner: OwnerId(retry.owner),
                table: table_or_all(&retry.table)?,
            },
            What::Weight(set) => {
                if set.weight == 0 || set.weight > crate::meta::state::Settings::WEIGHT_MAX {
                    let weight = set.weight;
                    return Err(Error::invalid(format!(
                        "weight {weight} is not in 1..=1000"
                    )));
                }
                Self::Set(Setting::Weight(OwnerId(set.owner), set.weight))
            }
            What::Pause(set) => Self::Set(match required(set.which, "what is to be paused")? {
                Which::Owner(owner) => Setting::PauseOwner(OwnerId(owner), set.paused),
                Which::Table(table) => Setting::PauseTable(table.parse()?, set.paused),
            }),
        })
    }
}
