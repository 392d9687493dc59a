//! An engine's stats as metrics.

use std::collections::BTreeMap;

use super::{EngineStats, TableStats};
use crate::{
    manifest::LevelShape,
    metrics::{self, Samples},
};

/// The value of every metric.
pub(super) fn samples(stats: &EngineStats) -> Samples {
    let mut samples = Samples::default();
    of_tables(stats, &mut samples);
    of_compaction(stats, &mut samples);
    of_cache(stats, &mut samples);
    of_gc(stats, &mut samples);
    of_store(stats, &mut samples);
    samples
}

fn of_tables(stats: &EngineStats, samples: &mut Samples) {
    let sum = |of: fn(&TableStats) -> u64| stats.tables.values().map(of).sum::<u64>();
    samples.put(metrics::TABLES, stats.tables.len() as u64);
    samples.put(metrics::ROWS_WRITTEN, sum(|table| table.rows_written));
    samples.put(metrics::BYTES_WRITTEN, sum(|table| table.bytes_written));
    samples.put(metrics::BATCHES_WRITTEN, sum(|table| table.batches_written));
    samples.put(metrics::SCANS, sum(|table| table.scans));
    samples.put(metrics::GETS, sum(|table| table.gets));
    samples.put(metrics::ROWS_READ, sum(|table| table.rows_read));
    samples.put(metrics::BYTES_READ, sum(|table| table.bytes_read));
    samples.put(metrics::FLUSHES, sum(|table| table.flushes));
    samples.put(metrics::FLUSH_FAILURES, sum(|table| table.flush_failures));
    samples.put(metrics::BYTES_FLUSHED, sum(|table| table.bytes_flushed));
    samples.put(metrics::ROWS_IMPORTED, sum(|table| table.rows_imported));
    samples.put(metrics::BYTES_IMPORTED, sum(|table| table.bytes_imported));
    samples.put(metrics::OBSOLETE_SSTS, sum(|table| table.obsolete_ssts));
    samples.put(
        metrics::OBSOLETE_SSTS_HELD,
        sum(|table| table.obsolete_ssts_held),
    );
    samples.put(
        metrics::CHECKPOINTS_DAMAGED,
        sum(|table| table.checkpoints_damaged),
    );
    let runs = stats.tables.values().map(|table| table.read_runs_max);
    let runs = runs.max().unwrap_or_default();
    samples.put(metrics::READ_RUNS_MAX, runs);
    samples.put(metrics::DEBT_BYTES, sum(|table| table.debt_bytes));
    let mut waits = BTreeMap::<&str, u64>::new();
    for (reason, count) in stats.tables.values().flat_map(|table| &table.write_waits) {
        *waits.entry(reason).or_default() += count;
    }
    for (reason, count) in waits {
        samples.put_by(metrics::WRITE_WAITS, [("reason", reason)], count);
    }
    let mut waited = BTreeMap::<&str, u64>::new();
    for (reason, ms) in stats
        .tables
        .values()
        .flat_map(|table| &table.write_waited_ms)
    {
        *waited.entry(reason).or_default() += ms;
    }
    for (reason, ms) in waited {
        samples.put_by(metrics::WRITE_WAITED, [("reason", reason)], ms);
    }
    let mut levels = BTreeMap::<u8, LevelShape>::new();
    for (level, shape) in stats.tables.values().flat_map(|table| &table.shape.levels) {
        let sum = levels.entry(*level).or_default();
        sum.ssts += shape.ssts;
        sum.bytes += shape.bytes;
    }
    for (level, shape) in levels {
        let level = level.to_string();
        samples.put_by(metrics::SSTS, [("level", &level)], shape.ssts);
        samples.put_by(metrics::SST_BYTES, [("level", &level)], shape.bytes);
    }
    samples.put(metrics::MEMTABLE_BYTES, stats.memtable_bytes);
    samples.put(metrics::WAL_APPENDS, stats.wal_appends);
    samples.put(metrics::WAL_SYNCS, stats.wal_syncs);
    samples.put(metrics::WAL_BYTES, stats.wal_bytes);
    samples.put(metrics::WAL_SEGMENTS, stats.wal_segments);
}

fn of_gc(stats: &EngineStats, samples: &mut Samples) {
    let stats = &stats.gc;
    for (reason, objects) in &stats.deleted {
        samples.put_by(metrics::OBJECTS_DELETED, [("reason", reason)], *objects);
    }
    for (by, objects) in &stats.deleted_by {
        samples.put_by(metrics::OBJECTS_DELETED_BY, [("by", by)], *objects);
    }
    for (reason, objects) in &stats.left_to_engine {
        samples.put_by(metrics::DELETES_LEFT, [("reason", reason)], *objects);
    }
    samples.put(metrics::DELETE_FAILURES, stats.failures);
    samples.put(metrics::OBJECTS_FAILING, stats.objects_failing);
    samples.put(metrics::GC_SWEEPS, stats.sweeps);
}

