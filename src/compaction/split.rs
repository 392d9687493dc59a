//! Cuts a job into tasks of about equal bytes, and a task that is too large in two. Pure: where it may cut is
//! an argument.

use crate::types::{Key, KeyRange, TaskId};

/// Tasks of one job at most.
pub const TASKS_PER_JOB_MAX: usize = 64;

const _: () = assert!(TASKS_PER_JOB_MAX < TaskId::PLANNED_TASKS_MAX as usize);

/// A stretch of an input, such as a row group: from `first_key` on there are about `bytes` bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// The least key in it.
    pub first_key: Key,
    /// Its encoded size.
    pub bytes: u64,
}

/// Key ranges that cover every key once, in order, each with about `task_bytes_target` of the bytes of
/// `stretches`. Cuts lie at first keys of stretches, so a key's rows stay together.
pub fn split(mut stretches: Vec<Stretch>, task_bytes_target: u64) -> Vec<KeyRange> {
    let total: u64 = stretches.iter().map(|stretch| stretch.bytes).sum();
    let tasks = total
        .div_ceil(task_bytes_target.max(1))
        .clamp(1, TASKS_PER_JOB_MAX as u64);
    let share = total.div_ceil(tasks).max(1);
    stretches.sort_by(|left, right| left.first_key.cmp(&right.first_key));
    let least = stretches.first().map(|stretch| stretch.first_key.clone());
    let mut ranges = Vec::with_capacity(tasks as usize);
    let mut start: Option<Key> = None;
    let mut bytes = 0;
    for stretch in stretches {
        let is_new_key = start.as_ref().or(least.as_ref()) != Some(&stretch.first_key);
        let has_room = (ranges.len() as u64) + 1 < tasks;
        if bytes >= share && is_new_key && has_room {
            let end = Some(stretch.first_key.clone());
            ranges.push(KeyRange {
                start: start.take(),
                end,
            });
            start = Some(stretch.first_key);
            bytes = 0;
        }
        bytes += stretch.bytes;
    }
    ranges.push(KeyRange { start, end: None });
    ranges
}

/// Where to cut `range` so that about half of the bytes of `stretches` that lie in it are on either side. `None`
/// when no stretch begins inside of it, after the first of them: it is as small as it gets.
///
/// A stretch ends where the next one of its input begins; the stretches of one input after another may come in any
/// order.
pub fn bisect(stretches: Vec<Stretch>, range: &KeyRange) -> Option<Key> {
    let least = stretches.iter().map(|stretch| &stretch.first_key).min();
    let least = least.cloned();
    let mut inside: Vec<Stretch> = stretches
        .into_iter()
        .filter(|stretch| range.contains(&stretch.first_key.0))
        .collect();
    inside.sort_by(|left, right| left.first_key.cmp(&right.first_key));
    let total: u64 = inside.iter().map(|stretch| stretch.bytes).sum();
    let mut before = 0u64;
    let mut best: Option<(u64, Key)> = None;
    for stretch in inside {
        let is_first = Some(&stretch.first_key) == range.start.as_ref()
            || Some(&stretch.first_key) == least.as_ref();
        let unevenness = (2 * before).abs_diff(total);
        let is_better = best.as_ref().is_none_or(|(best, _)| unevenness < *best);
        if !is_first && is_better {
            best = Some((unevenness, stretch.first_key));
        }
        before += stretch.bytes;
    }
    best.map(|(_, key)| key)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn stretch(key: u8, bytes: u64) -> Stretch {
        Stretch {
            first_key: Key::from(&[key][..]),
            bytes,
        }
    }

    #[test]
    fn shares_are_about_equal() {
        let stretches = (0..8).map(|key| stretch(key, 10)).collect();
        let ranges = split(stretches, 20);
        let starts: Vec<_> = ranges
            .iter()
            .map(|range| range.start.as_ref().map(|key| key.0[0]))
            .collect();
        assert_eq!(starts, [None, Some(2), Some(4), Some(6)]);
    }

    #[test]
    fn a_range_is_cut_in_two_until_one_stretch_is_left() {
        let key = |key: u8| Some(Key::from(&[key][..]));
        let stretches: Vec<_> = [(1, 10), (3, 70), (5, 10), (7, 10)]
            .map(|(key, bytes)| stretch(key, bytes))
            .into();
        let cut = |start, end| bisect(stretches.clone(), &KeyRange { start, end });
        assert_eq!(cut(None, None), key(5));
        assert_eq!(cut(None, key(5)), key(3));
        assert_eq!(cut(key(3), None), key(5));
        assert_eq!(cut(key(4), None), key(7));
        assert_eq!(cut(None, key(3)), None, "one stretch");
        assert_eq!(cut(key(5), key(7)), None, "one stretch");
        assert_eq!(cut(key(6), key(7)), None, "a part of one");
        assert_eq!(cut(key(7), None), None, "the last one");
        assert_eq!(bisect(vec![], &KeyRange::ALL), None);
        // Rows of one key, in three inputs.
        let same = vec![stretch(4, 10); 3];
        assert_eq!(bisect(same, &KeyRange::ALL), None);
    }

    proptest! {
        /// Cut again and again, every range comes to where it is not cut any more.
        #[test]
        fn bisecting_ends(keys in prop::collection::vec((0..9u8, 0..100u64), 0..40)) {
            let stretches: Vec<_> = keys.iter().map(|&(key, bytes)| stretch(key, bytes)).collect();
            let mut ranges = vec![KeyRange::ALL];
            let mut whole = 0;
            while let Some(range) = ranges.pop() {
                let Some(cut) = bisect(stretches.clone(), &range) else {
                    whole += 1;
                    continue;
                };
                let left = KeyRange { start: range.start.clone(), end: Some(cut.clone()) };
                let right = KeyRange { start: Some(cut), end: range.end.clone() };
                prop_assert!(!left.is_empty() && !right.is_empty());
                ranges.extend([left, right]);
            }
            let different: std::collections::BTreeSet<_> = keys.iter().map(|(key, _)| key).collect();
            prop_assert_eq!(whole, different.len().max(1));
        }

        #[test]
        fn ranges_cover_every_key_once(keys in prop::collection::vec((0..9u8, 0..100u64), 0..40), target in 1..200u64) {
            let stretches: Vec<_> = keys.iter().map(|&(key, bytes)| stretch(key, bytes)).collect();
            let ranges = split(stretches, target);
            prop_assert!(ranges.len() <= TASKS_PER_JOB_MAX);
            prop_assert_eq!(&ranges[0].start, &None);
            prop_assert_eq!(&ranges[ranges.len() - 1].end, &None);
            for pair in ranges.windows(2) {
                prop_assert_eq!(&pair[0].end, &pair[1].start);
            }
            for range in &ranges {
                prop_assert!(!range.is_empty());
            }
        }
    }
}
