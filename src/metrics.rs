//! The names of all metrics, each once, with its unit and what it means; and how they are told to the
//! [`metrics`](::metrics) facade.
//!
//! Everything is counted by plain atomics at the place where it happens, and read from there into
//! [`EngineStats`](crate::engine::EngineStats), [`MetaStats`](crate::meta::MetaStats) and
//! [`NodeStats`](crate::node::NodeStats). [`Engine::publish_metrics`](crate::Engine::publish_metrics) and its like
//! tell the recorder that is installed what has changed since they were called last: nothing that writes,
//! reads or merges rows ever meets a recorder.

use std::collections::BTreeMap;

use ::metrics::{Label, Unit};

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Grows.
    Counter,
    /// Goes up and down.
    Gauge,
}

/// One metric.
#[derive(Debug)]
pub(crate) struct Metric {
    name: &'static str,
    kind: Kind,
    unit: Unit,
    help: &'static str,
}

macro_rules! metrics {
    ($($(#[$doc:meta])* $group:ident { $($id:ident, $kind:ident, $unit:ident, $name:literal, $help:literal;)* })*) => {
        $($(pub(crate) const $id: &Metric = &Metric {
            name: $name,
            kind: Kind::$kind,
            unit: Unit::$unit,
            help: $help,
        };)*
        $(#[$doc])*
        pub(crate) const $group: &[&Metric] = &[$($id),*];)*
    };
}

metrics! {
    /// Of an engine.
    ENGINE {
    ROWS_WRITTEN, Counter, Count, "siltstone_rows_written_total", "Rows of batches that were written, and keys that were deleted";
    BYTES_WRITTEN, Counter, Bytes, "siltstone_bytes_written_total", "Bytes of these batches in memory";
    BATCHES_WRITTEN, Counter, Count, "siltstone_batches_written_total", "Batches that were written";
    WRITE_WAITS, Counter, Count, "siltstone_write_waits_total", "Writes that had to wait, by reason";
    WRITE_WAITED, Counter, Milliseconds, "siltstone_write_waited_milliseconds_total", "Time that writes waited in sum, by reason";
    SCANS, Counter, Count, "siltstone_scans_total", "Scans begun";
    GETS, Counter, Count, "siltstone_gets_total", "Gets begun";
    ROWS_READ, Counter, Count, "siltstone_rows_read_total", "Rows that scans and gets returned";
    BYTES_READ, Counter, Bytes, "siltstone_bytes_read_total", "Bytes in memory of the rows that scans and gets returned";
    ROW_GROUPS, Counter, Count, "siltstone_row_groups_total", "Row groups of SSTs that reads looked into, or skipped, by outcome";
    PAGES, Counter, Count, "siltstone_pages_total", "Pages of SSTs that reads decoded, or skipped, by outcome";
    CACHE_BYTES, Gauge, Bytes, "siltstone_cache_bytes", "Bytes in memory that are kept of SSTs, by kind";
    CACHE_READS, Counter, Count, "siltstone_cache_reads_total", "Opened SSTs and pages that were asked for, by kind and outcome";
    CACHE_EVICTIONS, Counter, Count, "siltstone_cache_evictions_total", "Pages that left the memory for others";
    CACHE_WARMED, Counter, Count, "siltstone_cache_warmed_total", "Pages that were loaded because a compaction had replaced others that were kept";
    FLUSHES, Counter, Count, "siltstone_flushes_total", "Memtables that were flushed";
    FLUSH_FAILURES, Counter, Count, "siltstone_flush_failures_total", "Attempts at a flush that failed, and were made again";
    BYTES_FLUSHED, Counter, Bytes, "siltstone_flushed_bytes_total", "Bytes of the SSTs that flushes wrote";
    ROWS_IMPORTED, Counter, Count, "siltstone_rows_imported_total", "Rows that imports brought into SSTs";
    BYTES_IMPORTED, Counter, Bytes, "siltstone_imported_bytes_total", "Bytes of the SSTs that imports wrote";
    WAL_APPENDS, Counter, Count, "siltstone_wal_appends_total", "Entries appended to the write-ahead log";
    WAL_SYNCS, Counter, Count, "siltstone_wal_syncs_total", "Fsyncs of the write-ahead log";
    WAL_BYTES, Gauge, Bytes, "siltstone_wal_bytes", "Bytes in the write-ahead log";
    WAL_SEGMENTS, Gauge, Count, "siltstone_wal_segments", "Segments of the write-ahead log";
    MEMTABLE_BYTES, Gauge, Bytes, "siltstone_memtable_bytes", "Bytes of all memtables, active and frozen";
    TABLES, Gauge, Count, "siltstone_tables", "Open tables";
    SSTS, Gauge, Count, "siltstone_ssts", "Live SSTs by level";
    SST_BYTES, Gauge, Bytes, "siltstone_sst_bytes", "Bytes of live SSTs by level";
    OBSOLETE_SSTS, Gauge, Count, "siltstone_obsolete_ssts", "SSTs that were replaced and are not deleted yet";
    OBSOLETE_SSTS_HELD, Gauge, Count, "siltstone_obsolete_ssts_held", "Of these, those that checkpoints hold";
    CHECKPOINTS_DAMAGED, Gauge, Count, "siltstone_checkpoints_damaged", "Checkpoints that cannot be read: no object of their tables is deleted";
    DEBT_BYTES, Gauge, Bytes, "siltstone_compaction_debt_bytes", "Bytes of level 0 in windows that are due for compaction";
    READ_RUNS_MAX, Gauge, Count, "siltstone_read_runs_max", "Runs that a read of one key has to merge at most: read amplification";
    JOBS_RUNNING, Gauge, Count, "siltstone_jobs_running", "Compaction jobs running";
    JOBS_STARTED, Counter, Count, "siltstone_jobs_started_total", "Compaction jobs recorded";
    JOBS_COMMITTED, Counter, Count, "siltstone_jobs_committed_total", "Compaction jobs committed";
    SSTS_MOVED, Counter, Count, "siltstone_ssts_moved_total", "SSTs that only changed their level: trivial moves";
    JOBS_FAILED, Counter, Count, "siltstone_jobs_failed_total", "Compaction jobs that failed, by reason";
    PROOF_FAILURES, Counter, Count, "siltstone_proof_failures_total", "Outcomes of jobs that the proof refused, by clause";
    TASKS_SPLIT, Counter, Count, "siltstone_tasks_split_total", "Tasks of committed jobs that were too large or too slow, and whose rest was split";
    PARTS_REUSED, Counter, Count, "siltstone_parts_reused_total", "Parts of results that a later attempt at the same task went on after";
    FALLBACKS, Counter, Count, "siltstone_compaction_fallbacks_total", "Jobs that fell back from remote to local compaction, by reason";
    COMPACTION_ROWS, Counter, Count, "siltstone_compaction_rows_merged_total", "Rows that committed jobs merged";
    FALLBACKS_HELD, Counter, Count, "siltstone_compaction_fallbacks_held_total", "Jobs that were due to fall back and had to wait, because as many did as may";
    DECISIONS, Counter, Count, "siltstone_compaction_decisions_total", "Jobs of which it was decided where they run, by side and reason";
    COMPACTION_READ, Counter, Bytes, "siltstone_compaction_read_bytes_total", "Bytes that committed jobs read";
    COMPACTION_WRITTEN, Counter, Bytes, "siltstone_compaction_written_bytes_total", "Bytes that committed jobs wrote; over what flushes and imports wrote, write amplification";
    ROWS_DROPPED, Counter, Count, "siltstone_compaction_rows_dropped_total", "Rows that committed jobs dropped, by cause";
    SSTS_QUARANTINED, Gauge, Count, "siltstone_ssts_quarantined", "SSTs that are left alone because a job with them failed";
    OBJECTS_DELETED, Counter, Count, "siltstone_objects_deleted_total", "Objects that were deleted because nobody needs them, by reason: left_table for what a compaction replaced, expired, range_deleted, dropped_table, and what was left behind";
    OBJECTS_DELETED_BY, Counter, Count, "siltstone_objects_deleted_by_total", "The same objects, by who deleted them: nodes, or the engine";
    DELETES_LEFT, Counter, Count, "siltstone_deletes_left_to_engine_total", "Objects that nodes should have deleted, and that the engine had to, by reason";
    DELETE_FAILURES, Counter, Count, "siltstone_delete_failures_total", "Attempts at a deletion that failed, and will be made again";
    OBJECTS_FAILING, Gauge, Count, "siltstone_objects_failing", "Objects whose last deletion failed";
    GC_SWEEPS, Counter, Count, "siltstone_gc_sweeps_total", "Sweeps over everything that is stored";
    STORE_REQUESTS, Counter, Count, "siltstone_store_requests_total", "Requests to the object store, by operation and outcome";
    STORE_RETRIES, Counter, Count, "siltstone_store_retries_total", "Of these, second and later attempts, by operation";
    STORE_READ, Counter, Bytes, "siltstone_store_read_bytes_total", "Bytes of objects read from the store";
    STORE_WRITTEN, Counter, Bytes, "siltstone_store_written_bytes_total", "Bytes of objects sent to the store";
    STORE_WAITS, Counter, Count, "siltstone_store_limit_waits_total", "Requests that waited for the limits of requests or bandwidth";
    STORE_WAIT_MS, Counter, Milliseconds, "siltstone_store_limit_wait_milliseconds_total", "How long they waited";
    }

    /// Of a meta service.
    META {
    META_NODES, Gauge, Count, "siltstone_meta_nodes", "Compaction nodes, by state";
    META_ENGINES, Gauge, Count, "siltstone_meta_engines", "Engines that attend: that are open, and reach the service";
    META_SSTS_QUARANTINED, Gauge, Count, "siltstone_meta_ssts_quarantined", "SSTs that these leave alone because a job with them failed";
    META_OWNERS, Gauge, Count, "siltstone_meta_owners", "Databases with jobs";
    META_JOBS, Gauge, Count, "siltstone_meta_jobs", "Jobs that engines have submitted and not released";
    META_TASKS, Gauge, Count, "siltstone_meta_tasks", "Tasks of these, by state";
    META_QUEUED_BYTES, Gauge, Bytes, "siltstone_meta_queued_bytes", "About what queued tasks read";
    META_OLDEST_WAIT, Gauge, Milliseconds, "siltstone_meta_oldest_wait_milliseconds", "Since the submission of the oldest job with a queued task";
    META_CLEAR_ESTIMATE, Gauge, Milliseconds, "siltstone_meta_clear_estimate_milliseconds", "How long the nodes there are need for what is queued, by how long tasks have taken";
    META_SLOTS, Gauge, Count, "siltstone_meta_slots", "Slots of nodes that take tasks, by use";
    META_MEMORY, Gauge, Bytes, "siltstone_meta_memory_bytes", "Memory of nodes that take tasks, by use";
    META_LOG_AWAY, Gauge, Count, "siltstone_meta_log_away", "1 while the plan log does not answer, and nothing is given out";
    META_JOBS_SUBMITTED, Counter, Count, "siltstone_meta_jobs_submitted_total", "Jobs submitted; one that was known does not count again";
    META_JOBS_RELEASED, Counter, Count, "siltstone_meta_jobs_released_total", "Jobs that their engines have released";
    META_SUBMISSIONS_REFUSED, Counter, Count, "siltstone_meta_submissions_refused_total", "Submissions that were not accepted, by reason";
    META_ATTEMPTS, Counter, Count, "siltstone_meta_attempts_total", "Attempts given to nodes";
    META_ATTEMPTS_ENDED, Counter, Count, "siltstone_meta_attempts_without_result_total", "Attempts that ended without a result, by reason";
    META_HEDGES, Counter, Count, "siltstone_meta_hedges_total", "Second attempts beside slow ones: started, won, wasted";
    META_TASKS_COMPLETED, Counter, Count, "siltstone_meta_tasks_completed_total", "Tasks completed";
    META_BYTES_COMPLETED, Counter, Bytes, "siltstone_meta_completed_bytes_total", "About what completed tasks read";
    META_TASKS_FAILED, Counter, Count, "siltstone_meta_tasks_failed_total", "Tasks given up, by what went wrong last";
    META_TASKS_DISPLACED, Counter, Count, "siltstone_meta_tasks_displaced_total", "Queued tasks that gave way to others";
    META_TASKS_SLOW, Counter, Count, "siltstone_meta_tasks_slow_total", "Tasks too slow on every node, to be cut by their engines";
    META_TASKS_CANCELLED, Counter, Count, "siltstone_meta_tasks_cancelled_total", "Tasks cancelled by operators, or cut by their engines";
    }

    /// Of a compaction node.
    NODE {
    NODE_SLOTS, Gauge, Count, "siltstone_node_slots", "Slots, by use";
    NODE_MEMORY, Gauge, Bytes, "siltstone_node_memory_bytes", "Memory for tasks, by use, as estimated";
    NODE_DRAINING, Gauge, Count, "siltstone_node_draining", "1 while the node takes no more tasks, and ends";
    NODE_META_SILENT, Gauge, Milliseconds, "siltstone_node_meta_silent_milliseconds", "Since a meta service has answered";
    NODE_TASKS_STARTED, Counter, Count, "siltstone_node_tasks_started_total", "Tasks started";
    NODE_TASKS_ENDED, Counter, Count, "siltstone_node_tasks_ended_total", "Tasks ended, by outcome";
    NODE_ROWS_MERGED, Counter, Count, "siltstone_node_rows_merged_total", "Rows merged by tasks that have ended";
    NODE_ROWS_WRITTEN, Counter, Count, "siltstone_node_rows_written_total", "Rows written by tasks that have ended";
    NODE_BYTES_READ, Counter, Bytes, "siltstone_node_read_bytes_total", "Bytes of inputs read by tasks that have ended";
    NODE_BYTES_WRITTEN, Counter, Bytes, "siltstone_node_written_bytes_total", "Bytes of the SSTs that such tasks wrote";
    NODE_OBJECTS_DELETED, Counter, Count, "siltstone_node_objects_deleted_total", "Objects deleted by tasks that have ended";
    NODE_DELETE_FAILURES, Counter, Count, "siltstone_node_delete_failures_total", "Objects that such tasks should have deleted, and could not";
    NODE_FOOTERS, Counter, Count, "siltstone_node_footers_total", "Inputs opened by tasks, by whether the footer was in the node's memory: hit, miss";
    NODE_POLLS_FAILED, Counter, Count, "siltstone_node_polls_failed_total", "Polls that no meta service answered";
    NODE_LEASES_LAPSED, Counter, Count, "siltstone_node_leases_lapsed_total", "Times that all tasks were stopped because no meta service had answered for a lease";
    }
}

/// Names and values.
type Labels = Vec<(&'static str, String)>;

/// The value of one metric.
#[derive(Debug)]
pub(crate) struct Sample {
    metric: &'static Metric,
    /// Besides the publisher's own.
    labels: Labels,
    value: u64,
}

/// Values of metrics, to be published together.
#[derive(Debug, Default)]
pub(crate) struct Samples(Vec<Sample>);

impl Samples {
    pub(crate) fn put(&mut self, metric: &'static Metric, value: u64) {
        self.put_by(metric, [], value);
    }

    pub(crate) fn put_by<const N: usize>(
        &mut self,
        metric: &'static Metric,
        labels: [(&'static str, &str); N],
        value: u64,
    ) {
        let labels = labels.map(|(key, value)| (key, value.to_owned())).into();
        self.0.push(Sample {
            metric,
            labels,
            value,
        });
    }
}

/// Tells a recorder what has changed.
#[derive(Debug)]
pub(crate) struct Publisher {
    /// All that it may tell of.
    metrics: &'static [&'static Metric],
    /// Goes with every metric.
    label: Label,
    /// Counters as they were told last, by name and labels.
    told: BTreeMap<(&'static str, Labels), u64>,
}

impl Publisher {
    /// For one whose metrics are these, and who is called `name` in the label `key`.
    pub(crate) fn new(
        metrics: &'static [&'static Metric],
        (key, name): (&'static str, &str),
    ) -> Self {
        Self {
            metrics,
            label: Label::new(key, name.to_owned()),
            told: BTreeMap::new(),
        }
    }

    /// Describes all metrics, and tells the recorder of this thread, or else that of the process, their values.
    pub(crate) fn publish(&mut self, samples: Samples) {
        self.metrics.iter().for_each(|metric| describe(metric));
        for sample in samples.0 {
            let Metric { name, kind, .. } = sample.metric;
            let mut labels = vec![self.label.clone()];
            labels.extend(
                sample
                    .labels
                    .iter()
                    .map(|(key, value)| Label::new(*key, value.clone())),
            );
            match kind {
                Kind::Gauge => ::metrics::gauge!(*name, labels).set(sample.value as f64),
                Kind::Counter => {
                    let told = self.told.entry((name, sample.labels)).or_default();
                    let since = sample.value.saturating_sub(*told);
                    ::metrics::counter!(*name, labels).increment(since);
                    *told = sample.value.max(*told);
                }
            }
        }
    }
}

fn describe(metric: &Metric) {
    let Metric {
        name, unit, help, ..
    } = metric;
    match metric.kind {
        Kind::Counter => ::metrics::describe_counter!(*name, *unit, *help),
        Kind::Gauge => ::metrics::describe_gauge!(*name, *unit, *help),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_tell_their_kind() {
        let all = [ENGINE, META, NODE].concat();
        let names: BTreeSet<&str> = all.iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), all.len());
        for metric in all {
            let counts = metric.name.ends_with("_total");
            assert_eq!(counts, metric.kind == Kind::Counter, "{metric:?}");
            let has_bytes = metric.name.contains("bytes");
            assert_eq!(has_bytes, metric.unit == Unit::Bytes, "{metric:?}");
        }
    }
}
