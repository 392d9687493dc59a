//! The leveled planner. Levels are counted from the bottom: the bottom level may be as large as it likes,
//! each level above it is to be `level_ratio` times smaller, and the topmost, the base, is the last one that
//! would not be smaller than `level_bytes_min`. Old versions then take about one part in `level_ratio`.
//!
//! ```text
//! level 0   ▪ ▪ ▪ ▪                 oldest runs go into the base
//! base      ▪▪▪                     300 MiB of 256
//! ...       ▪▪▪▪▪▪▪▪▪▪▪▪            2.5 GiB of 2.6
//! bottom    ▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪▪   26 GiB
//! ```
//!
//! 1. With `l0_runs_trigger` or more level-0 runs the oldest of them go into the base.
//! 2. Of a level that is too large one SST goes into the level below: the one that meets least there for
//!    its size, since what it meets is rewritten. Score: size by target.
//! 3. A level above the base, left over when the bottom shrank or the planner changed, goes down likewise.
//!
//! Resting shape: fewer level-0 runs than the trigger, nothing above the base, no level above its target.

use super::{
    LEVEL_BOTTOM, LeveledConfig,
    scene::{Aim, Scene},
};
use crate::{
    compaction::{Plan, PlanReason},
    manifest::WindowVersion,
};

pub(super) fn plan(scene: &Scene<'_>) -> Vec<Plan> {
    let ladder = Ladder::new(scene.ssts, &scene.config.leveled);
    let mut plans = Vec::new();
    let l0 = scene.level_0();
    if l0.len() >= scene.config.l0_runs_trigger {
        let aim = Aim {
            level_target: ladder.base,
            reason: PlanReason::L0Runs,
            score: scene.level_0_score(&l0),
        };
        plans.extend(scene.pick_level_0(&l0, aim));
    }
    for (&level, run) in &scene.ssts.levels {
        let score = ladder.score(level, bytes_of(scene.ssts, level));
        if score > 1.0 {
            let aim = Aim {
                level_target: ladder.below(scene.ssts, level),
                reason: PlanReason::LevelSize,
                score,
            };
            plans.extend(scene.pick_one(run, aim));
        }
    }
    plans
}

/// How the window stands to what calls for a merge, one sentence each.
pub(super) fn triggers(scene: &Scene<'_>) -> Vec<String> {
    let ladder = Ladder::new(scene.ssts, &scene.config.leveled);
    let levels = scene.ssts.levels.keys().map(|&level| {
        let bytes = bytes_of(scene.ssts, level);
        match ladder.targets[level.min(LEVEL_BOTTOM) as usize] {
            0 => format!("level {level} has {bytes} bytes, and should have none: it is above the base, level {}", ladder.base),
            u64::MAX => format!("level {level} is the bottom, and may have any size: {bytes} bytes"),
            target => format!("level {level} has {bytes} bytes of {target}"),
        }
    });
    levels.collect()
}

/// How large each level is to be.
pub(super) struct Ladder {
    /// The level that takes in level 0.
    pub(super) base: u8,
    targets: [u64; LEVEL_BOTTOM as usize + 1],
}

impl Ladder {
    pub(super) fn new(ssts: &WindowVersion, config: &LeveledConfig) -> Self {
        let mut targets = [0; LEVEL_BOTTOM as usize + 1];
        targets[LEVEL_BOTTOM as usize] = u64::MAX;
        let mut base = LEVEL_BOTTOM;
        let mut bytes = bytes_of(ssts, LEVEL_BOTTOM) / config.level_ratio;
        while bytes >= config.level_bytes_min && base > 1 {
            base -= 1;
            targets[base as usize] = bytes;
            bytes /= config.level_ratio;
        }
        Self { base, targets }
    }

    /// A level of `bytes` is too large from 1.0 on.
    fn score(&self, level: u8, bytes: u64) -> f64 {
        match self.targets[level.min(LEVEL_BOTTOM) as usize] {
            // Above the base: in the way, but not pressing.
            0 => 1.1,
            target => bytes as f64 / target as f64,
        }
    }

    /// The level that `level` goes into: the next one below that is in use, or the base.
    fn below(&self, ssts: &WindowVersion, level: u8) -> u8 {
        let used = ssts.levels.range(level + 1..).next();
        let used = used.map_or(LEVEL_BOTTOM, |(&level, _)| level);
        used.min((level + 1).max(self.base))
    }
}

fn bytes_of(ssts: &WindowVersion, level: u8) -> u64 {
    let run = ssts.levels.get(&level);
    run.map_or(0, |run| run.iter().map(|sst| sst.bytes).sum())
}
