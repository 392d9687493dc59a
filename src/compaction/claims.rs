//! Inputs reserved for jobs. A claim is a guard: however a job ends, its inputs come free.
//!
//! Two jobs of a window may run side by side when neither can get in the other's way: they share no input,
//! and their keys are apart, or one works wholly above where the other takes its inputs.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard},
};

use crate::types::{Key, SstId, SstMeta, Window};

/// What a job occupies while it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Footprint {
    /// The window of inputs and outputs.
    pub window: Window,
    /// The inputs.
    pub inputs: Vec<SstId>,
    /// The least and the greatest key of the inputs, and so of the outputs.
    pub keys: Option<(Key, Key)>,
    /// The least level of an input.
    pub level_min: u8,
    /// The level of the outputs.
    pub level_target: u8,
}

impl Footprint {
    /// What a job with these inputs occupies.
    pub fn new(window: Window, inputs: &[Arc<SstMeta>], level_target: u8) -> Self {
        let min = inputs.iter().map(|sst| &sst.key_min).min();
        let max = inputs.iter().map(|sst| &sst.key_max).max();
        let level_min = inputs.iter().map(|sst| sst.level).min();
        Self {
            window,
            inputs: inputs.iter().map(|sst| sst.id).collect(),
            keys: min.cloned().zip(max.cloned()),
            level_min: level_min.unwrap_or(level_target),
            level_target,
        }
    }

    /// Whether the two may run side by side.
    pub fn is_apart(&self, other: &Footprint) -> bool {
        if self.window != other.window {
            return true;
        }
        let is_shared = |sst: &SstId| other.inputs.contains(sst);
        if self.inputs.iter().any(is_shared) {
            return false;
        }
        let overlaps = match (&self.keys, &other.keys) {
            (Some((min, max)), Some((other_min, other_max))) => {
                min <= other_max && other_min <= max
            }
            _ => false,
        };
        !overlaps || self.level_target <= other.level_min || other.level_target <= self.level_min
    }
}

/// What the running jobs of a table occupy.
#[derive(Clone, Debug, Default)]
pub struct Claimed {
    /// Their inputs.
    pub ssts: HashSet<SstId>,
    /// Each of them.
    pub jobs: Vec<Arc<Footprint>>,
    /// Grows with every claim that is made or ends.
    pub changes: u64,
}

/// The claimed inputs of one table. Cheap to clone.
#[derive(Clone, Debug, Default)]
#[doc(alias = "lock")]
pub struct Claims {
    claimed: Arc<Mutex<Claimed>>,
}

impl Claims {
    /// What is claimed now.
    pub fn claimed(&self) -> Claimed {
        self.lock().clone()
    }

    /// Grows with every claim that is made or ends.
    pub fn changes(&self) -> u64 {
        self.lock().changes
    }

    /// Whether nothing is claimed.
    pub fn is_empty(&self) -> bool {
        self.lock().jobs.is_empty()
    }

    /// Claims all inputs of `footprint`, or none when one is claimed already or a running job is in the way.
    pub fn claim(&self, footprint: Footprint) -> Option<Claim> {
        let mut claimed = self.lock();
        if !claimed.jobs.iter().all(|job| job.is_apart(&footprint)) {
            return None;
        }
        let footprint = Arc::new(footprint);
        claimed.ssts.extend(&footprint.inputs);
        claimed.jobs.push(footprint.clone());
        claimed.changes += 1;
        Some(Claim {
            claims: self.clone(),
            footprint,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Claimed> {
        self.claimed.lock().expect("no panic under this lock")
    }
}

/// Inputs reserved for one job, until dropped.
#[derive(Debug)]
pub struct Claim {
    claims: Claims,
    footprint: Arc<Footprint>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut claimed = self.claims.lock();
        claimed.changes += 1;
        for sst in &self.footprint.inputs {
            claimed.ssts.remove(sst);
        }
        claimed
            .jobs
            .retain(|job| !Arc::ptr_eq(job, &self.footprint));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn footprint(inputs: &[u64], keys: &str, levels: (u8, u8)) -> Footprint {
        let (min, max) = keys.split_once('-').unwrap();
        Footprint {
            window: Window::ALL,
            inputs: inputs.iter().map(|&n| SstId::flushed(n, 0)).collect(),
            keys: Some((Key::from(min.as_bytes()), Key::from(max.as_bytes()))),
            level_min: levels.0,
            level_target: levels.1,
        }
    }

    #[test]
    fn claims_are_all_or_nothing_and_come_free() {
        let [a, c] = [1, 3].map(|n| SstId::flushed(n, 0));
        let claims = Claims::default();
        let first = claims.claim(footprint(&[1, 2], "a-b", (0, 1))).unwrap();
        assert!(claims.claim(footprint(&[2, 3], "x-z", (0, 1))).is_none());
        let claimed = claims.claimed().ssts;
        assert!(!claimed.contains(&c) && claimed.contains(&a));
        drop(first);
        assert!(claims.is_empty());
        assert!(claims.claim(footprint(&[2, 3], "x-z", (0, 1))).is_some());
    }

    #[test]
    fn jobs_run_side_by_side_only_out_of_each_others_way() {
        let other = footprint(&[1], "c-f", (1, 2));
        for (keys, levels, apart) in [
            ("a-b", (1, 2), true),
            ("a-c", (1, 2), false),
            ("a-z", (0, 1), true),
            ("a-z", (0, 2), false),
            ("a-z", (2, 3), true),
            ("d-e", (1, 1), true),
            ("d-e", (2, 2), true),
            ("d-e", (0, 3), false),
        ] {
            let job = footprint(&[9], keys, levels);
            assert_eq!(job.is_apart(&other), apart, "{keys} {levels:?}");
            assert_eq!(other.is_apart(&job), apart, "{keys} {levels:?}");
        }
        assert!(!footprint(&[1], "x-y", (1, 2)).is_apart(&other));
    }
}
