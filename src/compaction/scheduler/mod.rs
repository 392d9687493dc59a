//! Decides when jobs start, and sees each through: plan, claim, record, hand out, prove, commit.
//!
//! 1. A plan is made on demand, from the committed version, one free slot of the compactor at a time. Of
//!    all tables' plans the most urgent goes first; among about equals, the table that waited longest. One
//!    slot is kept for level 0.
//! 2. Its inputs are claimed, and the job is recorded in the manifest. A trivial move is committed at once.
//! 3. The compactor runs it; a job found in the manifest at open is run likewise, resuming what is done.
//! 4. What the proof accepts is committed in one edit: inputs out, outputs in, job ended.
//! 5. A job that fails, or panics, is given up in the manifest, and its inputs are quarantined for a while.
//!
//! A claim is released when its job has ended in the manifest, however it ended. Nothing here waits for the
//! store but the jobs themselves. When there is nothing to do, the scheduler sleeps until something happens
//! or becomes due; tables at rest cost nothing.

mod attend;
mod manual;
mod quarantine;
mod run;
mod slots;
mod table;

use std::{
    collections::BTreeMap,
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use futures::FutureExt;
use tokio::sync::{Notify, oneshot, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use slots::Slots;
use table::TableJobs;

use super::{
    Claim, CompactionReport, CompactionStats, Compactor, Footprint, Plan,
    planner::{CompactRange, PlannerConfig},
};
use crate::{
    clock::Env,
    config::CompactionConfig,
    error::{Error, Result},
    manifest::Manifest,
    store::Store,
    types::TableId,
};

/// How often somebody who waits for compaction looks again although nothing has happened.
const TICK: Duration = Duration::from_secs(1);
/// How often due times are looked at although nothing has happened: the machine's clock may jump.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// How a job ended.
type JobEnd = Result<CompactionReport>;

/// Schedules the compaction of all tables of an engine. Cheap to clone.
#[derive(Clone)]
pub struct Scheduler {
    inner: Arc<Inner>,
}

struct Inner {
    store: Store,
    env: Env,
    config: CompactionConfig,
    /// Who runs jobs that start from now on, and those that cannot go on where they are.
    compactor: watch::Sender<Arc<dyn Compactor>>,
    /// Whether plans are made without being asked for.
    automatic: AtomicBool,
    tables: Mutex<BTreeMap<TableId, Arc<TableJobs>>>,
    stats: Mutex<CompactionStats>,
    slots: Slots,
    /// Counts the jobs started.
    turn: AtomicU64,
    wake: Notify,
    /// Ticks whenever a job ends, or what is left alone changes.
    ended: watch::Sender<u64>,
    cancel: CancellationToken,
    tracker: TaskTracker,
    /// Tells this opening of the engine from every other.
    session: u64,
}

impl std::fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Scheduler")
    }
}

impl Scheduler {
    /// A scheduler that stops with `cancel` and hands jobs to `compactor`; with `automatic` it plans by the triggers of `config`,
    /// otherwise only when asked. [`Scheduler::run`] must be running.
    pub fn new(
        store: Store,
        env: Env,
        config: CompactionConfig,
        compactor: Arc<dyn Compactor>,
        automatic: bool,
        cancel: CancellationToken,
    ) -> Self {
        // Led by the time, so that a later one has a greater one.
        let session = (env.unix_ms() << 16) | (env.random() & 0xffff) as u64;
        Self {
            inner: Arc::new(Inner {
                store,
                env,
                config,
                compactor: watch::Sender::new(compactor),
                automatic: AtomicBool::new(automatic),
                tables: Mutex::default(),
                stats: Mutex::default(),
                slots: Slots::default(),
                turn: AtomicU64::new(0),
                wake: Notify::new(),
                ended: watch::Sender::new(0),
                cancel,
                tracker: TaskTracker::new(),
                session,
            }),
        }
    }

