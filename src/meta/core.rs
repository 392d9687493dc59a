//! The one task that owns the plan, the registry and the log, and so needs no lock.
//!
//! It works in rounds:
//! 1. take in every request that has come, as changes to the plan in memory;
//! 2. end leases that ran out, and hand out tasks;
//! 3. append all that changed to the plan log, in one record;
//! 4. only then answer. When the append did not come through, everybody is answered `Unavailable`, the
//!    changes stay pending, and the next round appends them again before it tells anyone anything.
//!
//! While the log is away, nodes are told nothing, and so can keep no lease: step 2 is left out, and when
//! the log is back every lease begins anew. A log that had nothing to take for a lease is asked whose it is.

mod answer;
mod attend;
mod explain;
mod fleet;
mod hand_out;
mod listing;
mod persist;
mod unwatched;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::{
    attend::{Attendant, Ordering},
    unwatched::Watched,
};
use super::{
    engines::{EngineKey, Engines},
    fairness::Fairness,
    hedging::Speed,
    plan_log::{PlanLog, Replay},
    registry::{Polled, Registry},
    state::{Limits, Now, Report, Request, State, Task},
    stats::{MetaEvents, MetaStats},
    update::PlanUpdate,
};
use crate::{
    clock::Env,
    compaction::remote::{Attendance, JobStatus, NodePoll, Orders, PollReply},
    error::{Error, Result},
    types::{JobId, NodeId, OwnerId, TableId},
};

/// Requests taken in by one round at most.
const ROUND_REQUESTS_MAX: usize = 1024;
/// How soon a failed append is tried again when no request asks for it.
const APPEND_RETRY: Duration = Duration::from_millis(500);
/// Rest when there is nothing to wait for.
const IDLE: Duration = Duration::from_secs(60);
/// How long the end of a task may go unanswered: a task that follows can be told with it.
const END_ANSWERED_WITHIN: Duration = Duration::from_millis(100);
pub(super) type Answer<T> = oneshot::Sender<Result<T>>;
/// Something to look up once all that the plan holds is durable.
pub(super) type Read = Box<dyn FnOnce(Result<&Core>) + Send>;

/// What the core is asked.
pub(super) enum Command {
    Change(Request, Answer<()>),
    Poll(NodePoll, Duration, Answer<PollReply>),
    Watch(Watcher),
    Drain(NodeId, Answer<()>),
    /// Answered whether the log has anything or not.
    Attend(Attendance, Duration, Answer<Orders>),
    /// Answered once the engines have done it.
    RetryQuarantined(OwnerId, Option<TableId>, Answer<()>),
    /// Answered at once, whether the log has it or not.
    Stats(Answer<MetaStats>),
    Look(Look),
}

/// Somebody who waits for another revision than `seen`.
pub(super) struct Look {
    pub seen: u64,
    pub until: Duration,
    pub read: Read,
}

/// An engine that waits for a job's revision to pass `seen`.
pub(super) struct Watcher {
    pub job: JobId,
    pub seen: u64,
    pub until: Duration,
    pub answer: Answer<JobStatus>,
}

/// A node that waits for an answer.
struct Waiting {
    poll: NodePoll,
    until: Duration,
    answer: Answer<PollReply>,
}

pub(super) struct Core {
    limits: Limits,
    env: Env,
    log: Box<dyn PlanLog>,
    state: State,
    registry: Registry,
    engines: Engines,
    attendants: BTreeMap<EngineKey, Attendant>,
    /// Operators that wait for engines.
    orderings: Vec<Ordering>,
    fairness: Fairness,
    speed: Speed,
    events: MetaEvents,
    /// When this process took the plan over.
    started: Duration,
    /// Changes in `state` that the log may not hold yet.
    pending: Vec<PlanUpdate>,
    /// The last append, or the last look at whose the log is, did not come through.
    log_away: bool,
    /// When to look whether another has taken the log over, if there is nothing to append until then.
    leads_until: Duration,
    /// Tells others whether the log answers; they see when the core is gone.
    log_answers: watch::Sender<bool>,
    acks: Vec<(Answer<()>, Result<()>)>,
    looks: Vec<Look>,
    /// Counts what operators can see change, from a number on that no process before has come to.
    revision: u64,
    polls: BTreeMap<NodeId, Waiting>,
    /// Nodes that may hear something new.
    newsworthy: BTreeSet<NodeId>,
    watchers: Vec<Watcher>,
    watched: Watched,
    /// No lease ends before.
    leases_checked_at: Duration,
    /// When slow tasks were last looked for.
    slow_sought: Duration,
    /// When to look again although nobody asks.
    look_again: Option<Duration>,
}

