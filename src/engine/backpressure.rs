//! When a write must wait, for how long, and why. Every delay and every stop is counted under its reason.
//!
//! Two things can pile up: level-0 runs, which compaction clears, and memory, which flushes clear. Each has
//! a mark from which on writes are slowed down and one at which they stop. In between, [`delay`] says how
//! long a batch is to take; the batches of a table queue up behind each other, so that many writers are held
//! back as much as one. A delay ends early when what piled up is gone.

use std::{sync::Mutex, time::Duration};

use super::{
    EngineInner,
    budget::{Level, Reservation},
    table::{TableInner, lock},
};
use crate::{
    clock::Rate,
    error::{Error, Result},
};

/// How often a waiting write looks whether what it waits for can still come.
const RECHECK: Duration = Duration::from_millis(500);
/// Longest delay of a batch on its own account.
const DELAY_MAX: Duration = Duration::from_secs(1);
/// How many times as slow as what clears the debt writes may be made.
const RATIO_MAX: f64 = 8.0;
/// Share of the write budget from which on writes are slowed down, in percent.
const MEMORY_SLOWDOWN_PERCENT: u64 = 75;
/// Share from which on memory is freed ahead of need, by flushing the largest memtable.
const MEMORY_FLUSH_PERCENT: u64 = 50;
/// What is assumed to be cleared until it is measured: one run, or one memtable, a second.
const CLEARED_UNMEASURED: f64 = 1.0;
/// The least that is assumed: what clears may have stood still for a while.
const CLEARED_MIN: f64 = 0.05;

/// All memtables together are as large as they may be.
const MEMORY: &str = "memory";
/// They are about to be.
const MEMORY_FILLS: &str = "memory fills";
/// Compaction is behind: no more level-0 runs are allowed.
const L0_RUNS: &str = "level-0 runs";
/// Compaction is falling behind.
const L0_RUNS_GROW: &str = "level-0 runs grow";

/// What a delay is derived from. Times are predictions, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Pressure {
    /// How far on the way from the slowdown, 0, to the stop, 1.
    pub(super) fill: f64,
    /// Until the stop, if writes go on as they do.
    pub(super) until_stop: f64,
    /// Until the debt beyond the slowdown is cleared, at the measured rate.
    pub(super) to_clear: f64,
    /// What the batch adds to that.
    pub(super) cost: f64,
}

/// How long a batch is to take. At the rate at which debt is cleared a batch would take its cost; it takes
/// more than that when the stop comes sooner than the debt can be cleared, less when it does not, and the
/// less the farther away the stop is.
pub(super) fn delay(pressure: &Pressure) -> Duration {
    if pressure.fill <= 0.0 {
        return Duration::ZERO;
    }
    let ratio = pressure.to_clear / pressure.until_stop.max(1e-3);
    let seconds = pressure.cost * pressure.fill.min(1.0) * ratio.min(RATIO_MAX);
    Duration::try_from_secs_f64(seconds).map_or(DELAY_MAX, |delay| delay.min(DELAY_MAX))
}

/// What a table's writes are paced by.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// When the batch that was admitted last has taken its time.
    busy_until: Mutex<Duration>,
    rates: Mutex<Rates>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Rates {
    flushes: Rate,
    ssts: Rate,
}

impl Pace {
    /// Counts a flush that made so many SSTs.
    pub(super) fn flushed(&self, ssts: usize, now: Duration) {
        let mut rates = lock(&self.rates);
        rates.flushes.add(1.0, now);
        rates.ssts.add(ssts as f64, now);
    }

    /// Gives a batch its time after those before it: when it has passed.
    fn queue(&self, delay: Duration, now: Duration) -> Duration {
        let mut busy_until = lock(&self.busy_until);
        *busy_until = (*busy_until).max(now) + delay;
        *busy_until
    }
}

impl EngineInner {
    /// Waits until `table` may take a batch of `bytes`, and reserves memory for it.
    ///
    /// # Errors
    /// Why it never will: the engine is fenced or closed, the table is dropped.
    pub(super) async fn admit(&self, table: &TableInner, bytes: u64) -> Result<Reservation> {
        self.wait_for_compaction(table).await?;
        self.slow_down(table, bytes).await?;
        let now = self.env.monotonic();
        match self.budget.try_reserve(bytes, now) {
            Some(reservation) => Ok(reservation),
            None => self.wait_for_memory(table, bytes).await,
        }
    }

