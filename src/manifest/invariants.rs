//! What every version must satisfy, one named predicate each. Commit and recovery call [`check`];
//! property tests and simulations call it too.

use super::{Version, edit::SstRef};
use crate::{
    error::{Error, Result},
    types::{SstMeta, Window},
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

/// Of each window and level above 0, the SSTs are sorted and disjoint by key.
pub fn runs_are_sorted_and_disjoint(version: &Version) -> Result<()> {
    for (window, ssts) in &version.windows {
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
    }
    Ok(())
}

/// Every SST lies in the window it is filed under, with its bounds in order.
pub fn no_sst_crosses_a_window(version: &Version) -> Result<()> {
    let width = version.schema.window_width();
    let fits = |window: Window, sst: &SstMeta| match (width, sst.times) {
        (Some(width), Some((min, max))) => {
            width.window_of(min) == window && width.window_of(max) == window
        }
        (Some(_), None) => false,
        (None, _) => window == Window::default(),
    };
    for (&window, ssts) in &version.windows {
        for sst in ssts.ssts() {
            if sst.window != window || !fits(window, sst) || sst.key_min > sst.key_max {
                let what = format!(
                    "{} with times {:?} in window {}",
                    sst.id, sst.times, window.0
                );
                return broken("no_sst_crosses_a_window", what);
            }
        }
    }
    Ok(())
}

/// No live SST holds a batch that the version does not count as flushed.
pub fn live_ssts_are_flushed(version: &Version) -> Result<()> {
    match version.ssts().find(|sst| sst.seq_max > version.flushed_seq) {
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
    let mut claimed = std::collections::BTreeSet::new();
    for job in version.jobs.values() {
        for &id in &job.inputs {
            let live = version
                .find(SstRef {
                    window: job.window,
                    id,
                })
                .is_some();
            if !live || !claimed.insert(id) {
                let what = format!("input {id} of job {}", job.id);
                return broken("job_inputs_are_live_and_claimed_once", what);
            }
        }
    }
    Ok(())
}

fn broken(predicate: &str, what: String) -> Result<()> {
    Err(Error::internal(format!(
        "invariant {predicate} is broken: {what}"
    )))
}
