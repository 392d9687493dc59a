//! Plans: what to merge, as pure data; and what a plan may take on at most.

use std::{collections::BTreeMap, fmt, sync::Arc};

use super::Footprint;
use crate::{
    config::LocalConfig,
    manifest::{Pins, Version, WindowVersion},
    types::{KeyRange, RangeDelete, Retention, SstId, SstMeta, Window},
};

/// Why a plan was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanReason {
    /// The window has as many level-0 runs as the trigger.
    L0Runs,
    /// A level is larger than it should be.
    LevelSize,
    /// Neighbouring runs are of similar size.
    Tier,
    /// The window is past and quiet: it is brought into its resting shape.
    Settle,
    /// Many of an SST's rows are tombstones: they move to where they can be dropped.
    Tombstones,
    /// An SST has rows that are range-deleted: it is rewritten without them.
    RangeDeletes,
    /// Somebody called `compact`.
    Manual,
}

impl fmt::Display for PlanReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::L0Runs => "level-0 runs",
            Self::LevelSize => "level size",
            Self::Tier => "tier",
            Self::Settle => "settle",
            Self::Tombstones => "tombstones",
            Self::RangeDeletes => "range deletes",
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
    /// A trivial move: no input meets anything at the target, so a change of their level is all it takes.
    pub moves: bool,
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

    /// Whether it makes level 0 smaller.
    pub fn relieves_level_0(&self) -> bool {
        self.reason == PlanReason::L0Runs
    }

    /// What it occupies while it runs.
    pub fn footprint(&self) -> Footprint {
        Footprint::new(self.window, &self.inputs, self.level_target)
    }

    /// What a merge of the inputs may drop, given the version that it was planned on, and what readers pin.
    pub fn retention(&self, version: &Version, pins: Pins) -> Retention {
        let is_hidden_from =
            |delete: &&RangeDelete| self.inputs.iter().any(|sst| sst.may_be_hidden_by(delete));
        let deletes = version.range_deletes.iter().filter(is_hidden_from);
        Retention {
            read_points: pins.read_points,
            drop_tombstones: !older_data_remains(version, self.window, &self.inputs),
            expiry: pins.expiry,
            range_deletes: deletes.copied().collect(),
        }
    }
}

/// Whether data that may be older than some of `inputs`, and shares keys with them, lives in `window`
/// outside of them: then their merge must keep its tombstones.
pub(super) fn older_data_remains(
    version: &Version,
    window: Window,
    inputs: &[Arc<SstMeta>],
) -> bool {
    let seq_max = inputs.iter().map(|sst| sst.seq_max).max();
    let min = inputs.iter().map(|sst| &sst.key_min).min();
    let max = inputs.iter().map(|sst| &sst.key_max).max();
    let (Some(seq_max), Some(min), Some(max)) = (seq_max, min, max) else {
        return false;
    };
    let ids: Vec<SstId> = inputs.iter().map(|sst| sst.id).collect();
    version.older_data_remains(window, &KeyRange::closed(min, max), seq_max, &ids)
}

/// What one job may take on. Planners keep to it, so that whoever runs a job need not refuse it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the inputs.
    pub input_bytes_max: u64,
    /// Number of inputs; as many outputs, at their target size, may come of them.
    pub ssts_max: usize,
    /// Memory that merging them needs, by [`memory_estimate`].
    pub memory_bytes_max: u64,
    /// Size of an output.
    pub sst_bytes_target: u64,
}

impl Limits {
    /// Whether a job may take all of `inputs`.
    pub fn allow(&self, inputs: &[Arc<SstMeta>]) -> bool {
        let bytes: u64 = inputs.iter().map(|sst| sst.bytes).sum();
        bytes <= self.input_bytes_max && self.allow_smallest(inputs)
    }

