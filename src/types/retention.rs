//! Which versions of a key a merge may drop. Fixed when a job is planned, so that every attempt at it
//! decides alike.

use super::Seq;

/// Rules by which a merge drops rows. In an append table only a tombstone hides rows.
///
/// Of each key of an upsert table a merge keeps the newest version, and for each read point the newest version that is not
/// newer than the read point. All others are shadowed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Seqs of pinned snapshots, ascending, each once.
    pub read_points: Vec<Seq>,
    /// Whether a tombstone that no read point needs may go: only if nothing older that overlaps the
    /// inputs remains outside of them.
    pub drop_tombstones: bool,
}
