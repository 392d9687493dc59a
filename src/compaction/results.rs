//! Results in the store: each part is an object, and the first one written at its position is final, whoever
//! wrote it.

use std::sync::Arc;

use futures::{StreamExt, TryStreamExt, stream};

use super::{CompactionJob, JobProgress, Share, TaskChain, TaskPart};
use crate::{
    error::{Error, ErrorKind, Result},
    store::{
        Created, Store,
        layout::{self, ObjectName},
    },
    types::{JobId, TableId, TaskId},
};

const READS_MAX: usize = 16;

/// Part `part` of the result of `task`, when there is one.
///
/// # Errors
/// `Corrupt`, naming the object, when it is damaged or another one's; `Unavailable`.
pub async fn read_part(
    store: &Store,
    table: TableId,
    task: TaskId,
    part: u32,
) -> Result<Option<TaskPart>> {
    let name = layout::result(table, task, part);
    let bytes = match store.get(&name).await {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let read = TaskPart::decode(&name, &bytes)?;
    if (read.task(), read.part()) != (task, part) {
        let (task, part) = (read.task(), read.part());
        return Err(Error::corrupt(format!(
            "result {name} is part {part} of task {task}"
        )));
    }
    Ok(Some(read))
}

/// Reads the parts that follow those of `chain`.
///
/// # Errors
/// As for [`read_part`]; `Corrupt` when a part does not fit.
pub async fn extend_chain(store: &Store, table: TableId, chain: &mut TaskChain) -> Result<()> {
    while chain.rest().is_some() {
        let (task, part) = (chain.task().id, chain.next_part());
        match read_part(store, table, task, part).await? {
            Some(read) => chain
                .add(read)
                .map_err(|error| error.context(layout::result(table, task, part)))?,
            None => return Ok(()),
        }
    }
    Ok(())
}

/// All that is written of the results of `job`.
///
/// # Errors
/// As for [`extend_chain`].
pub async fn load(store: &Store, job: &Arc<CompactionJob>) -> Result<JobProgress> {
    load_share(store, job, &Share::ALL).await
}

/// All that is written of the results of `job`, of which the tasks of `share` are asked for.
///
/// # Errors
/// As for [`extend_chain`].
pub async fn load_share(
    store: &Store,
    job: &Arc<CompactionJob>,
    share: &Share,
) -> Result<JobProgress> {
    let mut progress = JobProgress::of_share(job.clone(), share.clone());
    let listed = store.list(&layout::results(job.table, job.id)).await?;
    let mut names: Vec<(TaskId, u32)> = listed
        .iter()
        .filter_map(|object| match layout::parse(&object.name) {
            Some(ObjectName::Result(_, task, part)) => Some((task, part)),
            _ => None,
        })
        .collect();
    // Children have greater indexes than their parents: whoever names a task comes before it.
    names.sort_unstable();
    let parts = stream::iter(names)
        .map(|(task, part)| read_part(store, job.table, task, part))
        .buffered(READS_MAX);
    let parts: Vec<Option<TaskPart>> = parts.try_collect().await?;
    for part in parts.into_iter().flatten() {
        add(&mut progress, part)?;
    }
    Ok(progress)
}

/// Reads the parts that follow those that are known of the task at `index`.
///
/// # Errors
/// As for [`extend_chain`].
pub async fn extend(store: &Store, progress: &mut JobProgress, index: u32) -> Result<()> {
    let table = progress.job().table;
    while let Some(chain) = progress.chain(index).filter(|chain| chain.rest().is_some()) {
        let (task, part) = (chain.task().id, chain.next_part());
        match read_part(store, table, task, part).await? {
            Some(part) => add(progress, part)?,
            None => return Ok(()),
        };
    }
    Ok(())
}

fn add(progress: &mut JobProgress, part: TaskPart) -> Result<bool> {
    let name = layout::result(progress.job().table, part.task(), part.part());
    progress.add(part).map_err(|error| error.context(name))
}

/// Writes `part`, unless there is one at its position; returns the one that counts.
///
/// # Errors
/// `Unavailable` leaves open whether it was written.
pub async fn write_part(store: &Store, table: TableId, part: TaskPart) -> Result<TaskPart> {
    let (task, number) = (part.task(), part.part());
    let name = layout::result(table, task, number);
    let created = store.create(&name, part.encode()).await;
    if let Ok(Created::New) = created {
        return Ok(part);
    }
    // An answer that was lost may have been that it is ours.
    match (read_part(store, table, task, number).await?, created) {
        (Some(first), _) => Ok(first),
        (None, Err(error)) => Err(error),
        (None, Ok(_)) => Err(Error::unavailable(format!(
            "result {name} exists, but cannot be read"
        ))),
    }
}

/// Deletes the results of a job that has ended. Those of a running job are its memory: never call this
/// before the job has left the manifest.
pub async fn delete_results(store: &Store, table: TableId, job: JobId) -> Result<()> {
    let objects = store.list(&layout::results(table, job)).await?;
    let names: Vec<String> = objects.into_iter().map(|object| object.name).collect();
    store.delete_all(&names).await.into_iter().collect()
}
