//! Planners choose what to merge: pure functions over a version, with no clock and no store.
//!
//! Each window is an LSM tree of its own. How its runs are arranged is the table's planner's choice:
//! `time_window`, `leveled` or `tiered`. What is common to all of them:
//!
//! * [`order`] says what a merge must not leave out; [`Limits`] what it may take on. A plan that a planner
//!   returns can run, and changes the version so that it is not made again.
//! * SSTs that a job has are left alone, with all that lies above them and shares keys with them. SSTs that
//!   are held, because a job with them failed, are left out; where the order of versions matters, so is what
//!   is newer and shares keys with them.
//! * `rest` has the plans that need no write to come along: windows that are past are settled into one run,
//!   and tombstones go down to where they can be dropped. [`Planned::due_ms`] tells when to look again.
//!
//! A table to which nothing is written comes to rest: no plan is made for it any more.

mod explain;
mod leveled;
pub mod order;
mod rest;
mod scene;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
mod tiered;
mod time_window;

use std::collections::HashSet;

pub use explain::{WindowExplanation, explain};

use super::{Claimed, Limits, Plan, plan::SSTS_PER_JOB_MAX};
use crate::{
    config::CompactionConfig,
    manifest::{Pins, Version},
    types::{KeyRange, PlannerKind, Seq, SstId, TimeRange, Window},
};
use scene::Scene;

/// The deepest level that planners use.
pub const LEVEL_BOTTOM: u8 = 15;

/// What planners go by.
#[derive(Clone, Copy, Debug, PartialEq)]
#[doc(alias = "picker")]
pub struct PlannerConfig {
    /// Level-0 runs in a window that make a job.
    pub l0_runs_trigger: usize,
    /// For how long a past window, or an SST full of tombstones, must be quiet before something is done
    /// about it, in milliseconds.
    pub settle_ms: u64,
    /// What one job may take on.
    pub limits: Limits,
    /// For leveled tables.
    pub leveled: LeveledConfig,
    /// For tiered tables.
    pub tiered: TieredConfig,
}

/// What the leveled planner goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeveledConfig {
    /// Size of the topmost level: a level is begun above the others once it would be as large as this.
    pub level_bytes_min: u64,
    /// How many times as large as the level above a level is.
    pub level_ratio: u64,
}

/// What the tiered planner goes by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TieredConfig {
    /// Neighbouring runs of similar size that are merged, at the least.
    pub tier_runs: usize,
    /// A run is similar to the newer ones beside it while it is no larger than this many times their sum.
    pub tier_ratio: f64,
}

impl From<&CompactionConfig> for PlannerConfig {
    fn from(config: &CompactionConfig) -> Self {
        let planning = &config.planning;
        Self {
            l0_runs_trigger: config.l0_runs_trigger,
            settle_ms: planning.settle.0,
            limits: Limits {
                input_bytes_max: planning.job_bytes_max.0,
                ssts_max: SSTS_PER_JOB_MAX,
                memory_bytes_max: config.local.memory_bytes_max.0,
                sst_bytes_target: config.sst_bytes_target.0,
            },
            leveled: LeveledConfig {
                level_bytes_min: planning.level_bytes_min.0,
                level_ratio: planning.level_ratio,
            },
            tiered: TieredConfig {
                tier_runs: planning.tier_runs,
                tier_ratio: planning.tier_ratio_percent as f64 / 100.0,
            },
        }
    }
}

/// What a planner looks at.
#[derive(Clone, Copy, Debug)]
pub struct Situation<'a> {
    /// The version to plan on.
    pub version: &'a Version,
    /// What running jobs occupy.
    pub claimed: &'a Claimed,
    /// SSTs to be left out, because a job with them failed.
    pub held: &'a HashSet<SstId>,
    /// What readers pin: rows that they see stay.
    pub pins: &'a Pins,
    /// In milliseconds since the Unix epoch.
    pub now_ms: u64,
}

/// What a planner found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Planned {
    /// Plans that can start now, most urgent first. Any one of them may run; after that the others are to be
    /// planned again.
    pub plans: Vec<Plan>,
    /// When there may be others although nothing has happened, in milliseconds since the Unix epoch.
    pub due_ms: Option<u64>,
}

/// Plans for the windows of a version that need one.
pub fn plan(situation: &Situation<'_>, config: &PlannerConfig) -> Planned {
    let mut planned = Planned::default();
    for scene in Scene::all(situation, config) {
        planned.plans.extend(plan_window(&scene));
        let due_ms = rest::due_ms(&scene);
        planned.due_ms = planned.due_ms.into_iter().chain(due_ms).min();
    }
    planned
        .plans
        .sort_by(|left, right| right.score.total_cmp(&left.score));
    planned
}

/// The plans that one window needs.
fn plan_window(scene: &Scene<'_>) -> Vec<Plan> {
    let mut plans = match scene.version.schema.planner() {
        PlannerKind::TimeWindow => time_window::plan(scene),
        PlannerKind::Leveled => leveled::plan(scene),
        PlannerKind::Tiered => tiered::plan(scene),
    };
    if plans.is_empty() {
        plans.extend(rest::plan(scene));
    }
    plans
}

/// A part of a table: what `compact` is asked to bring into its resting shape.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompactRange {
    /// Keys.
    pub keys: KeyRange,
    /// Times, for a table with windows: all windows that overlap them.
    pub times: Option<TimeRange>,
}

impl CompactRange {
    /// Whether any of `window` is in it.
    pub fn covers(&self, window: Window) -> bool {
        let meets = |times: TimeRange| window.overlaps(Window::new(times.start, times.end));
        self.times.is_none_or(meets)
    }
}

/// The next plans on the way of a range to its resting shape: of each window a single run, without
/// tombstones that nothing needs. Only SSTs with batches up to `goal` are minded. When there is nothing
/// left to do, and no job runs, the range is there.
pub fn manual(
    situation: &Situation<'_>,
    config: &PlannerConfig,
    range: &CompactRange,
    goal: Seq,
) -> Vec<Plan> {
    let scenes = Scene::all(situation, config);
    let plans = scenes.filter_map(|scene| rest::manual(&scene, range, goal));
    plans.collect()
}
