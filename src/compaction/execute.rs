//! Runs one task of a job, the same way in the engine and on a node.
//!
//! 1. A task whose result exists is done.
//! 2. The inputs that overlap the task's range are opened; a missing one fails the task.
//! 3. On a blocking thread they are merged, and the survivors written as SSTs of about the target size,
//!    each streamed to the store while it is encoded. Sources of a run are chained, not merged.
//! 4. The outcome becomes the task's result object. If another attempt's was first, what ours wrote is
//!    deleted.
//!
//! An attempt whose merge fails deletes what it wrote. One that dies, or that does not learn whether its
//! result was written, leaves its outputs: their names tell whose they are.

use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering},
};

use futures::{StreamExt, TryStreamExt, stream};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use super::{CompactionJob, RowSum, TaskOutcome, results};
use crate::{
    clock::Env,
    error::{Error, Result},
    merge::{Merge, MergeColumns, MergeOptions, SortedSource},
    sst::{ReadRequest, RunHooks, SstAccess, SstOptions, SstReader, SstSource, SstSpec, write_run},
    store::{Store, layout},
    types::{NodeId, SstId, SstMeta, TaskId, Token},
};

/// Inputs opened at once.
const OPENS_MAX: usize = 16;
const BATCH_ROWS: usize = 8_192;

/// One attempt at a task.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// Orders the attempts; goes into the names of the outputs.
    pub token: Token,
    /// Who runs it.
    pub node: NodeId,
    /// Advanced by the merging thread as it goes.
    pub progress: Arc<Progress>,
    /// Stops the attempt.
    pub cancel: CancellationToken,
}

/// How far an attempt has come. A task whose counter stands still hangs.
#[derive(Debug, Default)]
pub struct Progress {
    rows: AtomicU64,
}

impl Progress {
    /// Rows merged so far.
    pub fn rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }

    /// Counts `rows` more rows as merged.
    pub fn add_rows(&self, rows: u64) {
        self.rows.fetch_add(rows, Ordering::Relaxed);
    }
}

/// Runs the task at `index` of `job` and writes its result object; returns the result that counts, which
/// is another attempt's when that one was faster. CPU work runs on a blocking thread. A cancelled attempt
/// ends when that thread has stopped, at its next batch.
///
/// `store` is the root at `job.store_url`.
///
/// # Errors
/// `Closed` when cancelled; `Corrupt` or `NotFound` name the input; `Invalid` when the job has no such
/// task; `Unavailable`.
pub async fn execute(
    job: &Arc<CompactionJob>,
    index: u32,
    attempt: Attempt,
    store: &Store,
    env: &Env,
) -> Result<TaskOutcome> {
    let task = job.task_id(index);
    if index as usize >= job.tasks.len() {
        let tasks = job.tasks.len();
        return Err(Error::invalid(format!(
            "there is no task {task}: its job has {tasks}"
        )));
    }
    let started = env.monotonic();
    // When this future is dropped, the merging thread stops at its next batch.
    let cancel = attempt.cancel.child_token();
    let _stop = cancel.clone().drop_guard();
    let run = Arc::new(Run {
        job: job.clone(),
        task,
        attempt: Attempt {
            cancel: cancel.clone(),
            ..attempt
        },
        store: store.clone(),
        access: SstAccess::by_chunks(store),
        written: Mutex::default(),
    });
    let opened = tokio::select! {
        opened = run.open_inputs() => opened,
        () = cancel.cancelled() => return Err(cancelled(task)),
    };
    let inputs = match opened.map_err(|error| error.context(format!("task {task}")))? {
        Opened::Done(outcome) => return Ok(*outcome),
        Opened::Inputs(inputs) => inputs,
    };
    let merging = run.clone();
    let merged = tokio::task::spawn_blocking(move || merging.merge(&inputs)).await;
    let merged =
        merged.unwrap_or_else(|error| Err(Error::internal("merge panicked").with_source(error)));
    let mut outcome = match merged {
        Ok(outcome) => outcome,
        Err(error) => {
            // No result names them: the attempt ends here.
            run.delete_outputs().await;
            return Err(error.context(format!("task {task}")));
        }
    };
    outcome.elapsed_ms = (env.monotonic() - started).as_millis() as u64;
    // From here on a result may name the outputs, whatever the store answers.
    let outcome = results::write_result(store, job, outcome).await?;
    if outcome.token != run.attempt.token {
        run.delete_outputs().await;
    }
    Ok(outcome)
}

