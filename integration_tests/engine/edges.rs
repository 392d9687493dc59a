//! Edges: extreme times, columns that cannot be stored, callers that go away, engines that cannot open.

use std::{sync::Arc, time::Duration};

use arrow::datatypes::{DataType, Field, IntervalUnit, Schema};
use siltstone::{
    engine::{Engine, ScanRequest},
    error::ErrorKind,
    types::{TableOptions, TableSchema},
};
use tempfile::tempdir;

use crate::support::{
    one_second_windows, quiet_config, reading_rows, readings, readings_schema, scan, small_engine,
    url_of,
};

#[tokio::test(flavor = "multi_thread")]
async fn the_first_and_the_last_time_have_their_windows() {
    let dir = tempdir().unwrap();
    let (engine, table) = small_engine(quiet_config(&url_of(dir.path()))).await;
    let rows = [
        (i64::MIN, None, Some(1)),
        (-1, None, Some(2)),
        (0, None, Some(3)),
        (i64::MAX, None, Some(4)),
    ];
    table.write(readings(&rows)).await.unwrap();
    table.compact().await.unwrap();
    assert_eq!(reading_rows(&scan(&table, ScanRequest::all()).await), rows);
    assert_eq!(table.stats().windows, 4);
    engine.close().await.unwrap();
}

#[tokio::test]
async fn a_column_that_parquet_cannot_hold_is_refused_when_the_table_is_created() {
    let dir = tempdir().unwrap();
    let engine = Engine::open(quiet_config(&url_of(dir.path())))
        .await
        .unwrap();
    let columns = Schema::new(vec![
        Field::new("key", DataType::Int64, false),
        Field::new("span", DataType::Interval(IntervalUnit::MonthDayNano), true),
    ]);
    let schema = TableSchema::new(Arc::new(columns), &["key"], None, TableOptions::default());
    let error = engine
        .create_table("spans", schema.unwrap())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("\"span\""), "{error}");
    assert!(engine.tables().is_empty());
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_whose_callers_go_away_hold_nobody_up() {
    let dir = tempdir().unwrap();
    let (engine, table) = small_engine(quiet_config(&url_of(dir.path()))).await;
    let large: Vec<_> = (0..50_000).map(|at| (at, None, Some(at))).collect();
    for timeout_us in [0, 1, 100, 10_000] {
        let write = table.write(readings(&large));
        let _ = tokio::time::timeout(Duration::from_micros(timeout_us), write).await;
        let flush = tokio::time::timeout(Duration::from_secs(60), table.flush());
        flush.await.expect("flush waits for ever").unwrap();
        table
            .write(readings(&[(-1, None, Some(timeout_us as i64))]))
            .await
            .unwrap();
        table.flush().await.unwrap();
        let rows = scan(&table, ScanRequest::all()).await.num_rows();
        assert!(
            rows == 1 || rows == 50_001,
            "{rows} rows: a part of a batch"
        );
    }
    engine.close().await.unwrap();
    let engine = Engine::open(quiet_config(&url_of(dir.path())))
        .await
        .unwrap();
    let table = engine.table("readings").unwrap();
    assert_eq!(
        scan(&table, ScanRequest::all()).await.num_rows(),
        50_001,
        "the last write had time enough to be begun"
    );
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_cannot_open_leaves_the_running_one_alone() {
    let dir = tempdir().unwrap();
    let config = quiet_config(&url_of(dir.path()));
    let (engine, table) = small_engine(config.clone()).await;
    let error = Engine::open(config).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("wal"), "{error}");
    table.write(readings(&[(1, None, Some(1))])).await.unwrap();
    table.compact().await.unwrap();
    let schema = readings_schema(one_second_windows());
    engine.create_table("more", schema).await.unwrap();
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn many_writers_of_one_table_lose_nothing_over_a_restart() {
    let dir = tempdir().unwrap();
    let config = quiet_config(&url_of(dir.path()));
    let (engine, table) = small_engine(config.clone()).await;
    let writers = (0..8_i64).map(|writer| {
        let table = table.clone();
        tokio::spawn(async move {
            for round in 0..20_i64 {
                // Large and small batches overtake one another on their way to the WAL.
                let rows = if writer % 2 == 0 { 2_000 } else { 1 };
                let at = |row: i64| (writer * 20 + round) * 10_000 + row;
                let rows: Vec<_> = (0..rows).map(|row| (at(row), None, Some(round))).collect();
                table.write(readings(&rows)).await.unwrap();
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    let before = scan(&table, ScanRequest::all()).await;
    assert_eq!(before.num_rows(), 4 * 20 * 2_000 + 4 * 20);
    engine.close().await.unwrap();
    let engine = Engine::open(config).await.unwrap();
    let table = engine.table("readings").unwrap();
    assert_eq!(scan(&table, ScanRequest::all()).await, before);
    engine.close().await.unwrap();
}
