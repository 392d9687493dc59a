//! What a merge must not leave out. One rule, used by every planner to complete its picks, and by tests and
//! the scheduler to check them.
//!
//! The runs of a window have an order of age: level 0 from its newest SST to its oldest, then level 1, and
//! so on. Of the versions of one key the newer ones lie in newer runs. A merge moves its inputs down to the
//! target, so it needs
//!
//! * **place**: at the target level, every SST that meets the span of the inputs, from their least to their
//!   greatest key; an output may reach across it;
//! * **order**: between an input and the target, every SST that shares keys with that input. Without it the
//!   merge would jump over data of an age between: what was newer would come to lie below what was older,
//!   and an operator would combine rows that are no neighbours.

use std::{collections::HashSet, sync::Arc};

use crate::{
    manifest::WindowVersion,
    types::{SstId, SstMeta},
};

/// Whether a merge of `inputs` into `level_target`, at or below all of them, takes neighbours in age only,
/// and all that is in its place.
pub fn keeps_order(ssts: &WindowVersion, inputs: &[Arc<SstMeta>], level_target: u8) -> bool {
    left_out(ssts, inputs, level_target, &HashSet::new()).is_empty()
}

/// `inputs`, and all that their merge into `level_target` must not leave out. The SSTs of level 0 in
/// `passed` are passed over: order is not minded for them.
pub fn complete(
    ssts: &WindowVersion,
    mut inputs: Vec<Arc<SstMeta>>,
    level_target: u8,
    passed: &HashSet<SstId>,
) -> Vec<Arc<SstMeta>> {
    loop {
        let missing = left_out(ssts, &inputs, level_target, passed);
        if missing.is_empty() {
            return inputs;
        }
        inputs.extend(missing);
    }
}

/// The SSTs of `run`, which is sorted and disjoint, that meet the keys from the least to the greatest of
/// `inputs`.
pub(super) fn meeting<'a>(run: &'a [Arc<SstMeta>], inputs: &[Arc<SstMeta>]) -> &'a [Arc<SstMeta>] {
    let min = inputs.iter().map(|sst| &sst.key_min).min();
    let max = inputs.iter().map(|sst| &sst.key_max).max();
    let (Some(min), Some(max)) = (min, max) else {
        return &[];
    };
    let start = run.partition_point(|sst| sst.key_max < *min);
    let end = run.partition_point(|sst| sst.key_min <= *max);
    &run[start..end.max(start)]
}

fn left_out(
    ssts: &WindowVersion,
    inputs: &[Arc<SstMeta>],
    level_target: u8,
    passed: &HashSet<SstId>,
) -> Vec<Arc<SstMeta>> {
    let taken: HashSet<SstId> = inputs.iter().map(|sst| sst.id).collect();
    let level_min = inputs.iter().map(|sst| sst.level).min().unwrap_or(0);
    let mut missing = Vec::new();
    if level_min == 0 && level_target > 0 {
        let is_jumped = |sst: &Arc<SstMeta>| {
            let mut newer = inputs.iter().filter(|input| {
                input.level == 0 && input.seq_max > sst.seq_max && input.overlaps(sst)
            });
            !taken.contains(&sst.id) && !passed.contains(&sst.id) && newer.next().is_some()
        };
        missing.extend(ssts.l0.iter().filter(|sst| is_jumped(sst)).cloned());
    }
    for (&level, run) in ssts.levels.range(level_min.max(1)..=level_target.max(1)) {
        let meets = meeting(run, inputs).iter().filter(|sst| {
            let is_jumped = || {
                let mut above = inputs.iter().filter(|input| input.level < level);
                above.any(|input| input.overlaps(sst))
            };
            !taken.contains(&sst.id) && (level == level_target || is_jumped())
        });
        missing.extend(meets.cloned());
    }
    missing
}