    /// Has `compactor` run the jobs that start from now on, and those that wait for a compactor which cannot
    /// go on.
    pub fn set_compactor(&self, compactor: Arc<dyn Compactor>, automatic: bool) {
        self.inner.automatic.store(automatic, Ordering::Relaxed);
        self.inner.compactor.send_replace(compactor);
        self.wake();
    }

    /// Who runs jobs that start now.
    pub fn compactor(&self) -> Arc<dyn Compactor> {
        self.inner.compactor.borrow().clone()
    }

    /// Whether waiting for the compaction of `table` is of use: plans are made for it, and none of its SSTs
    /// is left alone because a job failed.
    pub fn helps(&self, table: TableId) -> bool {
        let tables = lock(&self.inner.tables);
        let now = self.inner.env.monotonic();
        let goes_on = |table: &Arc<TableJobs>| table.quarantine.held(now).is_empty();
        self.inner.automatic.load(Ordering::Relaxed) && tables.get(&table).is_some_and(goes_on)
    }

    /// Takes care of a table from now on, and resumes the jobs that its manifest records.
    pub fn add_table(&self, name: &str, manifest: Arc<Manifest>) {
        let cancel = self.inner.cancel.child_token();
        let table = Arc::new(TableJobs::new(name, manifest, cancel));
        lock(&self.inner.tables).insert(table.manifest.table(), table.clone());
        self.inner.adopt_jobs(&table);
        self.wake();
    }

    /// Claims a place in `table` for SSTs that somebody else brings there. `None` when a job is in the way. When the
    /// claim ends, [wake](Self::wake) the scheduler.
    pub fn claim(&self, table: TableId, footprint: Footprint) -> Option<Claim> {
        let table = lock(&self.inner.tables).get(&table).cloned()?;
        table.claims.claim(footprint)
    }

    /// Leaves a table alone, for it was dropped: its jobs are cancelled, and are not resumed.
    pub fn remove_table(&self, table: TableId) {
        if let Some(table) = lock(&self.inner.tables).remove(&table) {
            table.cancel.cancel();
            self.inner.tick();
        }
    }

    /// Looks for work: something was flushed.
    pub fn wake(&self) {
        self.inner.wake.notify_one();
    }

    /// Starts jobs until [`Scheduler::stop`]. Meanwhile the compactor looks after the quarantine.
    pub async fn run(&self) {
        tokio::join!(self.start_jobs(), self.attend(), self.follow_room());
    }

    /// Looks for work whenever whoever is the compactor has gained room, until [`Scheduler::stop`].
    async fn follow_room(&self) {
        let mut compactors = self.inner.compactor.subscribe();
        loop {
            let compactor = compactors.borrow_and_update().clone();
            tokio::select! {
                biased;
                () = self.inner.cancel.cancelled() => return,
                _ = compactors.changed() => {}
                () = compactor.gains_room() => self.wake(),
            }
        }
    }

    async fn start_jobs(&self) {
        while !self.inner.cancel.is_cancelled() {
            self.inner.schedule();
            tokio::select! {
                biased;
                () = self.inner.cancel.cancelled() => {}
                () = self.inner.wake.notified() => {}
                () = tokio::time::sleep(self.inner.idle_for()) => {}
            }
        }
    }

    /// Stops, and waits for what runs to stop. Jobs under way stay in the manifest.
    pub async fn stop(&self) {
        self.inner.cancel.cancel();
        self.inner.tracker.close();
        self.inner.tracker.wait().await;
    }

    /// Brings `range` of `table`, as it is now, into its resting shape: of each window one run; returns once
    /// that is committed. Inputs of jobs that failed before are tried again.
    ///
    /// # Errors
    /// `NotFound` for a table that is not here; `Closed`; why a job failed: the others were run all the same.
    pub async fn compact(&self, table: TableId, range: &CompactRange) -> Result<CompactionReport> {
        let table = lock(&self.inner.tables).get(&table).cloned();
        let table = table.ok_or_else(|| Error::not_found("the table is gone"))?;
        self.inner.compact(&table, range).await
    }

