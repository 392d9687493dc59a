//! Who may start. The compactor says how many more jobs it can take; of two or more slots one is kept for
//! jobs that make level 0 smaller, so that a large merge never keeps writes waiting.
//!
//! A [`Slot`] is a guard: however a job ends, or fails to begin, it is counted no longer.

use std::sync::{Arc, Mutex, MutexGuard};

/// Counts the jobs of a scheduler. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct Slots {
    counts: Arc<Mutex<Counts>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    running: usize,
    /// Of those that run, the ones that make level 0 smaller.
    level_0: usize,
    /// Of those that run, the ones that the compactor does not count yet.
    entering: usize,
}

impl Slots {
    /// Whether a job may start while the compactor has room for `capacity` more than it counts.
    pub(super) fn has_room(&self, capacity: usize, relieves_level_0: bool) -> bool {
        let counts = self.lock();
        let room = capacity.saturating_sub(counts.entering);
        let is_only_slot = counts.running == 0;
        room > 1 || (room == 1 && (relieves_level_0 || counts.level_0 > 0 || is_only_slot))
    }

    /// A job begins; the compactor does not know of it yet.
    pub(super) fn enter(&self, relieves_level_0: bool) -> Slot {
        let mut counts = self.lock();
        counts.running += 1;
        counts.entering += 1;
        counts.level_0 += usize::from(relieves_level_0);
        drop(counts);
        Slot {
            slots: self.clone(),
            relieves_level_0,
            is_entering: true,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().expect("no panic under this lock")
    }
}

/// A running job, while it lives.
#[derive(Debug)]
pub(super) struct Slot {
    slots: Slots,
    relieves_level_0: bool,
    is_entering: bool,
}

impl Slot {
    /// The compactor counts the job itself from now on.
    pub(super) fn has_entered(&mut self) {
        if std::mem::replace(&mut self.is_entering, false) {
            self.slots.lock().entering -= 1;
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.has_entered();
        let mut counts = self.slots.lock();
        counts.running -= 1;
        counts.level_0 -= usize::from(self.relieves_level_0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn level_0_always_has_a_slot() {
        let slots = Slots::default();
        // A compactor for two jobs.
        assert!(slots.has_room(2, false));
        let mut large = slots.enter(false);
        large.has_entered();
        assert!(!slots.has_room(1, false) && slots.has_room(1, true));
        let small = slots.enter(true);
        assert!(
            !slots.has_room(1, true),
            "it is on its way to the last slot"
        );
        drop((large, small));
        let mut small = slots.enter(true);
        small.has_entered();
        assert!(slots.has_room(1, false));
        drop(small);
        // One for a single job takes any.
        assert!(slots.has_room(1, false) && !slots.has_room(0, true));
    }
}
