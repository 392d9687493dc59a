//! What an SST's rows have in common, taken while they are written, and their order checked.

use std::{cmp::Ordering, mem};

use super::filter;
use crate::types::{Key, RowSum, Seq, WriteMode, row_hash};

/// Bounds, counts and hash of the rows so far.
pub(super) struct Bounds {
    /// Whether rows may be equal in key and seq.
    twins: bool,
    pub(super) key_min: Key,
    pub(super) key_last: Vec<u8>,
    seq_last: Seq,
    pub(super) seq_min: Seq,
    pub(super) seq_max: Seq,
    pub(super) times: Option<(i64, i64)>,
    pub(super) tombstones: u64,
    /// Different keys.
    pub(super) keys: u64,
    pub(super) sum: RowSum,
    /// Hashes of the keys, each once, when there is to be a filter.
    key_hashes: Option<Vec<u64>>,
}

impl Bounds {
    pub(super) fn new(mode: WriteMode, filter: bool) -> Self {
        Self {
            twins: mode == WriteMode::Append,
            key_min: Key::default(),
            key_last: Vec::new(),
            seq_last: Seq(0),
            seq_min: Seq(u64::MAX),
            seq_max: Seq(0),
            times: None,
            tombstones: 0,
            keys: 0,
            sum: RowSum::default(),
            key_hashes: filter.then(Vec::new),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sum.rows == 0
    }

    /// Adds a row; says what is wrong with it when it does not come after the last one.
    pub(super) fn add(&mut self, key: &[u8], seq: Seq, is_tombstone: bool) -> Result<(), String> {
        let first = self.is_empty();
        let order = self.key_last[..].cmp(key);
        let ordered = match order {
            _ if first => true,
            Ordering::Less => true,
            Ordering::Equal => self.seq_last > seq || self.twins && self.seq_last == seq,
            Ordering::Greater => false,
        };
        if !ordered {
            let (row, last) = (self.sum.rows, Key::from(&self.key_last[..]));
            return Err(format!(
                "row {row} at seq {seq} is out of order after key {last:?} at seq {}",
                self.seq_last
            ));
        }
        if first {
            self.key_min = Key::from(key);
        }
        if first || order == Ordering::Less {
            self.keys += 1;
            self.key_last.clear();
            self.key_last.extend_from_slice(key);
            if let Some(hashes) = &mut self.key_hashes {
                hashes.push(filter::hash_key(key));
            }
        }
        self.seq_last = seq;
        self.seq_min = self.seq_min.min(seq);
        self.seq_max = self.seq_max.max(seq);
        self.tombstones += u64::from(is_tombstone);
        self.sum.add_row(row_hash(key, seq));
        Ok(())
    }

    /// Widens the times to `min` and `max`.
    pub(super) fn add_times(&mut self, min: i64, max: i64) {
        let (old_min, old_max) = self.times.unwrap_or((min, max));
        self.times = Some((old_min.min(min), old_max.max(max)));
    }

    /// The hashes of the keys, if they were kept.
    pub(super) fn take_key_hashes(&mut self) -> Option<Vec<u64>> {
        self.key_hashes.as_mut().map(mem::take)
    }
}
