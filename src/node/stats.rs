//! A node in numbers, and whether it is of use: counted where things happen, read by whoever asks.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use serde::Serialize;

use crate::{
    clock::Env,
    compaction::Progress,
    error::{Error, Result},
    metrics::{self, Publisher, Samples},
    sst::SstCache,
};

/// A node in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NodeStats {
    /// Tasks that it can run at once.
    pub slots: u64,
    /// Tasks that it runs.
    pub slots_used: u64,
    /// Bytes of memory for its tasks.
    pub memory_bytes: u64,
    /// Of these, those that its tasks may take.
    pub memory_used: u64,
    /// It takes no more tasks, and ends.
    pub draining: bool,
    /// Since a meta service has answered; `None` when none ever has.
    pub meta_silent: Option<Duration>,
    /// Tasks started.
    pub tasks_started: u64,
    /// Tasks ended, by outcome: `done`, or the kind of error.
    pub tasks_ended: BTreeMap<&'static str, u64>,
    /// Rows merged by tasks that have ended.
    pub rows_merged: u64,
    /// Rows that they wrote.
    pub rows_written: u64,
    /// Bytes of inputs that they read.
    pub bytes_read: u64,
    /// Bytes of the SSTs that they wrote.
    pub bytes_written: u64,
    /// Objects deleted by tasks that have ended.
    pub objects_deleted: u64,
    /// Objects that such tasks should have deleted, and could not.
    pub delete_failures: u64,
    /// Inputs of tasks whose footer was here when it was asked for.
    pub footers_hit: u64,
    /// Inputs whose footer had to be read from the store.
    pub footers_missed: u64,
    /// Polls that no meta service answered.
    pub polls_failed: u64,
    /// Times that all tasks were stopped because no meta service had answered for a lease.
    pub leases_lapsed: u64,
}

/// What a node counts.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub slots_used: AtomicU64,
    pub memory_used: AtomicU64,
    pub draining: AtomicBool,
    pub tasks_started: AtomicU64,
    pub tasks_ended: Mutex<BTreeMap<&'static str, u64>>,
    pub rows_merged: AtomicU64,
    pub rows_written: AtomicU64,
    pub bytes_read: AtomicU64,
    pub bytes_written: AtomicU64,
    pub objects_deleted: AtomicU64,
    pub delete_failures: AtomicU64,
    pub polls_failed: AtomicU64,
    pub leases_lapsed: AtomicU64,
    /// When meta has answered last, and the lease that it gave, on the monotonic clock.
    pub answered: Mutex<Option<(Duration, Duration)>>,
}

impl Counters {
    pub(super) fn ended(&self, outcome: &'static str, did: &Progress) {
        let mut ended = self.tasks_ended.lock().expect("no panic under this lock");
        *ended.entry(outcome).or_default() += 1;
        for (counter, more) in [
            (&self.rows_merged, did.rows()),
            (&self.rows_written, did.rows_written()),
            (&self.bytes_read, did.bytes_read()),
            (&self.bytes_written, did.bytes_written()),
            (&self.objects_deleted, did.objects_deleted()),
            (&self.delete_failures, did.objects_kept()),
        ] {
            counter.fetch_add(more, Ordering::Relaxed);
        }
    }

    pub(super) fn answered(&self, now: Duration, lease: Duration) {
        let mut answered = self.answered.lock().expect("no panic under this lock");
        *answered = Some((now, lease));
    }
}

/// A node as others see it while it runs. Cheap to clone.
#[derive(Clone, Debug)]
pub struct NodeView {
    slots: u64,
    memory_bytes: u64,
    counters: Arc<Counters>,
    footers: SstCache,
    env: Env,
    publisher: Arc<Mutex<Publisher>>,
}

impl NodeView {
    pub(super) fn new(
        id: &str,
        (slots, memory_bytes): (u64, u64),
        (counters, footers): (Arc<Counters>, SstCache),
        env: Env,
    ) -> Self {
        Self {
            slots,
            memory_bytes,
            counters,
            footers,
            env,
            publisher: Arc::new(Mutex::new(Publisher::new(metrics::NODE, ("node", id)))),
        }
    }

