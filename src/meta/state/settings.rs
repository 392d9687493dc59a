//! What operators have set: the weights of owners, and what is paused.

use std::collections::{BTreeMap, BTreeSet};

use crate::types::{OwnerId, TableId};

/// What operators have set. It outlives jobs, restarts and the owners themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Shares of the fleet; an owner that is not listed has [`WEIGHT`](Self::WEIGHT).
    pub weights: BTreeMap<OwnerId, u32>,
    /// Owners whose tasks are not given out.
    pub paused_owners: BTreeSet<OwnerId>,
    /// Tables whose tasks are not given out.
    pub paused_tables: BTreeSet<TableId>,
}

/// A change of what operators have set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Setting {
    /// An owner's share of the fleet, in proportion to those of the others; at least 1.
    Weight(OwnerId, u32),
    /// Whether an owner's tasks are kept back.
    PauseOwner(OwnerId, bool),
    /// Whether a table's tasks are kept back.
    PauseTable(TableId, bool),
}

impl Settings {
    /// The weight of an owner for which nothing was set.
    pub const WEIGHT: u32 = 1;
    /// The greatest weight.
    pub const WEIGHT_MAX: u32 = 1000;

    /// The weight of `owner`.
    pub fn weight(&self, owner: &OwnerId) -> u32 {
        self.weights.get(owner).copied().unwrap_or(Self::WEIGHT)
    }

    /// The same with `setting`.
    #[must_use]
    pub fn with(&self, setting: &Setting) -> Self {
        fn put<T: Clone + Ord>(set: &mut BTreeSet<T>, item: &T, is_in: bool) {
            match is_in {
                true => set.insert(item.clone()),
                false => set.remove(item),
            };
        }
        let mut settings = self.clone();
        match setting {
            Setting::Weight(owner, weight) => {
                let weight = (*weight).clamp(1, Self::WEIGHT_MAX);
                settings.weights.insert(owner.clone(), weight);
                if weight == Self::WEIGHT {
                    settings.weights.remove(owner);
                }
            }
            Setting::PauseOwner(owner, paused) => put(&mut settings.paused_owners, owner, *paused),
            Setting::PauseTable(table, paused) => put(&mut settings.paused_tables, table, *paused),
        }
        settings
    }
}
