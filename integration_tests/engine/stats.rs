//! Stats and metrics: what they say is what happened.

use metrics_exporter_prometheus::PrometheusBuilder;
use siltstone::{
    engine::ScanRequest,
    store::{
        Store,
        faulty::{Effect, Fault, Operation},
    },
    types::Window,
};
use tempfile::tempdir;

use crate::support::{
    one_second_windows, quiet_config, reading_keys, readings, readings_schema, scan, small_engine,
    url_of,
};

/// The value of the line of `text` that begins with `name` and has all of `labels`.
#[track_caller]
fn value(text: &str, name: &str, labels: &[&str]) -> f64 {
    let is_meant = |line: &&str| {
        let rest = line.strip_prefix(name);
        rest.is_some_and(|rest| rest.starts_with(['{', ' ']))
            && labels.iter().all(|label| line.contains(label))
    };
    let line = text.lines().find(is_meant);
    let line = line.unwrap_or_else(|| panic!("no {name} {labels:?} in:\n{text}"));
    let (_, value) = line.rsplit_once(' ').unwrap();
    value.parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn stats_follow_rows_through_flush_and_compaction() {
    let dir = tempdir().unwrap();
    let (engine, table) = small_engine(quiet_config(&url_of(dir.path()))).await;
    for round in 0..5 {
        // Two windows; every round writes the same keys.
        let rows = [(100, Some(1), Some(round)), (1_100, Some(2), Some(round))];
        table.write(readings(&rows)).await.unwrap();
        if round < 4 {
            table.flush().await.unwrap();
        }
    }
    table.delete(reading_keys(&[(100, Some(1))])).await.unwrap();
    let before = table.stats();
    assert_eq!((before.batches_written, before.rows_written), (6, 11));
    assert!(before.bytes_written > 0);
    assert_eq!((before.flushes, before.memtable_rows), (4, 3));
    assert!(before.memtable_active_bytes > 0 && before.memtables_frozen == 0);
    assert_eq!((before.ssts, before.windows), (8, 2));
    assert_eq!(
        before.shape.windows[&Window::new(0, 1_000)].levels[&0].rows,
        4
    );
    assert_eq!(before.shape.windows[&Window::new(1_000, 2_000)].runs, 4);
    assert_eq!((before.read_runs_max, before.read_runs_mean), (4, 4.0));
    assert_eq!(before.write_amplification, 1.0);
    assert_eq!(before.bytes_flushed, before.sst_bytes);
    // Four level-0 runs, the trigger, in both windows.
    assert_eq!(before.debt_bytes, before.sst_bytes);

    table.compact().await.unwrap();
    let rows = scan(&table, ScanRequest::all()).await;
    table.get(reading_keys(&[(1_100, Some(2))])).await.unwrap();
    let after = table.stats();
    assert_eq!((rows.num_rows(), after.rows_read), (1, 2));
    assert_eq!((after.scans, after.gets), (1, 1));
    assert!(after.bytes_read > 0);
    assert_eq!((after.debt_bytes, after.read_runs_max), (0, 1));
    assert_eq!(after.space_amplification, 1.0);
    assert!(after.write_amplification > 1.0);
    let stats = engine.stats();
    assert_eq!(stats.tables["readings"], after);
    assert_eq!(stats.write_amplification(), after.write_amplification);
    assert_eq!((stats.wal_appends, stats.compaction.jobs_started), (6, 2));
    // The tombstone, and what it and newer versions hid.
    assert_eq!(stats.compaction.rows_dropped["deleted"], 1);
    assert!(stats.compaction.bytes_read() > 0 && stats.compaction.bytes_written() > 0);
    assert!(stats.store.requests["create"].done > 0, "{:?}", stats.store);
    let json = serde_json::to_value(&stats).unwrap();
    assert_eq!(json["tables"]["readings"]["flushes"], 5);
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_told_as_prometheus_text() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    let (store, faults) = Store::open("memory:///").unwrap().with_faults();
    let dir = tempdir().unwrap();
    let mut config = quiet_config("memory:///");
    config.name = "database".into();
    config.wal.dir = Some(dir.path().into());
    let builder = siltstone::Engine::builder(config).store(store);
    let engine = builder.open().await.unwrap();
    let schema = readings_schema(one_second_windows());
    let table = engine.create_table("readings", schema).await.unwrap();

    let text = |engine: &siltstone::Engine| {
        metrics::with_local_recorder(&recorder, || engine.publish_metrics());
        handle.render()
    };
    let start = text(&engine);
    let label = ["engine=\"database\""];
    assert!(start.contains("# TYPE siltstone_rows_written_total counter"));
    assert!(start.contains("# HELP siltstone_rows_written_total Rows of"));
    assert!(start.contains("# TYPE siltstone_memtable_bytes gauge"));
    assert_eq!(value(&start, "siltstone_rows_written_total", &label), 0.0);
    assert_eq!(value(&start, "siltstone_tables", &label), 1.0);

    table
        .write(readings(&[(1, Some(1), None), (2, Some(2), None)]))
        .await
        .unwrap();
    let written = text(&engine);
    assert_eq!(value(&written, "siltstone_rows_written_total", &label), 2.0);
    assert_eq!(value(&written, "siltstone_wal_appends_total", &label), 1.0);
    assert!(value(&written, "siltstone_memtable_bytes", &label) > 0.0);

    faults.add(Fault::new(Operation::Put, "sst", Effect::Fail).times(1));
    table.flush().await.unwrap();
    table.compact().await.unwrap();
    scan(&table, ScanRequest::all()).await;
    for _ in 0..2 {
        // Told twice, counted once.
        let end = text(&engine);
        assert_eq!(value(&end, "siltstone_flush_failures_total", &label), 1.0);
        assert_eq!(value(&end, "siltstone_flushes_total", &label), 1.0);
        assert!(value(&end, "siltstone_flushed_bytes_total", &label) > 0.0);
        assert_eq!(value(&end, "siltstone_memtable_bytes", &label), 0.0);
        assert_eq!(value(&end, "siltstone_ssts_moved_total", &label), 1.0);
        assert_eq!(value(&end, "siltstone_rows_read_total", &label), 2.0);
        assert_eq!(value(&end, "siltstone_ssts", &["level=\"1\""]), 1.0);
        let creates = ["operation=\"create\"", "outcome=\"done\""];
        assert!(value(&end, "siltstone_store_requests_total", &creates) > 3.0);
        assert_eq!(value(&end, "siltstone_rows_written_total", &label), 2.0);
    }
    engine.close().await.unwrap();
}
