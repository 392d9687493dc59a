//! What every version must satisfy, one named predicate each. Recovery calls [`check`], property tests and
//! simulations call it too; a commit calls [`check_edit`], which looks only where the edit did, because a
//! table may have a hundred thousand SSTs.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::Arc,
};

use super::{Version, WindowVersion, edit::Edit};
use crate::{
    error::{Error, Result},
    types::{SstId, SstMeta, Window},
};

/// Checks every predicate.
///
/// # Errors
/// `Internal`, with the predicate's name and the object that breaks it.
pub fn check(version: &Version) -> Result<()> {
    runs_are_sorted_and_disjoint(version)?;
    no_sst_crosses_a_window(version)?;
    live_ssts_are_flushed(version)?;
    job_inputs_are_live_and_claimed_once(version)
}

/// Checks every predicate, of the version after `edit`, in the windows that the edit touched: the version
/// before it satisfied them all. With debug assertions everything is checked.
///
/// # Errors
/// As for [`check`].
pub fn check_edit(version: &Version, edit: &Edit) -> Result<()> {
    // The width of windows may have changed.
    if cfg!(debug_assertions) || edit.schema.is_some() {
        return check(version);
    }
    let touched = touched_by(edit);
    for &window in &touched {
        if let Some(ssts) = version.windows.get(&window) {
            check_runs(window, ssts)?;
            check_places(version, window, ssts)?;
            check_flushed(version, ssts)?;
        }
    }
    check_jobs(version, |window| touched.contains(&window))
}

fn touched_by(edit: &Edit) -> BTreeSet<Window> {
    let removed = edit.removed.iter().map(|sst| sst.window);
    let added = edit.added.iter().map(|sst| sst.window);
    let started = edit.jobs_started.iter().map(|job| job.window);
    removed.chain(added).chain(started).collect()
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
                    format!(
                        "window {} level {level}: {left} reaches into {right}",
                        window.0
                    ),
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
    let width = version.schema.window_width();
    let fits = |sst: &SstMeta| match (width, sst.times) {
        (Some(width), Some((min, max))) => {
            width.window_of(min) == window && width.window_of(max) == window
        }
        (Some(_), None) => false,
        (None, _) => window == Window::default(),
    };
    for sst in ssts.ssts() {
        if sst.window != window || !fits(sst) || sst.key_min > sst.key_max {
            let what = format!(
                "{} with times {:?} in window {}",
                sst.id, sst.times, window.0
            );
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

/// Every input of a recorded job is live, and no two jobs share one.
pub fn job_inputs_are_live_and_claimed_once(version: &Version) -> Result<()> {
    check_jobs(version, |_| true)
}

fn check_jobs(version: &Version, is_wanted: impl Fn(Window) -> bool) -> Result<()> {
    let refuse = |input: SstId, window: Window| {
        let what = format!("input {input} of a job in window {}", window.0);
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
