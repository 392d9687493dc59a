//! Which versions of a key a merge may drop. Fixed when a job is planned, so that every attempt at it
//! decides alike.

use super::{RangeDelete, Seq};

/// Rules by which a merge drops or combines rows. In an append table only deletes hide rows.
///
/// Of each key of an upsert table a merge keeps the newest version, and for each read point the newest version that is not
/// newer than the read point. All others are shadowed; or, where columns combine, combined with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Seqs of pinned snapshots, ascending, each once.
    pub read_points: Vec<Seq>,
    /// Whether a tombstone that no read point needs may go: only if nothing older that overlaps the
    /// inputs remains outside of them.
    pub drop_tombstones: bool,
    /// Rows with an earlier time are expired, for every reader; in the unit of the time column.
    pub expiry: Option<i64>,
    /// Range deletes that can hide rows of the inputs, by ascending seq.
    pub range_deletes: Vec<RangeDelete>,
}

impl Retention {
    /// The seq up to which range deletes hide nothing in what comes out: a read point below a range delete may
    /// keep rows that it hides from others.
    pub fn applied_seq(&self) -> Seq {
        let pinned = self.read_points.first();
        let applied = self.range_deletes.iter().map(|delete| delete.seq);
        let applied = applied.filter(|seq| pinned.is_none_or(|point| point >= seq));
        applied.max().unwrap_or_default()
    }
}
