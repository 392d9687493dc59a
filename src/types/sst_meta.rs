//! What the manifest knows of an SST.

use super::{Key, KeyRange, RangeDelete, Seq, SstId, TableId, Window};

/// One immutable Parquet object, as metadata. Level 0 holds flushed SSTs, each a sorted run of its
/// own; in a window, the SSTs of each higher level form one run: sorted and disjoint by key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(alias = "file")]
pub struct SstMeta {
    /// Its name.
    pub id: SstId,
    /// 0 when flushed, 1 and up when compacted.
    pub level: u8,
    /// The window all of its rows lie in.
    pub window: Window,
    /// Size of the object.
    pub bytes: u64,
    /// Rows in it, tombstones and shadowed versions included.
    pub rows: u64,
    /// Rows in it that delete their key.
    pub tombstones: u64,
    /// Its least key.
    pub key_min: Key,
    /// Its greatest key, inclusive.
    pub key_max: Key,
    /// The least seq of a row in it.
    pub seq_min: Seq,
    /// The greatest seq of a row in it.
    pub seq_max: Seq,
    /// Least and greatest time in it, when the table has a time column.
    pub times: Option<(i64, i64)>,
    /// Version of the table's schema it was written with.
    pub schema_version: u32,
    /// Range deletes up to this seq hide none of its rows: they were applied when it was written.
    pub applied_seq: Seq,
    /// Sum over its rows of a 64-bit hash of (key, seq), wrapping: equal for equal sets of rows.
    pub rows_hash: u64,
    /// The table that wrote it and whose folder it is in, when that is another one: this table is a clone.
    pub home: Option<TableId>,
}

impl SstMeta {
    /// One for tests, as simple as can be: one row at level 0, without a window, written by this table. `keys` are
    /// the least and the greatest, as in `"c-f"`.
    #[cfg(test)]
    pub(crate) fn sample(id: SstId, keys: &str) -> Self {
        let (min, max) = keys.split_once('-').unwrap();
        Self {
            id,
            level: 0,
            window: Window::ALL,
            bytes: 1,
            rows: 1,
            tombstones: 0,
            key_min: Key::from(min.as_bytes()),
            key_max: Key::from(max.as_bytes()),
            seq_min: Seq(1),
            seq_max: Seq(1),
            times: None,
            schema_version: 1,
            applied_seq: Seq(0),
            rows_hash: 0,
            home: None,
        }
    }

    /// The table whose folder it is in, given the one whose manifest has it.
    pub fn home_in(&self, table: TableId) -> TableId {
        self.home.unwrap_or(table)
    }

    /// The keys it spans.
    pub fn key_range(&self) -> KeyRange {
        KeyRange::closed(&self.key_min, &self.key_max)
    }

    /// Whether `delete` can hide a row of it.
    pub fn may_be_hidden_by(&self, delete: &RangeDelete) -> bool {
        let in_times = |(min, max)| delete.times.overlaps(min, max);
        self.seq_min < delete.seq && self.times.is_some_and(in_times)
    }

    /// Whether `delete` hides every row of it.
    pub fn is_hidden_by(&self, delete: &RangeDelete) -> bool {
        let in_times = |(min, max)| delete.times.covers(min, max);
        self.seq_max < delete.seq && self.times.is_some_and(in_times)
    }

    /// Whether the two have rows that can have the same key, by what is in them: the time is part of a key.
    pub fn may_share_keys(&self, other: &SstMeta) -> bool {
        let in_time = match (self.times, other.times) {
            (Some((min, max)), Some((least, greatest))) => min <= greatest && least <= max,
            _ => true,
        };
        in_time && self.key_min <= other.key_max && other.key_min <= self.key_max
    }

    /// Whether the two can hold the same key, by where they are: what comes to either window later, too.
    pub fn overlaps(&self, other: &SstMeta) -> bool {
        self.window.overlaps(other.window)
            && self.key_min <= other.key_max
            && other.key_min <= self.key_max
    }
}
