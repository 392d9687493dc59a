//! The memtables of one table, and the order of its writes.
//!
//! A write takes its seq and its memtable together, under one lock, and holds a [`Ticket`] until it is
//! done; so memtables hold consecutive ranges of seqs, and a frozen one is complete once its last ticket
//! is gone. A batch is visible once it and all batches before it are done: reads see batches wholly, and
//! in order. It is durable once it and all before it are in the WAL, or in SSTs.
//!
//! An import writes its rows into SSTs under a seq far ahead, while others write on; when it is done it takes that
//! seq, and the seqs that nobody has taken by then never come: a gap.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard},
};

use tokio::sync::watch;

use crate::{
    memtable::{Memtable, MemtableView},
    types::{Seq, TableSchema},
};

/// How far ahead an import takes its seq: more batches than are written while it goes on, and few enough for
/// billions of imports.
const SEQS_AHEAD: u64 = 1 << 32;

/// The memtables of one table.
#[derive(Debug)]
pub(super) struct Memory {
    state: Mutex<State>,
    visible: watch::Sender<Seq>,
    durable: watch::Sender<Seq>,
}

#[derive(Debug)]
struct State {
    /// Schema of the batches that are written now.
    schema: TableSchema,
    active: Arc<Slot>,
    /// Oldest first.
    frozen: VecDeque<Arc<Slot>>,
    /// The last seq that was taken.
    taken: Seq,
    /// Seqs that are done although one before them is not.
    done_early: BTreeSet<Seq>,
    /// Seqs that are durable although one before them is not.
    durable_early: BTreeSet<Seq>,
    /// Seqs that are skipped: by the one before them, the last of them.
    gaps: BTreeMap<Seq, Seq>,
}

/// A memtable and its writers.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) memtable: Memtable,
    /// Every seq up to here that it holds or an older one does; known once frozen.
    seq_last: Mutex<Option<Seq>>,
    writers: watch::Sender<usize>,
}

/// The right, and the duty, to insert one batch. Dropping it says that the batch is in, or never will be.
#[derive(Debug)]
pub(super) struct Ticket {
    memory: Arc<Memory>,
    pub(super) slot: Arc<Slot>,
    pub(super) seq: Seq,
    /// The batch is in, and not durable yet: [`Memory::settle`] or a flush will say so.
    pub(super) is_durable_later: bool,
}

/// What a read of the memtables sees: those not flushed by `flushed_seq`, and batches up to `visible`.
#[derive(Debug)]
pub(super) struct MemoryView {
    pub(super) visible: Seq,
    pub(super) memtables: Vec<MemtableView>,
}

impl Memory {
    /// Memory of a table all of whose batches up to `flushed_seq` are in SSTs, and whose seqs up to `taken` may
    /// not be taken again.
    pub(super) fn new(schema: TableSchema, flushed_seq: Seq, taken: Seq) -> Self {
        let taken = flushed_seq.max(taken);
        Self {
            state: Mutex::new(State {
                active: Arc::new(Slot::new(&schema)),
                frozen: VecDeque::new(),
                taken,
                done_early: BTreeSet::new(),
                durable_early: BTreeSet::new(),
                gaps: BTreeMap::new(),
                schema,
            }),
            visible: watch::Sender::new(taken),
            durable: watch::Sender::new(taken),
        }
    }

    /// Schema of the batches that are written now.
    pub(super) fn schema(&self) -> TableSchema {
        self.lock().schema.clone()
    }

    /// Has batches written under `schema` from now on. Whether there is a memtable to flush.
    pub(super) fn set_schema(&self, schema: TableSchema) -> bool {
        let mut state = self.lock();
        state.schema = schema;
        if state.active.is_unused() {
            state.active = Arc::new(Slot::new(&state.schema));
            return false;
        }
        state.freeze();
        true
    }

    /// Every batch below this seq is in SSTs, or came to nothing.
    pub(super) fn unflushed(&self) -> Seq {
        let state = self.lock();
        let slots = state.frozen.iter().chain([&state.active]);
        let oldest = slots
            .filter_map(|slot| Some(slot.memtable.seq_range()?.0))
            .min();
        let undone = Seq(self.visible().0 + 1);
        oldest.map_or(undone, |oldest| oldest.min(undone))
    }

    /// Takes the next seq.
    pub(super) fn begin(self: &Arc<Self>) -> Ticket {
        let mut state = self.lock();
        let seq = Seq(state.taken.0 + 1);
        self.begin_at(&mut state, seq)
    }

