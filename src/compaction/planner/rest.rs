//! What brings a window to rest without another write, whatever its planner.
//!
//! * **Settle**: a window whose time is past and that nothing was flushed to for `settle` becomes one run.
//! * **Tombstones**: an SST that has been there for `settle`, a quarter of whose rows or more are tombstones,
//!   is merged with what it meets in the deepest level that it meets anything in; at the bottom, where
//!   nothing older is left, the tombstones are dropped.
//! * **Range deletes**: an SST that has been there for `settle`, and has range-deleted rows, is rewritten without
//!   them, so that the deletes can end.
//! * **Manual**: a range of keys becomes one run in each window, without droppable tombstones or rows that are
//!   expired or range-deleted.
//!
//! Every plan here takes data further down or drops tombstones, so that there is an end to them.

use std::sync::Arc;

use super::{
    CompactRange, order,
    scene::{Aim, Scene, Size},
};
use crate::{
    compaction::{Plan, PlanReason, plan::older_data_remains},
    types::{Seq, SstMeta},
};

/// One part in so many rows of an SST that are tombstones calls for a merge.
const TOMBSTONES_SHARE: u64 = 4;

/// The plan that the window needs although its planner is content with it.
pub(super) fn plan(scene: &Scene<'_>) -> Option<Plan> {
    let is_settled = scene.ssts.l0.is_empty() && scene.ssts.levels.len() == 1;
    if !is_settled && settles_ms(scene).is_some_and(|due_ms| due_ms <= scene.now_ms) {
        let plan = fold(scene, PlanReason::Settle, |_| true);
        if plan.is_some() {
            return plan;
        }
    }
    drop_tombstones(scene).or_else(|| drop_deleted_rows(scene))
}

/// When [`plan`] may find something that it does not find now.
pub(super) fn due_ms(scene: &Scene<'_>) -> Option<u64> {
    let is_settled = scene.ssts.l0.is_empty() && scene.ssts.levels.len() == 1;
    let settles = settles_ms(scene).filter(|_| !is_settled);
    let is_due =
        |sst: &&Arc<SstMeta>| is_heavy(sst) || (sst.level > 0 && scene.has_deleted_rows(sst));
    let heavy = scene.ssts.ssts().filter(is_due);
    let heavy = heavy.map(|sst| sst.id.written_ms() + scene.config.settle_ms);
    let due = settles.into_iter().chain(heavy);
    due.filter(|&due_ms| due_ms > scene.now_ms).min()
}

/// How the window stands to what calls for a merge besides its planner, one sentence each.
pub(super) fn triggers(scene: &Scene<'_>) -> Vec<String> {
    let mut triggers = Vec::new();
    let is_settled = scene.ssts.l0.is_empty() && scene.ssts.levels.len() == 1;
    let settle = std::time::Duration::from_millis(scene.config.settle_ms);
    match settles_ms(scene) {
        _ if is_settled => triggers.push("it is one sorted run".into()),
        Some(due_ms) if due_ms <= scene.now_ms => {
            triggers.push("it is past and quiet: it is to become one sorted run".into());
        }
        Some(due_ms) => {
            let left = std::time::Duration::from_millis(due_ms - scene.now_ms);
            triggers.push(format!("it becomes one sorted run in {left:?}, {settle:?} after its end and its newest flush"));
        }
        None => {}
    }
    let heavy = scene.ssts.ssts().filter(|sst| is_heavy(sst)).count();
    if heavy > 0 {
        triggers.push(format!(
            "{heavy} SSTs are tombstones by a quarter or more: they are merged {settle:?} after they were written"
        ));
    }
    let deleted = scene.ssts.ssts();
    let deleted = deleted.filter(|sst| scene.has_deleted_rows(sst)).count();
    if deleted > 0 {
        triggers.push(format!(
            "{deleted} SSTs have range-deleted rows: they are rewritten {settle:?} after they were written"
        ));
    }
    triggers
}

