//! One window as a planner sees it, and the picks that all planners share.

use std::{cell::RefCell, collections::HashSet, fmt, sync::Arc};

use super::{LEVEL_BOTTOM, PlannerConfig, Situation, order};
use crate::{
    compaction::{
        Footprint, Plan, PlanReason,
        plan::{deepest_level, is_move},
    },
    manifest::{Pins, Version, WindowVersion},
    types::{PlannerKind, Seq, SstId, SstMeta, Window},
};

/// A window, and what of it is free.
pub(super) struct Scene<'a> {
    pub(super) version: &'a Version,
    pub(super) config: &'a PlannerConfig,
    pub(super) window: Window,
    pub(super) ssts: &'a WindowVersion,
    pub(super) pins: &'a Pins,
    pub(super) now_ms: u64,
    claimed: &'a HashSet<SstId>,
    held: &'a HashSet<SstId>,
    /// What the running jobs of the window occupy.
    jobs: Vec<&'a Footprint>,
    /// Picks that came to nothing, for explanations.
    rejected: RefCell<Vec<Rejected>>,
}

/// A pick that came to nothing, and the rule that it broke.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rejected {
    pub(super) reason: PlanReason,
    pub(super) inputs: usize,
    pub(super) bytes: u64,
    pub(super) level_target: u8,
    pub(super) rule: Rule,
}

/// A rule that a pick can break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// It is more than one job may take.
    Limits,
    /// A job has this input.
    Claimed(SstId),
    /// This input is held, because a job with it failed.
    Held(SstId),
    /// A running job works where the outputs would go.
    InTheWay,
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (inputs, bytes, level) = (self.inputs, self.bytes, self.level_target);
        let reason = self.reason;
        write!(
            f,
            "{inputs} SSTs ({bytes} bytes) into level {level}, for {reason}: "
        )?;
        match self.rule {
            Rule::Limits => f.write_str("more than one job may take"),
            Rule::Claimed(sst) => write!(f, "a running job has {sst}"),
            Rule::Held(sst) => write!(f, "{sst} is in quarantine, because a job with it failed"),
            Rule::InTheWay => f.write_str("a running job works where the outputs would go"),
        }
    }
}

/// What a pick is to become.
#[derive(Clone, Copy)]
pub(super) struct Aim {
    pub(super) level_target: u8,
    pub(super) reason: PlanReason,
    pub(super) score: f64,
}

/// How strictly a pick keeps to the limits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Size {
    /// Wholly.
    Limited,
    /// But for the bytes: there is no smaller pick that helps.
    Smallest,
}

