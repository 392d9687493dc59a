//! The one gate that every request to a store passes: bandwidth, requests in flight, time-out, retry with
//! back-off and jitter; and the counting of all that.
//!
//! 1. Wait until the bandwidth that earlier requests used is paid for, then for one of the places in flight.
//! 2. Send. No answer in time: the request is dropped, and counts as timed out. The time grows with the
//!    bytes that are sent, or are to be received: nothing is too large to be ever written, or read.
//! 3. An answer, be it "there is no such object", ends it. An error is worth another attempt, after a
//!    pause that doubles, and of which a random half is taken; at most `attempts_max` in all.
//!
//! **A create is sent once.** Whether it took effect decides who owns a record of a log, so a second
//! attempt that meets the first one's object must not look like somebody else's. `object_store` would send
//! it again after a 5xx answer; its own retries are switched off, for creates and all else. Callers of
//! [`Store::create`](super::Store::create) look before they try again.

use std::{sync::Mutex, time::Duration};

use object_store::{Error as StoreError, Result as StoreResult};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::stats::{Counters, Operation, Outcome, StoreStats};
use crate::{
    clock::Env,
    config::{Bytes, StoreConfig},
};

/// Bytes that a request may take another second for.
const BYTES_PER_SECOND_MIN: u64 = 1 << 20;
const RETRY_DELAY_MIN: Duration = Duration::from_millis(100);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(5);

/// The limits of one store, shared by all its clones.
#[derive(Debug)]
pub(super) struct Limits {
    env: Env,
    attempts_max: u32,
    /// Without what its bytes add. `None` where the machine itself is the store: a slow disk is not a lost
    /// answer.
    request_timeout: Option<Duration>,
    in_flight: Semaphore,
    bandwidth: Option<Bandwidth>,
    counters: Counters,
}

impl Limits {
    /// For a store behind a network.
    pub(super) fn remote(config: &StoreConfig, env: Env) -> Self {
        Self {
            env,
            attempts_max: config.attempts_max,
            request_timeout: Some(config.request_timeout.duration()),
            in_flight: Semaphore::new(config.requests_max.min(Semaphore::MAX_PERMITS)),
            bandwidth: config.bytes_per_second_max.map(|rate| Bandwidth {
                bytes_per_second: rate.0,
                paid_until: Mutex::default(),
            }),
            counters: Counters::default(),
        }
    }

    /// For a local disk, or memory: its errors do not pass by being asked again.
    pub(super) fn local(config: &StoreConfig, env: Env) -> Self {
        Self {
            attempts_max: 1,
            request_timeout: None,
            ..Self::remote(config, env)
        }
    }

    /// Nothing but `bytes_per_second`.
    pub(super) fn throttle(bytes_per_second: u64, env: Env) -> Self {
        let config = StoreConfig {
            requests_max: Semaphore::MAX_PERMITS,
            bytes_per_second_max: Some(Bytes(bytes_per_second)),
            ..StoreConfig::default()
        };
        Self::local(&config, env)
    }

    /// What was counted.
    pub(super) fn stats(&self) -> StoreStats {
        self.counters.snapshot()
    }

    /// Notes the size of an answer: the next requests pay for it.
    pub(super) fn received(&self, bytes: u64) {
        self.counters.read(bytes);
        if let Some(bandwidth) = &self.bandwidth {
            bandwidth.reserve(bytes, self.env.monotonic());
        }
    }

    /// Sends what `send` makes, which carries `bytes` of an object, until it is answered, and no more often
    /// than is allowed.
    pub(super) async fn run<T, F: Future<Output = StoreResult<T>>>(
        &self,
        operation: Operation,
        bytes: u64,
        mut send: impl FnMut() -> F,
    ) -> StoreResult<T> {
        let attempts_max = match operation {
            Operation::Create => 1,
            _ => self.attempts_max,
        };
        let mut delay = RETRY_DELAY_MIN;
        let mut attempt = 1;
        loop {
            let error = match self.run_once(operation, bytes, send()).await {
                Err(error) if attempt < attempts_max && may_pass(&error) => error,
                ended => return ended,
            };
            tracing::debug!(%error, attempt, "request to the store is sent again");
            tokio::time::sleep(self.jittered(delay)).await;
            delay = (delay * 2).min(RETRY_DELAY_MAX);
            attempt += 1;
            self.counters.retried(operation);
        }
    }