fn cancelled(task: TaskId) -> Error {
    Error::closed(format!("task {task} was cancelled"))
}

/// What a task finds when it begins.
enum Opened {
    /// Its result.
    Done(Box<TaskOutcome>),
    Inputs(Vec<SstReader>),
}

/// One attempt under way.
struct Run {
    job: Arc<CompactionJob>,
    task: TaskId,
    attempt: Attempt,
    store: Store,
    access: SstAccess,
    /// The SSTs it has finished so far.
    written: Mutex<Vec<SstMeta>>,
}

impl Run {
    async fn open_inputs(&self) -> Result<Opened> {
        let (job, index) = (&self.job, self.task.index);
        if let Some(outcome) = results::read_result(&self.store, job, index).await? {
            return Ok(Opened::Done(Box::new(outcome)));
        }
        let inputs = stream::iter(job.inputs_of(index).cloned())
            .map(|sst| SstReader::open(&self.access, &job.schema, job.table, sst))
            .buffered(OPENS_MAX);
        Ok(Opened::Inputs(inputs.try_collect().await?))
    }

    /// Merges `inputs` into outputs. Blocks.
    fn merge(&self, inputs: &[SstReader]) -> Result<TaskOutcome> {
        let (job, task, token) = (&self.job, self.task, self.attempt.token);
        let handle = Handle::current();
        let request = ReadRequest {
            keys: job.tasks[task.index as usize].clone(),
            batch_rows: BATCH_ROWS,
            ..ReadRequest::default()
        };
        let sources = inputs.iter().map(|sst| {
            let source = sst.source(&request, handle.clone())?;
            Ok(watched(source, &self.attempt, task))
        });
        let columns = MergeColumns::find(&job.schema, job.schema.stored())?;
        let options = MergeOptions::retained(job.schema.write_mode(), job.retention.clone());
        let mut merge = Merge::new(sources.collect::<Result<_>>()?, columns, options);
        let hooks = RunHooks {
            id_of: &mut |part| SstId::Compacted { task, token, part },
            progress: &mut |_| {},
            finished: &mut |sst| self.written().push(sst.clone()),
            cancelled: &|| self.attempt.cancel.is_cancelled(),
        };
        let outputs = write_run(&self.store, &handle, &self.output_spec(), &mut merge, hooks)?;
        let stats = merge.stats();
        Ok(TaskOutcome {
            task,
            token,
            node: self.attempt.node.clone(),
            written: outputs
                .iter()
                .map(|sst| RowSum::new(sst.rows, sst.rows_hash))
                .sum(),
            outputs,
            read: stats.read,
            shadowed: stats.shadowed,
            deleted: stats.deleted,
            combined: stats.combined,
            expired: stats.expired,
            range_deleted: stats.range_deleted,
            bytes_read: self.access.stats().bytes(),
            elapsed_ms: 0,
        })
    }

    fn output_spec(&self) -> SstSpec {
        let job = &self.job;
        SstSpec {
            schema: job.schema.clone(),
            table: job.table,
            level: job.level_target,
            window: job.window,
            applied_seq: job.retention.applied_seq(),
            options: SstOptions {
                sst_bytes_target: job.sst_bytes_target,
                ..SstOptions::default()
            },
        }
    }

    /// Deletes what was written. Only for when no result can name it.
    async fn delete_outputs(&self) {
        let written = std::mem::take(&mut *self.written());
        for sst in written {
            let name = layout::sst(self.job.table, sst.id);
            if let Err(error) = self.store.delete(&name).await {
                tracing::warn!(name, %error, "output of a lost attempt was not deleted");
            }
        }
    }

    fn written(&self) -> MutexGuard<'_, Vec<SstMeta>> {
        self.written.lock().expect("no panic under this lock")
    }
}

/// `source`, counting its rows as progress, and ending when the attempt is cancelled: both also where
/// every row is dropped and nothing is written.
fn watched(source: SstSource, attempt: &Attempt, task: TaskId) -> SortedSource {
    let (progress, cancel) = (attempt.progress.clone(), attempt.cancel.clone());
    Box::new(source.map(move |batch| {
        if cancel.is_cancelled() {
            return Err(cancelled(task));
        }
        let batch = batch?;
        progress.add_rows(batch.num_rows() as u64);
        Ok(batch)
    }))
}
