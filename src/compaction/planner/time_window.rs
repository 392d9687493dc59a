//! The time-window planner. A window has two levels: level 0, a pile of flushed runs, and level 1, one
//! sorted run.
//!
//! A window with `l0_runs_trigger` or more level-0 runs merges the oldest of them, and what they meet in
//! level 1, into level 1. The more runs, the more urgent. Resting shape: fewer level-0 runs than the
//! trigger; none, once the window is past.
//!
//! A window that another planner has left with more levels is merged into its deepest one.

use super::scene::{Aim, Scene};
use crate::compaction::{Plan, PlanReason};

pub(super) fn plan(scene: &Scene<'_>) -> Vec<Plan> {
    let l0 = scene.level_0();
    if l0.len() < scene.config.l0_runs_trigger {
        return Vec::new();
    }
    let aim = Aim {
        level_target: scene.deepest(),
        reason: PlanReason::L0Runs,
        score: scene.level_0_score(&l0),
    };
    scene.pick_level_0(&l0, aim).into_iter().collect()
}