    /// Has automatic plans take up what was left alone in `table` because jobs with it failed; returns how many SSTs.
    ///
    /// # Errors
    /// `NotFound` for a table that is not here.
    pub fn retry_quarantined(&self, table: TableId) -> Result<u64> {
        let table = lock(&self.inner.tables).get(&table).cloned();
        let table = table.ok_or_else(|| Error::not_found("the table is gone"))?;
        Ok(self.inner.release(&[table]))
    }

    /// How many level-0 SSTs of `table` are merged a second, lately; `None` while that is not known.
    pub fn cleared_per_second(&self, table: TableId) -> Option<f64> {
        let table = lock(&self.inner.tables).get(&table).cloned()?;
        let cleared = *lock(&table.cleared);
        cleared.per_second(self.inner.env.monotonic())
    }

    /// Waits until no job runs and no plan is due. SSTs that are left alone because a job with them failed
    /// do not count: [`CompactionStats::ssts_quarantined`] tells of them.
    ///
    /// # Errors
    /// `Closed` when the scheduler stops.
    pub async fn wait_idle(&self) -> Result<()> {
        loop {
            let mut ended = self.inner.ended.subscribe();
            if self.inner.is_idle() {
                return Ok(());
            }
            self.wake();
            tokio::select! {
                biased;
                () = self.inner.cancel.cancelled() => return Err(Error::closed("compaction was stopped")),
                _ = ended.changed() => {}
                () = tokio::time::sleep(TICK) => {}
            }
        }
    }

    /// Bytes of the SSTs that committed jobs of `table` wrote.
    pub fn bytes_written(&self, table: TableId) -> u64 {
        let tables = lock(&self.inner.tables);
        let written = tables.get(&table).map(|table| &table.bytes_written);
        written.map_or(0, |written| written.load(Ordering::Relaxed))
    }

    /// What happened so far.
    pub fn snapshot(&self) -> CompactionStats {
        let mut stats = self.stats().clone();
        let compactor = self.inner.compactor.borrow().clone();
        let automatic = self.inner.automatic.load(Ordering::Relaxed);
        stats.mode = if automatic { compactor.kind() } else { "off" }.into();
        stats.fallbacks = compactor.fallbacks();
        stats.fallbacks_held = compactor.fallbacks_held();
        stats.decisions = compactor.decisions();
        stats.waiting = compactor.waiting();
        stats.quarantine = self.inner.quarantine();
        stats.ssts_quarantined = stats.quarantine.len() as u64;
        stats.jobs_running = self.inner.tracker.len() as u64;
        stats
    }

    fn stats(&self) -> MutexGuard<'_, CompactionStats> {
        lock(&self.inner.stats)
    }
}

impl Inner {
    /// Starts the most urgent plans while there is room.
    fn schedule(self: &Arc<Self>) {
        let tables: Vec<_> = lock(&self.tables).values().cloned().collect();
        for table in &tables {
            self.adopt_jobs(table);
        }
        while self.automatic.load(Ordering::Relaxed) && !self.cancel.is_cancelled() {
            let Some((table, plan)) = self.most_urgent(&tables) else {
                return;
            };
            // Somebody else was faster, and wakes us when that has ended.
            if self.start(table, plan).is_none() {
                return;
            }
        }
    }

    /// Whether `plan` may start now.
    fn has_room(&self, plan: &Plan) -> bool {
        let capacity = self.compactor.borrow().capacity().jobs;
        plan.moves || self.slots.has_room(capacity, plan.relieves_level_0())
    }

