//! An outage of the store, of meta or of the nodes, and the pauses in it, as one job sees it.

use std::{future::Future, time::Duration};

use tracing::debug;

use super::{RemoteCompactor, Stopped, budget::Permit};
use crate::{
    compaction::CompactionJob,
    error::{Error, ErrorKind, Result},
    types::JobId,
};

const WATCH_WAIT: Duration = Duration::from_secs(10);
const RETRY_DELAY_MIN: Duration = Duration::from_millis(50);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(5);
/// How long a job that may fall back, but finds no place, waits for news before it looks again.
const HELD_WAIT: Duration = Duration::from_secs(1);

/// An outage.
pub(super) struct Away<'a> {
    compactor: &'a RemoteCompactor,
    job: JobId,
    relieves_level_0: bool,
    since: Option<Duration>,
    delay: Duration,
    /// It was due to fall back, and found no place.
    was_held: bool,
}

impl<'a> Away<'a> {
    pub(super) fn new(compactor: &'a RemoteCompactor, job: &CompactionJob) -> Self {
        Self {
            compactor,
            job: job.id,
            relieves_level_0: job.relieves_level_0(),
            since: None,
            delay: RETRY_DELAY_MIN,
            was_held: false,
        }
    }

    /// Meta has answered.
    pub(super) fn is_back(&mut self) {
        self.since = None;
        self.go_on();
    }

    fn go_on(&mut self) {
        self.compactor.set_waiting(self.job, None);
        self.delay = RETRY_DELAY_MIN;
    }

    /// Asks the store until it answers.
    pub(super) async fn wait_out<T, F>(&mut self, ask: impl Fn() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        loop {
            match ask().await {
                Err(error) if error.is_unavailable() => self.pause(&error).await,
                answer => {
                    self.go_on();
                    return answer;
                }
            }
        }
    }

    /// Waits before meta is asked again, or gives it up if a fallback is configured and due.
    pub(super) async fn wait(&mut self, error: Error) -> Result<(), Stopped> {
        if let Some(permit) = self.falls_back() {
            return Err(Stopped::Away(error, permit));
        }
        self.pause(&error).await;
        Ok(())
    }

    /// Meta is there, and nobody who could run the job: gives it up if a fallback is configured and due.
    pub(super) fn go_without(&mut self, why: &str) -> Result<(), Stopped> {
        if let Some(permit) = self.falls_back() {
            let error = Error::new(ErrorKind::NotFound, why);
            return Err(Stopped::Away(error, permit));
        }
        self.set_waiting(why);
        Ok(())
    }

    /// A place in this process, if a fallback is configured and due, and there is one.
    fn falls_back(&mut self) -> Option<Permit> {
        let (compactor, env) = (self.compactor, &self.compactor.env);
        let since = *self.since.get_or_insert_with(|| env.monotonic());
        let away = env.monotonic().saturating_sub(since);
        if away < compactor.falls_back_after()? {
            return None;
        }
        let permit = compactor.budget.try_take(self.relieves_level_0);
        if permit.is_none() && !self.was_held {
            self.was_held = true;
            compactor.budget.count_held();
        }
        permit
    }

    fn set_waiting(&self, why: &str) {
        let why = match self.was_held {
            false => why.to_owned(),
            true => format!(
                "{why}; as many jobs run here as compaction.remote.fallback_jobs_max allows"
            ),
        };
        self.compactor.set_waiting(self.job, Some(why));
    }

    /// How long to wait for news.
    pub(super) fn patience(&self) -> Duration {
        let left = self.compactor.falls_back_after().zip(self.since);
        let left = left.map(|(after, since)| {
            let away = self.compactor.env.monotonic().saturating_sub(since);
            match self.was_held {
                false => after.saturating_sub(away),
                true => HELD_WAIT,
            }
        });
        left.map_or(WATCH_WAIT, |left| left.min(WATCH_WAIT))
    }

    async fn pause(&mut self, error: &Error) {
        debug!(%error, delay = ?self.delay, "waiting");
        self.set_waiting(&error.to_string());
        // Between half of the delay and the whole, so that many engines do not come back at once.
        let jitter = (self.compactor.env.random() % 512) as u32;
        tokio::time::sleep(self.delay / 2 + self.delay * jitter / 1024).await;
        self.delay = (self.delay * 2).min(RETRY_DELAY_MAX);
    }
}

impl Drop for Away<'_> {
    fn drop(&mut self) {
        self.compactor.set_waiting(self.job, None);
    }
}
