//! Runs each job where it costs least: in the engine's process, on nodes, or some of its tasks here and the others there.
//!
//! 1. Look at the fleet, unless that was done a moment ago. One that is away is not waited for.
//! 2. Decide, by `cost`, from what is in the books: how fast jobs were, what each side has ahead, how long jobs waited
//!    for a node. Write that down.
//! 3. Have the local or the remote compactor run the job, or each its share. A job that is with the fleet when the fleet
//!    goes away falls back as in mode `"remote"`.
//! 4. When it has ended, measure how fast its tasks were, whoever ran them.
//!
//! There is room for as many jobs as both sides have together; for those of this process alone while the fleet is away.
//! Who plans is told when it is back.

mod rate;
mod record;

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard},
    task::Poll,
    time::Duration,
};

use async_trait::async_trait;
use tracing::{info, warn};

use self::rate::MeasuredRate;
pub use self::record::{Decisions, JobDecision};
use super::{
    Capacity, CompactionContext, CompactionJob, CompactionOutcome, Compactor, LOCAL_NODE,
    QuarantineView, Share,
    cost::{Costs, Decision, Side, SideCosts, SideState, decide},
    remote::{FleetSeen, FleetView, JobService},
};
use crate::{
    clock::Env,
    config::LocalConfig,
    error::{Error, ErrorKind, Result},
    types::{Deletion, JobId, TableId},
};

/// How often the fleet is looked at while jobs run, so that there is room on it as soon as it is back.
const FLEET_INTERVAL: Duration = Duration::from_secs(5);
/// How long one call to release a job may take; meta drops it by itself in the end.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs each job where it costs least.
pub struct AutoCompactor {
    local: Arc<dyn Compactor>,
    remote: Arc<dyn Compactor>,
    fleet: Arc<FleetView>,
    local_config: LocalConfig,
    env: Env,
    /// When it was made, in milliseconds since the Unix epoch: older jobs may be known to meta.
    since_ms: u64,
    books: Mutex<Books>,
}

/// What is known of both sides.
struct Books {
    /// Jobs of which it is not decided where they run.
    deciding: usize,
    local: SideBook,
    remote: SideBook,
    decisions: Decisions,
}

/// What is known of one side.
#[derive(Default)]
struct SideBook {
    rate: MeasuredRate,
    /// Jobs given to it that its compactor does not count yet.
    entering: usize,
    /// Input bytes of what was given to it and has not ended.
    bytes_ahead: u64,
    /// When it was given a job last, on the monotonic clock.
    given: Duration,
}

impl AutoCompactor {
    /// One that has `local` and `remote` run jobs. `remote` reaches nodes through `fleet`; `local_config` is what
    /// `local` keeps to.
    pub fn new(
        local: Arc<dyn Compactor>,
        remote: Arc<dyn Compactor>,
        fleet: Arc<FleetView>,
        local_config: LocalConfig,
        env: Env,
    ) -> Self {
        let new = || SideBook {
            given: env.monotonic(),
            ..SideBook::default()
        };
        Self {
            local,
            remote,
            fleet,
            local_config,
            since_ms: env.unix_ms(),
            books: Mutex::new(Books {
                deciding: 0,
                local: new(),
                remote: new(),
                decisions: Decisions::default(),
            }),
            env,
        }
    }

