//! What the test targets share: real data, small tables, and comparing what comes out.

#![allow(dead_code, reason = "each test target uses its part")]

#[path = "../../src/bin/siltstone/flights.rs"]
pub mod flights;

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use arrow::{
    array::{
        ArrayRef, Int32Array, Int64Array, RecordBatch, TimestampMillisecondArray, UInt8Array,
        UInt64Array,
    },
    compute::{concat_batches, interleave_record_batch},
    datatypes::{DataType, Field, Schema, TimeUnit},
};
use bytes::Bytes;
use siltstone::{
    config::{Bytes as Size, CompactionMode, EngineConfig},
    engine::{Engine, ScanRequest, Table},
    types::{Key, OP_COLUMN, SEQ_COLUMN, TableOptions, TableSchema},
};

use self::flights::Flights;

/// The weather's primary key.
pub const WEATHER_KEY: [&str; 2] = ["origin", "time_hour"];

/// Bytes of a file among the examples' data.
pub fn data(name: &str) -> Bytes {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("examples/data")
        .join(name);
    std::fs::read(&path)
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        .into()
}

/// The first `rows_max` flights of the year.
pub fn flights(rows_max: usize) -> Flights {
    Flights::read(data("flights.parquet"), rows_max).unwrap()
}

/// The weather, in the order of its file.
pub fn weather() -> RecordBatch {
    flights::read_parquet("weather.parquet", data("weather.parquet")).unwrap()
}

/// The schema of a table for the weather.
pub fn weather_schema() -> TableSchema {
    let options = TableOptions {
        window: (flights::WINDOW).into(),
        ..TableOptions::default()
    };
    TableSchema::new(weather().schema(), &WEATHER_KEY, Some("time_hour"), options).unwrap()
}

/// The URL of a folder.
pub fn url_of(dir: &Path) -> String {
    url::Url::from_directory_path(dir).unwrap().to_string()
}

/// A configuration that flushes and compacts after little data.
pub fn small_config(root: &str) -> EngineConfig {
    let mut config = EngineConfig::new(root);
    config.memory.memtable_bytes = Size(512 << 10);
    config.compaction.task_bytes_target = Size(64 << 10);
    config
}

/// The same, without compaction unless it is asked for.
pub fn quiet_config(root: &str) -> EngineConfig {
    let mut config = small_config(root);
    config.compaction.mode = CompactionMode::Off;
    config
}

/// Everything that `request` asks for, as one batch.
pub async fn scan(table: &Table, request: ScanRequest) -> RecordBatch {
    try_scan(table, request).await.unwrap()
}

/// As [`scan`], or the error.
pub async fn try_scan(
    table: &Table,
    request: ScanRequest,
) -> siltstone::error::Result<RecordBatch> {
    let stream = table.scan(request).await?;
    let schema = stream.schema().clone();
    let batches = stream.collect().await?;
    Ok(concat_batches(&schema, &batches)?)
}

/// Fails, naming the first row and column that differ, unless `have` equals `want`.
#[track_caller]
pub fn assert_same(want: &RecordBatch, have: &RecordBatch) {
    assert_eq!(
        want.schema().fields(),
        have.schema().fields(),
        "columns differ"
    );
    assert_eq!(want.num_rows(), have.num_rows(), "numbers of rows differ");
    for (at, field) in want.schema().fields().iter().enumerate() {
        let (want, have) = (want.column(at), have.column(at));
        if want != have {
            let differs = |&row: &usize| want.slice(row, 1) != have.slice(row, 1);
            let row = (0..want.len()).find(differs).unwrap();
            let (want, have) = (want.slice(row, 1), have.slice(row, 1));
            panic!(
                "row {row}, column {:?}: want {want:?}, have {have:?}",
                field.name()
            );
        }
    }
}

/// A small table: key (`at`, `id`), value `value`, windows of 1 s.
pub fn readings_schema(options: TableOptions) -> TableSchema {
    let columns = Arc::new(Schema::new(vec![
        Field::new(
            "at",
            DataType::Timestamp(TimeUnit::Millisecond, None),
            false,
        ),
        Field::new("id", DataType::Int32, true),
        Field::new("value", DataType::Int64, true),
    ]));
    TableSchema::new(columns, &["at", "id"], Some("at"), options).unwrap()
}

/// Options of a small upsert table.
pub fn one_second_windows() -> TableOptions {
    TableOptions {
        window: Duration::from_secs(1).into(),
        ..TableOptions::default()
    }
}

/// One row of the small table.
pub type Reading = (i64, Option<i32>, Option<i64>);

/// A batch of the small table.
pub fn readings(rows: &[Reading]) -> RecordBatch {
    let columns: Vec<ArrayRef> = vec![
        Arc::new(TimestampMillisecondArray::from_iter_values(
            rows.iter().map(|row| row.0),
        )),
        Arc::new(rows.iter().map(|row| row.1).collect::<Int32Array>()),
        Arc::new(rows.iter().map(|row| row.2).collect::<Int64Array>()),
    ];
    let schema = readings_schema(TableOptions::default());
    RecordBatch::try_new(schema.columns().clone(), columns).unwrap()
}

