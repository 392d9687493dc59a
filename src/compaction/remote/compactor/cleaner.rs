//! Deleting through the fleet: the engine's end of cleanup jobs.
//!
//! 1. Names are cut into jobs of [`NAMES_MAX`]; [`JOBS_MAX`] of them are outstanding at most.
//! 2. Each is submitted, in the class that goes behind all compaction, and watched until its only task has ended.
//! 3. Its result, which tells of every object, is read and deleted; the job is released, however it ended.
//!
//! Nobody waits long for what the engine can do itself: when no node could run the job, when meta or room in its queue
//! has been away for `fallback_after`, when the nodes cannot do it, and when they have had no time for [`OVERDUE`], the
//! objects are left to the engine, whatever `fallback` says: that is about work, of which this is little. Only the
//! first jobs of such a time wait; those after them find out at once whether it is over.

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use futures::{StreamExt, stream};
use tracing::{debug, warn};

use super::{RemoteCompactor, can_wait};
use crate::{
    clock::Backoff,
    compaction::{
        cleanup::{self, CleanupJob, NAMES_MAX},
        remote::{
            CLEANUP_CAPABILITY, JobClass, JobSubmission, Needs, Pressure, TaskState, TaskSubmission,
        },
    },
    error::{Error, ErrorKind, Result},
    types::{Deletion, JobId, TableId},
};

/// Jobs outstanding at once.
const JOBS_MAX: usize = 4;
/// Objects that are taken at once.
pub(super) const DELETES_MAX: usize = JOBS_MAX * NAMES_MAX;
/// How long nodes have for a job, and may be too busy for any: longer than the patience of the class, after which a
/// job goes before others.
const OVERDUE: Duration = Duration::from_secs(900);
/// A job that a node has within this time has found one with room.
const SOON: Duration = Duration::from_secs(1);
/// How long one watch waits for news: so soon it is noticed that no node is left.
const WATCH_WAIT: Duration = Duration::from_secs(5);
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Memory for the names, in bytes, as nodes count it.
const MEMORY_BYTES: u64 = 1 << 20;

/// What cleanup jobs have learned, one for the next.
#[derive(Debug, Default)]
pub(super) struct Cleaner {
    waits: Mutex<Waits>,
}

/// Moments on the monotonic clock.
#[derive(Debug, Default)]
struct Waits {
    /// Since when meta, or room in its queue, has not been had.
    away_since: Option<Duration>,
    /// Since when no node has had room at once.
    busy_since: Option<Duration>,
}

/// Why a job is not followed any longer.
enum Watched {
    /// It has a result.
    Done,
    /// It is not with meta any more: it is to be submitted again.
    Lost,
}

/// Why there is no result.
enum Undone {
    /// The engine is to delete the objects itself.
    Left(&'static str),
    /// Another time.
    Failed(Error),
}

impl JobSubmission {
    /// The job of deleting what `job` names.
    fn of_cleanup(job: &CleanupJob, compactor: &RemoteCompactor) -> Self {
        let (table, objects) = (job.table, job.names.len());
        let plural = if objects == 1 { "" } else { "s" };
        Self {
            owner: compactor.owner.clone(),
            job: job.id,
            table,
            label: format!("table {table}, delete {objects} object{plural}"),
            pressure: Pressure {
                class: JobClass::Cleanup,
                score: 0,
            },
            needs: Arc::new(Needs {
                capabilities: vec![CLEANUP_CAPABILITY.to_owned()],
                pool: compactor.config.pool.clone(),
            }),
            zone: compactor.config.zone.clone(),
            body: job.encode(),
            tasks: vec![TaskSubmission {
                index: 0,
                memory: MEMORY_BYTES,
                ..TaskSubmission::default()
            }],
        }
    }
}

impl RemoteCompactor {
    /// Has nodes delete `names` in the folder of `table`; what became of each.
    pub(super) async fn delete_by_nodes(&self, table: TableId, names: &[String]) -> Vec<Deletion> {
        let jobs = names.chunks(NAMES_MAX).map(|names| CleanupJob {
            id: JobId::from_parts(self.env.unix_ms(), self.env.random()),
            table,
            store_url: self.store.url().to_owned(),
            names: names.to_vec(),
        });
        let jobs: Vec<CleanupJob> = jobs.collect();
        let jobs = jobs
            .into_iter()
            .map(|job| async move { self.clean(&job).await });
        let ended: Vec<Vec<Deletion>> = stream::iter(jobs).buffered(JOBS_MAX).collect().await;
        ended.concat()
    }

    async fn clean(&self, job: &CleanupJob) -> Vec<Deletion> {
        let _released = Released {
            compactor: self,
            job: job.id,
        };
        let ended = tokio::time::timeout(OVERDUE, self.run_cleanup(job)).await;
        let undone = match ended.unwrap_or(Err(Undone::Left("overdue"))) {
            Ok(deletions) => return deletions,
            Err(Undone::Left(reason)) => {
                debug!(job = %job.id, reason, "objects are left to the engine to be deleted");
                Deletion::Left(reason)
            }
            Err(Undone::Failed(error)) => Deletion::Failed(error),
        };
        vec![undone; job.names.len()]
    }