    /// Decides where `job` runs, and writes it down.
    fn place(&self, job: &CompactionJob, context: &CompactionContext) -> Placed<'_> {
        let now = self.env.monotonic();
        let seen = self.fleet.seen();
        let mut books = self.books();
        let costs = self.costs(&books, job, context, &seen);
        let decision = decide(&costs);
        let mut why = decision.words();
        if let (SideState::Away, FleetSeen::Away(reason)) = (costs.remote.state, &seen) {
            why = format!("{why}: {reason}");
        }
        info!(
            job = %job.id, table = %job.table, side = decision.side.as_str(),
            reason = decision.reason.as_str(), why, ?costs, "where a compaction job runs"
        );
        let tasks = job.tasks.len().max(1) as u64;
        let bytes_local = costs.bytes * u64::from(decision.tasks_local) / tasks;
        let (here, there) = (decision.side != Side::Remote, decision.side != Side::Local);
        if here {
            books.local.enter(bytes_local, now);
        }
        if there {
            books.remote.enter(costs.bytes - bytes_local, now);
        }
        books.decisions.add(JobDecision {
            job: job.id,
            table: job.table,
            decided_ms: self.env.unix_ms(),
            costs,
            decision,
            why,
            took_ms: None,
            error: None,
        });
        Placed {
            auto: self,
            decision,
            bytes: [bytes_local, costs.bytes - bytes_local],
            sides: [here, there],
            is_entering: true,
        }
    }

    fn costs(
        &self,
        books: &Books,
        job: &CompactionJob,
        context: &CompactionContext,
        seen: &FleetSeen,
    ) -> Costs {
        let now = self.env.monotonic();
        let room = |side: &dyn Compactor, book: &SideBook| {
            side.capacity().jobs.saturating_sub(book.entering)
        };
        let (fleet, remote_state) = match seen {
            FleetSeen::There(fleet) if fleet.slots == 0 => (*fleet, SideState::NoNodes),
            FleetSeen::There(fleet) => match room(self.remote.as_ref(), &books.remote) {
                0 => (*fleet, SideState::Full),
                _ => (*fleet, SideState::Open),
            },
            FleetSeen::Away(_) | FleetSeen::Unknown => (Default::default(), SideState::Away),
        };
        // Of two places here or more, the last is for level 0: nodes do the rest as well.
        let is_kept = remote_state == SideState::Open
            && !job.relieves_level_0()
            && self.local_config.jobs_max > 1;
        let local_room = room(self.local.as_ref(), &books.local);
        let local_state = match local_room > usize::from(is_kept) {
            true => SideState::Open,
            false => SideState::Full,
        };
        Costs {
            bytes: job.input_bytes(),
            tasks: u32::try_from(job.tasks.len()).unwrap_or(u32::MAX),
            write_pressure_percent: context.write_pressure_percent,
            local: SideCosts {
                state: local_state,
                slots: self.local_config.tasks_max as u64,
                bytes_ahead: books.local.bytes_ahead,
                queue_ms: 0,
                bytes_per_second: books.local.rate.bytes_per_second(),
                idle_ms: millis(now.saturating_sub(books.local.given)),
            },
            remote: SideCosts {
                state: remote_state,
                slots: fleet.slots.into(),
                // What was given to nodes a moment ago, meta may not have told yet.
                bytes_ahead: fleet.bytes_ahead.max(books.remote.bytes_ahead),
                queue_ms: millis(self.fleet.queue_time()),
                bytes_per_second: books.remote.rate.bytes_per_second(),
                idle_ms: millis(now.saturating_sub(books.remote.given)),
            },
        }
    }

    async fn run(
        &self,
        job: &Arc<CompactionJob>,
        context: CompactionContext,
        decision: &Decision,
    ) -> Result<CompactionOutcome> {
        let first = decision.tasks_local as usize;
        match (decision.side, Share::halves(&job.tasks, first)) {
            (Side::Remote, _) => self.remote.compact(job.clone(), context).await,
            (Side::Split, Some((here, there))) => {
                let share = |share| CompactionContext {
                    share,
                    ..context.clone()
                };
                let here = self.local.compact(job.clone(), share(here));
                let there = self.remote.compact(job.clone(), share(there));
                match tokio::try_join!(here, there) {
                    Ok((here, there)) => Ok(joined(here, there)),
                    Err(error) => {
                        // The other half was dropped, which is not to go on when the job is given up.
                        if !matches!(error.kind(), ErrorKind::Closed | ErrorKind::Fenced) {
                            self.release(job.id).await;
                        }
                        Err(error)
                    }
                }
            }
            (Side::Local | Side::Split, _) => {
                let release = async {
                    let is_away = matches!(self.fleet.seen(), FleetSeen::Away(_));
                    if job.id.unix_ms() < self.since_ms && !is_away {
                        self.release(job.id).await;
                    }
                };
                let here = self.local.compact(job.clone(), context);
                tokio::join!(here, release).0
            }
        }
    }

    /// Tells meta, should it know the job, that no node needs to work on it.
    async fn release(&self, job: JobId) {
        let released = tokio::time::timeout(RELEASE_TIMEOUT, self.fleet.release(job)).await;
        let released = released.unwrap_or_else(|_| Err(Error::unavailable("no answer")));
        if let Err(error) = released {
            warn!(%job, %error, "meta cannot be told that a job is no longer for nodes");
        }
    }

    /// Looks at the fleet now and then, for as long as it is polled.
    async fn follow_fleet(&self) {
        loop {
            tokio::time::sleep(FLEET_INTERVAL).await;
            self.fleet.look().await;
        }
    }

    /// Measures the sides by what ran where.
    fn measure(&self, outcome: &CompactionOutcome) {
        let mut books = self.books();
        let Books { local, remote, .. } = &mut *books;
        for (book, is_local) in [(local, true), (remote, false)] {
            let parts = outcome.parts.iter();
            let parts = parts.filter(|part| (part.node.0 == LOCAL_NODE) == is_local);
            let (bytes, elapsed_ms) = parts.fold((0, 0), |(bytes, elapsed_ms), part| {
                (bytes + part.bytes_read, elapsed_ms + part.elapsed_ms)
            });
            if bytes > 0 {
                book.rate.add(bytes, elapsed_ms);
            }
        }
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().expect("no panic under this lock")
    }
}