    async fn wait_for_memory(&self, table: &TableInner, bytes: u64) -> Result<Reservation> {
        let mut counted = false;
        let line = self.budget.wait_in_line();
        let line = tokio::select! {
            biased;
            line = line => line,
            () = table.cancel.cancelled() => {
                self.check_alive()?;
                table.check_open()?;
                return Err(Error::closed("the table is closed"));
            }
        };
        loop {
            if let Some(reservation) = line.try_reserve(bytes, self.env.monotonic()) {
                return Ok(reservation);
            }
            table.counters.waited(MEMORY, &mut counted);
            let freed = line.freed(|| self.freeze_largest());
            let freed = async {
                let _ = tokio::time::timeout(RECHECK, freed).await;
            };
            self.wait_or_fail(table, MEMORY, freed).await?;
        }
    }

    /// Waits while `table` has as many level-0 runs as it may have.
    ///
    /// # Errors
    /// Why that will never change.
    pub(super) async fn wait_for_compaction(&self, table: &TableInner) -> Result<()> {
        let runs_max = self.config.compaction.l0_runs_stop;
        let mut versions = table.manifest.subscribe();
        let mut counted = false;
        // Where compaction is off, or leaves inputs alone because they failed, waiting is of no use.
        while versions.borrow_and_update().l0_runs_max() >= runs_max
            && self.scheduler.helps(table.id())
        {
            table.counters.waited(L0_RUNS, &mut counted);
            self.scheduler.wake();
            let changed = async {
                let _ = tokio::time::timeout(RECHECK, versions.changed()).await;
            };
            self.wait_or_fail(table, L0_RUNS, changed).await?;
        }
        Ok(())
    }

    /// Holds the batch back for as long as the worse of the two pressures asks.
    async fn slow_down(&self, table: &TableInner, bytes: u64) -> Result<()> {
        let mut counted = false;
        let mut left = None;
        loop {
            let now = self.env.monotonic();
            let pressures = [
                (L0_RUNS_GROW, self.level_0_pressure(table, bytes, now)),
                (MEMORY_FILLS, self.memory_pressure(bytes, now)),
            ];
            let delays = pressures
                .iter()
                .map(|(reason, pressure)| (*reason, pressure.as_ref().map(delay)));
            let worst = delays
                .filter_map(|(reason, delay)| Some((reason, delay.filter(|d| !d.is_zero())?)))
                .max_by_key(|(_, delay)| *delay);
            let Some((reason, delay)) = worst else {
                return Ok(());
            };
            let left = left.get_or_insert_with(|| table.pace.queue(delay, now).saturating_sub(now));
            if left.is_zero() {
                return Ok(());
            }
            table.counters.waited(reason, &mut counted);
            let wait = (*left).min(RECHECK);
            *left -= wait;
            let pause = tokio::time::sleep(wait);
            self.wait_or_fail(table, reason, pause).await?;
        }
    }

    fn level_0_pressure(&self, table: &TableInner, bytes: u64, now: Duration) -> Option<Pressure> {
        let config = &self.config.compaction;
        let runs = table.manifest.version().l0_runs_max();
        if runs < config.l0_runs_slowdown || !self.scheduler.helps(table.id()) {
            return None;
        }
        let rates = *lock(&table.pace.rates);
        let flushes = rates.flushes.per_second(now).unwrap_or(CLEARED_UNMEASURED);
        // SSTs of a flush: a run in each of so many windows.
        let ssts = rates.ssts.per_second(now).unwrap_or(flushes);
        let width = (ssts / flushes.max(1e-9)).max(1.0);
        let cleared = self.scheduler.cleared_per_second(table.id());
        let cleared = cleared.unwrap_or(CLEARED_UNMEASURED).max(CLEARED_MIN) / width;
        let (slowdown, stop) = (config.l0_runs_slowdown as f64, config.l0_runs_stop as f64);
        let runs = runs as f64;
        let share = bytes as f64 / self.config.memory.memtable_bytes.0 as f64;
        Some(Pressure {
            fill: (runs - slowdown + 1.0) / (stop - slowdown),
            until_stop: (stop - runs) / flushes.max(1e-9),
            to_clear: (runs - slowdown + 1.0) / cleared,
            cost: share / cleared,
        })
    }

    fn memory_pressure(&self, bytes: u64, now: Duration) -> Option<Pressure> {
        let level = self.budget.level(now);
        if level.used > level.bytes_max / 100 * MEMORY_FLUSH_PERCENT {
            self.freeze_largest_now_and_then(now);
        }
        let pressure = pressure_of(&level, bytes, self.config.memory.memtable_bytes.0);
        (pressure.fill > 0.0).then_some(pressure)
    }

