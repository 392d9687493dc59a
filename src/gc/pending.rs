//! SSTs on their way into a table, which no version names yet.
//!
//! A guard does not take its SSTs back when it is dropped: a flush that is given up in the middle of its commit does
//! not know whether the manifest names them, and until the engine has read the manifest anew nobody does.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard},
};

use crate::types::SstId;

/// The pending SSTs of one table. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Pending {
    ssts: Arc<Mutex<HashSet<SstId>>>,
}

/// SSTs that one flush or import writes. Pending until [`PendingSsts::settle`], which a drop does not replace.
#[derive(Debug)]
pub struct PendingSsts {
    pending: Pending,
    ssts: Mutex<Vec<SstId>>,
}

impl Pending {
    /// Begins a flush or an import.
    pub fn begin(&self) -> PendingSsts {
        PendingSsts {
            pending: self.clone(),
            ssts: Mutex::default(),
        }
    }

    /// Those that are pending now.
    pub fn now(&self) -> HashSet<SstId> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<SstId>> {
        self.ssts.lock().expect("no panic under this lock")
    }
}

impl PendingSsts {
    /// Adds an SST whose upload is about to begin. Returns it.
    pub fn add(&self, sst: SstId) -> SstId {
        self.pending.lock().insert(sst);
        self.lock().push(sst);
        sst
    }

    /// Those that were added.
    pub fn ssts(&self) -> Vec<SstId> {
        self.lock().clone()
    }

    /// All that were added are in a published version, or will never be in one: the next sweep may have them.
    pub fn settle(&self) {
        let mut pending = self.pending.lock();
        for sst in self.lock().iter() {
            pending.remove(sst);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<SstId>> {
        self.ssts.lock().expect("no panic under this lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_settled_stays_pending() {
        let pending = Pending::default();
        let [one, two] = [1, 2].map(|number| SstId::flushed(number, 0));
        let flush = pending.begin();
        flush.add(one);
        let given_up = pending.begin();
        given_up.add(two);
        drop(given_up);
        assert_eq!(pending.now(), HashSet::from([one, two]));
        flush.settle();
        assert_eq!(pending.now(), HashSet::from([two]));
    }
}
