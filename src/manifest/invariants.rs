//! What every version must satisfy, one named predicate each. Recovery calls [`check`], property tests and
//! simulations call it too; a commit calls [`check_edit`], which looks only where the edit did, because a
//! table may have a hundred thousand SSTs.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
};

use super::{
    Version, WindowVersion,
    edit::{Edit, JobRecord},
};
use crate::{
    error::{Error, Result},
    types::{KeyRange, SstId, SstMeta, Window},
};

/// Checks every predicate.
///
/// # Errors
/// `Internal`, with the predicate's name and the object that breaks it.
pub fn check(version: &Version) -> Result<()> {
    runs_are_sorted_and_disjoint(version)?;
    no_sst_crosses_a_window(version)?;
    live_ssts_are_flushed(version)?;
    live_ssts_are_not_obsolete(version)?;
    job_inputs_are_live_and_claimed_once(version)?;
    tombstones_go_only_from_the_bottom(version)?;
    seqs_of_range_deletes_are_known(version)
}

/// Checks every predicate, of the version after `edit`, in the windows that the edit touched: the version
/// before it satisfied them all. With debug assertions everything is checked.
///
/// # Errors
/// As for [`check`].
pub fn check_edit(version: &Version, edit: &Edit) -> Result<()> {
    if cfg!(debug_assertions) {
        return check(version);
    }
    let touched = touched_by(edit);
    for &window in &touched {
        if let Some(ssts) = version.windows.get(&window) {
            check_runs(window, ssts)?;
            check_places(version, window, ssts)?;
            check_flushed(version, ssts)?;
            check_not_obsolete(version, ssts)?;
        }
    }
    for job in &edit.jobs_started {
        check_bottom(version, job)?;
    }
    check_jobs(version, |window| touched.contains(&window))
}

fn touched_by(edit: &Edit) -> BTreeSet<Window> {
    let removed = edit.removed.iter().map(|sst| sst.window);
    let moved = edit.moved.iter().map(|moved| moved.sst.window);
    let added = edit.added.iter().map(|sst| sst.window);
    let started = edit.jobs_started.iter().map(|job| job.window);
    let touched = removed.chain(moved).chain(added).chain(started);
    touched.collect()
}

/// Of each window and level above 0, the SSTs are sorted and disjoint by key.
pub fn runs_are_sorted_and_disjoint(version: &Version) -> Result<()> {
    let mut windows = version.windows.iter();
    windows.try_for_each(|(&window, ssts)| check_runs(window, ssts))
}

fn check_runs(window: Window, ssts: &WindowVersion) -> Result<()> {
    for (level, run) in &ssts.levels {
        for pair in run.windows(2) {
            if pair[0].key_max >= pair[1].key_min {
                let (left, right) = (pair[0].id, pair[1].id);
                return broken(
                    "runs_are_sorted_and_disjoint",
                    format!("window {window} level {level}: {left} reaches into {right}"),
                );
            }
        }
    }
    Ok(())
}

/// Every SST lies in the window it is filed under, with its bounds in order.
pub fn no_sst_crosses_a_window(version: &Version) -> Result<()> {
    let mut windows = version.windows.iter();
    windows.try_for_each(|(&window, ssts)| check_places(version, window, ssts))
}

fn check_places(version: &Version, window: Window, ssts: &WindowVersion) -> Result<()> {
    let fits = |sst: &SstMeta| match sst.times {
        Some((min, max)) => window.times().covers(min, max),
        None => window == Window::ALL && version.schema.time().is_none(),
    };
    for sst in ssts.ssts() {
        if sst.window != window || !fits(sst) || sst.key_min > sst.key_max {
            let what = format!("{} with times {:?} in window {window}", sst.id, sst.times);
            return broken("no_sst_crosses_a_window", what);
        }
    }
    Ok(())
}

/// No live SST holds a batch that the version does not count as flushed.
pub fn live_ssts_are_flushed(version: &Version) -> Result<()> {
    let mut windows = version.windows.values();
    windows.try_for_each(|ssts| check_flushed(version, ssts))
}