    /// A seq that is not to be taken before [`Self::begin_ahead`] is called.
    pub(super) fn seq_ahead(&self) -> Seq {
        Seq(self.lock().taken.0.saturating_add(SEQS_AHEAD))
    }

    /// Takes `seq`, which [`Self::seq_ahead`] has answered; all seqs before it that were not taken never will be. What
    /// was written so far is in frozen memtables, up to the seq that is returned, if there are any; what is
    /// written from now on is in none that can be flushed before the ticket is gone. `None` when others have come
    /// to `seq` already.
    pub(super) fn begin_ahead(self: &Arc<Self>, seq: Seq) -> Option<(Ticket, Option<Seq>)> {
        let mut state = self.lock();
        let last = state.taken;
        if last >= seq {
            return None;
        }
        if !state.active.is_unused() {
            state.freeze();
        }
        let frozen = state.frozen.back().map(|slot| slot.seq_last());
        if last.0 + 1 < seq.0 {
            state.gaps.insert(last, Seq(seq.0 - 1));
        }
        let ticket = self.begin_at(&mut state, seq);
        self.advance(&mut state);
        Some((ticket, frozen))
    }

    /// Takes `seq`, which the WAL recorded. Entries come in the order they were appended, which under
    /// concurrent writers is not quite that of their seqs. [`Memory::recovered`] ends the recovery.
    pub(super) fn recover(self: &Arc<Self>, seq: Seq) -> Ticket {
        let mut state = self.lock();
        let taken = state.taken.max(seq);
        let ticket = self.begin_at(&mut state, seq);
        state.taken = taken;
        ticket
    }

    /// Everything that the WAL recorded is in: it is visible, and seqs that are missing never come.
    pub(super) fn recovered(&self) {
        let mut state = self.lock();
        state.done_early.clear();
        self.visible.send_replace(state.taken);
        state.durable_early.clear();
        self.durable.send_replace(state.taken);
    }

    fn begin_at(self: &Arc<Self>, state: &mut State, seq: Seq) -> Ticket {
        state.taken = seq;
        let slot = state.active.clone();
        slot.writers.send_modify(|writers| *writers += 1);
        Ticket {
            memory: self.clone(),
            slot,
            seq,
            is_durable_later: false,
        }
    }

    /// Waits until every batch up to `seq` is visible.
    pub(super) async fn wait_visible(&self, seq: Seq) {
        let mut visible = self.visible.subscribe();
        // The sender lives in `self`, so waiting cannot fail.
        let _ = visible.wait_for(|visible| *visible >= seq).await;
    }

    /// The seq up to which every batch is visible.
    pub(super) fn visible(&self) -> Seq {
        *self.visible.borrow()
    }

    /// Waits until every batch up to `seq` is durable, or came to nothing.
    pub(super) async fn wait_durable(&self, seq: Seq) {
        let mut durable = self.durable.subscribe();
        // The sender lives in `self`, so waiting cannot fail.
        let _ = durable.wait_for(|durable| *durable >= seq).await;
    }

    /// The seq up to which every batch is durable, or came to nothing.
    pub(super) fn durable(&self) -> Seq {
        *self.durable.borrow()
    }

    /// The last seq that was taken.
    pub(super) fn taken(&self) -> Seq {
        self.lock().taken
    }

    /// The batch at `seq` is durable, or came to nothing.
    pub(super) fn settle(&self, seq: Seq) {
        let mut state = self.lock();
        state.durable_early.insert(seq);
        self.advance(&mut state);
    }

    /// Starts a new memtable if the active one holds anything. The seq up to which everything written so
    /// far is in frozen memtables; `None` when none holds anything.
    pub(super) fn freeze_all(&self) -> Option<Seq> {
        self.freeze(0);
        self.lock().frozen.back().map(|slot| slot.seq_last())
    }

    /// Starts a new memtable if the active one holds anything, and `bytes` or more. Whether it
    /// did.
    pub(super) fn freeze(&self, bytes: u64) -> bool {
        let mut state = self.lock();
        let active = &state.active;
        if active.is_unused() || active.memtable.bytes() < bytes {
            return false;
        }
        state.freeze();
        true
    }

    /// The oldest frozen memtable.
    pub(super) fn oldest_frozen(&self) -> Option<Arc<Slot>> {
        self.lock().frozen.front().cloned()
    }

