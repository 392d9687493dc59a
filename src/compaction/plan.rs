//! Plans: what to merge, as pure data.

use std::{fmt, sync::Arc};

use crate::{
    manifest::{Pins, Version},
    types::{KeyRange, RangeDelete, Retention, SstId, SstMeta, Window},
};

/// Why a plan was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanReason {
    /// The window has as many level-0 runs as the trigger.
    L0Runs,
    /// The window is past and quiet: it is brought into its resting shape.
    Settle,
    /// Somebody called `compact`.
    Manual,
}

impl fmt::Display for PlanReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::L0Runs => "level-0 runs",
            Self::Settle => "settle",
            Self::Manual => "manual",
        })
    }
}

/// What to merge into what.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The window of inputs and outputs.
    pub window: Window,
    /// SSTs to merge, at least one.
    pub inputs: Vec<Arc<SstMeta>>,
    /// Level of the outputs.
    pub level_target: u8,
    /// Why.
    pub reason: PlanReason,
    /// How urgent: a plan of a higher score goes first. 1.0 is at the trigger.
    pub score: f64,
}

impl Plan {
    /// Bytes of the inputs.
    pub fn input_bytes(&self) -> u64 {
        self.inputs.iter().map(|sst| sst.bytes).sum()
    }

    /// Names of the inputs.
    pub fn input_ids(&self) -> Vec<SstId> {
        self.inputs.iter().map(|sst| sst.id).collect()
    }

    /// The keys from the least to the greatest of the inputs.
    pub fn key_range(&self) -> KeyRange {
        let min = self.inputs.iter().map(|sst| &sst.key_min).min();
        let max = self.inputs.iter().map(|sst| &sst.key_max).max();
        match (min, max) {
            (Some(min), Some(max)) => KeyRange::closed(min, max),
            _ => KeyRange::ALL,
        }
    }

    /// What a merge of the inputs may drop, given the version that it was planned on, and what readers pin.
    pub fn retention(&self, version: &Version, pins: Pins) -> Retention {
        let seq_max = self
            .inputs
            .iter()
            .map(|sst| sst.seq_max)
            .max()
            .unwrap_or_default();
        let inputs = self.input_ids();
        let older = version.older_data_remains(self.window, &self.key_range(), seq_max, &inputs);
        let is_hidden_from =
            |delete: &&RangeDelete| self.inputs.iter().any(|sst| sst.may_be_hidden_by(delete));
        let deletes = version.range_deletes.iter().filter(is_hidden_from);
        Retention {
            read_points: pins.read_points,
            drop_tombstones: !older,
            expiry: pins.expiry,
            range_deletes: deletes.copied().collect(),
        }
    }
}
