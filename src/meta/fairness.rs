//! Whose turn it is: weighted round robin over owners, one task a turn, so that a database with ten thousand
//! tasks does not keep one with ten waiting. Pure.
//!
//! Each owner has a virtual time, which a task that it is given moves on by one over its weight; the owner
//! with the least is next. One that was away begins at the time of the others: turns cannot be saved up.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
};

use super::state::Settings;
use crate::types::OwnerId;

/// What a task costs an owner of weight 1. Divided by each weight up to [`Settings::WEIGHT_MAX`] it leaves
/// enough to tell them apart.
const TASK_COST: u64 = 1 << 20;

/// The virtual times of owners that have tasks, or have just had some.
#[derive(Clone, Debug, Default)]
pub(super) struct Fairness {
    times: BTreeMap<OwnerId, u64>,
    now: u64,
}

impl Fairness {
    /// A round of turns over `owners`, which are all that have tasks.
    pub(super) fn round<'a>(&'a mut self, owners: impl Iterator<Item = &'a OwnerId>) -> Round<'a> {
        let now = self.now;
        // One that has just run out of tasks keeps its time until the others have caught up.
        self.times.retain(|_, time| *time > now);
        let turns = owners.map(|owner| {
            let time = self.times.get(owner).copied().unwrap_or_default();
            Reverse((time.max(now), owner))
        });
        Round {
            turns: turns.collect(),
            kept: BTreeMap::new(),
            fairness: self,
        }
    }
}

/// Turns, one after the other.
pub(super) struct Round<'a> {
    fairness: &'a mut Fairness,
    turns: BinaryHeap<Reverse<(u64, &'a OwnerId)>>,
    /// What owners would have paid for tasks that are kept.
    kept: BTreeMap<&'a OwnerId, u64>,
}

impl<'a> Round<'a> {
    /// The owner whose turn it is, and its time. It is out of the round unless it is [served](Self::served) or
    /// [kept](Self::kept).
    pub(super) fn next(&mut self) -> Option<Turn<'a>> {
        let Reverse((time, owner)) = self.turns.pop()?;
        // Time goes with the one that is furthest behind, and has something to do.
        let kept = self.kept.get(owner).copied().unwrap_or_default();
        self.fairness.now = self.fairness.now.max(time - kept);
        Some(Turn { owner, time })
    }

    /// The owner of `turn` was given a task; it has its next turn in its order.
    pub(super) fn served(&mut self, turn: Turn<'a>, settings: &Settings) {
        let Turn { owner, time } = turn;
        let kept = self.kept.get(owner).copied().unwrap_or_default();
        let time = time + cost(owner, settings);
        self.fairness.times.insert(owner.clone(), time - kept);
        self.turns.push(Reverse((time, owner)));
    }

    /// A task is kept for a node that will be back at once: that is a turn in this round only.
    pub(super) fn kept(&mut self, turn: Turn<'a>, settings: &Settings) {
        let Turn { owner, time } = turn;
        let cost = cost(owner, settings);
        *self.kept.entry(owner).or_default() += cost;
        self.turns.push(Reverse((time + cost, owner)));
    }
}

/// An owner's turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn<'a> {
    pub(super) owner: &'a OwnerId,
    /// Its virtual time.
    time: u64,
}

fn cost(owner: &OwnerId, settings: &Settings) -> u64 {
    TASK_COST / u64::from(settings.weight(owner))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::state::Setting;

    /// Serves `turns` turns to `owners`, which never run out of tasks; tells how many each had.
    fn served(
        fairness: &mut Fairness,
        owners: &[&str],
        settings: &Settings,
        turns: usize,
    ) -> BTreeMap<String, usize> {
        let owners: Vec<OwnerId> = owners.iter().map(|&owner| owner.into()).collect();
        let mut served = BTreeMap::new();
        let mut left = turns;
        // Rounds are of any length.
        for length in (1..6).cycle() {
            let mut round = fairness.round(owners.iter());
            for _ in 0..length.min(left) {
                let turn = round.next().unwrap();
                *served.entry(turn.owner.0.clone()).or_default() += 1;
                round.served(turn, settings);
            }
            left = left.saturating_sub(length);
            if left == 0 {
                break;
            }
        }
        served
    }

    fn counts<const N: usize>(counts: [(&str, usize); N]) -> BTreeMap<String, usize> {
        counts
            .map(|(owner, count)| (owner.to_owned(), count))
            .into()
    }

    #[test]
    fn equals_get_equal_shares() {
        let mut fairness = Fairness::default();
        let all = served(&mut fairness, &["a", "b", "c"], &Settings::default(), 300);
        assert_eq!(all, counts([("a", 100), ("b", 100), ("c", 100)]));
    }

    #[test]
    fn weights_of_three_to_one_give_three_to_one() {
        let settings = Settings::default().with(&Setting::Weight("a".into(), 3));
        let all = served(&mut Fairness::default(), &["a", "b"], &settings, 400);
        assert_eq!(all, counts([("a", 300), ("b", 100)]));
    }

    #[test]
    fn who_was_away_has_saved_nothing_up() {
        let (mut fairness, settings) = (Fairness::default(), Settings::default());
        served(&mut fairness, &["a", "b"], &settings, 20);
        served(&mut fairness, &["a"], &settings, 1000);
        let all = served(&mut fairness, &["a", "b"], &settings, 20);
        assert!(all["a"] >= 9 && all["b"] >= 9, "{all:?}");
    }
}
