//! Result objects: the first valid result of a task is its result, whoever wrote it.

use futures::{StreamExt, TryStreamExt, stream};

use super::{CompactionJob, TaskOutcome};
use crate::{
    error::{Error, ErrorKind, Result},
    store::{Created, Store, layout},
    types::{JobId, TableId},
};

const READS_MAX: usize = 16;

/// The result of the task at `index`, when there is one.
///
/// # Errors
/// `Corrupt`, naming the object, when it is damaged or another task's.
pub async fn read_result(
    store: &Store,
    job: &CompactionJob,
    index: u32,
) -> Result<Option<TaskOutcome>> {
    let task = job.task_id(index);
    let name = layout::result(job.table, task);
    let bytes = match store.get(&name).await {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let outcome = TaskOutcome::decode(&name, &bytes)?;
    if outcome.task != task {
        return Err(Error::corrupt(format!(
            "result {name} is of task {}",
            outcome.task
        )));
    }
    Ok(Some(outcome))
}

/// The results of all tasks of `job` that have one, by task index.
///
/// # Errors
/// As for [`read_result`].
pub async fn read_results(store: &Store, job: &CompactionJob) -> Result<Vec<Option<TaskOutcome>>> {
    let written = store.list(&layout::results(job.table, job.id)).await?;
    if written.is_empty() {
        return Ok(vec![None; job.tasks.len()]);
    }
    stream::iter(0..job.tasks.len() as u32)
        .map(|index| read_result(store, job, index))
        .buffered(READS_MAX)
        .try_collect()
        .await
}

/// Makes `outcome` the result of its task, unless there is one; returns the result that counts.
pub async fn write_result(
    store: &Store,
    job: &CompactionJob,
    outcome: TaskOutcome,
) -> Result<TaskOutcome> {
    let name = layout::result(job.table, outcome.task);
    match store.create(&name, outcome.encode()).await? {
        Created::New => Ok(outcome),
        Created::Exists => {
            let first = read_result(store, job, outcome.task.index).await?;
            first.ok_or_else(|| {
                Error::unavailable(format!("result {name} exists, but cannot be read"))
            })
        }
    }
}

/// Deletes the results of a job that has ended. Those of a running job are its memory: never call this
/// before the job has left the manifest.
pub async fn delete_results(store: &Store, table: TableId, job: JobId) -> Result<()> {
    let objects = store.list(&layout::results(table, job)).await?;
    let names: Vec<String> = objects.into_iter().map(|object| object.name).collect();
    store.delete_all(&names).await.into_iter().collect()
}
