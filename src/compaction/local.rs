//! Runs jobs inside the engine's process.
//!
//! Tasks of a job run side by side. Each running job has a thread of its own, and shares the others. An attempt
//! holds its part of the memory budget, by estimate, from before it opens its inputs until it ends.
//!
//! What an attempt's failure means is the same here as on a node: a store that is away is waited out, and does not
//! count; a task that is too large is cut in two; everything else counts, and is tried again after a pause, up to
//! `task_attempts_max`.

use std::{
    collections::HashSet,
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use async_trait::async_trait;
use futures::{FutureExt, StreamExt, stream::FuturesUnordered};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;

use super::{
    Attempt, Capacity, CompactionContext, CompactionJob, CompactionOutcome, Compactor, Share, Task,
    TaskOutcome, TaskPart, bisect::bisect_rest, execute, results,
};
use crate::{
    clock::{Backoff, Env},
    config::{CompactionConfig, LocalConfig},
    error::{Error, ErrorKind, Result, panic_text},
    store::Store,
    types::{NodeId, Token},
};

/// The memory budget is counted in KiB.
const MEMORY_UNIT: u64 = 1 << 10;

/// The name under which the engine itself appears among nodes.
pub const LOCAL_NODE: &str = "local";

/// Runs jobs in this process; merging happens on blocking threads.
#[derive(Debug)]
pub struct LocalCompactor {
    store: Store,
    env: Env,
    config: LocalConfig,
    task_attempts_max: u32,
    /// Jobs that were given to it and have not ended.
    given: AtomicUsize,
    /// Jobs that may run: one more than it has capacity for waits here.
    running: Semaphore,
    /// Threads beside the one that each running job has.
    threads: Semaphore,
    /// Memory that is free, in units of [`MEMORY_UNIT`].
    memory: Semaphore,
    memory_units: u32,
    last_token: Mutex<Token>,
}

/// A job while it runs.
struct Job<'a> {
    compactor: &'a LocalCompactor,
    job: &'a Arc<CompactionJob>,
    share: &'a Share,
    cancel: &'a CancellationToken,
    /// The thread of its own.
    thread: Semaphore,
}

impl LocalCompactor {
    /// A compactor for jobs whose objects are in `store`.
    pub fn new(store: Store, config: &CompactionConfig, env: Env) -> Self {
        let local = config.local.clone();
        let memory_units = local.memory_bytes_max.0 / MEMORY_UNIT;
        let memory_units = memory_units.clamp(1, u32::MAX.into()) as u32;
        Self {
            store: match local.bytes_per_second_max {
                Some(rate) => store.throttled(rate.0, env.clone()),
                None => store,
            },
            env,
            task_attempts_max: config.task_attempts_max,
            given: AtomicUsize::new(0),
            running: Semaphore::new(local.jobs_max),
            threads: Semaphore::new(local.tasks_max.saturating_sub(local.jobs_max)),
            memory: Semaphore::new(memory_units as usize),
            memory_units,
            last_token: Mutex::default(),
            config: local,
        }
    }

    /// Bytes of the memory budget that running attempts hold; zero when none runs.
    pub fn memory_reserved(&self) -> u64 {
        let free = self.memory.available_permits() as u64;
        (u64::from(self.memory_units) - free) * MEMORY_UNIT
    }

    /// Takes `bytes` of the memory budget, or all of it when that is less: then the attempt runs alone.
    async fn reserve(&self, bytes: u64) -> Result<(SemaphorePermit<'_>, u64)> {
        let units = bytes.div_ceil(MEMORY_UNIT).min(self.memory_units.into()) as u32;
        let memory = self.memory.acquire_many(units).await.map_err(stopped)?;
        Ok((memory, u64::from(units) * MEMORY_UNIT))
    }

    /// Asks the store until it answers.
    async fn wait_out<T, F>(&self, what: &str, ask: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let mut backoff = Backoff::for_outage();
        loop {
            match ask().await {
                Err(error) if error.is_unavailable() => {
                    tracing::warn!(what, %error, "compaction waits for the store");
                }
                answer => return answer,
            }
            backoff.pause_jittered(&self.env).await;
        }
    }

