//! What a node holds: running attempts, and ended ones that meta has not acknowledged.
//!
//! An attempt that meta disowned is stopped and no more spoken of, but occupies its slot until it really
//! has ended. If it ends well all the same, that is reported: a result that exists counts.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, OnceLock, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    runtime::Handle,
    task::{Id, JoinError, JoinSet},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::{TaskRunner, stats::Counters};
use crate::{
    compaction::{
        Attempt, CompactionJob, Progress, Task,
        remote::{Assignment, AttemptId, JobBody, PollReply, TaskEnd, TaskProgress, TaskReport},
    },
    error::{Error, ErrorKind, Result, panic_text},
    types::{JobId, NodeId},
};

/// How long a cancelled attempt may take to end before it is dropped.
pub(super) const CANCEL_GRACE: Duration = Duration::from_secs(5);

/// A running attempt.
struct Running {
    progress: Arc<Progress>,
    cancel: CancellationToken,
    disowned: bool,
    /// About how many bytes of memory it may take.
    memory: u64,
}

/// A job as it came. It is decoded where its tasks run: a decoder that panics at it ends them, and not the
/// node.
struct Body {
    bytes: Bytes,
    decoded: OnceLock<Result<JobBody>>,
}

impl Body {
    fn new(bytes: Bytes) -> Self {
        let decoded = OnceLock::new();
        Self { bytes, decoded }
    }

    fn read(&self) -> Result<JobBody> {
        let decode = || JobBody::decode(&self.bytes);
        self.decoded.get_or_init(decode).clone()
    }

    /// Runs the task that `assignment` is about.
    async fn run(
        &self,
        assignment: &Assignment,
        runner: &dyn TaskRunner,
        attempt: Attempt,
    ) -> Result<()> {
        let id = assignment.attempt.task;
        match self.read()? {
            JobBody::Compaction(job) => {
                let task = task_of(&job, assignment)?;
                runner.run(job, task, attempt).await
            }
            JobBody::Cleanup(job) if job.task_id() == id => runner.clean(job, attempt).await,
            JobBody::Cleanup(job) => Err(Error::invalid(format!(
                "task {id}: cleanup job {} has the task {} only",
                job.id,
                job.task_id()
            ))),
        }
    }
}

/// The task of `job` that `assignment` is about.
fn task_of(job: &CompactionJob, assignment: &Assignment) -> Result<Task> {
    let id = assignment.attempt.task;
    let cut = assignment.range.clone().map(|range| Task { id, range });
    let Some(task) = cut.or_else(|| job.task(id.index)) else {
        let tasks = job.tasks.len();
        return Err(Error::invalid(format!(
            "task {id}: its job has {tasks} tasks"
        )));
    };
    Ok(task)
}

/// Everything a node holds. Dropping it aborts what runs.
pub(super) struct Held {
    node: NodeId,
    slots: usize,
    /// Bytes of memory for each slot, when all are in use.
    slot_memory: u64,
    runner: Arc<dyn TaskRunner>,
    runtime: Handle,
    running: BTreeMap<AttemptId, Running>,
    finished: BTreeMap<AttemptId, TaskEnd>,
    tasks: JoinSet<Result<()>>,
    /// Tells whose a finished task was, even when it panicked.
    attempts: HashMap<Id, AttemptId>,
    /// The bodies of jobs of which it holds tasks, or has ends to report: meta does not send them again.
    bodies: HashMap<JobId, Arc<Body>>,
    counters: Arc<Counters>,
}

impl Held {
    pub(super) fn new(
        node: NodeId,
        (slots, memory_bytes): (usize, u64),
        runner: Arc<dyn TaskRunner>,
        runtime: Handle,
        counters: Arc<Counters>,
    ) -> Self {
        Self {
            node,
            slots,
            slot_memory: memory_bytes / slots.max(1) as u64,
            runner,
            runtime,
            running: BTreeMap::new(),
            finished: BTreeMap::new(),
            tasks: JoinSet::new(),
            attempts: HashMap::new(),
            bodies: HashMap::new(),
            counters,
        }
    }

    pub(super) fn slots_free(&self) -> usize {
        self.slots.saturating_sub(self.running.len())
    }

    pub(super) fn is_running(&self) -> bool {
        !self.running.is_empty()
    }

    pub(super) fn has_reports(&self) -> bool {
        !self.finished.is_empty()
    }

    pub(super) fn progress(&self) -> Vec<TaskProgress> {
        let owned = self.running.iter().filter(|(_, running)| !running.disowned);
        owned
            .map(|(&attempt, running)| TaskProgress {
                attempt,
                progress: running.progress.steps(),
            })
            .collect()
    }

    pub(super) fn reports(&self) -> Vec<TaskReport> {
        let finished = self.finished.iter();
        finished
            .map(|(&attempt, end)| TaskReport {
                attempt,
                end: end.clone(),
            })
            .collect()
    }

