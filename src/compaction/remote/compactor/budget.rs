//! How many jobs may run in the engine's process at once because the fleet is away. A [`Permit`] is a guard: however
//! such a job ends, its place comes free.

use std::sync::{Arc, Mutex, MutexGuard};

/// The places for jobs that fall back.
#[derive(Debug)]
pub(super) struct FallbackBudget {
    jobs_max: usize,
    counts: Mutex<Counts>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    running: usize,
    /// Of these, the jobs that make level 0 smaller.
    level_0: usize,
    /// Jobs that were due and found no place.
    held: u64,
}

/// A place, while a job has it.
#[derive(Debug)]
pub(super) struct Permit {
    budget: Arc<FallbackBudget>,
    relieves_level_0: bool,
}

impl FallbackBudget {
    pub(super) fn new(jobs_max: usize) -> Arc<Self> {
        Arc::new(Self {
            jobs_max,
            counts: Mutex::default(),
        })
    }

    /// A place, if there is one. Of two or more, the last is kept for a job that makes level 0 smaller.
    pub(super) fn try_take(self: &Arc<Self>, relieves_level_0: bool) -> Option<Permit> {
        let mut counts = self.lock();
        let room = self.jobs_max.saturating_sub(counts.running);
        let may_be_last = relieves_level_0 || counts.level_0 > 0 || counts.running == 0;
        if room == 0 || (room == 1 && !may_be_last) {
            return None;
        }
        counts.running += 1;
        counts.level_0 += usize::from(relieves_level_0);
        Some(Permit {
            budget: self.clone(),
            relieves_level_0,
        })
    }

    /// Counts a job that found no place.
    pub(super) fn count_held(&self) {
        self.lock().held += 1;
    }

    /// Jobs that found no place when they looked first.
    pub(super) fn held(&self) -> u64 {
        self.lock().held
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().expect("no panic under this lock")
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut counts = self.budget.lock();
        counts.running -= 1;
        counts.level_0 -= usize::from(self.relieves_level_0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_several_places_is_for_level_0() {
        let budget = FallbackBudget::new(2);
        let large = budget.try_take(false).unwrap();
        assert!(budget.try_take(false).is_none());
        let small = budget.try_take(true).unwrap();
        assert!(budget.try_take(true).is_none());
        drop((large, small));
        let small = budget.try_take(true).unwrap();
        let large = budget.try_take(false).unwrap();
        drop((small, large));

        let single = FallbackBudget::new(1);
        let only = single.try_take(false).unwrap();
        assert!(single.try_take(true).is_none());
        drop(only);
        assert!(single.try_take(true).is_some());
    }
}
