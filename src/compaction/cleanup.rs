//! Deletion as a task: objects that an engine has found nobody to need, named one by one, and what became of each.
//!
//! 1. Names that are not those of objects of the job's table are refused: a node deletes nothing else.
//! 2. The others are deleted, a bounded number at once. One that is not there counts as deleted.
//! 3. The outcome is written as the task's result. The first one counts, whoever wrote it: an object that it
//!    confirms is gone for good, since names are never given twice; one that it does not is tried again in another
//!    job.
//!
//! Attempts may run twice, side by side, and long after the job was made: see the head of `gc`.

use bytes::Bytes;
use futures::{StreamExt, stream};

use super::{Attempt, codec};
use crate::{
    error::{Error, ErrorKind, Result},
    store::{Store, layout},
    types::{Deletion, JobId, NodeId, TableId, TaskId, Token},
};

/// Objects that one job names at most.
pub const NAMES_MAX: usize = 1_000;
/// Objects that one request deletes at most; between requests the attempt's progress moves.
const REQUEST_NAMES_MAX: usize = 100;
/// Requests under way at once.
const REQUESTS_MAX: usize = 4;
/// Length in characters up to which the reason of a failure is kept.
const MESSAGE_MAX: usize = 500;

/// Objects of one table that are to be deleted. A job of one task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CleanupJob {
    /// Its id; no manifest records it.
    pub id: JobId,
    /// The table in whose folder the objects are.
    pub table: TableId,
    /// URL of the root that holds them.
    pub store_url: String,
    /// Their names, relative to the root.
    pub names: Vec<String>,
}

impl CleanupJob {
    /// Id of its only task.
    pub fn task_id(&self) -> TaskId {
        TaskId {
            job: self.id,
            index: 0,
        }
    }

    /// The job as bytes for the wire.
    pub fn encode(&self) -> Bytes {
        codec::encode_cleanup(self)
    }

    /// Whether `bytes` are those of a job of this kind, whole or not.
    pub fn is_in(bytes: &Bytes) -> bool {
        codec::is_cleanup(bytes)
    }

    /// The job in `bytes`.
    ///
    /// # Errors
    /// `Corrupt` when they are not one, or damaged.
    pub fn decode(bytes: &Bytes) -> Result<Self> {
        codec::decode_cleanup(bytes)
    }

    fn result(&self) -> String {
        layout::result(self.table, self.task_id(), 0)
    }
}

/// An object that is not known to be gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unconfirmed {
    /// Its position among the names of the job.
    pub index: u32,
    /// What went wrong.
    pub kind: ErrorKind,
    /// In words.
    pub message: String,
}

/// How an attempt at a cleanup job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CleanupOutcome {
    /// The job's task.
    pub task: TaskId,
    /// The attempt.
    pub token: Token,
    /// Who made it.
    pub node: NodeId,
    /// Objects that the job names.
    pub objects: u64,
    /// Those that are not known to be gone. All others are.
    pub unconfirmed: Vec<Unconfirmed>,
}

impl CleanupOutcome {
    /// The outcome as a result object.
    pub fn encode(&self) -> Bytes {
        codec::encode_cleaned(self)
    }

    /// The outcome in `bytes`, the object `name`.
    ///
    /// # Errors
    /// `Corrupt`, naming the object.
    pub fn decode(name: &str, bytes: &Bytes) -> Result<Self> {
        codec::decode_cleaned(name, bytes)
    }

    /// What became of each object of `job`, in the order of its names.
    ///
    /// # Errors
    /// `Corrupt` when it is not an outcome of `job`.
    pub fn deletions(&self, job: &CleanupJob) -> Result<Vec<Deletion>> {
        let objects = job.names.len();
        if self.task != job.task_id() || self.objects != objects as u64 {
            let (task, tried) = (self.task, self.objects);
            return Err(Error::corrupt(format!(
                "result {} is of task {task} and {tried} objects; the job names {objects}",
                job.result()
            )));
        }
        let mut deletions = vec![Deletion::Confirmed; objects];
        for Unconfirmed {
            index,
            kind,
            message,
        } in &self.unconfirmed
        {
            let Some(deletion) = deletions.get_mut(*index as usize) else {
                return Err(Error::corrupt(format!(
                    "result {} names object {index} of {objects}",
                    job.result()
                )));
            };
            let node = &self.node;
            *deletion = Deletion::Failed(Error::new(*kind, format!("node {node}: {message}")));
        }
        Ok(deletions)
    }
}

