//! The proof that a job lost nothing and made nothing up. Checked by the engine before it commits; a job
//! that fails it changes nothing.
//!
//! Clauses, by the names that errors carry:
//! * `tasks`: there is one outcome for each task, in order;
//! * `inputs`: the rows that the tasks read are exactly the inputs' rows;
//! * `balance`: of each task, rows read = written + dropped, in number and in hash;
//! * `retention`: nothing was dropped that the job does not allow to be dropped;
//! * `outputs`: what the outputs hold is what was written;
//! * `attempt`: outputs are named after the attempt, in sequence;
//! * `place`: outputs have the job's level and window, lie in its table's folder and inside the task's range, sorted
//!   and disjoint;
//! * `present`: the store has each output, in full.

use super::{CompactionJob, CompactionOutcome, RowSum, TaskOutcome};
use crate::{
    error::{Error, Result},
    types::{KeyRange, SstId, SstMeta, WriteMode},
};

/// Checks every clause but `present`.
///
/// # Errors
/// `Internal`, naming job, task and clause.
pub fn prove(job: &CompactionJob, outcome: &CompactionOutcome) -> Result<()> {
    if outcome.tasks.len() != job.tasks.len() {
        let (found, wanted) = (outcome.tasks.len(), job.tasks.len());
        return refuse(job, "tasks", format!("{found} outcomes for {wanted} tasks"));
    }
    for (id, (range, task)) in job.task_ids().zip(job.tasks.iter().zip(&outcome.tasks)) {
        if task.task != id {
            return refuse(
                job,
                "tasks",
                format!("outcome of {} stands in for {id}", task.task),
            );
        }
        prove_task(job, range, task)?;
    }
    let inputs: RowSum = job
        .inputs
        .iter()
        .map(|sst| RowSum::new(sst.rows, sst.rows_hash))
        .sum();
    let read: RowSum = outcome.tasks.iter().map(|task| task.read).sum();
    if inputs != read {
        return refuse(
            job,
            "inputs",
            format!("inputs are {inputs:?}, read was {read:?}"),
        );
    }
    Ok(())
}

fn prove_task(job: &CompactionJob, range: &KeyRange, task: &TaskOutcome) -> Result<()> {
    let id = task.task;
    let accounted: RowSum = [task.written, task.dropped()].into_iter().sum();
    if accounted != task.read {
        return refuse(
            job,
            "balance",
            format!(
                "task {id}: read {:?}, accounted for {accounted:?}",
                task.read
            ),
        );
    }
    let retention = &job.retention;
    for (what, allowed, dropped) in [
        ("tombstones", retention.drop_tombstones, task.deleted),
        ("expired rows", retention.expiry.is_some(), task.expired),
        (
            "range-deleted rows",
            !retention.range_deletes.is_empty(),
            task.range_deleted,
        ),
        // Not by today's operators: a task may have run before one was dropped with its column.
        (
            "combined rows",
            job.schema.write_mode() == WriteMode::Upsert,
            task.combined,
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
    let outputs: RowSum = task
        .outputs
        .iter()
        .map(|sst| RowSum::new(sst.rows, sst.rows_hash))
        .sum();
    if outputs != task.written {
        return refuse(
            job,
            "outputs",
            format!(
                "task {id}: wrote {:?}, outputs hold {outputs:?}",
                task.written
            ),
        );
    }
    for (part, sst) in task.outputs.iter().enumerate() {
        let named = SstId::Compacted {
            task: id,
            token: task.token,
            part: part as u32,
        };
        if sst.id != named {
            return refuse(
                job,
                "attempt",
                format!("task {id}: output {} is not {named}", sst.id),
            );
        }
        if !is_in_place(job, range, sst) {
            return refuse(
                job,
                "place",
                format!("task {id}: output {} is out of place", sst.id),
            );
        }
    }
    let overlap = task
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

/// The clause `present`, given the size that the store reports for an output.
///
/// # Errors
/// `Internal`, naming job and output.
pub fn prove_present(job: &CompactionJob, sst: &SstMeta, bytes: Option<u64>) -> Result<()> {
    if bytes == Some(sst.bytes) {
        return Ok(());
    }
    refuse(
        job,
        "present",
        format!(
            "output {} should have {} bytes, the store has {bytes:?}",
            sst.id, sst.bytes
        ),
    )
}

fn refuse(job: &CompactionJob, clause: &str, what: String) -> Result<()> {
    Err(Error::internal(format!(
        "job {}: proof clause {clause} fails: {what}",
        job.id
    )))
}