impl Core {
    /// Takes the log over and replays it.
    pub(super) async fn open(limits: Limits, mut log: Box<dyn PlanLog>, env: Env) -> Result<Self> {
        let replay = log.open().await?;
        let mut core = Self {
            limits,
            log,
            state: State::new(limits),
            registry: Registry::default(),
            engines: Engines::default(),
            attendants: BTreeMap::new(),
            orderings: Vec::new(),
            fairness: Fairness::default(),
            speed: Speed::default(),
            events: MetaEvents::default(),
            started: env.monotonic(),
            pending: Vec::new(),
            log_away: false,
            leads_until: env.monotonic() + limits.lease,
            log_answers: watch::Sender::new(true),
            acks: Vec::new(),
            looks: Vec::new(),
            revision: env.unix_ms() << 16,
            polls: BTreeMap::new(),
            newsworthy: BTreeSet::new(),
            watchers: Vec::new(),
            watched: Watched::default(),
            leases_checked_at: Duration::ZERO,
            slow_sought: Duration::ZERO,
            look_again: None,
            env,
        };
        core.replay(replay);
        let (jobs, tasks) = (core.state.jobs().count(), core.state.open_tasks());
        info!(jobs, open_tasks = tasks, "plan log opened");
        Ok(core)
    }

    fn replay(&mut self, replay: Replay) {
        self.state = match replay.snapshot {
            Some(snapshot) => State::from_snapshot(self.limits, snapshot),
            None => State::new(self.limits),
        };
        for update in &replay.updates {
            self.state.apply(update);
        }
        let now = self.now();
        self.state.restart(now);
        self.newsworthy.extend(self.polls.keys().cloned());
        self.revision += 1;
        let jobs = self.state.jobs().map(|(job, _)| job);
        self.watched.add(jobs, now.monotonic);
    }

    /// Whether the plan log answers, from now on.
    pub(super) fn log_answers(&self) -> watch::Receiver<bool> {
        self.log_answers.subscribe()
    }

