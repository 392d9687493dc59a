//! Runs jobs inside the engine's process, one task after another. Each holds its part of the memory budget,
//! by estimate, from before it opens its inputs until it ends.

use std::{
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use async_trait::async_trait;
use futures::FutureExt;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::{
    Attempt, Capacity, CompactionContext, CompactionJob, CompactionOutcome, Compactor, JobProgress,
    Task, TaskOutcome, TaskPart, execute, memory_estimate, results,
};
use crate::{
    clock::{Backoff, Env},
    config::CompactionConfig,
    error::{Error, ErrorKind, Result},
    store::Store,
    types::{NodeId, Token},
};

/// The memory budget is counted in MiB.
const MEMORY_UNIT: u64 = 1 << 20;

/// The name under which the engine itself appears among nodes.
pub const LOCAL_NODE: &str = "local";

/// Runs jobs in this process; merging happens on blocking threads.
#[derive(Debug)]
pub struct LocalCompactor {
    store: Store,
    env: Env,
    jobs_max: usize,
    task_attempts_max: u32,
    /// Jobs that were given to it and have not ended.
    given: AtomicUsize,
    /// Jobs that may run: one more than it has capacity for waits here.
    running: Semaphore,
    /// Memory that is free, in units of [`MEMORY_UNIT`].
    memory: Semaphore,
    memory_units: u32,
    last_token: Mutex<Token>,
}

impl LocalCompactor {
    /// A compactor for jobs whose objects are in `store`.
    pub fn new(store: Store, config: &CompactionConfig, env: Env) -> Self {
        let (jobs_max, memory_bytes_max) = (config.local.jobs_max, config.local.memory_bytes_max.0);
        let memory_units = (memory_bytes_max / MEMORY_UNIT).clamp(1, u32::MAX.into()) as u32;
        Self {
            store,
            env,
            jobs_max,
            task_attempts_max: config.task_attempts_max,
            given: AtomicUsize::new(0),
            running: Semaphore::new(jobs_max),
            memory: Semaphore::new(memory_units as usize),
            memory_units,
            last_token: Mutex::default(),
        }
    }

    async fn run_job(
        &self,
        job: &Arc<CompactionJob>,
        cancel: &CancellationToken,
    ) -> Result<CompactionOutcome> {
        let stopped = |_| Error::closed("compaction was stopped");
        let _running = self.running.acquire().await.map_err(stopped)?;
        // A job planned under another budget runs alone.
        let units = memory_estimate(&job.inputs).div_ceil(MEMORY_UNIT);
        let units = units.min(self.memory_units.into()) as u32;
        let _memory = self.memory.acquire_many(units).await.map_err(stopped)?;
        let mut progress = self.find_results(job).await?;
        let missing: Vec<Task> = progress.missing().cloned().collect();
        for task in missing {
            for outcome in self.run_task(job, &task, cancel).await? {
                progress.add(TaskPart::Outcome(outcome))?;
            }
        }
        progress.into_outcome()
    }

    async fn find_results(&self, job: &Arc<CompactionJob>) -> Result<JobProgress> {
        let mut backoff = Backoff::for_outage();
        loop {
            match results::load(&self.store, job).await {
                Err(error) if error.is_unavailable() => {
                    tracing::warn!(job = %job.id, %error, "compaction waits for the store");
                }
                found => return found,
            }
            backoff.pause().await;
        }
    }

    async fn run_task(
        &self,
        job: &Arc<CompactionJob>,
        task: &Task,
        cancel: &CancellationToken,
    ) -> Result<Vec<TaskOutcome>> {
        let mut failures = 0;
        let mut backoff = Backoff::for_outage();
        loop {
            let attempt = Attempt {
                cancel: cancel.child_token(),
                ..Attempt::new(self.next_token(), NodeId::from(LOCAL_NODE))
            };
            // A panic ends the attempt, not the engine.
            let run = AssertUnwindSafe(execute(job, task, attempt, &self.store, &self.env))
                .catch_unwind();
            let error = match run.await {
                Ok(Ok(outcomes)) => return Ok(outcomes),
                Ok(Err(error)) => error,
                Err(_) => Error::internal(format!("task {} panicked", task.id)),
            };
            match error.kind() {
                ErrorKind::Unavailable => {}
                ErrorKind::Internal if failures + 1 < self.task_attempts_max => failures += 1,
                _ => return Err(error),
            }
            tracing::warn!(task = %task.id, %error, "compaction task will be tried again");
            backoff.pause().await;
        }
    }

    /// Bytes of the memory budget that running jobs hold; zero when none runs.
    pub fn memory_reserved(&self) -> u64 {
        let free = self.memory.available_permits() as u64;
        (u64::from(self.memory_units) - free) * MEMORY_UNIT
    }

    fn next_token(&self) -> Token {
        let mut last = self.last_token.lock().expect("no panic under this lock");
        *last = Token::next_local(*last, self.env.unix_ms(), self.env.random());
        *last
    }
}

#[async_trait]
impl Compactor for LocalCompactor {
    async fn compact(
        &self,
        job: Arc<CompactionJob>,
        context: CompactionContext,
    ) -> Result<CompactionOutcome> {
        let _given = Given::new(&self.given);
        // Threads still merging when this future is dropped stop at their next batch.
        let cancel = context.cancel.child_token();
        let _stop = cancel.clone().drop_guard();
        tokio::select! {
            () = context.cancel.cancelled() => Err(Error::closed("compaction was cancelled")),
            outcome = self.run_job(&job, &cancel) => outcome,
        }
    }

    fn capacity(&self) -> Capacity {
        let given = self.given.load(Ordering::Relaxed);
        Capacity {
            jobs: self.jobs_max.saturating_sub(given),
        }
    }

    fn kind(&self) -> &'static str {
        "local"
    }
}

/// Counts a job as given while it lives.
struct Given<'a>(&'a AtomicUsize);

impl<'a> Given<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Given<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