    /// Of the plans that may start now the one to start next.
    fn most_urgent<'a>(&self, tables: &'a [Arc<TableJobs>]) -> Option<(&'a Arc<TableJobs>, Plan)> {
        let config = PlannerConfig::from(&self.config);
        let candidates = tables.iter().filter_map(|table| {
            let planned = table.planned(&config, &self.env);
            let plan = planned.plans.iter().find(|plan| self.has_room(plan))?;
            let served = table.served.load(Ordering::Relaxed);
            // Scores within a factor of two count as equal.
            let urgency = plan.score.max(f64::MIN_POSITIVE).log2().floor() as i64;
            let order = (urgency, plan.relieves_level_0(), std::cmp::Reverse(served));
            Some((order, table, plan.clone()))
        });
        let next = candidates.max_by(|left, right| left.0.cmp(&right.0));
        next.map(|(_, table, plan)| (table, plan))
    }

    fn idle_for(&self) -> Duration {
        let tables = lock(&self.tables);
        let idle = tables
            .values()
            .filter_map(|table| table.idle_for(&self.env));
        // What is due but cannot start waits for something to happen.
        idle.filter(|idle| !idle.is_zero())
            .min()
            .map_or(IDLE_MAX, |idle| idle.min(IDLE_MAX))
    }

    fn is_idle(&self) -> bool {
        let tables: Vec<_> = lock(&self.tables).values().cloned().collect();
        let config = PlannerConfig::from(&self.config);
        let is_automatic = self.automatic.load(Ordering::Relaxed);
        let is_busy = |table: &Arc<TableJobs>| {
            // A job that starts or ends meanwhile would hide from the plan what it has claimed.
            let changes = table.claims.changes();
            (is_automatic && !table.planned(&config, &self.env).plans.is_empty())
                || !table.claims.is_empty()
                || !table.manifest.version().jobs.is_empty()
                || table.claims.changes() != changes
        };
        self.tracker.is_empty() && !tables.iter().any(is_busy)
    }

    /// Runs recorded jobs that nobody runs: left by an engine before, by a start whose caller went away or
    /// never learned how its commit ended.
    fn adopt_jobs(self: &Arc<Self>, table: &Arc<TableJobs>) {
        let version = table.manifest.version();
        for record in version.jobs.values() {
            let Ok(inputs) = version.inputs_of(record) else {
                continue;
            };
            let footprint = Footprint::new(record.window, &inputs, record.level_target);
            let Some(claim) = table.claims.claim(footprint) else {
                continue;
            };
            if !table.manifest.version().jobs.contains_key(&record.id) {
                continue;
            }
            lock(&self.stats).jobs_resumed += 1;
            let slot = self.slots.enter(true);
            let (inner, table, record) = (self.clone(), table.clone(), record.clone());
            self.spawn_job(async move {
                tokio::select! {
                    biased;
                    () = table.cancel.cancelled() => return inner.forget_if_dropped(&table, record.id),
                    () = inner.count_reused(table.manifest.table(), record.id) => {}
                }
                let _ = inner.run_job(&table, &record, claim, slot).await;
            });
        }
    }

    /// Claims the plan's inputs and has it carried out. `None` when a running job is in the way; otherwise
    /// how it will have ended.
    fn start(
        self: &Arc<Self>,
        table: &Arc<TableJobs>,
        plan: Plan,
    ) -> Option<oneshot::Receiver<JobEnd>> {
        let claim = table.claims.claim(plan.footprint())?;
        table.serve(self.turn.fetch_add(1, Ordering::Relaxed) + 1);
        let slot = (!plan.moves).then(|| self.slots.enter(plan.relieves_level_0()));
        let (sender, receiver) = oneshot::channel();
        let (inner, table) = (self.clone(), table.clone());
        self.spawn_job(async move {
            let end = match slot {
                None => inner.move_ssts(&table, &plan, claim).await,
                Some(slot) => inner.record_and_run(&table, &plan, claim, slot).await,
            };
            // Nobody may be there to be told.
            let _ = sender.send(end);
        });
        Some(receiver)
    }

    fn spawn_job(self: &Arc<Self>, job: impl Future<Output = ()> + Send + 'static) {
        let inner = self.clone();
        let tracked = self.tracker.track_future(job);
        tokio::spawn(async move {
            // A panic outside of what `run_job` catches ends the job too, and its claim.
            let _ = AssertUnwindSafe(tracked).catch_unwind().await;
            inner.tick();
            inner.wake.notify_one();
        });
    }
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no panic under this lock")
}
