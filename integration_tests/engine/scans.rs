//! Scans and gets: what they leave unread, what they must not leave out, and when they end.

use std::sync::Arc;

use arrow::{
    array::{ArrayRef, AsArray, Int64Array, RecordBatch, TimestampMillisecondArray},
    compute::concat_batches,
    datatypes::{DataType, Field, Int64Type, Schema, TimeUnit},
};
use futures::StreamExt;
use siltstone::{
    config::{Bytes, CompactionMode, EngineConfig, Millis, WalMode},
    engine::{Engine, ScanRequest, ScanStats, Table},
    store::{
        Store,
        faulty::{Effect, Fault, Operation},
    },
    types::{KeyRange, Predicate, TableOptions, TableSchema, TimeRange, WriteMode, column},
};
use tempfile::tempdir;

use crate::support::{
    Reading, eventually, one_second_windows, quiet_config, reading_keys, reading_rows, readings,
    readings_schema, scan, small_engine, url_of,
};

/// The rows that `request` gives, and what it took.
async fn read(table: &Table, request: ScanRequest) -> (Vec<Reading>, ScanStats) {
    let mut stream = table.scan(request).await.unwrap();
    let mut rows = Vec::new();
    while let Some(batch) = stream.next().await {
        rows.extend(reading_rows(&batch.unwrap()));
    }
    (rows, stream.stats())
}

async fn small_table(options: TableOptions) -> (tempfile::TempDir, Engine, Table) {
    let dir = tempdir().unwrap();
    let engine = Engine::open(quiet_config(&url_of(dir.path())))
        .await
        .unwrap();
    let schema = readings_schema(options);
    let table = engine.create_table("readings", schema).await.unwrap();
    (dir, engine, table)
}

/// Rows that follow one another in time and id, many enough for several pages and row groups.
fn long_schema() -> TableSchema {
    let time = DataType::Timestamp(TimeUnit::Millisecond, None);
    let columns = Schema::new(vec![
        Field::new("at", time, false),
        Field::new("step", DataType::Int64, true),
        Field::new("noise", DataType::Int64, true),
    ]);
    TableSchema::new(
        Arc::new(columns),
        &["at"],
        Some("at"),
        TableOptions::default(),
    )
    .unwrap()
}

fn long_rows(rows: std::ops::Range<i64>) -> RecordBatch {
    let columns: Vec<ArrayRef> = vec![
        Arc::new(TimestampMillisecondArray::from_iter_values(rows.clone())),
        Arc::new(Int64Array::from_iter_values(
            rows.clone().map(|row| row / 10),
        )),
        Arc::new(Int64Array::from_iter_values(rows.map(|row| {
            row.wrapping_mul(0x9E37_79B9_7F4A_7C15_u64 as i64) >> 20
        }))),
    ];
    RecordBatch::try_new(long_schema().columns().clone(), columns).unwrap()
}

const LONG: i64 = 300_000;

/// A table of `LONG` rows in one SST.
async fn long_table() -> (Engine, Table) {
    let mut config = EngineConfig::new("memory:///");
    config.wal.mode = WalMode::None;
    config.compaction.mode = CompactionMode::Off;
    config.gc.grace = Millis(0);
    let engine = Engine::open(config).await.unwrap();
    let table = engine.create_table("long", long_schema()).await.unwrap();
    for start in (0..LONG).step_by(50_000) {
        table.write(long_rows(start..start + 50_000)).await.unwrap();
    }
    table.flush().await.unwrap();
    (engine, table)
}

async fn steps(table: &Table, request: ScanRequest) -> (Vec<i64>, ScanStats) {
    let mut stream = table.scan(request.columns(["at"])).await.unwrap();
    let mut rows = Vec::new();
    while let Some(batch) = stream.next().await {
        let batch = batch.unwrap();
        let times = TableSchema::times(&batch, 0).unwrap();
        rows.extend(times.values().iter().copied());
    }
    (rows, stream.stats())
}

