//! What readers pin: seqs that snapshots read at, for as long as somebody holds them.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
};

use crate::types::Seq;

/// The read points of a table's snapshots.
#[derive(Debug, Default)]
pub(super) struct ReadPoints {
    /// When each holder of a read point pinned it, in milliseconds since the Unix epoch.
    pinned: Mutex<BTreeMap<Seq, Vec<u64>>>,
}

/// What a merge must leave to readers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pins {
    /// Seqs that snapshots read at, ascending, each once.
    pub read_points: Vec<Seq>,
    /// The moment by which rows may be taken as expired: the oldest snapshot's, or now. In milliseconds since the
    /// Unix epoch.
    pub as_of_ms: u64,
}

/// A read point, pinned until this is dropped.
#[derive(Debug)]
pub struct Pin {
    points: Arc<ReadPoints>,
    seq: Seq,
    at_ms: u64,
}

impl ReadPoints {
    /// Pins the seq that `read` answers; no merge that starts later drops what it sees.
    pub(super) fn pin(self: &Arc<Self>, at_ms: u64, read: impl FnOnce() -> Seq) -> Pin {
        let mut pinned = self.lock();
        let seq = read();
        pinned.entry(seq).or_default().push(at_ms);
        Pin {
            points: self.clone(),
            seq,
            at_ms,
        }
    }

    pub(super) fn pins(&self, now_ms: u64) -> Pins {
        let pinned = self.lock();
        let oldest = pinned.values().flatten().min();
        Pins {
            read_points: pinned.keys().copied().collect(),
            as_of_ms: oldest.map_or(now_ms, |&oldest| oldest.min(now_ms)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Seq, Vec<u64>>> {
        self.pinned.lock().expect("no panic under this lock")
    }
}

impl Pin {
    /// The read point.
    pub fn seq(&self) -> Seq {
        self.seq
    }

    /// When it was pinned, in milliseconds since the Unix epoch.
    pub fn at_ms(&self) -> u64 {
        self.at_ms
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut pinned = self.points.lock();
        if let Some(holders) = pinned.get_mut(&self.seq) {
            if let Some(at) = holders.iter().position(|&at_ms| at_ms == self.at_ms) {
                holders.swap_remove(at);
            }
            if holders.is_empty() {
                pinned.remove(&self.seq);
            }
        }
    }
}
