//! Inputs of failed jobs, left alone by automatic plans for a while: longer each time they fail again. A
//! job that somebody asks for does not mind.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use crate::types::SstId;

const PAUSE_MIN: Duration = Duration::from_secs(60);
const PAUSE_MAX: Duration = Duration::from_secs(3600);

/// The quarantined inputs of one table. Times are those of the engine's monotonic clock.
#[derive(Debug, Default)]
pub(super) struct Quarantine {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    entries: HashMap<SstId, Entry>,
    changes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    until: Duration,
    failures: u32,
}

impl Quarantine {
    /// Leaves `inputs` alone from `now` on.
    pub(super) fn add(&self, inputs: &[SstId], now: Duration) {
        let mut state = self.lock();
        state.changes += 1;
        for &sst in inputs {
            let before = state.entries.get(&sst);
            let failures = before.map_or(0, |before| before.failures);
            let pause = PAUSE_MIN
                .saturating_mul(1 << failures.min(16))
                .min(PAUSE_MAX);
            let entry = Entry {
                until: now + pause,
                failures: failures + 1,
            };
            state.entries.insert(sst, entry);
        }
    }

    /// Forgets `inputs`: they were merged.
    pub(super) fn remove(&self, inputs: impl IntoIterator<Item = SstId>) {
        let mut state = self.lock();
        for sst in inputs {
            if state.entries.remove(&sst).is_some() {
                state.changes += 1;
            }
        }
    }

    /// Grows with every change.
    pub(super) fn changes(&self) -> u64 {
        self.lock().changes
    }

    /// When the first of the inputs held at `now` comes free.
    pub(super) fn next_release(&self, now: Duration) -> Option<Duration> {
        let state = self.lock();
        let until = state.entries.values().map(|entry| entry.until);
        until.filter(|&until| until > now).min()
    }

    /// The inputs to be left alone at `now`.
    pub(super) fn held(&self, now: Duration) -> HashSet<SstId> {
        let state = self.lock();
        let held = state.entries.iter().filter(|(_, entry)| entry.until > now);
        held.map(|(&sst, _)| sst).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under this lock")
    }
}