    /// Does what meta says. With `draining` set, what has not begun is handed back.
    pub(super) fn obey(&mut self, reply: &PollReply, draining: bool) {
        for attempt in &reply.acknowledged {
            self.finished.remove(attempt);
        }
        for (attempt, running) in &mut self.running {
            if !running.disowned && !reply.renewed.contains(attempt) {
                debug!(task = %attempt.task, token = %attempt.token, "meta is silent about a task: stopping it");
                running.disowned = true;
                running.cancel.cancel();
            }
        }
        let bodies = reply.jobs.iter().cloned();
        let bodies = bodies.map(|(job, bytes)| (job, Arc::new(Body::new(bytes))));
        self.bodies.extend(bodies);
        for assignment in &reply.assignments {
            let attempt = assignment.attempt;
            if self.running.contains_key(&attempt) || self.finished.contains_key(&attempt) {
                continue;
            }
            let id = attempt.task.job;
            let started = match self.bodies.get(&id).cloned() {
                Some(body) => self.start(body, assignment, draining),
                None => Err(Error::internal(format!("job {id} came without its body"))),
            };
            if let Err(error) = started {
                self.finished.insert(attempt, failed(&error));
            }
        }
        let held = self.running.keys().chain(self.finished.keys());
        let held: HashSet<JobId> = held.map(|attempt| attempt.task.job).collect();
        self.bodies.retain(|job, _| held.contains(job));
    }

    fn start(&mut self, body: Arc<Body>, assignment: &Assignment, draining: bool) -> Result<()> {
        let attempt = assignment.attempt;
        let AttemptId { task, token } = attempt;
        if draining {
            return Err(Error::closed(format!("node {} is draining", self.node)));
        }
        if self.slots_free() == 0 {
            return Err(Error::closed(format!(
                "node {} has no free slot",
                self.node
            )));
        }
        let running = Running {
            progress: Arc::default(),
            cancel: CancellationToken::new(),
            disowned: false,
            memory: assignment.memory,
        };
        let handed = Attempt {
            progress: running.progress.clone(),
            cancel: running.cancel.clone(),
            // What was estimated before the inputs were opened, or a slot's share.
            memory_bytes: Some(assignment.memory.max(self.slot_memory)),
            ..Attempt::new(token, self.node.clone())
        };
        let (runner, cancel) = (self.runner.clone(), running.cancel.clone());
        let assignment = assignment.clone();
        let work = async move {
            tokio::select! {
                biased;
                result = body.run(&assignment, &*runner, handed) => result,
                () = overdue(cancel) => Err(Error::closed("cancelled, and did not end in time")),
            }
        };
        debug!(%task, %token, "task started");
        let handle = self.tasks.spawn_on(work, &self.runtime);
        self.attempts.insert(handle.id(), attempt);
        self.running.insert(attempt, running);
        self.counters.tasks_started.fetch_add(1, Ordering::Relaxed);
        self.count_running();
        Ok(())
    }

    /// Waits until an attempt ends, for ever when none runs. Cancel-safe.
    pub(super) async fn next_end(&mut self) {
        let Some(joined) = self.tasks.join_next_with_id().await else {
            return std::future::pending().await;
        };
        let (id, result) = match joined {
            Ok((id, result)) => (id, result),
            Err(error) => (error.id(), Err(died(error))),
        };
        let Some(attempt) = self.attempts.remove(&id) else {
            return;
        };
        let ran = self.running.remove(&attempt);
        self.count_running();
        let outcome = match &result {
            Ok(()) => "done",
            Err(error) => error.kind().as_str(),
        };
        let progress = ran.as_ref().map(|ran| ran.progress.clone());
        self.counters.ended(outcome, &progress.unwrap_or_default());
        let disowned = ran.is_some_and(|ran| ran.disowned);
        let AttemptId { task, token } = attempt;
        let end = match result {
            Ok(()) => {
                debug!(%task, %token, "task done");
                TaskEnd::Done
            }
            Err(error) if disowned => {
                debug!(%task, %token, %error, "disowned task ended");
                return;
            }
            Err(error) => {
                if error.kind() != ErrorKind::Closed {
                    warn!(%task, %token, %error, "task failed");
                }
                failed(&error)
            }
        };
        self.finished.insert(attempt, end);
    }

    fn count_running(&self) {
        let memory = self.running.values().map(|running| running.memory);
        let memory = memory.fold(0, u64::saturating_add);
        let counters = &self.counters;
        counters.memory_used.store(memory, Ordering::Relaxed);
        let slots = self.running.len() as u64;
        counters.slots_used.store(slots, Ordering::Relaxed);
    }

    /// Stops everything; what is stopped will be reported as handed back.
    pub(super) fn cancel_all(&mut self) {
        self.running
            .values()
            .for_each(|running| running.cancel.cancel());
    }
}

async fn overdue(cancel: CancellationToken) {
    cancel.cancelled().await;
    tokio::time::sleep(CANCEL_GRACE).await;
}

fn failed(error: &Error) -> TaskEnd {
    TaskEnd::Failed {
        kind: error.kind(),
        message: error_text(error),
    }
}

/// Message and sources: the kind travels beside it.
fn error_text(error: &Error) -> String {
    let text = error.to_string();
    let kind = format!("{}: ", error.kind());
    text.strip_prefix(&kind).unwrap_or(&text).to_owned()
}

fn died(error: JoinError) -> Error {
    match error.try_into_panic() {
        Ok(panic) => Error::internal(format!("task panicked: {}", panic_text(panic.as_ref()))),
        Err(_) => Error::closed("task was aborted"),
    }
}
