//! When a log is due for a snapshot.

/// Edits from which on a snapshot can be due.
const EDITS_MIN: u64 = 32;
/// Edits at which one is due, however large it is: an open reads them one by one.
const EDITS_MAX: u64 = 512;

/// Decides when to write a snapshot: once the edits since the last one are as many bytes as it was, so
/// that snapshots at most double what is written, and an open reads at most about twice the snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SnapshotRule {
    edits: u64,
    edit_bytes: u64,
    snapshot_bytes: u64,
    /// Not before there are so many edits: the last attempt failed.
    postponed: u64,
}

impl SnapshotRule {
    /// Counts an edit, or a claim, of `bytes`.
    pub fn edit(&mut self, bytes: usize) {
        self.edits += 1;
        self.edit_bytes += bytes as u64;
    }

    /// A snapshot of `bytes` was written: counts anew.
    pub fn snapshot(&mut self, bytes: usize) {
        *self = Self {
            snapshot_bytes: bytes as u64,
            ..Self::default()
        };
    }

    /// A snapshot could not be written. It is large: the next attempt is not made with the very next edit.
    pub fn failed(&mut self) {
        self.postponed = self.edits + EDITS_MIN;
    }

    /// Whether a snapshot is to be written now.
    pub fn is_due(&self) -> bool {
        let enough = self.edits >= EDITS_MIN && self.edit_bytes >= self.snapshot_bytes;
        (enough || self.edits >= EDITS_MAX) && self.edits >= self.postponed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Edits, of which each adds `growth` bytes to the snapshot, at which one was written.
    fn due_at(edits: u64, edit_bytes: usize, growth: usize) -> Vec<u64> {
        let mut rule = SnapshotRule::default();
        let mut due = Vec::new();
        for edit in 1..=edits {
            rule.edit(edit_bytes);
            if rule.is_due() {
                rule.snapshot(edit as usize * growth);
                due.push(edit);
            }
        }
        due
    }

    #[test]
    fn snapshots_are_few_while_they_are_large() {
        // The table grows by all that is written: each snapshot waits for as much again.
        assert_eq!(due_at(1_100, 100, 100), [32, 64, 128, 256, 512, 1_024]);
        // It does not grow: the floor decides.
        assert_eq!(due_at(100, 100, 0), [32, 64, 96]);
        // Its snapshots are far larger than its edits: the ceiling decides.
        assert_eq!(due_at(1_100, 1, 1_000), [32, 544, 1_056]);
    }

    #[test]
    fn a_snapshot_that_failed_waits_for_more_edits() {
        let mut rule = SnapshotRule::default();
        (0..40).for_each(|_| rule.edit(1));
        assert!(rule.is_due());
        rule.failed();
        (0..31).for_each(|_| rule.edit(1));
        assert!(!rule.is_due());
        rule.edit(1);
        assert!(rule.is_due());
    }
}