    /// Works until `stop` or until the log is lost to another.
    pub(super) async fn run(
        mut self,
        mut commands: mpsc::Receiver<Command>,
        stop: CancellationToken,
    ) -> Result<()> {
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                command = commands.recv() => match command {
                    Some(command) => self.take(command),
                    None => return Ok(()),
                },
                () = tokio::time::sleep(self.rest()) => {}
            }
            for _ in 1..ROUND_REQUESTS_MAX {
                match commands.try_recv() {
                    Ok(command) => self.take(command),
                    Err(_) => break,
                }
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                round = self.round() => round?,
            }
        }
    }

    fn take(&mut self, command: Command) {
        let now = self.now().monotonic;
        match &command {
            Command::Change(Request::Submit(job), _) => self.watched.touch(job.job, now),
            Command::Watch(watcher) => self.watched.touch(watcher.job, now),
            _ => {}
        }
        match command {
            Command::Change(request, answer) => {
                let result = self.change(&request);
                self.acks.push((answer, result));
            }
            Command::Poll(poll, wait, answer) => self.take_poll(poll, wait, answer),
            Command::Watch(watcher) => self.watchers.push(watcher),
            Command::Drain(node, answer) => {
                let drained = self.registry.drain(&node);
                if drained.is_ok() {
                    info!(%node, "node is to drain");
                    self.newsworthy.insert(node);
                    self.revision += 1;
                }
                drop(answer.send(drained));
            }
            Command::Attend(attendance, wait, answer) => {
                self.take_attendance(attendance, wait, answer);
            }
            Command::RetryQuarantined(owner, table, answer) => {
                self.take_order(owner, table, answer);
            }
            Command::Stats(answer) => drop(answer.send(Ok(self.stats()))),
            Command::Look(look) => self.looks.push(look),
        }
    }

    /// Another with every change of what operators see, once it is in the log.
    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    fn take_poll(&mut self, mut poll: NodePoll, wait: Duration, answer: Answer<PollReply>) {
        poll.slots_free = poll.slots_free.min(poll.facts.slots);
        let now = self.now().monotonic;
        let id = poll.facts.id.clone();
        let Polled { is_new, is_changed } =
            match self.registry.polled(&poll, now, self.limits.lease) {
                Ok(polled) => polled,
                Err(error) => return drop(answer.send(Err(error))),
            };
        self.revision += u64::from(is_changed);
        if is_new {
            let (host, slots) = (&poll.facts.host, poll.facts.slots);
            info!(node = %id, %host, slots, "node arrived");
        }
        if let Err(error) = self.change(&Request::Report(Report::from(&poll))) {
            return drop(answer.send(Err(error)));
        }
        let has_ended = !poll.finished.is_empty();
        let wait = match (is_new, has_ended) {
            (true, _) => Duration::ZERO,
            // It wants to go.
            (_, true) if poll.draining => Duration::ZERO,
            (_, true) => wait.min(END_ANSWERED_WITHIN),
            (_, false) => wait,
        };
        let waiting = Waiting {
            until: now + wait,
            poll,
            answer,
        };
        self.newsworthy.insert(id.clone());
        if let Some(older) = self.polls.insert(id.clone(), waiting) {
            let error = Error::conflict(format!("a newer poll of node {id} has come"));
            drop(older.answer.send(Err(error)));
        }
    }

    fn change(&mut self, request: &Request) -> Result<()> {
        let prepared = self.state.prepare(request, self.now());
        if let (Request::Submit(_), Err(error)) = (request, &prepared) {
            let refused = &mut self.events.submissions_refused;
            *refused.entry(error.kind().as_str()).or_default() += 1;
        }
        let update = prepared?;
        self.note(&update);
        self.state.apply(&update);
        if update.is_durable() {
            self.revision += 1;
            self.pending.push(update);
        }
        Ok(())
    }

    async fn round(&mut self) -> Result<()> {
        self.polls.retain(|_, waiting| !waiting.answer.is_closed());
        self.watchers.retain(|watcher| !watcher.answer.is_closed());
        let now = self.now().monotonic;
        self.revision += u64::from(self.engines.sweep(now, self.limits.lease));
        self.answer_engines();
        if self.log_away {
            self.look_again = None;
        } else {
            self.end_leases()?;
            self.drop_unwatched()?;
            self.registry
                .forget(self.now().monotonic, self.limits.lease);
            self.hand_out()?;
        }
        match self.persist().await? {
            None => self.answer(),
            Some(error) => {
                warn!(%error, pending = self.pending.len(), "plan log does not answer");
                self.refuse(&error.context("plan log"));
            }
        }
        Ok(())
    }

    /// Takes tasks from nodes whose lease has ended. Leases only grow, so that all of them are looked at no more
    /// often than the first can end.
    fn end_leases(&mut self) -> Result<()> {
        let now = self.now().monotonic;
        if now < self.leases_checked_at {
            return Ok(());
        }
        self.change(&Request::Expire)?;
        let new = now + self.limits.lease;
        let next = self.state.next_lease_end();
        self.leases_checked_at = next.map_or(new, |next| next.min(new));
        Ok(())
    }

    /// How long to rest when nobody asks anything.
    fn rest(&self) -> Duration {
        let now = self.now().monotonic;
        let is_behind = self.log_away || !self.pending.is_empty();
        let retry = is_behind.then_some(now + APPEND_RETRY);
        let leads_until = Some(self.leads_until);
        let has_leases = !self.log_away && self.state.open_tasks() > self.state.queued_tasks();
        let lease_end = has_leases.then_some(self.leases_checked_at);
        let engines = self.next_of_engines();
        let next = [lease_end, self.look_again, retry, leads_until, engines]
            .into_iter()
            .flatten()
            .chain(self.polls.values().map(|waiting| waiting.until))
            .chain(self.watchers.iter().map(|watcher| watcher.until))
            .chain(self.looks.iter().map(|look| look.until))
            .min();
        next.map_or(IDLE, |next| next.saturating_sub(now))
            .max(Duration::from_millis(1))
    }

    fn now(&self) -> Now {
        Now {
            monotonic: self.env.monotonic(),
            unix_ms: self.env.unix_ms(),
        }
    }
}

/// What tasks read together. Each size is what some engine said.
fn bytes_of<'a>(tasks: impl Iterator<Item = &'a Task>) -> u64 {
    tasks.fold(0, |sum, task| sum.saturating_add(task.bytes))
}
