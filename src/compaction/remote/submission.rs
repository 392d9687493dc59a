//! A job as an engine hands it to the meta service: the plan, which meta does not read, and beside it all
//! that meta goes by: whose it is, how urgent, what a node needs to run it, and how large each task is.

use std::sync::Arc;

use bytes::Bytes;

use super::CAPABILITY;
use crate::{
    compaction::{CompactionJob, JobProgress},
    config::RemoteConfig,
    error::{Error, Result},
    types::{JobId, KeyRange, OwnerId, TableId},
};

/// Size in bytes up to which a job's body is accepted: several must fit into one message.
pub const BODY_BYTES_MAX: usize = 32 << 20;

/// A job as an engine hands it to the meta service. The same job may be submitted again at any time: tasks
/// that are not known are added, displaced ones are queued again, all others stay as they are. Of the tasks that come
/// before the last one named, those that are not named are run no more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobSubmission {
    /// Whose job it is.
    pub owner: OwnerId,
    /// Its id.
    pub job: JobId,
    /// The table that it compacts.
    pub table: TableId,
    /// What it is for, in words: `"table trips, window 12"`.
    pub label: String,
    /// How urgent it is.
    pub pressure: Pressure,
    /// What a node must have to run it.
    pub needs: Arc<Needs>,
    /// Where the engine is; among equal nodes one in the same zone is taken. Empty for nowhere.
    pub zone: String,
    /// [`CompactionJob::encode`]; meta does not look inside.
    pub body: Bytes,
    /// The tasks still to be run, all of them.
    pub tasks: Vec<TaskSubmission>,
}

impl JobSubmission {
    /// What is still to be run of a job of `owner`.
    ///
    /// # Errors
    /// `TooLarge` when the job does not fit into a message.
    pub fn of(found: &JobProgress, owner: &OwnerId, config: &RemoteConfig) -> Result<Self> {
        let job = found.job();
        let body = job.encode();
        if body.len() > BODY_BYTES_MAX {
            let (id, bytes) = (job.id, body.len());
            return Err(Error::too_large(format!(
                "job {id} has {bytes} bytes; at most {BODY_BYTES_MAX} can be sent"
            )));
        }
        let tasks = found.missing().map(|task| {
            let is_planned = job.task(task.id.index).is_some();
            TaskSubmission {
                index: task.id.index,
                bytes: found.task_bytes(task),
                memory: job.task_memory(&task.range),
                range: (!is_planned).then(|| task.range.clone()),
            }
        });
        Ok(Self {
            owner: owner.clone(),
            job: job.id,
            table: job.table,
            pressure: Pressure::of(job),
            needs: Arc::new(Needs {
                pool: config.pool.clone(),
                ..Needs::default()
            }),
            zone: config.zone.clone(),
            label: format!("table {}, window {}", job.table, job.window),
            tasks: tasks.collect(),
            body,
        })
    }
}

/// A task of a submitted job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskSubmission {
    /// Its position in the job, or its number as a half of another: see
    /// [`TaskId::halves`](crate::types::TaskId::halves).
    pub index: u32,
    /// About how many bytes it reads.
    pub bytes: u64,
    /// About how many bytes of memory it takes.
    pub memory: u64,
    /// Its key range; `None` for the one that the job has at `index`.
    pub range: Option<KeyRange>,
}

/// How urgent a job is: by class, then by score. The greater goes first, but no job waits behind those that
/// were submitted [`patience_ms`](Self::patience_ms) later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pressure {
    /// What it is for.
    pub class: JobClass,
    /// Within the class; for level 0 the number of runs that go.
    pub score: u32,
}

/// What a job is for, from the least urgent on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum JobClass {
    /// Objects that nobody needs are deleted.
    Cleanup,
    /// Deeper levels get into shape.
    #[default]
    Upkeep,
    /// Level 0 gets smaller, before writes have to wait.
    Level0,
    /// An operator wants it now.
    Raised,
}

impl JobClass {
    /// The class as one word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cleanup => "cleanup",
            Self::Upkeep => "upkeep",
            Self::Level0 => "level 0",
            Self::Raised => "raised",
        }
    }
}

impl Pressure {
    /// How long, in milliseconds, a job of this pressure stands back behind later ones of a higher.
    pub fn patience_ms(self) -> u64 {
        match self.class {
            JobClass::Raised => 0,
            JobClass::Level0 => 10_000 / (u64::from(self.score) + 1),
            JobClass::Upkeep => 60_000 + 30_000 / (u64::from(self.score) + 1),
            JobClass::Cleanup => 600_000,
        }
    }

    /// The pressure of `job`, by what it merges.
    pub fn of(job: &CompactionJob) -> Self {
        let level_0 = job.inputs.iter().filter(|sst| sst.level == 0).count();
        let class = match level_0 {
            0 => JobClass::Upkeep,
            _ => JobClass::Level0,
        };
        let score = u32::try_from(level_0).unwrap_or(u32::MAX);
        Self { class, score }
    }
}

/// What a node must have to run a job exactly.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Needs {
    /// Words that must be among the node's; see [`CAPABILITY`].
    pub capabilities: Vec<String>,
    /// The pool that the node must be of; empty for any.
    pub pool: String,
}

impl Default for Needs {
    fn default() -> Self {
        Self {
            capabilities: vec![CAPABILITY.to_owned()],
            pool: String::new(),
        }
    }
}

#[cfg(test)]
impl JobSubmission {
    /// A job of `tasks` tasks that read `bytes` each.
    pub(crate) fn sample(owner: &str, job: JobId, tasks: u32, bytes: u64) -> Self {
        let tasks = (0..tasks).map(|index| TaskSubmission {
            index,
            bytes,
            ..TaskSubmission::default()
        });
        Self {
            owner: owner.into(),
            job,
            table: TableId::from_parts(1, 1),
            label: "test".into(),
            pressure: Pressure::default(),
            needs: Arc::default(),
            zone: String::new(),
            body: vec![1, 2, 3].into(),
            tasks: tasks.collect(),
        }
    }
}
