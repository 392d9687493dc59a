//! What the manifest knows of an SST.

use super::{Key, KeyRange, Seq, SstId, Window};

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
    /// Sum over its rows of a 64-bit hash of (key, seq), wrapping: equal for equal sets of rows.
    pub rows_hash: u64,
}

impl SstMeta {
    /// The keys it spans.
    pub fn key_range(&self) -> KeyRange {
        KeyRange::closed(&self.key_min, &self.key_max)
    }

    /// Whether the two can hold the same key.
    pub fn overlaps(&self, other: &SstMeta) -> bool {
        self.window == other.window
            && self.key_min <= other.key_max
            && other.key_min <= self.key_max
    }
}
