//! Rows of a row group, as ranges of their positions.

use std::ops::Range;

use arrow::{array::BooleanBufferBuilder, buffer::BooleanBuffer};
use parquet::arrow::arrow_reader::{RowSelection, RowSelector};

/// Positions, ascending, in ranges that are not empty and do not touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RowRanges(Vec<Range<usize>>);

impl RowRanges {
    /// The first `rows` rows.
    pub(super) fn all(rows: usize) -> Self {
        Self::of([(0..rows, true)])
    }

    /// Of `parts`, which ascend and do not overlap, those that are wanted.
    pub(super) fn of(parts: impl IntoIterator<Item = (Range<usize>, bool)>) -> Self {
        let mut ranges = Self::default();
        for (part, wanted) in parts {
            if wanted {
                ranges.push(part);
            }
        }
        ranges
    }

    /// Adds `range`, which does not begin before the end of what is there.
    fn push(&mut self, range: Range<usize>) {
        match self.0.last_mut() {
            _ if range.is_empty() => {}
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.0.push(range),
        }
    }

    /// Adds `after`, which does not begin before the end of what is there.
    pub(super) fn append(&mut self, after: &Self) {
        after.iter().for_each(|range| self.push(range));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many rows there are.
    pub(super) fn count(&self) -> usize {
        self.0.iter().map(ExactSizeIterator::len).sum()
    }

    /// Whether any row of `range` is there.
    pub(super) fn overlaps(&self, range: &Range<usize>) -> bool {
        let after = self.0.partition_point(|own| own.end <= range.start);
        let next = self.0.get(after);
        next.is_some_and(|own| own.start < range.end)
    }

    /// The rows that are in both.
    pub(super) fn and(&self, other: &Self) -> Self {
        let mut both = Self::default();
        let (mut left, mut right) = (self.0.iter().peekable(), other.0.iter().peekable());
        while let (Some(one), Some(two)) = (left.peek(), right.peek()) {
            both.push(one.start.max(two.start)..one.end.min(two.end));
            let is_first = one.end <= two.end;
            if is_first {
                left.next()
            } else {
                right.next()
            };
        }
        both
    }

    /// The rows that are in either.
    pub(super) fn or(&self, other: &Self) -> Self {
        let mut ranges: Vec<_> = self.0.iter().chain(&other.0).cloned().collect();
        ranges.sort_unstable_by_key(|range| range.start);
        let mut either = Self::default();
        for range in ranges {
            let end = either.0.last().map_or(0, |last| last.end);
            either.push(range.start.max(end)..range.end.max(end));
        }
        either
    }

    /// The same rows, and those in gaps of fewer than `gap` rows.
    pub(super) fn joined(&self, gap: usize) -> Self {
        let mut joined: Vec<Range<usize>> = Vec::with_capacity(self.0.len());
        for range in &self.0 {
            match joined.last_mut() {
                Some(last) if range.start - last.end < gap => last.end = range.end,
                _ => joined.push(range.clone()),
            }
        }
        Self(joined)
    }

    /// Of these rows, in order, those that `mask` keeps.
    pub(super) fn keep(&self, mask: &BooleanBuffer) -> Self {
        let mut kept = Self::default();
        let (mut ranges, mut passed) = (self.0.iter(), 0);
        let mut current = ranges.next();
        for (mut start, end) in mask.set_slices() {
            while let Some(range) = current.filter(|_| start < end) {
                let inside = passed + range.len();
                if start < inside {
                    let until = end.min(inside);
                    kept.push(range.start + start - passed..range.start + until - passed);
                    start = until;
                } else {
                    passed = inside;
                    current = ranges.next();
                }
            }
        }
        kept
    }

    /// Where the rows `inner`, which are some of these, come when these are counted from 0.
    pub(super) fn places_of(&self, inner: &Self) -> Self {
        let mut places = Self::default();
        let mut passed = 0;
        let mut inner = inner.0.iter().peekable();
        for range in &self.0 {
            while let Some(wanted) = inner.next_if(|wanted| wanted.start < range.end) {
                let start = passed + wanted.start - range.start;
                places.push(start..start + wanted.len());
            }
            passed += range.len();
        }
        places
    }

    /// The ranges, ascending.
    pub(super) fn iter(&self) -> impl Iterator<Item = Range<usize>> {
        self.0.iter().cloned()
    }

    /// A bit for each of the first `rows` rows: whether it is there.
    pub(super) fn mask(&self, rows: usize) -> BooleanBuffer {
        let mut mask = BooleanBufferBuilder::new(rows);
        for range in &self.0 {
            mask.append_n(range.start - mask.len(), false);
            mask.append_n(range.len(), true);
        }
        mask.append_n(rows.saturating_sub(mask.len()), false);
        mask.finish()
    }

    /// As the Parquet reader has it.
    pub(super) fn selection(&self) -> RowSelection {
        let mut at = 0;
        let mut selectors = Vec::with_capacity(2 * self.0.len());
        for range in &self.0 {
            if range.start > at {
                selectors.push(RowSelector::skip(range.start - at));
            }
            selectors.push(RowSelector::select(range.len()));
            at = range.end;
        }
        selectors.into()
    }

    /// Takes the first `rows` rows out, or all when there are fewer.
    pub(super) fn take(&mut self, rows: usize) -> Self {
        let mut taken = Self::default();
        let (mut left, mut whole) = (rows, 0);
        for range in &mut self.0 {
            let count = left.min(range.len());
            taken.push(range.start..range.start + count);
            range.start += count;
            left -= count;
            whole += usize::from(range.start == range.end);
            if left == 0 {
                break;
            }
        }
        self.0.drain(..whole);
        taken
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ROWS: usize = 60;

    fn ranges(bits: &[bool]) -> RowRanges {
        RowRanges::of(bits.iter().enumerate().map(|(at, bit)| (at..at + 1, *bit)))
    }

    fn rows(ranges: &RowRanges) -> Vec<usize> {
        ranges.iter().flatten().collect()
    }

    proptest! {
        #[test]
        fn they_are_sets_of_rows(
            left in proptest::collection::vec(any::<bool>(), ROWS),
            right in proptest::collection::vec(any::<bool>(), ROWS),
            gap in 0..5usize,
            first in 0..ROWS,
        ) {
            let (one, two) = (ranges(&left), ranges(&right));
            let at = |wanted: &dyn Fn(usize) -> bool| (0..ROWS).filter(|&row| wanted(row)).collect::<Vec<_>>();
            let all = at(&|row| left[row]);
            prop_assert_eq!(rows(&one), all.clone());
            prop_assert_eq!(one.count(), all.len());
            prop_assert_eq!(rows(&one.and(&two)), at(&|row| left[row] && right[row]));
            prop_assert_eq!(rows(&one.or(&two)), at(&|row| left[row] || right[row]));
            prop_assert_eq!(one.mask(ROWS).iter().collect::<Vec<_>>(), left.clone());
            prop_assert_eq!(one.overlaps(&(first..ROWS)), left[first..].contains(&true));
            prop_assert_eq!(one.overlaps(&(0..first)), left[..first].contains(&true));

            let kept: Vec<usize> = all.iter().copied().filter(|&row| right[row]).collect();
            let mask: Vec<bool> = all.iter().map(|&row| right[row]).collect();
            let inner = one.keep(&mask.into());
            prop_assert_eq!(rows(&inner), kept.clone());
            let places = kept.iter().map(|row| all.iter().position(|other| other == row).unwrap());
            prop_assert_eq!(rows(&one.places_of(&inner)), places.collect::<Vec<_>>());

            let joined = rows(&one.joined(gap));
            let close = |row: &usize| {
                let before = all.iter().rev().find(|&other| other <= row);
                let after = all.iter().find(|&other| other >= row);
                matches!((before, after), (Some(before), Some(after)) if after - before <= gap || before == after)
            };
            prop_assert_eq!(joined, (0..ROWS).filter(close).collect::<Vec<_>>());

            let mut rest = one.clone();
            let taken = rest.take(first);
            prop_assert_eq!(rows(&taken), all[..first.min(all.len())].to_vec());
            prop_assert_eq!(rows(&rest), all[first.min(all.len())..].to_vec());
            let selected: usize = one.selection().row_count();
            prop_assert_eq!(selected, all.len());
        }
    }
}
