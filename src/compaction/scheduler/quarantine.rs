//! Inputs of failed jobs, left alone by automatic plans for a while: longer each time they fail again. A
//! job that somebody asks for does not mind. Who asks for it has them tried again at once.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use crate::{
    clock::Env,
    compaction::QuarantinedSst,
    types::{SstId, TableId},
};

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

#[derive(Clone, Debug)]
struct Entry {
    until: Duration,
    failures: u32,
    /// When it failed first, in milliseconds since the Unix epoch.
    since_ms: u64,
    /// Why it failed last.
    reason: Arc<str>,
}

impl Quarantine {
    /// Leaves `inputs` alone from now on, for `reason`.
    pub(super) fn add(&self, inputs: &[SstId], reason: &str, env: &Env) {
        let reason: Arc<str> = reason.into();
        let mut state = self.lock();
        state.changes += 1;
        for &sst in inputs {
            let before = state.entries.get(&sst);
            let failures = before.map_or(0, |before| before.failures);
            let since_ms = before.map_or_else(|| env.unix_ms(), |before| before.since_ms);
            let pause = PAUSE_MIN
                .saturating_mul(1 << failures.min(16))
                .min(PAUSE_MAX);
            let entry = Entry {
                until: env.monotonic() + pause,
                failures: failures + 1,
                since_ms,
                reason: reason.clone(),
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

    /// Leaves none alone any longer; returns how many were. One that fails again is left alone for longer.
    pub(super) fn release(&self, now: Duration) -> u64 {
        let mut state = self.lock();
        let held = state.entries.values_mut().filter(|entry| entry.until > now);
        let mut released = 0;
        for entry in held {
            entry.until = now;
            released += 1;
        }
        state.changes += u64::from(released > 0);
        released
    }

    /// The inputs that are left alone at `now`, those of `table`, by name and id, and why.
    pub(super) fn list(&self, table: (&str, TableId), now: Duration) -> Vec<QuarantinedSst> {
        let state = self.lock();
        let held = state.entries.iter().filter(|(_, entry)| entry.until > now);
        let listed = held.map(|(sst, entry)| QuarantinedSst {
            table: table.0.to_owned(),
            table_id: table.1,
            sst: sst.to_string(),
            reason: entry.reason.to_string(),
            failures: entry.failures,
            since_ms: entry.since_ms,
            retry_in_ms: (entry.until - now).as_millis() as u64,
        });
        let mut listed: Vec<_> = listed.collect();
        listed.sort_by(|left, right| left.sst.cmp(&right.sst));
        listed
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    #[test]
    fn a_failed_input_is_listed_released_and_held_for_longer_the_next_time() {
        let clock = Arc::new(ManualClock::new(Duration::from_secs(1_000)));
        let env = Env::seeded(clock.clone(), 1);
        let quarantine = Quarantine::default();
        let [sst, other] = [1, 2].map(|number| SstId::flushed(number, 0));
        quarantine.add(&[sst], "it is torn", &env);
        clock.advance(Duration::from_secs(10));
        quarantine.add(&[other], "it is gone", &env);
        let now = env.monotonic();
        let table = ("events", TableId::from_parts(1, 1));
        let listed = quarantine.list(table, now);
        assert_eq!(listed.len(), 2);
        assert_eq!(
            listed[0],
            QuarantinedSst {
                table: "events".into(),
                table_id: table.1,
                sst: sst.to_string(),
                reason: "it is torn".into(),
                failures: 1,
                since_ms: 1_000_000,
                retry_in_ms: 50_000,
            }
        );
        let changes = quarantine.changes();
        assert_eq!(quarantine.release(now), 2);
        assert!(quarantine.held(now).is_empty() && quarantine.changes() > changes);
        assert_eq!(
            (quarantine.release(now), quarantine.list(table, now)),
            (0, vec![])
        );
        // It fails again, for another reason.
        quarantine.add(&[sst], "it is gone", &env);
        let listed = quarantine.list(table, now);
        assert_eq!((listed[0].failures, listed[0].since_ms), (2, 1_000_000));
        assert_eq!(
            (&*listed[0].reason, listed[0].retry_in_ms),
            ("it is gone", 120_000)
        );
        // By itself it comes free later.
        clock.advance(Duration::from_secs(120));
        assert!(quarantine.held(env.monotonic()).is_empty());
    }
}
