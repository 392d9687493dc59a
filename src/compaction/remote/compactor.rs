//! The engine's end of remote compaction: has a job's tasks run by nodes, through the meta service.
//!
//! 1. List the job's results: a task whose parts reach its end is done, whoever wrote them.
//! 2. Submit the rest, and watch. When meta does not know the job (it lost its plan), begin again.
//! 3. Read the result of each task that is reported done. One that was too large for every node is cut in two, as is
//!    what is left of one that is too slow, and the job submitted again, with the new tasks.
//! 4. Release the job, once it has ended. One that was cancelled has not: it stays in the manifest, its
//!    tasks go on, and the next engine resumes it; unless its table was dropped.
//!
//! `Unavailable` is waited out for ever, by meta as by the store; only a configured fallback ends that,
//! and is counted.

mod attend;
mod away;
mod budget;
mod cleaner;

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{debug, warn};

use self::{
    away::Away,
    budget::{FallbackBudget, Permit},
    cleaner::{Cleaner, DELETES_MAX},
};
use super::{JobService, JobStatus, JobSubmission, TaskState};
use crate::{
    clock::Env,
    compaction::{
        Capacity, CompactionContext, CompactionJob, CompactionOutcome, Compactor, JobProgress,
        QuarantineView, Share, bisect::bisect_rest, results,
    },
    config::{Fallback, RemoteConfig},
    error::{Error, ErrorKind, Result},
    store::Store,
    types::{Deletion, JobId, OwnerId, TableId},
};

/// How long one call to release a job may take.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);
/// Calls after which a job is left to meta, which drops it by itself when nobody watches it.
const RELEASE_ATTEMPTS_MAX: u32 = 10;
const RELEASE_DELAY_MIN: Duration = Duration::from_millis(200);
const RELEASE_DELAY_MAX: Duration = Duration::from_secs(30);

/// How often jobs were run locally because remote compaction was not to be had.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fallbacks {
    /// Jobs by reason: `"unavailable"` without a meta service, `"no nodes"` without any that could run them,
    /// `"too large"` for a full queue.
    pub jobs: BTreeMap<&'static str, u64>,
    /// What was said last.
    pub last_reason: Option<String>,
}

/// Has compaction nodes run the jobs.
pub struct RemoteCompactor {
    service: Arc<dyn JobService>,
    store: Store,
    owner: OwnerId,
    config: RemoteConfig,
    env: Env,
    fallback: Option<Arc<dyn Compactor>>,
    fallbacks: Mutex<Fallbacks>,
    budget: Arc<FallbackBudget>,
    /// Why jobs wait, each until an answer comes or it ends.
    waiting: Mutex<BTreeMap<JobId, String>>,
    outstanding: AtomicUsize,
    /// Jobs that meta would have outstanding, by what it said last.
    window: AtomicU32,
    cleaner: Cleaner,
    /// Releases that nobody waits for.
    releases: TaskTracker,
    closing: CancellationToken,
}

/// Why a job was not finished remotely.
enum Stopped {
    Failed(Error),
    /// Meta has been away for longer than allowed, and there is a place in this process.
    Away(Error, Permit),
}

/// Why a job is not followed any longer.
enum Watched {
    Complete,
    /// There are tasks that meta does not run: cut from others, or displaced.
    Lacking,
    /// Meta does not know the job.
    Unknown,
}

impl From<Error> for Stopped {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl RemoteCompactor {
    /// A compactor for the jobs of `owner`, whose tables lie under the root `store`.
    pub fn new(
        service: Arc<dyn JobService>,
        store: Store,
        owner: OwnerId,
        config: RemoteConfig,
        env: Env,
    ) -> Self {
        Self {
            service,
            store,
            owner,
            budget: FallbackBudget::new(config.fallback_jobs_max),
            config,
            env,
            fallback: None,
            fallbacks: Mutex::default(),
            waiting: Mutex::default(),
            outstanding: AtomicUsize::new(0),
            window: AtomicU32::new(u32::MAX),
            cleaner: Cleaner::default(),
            releases: TaskTracker::new(),
            closing: CancellationToken::new(),
        }
    }

    /// The same with a compactor that takes over jobs when `fallback = "local"` is configured and meta
    /// has been away for `fallback_after`.
    #[must_use]
    pub fn with_fallback(mut self, fallback: Arc<dyn Compactor>) -> Self {
        self.fallback = Some(fallback);
        self
    }

    /// How often jobs fell back, and why.
    pub fn fallbacks(&self) -> Fallbacks {
        let fallbacks = self.fallbacks.lock();
        fallbacks.expect("no panic under this lock").clone()
    }

    /// Waits for what goes on in the background: the release of jobs that have ended. Each is tried once
    /// more at most.
    pub async fn close(&self) {
        self.closing.cancel();
        self.releases.close();
        self.releases.wait().await;
    }

