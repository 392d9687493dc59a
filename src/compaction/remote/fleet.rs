//! What an engine knows of the fleet between its calls: whether it is there, what it has, and how long jobs wait for a
//! node.
//!
//! The view passes all calls on to the meta service and listens: jobs under way keep it fresh without a call of their
//! own. [`FleetView::look`] asks when nobody has heard anything lately, and for no longer than [`PATIENCE`].

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use async_trait::async_trait;
use tokio::sync::Notify;

use super::{Attendance, Fleet, JobService, JobStatus, JobSubmission, Needs, Orders, TaskState};
use crate::{
    clock::Env,
    config::RemoteConfig,
    error::{Error, Result},
    types::JobId,
};

/// How long an answer of meta is believed.
const FRESH: Duration = Duration::from_secs(1);
/// How long it is believed that there is no answer: as long as jobs are decided without asking again.
const AWAY_FRESH: Duration = Duration::from_secs(5);
/// How long an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a job waits for a node, until that has been measured: it is sent, a node polls, the result is read.
const QUEUE_UNMEASURED: Duration = Duration::from_millis(100);
/// Share of the newest measured wait in their mean.
const QUEUE_NEWEST: f64 = 0.3;
/// Time after which a measured wait counts half: a queue that was long may be gone.
const QUEUE_HALF_LIFE: Duration = Duration::from_secs(60);

/// What was last seen of the fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FleetSeen {
    /// Nobody has looked yet.
    Unknown,
    /// It is there; it may have no node.
    There(Fleet),
    /// It cannot be reached, for this reason.
    Away(String),
}

impl FleetSeen {
    /// Whether jobs can be sent there. As long as nobody has looked, that is to be tried.
    pub fn may_run_jobs(&self) -> bool {
        match self {
            Self::Unknown => true,
            Self::There(fleet) => fleet.slots > 0,
            Self::Away(_) => false,
        }
    }
}

/// The fleet as an engine sees it, and the meta service through which it does.
pub struct FleetView {
    service: Arc<dyn JobService>,
    needs: Needs,
    env: Env,
    view: Mutex<View>,
    /// Told when jobs can be sent to the fleet again.
    returned: Notify,
}

struct View {
    seen: FleetSeen,
    /// When that is to be looked at again, on the monotonic clock.
    stale_at: Duration,
    /// Jobs submitted: since when, and whether a node has taken a task of theirs.
    submitted: BTreeMap<JobId, (Duration, bool)>,
    /// Mean wait for a node, and when it was measured last.
    queue: Option<(Duration, Duration)>,
}

impl FleetView {
    /// The fleet behind `service`, for jobs that go where `config` wants them.
    pub fn new(service: Arc<dyn JobService>, config: &RemoteConfig, env: Env) -> Self {
        Self {
            service,
            needs: Needs {
                pool: config.pool.clone(),
                ..Needs::default()
            },
            env,
            view: Mutex::new(View {
                seen: FleetSeen::Unknown,
                stale_at: Duration::ZERO,
                submitted: BTreeMap::new(),
                queue: None,
            }),
            returned: Notify::new(),
        }
    }

    /// What was seen last, without looking.
    pub fn seen(&self) -> FleetSeen {
        self.lock().seen.clone()
    }

    /// What there is now; asks unless somebody has heard of it a moment ago.
    pub async fn look(&self) -> FleetSeen {
        {
            let view = self.lock();
            if view.seen != FleetSeen::Unknown && self.env.monotonic() < view.stale_at {
                return view.seen.clone();
            }
        }
        let asked = tokio::time::timeout(PATIENCE, self.service.fleet(&self.needs)).await;
        let seen = match asked {
            Ok(Ok(fleet)) => FleetSeen::There(fleet),
            Ok(Err(error)) => FleetSeen::Away(error.to_string()),
            Err(_) => FleetSeen::Away(format!("no answer from meta within {PATIENCE:?}")),
        };
        self.note(seen.clone());
        seen
    }

