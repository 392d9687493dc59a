//! Objects whose deletion failed, or has to wait: each is looked at again after more and more rounds.

use std::collections::HashMap;

/// Rounds between two looks at an object, at most.
const ROUNDS_MAX: u64 = 64;

/// What is to be looked at later, and when, in rounds of the sweep.
#[derive(Debug, Default)]
pub(super) struct Retries {
    round: u64,
    objects: HashMap<String, Retry>,
}

#[derive(Clone, Copy, Debug)]
struct Retry {
    /// Looks in a row that came to nothing.
    looks: u32,
    due: u64,
    has_failed: bool,
}

impl Retries {
    /// A round begins.
    pub(super) fn next_round(&mut self) {
        self.round += 1;
        // What is not asked for any more has gone another way, with its table.
        if self.round.is_multiple_of(ROUNDS_MAX) {
            let round = self.round;
            self.objects
                .retain(|_, retry| retry.due + 2 * ROUNDS_MAX > round);
        }
    }

    /// Whether the object called `name` may be looked at in this round.
    pub(super) fn is_due(&self, name: &str) -> bool {
        let retry = self.objects.get(name);
        retry.is_none_or(|retry| retry.due <= self.round)
    }

    /// The deletion of `name` failed, or with `has_failed` false it has to wait for somebody.
    pub(super) fn postpone(&mut self, name: &str, has_failed: bool) {
        let before = self.objects.get(name);
        let looks = before.map_or(0, |retry| retry.looks) + 1;
        let pause = 1u64.checked_shl(looks - 1).unwrap_or(ROUNDS_MAX);
        let retry = Retry {
            looks,
            due: self.round + pause.min(ROUNDS_MAX),
            has_failed,
        };
        self.objects.insert(name.to_owned(), retry);
    }

    /// Nothing is left to do about `name`.
    pub(super) fn forget(&mut self, name: &str) {
        self.objects.remove(name);
    }

    /// Objects whose last deletion failed.
    pub(super) fn failed(&self) -> u64 {
        let failed = self.objects.values().filter(|retry| retry.has_failed);
        failed.count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_limit_and_end_with_success() {
        let mut retries = Retries::default();
        let mut looks = Vec::new();
        for round in 0..200 {
            retries.next_round();
            if retries.is_due("a") {
                looks.push(round);
                retries.postpone("a", true);
            }
            assert!(retries.is_due("b"));
        }
        assert_eq!(looks, [0, 1, 3, 7, 15, 31, 63, 127, 191]);
        assert_eq!(retries.failed(), 1);
        retries.forget("a");
        assert!(retries.is_due("a") && retries.failed() == 0);
    }
}