    /// After what time without meta or nodes a job is run locally, if that is wanted.
    fn falls_back_after(&self) -> Option<Duration> {
        let falls_back = self.config.fallback == Fallback::Local && self.fallback.is_some();
        falls_back.then(|| self.config.fallback_after.duration())
    }

    fn set_waiting(&self, job: JobId, reason: Option<String>) {
        let mut waiting = self.waiting.lock().expect("no panic under this lock");
        match reason {
            Some(reason) => drop(waiting.insert(job, reason)),
            None => drop(waiting.remove(&job)),
        }
    }

    async fn run(
        &self,
        job: &Arc<CompactionJob>,
        share: &Share,
    ) -> Result<CompactionOutcome, Stopped> {
        let mut away = Away::new(self, job);
        let load = || results::load_share(&self.store, job, share);
        let mut found = away.wait_out(load).await?;
        while !found.is_complete() {
            self.submit(&found, &mut away).await?;
            match self.watch(&mut found, &mut away).await? {
                Watched::Complete => {}
                Watched::Lacking => debug!(job = %job.id, "meta lacks tasks: submitting them"),
                Watched::Unknown => {
                    debug!(job = %job.id, "meta does not know the job: submitting it again");
                    found = away.wait_out(load).await?;
                }
            }
        }
        Ok(found.into_outcome()?)
    }

    async fn read_result(
        &self,
        found: &mut JobProgress,
        index: u32,
        away: &mut Away<'_>,
    ) -> Result<()> {
        *found = away
            .wait_out(|| extended(&self.store, found, index))
            .await?;
        if found.is_missing(index) {
            let task = found.job().task_id(index);
            return Err(Error::internal(format!(
                "task {task} was reported done, but has no result"
            )));
        }
        Ok(())
    }