#[tokio::test]
async fn what_cannot_match_is_not_read_and_is_counted() {
    let (_dir, _engine, table) = small_table(one_second_windows()).await;
    for window in 0..5 {
        let rows: Vec<Reading> = (0..10)
            .map(|n| (1_000 * window + n, Some(n as i32), Some(window)))
            .collect();
        table.write(readings(&rows)).await.unwrap();
        table.flush().await.unwrap();
    }
    // By time, whether it is asked for as a range or in the predicate.
    let by_range = ScanRequest::all().times(TimeRange {
        start: 2_000,
        end: 3_000,
    });
    let by_predicate =
        ScanRequest::all().filter(column("at").gt_eq(2_000i64) & column("at").lt(3_000i64));
    for request in [by_range, by_predicate] {
        let (rows, stats) = read(&table, request).await;
        assert_eq!(rows.len(), 10);
        assert_eq!((stats.ssts_read, stats.ssts_skipped), (1, 4));
    }
    // By the statistics of a column that is not in the key.
    let (rows, stats) = read(&table, ScanRequest::all().filter(column("value").eq(3i64))).await;
    assert_eq!(rows.len(), 10);
    assert_eq!((stats.row_groups_read, stats.row_groups_skipped), (1, 4));
    // By the filter over whole keys: no page of any SST.
    let absent = column("at").eq(2_003i64) & column("id").eq(77);
    let (rows, stats) = read(&table, ScanRequest::all().filter(absent)).await;
    assert!(rows.is_empty());
    assert_eq!(stats.pages_read, 0, "{stats:?}");
}

#[tokio::test]
async fn a_selective_scan_reads_few_pages() {
    let (_engine, table) = long_table().await;
    let (all, whole) = steps(&table, ScanRequest::all()).await;
    assert_eq!(all, (0..LONG).collect::<Vec<_>>());
    let (rows, stats) = steps(
        &table,
        ScanRequest::all().filter(column("step").eq(12_345i64)),
    )
    .await;
    assert_eq!(rows, (123_450..123_460).collect::<Vec<_>>());
    assert!(stats.pages_skipped > 10 * stats.pages_read, "{stats:?}");
    assert!(
        stats.bytes_fetched * 10 < whole.bytes_fetched,
        "{stats:?} against {whole:?}"
    );
    // Nothing is known of noise beforehand: its column is read, and of the others the pages of the rows that are left.
    let rare = column("noise").gt(8_700_000_000_000i64);
    let (rows, stats) = steps(&table, ScanRequest::all().filter(rare)).await;
    assert!(
        rows.len() < LONG as usize / 50 && !rows.is_empty(),
        "{}",
        rows.len()
    );
    assert!(
        stats.rows_filtered as usize + rows.len() == LONG as usize,
        "{stats:?}"
    );
}

#[tokio::test]
async fn a_get_reads_one_page_a_column() {
    let (_engine, table) = long_table().await;
    let keys = |times: &[i64]| {
        let times = TimestampMillisecondArray::from(times.to_vec());
        RecordBatch::try_new(long_schema().key_schema(), vec![Arc::new(times)]).unwrap()
    };
    let before = table.stats().reads;
    let found = table.get(keys(&[123_456])).await.unwrap();
    assert_eq!(
        found.column(1).as_primitive::<Int64Type>().values(),
        &[12_345]
    );
    let stats = table.stats().reads;
    let pages = stats.pages_read - before.pages_read;
    // Three columns, the seq and the operation, some with a dictionary.
    assert!((1..=8).contains(&pages), "{pages}");
    let before = stats;
    let absent = keys(&[-5, LONG + 7]);
    assert_eq!(table.get(absent).await.unwrap().num_rows(), 0);
    assert_eq!(table.stats().reads.pages_read, before.pages_read);
    // All at once, in any order, some twice, some not there.
    let found = table
        .get(keys(&[250_000, 3, 3, -1, 123_456]))
        .await
        .unwrap();
    let times = TableSchema::times(&found, 0).unwrap();
    assert_eq!(times.values(), &[3, 123_456, 250_000]);
}

#[tokio::test]
async fn a_limit_and_a_descending_order_end_early() {
    let (_engine, table) = long_table().await;
    let (_, whole) = steps(&table, ScanRequest::all()).await;
    let (last, stats) = steps(&table, ScanRequest::all().descending().limit(3)).await;
    assert_eq!(last, [LONG - 1, LONG - 2, LONG - 3]);
    assert!(
        stats.pages_read * 3 < whole.pages_read,
        "{stats:?} against {whole:?}"
    );
    let (all, _) = steps(&table, ScanRequest::all().descending()).await;
    assert!(all.iter().rev().copied().eq(0..LONG));
    let (first, stats) = steps(&table, ScanRequest::all().limit(3)).await;
    assert_eq!(first, [0, 1, 2]);
    assert!(
        stats.row_groups_read < whole.row_groups_read,
        "{stats:?} against {whole:?}"
    );
    assert!(
        steps(&table, ScanRequest::all().limit(0))
            .await
            .0
            .is_empty()
    );
}

