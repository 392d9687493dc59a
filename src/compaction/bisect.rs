//! Cuts what is left of a task in two: of one that was too large for an attempt's memory, or for its time.
//!
//! Only the engine does this, through whichever compactor drives the job. The split takes the place of the next part
//! of the task's result. When an attempt that still runs was faster, its part counts, and what is left after it is
//! cut.

use futures::{StreamExt, TryStreamExt, stream};

use super::{
    JobProgress, TaskChain, TaskPart, results,
    split::{Stretch, bisect},
};
use crate::{
    error::{Error, Result},
    sst::{SstAccess, SstReader},
    store::Store,
    types::KeyRange,
};

/// Inputs opened at once.
const OPENS_MAX: usize = 16;

/// Splits the rest of the task at `index` into two tasks of about equal bytes; returns `progress` with that, and
/// with the parts that were found. Splits nothing when nothing is left of the task, or when it cannot be cut but more
/// parts were found: then another attempt gets further. `reason` is why.
///
/// # Errors
/// `TooLarge` when it cannot be cut and no attempt gets further; `Corrupt` or `NotFound` name the input or the result; `Unavailable`.
pub(super) async fn bisect_rest(
    store: &Store,
    progress: &JobProgress,
    index: u32,
    reason: &Error,
) -> Result<JobProgress> {
    let mut progress = progress.clone();
    let table = progress.job().table;
    let parts = |progress: &JobProgress| progress.chain(index).map(TaskChain::next_part);
    let known = parts(&progress);
    loop {
        results::extend(store, &mut progress, index).await?;
        let Some(rest) = progress.chain(index).and_then(TaskChain::rest) else {
            return Ok(progress);
        };
        let cut = bisect(stretches(store, &progress, &rest).await?, &rest);
        let why_not = match &cut {
            None => "is one stretch of its inputs",
            Some(_) => "is what as many cuts as can be numbered have left",
        };
        let split = cut.and_then(|cut| progress.split(index, cut));
        let Some(split) = split else {
            if parts(&progress) > known {
                return Ok(progress);
            }
            let task = progress.job().task_id(index);
            return Err(Error::too_large(format!(
                "task {task} cannot be cut any more, {rest:?} {why_not}: {}",
                reason.message()
            )));
        };
        let [left, right] = [0, 1].map(|child| split.children.get(child).map(|child| child.id));
        tracing::info!(task = %split.task, ?left, ?right, %reason, "compaction task is split");
        let first = results::write_part(store, table, TaskPart::Split(split)).await?;
        progress.add(first)?;
    }
}

/// The blocks of the inputs that overlap `range`.
async fn stretches(
    store: &Store,
    progress: &JobProgress,
    range: &KeyRange,
) -> Result<Vec<Stretch>> {
    let job = progress.job();
    let access = SstAccess::by_pages(store, Default::default());
    let inputs: Vec<_> = job.inputs_in(range).cloned().collect();
    let readers = stream::iter(inputs)
        .map(|sst| SstReader::open(&access, &job.schema, job.table, sst))
        .buffered(OPENS_MAX);
    let readers: Vec<SstReader> = readers.try_collect().await?;
    Ok(readers.iter().flat_map(stretches_of).collect())
}

fn stretches_of(sst: &SstReader) -> Vec<Stretch> {
    let groups = sst.row_group_bounds();
    let blocks = sst.blocks().into_iter().map(|block| {
        let group = &groups[block.row_group];
        Stretch {
            bytes: group.bytes * block.rows / group.rows.max(1),
            first_key: block.first_key,
        }
    });
    blocks.collect()
}
