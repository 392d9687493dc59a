//! What a sweep came to, by reasons.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Kept;

/// What a sweep came to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Swept {
    /// Objects deleted, by [reason](super::Deleted::as_str).
    pub deleted: BTreeMap<&'static str, u64>,
    /// Objects kept, by [reason](Kept::as_str).
    pub kept: BTreeMap<&'static str, u64>,
    /// What was not deleted although it could have been, and why.
    pub failed: Vec<String>,
    /// Checkpoints that cannot be read, and so hold all.
    pub checkpoints_damaged: u64,
}

/// What checkpoints keep of a table that has left it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldBack {
    /// SSTs.
    pub ssts: u64,
    /// Checkpoints that cannot be read, and so hold all.
    pub checkpoints_damaged: u64,
}

impl Swept {
    /// Adds what another sweep came to.
    pub fn add(&mut self, other: Self) {
        for (sum, more) in [
            (&mut self.deleted, other.deleted),
            (&mut self.kept, other.kept),
        ] {
            for (reason, objects) in more {
                *sum.entry(reason).or_default() += objects;
            }
        }
        self.failed.extend(other.failed);
        self.checkpoints_damaged += other.checkpoints_damaged;
    }

    /// What checkpoints kept from being deleted.
    pub fn held_back(&self) -> HeldBack {
        let held = Kept::Held(String::new());
        let ssts = self.kept.get(held.as_str());
        HeldBack {
            ssts: ssts.copied().unwrap_or_default(),
            checkpoints_damaged: self.checkpoints_damaged,
        }
    }

    /// Objects deleted, for whatever reason.
    pub fn objects_deleted(&self) -> u64 {
        self.deleted.values().sum()
    }

    /// Whether a checkpoint kept something from being deleted.
    pub fn is_held(&self) -> bool {
        let checkpoint = Kept::Checkpoint;
        self.kept.contains_key(checkpoint.as_str())
    }
}
