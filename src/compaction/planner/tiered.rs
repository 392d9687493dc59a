//! The tiered planner. Every level is a sorted run, the deeper the older; levels are numbers only, and
//! those between may be empty. Runs are merged when there are several of similar size beside each other, so
//! that a row is rewritten about once for each time that the table grows by the number of runs.
//!
//! ```text
//! level 0    ▪ ▪ ▪ ▪               become one run, at the level above the newest run
//! level 12   ▪▪▪▪                  ┐
//! level 13   ▪▪▪▪                  │ similar, and neighbours in age: merged into level 15
//! level 14   ▪▪▪▪                  │
//! level 15   ▪▪▪▪▪▪▪▪▪▪▪▪          ┘
//! ```
//!
//! 1. With `l0_runs_trigger` or more level-0 runs the oldest of them become a run of their own, just above
//!    the newest one there is. (With no level left between, they go into that one.)
//! 2. From the newest run on, older ones join while each is no larger than `tier_ratio` times all newer ones
//!    together and a job may take them. `tier_runs` or more are merged, into the deepest level that is free:
//!    just above the next older run. If the newest run finds too few, the next is asked.
//!
//! Resting shape: fewer level-0 runs than the trigger; from any run on, fewer than `tier_runs` that join: a
//! run `tier_runs` further is larger than all between. So there are few of them, and the number of levels
//! is enough for any size.

use super::{
    LEVEL_BOTTOM,
    scene::{Aim, Scene, Size},
};
use crate::compaction::{Plan, PlanReason};

pub(super) fn plan(scene: &Scene<'_>) -> Vec<Plan> {
    let mut plans = Vec::new();
    let l0 = scene.level_0();
    if l0.len() >= scene.config.l0_runs_trigger {
        let newest = scene.ssts.levels.keys().next();
        let aim = Aim {
            level_target: level_above(newest.copied()),
            reason: PlanReason::L0Runs,
            score: scene.level_0_score(&l0),
        };
        plans.extend(scene.pick_level_0(&l0, aim));
    }
    let runs = runs_of(scene);
    plans.extend((0..runs.len()).find_map(|start| merge_from(scene, &runs, start)));
    plans
}

/// How the window stands to what calls for a merge, one sentence each.
pub(super) fn triggers(scene: &Scene<'_>) -> Vec<String> {
    let config = &scene.config.tiered;
    let runs = runs_of(scene);
    let joined = (0..runs.len()).map(|start| {
        let (level, (count, bytes)) = (runs[start].0, joining(scene, &runs, start));
        let (wanted, ratio) = (config.tier_runs.max(2), config.tier_ratio);
        format!(
            "from level {level} on, {count} of {wanted} runs are similar, each at most {ratio} times the newer ones: {bytes} bytes"
        )
    });
    joined.collect()
}

fn runs_of(scene: &Scene<'_>) -> Vec<(u8, u64)> {
    let levels = scene.ssts.levels.iter();
    levels
        .map(|(&level, run)| (level, run.iter().map(|sst| sst.bytes).sum()))
        .collect()
}

/// How many runs from the one at `start` on join, and their bytes.
fn joining(scene: &Scene<'_>, runs: &[(u8, u64)], start: usize) -> (usize, u64) {
    let (mut end, mut bytes) = (start + 1, runs[start].1);
    while let Some((_, next)) = runs.get(end) {
        let is_similar = *next as f64 <= bytes as f64 * scene.config.tiered.tier_ratio;
        if !is_similar || bytes + next > scene.config.limits.input_bytes_max {
            break;
        }
        bytes += next;
        end += 1;
    }
    (end - start, bytes)
}

/// The level just above `older`; the bottom when there is nothing older.
fn level_above(older: Option<u8>) -> u8 {
    older.map_or(LEVEL_BOTTOM, |level| level.saturating_sub(1).max(1))
}

fn merge_from(scene: &Scene<'_>, runs: &[(u8, u64)], start: usize) -> Option<Plan> {
    let config = &scene.config.tiered;
    let (count, _) = joining(scene, runs, start);
    let end = start + count;
    if count < config.tier_runs.max(2) {
        return None;
    }
    let inputs = runs[start..end]
        .iter()
        .flat_map(|(level, _)| scene.ssts.levels[level].iter().cloned());
    let oldest = runs[end - 1].0;
    let above = level_above(runs.get(end).map(|(level, _)| *level));
    let aim = Aim {
        level_target: above.max(oldest),
        reason: PlanReason::Tier,
        score: count as f64 / config.tier_runs as f64,
    };
    scene.pick(inputs.collect(), aim, Size::Limited)
}