    async fn submit(&self, found: &JobProgress, away: &mut Away<'_>) -> Result<(), Stopped> {
        let submission = JobSubmission::of(found, &self.owner, &self.config)?;
        loop {
            match self.service.submit(submission.clone()).await {
                Ok(()) => {
                    away.is_back();
                    return Ok(());
                }
                // A full queue drains; a body that is too large was found before.
                Err(error) if can_wait(&error) || error.kind() == ErrorKind::TooLarge => {
                    away.wait(error).await?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Follows the job, until there is something else to do.
    async fn watch(
        &self,
        found: &mut JobProgress,
        away: &mut Away<'_>,
    ) -> Result<Watched, Stopped> {
        let mut seen = 0;
        loop {
            let job = found.job().id;
            let status = match self.service.watch(job, seen, away.patience()).await {
                Ok(status) => status,
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Watched::Unknown),
                Err(error) if can_wait(&error) => {
                    away.wait(error).await?;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            match status.nodes {
                0 => away.go_without("there are no compaction nodes that could run it")?,
                _ => away.is_back(),
            }
            seen = status.revision;
            self.window.store(status.jobs_window, Ordering::Relaxed);
            let displaced = status.tasks.iter();
            let displaced = displaced.filter(|(_, state)| *state == TaskState::Displaced);
            let displaced = displaced.count();
            let is_split = self.take_in(found, status, away).await?;
            if found.is_complete() {
                return Ok(Watched::Complete);
            }
            if is_split {
                return Ok(Watched::Lacking);
            }
            if displaced > 0 {
                let what = format!("queue is full: {displaced} tasks gave way to more urgent ones");
                away.wait(Error::too_large(what)).await?;
                return Ok(Watched::Lacking);
            }
        }
    }

    /// Takes in what meta says; returns whether a task was split.
    async fn take_in(
        &self,
        found: &mut JobProgress,
        status: JobStatus,
        away: &mut Away<'_>,
    ) -> Result<bool> {
        let mut is_split = false;
        for (index, state) in status.tasks {
            match state {
                TaskState::Done { .. } if found.is_missing(index) => {
                    self.read_result(found, index, away).await?;
                }
                TaskState::Failed { kind, message } if found.is_missing(index) => {
                    let error = Error::new(kind, message);
                    if kind != ErrorKind::TooLarge {
                        return Err(error);
                    }
                    let bisect = || bisect_rest(&self.store, found, index, &error);
                    *found = away.wait_out(bisect).await?;
                    is_split = true;
                }
                TaskState::Running { slow: true, .. } if found.is_missing(index) => {
                    is_split |= self.cut_slow(found, index, away).await?;
                }
                TaskState::Cancelled { reason } if found.is_missing(index) => {
                    // Another engine that has not noticed yet that this one took over may have cut it.
                    *found = away
                        .wait_out(|| extended(&self.store, found, index))
                        .await?;
                    if found.is_missing(index) {
                        return Err(Error::conflict(reason));
                    }
                    is_split = true;
                }
                _ => {}
            }
        }
        Ok(is_split)
    }

    /// Cuts what is left of a task that is slow on every node; returns whether that could be done.
    async fn cut_slow(
        &self,
        found: &mut JobProgress,
        index: u32,
        away: &mut Away<'_>,
    ) -> Result<bool> {
        let slow = Error::too_large("it is far slower than its kind");
        let cut = away.wait_out(|| bisect_rest(&self.store, found, index, &slow));
        match cut.await {
            Ok(cut) => *found = cut,
            // It goes on as it is.
            Err(error) if error.kind() == ErrorKind::TooLarge => {
                debug!(%error, "slow task is not cut");
            }
            Err(error) => return Err(error),
        }
        Ok(found
            .chain(index)
            .is_some_and(|chain| chain.split().is_some()))
    }

    /// Tells meta in the background that `job` has ended. Should that not come through, meta finds out by
    /// itself that nobody watches the job.
    fn release(&self, job: JobId) {
        let (service, closing) = (self.service.clone(), self.closing.clone());
        let release = async move {
            let mut delay = RELEASE_DELAY_MIN;
            for _ in 0..RELEASE_ATTEMPTS_MAX {
                let release = service.release(job);
                match tokio::time::timeout(RELEASE_TIMEOUT, release).await {
                    Ok(Ok(())) => return,
                    Ok(Err(error)) => debug!(%job, %error, "job not released"),
                    Err(_) => debug!(%job, "job not released: no answer"),
                }
                tokio::select! {
                    biased;
                    () = closing.cancelled() => return,
                    () = tokio::time::sleep(delay) => {}
                }
                delay = (delay * 2).min(RELEASE_DELAY_MAX);
            }
            warn!(%job, "meta cannot be told that a job has ended");
        };
        self.releases.spawn(release);
    }

    async fn fall_back(
        &self,
        reason: Error,
        job: Arc<CompactionJob>,
        context: CompactionContext,
    ) -> Result<CompactionOutcome> {
        let Some(fallback) = &self.fallback else {
            return Err(reason);
        };
        warn!(job = %job.id, %reason, "compacting locally: remote compaction is not to be had");
        {
            let mut fallbacks = self.fallbacks.lock().expect("no panic under this lock");
            let why = match reason.kind() {
                ErrorKind::NotFound => "no nodes",
                kind => kind.as_str(),
            };
            *fallbacks.jobs.entry(why).or_default() += 1;
            fallbacks.last_reason = Some(reason.to_string());
        }
        fallback.compact(job, context).await
    }
}

#[async_trait]
impl Compactor for RemoteCompactor {
    async fn compact(
        &self,
        job: Arc<CompactionJob>,
        context: CompactionContext,
    ) -> Result<CompactionOutcome> {
        let _outstanding = Outstanding::new(&self.outstanding);
        let ended = tokio::select! {
            biased;
            () = context.cancel.cancelled() => {
                return Err(Error::closed(format!("job {} was cancelled", job.id)));
            }
            ended = self.run(&job, &context.share) => ended,
        };
        if !matches!(&ended, Err(Stopped::Failed(error)) if will_resume(error)) {
            self.release(job.id);
        }
        match ended {
            Ok(outcome) => Ok(outcome),
            Err(Stopped::Failed(error)) => Err(error),
            Err(Stopped::Away(reason, _permit)) => self.fall_back(reason, job, context).await,
        }
    }

    fn capacity(&self) -> Capacity {
        let outstanding = self.outstanding.load(Ordering::Relaxed);
        let window = self.window.load(Ordering::Relaxed) as usize;
        Capacity {
            jobs: self.config.jobs_max.min(window).saturating_sub(outstanding),
        }
    }

    fn forget(&self, job: JobId) {
        self.release(job);
    }

    fn deletes_max(&self) -> usize {
        DELETES_MAX
    }

    async fn delete(&self, table: TableId, names: &[String]) -> Vec<Deletion> {
        self.delete_by_nodes(table, names).await
    }

    async fn attend(&self, quarantine: &dyn QuarantineView) -> Infallible {
        self.attend_for(quarantine).await
    }

    fn kind(&self) -> &'static str {
        "remote"
    }

    fn waiting(&self) -> Option<String> {
        let waiting = self.waiting.lock().expect("no panic under this lock");
        waiting.values().next().cloned()
    }

    fn fallbacks(&self) -> BTreeMap<String, u64> {
        let jobs = self.fallbacks().jobs;
        jobs.into_iter()
            .map(|(reason, jobs)| (reason.to_owned(), jobs))
            .collect()
    }

    fn fallbacks_held(&self) -> u64 {
        self.budget.held()
    }
}

/// What is known of a job, with what the store has of the task at `index` by now.
async fn extended(store: &Store, found: &JobProgress, index: u32) -> Result<JobProgress> {
    let mut more = found.clone();
    results::extend(store, &mut more, index).await?;
    Ok(more)
}

/// Counts a job as outstanding while it lives.
struct Outstanding<'a>(&'a AtomicUsize);

impl<'a> Outstanding<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Outstanding<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn can_wait(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Closed)
}

/// Whether a job that ended so stays in the manifest, for the next engine to resume.
fn will_resume(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Closed | ErrorKind::Fenced)
}