/// The next plan of a manual compaction of `range`.
pub(super) fn manual(scene: &Scene<'_>, range: &CompactRange, goal: Seq) -> Option<Plan> {
    if !range.covers(scene.window) {
        return None;
    }
    let is_meant =
        |sst: &SstMeta| sst.seq_min <= goal && range.keys.overlaps(&sst.key_min, &sst.key_max);
    let folded = fold(scene, PlanReason::Manual, is_meant);
    folded.or_else(|| {
        let mut ssts = scene
            .ssts
            .levels
            .values()
            .flatten()
            .filter(|sst| is_meant(sst));
        ssts.find_map(|sst| {
            let aim = Aim {
                level_target: sst.level,
                reason: PlanReason::Manual,
                score: 0.1,
            };
            let hides = scene.hides_rows(sst);
            let rewritten = hides.then(|| scene.pick(vec![sst.clone()], aim, Size::Smallest));
            let sunk = || (sst.tombstones > 0).then(|| sink(scene, sst, PlanReason::Manual));
            rewritten.flatten().or_else(|| sunk().flatten())
        })
    })
}

/// Whether so much of `sst` is tombstones that it is merged although nothing else asks for it.
fn is_heavy(sst: &SstMeta) -> bool {
    sst.tombstones > 0 && sst.tombstones.saturating_mul(TOMBSTONES_SHARE) >= sst.rows
}

/// When the window is past, and quiet since its newest flush; `None` when it never will be.
fn settles_ms(scene: &Scene<'_>) -> Option<u64> {
    let end_ms = scene.version.schema.window_end_ms(scene.window)?;
    let flushed = scene.ssts.l0.iter().map(|sst| sst.id.written_ms());
    let newest_ms = flushed.max().unwrap_or(0);
    let quiet_ms = u64::try_from(end_ms).unwrap_or(0).max(newest_ms);
    Some(quiet_ms.saturating_add(scene.config.settle_ms))
}

/// The next step towards a single run of all that `is_meant`: level 0 first, then level by level, into the
/// deepest level if a job may take that much, into the next one otherwise.
fn fold(
    scene: &Scene<'_>,
    reason: PlanReason,
    is_meant: impl Fn(&SstMeta) -> bool,
) -> Option<Plan> {
    let levels: Vec<(u8, Vec<Arc<SstMeta>>)> = scene
        .ssts
        .levels
        .iter()
        .map(|(&level, run)| {
            let meant = run.iter().filter(|sst| is_meant(sst));
            (level, meant.cloned().collect())
        })
        .filter(|(_, run): &(u8, Vec<_>)| !run.is_empty())
        .collect();
    let aim = |level_target, score| Aim {
        level_target,
        reason,
        score,
    };
    let mut l0 = scene.level_0();
    l0.retain(|sst| is_meant(sst));
    if !l0.is_empty() {
        let score = scene.level_0_score(&l0);
        let deepest = levels.last().map_or(scene.deepest(), |(level, _)| *level);
        let next = levels.first().map_or(deepest, |(level, _)| *level);
        let whole = scene.pick_level_0(&l0, aim(deepest, score));
        let fits = |plan: &Plan| next == deepest || scene.config.limits.allow(&plan.inputs);
        return whole
            .filter(fits)
            .or_else(|| scene.pick_level_0(&l0, aim(next, score)));
    }
    let [(_, top), .., (deepest, _)] = &levels[..] else {
        return None;
    };
    let score = levels.len() as f64 / scene.config.l0_runs_trigger as f64;
    let free: Vec<Arc<SstMeta>> = top
        .iter()
        .filter(|sst| scene.is_free(sst))
        .cloned()
        .collect();
    if free.is_empty() {
        return None;
    }
    let whole = scene.pick(free, aim(*deepest, score), Size::Limited);
    whole.or_else(|| scene.pick_one(top, aim(levels[1].0, score)))
}

