//! Sets of rows in brief, so that what a merge wrote and dropped can be held against what it read.

use twox_hash::XxHash3_64;

use super::Seq;

/// The hash by which a row enters a [`RowSum`]: XXH3 of its encoded key, seeded with its seq.
///
/// It is stored in SSTs and in manifests, and must never change.
pub fn row_hash(key: &[u8], seq: Seq) -> u64 {
    XxHash3_64::oneshot_with_seed(seq.0, key)
}

/// A set of rows in brief: their number and the wrapping sum of a 64-bit hash of each one's (key, seq).
/// Independent of order, and equal for equal sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowSum {
    /// Number of rows.
    pub rows: u64,
    /// Wrapping sum of their hashes.
    pub hash: u64,
}

impl RowSum {
    /// A set of `rows` rows whose hashes sum up to `hash`.
    pub fn new(rows: u64, hash: u64) -> Self {
        Self { rows, hash }
    }

    /// Adds one row.
    pub fn add_row(&mut self, hash: u64) {
        self.add(Self::new(1, hash));
    }

    /// Adds the rows of `other`.
    pub fn add(&mut self, other: Self) {
        self.rows += other.rows;
        self.hash = self.hash.wrapping_add(other.hash);
    }

    /// The rows that were added since it was `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            rows: self.rows - before.rows,
            hash: self.hash.wrapping_sub(before.hash),
        }
    }
}

impl std::iter::Sum for RowSum {
    fn sum<I: Iterator<Item = Self>>(sums: I) -> Self {
        sums.fold(Self::default(), |mut total, sum| {
            total.add(sum);
            total
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_frozen() {
        assert_eq!(row_hash(b"", Seq(0)), 0x2d06_8005_38d3_94c2);
        assert_ne!(row_hash(b"key", Seq(1)), row_hash(b"key", Seq(2)));
    }

    #[test]
    fn sums_ignore_order() {
        let rows = [(b"a", Seq(1)), (b"b", Seq(1)), (b"a", Seq(2))];
        let sum = |order: [usize; 3]| {
            let mut sum = RowSum::default();
            for at in order {
                sum.add_row(row_hash(rows[at].0, rows[at].1));
            }
            sum
        };
        assert_eq!(sum([0, 1, 2]), sum([2, 0, 1]));
        assert_eq!(
            [sum([0, 1, 2]), RowSum::new(1, 5)]
                .into_iter()
                .sum::<RowSum>()
                .rows,
            4
        );
    }
}