#[tokio::test]
async fn an_overwritten_row_does_not_come_back_through_a_predicate() {
    let old = |value: i64| column("value").eq(value);
    let (_dir, _engine, table) = small_table(TableOptions::default()).await;
    let write = async |value: Option<i64>| {
        table.write(readings(&[(5, Some(1), value)])).await.unwrap();
    };
    let gone = async |value: i64, place: &str| {
        let (rows, _) = read(&table, ScanRequest::all().filter(old(value))).await;
        assert!(rows.is_empty(), "{place}: {rows:?}");
    };
    write(Some(1)).await;
    table.flush().await.unwrap();
    write(Some(2)).await;
    gone(1, "under a memtable").await;
    table.flush().await.unwrap();
    gone(1, "under another sst").await;
    // Two versions of a key in one SST.
    let snapshot = table.snapshot().await.unwrap();
    write(None).await;
    table.compact().await.unwrap();
    assert_eq!(table.stats().sst_rows, 2);
    gone(1, "compacted away").await;
    gone(2, "under its successor in one sst").await;
    let seen = snapshot
        .scan(ScanRequest::all().filter(old(2)))
        .await
        .unwrap();
    assert_eq!(
        seen.collect()
            .await
            .unwrap()
            .iter()
            .map(RecordBatch::num_rows)
            .sum::<usize>(),
        1
    );
    table.delete(reading_keys(&[(5, Some(1))])).await.unwrap();
    table.flush().await.unwrap();
    let (rows, _) = read(&table, ScanRequest::all().filter(column("value").is_null())).await;
    assert!(rows.is_empty(), "a deleted row: {rows:?}");
}

#[tokio::test]
async fn every_row_of_an_append_table_is_filtered_by_itself() {
    let options = TableOptions {
        write_mode: WriteMode::Append,
        ..one_second_windows()
    };
    let (_dir, _engine, table) = small_table(options).await;
    for value in 0..4 {
        table
            .write(readings(&[
                (5, Some(1), Some(value)),
                (7, Some(2), Some(value)),
            ]))
            .await
            .unwrap();
        if value == 1 {
            table.delete(reading_keys(&[(7, Some(2))])).await.unwrap();
        }
        table.flush().await.unwrap();
    }
    let request = || ScanRequest::all().filter(column("value").lt(3i64));
    let mut rows = read(&table, request()).await.0;
    rows.sort();
    let wanted = [
        (5, Some(1), Some(0)),
        (5, Some(1), Some(1)),
        (5, Some(1), Some(2)),
        (7, Some(2), Some(2)),
    ];
    assert_eq!(rows, wanted);
    table.compact().await.unwrap();
    let mut rows = read(&table, request()).await.0;
    rows.sort();
    assert_eq!(rows, wanted);
}

#[tokio::test]
async fn a_scan_may_ask_for_no_columns_or_for_one_twice_as_condition_and_result() {
    let (_dir, _engine, table) = small_table(one_second_windows()).await;
    table
        .write(readings(&[(1, Some(1), Some(1)), (2, Some(2), None)]))
        .await
        .unwrap();
    for place in ["memory", "an sst"] {
        let none = scan(&table, ScanRequest::all().columns([])).await;
        assert_eq!((none.num_rows(), none.num_columns()), (2, 0), "{place}");
        let value = ScanRequest::all().columns(["value"]);
        let found = scan(&table, value.clone().filter(column("value").gt(0i64))).await;
        assert_eq!(found.num_rows(), 1, "{place}");
        let found = scan(&table, value.filter(column("id").eq(2))).await;
        assert_eq!((found.num_rows(), found.num_columns()), (1, 1), "{place}");
        let nothing = ScanRequest::all().filter(Predicate::Or(vec![]));
        assert_eq!(scan(&table, nothing).await.num_rows(), 0, "{place}");
        table.flush().await.unwrap();
    }
}

#[tokio::test]
async fn a_predicate_that_does_not_fit_is_refused() {
    let (_dir, _engine, table) = small_table(one_second_windows()).await;
    for (predicate, wanted) in [
        (column("speed").gt(1), "\"speed\""),
        (column("value").eq("x"), "\"value\""),
    ] {
        let refused = table.scan(ScanRequest::all().filter(predicate)).await;
        let message = refused.unwrap_err().to_string();
        assert!(message.contains(wanted), "{message}");
    }
}