impl<'a> Scene<'a> {
    /// The windows of a version.
    pub(super) fn all(
        situation: &Situation<'a>,
        config: &'a PlannerConfig,
    ) -> impl Iterator<Item = Scene<'a>> {
        let situation = *situation;
        let windows = situation.version.windows.iter();
        windows.map(move |(&window, ssts)| {
            let jobs = situation.claimed.jobs.iter().map(Arc::as_ref);
            Scene {
                version: situation.version,
                config,
                window,
                ssts,
                pins: situation.pins,
                now_ms: situation.now_ms,
                claimed: &situation.claimed.ssts,
                held: situation.held,
                jobs: jobs.filter(|job| job.window == window).collect(),
                rejected: RefCell::default(),
            }
        })
    }

    /// The SSTs of level 0 that may be merged, oldest first.
    pub(super) fn level_0(&self) -> Vec<Arc<SstMeta>> {
        let order_matters = self.version.schema.order_matters();
        let (mut free, mut blocked): (Vec<Arc<SstMeta>>, Vec<&Arc<SstMeta>>) = Default::default();
        for sst in &self.ssts.l0 {
            let is_held = self.held.contains(&sst.id);
            let is_claimed = self.claimed.contains(&sst.id);
            let is_above = blocked.iter().any(|older| older.overlaps(sst));
            if is_claimed || is_above || (is_held && order_matters) {
                blocked.push(sst);
            } else if !is_held {
                free.push(sst.clone());
            }
        }
        free
    }

    /// The level that holds the oldest data of the window, or the one where it would be.
    pub(super) fn deepest(&self) -> u8 {
        deepest_level(self.ssts).unwrap_or(match self.version.schema.planner() {
            PlannerKind::TimeWindow => 1,
            PlannerKind::Leveled | PlannerKind::Tiered => LEVEL_BOTTOM,
        })
    }

    /// How urgent level 0 is, if it has runs enough to be merged.
    pub(super) fn level_0_score(&self, l0: &[Arc<SstMeta>]) -> f64 {
        l0.len() as f64 / self.config.l0_runs_trigger as f64
    }

    /// As many of `l0`, which is free and oldest first, as one job may take; one at the least. While what
    /// they meet at the target is more than they are, taking more of them is cheaper than a second job.
    pub(super) fn pick_level_0(&self, l0: &[Arc<SstMeta>], aim: Aim) -> Option<Plan> {
        let mut best: Option<Plan> = None;
        for count in 1..=l0.len() {
            let l0_bytes: u64 = l0[..count].iter().map(|sst| sst.bytes).sum();
            let Some(plan) = self.pick(l0[..count].to_vec(), aim, Size::Smallest) else {
                break;
            };
            let is_mostly_below = l0_bytes <= plan.input_bytes() - l0_bytes;
            let is_allowed = count == 1
                || is_mostly_below
                || plan.input_bytes() <= self.config.limits.input_bytes_max;
            if !is_allowed {
                break;
            }
            best = Some(plan);
        }
        best
    }

    /// `seeds`, and what their merge must not leave out; `None` when some of that is not free, or more than
    /// a job may take.
    pub(super) fn pick(&self, seeds: Vec<Arc<SstMeta>>, aim: Aim, size: Size) -> Option<Plan> {
        let none = HashSet::new();
        let passed = match self.version.schema.order_matters() {
            true => &none,
            false => self.held,
        };
        let inputs = order::complete(self.ssts, seeds, aim.level_target, passed);
        let limits = &self.config.limits;
        let is_allowed = match size {
            Size::Limited => limits.allow(&inputs),
            Size::Smallest => limits.allow_smallest(&inputs),
        };
        let footprint = Footprint::new(self.window, &inputs, aim.level_target);
        let broken = if !is_allowed {
            Some(Rule::Limits)
        } else if let Some(sst) = inputs.iter().find(|sst| self.claimed.contains(&sst.id)) {
            Some(Rule::Claimed(sst.id))
        } else if let Some(sst) = inputs.iter().find(|sst| self.held.contains(&sst.id)) {
            Some(Rule::Held(sst.id))
        } else {
            let is_apart = self.jobs.iter().all(|job| job.is_apart(&footprint));
            (!is_apart).then_some(Rule::InTheWay)
        };
        if let Some(rule) = broken {
            self.rejected.borrow_mut().push(Rejected {
                reason: aim.reason,
                inputs: inputs.len(),
                bytes: inputs.iter().map(|sst| sst.bytes).sum(),
                level_target: aim.level_target,
                rule,
            });
            return None;
        }
        let moves = is_move(
            self.version,
            &inputs,
            aim.level_target,
            limits.sst_bytes_target,
        ) && !inputs.iter().any(|sst| self.hides_rows(sst));
        Some(Plan {
            window: self.window,
            inputs,
            level_target: aim.level_target,
            reason: aim.reason,
            score: aim.score,
            moves,
        })
    }

    /// Of the free SSTs of `run` the one that meets fewest bytes at the target, for its size; the oldest of
    /// equals.
    pub(super) fn pick_one(&self, run: &[Arc<SstMeta>], aim: Aim) -> Option<Plan> {
        let below = self.ssts.levels.get(&aim.level_target);
        let below = below.map_or(&[][..], Vec::as_slice);
        let mut candidates: Vec<(f64, Seq, &Arc<SstMeta>)> = run
            .iter()
            .filter(|sst| self.is_free(sst))
            .map(|sst| {
                let met = order::meeting(below, std::slice::from_ref(sst));
                let met: u64 = met.iter().map(|sst| sst.bytes).sum();
                (met as f64 / sst.bytes.max(1) as f64, sst.seq_min, sst)
            })
            .collect();
        candidates.sort_by(|left, right| left.0.total_cmp(&right.0).then(left.1.cmp(&right.1)));
        let mut plans = candidates
            .into_iter()
            .filter_map(|(_, _, sst)| self.pick(vec![sst.clone()], aim, Size::Smallest));
        plans.next()
    }

    /// Whether `sst` has rows that are expired or range-deleted for every reader, as far as its bounds tell.
    pub(super) fn hides_rows(&self, sst: &SstMeta) -> bool {
        let is_expired = match (self.pins.expiry, sst.times) {
            (Some(expiry), Some((min, _))) => min < expiry,
            _ => false,
        };
        is_expired || self.has_deleted_rows(sst)
    }

    /// Whether `sst` has rows that are range-deleted for every reader, as far as its bounds tell.
    pub(super) fn has_deleted_rows(&self, sst: &SstMeta) -> bool {
        let is_pinned = |seq: Seq| self.pins.read_points.iter().any(|&point| point < seq);
        self.version.range_deletes.iter().any(|delete| {
            sst.applied_seq < delete.seq && sst.may_be_hidden_by(delete) && !is_pinned(delete.seq)
        })
    }

    /// Picks that came to nothing so far.
    pub(super) fn rejected(&self) -> Vec<Rejected> {
        self.rejected.borrow().clone()
    }

    /// SSTs of level 0 that a job has, and those that are held.
    pub(super) fn level_0_taken(&self) -> (usize, usize) {
        let count = |set: &HashSet<SstId>| {
            let l0 = self.ssts.l0.iter();
            l0.filter(|sst| set.contains(&sst.id)).count()
        };
        (count(self.claimed), count(self.held))
    }

    pub(super) fn is_free(&self, sst: &SstMeta) -> bool {
        !self.claimed.contains(&sst.id) && !self.held.contains(&sst.id)
    }
}
