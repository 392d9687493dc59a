//! The engine's promises: what a write, a delete, a drop, a reopening and a takeover mean.

use std::sync::Arc;

use arrow::{
    array::{Array, Int64Array, RecordBatch, StringArray},
    datatypes::{DataType, Field, Schema},
};
use futures::StreamExt;
use siltstone::{
    config::Bytes,
    engine::{Engine, ScanRequest},
    error::ErrorKind,
    types::{TableOptions, TableSchema, TimeRange, WriteMode},
};
use tempfile::tempdir;

use crate::support::{
    Reading, assert_same, eventually, flights, one_second_windows, quiet_config, reading_keys,
    reading_rows, readings, readings_schema, scan, small_config, small_engine, url_of,
};

#[tokio::test]
async fn append_keeps_every_row_through_flush_and_compaction() {
    let dir = tempdir().unwrap();
    let engine = Engine::open(quiet_config(&url_of(dir.path())))
        .await
        .unwrap();
    let options = TableOptions {
        write_mode: WriteMode::Append,
        ..one_second_windows()
    };
    let table = engine
        .create_table("events", readings_schema(options))
        .await
        .unwrap();
    let mut wanted: Vec<Reading> = Vec::new();
    for round in 0..5 {
        let rows = [
            (10, Some(1), Some(round)),
            (10, Some(1), Some(round + 100)),
            (1_500, None, None),
        ];
        table.write(readings(&rows)).await.unwrap();
        wanted.extend(rows);
        if round % 2 == 0 {
            table.flush().await.unwrap();
        }
    }
    wanted.sort_unstable();
    let sorted = |batch: RecordBatch| {
        let mut rows = reading_rows(&batch);
        assert!(
            rows.is_sorted_by_key(|row| (row.0, row.1)),
            "not in key order: {rows:?}"
        );
        rows.sort_unstable();
        rows
    };
    assert_eq!(sorted(scan(&table, ScanRequest::all()).await), wanted);
    table.compact().await.unwrap();
    assert_eq!(sorted(scan(&table, ScanRequest::all()).await), wanted);
    assert_eq!(table.stats().sst_rows, wanted.len() as u64);
    engine.close().await.unwrap();
}

#[tokio::test]
async fn the_last_of_equal_keys_in_a_batch_wins() {
    let dir = tempdir().unwrap();
    let (engine, table) = small_engine(quiet_config(&url_of(dir.path()))).await;
    let rows = [
        (5, Some(1), Some(1)),
        (5, Some(2), Some(2)),
        (5, Some(1), Some(3)),
    ];
    table.write(readings(&rows)).await.unwrap();
    let wanted = [(5, Some(1), Some(3)), (5, Some(2), Some(2))];
    assert_eq!(
        reading_rows(&scan(&table, ScanRequest::all()).await),
        wanted
    );
    table.flush().await.unwrap();
    assert_eq!(
        reading_rows(&scan(&table, ScanRequest::all()).await),
        wanted
    );
    engine.close().await.unwrap();
}

#[tokio::test]
async fn a_deleted_key_stays_away_until_it_is_written_again() {
    let dir = tempdir().unwrap();
    let (engine, table) = small_engine(quiet_config(&url_of(dir.path()))).await;
    let key = reading_keys(&[(5, Some(1))]);
    table
        .write(readings(&[(5, Some(1), Some(1)), (6, None, None)]))
        .await
        .unwrap();
    table.flush().await.unwrap();
    table.delete(key.clone()).await.unwrap();
    assert_eq!(table.get(key.clone()).await.unwrap().num_rows(), 0);
    // The tombstone alone is merged: the older row below must stay hidden.
    table.flush().await.unwrap();
    table.compact().await.unwrap();
    assert_eq!(
        reading_rows(&scan(&table, ScanRequest::all()).await),
        [(6, None, None)]
    );
    table.write(readings(&[(5, Some(1), None)])).await.unwrap();
    assert_eq!(
        reading_rows(&table.get(key).await.unwrap()),
        [(5, Some(1), None)]
    );
    engine.close().await.unwrap();
}

