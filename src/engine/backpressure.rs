//! When a write must wait, and why. Every wait is counted under its reason.

use std::{sync::atomic::Ordering, time::Duration};

use super::{
    EngineInner,
    table::{TableInner, lock},
};
use crate::error::Result;

/// How often a waiting write looks whether what it waits for can still come.
const RECHECK: Duration = Duration::from_millis(500);

/// All memtables together are as large as they may be.
const MEMORY: &str = "memory";
/// Compaction is behind.
const L0_RUNS: &str = "level-0 runs";

impl EngineInner {
    /// Waits until `table` may take another batch.
    ///
    /// # Errors
    /// Why it never will: the engine is fenced or closed, the table is dropped.
    pub(super) async fn admit(&self, table: &TableInner) -> Result<()> {
        self.wait_for_memory(table).await?;
        self.wait_for_compaction(table).await
    }

    async fn wait_for_memory(&self, table: &TableInner) -> Result<()> {
        let bytes_max = self.config.memory.write_bytes_max.0;
        let mut counted = false;
        loop {
            let freed = self.memory_freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            if self.memory_bytes.load(Ordering::Relaxed) < bytes_max {
                return Ok(());
            }
            self.freeze_largest();
            count_wait(table, MEMORY, &mut counted);
            let freed = async {
                tokio::select! {
                    () = freed => {}
                    () = tokio::time::sleep(RECHECK) => {}
                }
            };
            self.wait_or_fail(table, freed).await?;
        }
    }

    async fn wait_for_compaction(&self, table: &TableInner) -> Result<()> {
        let runs_max = self.config.compaction.l0_runs_stop;
        let mut versions = table.manifest.subscribe();
        let mut counted = false;
        // Where compaction is off, or leaves inputs alone because they failed, waiting is of no use.
        while versions.borrow_and_update().l0_runs_max() >= runs_max
            && self.scheduler.helps(table.id())
        {
            count_wait(table, L0_RUNS, &mut counted);
            self.scheduler.wake();
            let changed = async {
                tokio::select! {
                    _ = versions.changed() => {}
                    () = tokio::time::sleep(RECHECK) => {}
                }
            };
            self.wait_or_fail(table, changed).await?;
        }
        Ok(())
    }

    async fn wait_or_fail(
        &self,
        table: &TableInner,
        change: impl Future<Output = ()>,
    ) -> Result<()> {
        tokio::select! {
            () = change => {}
            () = table.cancel.cancelled() => {}
        }
        self.check_alive()?;
        table.check_open()
    }

    /// Has the largest active memtable flushed, unless memory is about to come free anyway. Tables whose
    /// flush fails do not count: their memory may not come free for long.
    fn freeze_largest(&self) {
        let tables = lock(&self.tables);
        let (frozen, unfrozen): (Vec<_>, Vec<_>) = tables
            .values()
            .partition(|table| table.memory.oldest_frozen().is_some());
        let is_failing = |table: &TableInner| lock(&table.counters.flush_error).is_some();
        if frozen.iter().any(|table| !is_failing(table)) {
            return;
        }
        if let Some(largest) = unfrozen
            .iter()
            .max_by_key(|table| table.memory.active_bytes())
        {
            largest.freeze(0);
        }
    }

    /// Brings the budget's count of `table` up to date; a dropped table counts nothing.
    pub(super) fn count(&self, table: &TableInner) {
        let mut counted = lock(&table.bytes_counted);
        let now = if table.cancel.is_cancelled() {
            0
        } else {
            table.memory.bytes()
        };
        let before = std::mem::replace(&mut *counted, now);
        self.memory_bytes
            .fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
        if now < before {
            self.memory_freed.notify_waiters();
        }
    }
}

fn count_wait(table: &TableInner, reason: &str, counted: &mut bool) {
    if !std::mem::replace(counted, true) {
        *lock(&table.counters.write_waits)
            .entry(reason.to_owned())
            .or_default() += 1;
        tracing::debug!(table = %table.name, reason, "write waits");
    }
}
