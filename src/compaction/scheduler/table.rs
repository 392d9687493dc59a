//! One table as the scheduler knows it: its claims, its quarantine, and what was planned for it last.
//!
//! A plan is made from the committed version and thrown away when anything it depends on has changed. What
//! was planned is kept until then, so that a table at rest costs a comparison.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio_util::sync::CancellationToken;

use super::{lock, quarantine::Quarantine};
use crate::{
    clock::{Env, Rate},
    compaction::{
        Claimed, Claims, Plan,
        planner::{self, CompactRange, Planned, PlannerConfig, Situation},
    },
    manifest::{Manifest, Pins, Version},
    types::{Seq, SstId},
};

/// The jobs of one table.
pub(super) struct TableJobs {
    pub(super) name: String,
    pub(super) manifest: Arc<Manifest>,
    pub(super) claims: Claims,
    /// Inputs of failed jobs, left alone by automatic plans for a while.
    pub(super) quarantine: Quarantine,
    pub(super) cancel: CancellationToken,
    /// The turn at which it was served last: of tables with equal needs the one that waited longest is next.
    pub(super) served: AtomicU64,
    /// Bytes of the outputs of committed jobs.
    pub(super) bytes_written: AtomicU64,
    /// Level-0 SSTs merged.
    pub(super) cleared: Mutex<Rate>,
    planned: Mutex<Option<Cached>>,
}

/// What was planned last, and on what.
struct Cached {
    /// Not held: a version that is held keeps objects from being deleted.
    version: Weak<Version>,
    claims: u64,
    quarantine: u64,
    read_points: Vec<Seq>,
    planned: Arc<Planned>,
    until: Option<Duration>,
}

impl TableJobs {
    pub(super) fn new(name: &str, manifest: Arc<Manifest>, cancel: CancellationToken) -> Self {
        Self {
            name: name.to_owned(),
            manifest,
            claims: Claims::default(),
            quarantine: Quarantine::default(),
            cancel,
            served: AtomicU64::new(0),
            bytes_written: AtomicU64::new(0),
            cleared: Mutex::default(),
            planned: Mutex::default(),
        }
    }

    /// What is to be done, most urgent first.
    pub(super) fn planned(&self, config: &PlannerConfig, env: &Env) -> Arc<Planned> {
        let (version, now_ms, now) = (self.manifest.version(), env.unix_ms(), env.monotonic());
        let (claims, quarantine) = (self.claims.changes(), self.quarantine.changes());
        let pins = self.manifest.pins();
        let mut cached = lock(&self.planned);
        if let Some(cached) = cached.as_ref() {
            let is_due = cached.until.is_some_and(|until| until <= now)
                || cached.planned.due_ms.is_some_and(|due| due <= now_ms);
            if cached.version.as_ptr() == Arc::as_ptr(&version)
                && (cached.claims, cached.quarantine) == (claims, quarantine)
                && cached.read_points == pins.read_points
                && !is_due
            {
                return cached.planned.clone();
            }
        }
        let held = self.quarantine.held(now);
        let claimed = self.claims.claimed();
        let situation = Situation {
            version: &version,
            claimed: &claimed,
            held: &held,
            pins: &pins,
            now_ms,
        };
        let planned = Arc::new(planner::plan(&situation, config));
        *cached = Some(Cached {
            version: Arc::downgrade(&version),
            claims,
            quarantine,
            read_points: pins.read_points.clone(),
            planned: planned.clone(),
            until: self.quarantine.next_release(now),
        });
        planned
    }

    /// The next plans of a manual compaction beside what is claimed, that leaves alone what failed, and
    /// respects what readers pin.
    pub(super) fn planned_manually(
        &self,
        config: &PlannerConfig,
        (range, goal): (&CompactRange, Seq),
        situated: (&Claimed, &HashSet<SstId>, &Pins),
    ) -> Vec<Plan> {
        let version = self.manifest.version();
        let (claimed, failed, pins) = situated;
        let situation = Situation {
            version: &version,
            claimed,
            held: failed,
            pins,
            now_ms: 0,
        };
        planner::manual(&situation, config, range, goal)
    }

    /// How long until there may be something to do although nothing has happened.
    pub(super) fn idle_for(&self, env: &Env) -> Option<Duration> {
        let cached = lock(&self.planned);
        let cached = cached.as_ref()?;
        let due = cached
            .planned
            .due_ms
            .map(|due_ms| due_ms.saturating_sub(env.unix_ms()));
        let until = cached
            .until
            .map(|until| until.saturating_sub(env.monotonic()));
        due.map(Duration::from_millis)
            .into_iter()
            .chain(until)
            .min()
    }

    /// Counts the table as served at `turn`.
    pub(super) fn serve(&self, turn: u64) {
        self.served.store(turn, Ordering::Relaxed);
    }
}