#[async_trait]
impl Compactor for AutoCompactor {
    async fn compact(
        &self,
        job: Arc<CompactionJob>,
        context: CompactionContext,
    ) -> Result<CompactionOutcome> {
        let deciding = Deciding::new(self);
        tokio::select! {
            biased;
            () = context.cancel.cancelled() => {
                return Err(Error::closed(format!("job {} was cancelled", job.id)));
            }
            _ = self.fleet.look() => {}
        }
        let mut placed = self.place(&job, &context);
        drop(deciding);
        let (began, decision) = (self.env.monotonic(), placed.decision);
        let mut running = std::pin::pin!(self.run(&job, context, &decision));
        // From its first poll on the side counts the job itself.
        let first = futures::poll!(&mut running);
        placed.has_entered();
        let ended = match first {
            Poll::Ready(ended) => ended,
            Poll::Pending => tokio::select! {
                biased;
                ended = &mut running => ended,
                () = self.follow_fleet() => Err(Error::internal("the fleet is looked at for ever")),
            },
        };
        drop(placed);
        let took_ms = millis(self.env.monotonic().saturating_sub(began));
        match &ended {
            Ok(outcome) => {
                self.measure(outcome);
                self.books().decisions.ended(job.id, took_ms, None);
            }
            Err(error) if error.kind() == ErrorKind::Closed => {}
            Err(error) => {
                let error = Some(error.to_string());
                self.books().decisions.ended(job.id, took_ms, error);
            }
        }
        ended
    }

    fn capacity(&self) -> Capacity {
        let has_fleet = self.fleet.seen().may_run_jobs();
        let books = self.books();
        let room = |side: &dyn Compactor, book: &SideBook| {
            side.capacity().jobs.saturating_sub(book.entering)
        };
        let local = room(self.local.as_ref(), &books.local);
        let remote = match has_fleet {
            true => room(self.remote.as_ref(), &books.remote),
            false => 0,
        };
        Capacity {
            jobs: (local + remote).saturating_sub(books.deciding),
        }
    }

    async fn gains_room(&self) {
        self.fleet.returned().await;
    }

    fn forget(&self, job: JobId) {
        self.local.forget(job);
        self.remote.forget(job);
    }

    async fn attend(&self, quarantine: &dyn QuarantineView) -> Infallible {
        self.remote.attend(quarantine).await
    }

    fn deletes_max(&self) -> usize {
        self.remote.deletes_max()
    }

    async fn delete(&self, table: TableId, names: &[String]) -> Vec<Deletion> {
        self.remote.delete(table, names).await
    }

    fn kind(&self) -> &'static str {
        "auto"
    }

    fn waiting(&self) -> Option<String> {
        self.remote.waiting()
    }

    fn fallbacks(&self) -> BTreeMap<String, u64> {
        self.remote.fallbacks()
    }

    fn fallbacks_held(&self) -> u64 {
        self.remote.fallbacks_held()
    }

    fn decisions(&self) -> Decisions {
        self.books().decisions.clone()
    }
}

impl SideBook {
    fn enter(&mut self, bytes: u64, now: Duration) {
        self.entering += 1;
        self.bytes_ahead += bytes;
        self.given = now;
    }
}

/// A job of which it is not decided where it runs, while it lives.
struct Deciding<'a>(&'a AutoCompactor);

impl<'a> Deciding<'a> {
    fn new(auto: &'a AutoCompactor) -> Self {
        auto.books().deciding += 1;
        Self(auto)
    }
}

impl Drop for Deciding<'_> {
    fn drop(&mut self) {
        self.0.books().deciding -= 1;
    }
}

/// A job that was given to a side, or to both, while it lives.
struct Placed<'a> {
    auto: &'a AutoCompactor,
    decision: Decision,
    /// Its bytes here and on nodes.
    bytes: [u64; 2],
    /// Whether it runs here, and on nodes.
    sides: [bool; 2],
    is_entering: bool,
}

impl Placed<'_> {
    /// The sides count the job themselves from now on.
    fn has_entered(&mut self) {
        if std::mem::replace(&mut self.is_entering, false) {
            let mut books = self.auto.books();
            let Books { local, remote, .. } = &mut *books;
            for (book, is_there) in [local, remote].into_iter().zip(self.sides) {
                book.entering -= usize::from(is_there);
            }
        }
    }
}

impl Drop for Placed<'_> {
    fn drop(&mut self) {
        self.has_entered();
        let mut books = self.auto.books();
        let Books { local, remote, .. } = &mut *books;
        for ((book, is_there), bytes) in [local, remote].into_iter().zip(self.sides).zip(self.bytes)
        {
            if is_there {
                book.bytes_ahead -= bytes;
            }
        }
    }
}

/// What both halves of a job produced; `here` has the first keys.
fn joined(here: CompactionOutcome, there: CompactionOutcome) -> CompactionOutcome {
    let mut splits: Vec<_> = here.splits.into_iter().chain(there.splits).collect();
    splits.sort_by_key(|split| split.task.index);
    CompactionOutcome {
        parts: here.parts.into_iter().chain(there.parts).collect(),
        splits,
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
