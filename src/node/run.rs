//! A node's loop: poll, obey, and report each task as soon as it ends.
//!
//! A node polls without a break. The poll says what it holds; it is cut short when a task ends, so that
//! the end is reported at once, and repeated with back-off when meta does not answer. When meta has not
//! answered for a lease, counted from the sending of the last answered poll, the node stops its tasks by
//! itself: by then meta may have given them to others.
//!
//! Draining: no new tasks; running ones may finish until the deadline, then they are cancelled and handed
//! back; the node ends when meta knows how each ended, or cannot be told.

use std::{
    future::Future,
    pin::pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::runtime::{Builder, Handle, Runtime};
use tracing::{info, warn};

use super::{
    Node,
    held::{CANCEL_GRACE, Held},
    runner::Executor,
};
use crate::{
    clock::Env,
    compaction::remote::{NodePoll, PollReply},
    error::{Error, ErrorKind, Result},
};

/// How long the first poll waits: not at all, so that the node knows at once whether meta is there.
const FIRST_WAIT: Duration = Duration::ZERO;
/// How long the others wait; meta cuts it to a part of a lease.
const WAIT: Duration = Duration::from_secs(20);
const RETRY_DELAY_MIN: Duration = Duration::from_millis(100);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(2);
/// Failed polls after which a drained node ends without having said goodbye.
const GOODBYE_ATTEMPTS_MAX: u32 = 3;
const NEVER: Duration = Duration::from_secs(365 * 24 * 3600);

impl Node {
    /// Polls and runs tasks until `shutdown`, then drains. Dropping the future aborts its tasks, as a
    /// crash would.
    ///
    /// # Errors
    /// `Fenced` while another process with this node's id, started since, is alive; `Internal` when the runtime
    /// for the tasks cannot be built. That meta is away is no error.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<()> {
        let runtime = TaskRuntime::new(&self)?;
        let executor = || {
            Arc::new(Executor {
                stores: self.stores.clone(),
                env: self.env.clone(),
                footers: self.footers.clone(),
            }) as _
        };
        let runner = self.runner.clone().unwrap_or_else(executor);
        let id = self.facts.id.clone();
        let room = (self.config.slots, self.facts.memory_bytes);
        let counters = self.counters.clone();
        let held = Held::new(id, room, runner, runtime.handle(), counters);
        let link = Link::new(self.env.monotonic());
        let end = Loop {
            node: &self,
            held,
            link,
            drain: Drain::No,
        };
        end.run(shutdown).await
    }
}

/// Where tasks run: apart from the polls, so that no task can keep the node from polling.
enum TaskRuntime {
    Own(Option<Runtime>),
    Given(Handle),
}

impl TaskRuntime {
    fn new(node: &Node) -> Result<Self> {
        if let Some(handle) = &node.runtime {
            return Ok(Self::Given(handle.clone()));
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let runtime = Builder::new_multi_thread()
            .worker_threads(node.config.slots.clamp(1, cores))
            .thread_name("siltstone-task")
            .enable_all()
            .build();
        let runtime = runtime.map_err(|error| {
            Error::internal("runtime for tasks cannot be built").with_source(error)
        })?;
        Ok(Self::Own(Some(runtime)))
    }

    fn handle(&self) -> Handle {
        match self {
            Self::Own(runtime) => {
                let runtime = runtime.as_ref().expect("taken only when dropped");
                runtime.handle().clone()
            }
            Self::Given(handle) => handle.clone(),
        }
    }
}

impl Drop for TaskRuntime {
    fn drop(&mut self) {
        // A runtime may not be waited for inside another.
        if let Self::Own(runtime) = self
            && let Some(runtime) = runtime.take()
        {
            runtime.shutdown_background();
        }
    }
}

/// How the conversation with meta goes. Moments are on the monotonic clock.
struct Link {
    ever_answered: bool,
    failures: u32,
    delay: Duration,
    lease: Option<Duration>,
    /// When the last poll that was answered was sent.
    renewed: Duration,
}

impl Link {
    fn new(now: Duration) -> Self {
        Self {
            ever_answered: false,
            failures: 0,
            delay: Duration::ZERO,
            lease: None,
            renewed: now,
        }
    }

    fn answered(&mut self, sent: Duration, lease: Duration) {
        *self = Self {
            ever_answered: true,
            failures: 0,
            delay: Duration::ZERO,
            lease: Some(lease),
            renewed: sent,
        };
    }

    fn failed(&mut self) {
        self.failures += 1;
        self.delay = (self.delay * 2).clamp(RETRY_DELAY_MIN, RETRY_DELAY_MAX);
    }

    /// When the node must stop its tasks.
    fn lapses(&self) -> Option<Duration> {
        self.lease.map(|lease| self.renewed + lease)
    }
}

/// Whether the node is ending, and until when tasks may go on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Drain {
    No,
    Until(Duration),
    /// Tasks were cancelled; the node ends then at the latest.
    Cancelled(Duration),
}

struct Loop<'a> {
    node: &'a Node,
    held: Held,
    link: Link,
    drain: Drain,
}

