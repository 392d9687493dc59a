//! What reads touched, and what they left alone.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use serde::Serialize;

use crate::sst::ReadStats;

/// What one read, or all reads of a table, touched and left alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ScanStats {
    /// SSTs that could hold something wanted.
    pub ssts_read: u64,
    /// SSTs that could not, by their bounds in key and time.
    pub ssts_skipped: u64,
    /// Row groups of the SSTs that were read of which pages were read.
    pub row_groups_read: u64,
    /// Row groups of these SSTs that could hold nothing wanted.
    pub row_groups_skipped: u64,
    /// Data pages read, from the store or a cache.
    pub pages_read: u64,
    /// Data pages of the wanted columns, in the SSTs that were read, that could hold nothing wanted.
    pub pages_skipped: u64,
    /// Rows that were read and found not to be wanted, before a merge.
    pub rows_filtered: u64,
    /// Bytes fetched from the store: footers, indexes and filters too.
    pub bytes_fetched: u64,
}

/// What a read that is under way has touched so far; shared by its threads.
#[derive(Debug, Default)]
pub(in crate::engine) struct Touched {
    ssts_read: AtomicU64,
    ssts_skipped: AtomicU64,
    /// In the SSTs.
    pub(in crate::engine) inside: Arc<ReadStats>,
}

impl Touched {
    pub(in crate::engine) fn ssts(&self, read: usize, skipped: usize) {
        self.ssts_read.fetch_add(read as u64, Ordering::Relaxed);
        self.ssts_skipped
            .fetch_add(skipped as u64, Ordering::Relaxed);
    }

    pub(in crate::engine) fn stats(&self) -> ScanStats {
        ScanStats {
            ssts_read: self.ssts_read.load(Ordering::Relaxed),
            ssts_skipped: self.ssts_skipped.load(Ordering::Relaxed),
            row_groups_read: self.inside.row_groups_read(),
            row_groups_skipped: self.inside.row_groups_skipped(),
            pages_read: self.inside.pages_read(),
            pages_skipped: self.inside.pages_skipped(),
            rows_filtered: self.inside.rows_filtered(),
            bytes_fetched: self.inside.bytes(),
        }
    }
}

impl ScanStats {
    /// Adds what another read touched.
    pub(in crate::engine) fn add(&mut self, other: &Self) {
        self.ssts_read += other.ssts_read;
        self.ssts_skipped += other.ssts_skipped;
        self.row_groups_read += other.row_groups_read;
        self.row_groups_skipped += other.row_groups_skipped;
        self.pages_read += other.pages_read;
        self.pages_skipped += other.pages_skipped;
        self.rows_filtered += other.rows_filtered;
        self.bytes_fetched += other.bytes_fetched;
    }
}