    /// As [`Limits::run`], for what cannot be sent twice.
    pub(super) async fn run_once<T>(
        &self,
        operation: Operation,
        bytes: u64,
        request: impl Future<Output = StoreResult<T>>,
    ) -> StoreResult<T> {
        let _place = self.admit(bytes).await;
        self.counters.written(bytes);
        let answer = match operation {
            // A long listing is many answers, each of which comes in time, or does not; and how large the
            // object is that is read, the answer says itself.
            Operation::List | Operation::Get => request.await,
            _ => self.in_time(bytes, request).await,
        };
        let outcome = match &answer {
            Ok(_) => Outcome::Done,
            Err(error) if is_answer(error) => Outcome::Refused,
            Err(error) if is_time_out(error) => Outcome::TimedOut,
            Err(_) => Outcome::Failed,
        };
        self.counters.ended(operation, outcome);
        answer
    }

    /// Waits for an answer, but no longer than is allowed where `bytes` of an object are on the way.
    pub(super) async fn in_time<T>(
        &self,
        bytes: u64,
        answer: impl Future<Output = StoreResult<T>>,
    ) -> StoreResult<T> {
        let Some(base) = self.request_timeout else {
            return answer.await;
        };
        let limit = time_allowed(base, bytes);
        let answered = tokio::time::timeout(limit, answer).await;
        answered.unwrap_or_else(|_| {
            Err(StoreError::Generic {
                store: "Limits",
                source: TimedOut(limit).into(),
            })
        })
    }

    /// Waits for bandwidth and a place in flight.
    async fn admit(&self, bytes: u64) -> Option<SemaphorePermit<'_>> {
        let began = self.env.monotonic();
        let unpaid = self.bandwidth.as_ref();
        let unpaid = unpaid.map(|bandwidth| bandwidth.reserve(bytes, began));
        let unpaid = unpaid.filter(|unpaid| !unpaid.is_zero());
        if let Some(unpaid) = unpaid {
            tokio::time::sleep(unpaid).await;
        }
        let (place, is_full) = match self.in_flight.try_acquire() {
            Ok(place) => (Some(place), false),
            // The semaphore is never closed.
            Err(_) => (self.in_flight.acquire().await.ok(), true),
        };
        if unpaid.is_some() || is_full {
            self.counters
                .waited(self.env.monotonic().saturating_sub(began));
        }
        place
    }

    /// Between half of `delay` and all of it, so that those who failed together do not come back together.
    fn jittered(&self, delay: Duration) -> Duration {
        delay / 2 + delay.mul_f64(self.env.chance() / 2.0)
    }
}

/// Bytes a second, on average: every request waits until those before it are paid for. So a single one may
/// be larger than a second's worth.
#[derive(Debug)]
struct Bandwidth {
    bytes_per_second: u64,
    /// When, on the clock of [`Env::monotonic`], what was taken so far is paid for.
    paid_until: Mutex<Duration>,
}

impl Bandwidth {
    /// Takes `bytes`; returns how long to wait before they are sent.
    fn reserve(&self, bytes: u64, now: Duration) -> Duration {
        let mut paid_until = self.paid_until.lock().expect("no panic under this lock");
        let start = now.max(*paid_until);
        let cost = Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64);
        *paid_until = start.saturating_add(cost);
        start - now
    }
}

/// The time within which a request for, or with, `bytes` of an object must be answered.
pub(super) fn time_allowed(base: Duration, bytes: u64) -> Duration {
    base + Duration::from_secs(bytes / BYTES_PER_SECOND_MIN)
}

/// There was no answer within this time.
#[derive(Debug, thiserror::Error)]
#[error("no answer within {}", humantime::format_duration(*.0))]
struct TimedOut(Duration);

fn is_time_out(error: &StoreError) -> bool {
    matches!(error, StoreError::Generic { source, .. } if source.is::<TimedOut>())
}

/// Whether the store has answered the question, if not as hoped.
fn is_answer(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::NotFound { .. }
            | StoreError::AlreadyExists { .. }
            | StoreError::Precondition { .. }
            | StoreError::NotModified { .. }
    )
}

/// Whether the same request may succeed later.
fn may_pass(error: &StoreError) -> bool {
    matches!(error, StoreError::Generic { .. })
}

#[cfg(test)]
mod tests;