impl Loop<'_> {
    async fn run(mut self, shutdown: impl Future<Output = ()>) -> Result<()> {
        let mut shutdown = pin!(shutdown);
        let node = self.node;
        let env = &node.env;
        loop {
            let poll = self.poll();
            // What is held now may change while the poll waits; then it is cut short.
            let said_all = !self.held.is_running() && self.drain != Drain::No;
            let mut sent = env.monotonic();
            let answer = {
                let delay = self.link.delay;
                let wait = if self.link.ever_answered && !said_all {
                    WAIT
                } else {
                    FIRST_WAIT
                };
                let sent = &mut sent;
                async move {
                    tokio::time::sleep(delay).await;
                    *sent = env.monotonic();
                    node.link.poll(poll, wait).await
                }
            };
            let drain_ends = match self.drain {
                Drain::No => None,
                Drain::Until(end) | Drain::Cancelled(end) => Some(end),
            };
            let lapses = self.link.lapses().filter(|_| self.held.is_running());
            let next = tokio::select! {
                biased;
                answer = answer => Next::Answer(answer),
                () = self.held.next_end() => Next::TaskEnded,
                () = &mut shutdown, if self.drain == Drain::No => Next::Shutdown,
                () = at(env, lapses) => Next::LeaseLapsed,
                () = at(env, drain_ends) => Next::DrainEnds,
            };
            match next {
                Next::Answer(Ok(reply)) => {
                    self.take_reply(&reply, sent);
                    if said_all && !self.held.is_running() && !self.held.has_reports() {
                        return Ok(());
                    }
                }
                Next::Answer(Err(error)) if error.kind() == ErrorKind::Fenced => return Err(error),
                Next::Answer(Err(error)) => {
                    self.take_failure(&error);
                    if said_all && self.link.failures >= GOODBYE_ATTEMPTS_MAX {
                        warn!("meta cannot be told how the last tasks ended; it will find out");
                        return Ok(());
                    }
                }
                Next::TaskEnded => {}
                Next::Shutdown => self.begin_drain(),
                Next::LeaseLapsed => {
                    warn!("meta has not answered for a lease: stopping all tasks");
                    let lapsed = &node.counters.leases_lapsed;
                    lapsed.fetch_add(1, Ordering::Relaxed);
                    self.held.cancel_all();
                    self.link.lease = None;
                }
                Next::DrainEnds => {
                    if self.cancel_drain() {
                        return Ok(());
                    }
                }
            }
        }
    }

    fn poll(&self) -> NodePoll {
        let draining = self.drain != Drain::No;
        let slots_free = if draining { 0 } else { self.held.slots_free() };
        NodePoll {
            facts: self.node.facts.clone(),
            slots_free: slots_free as u32,
            draining,
            running: self.held.progress(),
            finished: self.held.reports(),
        }
    }

    fn take_reply(&mut self, reply: &PollReply, sent: Duration) {
        let address = self.node.link.address();
        if !self.link.ever_answered {
            info!(node = %self.node.facts.id, meta = %address, "ready");
        } else if self.link.failures > 0 {
            info!(meta = %address, failures = self.link.failures, "meta answers again");
        }
        self.link.answered(sent, reply.lease);
        let now = self.node.env.monotonic();
        self.node.counters.answered(now, reply.lease);
        if reply.drain && self.drain == Drain::No {
            info!("meta wants this node to end");
            self.begin_drain();
        }
        self.held.obey(reply, self.drain != Drain::No);
        self.node.ready.send_replace(true);
    }

    fn take_failure(&mut self, error: &Error) {
        let failed = &self.node.counters.polls_failed;
        failed.fetch_add(1, Ordering::Relaxed);
        // Warn at the beginning of an outage, not at each attempt in it.
        if self.link.failures == 0 {
            warn!(%error, "meta does not answer; trying on");
        } else {
            tracing::debug!(%error, failures = self.link.failures, "meta does not answer");
        }
        self.link.failed();
    }

    fn begin_drain(&mut self) {
        let timeout = self.node.config.drain_timeout.duration();
        info!(node = %self.node.facts.id, ?timeout, "draining");
        self.drain = Drain::Until(self.node.env.monotonic() + timeout);
        self.node.counters.draining.store(true, Ordering::Relaxed);
        self.link.delay = Duration::ZERO;
    }

    /// The deadline has come: cancels what runs, or returns true when that has been done.
    fn cancel_drain(&mut self) -> bool {
        match self.drain {
            Drain::No => false,
            Drain::Until(_) => {
                if self.held.is_running() {
                    warn!("drain_timeout is over: handing back what runs");
                }
                self.held.cancel_all();
                let end = self.node.env.monotonic() + CANCEL_GRACE * 2;
                self.drain = Drain::Cancelled(end);
                false
            }
            Drain::Cancelled(_) => {
                warn!("ending without having told meta how the last tasks ended");
                true
            }
        }
    }
}

/// What the loop waits for.
enum Next {
    Answer(Result<PollReply>),
    TaskEnded,
    Shutdown,
    LeaseLapsed,
    DrainEnds,
}

/// Waits for the moment `at` of `env`'s monotonic clock; for ever without one.
async fn at(env: &Env, at: Option<Duration>) {
    let rest = at.map_or(NEVER, |at| at.saturating_sub(env.monotonic()));
    tokio::time::sleep(rest).await;
}
