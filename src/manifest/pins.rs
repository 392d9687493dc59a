//! What readers pin: seqs that snapshots read at, for as long as somebody holds them.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
};

use crate::types::Seq;

/// The read points of a table's snapshots.
#[derive(Debug, Default)]
pub(super) struct ReadPoints {
    /// By the seq that it reads at: for each holder, the time before which it takes rows as expired.
    pinned: Mutex<BTreeMap<Seq, Vec<Option<i64>>>>,
}

/// What a merge must leave to readers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pins {
    /// Seqs that snapshots read at, ascending, each once.
    pub read_points: Vec<Seq>,
    /// Rows with an earlier time, in the unit of the time column, are expired for every reader.
    pub expiry: Option<i64>,
}

/// A read point, pinned until this is dropped.
#[derive(Debug)]
pub struct Pin {
    points: Arc<ReadPoints>,
    seq: Seq,
    expiry: Option<i64>,
}

impl ReadPoints {
    /// Pins the seq and the expiry that `read` answers; no merge that starts later drops what it sees.
    pub(super) fn pin(self: &Arc<Self>, read: impl FnOnce() -> (Seq, Option<i64>)) -> Pin {
        let mut pinned = self.lock();
        let (seq, expiry) = read();
        pinned.entry(seq).or_default().push(expiry);
        Pin {
            points: self.clone(),
            seq,
            expiry,
        }
    }

    /// What is pinned now, and the expiry that `now` answers, if no snapshot has an earlier one.
    pub(super) fn pins(&self, now: impl FnOnce() -> Option<i64>) -> Pins {
        let pinned = self.lock();
        let expiries = pinned.values().flatten().copied();
        Pins {
            read_points: pinned.keys().copied().collect(),
            // None, which is less than all others, is for ever.
            expiry: expiries.chain([now()]).min().flatten(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Seq, Vec<Option<i64>>>> {
        self.pinned.lock().expect("no panic under this lock")
    }
}

impl Pin {
    /// The read point.
    pub fn seq(&self) -> Seq {
        self.seq
    }

    /// The time before which rows are expired for it, in the unit of the time column.
    pub fn expiry(&self) -> Option<i64> {
        self.expiry
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut pinned = self.points.lock();
        if let Some(holders) = pinned.get_mut(&self.seq) {
            if let Some(at) = holders.iter().position(|&held| held == self.expiry) {
                holders.swap_remove(at);
            }
            if holders.is_empty() {
                pinned.remove(&self.seq);
            }
        }
    }
}