    fn next_token(&self) -> Token {
        let mut last = self.last_token.lock().expect("no panic under this lock");
        *last = Token::next_local(*last, self.env.unix_ms(), self.env.random());
        *last
    }
}

impl Job<'_> {
    async fn run(&self) -> Result<CompactionOutcome> {
        let compactor = self.compactor;
        let _running = compactor.running.acquire().await.map_err(stopped)?;
        let load = || results::load_share(&compactor.store, self.job, self.share);
        let mut progress = compactor.wait_out("results of a job", load).await?;
        let mut started = HashSet::new();
        let mut running = FuturesUnordered::new();
        loop {
            let fresh = progress.missing().cloned();
            let fresh = fresh.filter(|task| started.insert(task.id));
            running.extend(fresh.map(|task| self.run_task(task)));
            let Some((task, ended)) = running.next().await else {
                return progress.into_outcome();
            };
            match ended {
                Ok(outcomes) => {
                    for outcome in outcomes {
                        progress.add(TaskPart::Outcome(outcome))?;
                    }
                }
                Err(error) if error.kind() == ErrorKind::TooLarge => {
                    let bisect = || bisect_rest(&compactor.store, &progress, task.id.index, &error);
                    progress = compactor.wait_out("cutting a task", bisect).await?;
                    // What could not be cut, but gets further, is run again.
                    started.remove(&task.id);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Runs `task` until it is done, or has failed for good.
    async fn run_task(&self, task: Task) -> (Task, Result<Vec<TaskOutcome>>) {
        let env = &self.compactor.env;
        let mut failures = 0;
        let mut backoff = Backoff::for_outage();
        loop {
            let error = match self.attempt(&task).await {
                Ok(outcomes) => return (task, Ok(outcomes)),
                Err(error) => error,
            };
            match error.kind() {
                ErrorKind::Unavailable => {}
                ErrorKind::TooLarge | ErrorKind::Closed => return (task, Err(error)),
                _ => {
                    failures += 1;
                    if failures >= self.compactor.task_attempts_max {
                        let id = task.id;
                        let doing = format!("{failures} attempts at task {id} failed; the last");
                        return (task, Err(error.context(doing)));
                    }
                }
            }
            tracing::warn!(task = %task.id, %error, failures, "compaction task will be tried again");
            backoff.pause_jittered(env).await;
        }
    }

    async fn attempt(&self, task: &Task) -> Result<Vec<TaskOutcome>> {
        let compactor = self.compactor;
        let _thread = tokio::select! {
            biased;
            own = self.thread.acquire() => own.map_err(stopped)?,
            shared = compactor.threads.acquire() => shared.map_err(stopped)?,
        };
        let estimate = self.job.task_memory(&task.range);
        let (_memory, memory_bytes) = compactor.reserve(estimate).await?;
        let attempt = Attempt {
            cancel: self.cancel.child_token(),
            memory_bytes: Some(memory_bytes),
            time_max: Some(compactor.config.task_time_max.duration()),
            ..Attempt::new(compactor.next_token(), NodeId::from(LOCAL_NODE))
        };
        let run = execute(self.job, task, attempt, &compactor.store, &compactor.env);
        // A panic ends the attempt, not the engine.
        let ended = AssertUnwindSafe(run).catch_unwind().await;
        ended.unwrap_or_else(|panic| {
            let (id, text) = (task.id, panic_text(panic.as_ref()));
            Err(Error::internal(format!("task {id} panicked: {text}")))
        })
    }
}

fn stopped<E>(_: E) -> Error {
    Error::closed("compaction was stopped")
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
        let running = Job {
            compactor: self,
            job: &job,
            share: &context.share,
            cancel: &cancel,
            thread: Semaphore::new(1),
        };
        tokio::select! {
            biased;
            () = context.cancel.cancelled() => Err(Error::closed("compaction was cancelled")),
            outcome = running.run() => outcome,
        }
    }

    fn capacity(&self) -> Capacity {
        let given = self.given.load(Ordering::Relaxed);
        Capacity {
            jobs: self.config.jobs_max.saturating_sub(given),
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

#[cfg(test)]
mod tests;
