//! The proof that a job lost nothing and made nothing up. Checked by the engine before it commits; a job
//! that fails it changes nothing.
//!
//! Clauses, by the names that errors carry:
//! * `tasks`: the outcomes are those of the job's tasks, and of what these were split into; each begins where the
//!   one before ends, and together they cover every key once, in order;
//! * `inputs`: the rows that were read are exactly the inputs' rows;
//! * `balance`: of each outcome, rows read = written + dropped, in number and in hash;
//! * `retention`: nothing was dropped that the job does not allow to be dropped;
//! * `outputs`: what the outputs hold is what was written;
//! * `attempt`: outputs are named after the attempt, in sequence;
//! * `place`: outputs have the job's level and window, lie in its table's folder and inside the keys of their outcome,
//!   sorted and disjoint;
//! * `present`: the store has each output, and its footer says of it what the outcome says;
//! * `versions`: where a key's newest row hides the others from everybody, an output has no key twice.

use std::{collections::HashMap, fmt, sync::Arc};

use super::{CompactionJob, CompactionOutcome, JobProgress, RowSum, TaskOutcome, TaskPart};
use crate::{
    error::{Error, Result},
    types::{KeyRange, SstId, SstMeta, TaskId, Token, WriteMode},
};

/// Checks every clause but those about the objects, `present` and `versions`.
///
/// # Errors
/// `Internal`, naming job, task and clause.
pub fn prove(job: &Arc<CompactionJob>, outcome: &CompactionOutcome) -> Result<()> {
    prove_tasks(job, outcome)?;
    let mut named = HashMap::new();
    for part in &outcome.parts {
        prove_part(job, part)?;
        prove_names(job, part, &mut named)?;
    }
    let inputs: RowSum = job
        .inputs
        .iter()
        .map(|sst| RowSum::new(sst.rows, sst.rows_hash))
        .sum();
    let read: RowSum = outcome.parts.iter().map(|part| part.read).sum();
    if inputs != read {
        return refuse(
            job,
            "inputs",
            format!("inputs are {inputs:?}, read was {read:?}"),
        );
    }
    Ok(())
}

/// Puts the outcomes together anew, as a compactor does that finds them in the store.
fn prove_tasks(job: &Arc<CompactionJob>, outcome: &CompactionOutcome) -> Result<()> {
    let outcomes = outcome.parts.iter().cloned().map(TaskPart::Outcome);
    let splits = outcome.splits.iter().cloned().map(TaskPart::Split);
    let mut parts: Vec<TaskPart> = outcomes.chain(splits).collect();
    parts.sort_by_key(|part| (part.task(), part.part()));
    let mut progress = JobProgress::new(job.clone());
    for part in parts {
        let (task, number) = (part.task(), part.part());
        match progress.add(part) {
            Ok(true) => {}
            Ok(false) => {
                let what = format!("part {number} of task {task} has no place");
                return refuse(job, "tasks", what);
            }
            Err(error) => return refuse(job, "tasks", error.message().to_owned()),
        }
    }
    if let Some(task) = progress.missing().next() {
        return refuse(job, "tasks", format!("task {} is not complete", task.id));
    }
    let mut start = None;
    for part in &outcome.parts {
        if part.range.start != start {
            let (task, range) = (part.task, &part.range);
            let what = format!("task {task}: {range:?} does not follow what is before");
            return refuse(job, "tasks", what);
        }
        start = part.range.end.clone();
    }
    Ok(())
}

fn prove_part(job: &CompactionJob, part: &TaskOutcome) -> Result<()> {
    let id = part.task;
    let accounted: RowSum = [part.written, part.dropped()].into_iter().sum();
    if accounted != part.read {
        return refuse(
            job,
            "balance",
            format!(
                "task {id}: read {:?}, accounted for {accounted:?}",
                part.read
            ),
        );
    }
    let retention = &job.retention;
    for (what, allowed, dropped) in [
        ("tombstones", retention.drop_tombstones, part.deleted),
        ("expired rows", retention.expiry.is_some(), part.expired),
        (
            "range-deleted rows",
            !retention.range_deletes.is_empty(),
            part.range_deleted,
        ),
        // Not by today's operators: a task may have run before one was dropped with its column.
        (
            "combined rows",
            job.schema.write_mode() == WriteMode::Upsert,
            part.combined,
        ),
    ] {
        if !allowed && dropped.rows > 0 {
            return refuse(
                job,
                "retention",
                format!("task {id}: dropped {} {what}", dropped.rows),
            );
        }
    }
    let outputs: RowSum = part
        .outputs
        .iter()
        .map(|sst| RowSum::new(sst.rows, sst.rows_hash))
        .sum();
    if outputs != part.written {
        return refuse(
            job,
            "outputs",
            format!(
                "task {id}: wrote {:?}, outputs hold {outputs:?}",
                part.written
            ),
        );
    }
    let outside = |sst: &&SstMeta| !is_in_place(job, &part.range, sst);
    if let Some(sst) = part.outputs.iter().find(outside) {
        let what = format!("task {id}: output {} is out of place", sst.id);
        return refuse(job, "place", what);
    }
    let overlap = part
        .outputs
        .windows(2)
        .find(|pair| pair[0].key_max >= pair[1].key_min);
    if let Some(pair) = overlap {
        return refuse(
            job,
            "place",
            format!("task {id}: {} reaches into {}", pair[0].id, pair[1].id),
        );
    }
    Ok(())
}