    async fn wait_or_fail(
        &self,
        table: &TableInner,
        reason: &str,
        change: impl Future<Output = ()>,
    ) -> Result<()> {
        let began = self.env.monotonic();
        tokio::select! {
            biased;
            () = change => {}
            () = table.cancel.cancelled() => {}
        }
        let waited = self.env.monotonic().saturating_sub(began);
        table.counters.waited_for(reason, waited);
        self.check_alive()?;
        table.check_open()
    }

    /// Looking for the largest memtable means looking at all tables: not at every write.
    fn freeze_largest_now_and_then(&self, now: Duration) {
        let mut last = lock(&self.pressed);
        if now.saturating_sub(*last) >= Duration::from_millis(50) {
            *last = now;
            drop(last);
            self.freeze_largest();
        }
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
        self.budget
            .memtable_changed(before, now, self.env.monotonic());
    }
}

fn pressure_of(level: &Level, bytes: u64, memtable_bytes: u64) -> Pressure {
    let slowdown = level.bytes_max as f64 / 100.0 * MEMORY_SLOWDOWN_PERCENT as f64;
    let (used, bytes_max) = (level.used as f64, level.bytes_max as f64);
    let memtable = memtable_bytes as f64;
    let cleared = level
        .flushed_per_second
        .unwrap_or(memtable * CLEARED_UNMEASURED);
    let cleared = cleared.max(memtable * CLEARED_MIN);
    let taken = level.taken_per_second.unwrap_or(memtable).max(1.0);
    Pressure {
        fill: (used - slowdown) / (bytes_max - slowdown).max(1.0),
        until_stop: (bytes_max - used).max(0.0) / taken,
        to_clear: (used - slowdown).max(0.0) / cleared,
        cost: bytes as f64 / cleared,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_with_the_stop_coming_and_the_debt_staying() {
        let ms = |fill, until_stop, to_clear, cost| {
            let pressure = Pressure {
                fill,
                until_stop,
                to_clear,
                cost,
            };
            delay(&pressure).as_millis()
        };
        //        fill  stop  clear  cost    delay
        for case @ (fill, until_stop, to_clear, cost, delay) in [
            // Not there yet.
            (0.0, 10.0, 10.0, 0.1, 0),
            (-0.5, 1.0, 10.0, 0.1, 0),
            // Half-way, and the debt clears as fast as the stop comes: half of the cost.
            (0.5, 10.0, 10.0, 0.1, 50),
            // It clears faster: less; slower: more.
            (0.5, 100.0, 10.0, 0.1, 5),
            (0.5, 10.0, 40.0, 0.1, 200),
            // Just before the stop writes are made slower than what clears.
            (1.0, 2.0, 10.0, 0.1, 500),
            (1.0, 0.0, 10.0, 0.1, 800),
            // Small batches wait for less, and none for ever.
            (1.0, 2.0, 10.0, 0.001, 5),
            (1.0, 0.0, 1e9, 1e9, 1_000),
            (1.0, 0.0, f64::INFINITY, f64::INFINITY, 1_000),
        ] {
            assert_eq!(ms(fill, until_stop, to_clear, cost), delay, "{case:?}");
        }
        let rising = (1..=10).map(|tenth| ms(f64::from(tenth) / 10.0, 5.0, 10.0, 0.1));
        assert!(rising.is_sorted());
    }

    #[test]
    fn memory_presses_from_three_quarters_on() {
        let level = |used, flushed| Level {
            used,
            bytes_max: 1_000,
            taken_per_second: Some(100.0),
            flushed_per_second: flushed,
        };
        let delay_of = |used, flushed| delay(&pressure_of(&level(used, flushed), 10, 100));
        assert_eq!(delay_of(750, Some(100.0)), Duration::ZERO);
        assert!(delay_of(800, Some(100.0)) > Duration::ZERO);
        assert!(delay_of(900, Some(100.0)) > delay_of(800, Some(100.0)));
        assert!(delay_of(900, Some(10.0)) > delay_of(900, Some(100.0)));
        // A store that is away does not make writers wait for ever on this account.
        assert!(delay_of(999, Some(0.0)) <= DELAY_MAX);
        assert!(delay_of(999, None) <= DELAY_MAX);
    }

    #[test]
    fn batches_queue_behind_each_other() {
        let (pace, ms) = (Pace::default(), Duration::from_millis);
        assert_eq!(pace.queue(ms(10), ms(100)), ms(110));
        assert_eq!(pace.queue(ms(10), ms(101)), ms(120));
        assert_eq!(pace.queue(ms(10), ms(500)), ms(510));
    }
}