fn check_flushed(version: &Version, ssts: &Arc<WindowVersion>) -> Result<()> {
    match ssts.ssts().find(|sst| sst.seq_max > version.flushed_seq) {
        None => Ok(()),
        Some(sst) => {
            let what = format!(
                "{} reaches seq {}, flushed is {}",
                sst.id, sst.seq_max, version.flushed_seq
            );
            broken("live_ssts_are_flushed", what)
        }
    }
}

/// No live SST is about to be deleted.
pub fn live_ssts_are_not_obsolete(version: &Version) -> Result<()> {
    let mut windows = version.windows.values();
    windows.try_for_each(|ssts| check_not_obsolete(version, ssts))
}

fn check_not_obsolete(version: &Version, ssts: &Arc<WindowVersion>) -> Result<()> {
    let obsolete = &version.obsolete;
    match ssts.ssts().find(|sst| obsolete.contains_key(&sst.id)) {
        None => Ok(()),
        Some(sst) => broken("live_ssts_are_not_obsolete", sst.id.to_string()),
    }
}

/// No recorded job drops tombstones while older data that they may hide lives outside of its inputs.
pub fn tombstones_go_only_from_the_bottom(version: &Version) -> Result<()> {
    let mut jobs = version.jobs.values();
    jobs.try_for_each(|job| check_bottom(version, job))
}

fn check_bottom(version: &Version, job: &JobRecord) -> Result<()> {
    if !job.retention.drop_tombstones {
        return Ok(());
    }
    let inputs = version.inputs_of(job)?;
    let min = inputs.iter().map(|sst| &sst.key_min).min();
    let max = inputs.iter().map(|sst| &sst.key_max).max();
    let (Some(min), Some(max)) = (min, max) else {
        return Ok(());
    };
    let keys = KeyRange::closed(min, max);
    let seq_max = inputs
        .iter()
        .map(|sst| sst.seq_max)
        .max()
        .unwrap_or_default();
    match version.older_data_remains(job.window, &keys, seq_max, &job.inputs) {
        false => Ok(()),
        true => {
            let what = format!("job {} would drop tombstones", job.id);
            broken("tombstones_go_only_from_the_bottom", what)
        }
    }
}

/// Range deletes come in the order of their seqs, and no SST has had one applied that a later write could still take
/// the seq of.
pub fn seqs_of_range_deletes_are_known(version: &Version) -> Result<()> {
    let deletes = &version.range_deletes;
    let ascend = deletes.windows(2).all(|pair| pair[0].seq < pair[1].seq);
    let last = deletes.last().map_or(version.flushed_seq, |last| last.seq);
    let known = last.max(version.flushed_seq);
    match version.ssts().find(|sst| sst.applied_seq > known) {
        None if ascend => Ok(()),
        None => broken("seqs_of_range_deletes_are_known", format!("{deletes:?}")),
        Some(sst) => {
            let what = format!(
                "{} has had {} applied, {known} is known",
                sst.id, sst.applied_seq
            );
            broken("seqs_of_range_deletes_are_known", what)
        }
    }
}

/// Every input of a recorded job is live, and no two jobs share one.
pub fn job_inputs_are_live_and_claimed_once(version: &Version) -> Result<()> {
    check_jobs(version, |_| true)
}

fn check_jobs(version: &Version, is_wanted: impl Fn(Window) -> bool) -> Result<()> {
    let refuse = |input: SstId, window: Window| {
        let what = format!("input {input} of a job in window {window}");
        broken("job_inputs_are_live_and_claimed_once", what)
    };
    let mut claimed: BTreeMap<Window, HashSet<SstId>> = BTreeMap::new();
    for job in version.jobs.values().filter(|job| is_wanted(job.window)) {
        let inputs = claimed.entry(job.window).or_default();
        for &input in &job.inputs {
            if !inputs.insert(input) {
                return refuse(input, job.window);
            }
        }
    }
    for (window, mut inputs) in claimed {
        if let Some(ssts) = version.windows.get(&window) {
            ssts.ssts().for_each(|sst| {
                inputs.remove(&sst.id);
            });
        }
        if let Some(&input) = inputs.iter().next() {
            return refuse(input, window);
        }
    }
    Ok(())
}

fn broken(predicate: &str, what: String) -> Result<()> {
    Err(Error::internal(format!(
        "invariant {predicate} is broken: {what}"
    )))
}