    /// Whether a job may take all of `inputs` when there is no smaller one that helps. Bytes alone are then
    /// no hindrance: the merge streams them, task by task.
    pub fn allow_smallest(&self, inputs: &[Arc<SstMeta>]) -> bool {
        let bytes: u64 = inputs.iter().map(|sst| sst.bytes).sum();
        let outputs = bytes / self.sst_bytes_target.max(1);
        inputs.len().max(outputs as usize) <= self.ssts_max
            && memory_estimate(inputs) <= self.memory_bytes_max
    }
}

/// Inputs of one job at most: their names and bounds must fit into a manifest record and a message.
pub const SSTS_PER_JOB_MAX: usize = 20_000;

/// Memory for the encoded bytes and decoded rows of one sorted source at most: a row group being decoded
/// and the next being fetched, each of up to 32 MiB.
const SOURCE_BYTES_MAX: u64 = 64 << 20;
/// Memory for the output: a row group being encoded, parts of it on their way.
const OUTPUT_BYTES: u64 = 64 << 20;
// Two runs can always be merged.
const _: () = assert!(2 * SOURCE_BYTES_MAX + OUTPUT_BYTES <= LocalConfig::MEMORY_BYTES_MIN);

/// About how many bytes of memory a merge of `inputs` needs. Of a run one SST is open at a time; each SST
/// of level 0 is a run.
pub fn memory_estimate<'a>(inputs: impl IntoIterator<Item = &'a Arc<SstMeta>>) -> u64 {
    merge_memory(inputs.into_iter().map(|sst| Source {
        level: sst.level,
        bytes: sst.bytes,
        memory: sst.bytes.saturating_mul(2),
    }))
}

/// What is known of an input of a merge.
pub(super) struct Source {
    pub(super) level: u8,
    /// Encoded bytes that are read of it.
    pub(super) bytes: u64,
    /// Bytes of memory that it needs while it is open, at most.
    pub(super) memory: u64,
}

/// About how many bytes of memory a merge of `sources` needs.
pub(super) fn merge_memory(sources: impl Iterator<Item = Source>) -> u64 {
    let (mut level_0, mut written) = (0, 0u64);
    let mut runs: BTreeMap<u8, u64> = BTreeMap::new();
    for source in sources {
        let memory = source.memory.min(SOURCE_BYTES_MAX);
        written = written.saturating_add(source.bytes);
        match source.level {
            0 => level_0 += memory,
            level => {
                let run = runs.entry(level).or_default();
                *run = memory.max(*run);
            }
        }
    }
    level_0 + runs.into_values().sum::<u64>() + written.min(OUTPUT_BYTES)
}

/// Whether changing the level of `inputs` to `level_target` is all that merging them would do: they are
/// disjoint by key, none is at the target already, no tombstone could be dropped, and several are not so
/// small that they had better become one.
pub(super) fn is_move(
    version: &Version,
    inputs: &[Arc<SstMeta>],
    level_target: u8,
    sst_bytes_target: u64,
) -> bool {
    let Some(window) = inputs.first().map(|sst| sst.window) else {
        return false;
    };
    let mut sorted: Vec<&Arc<SstMeta>> = inputs.iter().collect();
    sorted.sort_by(|left, right| left.key_min.cmp(&right.key_min));
    let is_disjoint = sorted
        .windows(2)
        .all(|pair| pair[0].key_max < pair[1].key_min);
    let is_large = |sst: &Arc<SstMeta>| sst.bytes >= sst_bytes_target / 2;
    let is_new_to_target = inputs.iter().all(|sst| sst.level != level_target);
    let keeps_tombstones =
        inputs.iter().all(|sst| sst.tombstones == 0) || older_data_remains(version, window, inputs);
    is_new_to_target
        && is_disjoint
        && (inputs.len() == 1 || inputs.iter().all(is_large))
        && keeps_tombstones
}

/// The deepest level of `ssts` that holds anything.
pub(super) fn deepest_level(ssts: &WindowVersion) -> Option<u8> {
    ssts.levels.keys().next_back().copied()
}