    /// Forgets frozen memtables whose batches are all in SSTs.
    pub(super) fn forget_flushed(&self, flushed_seq: Seq) {
        let mut state = self.lock();
        state.frozen.retain(|slot| slot.seq_last() > flushed_seq);
        state.durable_early.retain(|seq| *seq > flushed_seq);
        self.durable.send_if_modified(|durable| {
            let is_newer = *durable < flushed_seq;
            *durable = flushed_seq.max(*durable);
            is_newer
        });
        self.advance(&mut state);
    }

    /// What a read sees, together with the version that `version` loads and its flushed seq: read under one
    /// lock, so that no batch is seen twice or not at all.
    pub(super) fn view<V>(&self, version: impl FnOnce() -> (V, Seq)) -> (V, MemoryView) {
        let state = self.lock();
        let visible = self.visible();
        let (version, flushed_seq) = version();
        let frozen = state
            .frozen
            .iter()
            .filter(|slot| slot.seq_last() > flushed_seq);
        let memtables = frozen
            .chain([&state.active])
            .map(|slot| slot.memtable.view())
            .collect();
        (version, MemoryView { visible, memtables })
    }

    /// Bytes of all memtables.
    pub(super) fn bytes(&self) -> u64 {
        self.fold(|memtable| memtable.bytes())
    }

    /// Bytes of the active memtable.
    pub(super) fn active_bytes(&self) -> u64 {
        self.lock().active.memtable.bytes()
    }

    /// How many memtables are frozen.
    pub(super) fn frozen(&self) -> usize {
        self.lock().frozen.len()
    }

    /// Rows of all memtables.
    pub(super) fn rows(&self) -> u64 {
        self.fold(|memtable| memtable.rows())
    }

    fn fold(&self, measure: impl Fn(&Memtable) -> u64) -> u64 {
        let state = self.lock();
        let slots = state.frozen.iter().chain([&state.active]);
        slots.map(|slot| measure(&slot.memtable)).sum()
    }

    fn finish(&self, seq: Seq) {
        let mut state = self.lock();
        if seq > self.visible() {
            state.done_early.insert(seq);
        }
        self.advance(&mut state);
    }

    fn advance(&self, state: &mut State) {
        advance(&self.visible, &mut state.done_early, &state.gaps);
        advance(&self.durable, &mut state.durable_early, &state.gaps);
        // What all that is to come lies behind is not looked for any more.
        let passed = self.visible().min(self.durable());
        state.gaps.retain(|_, last| *last > passed);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under this lock")
    }
}

impl State {
    fn freeze(&mut self) {
        let next = Arc::new(Slot::new(&self.schema));
        let full = std::mem::replace(&mut self.active, next);
        full.set_seq_last(self.taken);
        self.frozen.push_back(full);
    }
}

/// Moves `mark` up for as long as the next seq is among those that are `early`, or never comes.
fn advance(mark: &watch::Sender<Seq>, early: &mut BTreeSet<Seq>, gaps: &BTreeMap<Seq, Seq>) {
    let mut seq = *mark.borrow();
    loop {
        if let Some(&last) = gaps.get(&seq) {
            seq = last;
        } else if early.remove(&Seq(seq.0 + 1)) {
            seq = Seq(seq.0 + 1);
        } else {
            break;
        }
    }
    mark.send_replace(seq);
}

impl Slot {
    fn new(schema: &TableSchema) -> Self {
        Self {
            memtable: Memtable::new(schema.clone()),
            seq_last: Mutex::new(None),
            writers: watch::Sender::new(0),
        }
    }

    fn is_unused(&self) -> bool {
        self.memtable.is_empty() && *self.writers.borrow() == 0
    }

    /// Waits until every write that took this memtable is done.
    pub(super) async fn wait_complete(&self) {
        let mut writers = self.writers.subscribe();
        // The sender lives in `self`, so waiting cannot fail.
        let _ = writers.wait_for(|writers| *writers == 0).await;
    }

    /// The last seq that is in this memtable or an older one; the very last while it is active.
    pub(super) fn seq_last(&self) -> Seq {
        let seq = *self.seq_last.lock().expect("no panic under this lock");
        seq.unwrap_or(Seq(u64::MAX))
    }

    fn set_seq_last(&self, seq: Seq) {
        *self.seq_last.lock().expect("no panic under this lock") = Some(seq);
    }
}

impl Ticket {
    /// What follows is not held up any more; the memtable is not complete before the ticket is dropped.
    pub(super) fn show(&self) {
        self.memory.finish(self.seq);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.memory.finish(self.seq);
        if !self.is_durable_later {
            self.memory.settle(self.seq);
        }
        self.slot.writers.send_modify(|writers| *writers -= 1);
    }
}

#[cfg(test)]
mod tests;
