//! What reads cost: counters that sources share.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// What reading has cost so far. Whoever opens SSTs chooses what is counted together: all of a table, or those
/// of one scan, which can be [counted in both](Self::within).
#[derive(Debug, Default)]
pub struct ReadStats {
    bytes: AtomicU64,
    row_groups_read: AtomicU64,
    row_groups_skipped: AtomicU64,
    pages_read: AtomicU64,
    pages_skipped: AtomicU64,
    rows_filtered: AtomicU64,
    whole: Option<Arc<ReadStats>>,
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident, $add:ident;)*) => {
        $(
            $(#[$doc])*
            pub fn $name(&self) -> u64 {
                self.$name.load(Ordering::Relaxed)
            }

            pub(super) fn $add(&self, count: u64) {
                self.$name.fetch_add(count, Ordering::Relaxed);
                if let Some(whole) = &self.whole {
                    whole.$add(count);
                }
            }
        )*
    };
}

impl ReadStats {
    /// Counters of a part of what `whole` counts: it counts everything they do.
    pub fn within(whole: Arc<ReadStats>) -> Self {
        Self {
            whole: Some(whole),
            ..Self::default()
        }
    }

    counters! {
        /// Bytes fetched from the store.
        bytes, add_bytes;
        /// Row groups of which anything was fetched.
        row_groups_read, add_row_groups_read;
        /// Row groups that could hold nothing asked for, by their statistics, and of which nothing was fetched.
        row_groups_skipped, add_row_groups_skipped;
        /// Data pages read, from the store or a cache. Reads of whole column chunks count none.
        pages_read, add_pages_read;
        /// Data pages of the columns wanted, in all row groups, that were not read.
        pages_skipped, add_pages_skipped;
        /// Rows that were decoded, as far as needed to know that the filter does not hold.
        rows_filtered, add_rows_filtered;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_counts_for_the_whole() {
        let table = Arc::new(ReadStats::default());
        let scans = [(); 2].map(|()| ReadStats::within(table.clone()));
        scans[0].add_bytes(3);
        scans[1].add_bytes(4);
        scans[1].add_pages_read(1);
        assert_eq!(scans.each_ref().map(ReadStats::bytes), [3, 4]);
        assert_eq!((table.bytes(), table.pages_read()), (7, 1));
    }
}