fn drop_tombstones(scene: &Scene<'_>) -> Option<Plan> {
    let is_due = |sst: &Arc<SstMeta>| {
        is_heavy(sst) && sst.id.written_ms() + scene.config.settle_ms <= scene.now_ms
    };
    let l0 = scene.level_0();
    if l0.iter().any(is_due) {
        let aim = Aim {
            level_target: scene.deepest(),
            reason: PlanReason::Tombstones,
            score: scene.level_0_score(&l0),
        };
        return scene.pick_level_0(&l0, aim);
    }
    let mut heavy = scene
        .ssts
        .levels
        .values()
        .flatten()
        .filter(|sst| is_due(sst));
    heavy.find_map(|sst| sink(scene, sst, PlanReason::Tombstones))
}

/// Rewrites an SST of a run in its place. Level 0 goes down sooner or later, and loses such rows on the way.
fn drop_deleted_rows(scene: &Scene<'_>) -> Option<Plan> {
    let is_due = |sst: &&Arc<SstMeta>| {
        scene.is_free(sst)
            && sst.id.written_ms() + scene.config.settle_ms <= scene.now_ms
            && scene.has_deleted_rows(sst)
    };
    let mut due = scene.ssts.levels.values().flatten().filter(is_due);
    due.find_map(|sst| {
        let aim = Aim {
            level_target: sst.level,
            reason: PlanReason::RangeDeletes,
            score: 0.1,
        };
        scene.pick(vec![sst.clone()], aim, Size::Smallest)
    })
}

/// Takes the tombstones of `sst`, which is not of level 0, down; at the bottom, drops them. `None` when that
/// would change nothing.
fn sink(scene: &Scene<'_>, sst: &Arc<SstMeta>, reason: PlanReason) -> Option<Plan> {
    let seeds = vec![sst.clone()];
    let meets = |run: &Vec<Arc<SstMeta>>| !order::meeting(run, &seeds).is_empty();
    let mut below = scene.ssts.levels.range(sst.level + 1..);
    let deepest = below.rfind(|(_, run)| meets(run));
    let aim = |level_target| Aim {
        level_target,
        reason,
        score: sst.tombstones as f64 / sst.rows.max(1) as f64,
    };
    if let Some((&deepest, _)) = deepest {
        let whole = scene.pick(seeds.clone(), aim(deepest), Size::Limited);
        let next = || {
            let mut below = scene.ssts.levels.range(sst.level + 1..);
            let (&next, _) = below.find(|(_, run)| meets(run))?;
            scene.pick(seeds.clone(), aim(next), Size::Smallest)
        };
        return whole.or_else(next);
    }
    let is_pinned = scene.pins.read_points.iter().any(|&seq| seq < sst.seq_max);
    // Where rows are kept or combined, a merge may find that a tombstone still hides something.
    if is_pinned || scene.version.schema.order_matters() {
        return None;
    }
    drop_in_place(scene, sst, aim)
}

/// Rewrites `sst`, together with all that may hold rows which its tombstones, or those of what must come
/// along, hide: as far as their seqs tell, that can be newer levels, too.
fn drop_in_place(scene: &Scene<'_>, sst: &Arc<SstMeta>, aim: impl Fn(u8) -> Aim) -> Option<Plan> {
    let mut seeds = vec![sst.clone()];
    loop {
        let mut below = scene.ssts.levels.range(sst.level..);
        let deepest = below.rfind(|(_, run)| !order::meeting(run, &seeds).is_empty());
        let target = deepest.map_or(sst.level, |(&level, _)| level);
        let plan = scene.pick(seeds, aim(target), Size::Smallest)?;
        if !older_data_remains(scene.version, scene.window, &plan.inputs) {
            return Some(plan);
        }
        let (keys, seq_max) = (
            plan.key_range(),
            plan.inputs.iter().map(|sst| sst.seq_max).max(),
        );
        let older = scene.ssts.ssts().filter(|other| {
            Some(other.seq_min) < seq_max
                && keys.overlaps(&other.key_min, &other.key_max)
                && !plan.inputs.contains(other)
        });
        seeds = plan.inputs.iter().chain(older).cloned().collect();
    }
}