/// A batch of keys of the small table.
pub fn reading_keys(keys: &[(i64, Option<i32>)]) -> RecordBatch {
    let rows: Vec<Reading> = keys.iter().map(|&(at, id)| (at, id, None)).collect();
    readings(&rows).project(&[0, 1]).unwrap()
}

/// The rows of batches of the small table.
pub fn reading_rows(batch: &RecordBatch) -> Vec<Reading> {
    let column = |at: usize| batch.column(at).as_any();
    let ats = column(0)
        .downcast_ref::<TimestampMillisecondArray>()
        .unwrap();
    let ids = column(1).downcast_ref::<Int32Array>().unwrap();
    let values = column(2).downcast_ref::<Int64Array>().unwrap();
    let rows = ats.iter().zip(ids).zip(values);
    rows.map(|((at, id), value)| (at.unwrap(), id, value))
        .collect()
}

/// An engine on a new folder with a small table, `readings`.
pub async fn small_engine(config: EngineConfig) -> (Engine, Table) {
    let engine = Engine::open(config).await.unwrap();
    let schema = readings_schema(one_second_windows());
    let table = engine.create_table("readings", schema).await.unwrap();
    (engine, table)
}

/// Objects in the folder of a table's SSTs.
pub fn sst_files(root: &Path, table: &Table) -> Vec<std::path::PathBuf> {
    let dir = root
        .join("tables")
        .join(table.stats().id.to_string())
        .join("sst");
    let entries = std::fs::read_dir(&dir).into_iter().flatten();
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| {
        file.extension()
            .is_some_and(|extension| extension == "parquet")
    });
    files.sort();
    files
}

/// What `files`, read by a plain Parquet reader, add up to: of each key the row with the greatest seq,
/// unless that is a tombstone; with `schema`'s columns and in key order. Checks that each file is sorted
/// by key and, within a key, by seq descending.
pub fn newest_wins(files: &[std::path::PathBuf], schema: &TableSchema) -> RecordBatch {
    let mut batches = Vec::new();
    let mut newest: BTreeMap<Key, (u64, bool, (usize, usize))> = BTreeMap::new();
    for file in files {
        let name = file.display().to_string();
        let batch = flights::read_parquet(&name, std::fs::read(file).unwrap().into()).unwrap();
        let seqs = batch.column_by_name(SEQ_COLUMN).expect("a column of seqs");
        let seqs = seqs.as_any().downcast_ref::<UInt64Array>().unwrap();
        let ops = batch
            .column_by_name(OP_COLUMN)
            .expect("a column of operations");
        let ops = ops.as_any().downcast_ref::<UInt8Array>().unwrap();
        let keys = schema.key_encoder().encode(&batch).unwrap();
        let mut last: Option<(Key, u64)> = None;
        for row in 0..batch.num_rows() {
            let (key, seq) = (Key::from(keys.row(row).data()), seqs.value(row));
            if let Some((last_key, last_seq)) = &last {
                let ascends = *last_key < key || (*last_key == key && *last_seq > seq);
                assert!(ascends, "{name}: row {row} is out of order");
            }
            let entry = newest.entry(key.clone()).or_insert((0, false, (0, 0)));
            if seq >= entry.0 {
                *entry = (seq, ops.value(row) == 1, (batches.len(), row));
            }
            last = Some((key, seq));
        }
        let columns: Vec<usize> = (0..schema.columns().fields().len()).collect();
        batches.push(batch.project(&columns).unwrap());
    }
    let live = newest.values().filter(|(_, deleted, _)| !deleted);
    let rows: Vec<(usize, usize)> = live.map(|(_, _, row)| *row).collect();
    let batches: Vec<&RecordBatch> = batches.iter().collect();
    let merged = interleave_record_batch(&batches, &rows).unwrap();
    RecordBatch::try_new(schema.columns().clone(), merged.columns().to_vec()).unwrap()
}

/// Waits until `holds` does, and fails with `what` after a minute.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let waited = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    within(what, waited).await;
}

/// What `future` comes to; it fails after a minute, so that what never ends is a test that failed.
pub async fn within<F: Future>(what: &str, future: F) -> F::Output {
    let ended = tokio::time::timeout(Duration::from_secs(60), future).await;
    ended.unwrap_or_else(|_| panic!("waited a minute in vain until {what}"))
}

/// The rows that remain of `batches`, written in this order to a table of `schema`: of each key the last.
pub fn last_of_each_key(schema: &TableSchema, batches: &[RecordBatch]) -> RecordBatch {
    let mut last: BTreeMap<Key, (usize, usize)> = BTreeMap::new();
    for (at, batch) in batches.iter().enumerate() {
        let keys = schema.key_encoder().encode(batch).unwrap();
        last.extend((0..batch.num_rows()).map(|row| (Key::from(keys.row(row).data()), (at, row))));
    }
    let rows: Vec<(usize, usize)> = last.into_values().collect();
    let batches: Vec<&RecordBatch> = batches.iter().collect();
    interleave_record_batch(&batches, &rows).unwrap()
}