fn of_compaction(stats: &EngineStats, samples: &mut Samples) {
    let stats = &stats.compaction;
    samples.put(metrics::JOBS_RUNNING, stats.jobs_running);
    samples.put(metrics::JOBS_STARTED, stats.jobs_started);
    samples.put(metrics::JOBS_COMMITTED, stats.jobs_committed);
    samples.put(metrics::SSTS_MOVED, stats.ssts_moved);
    for (reason, jobs) in &stats.jobs_failed {
        samples.put_by(metrics::JOBS_FAILED, [("reason", reason)], *jobs);
    }
    for (reason, jobs) in &stats.fallbacks {
        samples.put_by(metrics::FALLBACKS, [("reason", reason)], *jobs);
    }
    for (clause, jobs) in &stats.proof_failures {
        samples.put_by(metrics::PROOF_FAILURES, [("clause", clause)], *jobs);
    }
    samples.put(metrics::TASKS_SPLIT, stats.tasks_split);
    samples.put(metrics::PARTS_REUSED, stats.parts_reused);
    samples.put(metrics::COMPACTION_ROWS, stats.rows_read());
    samples.put(metrics::FALLBACKS_HELD, stats.fallbacks_held);
    for (side, reasons) in &stats.decisions.counts {
        for (reason, jobs) in reasons {
            let labels = [("side", side.as_str()), ("reason", reason.as_str())];
            samples.put_by(metrics::DECISIONS, labels, *jobs);
        }
    }
    samples.put(metrics::COMPACTION_READ, stats.bytes_read());
    samples.put(metrics::COMPACTION_WRITTEN, stats.bytes_written());
    for (cause, rows) in &stats.rows_dropped {
        samples.put_by(metrics::ROWS_DROPPED, [("cause", cause)], *rows);
    }
    samples.put(metrics::SSTS_QUARANTINED, stats.ssts_quarantined);
}

fn of_cache(stats: &EngineStats, samples: &mut Samples) {
    let cache = &stats.cache;
    for (kind, bytes) in [
        ("metadata", cache.metadata_bytes),
        ("data", cache.data_bytes),
    ] {
        samples.put_by(metrics::CACHE_BYTES, [("kind", kind)], bytes);
    }
    for (kind, outcome, count) in [
        ("metadata", "hit", cache.metadata_hits),
        ("metadata", "miss", cache.metadata_misses),
        ("data", "hit", cache.data_hits),
        ("data", "disk_hit", cache.disk_hits),
        ("data", "miss", cache.data_misses),
    ] {
        let labels = [("kind", kind), ("outcome", outcome)];
        samples.put_by(metrics::CACHE_READS, labels, count);
    }
    samples.put(metrics::CACHE_EVICTIONS, cache.data_evictions);
    samples.put(metrics::CACHE_WARMED, cache.pages_warmed);
    let reads = stats.tables.values().map(|table| &table.reads);
    let (mut groups, mut pages) = ([0; 2], [0; 2]);
    for reads in reads {
        groups = [
            groups[0] + reads.row_groups_read,
            groups[1] + reads.row_groups_skipped,
        ];
        pages = [pages[0] + reads.pages_read, pages[1] + reads.pages_skipped];
    }
    for (metric, [read, skipped]) in [(metrics::ROW_GROUPS, groups), (metrics::PAGES, pages)] {
        samples.put_by(metric, [("outcome", "read")], read);
        samples.put_by(metric, [("outcome", "skipped")], skipped);
    }
}

fn of_store(stats: &EngineStats, samples: &mut Samples) {
    let stats = &stats.store;
    for (operation, requests) in &stats.requests {
        for (outcome, count) in [
            ("done", requests.done),
            ("refused", requests.refused),
            ("failed", requests.failed),
            ("timed_out", requests.timed_out),
        ] {
            let labels = [("operation", operation.as_str()), ("outcome", outcome)];
            samples.put_by(metrics::STORE_REQUESTS, labels, count);
        }
        let labels = [("operation", operation.as_str())];
        samples.put_by(metrics::STORE_RETRIES, labels, requests.retries);
    }
    samples.put(metrics::STORE_READ, stats.bytes_read);
    samples.put(metrics::STORE_WRITTEN, stats.bytes_written);
    samples.put(metrics::STORE_WAITS, stats.limit_waits);
    samples.put(metrics::STORE_WAIT_MS, stats.limit_wait_ms);
}
