//! Which tasks of a job one compactor runs, when two share it. Pure.
//!
//! A share is a stretch of keys that no planned task crosses. Two compactors do not see each other's cuts, and need not:
//! the numbers of the pieces follow from the task that is cut.

use super::Task;
use crate::types::KeyRange;

/// The tasks of a job that a compactor runs: those with keys in a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    keys: KeyRange,
}

impl Share {
    /// Every task.
    pub const ALL: Self = Self {
        keys: KeyRange::ALL,
    };

    /// The first `first` of `tasks`, which are in key order, and the others. `None` when one of the two would be empty.
    pub fn halves(tasks: &[KeyRange], first: usize) -> Option<(Self, Self)> {
        if first == 0 {
            return None;
        }
        let cut = tasks.get(first)?.start.clone()?;
        let before = Self {
            keys: KeyRange {
                start: None,
                end: Some(cut.clone()),
            },
        };
        let after = Self {
            keys: KeyRange {
                start: Some(cut),
                end: None,
            },
        };
        Some((before, after))
    }

    /// Whether `task` is of it.
    pub fn has(&self, task: &Task) -> bool {
        self.has_keys(&task.range)
    }

    /// Whether the keys of a task, or of a part of one, are of it.
    pub(super) fn has_keys(&self, keys: &KeyRange) -> bool {
        // No range crosses the cut, so that its start decides. No start is the very first.
        match (&keys.start, &self.keys) {
            (_, all) if *all == KeyRange::ALL => true,
            (None, share) => share.start.is_none(),
            (Some(start), share) => share.contains(&start.0),
        }
    }
}

impl Default for Share {
    fn default() -> Self {
        Self::ALL
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{JobId, Key, TaskId};

    fn task(start: Option<u8>, end: Option<u8>) -> Task {
        let key = |key: u8| Key::from(&[key][..]);
        Task {
            id: TaskId {
                job: JobId::from_parts(1, 1),
                index: 0,
            },
            range: KeyRange {
                start: start.map(key),
                end: end.map(key),
            },
        }
    }

    #[test]
    fn halves_have_every_task_and_piece_once() {
        let tasks = [(None, Some(2)), (Some(2), Some(4)), (Some(4), None)];
        let tasks = tasks.map(|(start, end)| task(start, end));
        let ranges = tasks.clone().map(|task| task.range);
        assert_eq!(Share::halves(&ranges, 0), None);
        assert_eq!(Share::halves(&ranges, 3), None);
        for first in 1..3 {
            let (before, after) = Share::halves(&ranges, first).unwrap();
            for (at, task) in tasks.iter().enumerate() {
                assert!(Share::ALL.has(task));
                assert_eq!(
                    (before.has(task), after.has(task)),
                    (at < first, at >= first)
                );
            }
        }
        let (before, after) = Share::halves(&ranges, 2).unwrap();
        let pieces = [
            (None, Some(1)),
            (Some(1), Some(2)),
            (Some(3), Some(4)),
            (Some(9), None),
        ];
        let of = pieces.map(|(start, end)| {
            let piece = task(start, end);
            (before.has(&piece), after.has(&piece))
        });
        let (one, other) = ((true, false), (false, true));
        assert_eq!(of, [one, one, one, other]);
    }
}