#[tokio::test]
async fn a_slow_reader_holds_the_scan_back_and_a_dropped_one_ends_it() {
    let mut config = EngineConfig::new("memory:///");
    config.wal.mode = WalMode::None;
    config.compaction.mode = CompactionMode::Off;
    config.gc.grace = Millis(0);
    let (engine, table) = small_engine(config).await;
    let windows = 80;
    let rows: Vec<Reading> = (0..windows)
        .map(|window| (1_000 * window, None, None))
        .collect();
    table.write(readings(&rows)).await.unwrap();
    table.flush().await.unwrap();
    let mut slow = table.scan(ScanRequest::all()).await.unwrap();
    slow.next().await.unwrap().unwrap();
    // Meanwhile another reads it all.
    assert_eq!(
        read(&table, ScanRequest::all()).await.1.ssts_read,
        windows as u64
    );
    let ahead = slow.stats().row_groups_read;
    assert!(
        (1..=16).contains(&ahead),
        "{ahead} row groups were read for one batch"
    );
    // What it reads stays, though it is replaced and could be deleted at once.
    table.write(readings(&rows)).await.unwrap();
    table.compact().await.unwrap();
    table.write(readings(&rows)).await.unwrap();
    table.compact().await.unwrap();
    eventually(
        "obsolete ssts are deleted but for those of the scan",
        async || table.stats().obsolete_ssts == windows as u64,
    )
    .await;
    let rest = slow.next().await.unwrap().unwrap();
    assert_eq!(rest.num_rows(), 1);
    drop(slow);
    eventually("the dropped scan lets go", async || {
        table.stats().obsolete_ssts == 0
    })
    .await;
    engine.close().await.unwrap();
}

#[tokio::test]
async fn a_scan_over_a_store_that_fails_says_so_or_gives_everything() {
    let (store, faults) = Store::open("memory:///").unwrap().with_faults();
    let mut config = EngineConfig::new("memory:///");
    config.wal.mode = WalMode::None;
    config.compaction.mode = CompactionMode::Off;
    config.cache.data_bytes = Bytes(0);
    config.cache.metadata_bytes = Bytes(0);
    let engine = Engine::builder(config).store(store).open().await.unwrap();
    let schema = readings_schema(one_second_windows());
    let table = engine.create_table("readings", schema).await.unwrap();
    let mut written = Vec::new();
    for round in 0..4 {
        let rows: Vec<Reading> = (0..50)
            .map(|n| (n * 100, Some(round), Some(i64::from(round))))
            .collect();
        table.write(readings(&rows)).await.unwrap();
        table.flush().await.unwrap();
        written.extend(rows);
    }
    written.sort();
    let ssts = engine.store().list("tables").await.unwrap();
    let ssts: Vec<_> = ssts
        .into_iter()
        .filter(|object| object.name.ends_with(".parquet"))
        .collect();
    assert!(ssts.len() >= 4, "{ssts:?}");
    for sst in ssts {
        for effect in [
            Effect::Fail,
            Effect::LoseAnswer,
            Effect::Truncate {
                bytes: 3,
                reported: false,
            },
        ] {
            faults.add(Fault::new(Operation::Get, &sst.name, effect).times(1));
            let mut stream = table.scan(ScanRequest::all()).await.unwrap();
            let error = loop {
                match stream.next().await {
                    Some(Ok(_)) => {}
                    Some(Err(error)) => break error,
                    None => panic!("{effect:?} at {} was passed over", sst.name),
                }
            };
            assert!(error.to_string().contains(&sst.name), "{error}");
            assert!(stream.next().await.is_none(), "an error is the end");
            faults.clear();
            assert_eq!(read(&table, ScanRequest::all()).await.0, written);
        }
    }
}

#[tokio::test]
async fn rows_in_memory_and_in_ssts_come_in_order_both_ways() {
    let dir = tempdir().unwrap();
    let (_engine, table) = small_engine(quiet_config(&url_of(dir.path()))).await;
    let mut written: Vec<Reading> = Vec::new();
    for round in 0..4 {
        let rows: Vec<Reading> = (0..40)
            .map(|n| (n * 97 + round, Some(round as i32), Some(n)))
            .collect();
        table.write(readings(&rows)).await.unwrap();
        if round != 3 {
            table.flush().await.unwrap();
        }
        written.extend(rows);
    }
    written.sort();
    assert_eq!(read(&table, ScanRequest::all()).await.0, written);
    let mut turned = read(&table, ScanRequest::all().descending()).await.0;
    turned.reverse();
    assert_eq!(turned, written);
    let schema = table.schema();
    let key = |at: i64, id| schema.key_of(&reading_keys(&[(at, Some(id))])).unwrap();
    let keys = KeyRange {
        start: Some(key(1_000, 0)),
        end: Some(key(2_000, 0)),
    };
    let (some, _) = read(&table, ScanRequest::all().keys(keys).descending().limit(5)).await;
    let mut wanted: Vec<Reading> = written
        .iter()
        .copied()
        .filter(|row| (1_000..2_000).contains(&row.0))
        .collect();
    wanted.reverse();
    wanted.truncate(5);
    assert_eq!(some, wanted);
    let batches = table
        .scan(ScanRequest::all())
        .await
        .unwrap()
        .collect()
        .await
        .unwrap();
    assert_eq!(
        concat_batches(schema.columns(), &batches)
            .unwrap()
            .num_rows(),
        written.len()
    );
}