/// Checks the names of a part's outputs; `named` has the last one of each attempt so far.
fn prove_names(
    job: &CompactionJob,
    part: &TaskOutcome,
    named: &mut HashMap<(TaskId, Token), u32>,
) -> Result<()> {
    for sst in &part.outputs {
        let attempt = (part.task, part.token);
        let number = match sst.id {
            SstId::Compacted { task, token, part } if (task, token) == attempt => Some(part),
            _ => None,
        };
        let last = named.get(&attempt).copied();
        let Some(number) = number.filter(|number| last.is_none_or(|last| last < *number)) else {
            let (id, task, token) = (sst.id, part.task, part.token);
            let what = format!("task {task}: output {id} is not the next of attempt {token}");
            return refuse(job, "attempt", what);
        };
        named.insert(attempt, number);
    }
    Ok(())
}

fn is_in_place(job: &CompactionJob, range: &KeyRange, sst: &SstMeta) -> bool {
    let retention = &job.retention;
    let seqs_fit = {
        let min = job.inputs.iter().map(|input| input.seq_min).min();
        let max = job.inputs.iter().map(|input| input.seq_max).max();
        min.is_some_and(|min| min <= sst.seq_min) && max.is_some_and(|max| sst.seq_max <= max)
    };
    let may_hide_own = job.schema.write_mode() == WriteMode::Append || job.schema.combines();
    let tombstones_fit = may_hide_own
        || !retention.drop_tombstones
        || !retention.read_points.is_empty()
        || sst.tombstones == 0;
    let times_fit = match (retention.expiry, sst.times) {
        (Some(expiry), Some((min, _))) => min >= expiry,
        _ => true,
    };
    sst.level == job.level_target
        && sst.window == job.window
        && sst.home.is_none()
        && sst.key_min <= sst.key_max
        && range.contains(&sst.key_min.0)
        && range.contains(&sst.key_max.0)
        && seqs_fit
        && tombstones_fit
        && times_fit
        && sst.applied_seq == retention.applied_seq()
}

/// The clauses `present` and `versions` of an output, given how opening it ended: whether it has each key once.
///
/// # Errors
/// `Internal`, naming job, output and clause.
pub fn prove_object(job: &CompactionJob, sst: &SstMeta, opened: Result<bool>) -> Result<()> {
    let keys_are_unique = match opened {
        Ok(unique) => unique,
        Err(error) => {
            let what = format!("output {}: {error}", sst.id);
            return refuse(job, "present", what);
        }
    };
    let newest_hides = job.schema.write_mode() == WriteMode::Upsert && !job.schema.combines();
    if newest_hides && job.retention.read_points.is_empty() && !keys_are_unique {
        let what = format!("output {} has a key more than once", sst.id);
        return refuse(job, "versions", what);
    }
    Ok(())
}

fn refuse(job: &CompactionJob, clause: &'static str, what: String) -> Result<()> {
    let refused = format!("job {}: proof refused", job.id);
    Err(Error::internal(refused).with_source(Refusal { clause, what }))
}

/// A clause that fails.
#[derive(Debug)]
struct Refusal {
    clause: &'static str,
    what: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "proof clause {} fails: {}", self.clause, self.what)
    }
}

impl std::error::Error for Refusal {}

/// The clause by which a proof refused, when `error` is that.
pub fn refused_clause(error: &Error) -> Option<&'static str> {
    let source = std::error::Error::source(error)?;
    let refusal = source.downcast_ref::<Refusal>()?;
    Some(refusal.clause)
}
