//! The write budget: memory for batches under way and for the memtables of all tables.
//!
//! A batch's bytes are reserved before it is queued or copied, by a [`Reservation`] that returns them
//! however the write ends; by then the memtable counts what it keeps. Who finds no room waits in line, so
//! that a large batch is not overtaken for ever by small ones. A batch larger than the whole budget is
//! admitted when nothing else is there.

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use tokio::sync::Notify;

use crate::clock::Rate;

/// Memory for writes. Shared.
#[derive(Debug)]
pub(super) struct Budget {
    bytes_max: u64,
    state: Mutex<State>,
    /// Something was returned.
    freed: Notify,
    /// Held by the one at the head of the line.
    line: tokio::sync::Mutex<()>,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// Of batches under way.
    reserved: u64,
    /// Of memtables.
    memtables: u64,
    /// Writes in line.
    waiting: usize,
    /// Bytes reserved.
    taken: Rate,
    /// Bytes of memtables that were flushed.
    flushed: Rate,
}

/// What the budget is like at a moment, for predictions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Level {
    pub(super) used: u64,
    pub(super) bytes_max: u64,
    pub(super) taken_per_second: Option<f64>,
    pub(super) flushed_per_second: Option<f64>,
}

impl Budget {
    pub(super) fn new(bytes_max: u64) -> Arc<Self> {
        Arc::new(Self {
            bytes_max,
            state: Mutex::default(),
            freed: Notify::new(),
            line: tokio::sync::Mutex::default(),
        })
    }

    /// Bytes of memtables.
    pub(super) fn memtables(&self) -> u64 {
        self.lock().memtables
    }

    /// Bytes reserved for batches under way; zero when nothing is written.
    pub(super) fn reserved(&self) -> u64 {
        self.lock().reserved
    }

    pub(super) fn level(&self, now: Duration) -> Level {
        let state = self.lock();
        Level {
            used: state.used(),
            bytes_max: self.bytes_max,
            taken_per_second: state.taken.per_second(now),
            flushed_per_second: state.flushed.per_second(now),
        }
    }

    /// Reserves `bytes` if there is room and nobody waits in line.
    pub(super) fn try_reserve(self: &Arc<Self>, bytes: u64, now: Duration) -> Option<Reservation> {
        let mut state = self.lock();
        (state.waiting == 0 && state.take(bytes, self.bytes_max, now)).then(|| Reservation {
            budget: self.clone(),
            bytes,
        })
    }

    /// Joins the line.
    pub(super) async fn wait_in_line(self: &Arc<Self>) -> InLine<'_> {
        self.lock().waiting += 1;
        let waiting = Waiting(self);
        let head = self.line.lock().await;
        InLine {
            _head: head,
            waiting,
        }
    }

    /// A memtable, or all of a table's, has other bytes than `before`: `after`.
    pub(super) fn memtable_changed(&self, before: u64, after: u64, now: Duration) {
        let mut state = self.lock();
        state.memtables = (state.memtables + after).saturating_sub(before);
        if after < before {
            state.flushed.add((before - after) as f64, now);
            drop(state);
            self.freed.notify_waiters();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under this lock")
    }
}

impl State {
    fn used(&self) -> u64 {
        self.reserved + self.memtables
    }

    fn take(&mut self, bytes: u64, bytes_max: u64, now: Duration) -> bool {
        let used = self.used();
        let fits = used == 0 || used + bytes <= bytes_max;
        if fits {
            self.reserved += bytes;
            self.taken.add(bytes as f64, now);
        }
        fits
    }
}

/// A place in line; given up when dropped.
pub(super) struct InLine<'a> {
    _head: tokio::sync::MutexGuard<'a, ()>,
    waiting: Waiting<'a>,
}

struct Waiting<'a>(&'a Arc<Budget>);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.lock().waiting -= 1;
    }
}

impl InLine<'_> {
    /// Reserves `bytes` if there is room: it is our turn.
    pub(super) fn try_reserve(&self, bytes: u64, now: Duration) -> Option<Reservation> {
        let budget = self.waiting.0;
        let taken = budget.lock().take(bytes, budget.bytes_max, now);
        taken.then(|| Reservation {
            budget: budget.clone(),
            bytes,
        })
    }

    /// Runs `press`, and waits until something is returned.
    pub(super) async fn freed(&self, press: impl FnOnce()) {
        let freed = self.waiting.0.freed.notified();
        tokio::pin!(freed);
        freed.as_mut().enable();
        press();
        freed.await;
    }
}

/// Bytes of the budget, returned when dropped.
#[derive(Debug)]
pub(super) struct Reservation {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.lock().reserved -= self.bytes;
        self.budget.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1);

    #[test]
    fn what_is_reserved_comes_back_and_never_more() {
        let budget = Budget::new(100);
        let first = budget.try_reserve(60, NOW).unwrap();
        assert!(budget.try_reserve(41, NOW).is_none());
        let second = budget.try_reserve(40, NOW).unwrap();
        budget.memtable_changed(0, 30, NOW);
        drop(first);
        assert_eq!((budget.reserved(), budget.memtables()), (40, 30));
        drop(second);
        budget.memtable_changed(30, 0, NOW);
        assert_eq!((budget.reserved(), budget.memtables()), (0, 0));
        // A batch larger than everything is admitted alone.
        let huge = budget.try_reserve(1_000, NOW).unwrap();
        assert!(budget.try_reserve(1, NOW).is_none());
        drop(huge);
        assert_eq!(budget.reserved(), 0);
    }

    #[tokio::test]
    async fn a_large_batch_in_line_is_not_overtaken_and_leaves_nothing_behind() {
        let budget = Budget::new(100);
        let first = budget.try_reserve(60, NOW).unwrap();
        let line = budget.wait_in_line().await;
        assert!(line.try_reserve(80, NOW).is_none());
        assert!(budget.try_reserve(10, NOW).is_none(), "others wait behind");
        // One behind gives up while it waits.
        let behind = tokio::time::timeout(Duration::from_millis(5), budget.wait_in_line());
        assert!(behind.await.is_err());
        drop(first);
        let second = line.try_reserve(80, NOW).unwrap();
        drop(line);
        drop(budget.try_reserve(20, NOW).unwrap());
        drop(second);
        assert_eq!((budget.reserved(), budget.lock().waiting), (0, 0));
    }
}
