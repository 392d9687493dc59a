//! What nobody can see any more, from metadata alone: pure functions over a version.

use std::collections::HashSet;

use super::{Departure, Pins, SstRef, Version};
use crate::types::{Seq, SstId, SstMeta};

/// SSTs all of whose rows are expired or range-deleted for every reader, and which of the two. They can leave the
/// version without being read. Inputs of recorded jobs are left to their jobs.
pub fn hidden_ssts(version: &Version, pins: &Pins) -> Vec<(SstRef, Departure)> {
    let expiry = pins.expiry;
    if expiry.is_none() && version.range_deletes.is_empty() {
        return Vec::new();
    }
    let inputs = version.jobs.values().flat_map(|job| &job.inputs);
    let inputs: HashSet<&SstId> = inputs.collect();
    let is_expired = |sst: &SstMeta| {
        let (Some(expiry), Some((_, max))) = (expiry, sst.times) else {
            return false;
        };
        max < expiry
    };
    let is_deleted = |sst: &SstMeta| {
        let mut deletes = version.range_deletes.iter();
        deletes.any(|delete| {
            let is_seen = |point: &Seq| (sst.seq_min..delete.seq).contains(point);
            sst.is_hidden_by(delete) && !pins.read_points.iter().any(is_seen)
        })
    };
    let ssts = version.ssts().filter(|sst| !inputs.contains(&sst.id));
    let hidden = ssts.filter_map(|sst| {
        let departure = match (is_expired(sst), is_deleted(sst)) {
            (true, _) => Departure::Expired,
            (false, true) => Departure::RangeDeleted,
            (false, false) => return None,
        };
        Some((sst.as_ref().into(), departure))
    });
    hidden.collect()
}

/// Range deletes that hide no row of an SST, and none that is still to be flushed: those have seqs from
/// `unflushed` on.
pub fn ended_range_deletes(version: &Version, unflushed: Seq) -> Vec<Seq> {
    let deletes = version.range_deletes.iter();
    let ended = deletes.filter(|delete| {
        let hides = |sst: &SstMeta| sst.applied_seq < delete.seq && sst.may_be_hidden_by(delete);
        delete.seq <= unflushed && !version.ssts().any(|sst| hides(sst))
    });
    ended.map(|delete| delete.seq).collect()
}