    async fn run_cleanup(&self, job: &CleanupJob) -> Result<Vec<Deletion>, Undone> {
        let submission = JobSubmission::of_cleanup(job, self);
        let mut pauses = Backoff::new(PAUSE_MIN, PAUSE_MAX);
        loop {
            let ended = match self.service.submit(submission.clone()).await {
                Ok(()) => self.watch_cleanup(job.id, &mut pauses).await?,
                Err(error) => {
                    self.check_patience(error)?;
                    Watched::Lost
                }
            };
            match ended {
                Watched::Done => return self.take_result(job).await,
                Watched::Lost => pauses.pause_jittered(&self.env).await,
            }
        }
    }

    /// Follows a job that was submitted.
    async fn watch_cleanup(&self, job: JobId, pauses: &mut Backoff) -> Result<Watched, Undone> {
        let (submitted, mut seen) = (self.env.monotonic(), 0);
        // While it is queued: until when it may be.
        let mut queued_until: Option<Duration> = None;
        loop {
            let now = self.env.monotonic();
            let left = queued_until.map_or(WATCH_WAIT, |until| until.saturating_sub(now));
            let wait = left.clamp(PAUSE_MIN, WATCH_WAIT);
            let status = match self.service.watch(job, seen, wait).await {
                Ok(status) => status,
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Watched::Lost),
                Err(error) => {
                    self.check_patience(error)?;
                    pauses.pause_jittered(&self.env).await;
                    continue;
                }
            };
            seen = status.revision;
            let now = self.env.monotonic();
            let is_soon = now.saturating_sub(submitted) <= SOON;
            let mut states = status.tasks.into_iter();
            match states
                .find(|(index, _)| *index == 0)
                .map(|(_, state)| state)
            {
                Some(TaskState::Done { .. }) => {
                    self.cleaner.taken(is_soon);
                    return Ok(Watched::Done);
                }
                Some(TaskState::Running { .. }) => {
                    self.cleaner.taken(is_soon);
                    queued_until = None;
                }
                Some(TaskState::Queued) => {
                    queued_until.get_or_insert_with(|| now + self.cleaner.patience(now));
                }
                Some(TaskState::Displaced) => {
                    self.check_patience(Error::too_large("the queue is full"))?;
                    return Ok(Watched::Lost);
                }
                Some(TaskState::Failed { kind, message }) => {
                    warn!(%job, %kind, message, "nodes cannot delete: the engine does");
                    return Err(Undone::Left("failed"));
                }
                Some(TaskState::Cancelled { reason }) => {
                    return Err(Undone::Failed(Error::conflict(reason)));
                }
                None => {}
            }
            self.cleaner.lock().away_since = None;
            if status.nodes == 0 {
                return Err(Undone::Left("no nodes"));
            }
            if queued_until.is_some_and(|until| until <= now) {
                return Err(Undone::Left("overdue"));
            }
        }
    }

    /// Whether to go on trying after `error`.
    fn check_patience(&self, error: Error) -> Result<(), Undone> {
        let reason = error.kind().as_str();
        if !can_wait(&error) && error.kind() != ErrorKind::TooLarge {
            warn!(%error, "meta does not take a cleanup job: the engine deletes");
            return Err(Undone::Left(reason));
        }
        let now = self.env.monotonic();
        let since = *self.cleaner.lock().away_since.get_or_insert(now);
        match now.saturating_sub(since) >= self.config.fallback_after.duration() {
            true => Err(Undone::Left(reason)),
            false => Ok(()),
        }
    }

    /// Reads the result of `job`, which was reported done, and deletes it.
    async fn take_result(&self, job: &CleanupJob) -> Result<Vec<Deletion>, Undone> {
        let mut pauses = Backoff::new(PAUSE_MIN, PAUSE_MAX);
        let read = loop {
            match cleanup::read_result(&self.store, job).await {
                Err(error) if error.is_unavailable() => {
                    pauses.pause_jittered(&self.env).await;
                }
                read => break read,
            }
        };
        if let Err(error) = cleanup::delete_result(&self.store, job).await {
            debug!(job = %job.id, %error, "a result is left for a sweep");
        }
        match read {
            Ok(Some(deletions)) => Ok(deletions),
            Ok(None) => Err(Undone::Failed(Error::internal(format!(
                "task {} was reported done, but has no result",
                job.task_id()
            )))),
            Err(error) => Err(Undone::Failed(error)),
        }
    }
}

impl Cleaner {
    /// How long a job may be queued that is so at `now`.
    fn patience(&self, now: Duration) -> Duration {
        let busy_since = *self.lock().busy_since.get_or_insert(now);
        let left = OVERDUE.saturating_sub(now.saturating_sub(busy_since));
        left.max(SOON)
    }

    /// A node has taken a job, soon or late.
    fn taken(&self, is_soon: bool) {
        let mut waits = self.lock();
        waits.away_since = None;
        if is_soon {
            waits.busy_since = None;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waits> {
        self.waits.lock().expect("no panic under this lock")
    }
}

/// Releases a job when it goes, also when its future is dropped: nobody would watch it.
struct Released<'a> {
    compactor: &'a RemoteCompactor,
    job: JobId,
}

impl Drop for Released<'_> {
    fn drop(&mut self) {
        self.compactor.release(self.job);
    }
}

#[cfg(test)]
mod tests;
