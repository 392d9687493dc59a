//! The quarantine of all tables together, and who looks after it: the compactor that jobs go to.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;

use super::{Inner, Scheduler, TableJobs, lock};
use crate::{
    compaction::{QuarantineView, QuarantinedSst},
    types::TableId,
};

impl Scheduler {
    /// Has whoever is the compactor look after the quarantine, until [`Scheduler::stop`].
    pub(super) async fn attend(&self) {
        let mut compactors = self.inner.compactor.subscribe();
        loop {
            let compactor = compactors.borrow_and_update().clone();
            tokio::select! {
                biased;
                () = self.inner.cancel.cancelled() => return,
                _ = compactors.changed() => {}
                never = compactor.attend(self) => match never {},
            }
        }
    }
}

impl Inner {
    /// What is left alone, of all tables.
    pub(super) fn quarantine(&self) -> Vec<QuarantinedSst> {
        let now = self.env.monotonic();
        let tables = lock(&self.tables);
        let held = tables.iter().flat_map(|(id, table)| {
            let name = (table.name.as_str(), *id);
            table.quarantine.list(name, now)
        });
        held.collect()
    }

    /// Leaves nothing of `tables` alone any longer; returns how many SSTs were.
    pub(super) fn release(&self, tables: &[Arc<TableJobs>]) -> u64 {
        let now = self.env.monotonic();
        let released = tables.iter().map(|table| table.quarantine.release(now));
        let released = released.sum();
        self.tick();
        self.wake.notify_one();
        released
    }

    /// Tells those who wait that something has happened.
    pub(super) fn tick(&self) {
        self.ended.send_modify(|ended| *ended += 1);
    }
}

#[async_trait]
impl QuarantineView for Scheduler {
    fn session(&self) -> u64 {
        self.inner.session
    }

    fn list(&self) -> Vec<QuarantinedSst> {
        self.inner.quarantine()
    }

    fn retry(&self, table: Option<TableId>) -> u64 {
        let tables: Vec<_> = match (lock(&self.inner.tables), table) {
            (tables, None) => tables.values().cloned().collect(),
            (tables, Some(table)) => tables.get(&table).cloned().into_iter().collect(),
        };
        self.inner.release(&tables)
    }

    async fn changed(&self, known: &[QuarantinedSst]) {
        let mut ticks = self.inner.ended.subscribe();
        loop {
            let listed = self.list();
            if !QuarantinedSst::are_as_in(known, &listed) {
                return;
            }
            let next = listed.iter().map(|sst| sst.retry_in_ms).min();
            let next = next.map(|next_ms| Duration::from_millis(next_ms + 1));
            tokio::select! {
                biased;
                _ = ticks.changed() => {}
                () = tokio::time::sleep(next.unwrap_or_default()), if next.is_some() => {}
            }
        }
    }
}
