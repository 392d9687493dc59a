//! The time-window planner. Each window is an LSM tree of two levels of its own: level 0, a pile of
//! flushed runs, and level 1, one sorted run.
//!
//! 1. A window with a claimed SST is left alone: one job at a time in a window.
//! 2. A window with `l0_runs_trigger` or more level-0 runs merges the oldest of them, and what they
//!    overlap in level 1, into level 1. The more runs, the more urgent.
//! 3. A window whose time is past and whose newest flush is older than `window_settle` is settled: all of
//!    level 0 goes into level 1, so that no tail of small SSTs stays behind.
//!
//! SSTs that are held, because a job with them failed, are left out, so that the rest of their window goes
//! on; what would need a held SST of level 1 is not planned.
//!
//! Level-1 inputs are all those that overlap the level-0 inputs from their least to their greatest key, so
//! outputs cannot reach into what stays in level 1.

use std::{borrow::Cow, collections::HashSet, sync::Arc};

use super::PlannerConfig;
use crate::{
    compaction::{Claims, Plan, PlanReason},
    manifest::{Version, WindowVersion},
    types::{KeyRange, SstId, SstMeta, TableSchema, Window},
};

const LEVEL_TARGET: u8 = 1;

/// Plans for the windows of `version` that need one, most urgent first. `now_ms` is in milliseconds since
/// the Unix epoch.
pub fn plan(
    version: &Version,
    claims: &Claims,
    held: &HashSet<SstId>,
    config: &PlannerConfig,
    now_ms: u64,
) -> Vec<Plan> {
    let mut plans: Vec<Plan> = version
        .windows
        .iter()
        .filter(|(_, ssts)| is_free(ssts, claims))
        .filter_map(|(&window, ssts)| {
            plan_window(version, window, &without(ssts, held), config, now_ms)
        })
        .filter(|plan| !plan.inputs.iter().any(|sst| held.contains(&sst.id)))
        .collect();
    plans.sort_by(|left, right| right.score.total_cmp(&left.score));
    plans
}

/// Plans that bring each window into its resting shape: a single run of level 1.
pub fn manual(version: &Version, claims: &Claims, config: &PlannerConfig) -> Vec<Plan> {
    let windows = version.windows.iter();
    windows
        .filter(|(_, ssts)| is_free(ssts, claims) && !ssts.l0.is_empty())
        .map(|(&window, ssts)| merge_level_0(window, ssts, config, PlanReason::Manual))
        .collect()
}

/// The window without the held SSTs of level 0.
fn without<'a>(ssts: &'a WindowVersion, held: &HashSet<SstId>) -> Cow<'a, WindowVersion> {
    if !ssts.l0.iter().any(|sst| held.contains(&sst.id)) {
        return Cow::Borrowed(ssts);
    }
    let mut rest = ssts.clone();
    rest.l0.retain(|sst| !held.contains(&sst.id));
    Cow::Owned(rest)
}

fn is_free(ssts: &WindowVersion, claims: &Claims) -> bool {
    !ssts.ssts().any(|sst| claims.is_claimed(sst.id))
}

fn plan_window(
    version: &Version,
    window: Window,
    ssts: &WindowVersion,
    config: &PlannerConfig,
    now_ms: u64,
) -> Option<Plan> {
    if ssts.l0.len() >= config.l0_runs_trigger {
        return Some(merge_level_0(window, ssts, config, PlanReason::L0Runs));
    }
    let settles =
        !ssts.l0.is_empty() && is_past_and_quiet(&version.schema, window, ssts, config, now_ms);
    settles.then(|| merge_level_0(window, ssts, config, PlanReason::Settle))
}

fn merge_level_0(
    window: Window,
    ssts: &WindowVersion,
    config: &PlannerConfig,
    reason: PlanReason,
) -> Plan {
    let mut plan = Plan {
        window,
        inputs: Vec::new(),
        level_target: LEVEL_TARGET,
        reason,
        score: ssts.l0.len() as f64 / config.l0_runs_trigger as f64,
    };
    for count in 1..=ssts.l0.len() {
        let inputs = with_overlapping(ssts, &ssts.l0[..count]);
        let bytes: u64 = inputs.iter().map(|sst| sst.bytes).sum();
        if count > 1 && bytes > config.job_bytes_max {
            break;
        }
        plan.inputs = inputs;
    }
    plan
}

/// `l0`, and what it overlaps in level 1.
fn with_overlapping(ssts: &WindowVersion, l0: &[Arc<SstMeta>]) -> Vec<Arc<SstMeta>> {
    let mut inputs = l0.to_vec();
    let min = l0.iter().map(|sst| &sst.key_min).min();
    let max = l0.iter().map(|sst| &sst.key_max).max();
    if let (Some(min), Some(max), Some(run)) = (min, max, ssts.levels.get(&LEVEL_TARGET)) {
        let keys = KeyRange::closed(min, max);
        let overlapping = run
            .iter()
            .filter(|sst| keys.overlaps(&sst.key_min, &sst.key_max));
        inputs.extend(overlapping.cloned());
    }
    inputs
}

fn is_past_and_quiet(
    schema: &TableSchema,
    window: Window,
    ssts: &WindowVersion,
    config: &PlannerConfig,
    now_ms: u64,
) -> bool {
    let Some(end_ms) = schema.window_end_ms(window) else {
        return false;
    };
    let flushed_ms = ssts.l0.iter().map(|sst| match sst.id {
        SstId::Flushed(ulid) => ulid.timestamp_ms(),
        SstId::Compacted { .. } => 0,
    });
    let newest_ms = flushed_ms.max().unwrap_or(0);
    let before_ms = now_ms.saturating_sub(config.window_settle_ms);
    end_ms <= before_ms as i64 && newest_ms <= before_ms
}
