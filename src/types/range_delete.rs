//! Deletes of all rows in a time range: one line in the manifest each, whatever number of rows they hide.

use super::{Seq, TimeRange};

/// Hides every row with a lower seq whose time lies in a range. Since time is part of the key, this is a
/// tombstone for every key with such a time, at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "range tombstone")]
pub struct RangeDelete {
    /// Its place in the order of writes.
    pub seq: Seq,
    /// The times, in the unit of the time column.
    pub times: TimeRange,
}

impl RangeDelete {
    /// The least seq above `seq` at which one of `deletes` hides rows at `time`.
    pub fn hider(deletes: &[RangeDelete], seq: Seq, time: i64) -> Option<Seq> {
        let hides = |delete: &&RangeDelete| delete.seq > seq && delete.times.contains(time);
        deletes.iter().filter(hides).map(|delete| delete.seq).min()
    }
}