    /// The node in numbers.
    pub fn stats(&self) -> NodeStats {
        let counters = &self.counters;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let ended = counters.tasks_ended.lock();
        let answered = self.answered();
        let footers = self.footers.stats();
        NodeStats {
            footers_hit: footers.metadata_hits,
            footers_missed: footers.metadata_misses,
            slots: self.slots,
            slots_used: load(&counters.slots_used),
            memory_bytes: self.memory_bytes,
            memory_used: load(&counters.memory_used),
            draining: counters.draining.load(Ordering::Relaxed),
            meta_silent: answered.map(|(at, _)| self.env.monotonic().saturating_sub(at)),
            tasks_started: load(&counters.tasks_started),
            tasks_ended: ended.expect("no panic under this lock").clone(),
            rows_merged: load(&counters.rows_merged),
            rows_written: load(&counters.rows_written),
            bytes_read: load(&counters.bytes_read),
            bytes_written: load(&counters.bytes_written),
            objects_deleted: load(&counters.objects_deleted),
            delete_failures: load(&counters.delete_failures),
            polls_failed: load(&counters.polls_failed),
            leases_lapsed: load(&counters.leases_lapsed),
        }
    }

    /// Whether the node is of use: a meta service has answered within a lease, and it takes tasks.
    ///
    /// # Errors
    /// `Unavailable`, with the reason why it is not.
    pub fn check_ready(&self) -> Result<()> {
        if self.counters.draining.load(Ordering::Relaxed) {
            return Err(Error::unavailable("the node is draining"));
        }
        let Some((at, lease)) = self.answered() else {
            return Err(Error::unavailable("no meta service has answered yet"));
        };
        let silent = self.env.monotonic().saturating_sub(at);
        if silent > lease {
            return Err(Error::unavailable(format!(
                "no meta service has answered for {:.1} s",
                silent.as_secs_f64()
            )));
        }
        Ok(())
    }

    /// Tells the recorder of the `metrics` facade that is installed what has changed since the last call.
    pub fn publish_metrics(&self) {
        let stats = self.stats();
        let mut samples = Samples::default();
        for (metric, used, all) in [
            (metrics::NODE_SLOTS, stats.slots_used, stats.slots),
            (metrics::NODE_MEMORY, stats.memory_used, stats.memory_bytes),
        ] {
            samples.put_by(metric, [("use", "used")], used);
            samples.put_by(metric, [("use", "free")], all.saturating_sub(used));
        }
        samples.put(metrics::NODE_DRAINING, stats.draining.into());
        if let Some(silent) = stats.meta_silent {
            let millis = u64::try_from(silent.as_millis()).unwrap_or(u64::MAX);
            samples.put(metrics::NODE_META_SILENT, millis);
        }
        for (metric, value) in [
            (metrics::NODE_TASKS_STARTED, stats.tasks_started),
            (metrics::NODE_ROWS_MERGED, stats.rows_merged),
            (metrics::NODE_ROWS_WRITTEN, stats.rows_written),
            (metrics::NODE_BYTES_READ, stats.bytes_read),
            (metrics::NODE_BYTES_WRITTEN, stats.bytes_written),
            (metrics::NODE_OBJECTS_DELETED, stats.objects_deleted),
            (metrics::NODE_DELETE_FAILURES, stats.delete_failures),
            (metrics::NODE_POLLS_FAILED, stats.polls_failed),
            (metrics::NODE_LEASES_LAPSED, stats.leases_lapsed),
        ] {
            samples.put(metric, value);
        }
        for (outcome, value) in [("hit", stats.footers_hit), ("miss", stats.footers_missed)] {
            samples.put_by(metrics::NODE_FOOTERS, [("outcome", outcome)], value);
        }
        for (outcome, value) in stats.tasks_ended {
            samples.put_by(metrics::NODE_TASKS_ENDED, [("outcome", outcome)], value);
        }
        let publisher = self.publisher.lock();
        publisher
            .expect("no panic under this lock")
            .publish(samples);
    }

    fn answered(&self) -> Option<(Duration, Duration)> {
        let answered = self.counters.answered.lock();
        *answered.expect("no panic under this lock")
    }
}