    /// Returns when a look has found that the fleet can run jobs, after one that found that it cannot. For one caller
    /// at a time; a return between two calls is told to the second. Cancel-safe.
    pub async fn returned(&self) {
        self.returned.notified().await;
    }

    /// How long a job waits for a node, from its submission on, by what was measured lately.
    pub fn queue_time(&self) -> Duration {
        let Some((mean, measured)) = self.lock().queue else {
            return QUEUE_UNMEASURED;
        };
        let age = self.env.monotonic().saturating_sub(measured).as_secs_f64();
        let fading = (-age / QUEUE_HALF_LIFE.as_secs_f64()).exp2();
        let beyond = mean.saturating_sub(QUEUE_UNMEASURED).mul_f64(fading);
        mean.min(QUEUE_UNMEASURED) + beyond
    }

    fn note(&self, seen: FleetSeen) {
        let fresh = match seen {
            FleetSeen::Away(_) => AWAY_FRESH,
            _ => FRESH,
        };
        let mut view = self.lock();
        let has_returned = !view.seen.may_run_jobs() && seen.may_run_jobs();
        view.stale_at = self.env.monotonic() + fresh;
        view.seen = seen;
        drop(view);
        if has_returned {
            self.returned.notify_one();
        }
    }

    fn heard(&self, error: &Error) {
        if error.is_unavailable() {
            self.note(FleetSeen::Away(error.to_string()));
        }
    }

    fn heard_of(&self, job: JobId, status: &JobStatus) {
        let now = self.env.monotonic();
        let mut view = self.lock();
        match &mut view.seen {
            FleetSeen::There(fleet) if status.nodes == 0 => *fleet = Fleet::default(),
            FleetSeen::There(fleet) if fleet.nodes > 0 => {}
            // It is back, and what it has is asked when somebody wants to know.
            _ if status.nodes > 0 => view.stale_at = now,
            _ => {}
        }
        let is_taken =
            |state: &TaskState| matches!(state, TaskState::Running { .. } | TaskState::Done { .. });
        let mut states = status.tasks.iter().map(|(_, state)| state);
        let Some((since, was_taken)) = view.submitted.get_mut(&job) else {
            return;
        };
        if *was_taken || !states.any(is_taken) {
            return;
        }
        *was_taken = true;
        let waited = now.saturating_sub(*since);
        let mean = match view.queue {
            None => waited,
            Some((mean, _)) => mean.mul_f64(1.0 - QUEUE_NEWEST) + waited.mul_f64(QUEUE_NEWEST),
        };
        view.queue = Some((mean, now));
    }

    fn lock(&self) -> MutexGuard<'_, View> {
        self.view.lock().expect("no panic under this lock")
    }
}

#[async_trait]
impl JobService for FleetView {
    async fn submit(&self, job: JobSubmission) -> Result<()> {
        let (id, now) = (job.job, self.env.monotonic());
        let submitted = self.service.submit(job).await;
        match &submitted {
            Ok(()) => drop(self.lock().submitted.entry(id).or_insert((now, false))),
            Err(error) => self.heard(error),
        }
        submitted
    }

    async fn watch(&self, job: JobId, seen: u64, wait: Duration) -> Result<JobStatus> {
        let watched = self.service.watch(job, seen, wait).await;
        match &watched {
            Ok(status) => self.heard_of(job, status),
            Err(error) => self.heard(error),
        }
        watched
    }

    async fn attend(&self, attendance: Attendance, wait: Duration) -> Result<Orders> {
        self.service.attend(attendance, wait).await
    }

    async fn release(&self, job: JobId) -> Result<()> {
        self.lock().submitted.remove(&job);
        self.service.release(job).await
    }

    async fn fleet(&self, needs: &Needs) -> Result<Fleet> {
        self.service.fleet(needs).await
    }
}