/// Deletes what `job` names, and writes what became of it as the result of its task. `store` is the root at
/// `job.store_url`. That single objects cannot be deleted is no error.
///
/// # Errors
/// `Closed` when cancelled; `Unavailable` when the result cannot be written.
pub async fn clean(job: &CleanupJob, attempt: &Attempt, store: &Store) -> Result<()> {
    let cleaning = async {
        let outcome = CleanupOutcome {
            task: job.task_id(),
            token: attempt.token,
            node: attempt.node.clone(),
            objects: job.names.len() as u64,
            unconfirmed: delete(job, attempt, store).await,
        };
        write(job, &outcome, store).await
    };
    let ended = tokio::select! {
        biased;
        ended = cleaning => ended,
        () = attempt.cancel.cancelled() => Err(Error::closed("it was cancelled")),
    };
    ended.map_err(|error| error.context(format!("task {}", job.task_id())))
}

/// Deletes what `job` names; returns what is not known to be gone, in the order of its names.
async fn delete(job: &CleanupJob, attempt: &Attempt, store: &Store) -> Vec<Unconfirmed> {
    let mut unconfirmed = Vec::new();
    let mut deletable = Vec::new();
    for (index, name) in (0..).zip(&job.names) {
        match check_name(job.table, name) {
            Ok(()) => deletable.push((index, name.clone())),
            Err(error) => unconfirmed.push(unconfirmed_at(index, &error)),
        }
    }
    attempt.progress.add_kept(unconfirmed.len() as u64);
    let chunks = deletable.chunks(REQUEST_NAMES_MAX);
    let chunks: Vec<Vec<(u32, String)>> = chunks.map(<[_]>::to_vec).collect();
    let requests = chunks
        .into_iter()
        .map(|chunk| delete_together(chunk, attempt, store));
    let mut requests = stream::iter(requests).buffered(REQUESTS_MAX);
    while let Some(failed) = requests.next().await {
        unconfirmed.extend(failed);
    }
    unconfirmed.sort_by_key(|unconfirmed| unconfirmed.index);
    unconfirmed
}

/// Deletes `objects`, which are given with their positions; returns those that are not known to be gone.
async fn delete_together(
    objects: Vec<(u32, String)>,
    attempt: &Attempt,
    store: &Store,
) -> Vec<Unconfirmed> {
    let (indexes, names): (Vec<u32>, Vec<String>) = objects.into_iter().unzip();
    let ended = indexes.into_iter().zip(store.delete_all(&names).await);
    let failed = ended.filter_map(|(index, ended)| {
        let error = ended.err()?;
        Some(unconfirmed_at(index, &error))
    });
    let failed: Vec<Unconfirmed> = failed.collect();
    let (tried, kept) = (names.len() as u64, failed.len() as u64);
    attempt.progress.add_deleted(tried - kept);
    attempt.progress.add_kept(kept);
    failed
}

/// # Errors
/// `Invalid`, naming it, when `name` is not one that this version of Siltstone gives to an object of `table`.
fn check_name(table: TableId, name: &str) -> Result<()> {
    match layout::parse(name).and_then(|object| object.table()) {
        Some(of) if of == table => Ok(()),
        _ => Err(Error::invalid(format!(
            "{name:?} is not the name of an object of table {table}: it was not deleted"
        ))),
    }
}

fn unconfirmed_at(index: u32, error: &Error) -> Unconfirmed {
    let text = error.to_string();
    let kind = format!("{}: ", error.kind());
    let text = text.strip_prefix(&kind).unwrap_or(&text);
    Unconfirmed {
        index,
        kind: error.kind(),
        message: text.chars().take(MESSAGE_MAX).collect(),
    }
}

/// Writes the result of `job`, unless there is one.
async fn write(job: &CleanupJob, outcome: &CleanupOutcome, store: &Store) -> Result<()> {
    let name = job.result();
    let Err(error) = store.create(&name, outcome.encode()).await else {
        return Ok(());
    };
    // An answer that was lost may have been that it is ours.
    match store.size(&name).await? {
        Some(_) => Ok(()),
        None => Err(error),
    }
}

/// The result of `job`, when there is one.
///
/// # Errors
/// `Corrupt`, naming the object; `Unavailable`.
pub async fn read_result(store: &Store, job: &CleanupJob) -> Result<Option<Vec<Deletion>>> {
    let name = job.result();
    match store.get(&name).await {
        Ok(bytes) => {
            let outcome = CleanupOutcome::decode(&name, &bytes)?;
            outcome.deletions(job).map(Some)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Deletes the result of `job`. If that fails a sweep finds it: no manifest records the job.
///
/// # Errors
/// `Unavailable`.
pub async fn delete_result(store: &Store, job: &CleanupJob) -> Result<()> {
    store.delete(&job.result()).await
}

#[cfg(test)]
mod tests;