#[tokio::test]
async fn seqs_grow_and_an_empty_batch_is_no_fault() {
    let dir = tempdir().unwrap();
    let (engine, table) = small_engine(quiet_config(&url_of(dir.path()))).await;
    let first = table.write(readings(&[(1, None, None)])).await.unwrap();
    let second = table.delete(reading_keys(&[(1, None)])).await.unwrap();
    assert!(second > first);
    table.write(readings(&[])).await.unwrap();
    table.delete(reading_keys(&[])).await.unwrap();
    table.flush().await.unwrap();
    table.flush().await.unwrap();
    table.compact().await.unwrap();
    table.compact().await.unwrap();
    assert_eq!(scan(&table, ScanRequest::all()).await.num_rows(), 0);
    engine.close().await.unwrap();
}

#[tokio::test]
async fn a_table_without_time_is_one_window() {
    let dir = tempdir().unwrap();
    let engine = Engine::open(quiet_config(&url_of(dir.path())))
        .await
        .unwrap();
    let columns = Arc::new(Schema::new(vec![
        Field::new("name", DataType::Utf8, true),
        Field::new("value", DataType::Int64, false),
    ]));
    let schema =
        TableSchema::new(columns.clone(), &["name"], None, TableOptions::default()).unwrap();
    let table = engine.create_table("names", schema).await.unwrap();
    let batch = |names: Vec<Option<&str>>, value| {
        let values = Int64Array::from(vec![value; names.len()]);
        let names = StringArray::from(names);
        RecordBatch::try_new(columns.clone(), vec![Arc::new(names), Arc::new(values)]).unwrap()
    };
    table
        .write(batch(vec![Some("b"), None, Some("a")], 1))
        .await
        .unwrap();
    table.flush().await.unwrap();
    table
        .write(batch(vec![Some("a"), Some(""), Some("c")], 2))
        .await
        .unwrap();
    table.compact().await.unwrap();
    assert_eq!(table.stats().windows, 1);
    let rows = scan(&table, ScanRequest::all()).await;
    let names = rows
        .column(0)
        .as_any()
        .downcast_ref::<StringArray>()
        .unwrap();
    let names: Vec<_> = names.iter().collect();
    assert_eq!(names, [None, Some(""), Some("a"), Some("b"), Some("c")]);
    let error = table
        .scan(ScanRequest::all().times(TimeRange { start: 0, end: 1 }))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scan_outlives_the_compactions_and_flushes_around_it() {
    let dir = tempdir().unwrap();
    let engine = Engine::open(small_config(&url_of(dir.path())))
        .await
        .unwrap();
    let flights = flights(10_000);
    let table = engine
        .create_table("flights", flights.table_schema().unwrap())
        .await
        .unwrap();
    for batch in flights.replay(1_000).unwrap() {
        table.write(batch.unwrap()).await.unwrap();
    }
    table.flush().await.unwrap();
    let landed = flights.landed().unwrap();
    let mut scans = Vec::new();
    for _ in 0..4 {
        let mut stream = table.scan(ScanRequest::all()).await.unwrap();
        let first = stream.next().await.unwrap().unwrap();
        scans.push((first, stream));
        table.write(flights.rows().slice(0, 500)).await.unwrap();
        table.compact().await.unwrap();
    }
    for (first, stream) in scans {
        let mut batches = vec![first];
        batches.extend(stream.collect().await.unwrap());
        let scanned = arrow::compute::concat_batches(&landed.schema(), &batches).unwrap();
        assert_same(&landed, &scanned);
    }
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scan_sees_each_batch_wholly_or_not_at_all() {
    let dir = tempdir().unwrap();
    let mut config = small_config(&url_of(dir.path()));
    config.memory.memtable_bytes = Bytes(64 << 10);
    let (engine, table) = small_engine(config).await;
    let writer = tokio::spawn({
        let table = table.clone();
        async move {
            for round in 0..100 {
                let rows: Vec<_> = (0..40).map(|at| (at * 100, Some(1), Some(round))).collect();
                table.write(readings(&rows)).await.unwrap();
            }
        }
    });
    let mut newest = None;
    while newest != Some(99) {
        let rows = reading_rows(&scan(&table, ScanRequest::all()).await);
        let Some(&(_, _, value)) = rows.first() else {
            continue;
        };
        assert_eq!(rows.len(), 40);
        assert!(
            rows.iter().all(|row| row.2 == value),
            "a torn batch: {rows:?}"
        );
        assert!(value >= newest, "went back from {newest:?} to {value:?}");
        newest = value;
    }
    writer.await.unwrap();
    engine.close().await.unwrap();
}

#[tokio::test]
async fn reopening_recovers_what_was_acknowledged_flushed_or_not() {
    let dir = tempdir().unwrap();
    let config = quiet_config(&url_of(dir.path()));
    let (engine, table) = small_engine(config.clone()).await;
    table
        .write(readings(&[(1, None, Some(1)), (2, None, Some(1))]))
        .await
        .unwrap();
    table.flush().await.unwrap();
    table
        .write(readings(&[(2, None, Some(2)), (2_000, None, Some(2))]))
        .await
        .unwrap();
    table.delete(reading_keys(&[(1, None)])).await.unwrap();
    let seq = table.stats().visible_seq;
    // Closing flushes nothing: what is not in an SST is in the log.
    engine.close().await.unwrap();

    let engine = Engine::open(config).await.unwrap();
    assert_eq!(engine.tables(), ["readings"]);
    let table = engine.table("readings").unwrap();
    let wanted = [(2, None, Some(2)), (2_000, None, Some(2))];
    assert_eq!(
        reading_rows(&scan(&table, ScanRequest::all()).await),
        wanted
    );
    let next = table.write(readings(&[(3, None, None)])).await.unwrap();
    assert!(next > seq, "{next} is not after {seq}");
    engine.close().await.unwrap();
}

#[tokio::test]
async fn a_dropped_table_is_gone_and_its_name_is_free() {
    let dir = tempdir().unwrap();
    let config = quiet_config(&url_of(dir.path()));
    let (engine, table) = small_engine(config.clone()).await;
    table.write(readings(&[(1, None, Some(1))])).await.unwrap();
    table.flush().await.unwrap();
    engine.drop_table("readings").await.unwrap();
    assert!(engine.tables().is_empty());
    assert_eq!(
        engine.table("readings").unwrap_err().kind(),
        ErrorKind::NotFound
    );
    assert!(table.write(readings(&[(2, None, None)])).await.is_err());
    eventually("the table's objects are deleted", async || {
        crate::support::sst_files(dir.path(), &table).is_empty()
    })
    .await;

    let schema = readings_schema(one_second_windows());
    let again = engine.create_table("readings", schema).await.unwrap();
    assert_ne!(again.stats().id, table.stats().id);
    assert_eq!(scan(&again, ScanRequest::all()).await.num_rows(), 0);
    again.write(readings(&[(3, None, None)])).await.unwrap();
    engine.close().await.unwrap();

    let engine = Engine::open(config).await.unwrap();
    let table = engine.table("readings").unwrap();
    assert_eq!(
        reading_rows(&scan(&table, ScanRequest::all()).await),
        [(3, None, None)]
    );
    engine.close().await.unwrap();
}

#[tokio::test]
async fn a_closed_engine_says_so() {
    let dir = tempdir().unwrap();
    let (engine, table) = small_engine(quiet_config(&url_of(dir.path()))).await;
    engine.close().await.unwrap();
    engine.close().await.unwrap();
    let error = table.write(readings(&[(1, None, None)])).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    let error = table.flush().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    let error = engine
        .create_table("more", readings_schema(TableOptions::default()))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_is_given_back_and_compaction_leaves_one_sst_a_window() {
    let dir = tempdir().unwrap();
    let (engine, table) = small_engine(quiet_config(&url_of(dir.path()))).await;
    for round in 0..8 {
        let rows: Vec<_> = (0..50).map(|at| (at * 60, None, Some(round))).collect();
        table.write(readings(&rows)).await.unwrap();
        table.flush().await.unwrap();
    }
    eventually("the memtables are given back", async || {
        table.stats().memtable_rows == 0 && engine.stats().memtable_bytes == 0
    })
    .await;
    table.compact().await.unwrap();
    let stats = table.stats();
    assert_eq!(
        (stats.ssts, stats.windows, stats.jobs),
        (3, 3, 0),
        "{stats:?}"
    );
    engine.close().await.unwrap();
}
