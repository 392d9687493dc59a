//! Decides when jobs start, and sees each through: plan, claim, record, hand out, prove, commit.
//!
//! 1. A plan is made on demand, from the committed version, one free slot of the compactor at a time.
//! 2. Its inputs are claimed, and the job is recorded in the manifest.
//! 3. The compactor runs it; a job found in the manifest at open is run likewise, resuming what is done.
//! 4. What the proof accepts is committed in one edit: inputs out, outputs in, job ended.
//! 5. A job that fails is given up in the manifest, and its inputs are quarantined for a while.
//!
//! A claim is released when its job has ended in the manifest, however it ended.

mod quarantine;
mod run;

use std::{
    collections::BTreeMap,
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{FutureExt, StreamExt, stream::FuturesUnordered};
use tokio::sync::{Notify, oneshot, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use quarantine::Quarantine;

use super::{
    Claims, CompactionStats, Compactor, Plan,
    planner::{self, PlannerConfig},
    split::{Stretch, split},
};
use crate::{
    clock::Env,
    config::CompactionConfig,
    error::{Error, Result},
    manifest::{Edit, JobRecord, Manifest, Version},
    sst::SstReader,
    store::Store,
    types::{JobId, KeyRange, Seq, TableId},
};

/// How often past windows are looked at although nothing happened.
const TICK: Duration = Duration::from_secs(1);

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
    /// Jobs that were given to the compactor and are not counted in its capacity yet.
    entering: AtomicUsize,
    wake: Notify,
    /// Ticks whenever a job ends.
    ended: watch::Sender<u64>,
    cancel: CancellationToken,
    tracker: TaskTracker,
}

/// The jobs of one table.
struct TableJobs {
    name: String,
    manifest: Arc<Manifest>,
    claims: Claims,
    /// Inputs of failed jobs, left alone by automatic plans for a while.
    quarantine: Quarantine,
    /// Bytes of the outputs of committed jobs.
    bytes_written: AtomicU64,
    cancel: CancellationToken,
}

impl TableJobs {
    /// Whether an SST of level 0 holds a batch up to `goal`.
    fn has_level_0(&self, goal: Seq) -> bool {
        let version = self.manifest.version();
        let mut level_0 = version.windows.values().flat_map(|window| &window.l0);
        level_0.any(|sst| sst.seq_min <= goal)
    }
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
        Self {
            inner: Arc::new(Inner {
                store,
                env,
                config,
                compactor: watch::Sender::new(compactor),
                automatic: AtomicBool::new(automatic),
                tables: Mutex::default(),
                stats: Mutex::default(),
                entering: AtomicUsize::new(0),
                wake: Notify::new(),
                ended: watch::Sender::new(0),
                cancel,
                tracker: TaskTracker::new(),
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
        let table = Arc::new(TableJobs {
            name: name.to_owned(),
            manifest,
            claims: Claims::default(),
            quarantine: Quarantine::default(),
            bytes_written: AtomicU64::new(0),
            cancel: self.inner.cancel.child_token(),
        });
        lock(&self.inner.tables).insert(table.manifest.table(), table.clone());
        self.inner.adopt_jobs(&table);
        self.wake();
    }

    /// Leaves a table alone: its jobs are cancelled.
    pub fn remove_table(&self, table: TableId) {
        if let Some(table) = lock(&self.inner.tables).remove(&table) {
            table.cancel.cancel();
        }
    }

    /// Looks for work: something was flushed.
    pub fn wake(&self) {
        self.inner.wake.notify_one();
    }

    /// Starts jobs until [`Scheduler::stop`].
    pub async fn run(&self) {
        while !self.inner.cancel.is_cancelled() {
            tokio::select! {
                () = self.inner.cancel.cancelled() => return,
                () = self.inner.schedule() => {}
            }
            tokio::select! {
                () = self.inner.cancel.cancelled() => {}
                () = self.inner.wake.notified() => {}
                () = tokio::time::sleep(TICK) => {}
            }
        }
    }

    /// Stops, and waits for what runs to stop. Jobs under way stay in the manifest.
    pub async fn stop(&self) {
        self.inner.cancel.cancel();
        self.inner.tracker.close();
        self.inner.tracker.wait().await;
    }

    /// Merges level 0 of every window of `table`, as it is now, into level 1; returns once that is
    /// committed.
    ///
    /// # Errors
    /// `NotFound` for a table that is not here; `Closed`; why a job failed.
    pub async fn compact(&self, table: TableId) -> Result<()> {
        let inner = &self.inner;
        let table = lock(&inner.tables).get(&table).cloned();
        let table = table.ok_or_else(|| Error::not_found("the table is gone"))?;
        let goal = table.manifest.version().flushed_seq;
        let config = PlannerConfig::from(&inner.config);
        let mut jobs = FuturesUnordered::new();
        loop {
            let mut ended = inner.ended.subscribe();
            if jobs.is_empty() && !table.has_level_0(goal) {
                return Ok(());
            }
            for plan in planner::manual(&table.manifest.version(), &table.claims, &config) {
                let is_due = plan
                    .inputs
                    .iter()
                    .any(|sst| sst.level == 0 && sst.seq_min <= goal);
                if is_due && inner.has_room() {
                    jobs.extend(inner.start(&table, plan).await?);
                }
            }
            tokio::select! {
                // First what our own jobs have to say: after a failure no other is started.
                biased;
                () = table.cancel.cancelled() => return Err(Error::closed("compaction was stopped")),
                Some(job) = jobs.next() => {
                    job.map_err(|_| Error::closed("compaction was stopped"))??;
                }
                _ = ended.changed() => {}
                () = tokio::time::sleep(TICK) => {}
            }
        }
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
        stats.waiting = compactor.waiting();
        let now = self.inner.env.monotonic();
        let tables = lock(&self.inner.tables);
        let held = tables
            .values()
            .map(|table| table.quarantine.held(now).len() as u64);
        stats.ssts_quarantined = held.sum();
        stats.jobs_running = self.inner.tracker.len() as u64;
        stats
    }

    fn stats(&self) -> MutexGuard<'_, CompactionStats> {
        lock(&self.inner.stats)
    }
}

impl Inner {
    /// Starts the most urgent plans while the compactor has room.
    async fn schedule(self: &Arc<Self>) {
        let tables: Vec<_> = lock(&self.tables).values().cloned().collect();
        for table in tables {
            self.adopt_jobs(&table);
        }
        while self.automatic.load(Ordering::Relaxed) && !self.cancel.is_cancelled() {
            if !self.has_room() {
                return;
            }
            let Some((table, plan)) = self.most_urgent() else {
                return;
            };
            let inputs = plan.input_ids();
            if let Err(error) = self.start(&table, plan).await {
                self.note_failure(&table, &error, "compaction job could not be started");
                if error.is_unavailable() {
                    return;
                }
                table.quarantine.add(&inputs, self.env.monotonic());
            }
        }
    }

    /// Whether the compactor has room for a job besides those on their way to it.
    fn has_room(&self) -> bool {
        self.compactor.borrow().capacity().jobs > self.entering.load(Ordering::Relaxed)
    }

    fn most_urgent(&self) -> Option<(Arc<TableJobs>, Plan)> {
        let config = PlannerConfig::from(&self.config);
        let (now_ms, now) = (self.env.unix_ms(), self.env.monotonic());
        let tables: Vec<_> = lock(&self.tables).values().cloned().collect();
        let plans = tables.into_iter().filter_map(|table| {
            let (version, held) = (table.manifest.version(), table.quarantine.held(now));
            let plans = planner::plan(&version, &table.claims, &held, &config, now_ms);
            Some((table, plans.into_iter().next()?))
        });
        plans.max_by(|(_, left), (_, right)| left.score.total_cmp(&right.score))
    }

    fn is_idle(&self) -> bool {
        let is_planned = self.automatic.load(Ordering::Relaxed) && self.most_urgent().is_some();
        let tables = lock(&self.tables);
        let is_busy = |table: &Arc<TableJobs>| {
            !table.claims.is_empty() || !table.manifest.version().jobs.is_empty()
        };
        self.tracker.is_empty() && !is_planned && !tables.values().any(is_busy)
    }

    /// Runs recorded jobs that nobody runs: left by an engine before, by a start whose caller went away or
    /// never learned how its commit ended, or by a panic.
    fn adopt_jobs(self: &Arc<Self>, table: &Arc<TableJobs>) {
        for record in table.manifest.version().jobs.values() {
            let Some(claim) = table.claims.claim(record.inputs.clone()) else {
                continue;
            };
            if !table.manifest.version().jobs.contains_key(&record.id) {
                continue;
            }
            lock(&self.stats).jobs_resumed += 1;
            let (inner, table, record) = (self.clone(), table.clone(), record.clone());
            self.spawn_job(async move {
                tokio::select! {
                    () = table.cancel.cancelled() => return,
                    () = inner.count_reused(table.manifest.table(), record.id) => {}
                }
                let _ = inner.run_job(&table, &record, claim).await;
            });
        }
    }

    /// Claims the plan's inputs, records the job and has it run. `None` when an input was claimed
    /// meanwhile; otherwise the job's end.
    async fn start(
        self: &Arc<Self>,
        table: &Arc<TableJobs>,
        plan: Plan,
    ) -> Result<Option<oneshot::Receiver<Result<()>>>> {
        let Some(claim) = table.claims.claim(plan.input_ids()) else {
            return Ok(None);
        };
        let tasks = self.tasks_of(table, &plan).await?;
        let job = JobId::from_parts(self.env.unix_ms(), self.env.random());
        let record = |version: &Version| JobRecord {
            id: job,
            inputs: plan.input_ids(),
            window: plan.window,
            level_target: plan.level_target,
            retention: plan.retention(version, table.manifest.pins()),
            sst_bytes_target: self.config.sst_bytes_target.0,
            tasks: tasks.clone(),
            created_ms: self.env.unix_ms(),
        };
        let version = table
            .manifest
            .commit(|version| {
                let is_taken = |other: &Arc<JobRecord>| other.window == plan.window;
                // An input may have left meanwhile: all of its rows had expired, or were deleted.
                if plan
                    .inputs
                    .iter()
                    .any(|sst| version.find(sst.as_ref().into()).is_none())
                {
                    return Ok(None);
                }
                // Ours, from an append whose answer was lost; or one that waits to be adopted.
                if version.jobs.values().any(is_taken) {
                    return Ok(None);
                }
                Ok(Some(Edit {
                    jobs_started: vec![record(version)],
                    ..Edit::default()
                }))
            })
            .await?;
        let Some(record) = version.jobs.get(&job).cloned() else {
            return Ok(None);
        };
        lock(&self.stats).jobs_started += 1;
        tracing::debug!(
            table = %table.name, %job, window = plan.window.0, reason = %plan.reason,
            inputs = plan.inputs.len(), bytes = plan.input_bytes(), tasks = record.tasks.len(),
            "compaction job recorded"
        );
        let (sender, receiver) = oneshot::channel();
        let (inner, table) = (self.clone(), table.clone());
        self.spawn_job(async move {
            // Nobody may be there to be told.
            let _ = sender.send(inner.run_job(&table, &record, claim).await);
        });
        Ok(Some(receiver))
    }

    fn spawn_job(self: &Arc<Self>, job: impl Future<Output = ()> + Send + 'static) {
        self.entering.fetch_add(1, Ordering::Relaxed);
        let inner = self.clone();
        let tracked = self.tracker.track_future(job);
        tokio::spawn(async move {
            // A job that panics ends too; what it recorded is adopted.
            let _ = AssertUnwindSafe(tracked).catch_unwind().await;
            inner.ended.send_modify(|ended| *ended += 1);
            inner.wake.notify_one();
        });
    }

    /// Key ranges of about equal bytes. Cuts come from the inputs' row groups.
    async fn tasks_of(&self, table: &TableJobs, plan: &Plan) -> Result<Vec<KeyRange>> {
        let target = self.config.task_bytes_target.0;
        if plan.input_bytes() <= target {
            return Ok(vec![KeyRange::ALL]);
        }
        let schema = table.manifest.version().schema.clone();
        let mut stretches = Vec::new();
        for sst in &plan.inputs {
            let reader =
                SstReader::open(&self.store, &schema, table.manifest.table(), sst.clone()).await?;
            stretches.extend(reader.row_group_bounds().into_iter().map(|group| Stretch {
                first_key: group.first_key,
                bytes: group.bytes,
            }));
        }
        Ok(split(stretches, target))
    }
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no panic under this lock")
}
