//! Cuts a job into tasks of about equal bytes. Pure: where it may cut is an argument.

use crate::types::{Key, KeyRange};

/// Tasks of one job at most.
pub const TASKS_PER_JOB_MAX: usize = 64;

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

    proptest! {
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
