//! What a store was asked for, and how that went: counted a request, at the place where every request
//! passes ([`Limits`](super::limits::Limits)).

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use serde::Serialize;

/// A kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reads an object, some ranges of it, or its size.
    Get,
    /// Writes an object in one request.
    Put,
    /// Writes an object unless there is one.
    Create,
    /// Lists a folder.
    List,
    /// Deletes objects.
    Delete,
    /// Begins, completes or gives up an upload in parts.
    Upload,
    /// Writes a part of an upload.
    Part,
}

impl Operation {
    /// How many there are.
    pub(super) const COUNT: usize = 7;
    /// All of them.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Get,
        Self::Put,
        Self::Create,
        Self::List,
        Self::Delete,
        Self::Upload,
        Self::Part,
    ];

    /// The operation as one lower-case word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Put => "put",
            Self::Create => "create",
            Self::List => "list",
            Self::Delete => "delete",
            Self::Upload => "upload",
            Self::Part => "part",
        }
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It was done.
    Done,
    /// The store answered that it is not possible: there is no such object, or there is one already.
    Refused,
    /// An error, or no connection.
    Failed,
    /// No answer in time.
    TimedOut,
}

/// Requests to a store since it was opened. A request that was sent again counts again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StoreStats {
    /// By operation: `get`, `put`, `create`, `list`, `delete`, `upload`, `part`. Those that never happened
    /// are left out.
    pub requests: BTreeMap<String, RequestStats>,
    /// Bytes of objects read.
    pub bytes_read: u64,
    /// Bytes of objects sent.
    pub bytes_written: u64,
    /// Requests that had to wait for the limits of requests or bandwidth.
    pub limit_waits: u64,
    /// How long they waited, in milliseconds.
    pub limit_wait_ms: u64,
}

/// Requests of one operation, by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RequestStats {
    /// Done.
    pub done: u64,
    /// Answered, but not done: there is no such object, or there is one already.
    pub refused: u64,
    /// Ended by an error.
    pub failed: u64,
    /// Not answered in time.
    pub timed_out: u64,
    /// Of all these, the second and later attempts at the same thing.
    pub retries: u64,
}

impl RequestStats {
    /// Requests sent.
    pub fn sent(&self) -> u64 {
        self.done + self.refused + self.failed + self.timed_out
    }
}

impl StoreStats {
    /// Requests sent, over all operations.
    pub fn sent(&self) -> u64 {
        self.requests.values().map(RequestStats::sent).sum()
    }

    /// Requests of one operation.
    pub fn of(&self, operation: Operation) -> RequestStats {
        let of = self.requests.get(operation.as_str());
        of.copied().unwrap_or_default()
    }
}

/// The counters behind [`StoreStats`].
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// By operation, then by outcome; last the retries.
    requests: [[AtomicU64; 5]; Operation::COUNT],
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    limit_waits: AtomicU64,
    limit_wait_us: AtomicU64,
}

const RETRIES: usize = 4;

impl Counters {
    pub(super) fn ended(&self, operation: Operation, outcome: Outcome) {
        self.requests[operation as usize][outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn retried(&self, operation: Operation) {
        self.requests[operation as usize][RETRIES].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn read(&self, bytes: u64) {
        self.bytes_read.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn written(&self, bytes: u64) {
        self.bytes_written.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn waited(&self, time: Duration) {
        self.limit_waits.fetch_add(1, Ordering::Relaxed);
        let time_us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.limit_wait_us.fetch_add(time_us, Ordering::Relaxed);
    }

    pub(super) fn snapshot(&self) -> StoreStats {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut stats = StoreStats {
            bytes_read: load(&self.bytes_read),
            bytes_written: load(&self.bytes_written),
            limit_waits: load(&self.limit_waits),
            limit_wait_ms: load(&self.limit_wait_us) / 1_000,
            ..StoreStats::default()
        };
        for operation in Operation::ALL {
            let [done, refused, failed, timed_out, retries] =
                self.requests[operation as usize].each_ref().map(load);
            let requests = RequestStats {
                done,
                refused,
                failed,
                timed_out,
                retries,
            };
            if requests.sent() > 0 {
                stats
                    .requests
                    .insert(operation.as_str().to_owned(), requests);
            }
        }
        stats
    }
}
