//! Bad input: each piece gives one clear error, of the right kind, that names the thing; nothing panics,
//! nothing else is lost. What lies damaged in the store is `damage`'s.

use std::sync::Arc;

use arrow::{
    array::{
        ArrayRef, Int32Array, Int64Array, RecordBatch, TimestampMillisecondArray, new_null_array,
    },
    datatypes::{DataType, Field, Schema, TimeUnit},
};
use siltstone::{
    config::CompactionMode,
    engine::{Engine, ScanRequest},
    error::{Error, ErrorKind},
    types::{TableOptions, TableSchema},
};
use tempfile::tempdir;

use crate::support::{
    eventually, one_second_windows, quiet_config, reading_keys, reading_rows, readings,
    readings_schema, scan, small_engine, sst_files, try_scan, url_of,
};

/// Fails unless `error` is of `kind` and says each of `words`.
#[track_caller]
pub fn assert_error(error: &Error, kind: ErrorKind, words: &[&str]) {
    let message = error.to_string();
    assert_eq!(error.kind(), kind, "{message}");
    for word in words {
        assert!(
            message.contains(word),
            "{word:?} is missing from: {message}"
        );
    }
}

fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    let fields = columns
        .iter()
        .map(|(name, column)| Field::new(*name, column.data_type().clone(), true));
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    let columns = columns.into_iter().map(|(_, column)| column).collect();
    RecordBatch::try_new(schema, columns).unwrap()
}

fn at() -> ArrayRef {
    Arc::new(TimestampMillisecondArray::from(vec![1, 2]))
}

fn ids() -> ArrayRef {
    Arc::new(Int32Array::from(vec![1, 2]))
}

fn values() -> ArrayRef {
    Arc::new(Int64Array::from(vec![1, 2]))
}

#[tokio::test]
async fn a_batch_that_does_not_fit_names_the_column_and_both_types() {
    let dir = tempdir().unwrap();
    let (engine, table) = small_engine(quiet_config(&url_of(dir.path()))).await;
    let nulls = new_null_array(&DataType::Timestamp(TimeUnit::Millisecond, None), 2);
    let faults: Vec<(RecordBatch, &[&str])> = vec![
        (
            batch(vec![("at", at()), ("id", ids()), ("value", ids())]),
            &["\"value\"", "Int64", "Int32"],
        ),
        (
            batch(vec![("at", values()), ("id", ids()), ("value", values())]),
            &["\"at\"", "Timestamp", "Int64"],
        ),
        (
            batch(vec![("at", at()), ("id", ids())]),
            &["\"value\"", "Int64", "missing"],
        ),
        (
            batch(vec![("at", at()), ("id", ids()), ("price", values())]),
            &["\"value\"", "\"price\""],
        ),
        (
            batch(vec![
                ("at", at()),
                ("id", ids()),
                ("value", values()),
                ("more", ids()),
            ]),
            &["\"more\"", "Int32"],
        ),
        (
            batch(vec![("at", nulls), ("id", ids()), ("value", values())]),
            &["\"at\"", "row 0"],
        ),
    ];
    for (batch, words) in faults {
        assert_error(
            &table.write(batch).await.unwrap_err(),
            ErrorKind::Invalid,
            words,
        );
    }
    let keys = batch(vec![("at", at()), ("id", values())]);
    let words = ["\"id\"", "Int32", "Int64"];
    assert_error(
        &table.delete(keys.clone()).await.unwrap_err(),
        ErrorKind::Invalid,
        &words,
    );
    assert_error(
        &table.get(keys).await.unwrap_err(),
        ErrorKind::Invalid,
        &words,
    );
    assert_eq!(
        scan(&table, ScanRequest::all()).await.num_rows(),
        0,
        "nothing of it was written"
    );
    engine.close().await.unwrap();
}

#[tokio::test]
async fn a_scan_names_the_column_that_is_not_there() {
    let dir = tempdir().unwrap();
    let (engine, table) = small_engine(quiet_config(&url_of(dir.path()))).await;
    let error = try_scan(&table, ScanRequest::all().columns(["value", "price"]))
        .await
        .unwrap_err();
    assert_error(&error, ErrorKind::Invalid, &["\"price\""]);
    engine.close().await.unwrap();
}

#[tokio::test]
async fn tables_that_are_not_there_or_there_already_are_named() {
    let dir = tempdir().unwrap();
    let (engine, _) = small_engine(quiet_config(&url_of(dir.path()))).await;
    assert_error(
        &engine.table("trips").unwrap_err(),
        ErrorKind::NotFound,
        &["\"trips\""],
    );
    let error = engine.drop_table("trips").await.unwrap_err();
    assert_error(&error, ErrorKind::NotFound, &["\"trips\""]);
    let schema = readings_schema(TableOptions::default());
    let error = engine
        .create_table("readings", schema.clone())
        .await
        .unwrap_err();
    assert_error(&error, ErrorKind::Invalid, &["\"readings\""]);
    let error = engine.create_table("", schema).await.unwrap_err();
    assert_error(&error, ErrorKind::Invalid, &["name"]);
    engine.close().await.unwrap();
}

#[test]
fn schemas_that_cannot_be_are_refused_by_column() {
    let nested = DataType::Struct(vec![Field::new("x", DataType::Int32, true)].into());
    let unordered = DataType::Dictionary(Box::new(DataType::Int32), Box::new(nested));
    let columns = Arc::new(Schema::new(vec![
        Field::new("at", DataType::Timestamp(TimeUnit::Second, None), false),
        Field::new(
            "maybe_at",
            DataType::Timestamp(TimeUnit::Second, None),
            true,
        ),
        Field::new("tags", unordered, true),
        Field::new("id", DataType::Int32, true),
    ]));
    let faults: [(&[&str], Option<&str>, &[&str]); 7] = [
        (&[], None, &["key"]),
        (&["name"], None, &["\"name\""]),
        (&["id", "id"], None, &["\"id\"", "twice"]),
        (&["tags"], None, &["\"tags\"", "Dictionary", "ordered"]),
        (&["id"], Some("at"), &["\"at\"", "key"]),
        (&["id"], Some("id"), &["\"id\"", "Int32"]),
        (
            &["maybe_at"],
            Some("maybe_at"),
            &["\"maybe_at\"", "nullable"],
        ),
    ];
    for (key, time, words) in faults {
        let error =
            TableSchema::new(columns.clone(), key, time, TableOptions::default()).unwrap_err();
        assert_error(&error, ErrorKind::Invalid, words);
    }
    let error = TableSchema::new(columns, &["id"], None, one_second_windows()).unwrap_err();
    assert_error(&error, ErrorKind::Invalid, &["window"]);
}

#[tokio::test]
async fn an_engine_refuses_a_configuration_that_cannot_work() {
    let dir = tempdir().unwrap();
    let mut config = quiet_config(&url_of(dir.path()));
    config.compaction.l0_runs_trigger = 1;
    config.memory.memtable_bytes = siltstone::config::Bytes(0);
    let error = Engine::open(config).await.unwrap_err();
    assert_error(
        &error,
        ErrorKind::Invalid,
        &["l0_runs_trigger", "memtable_bytes"],
    );
    for (root, word) in [
        ("no url", "no url"),
        ("ftp://host/dir", "ftp"),
        ("file://host.example/dir", "host.example"),
    ] {
        let mut config = quiet_config(root);
        config.wal.dir = Some(dir.path().join("wal"));
        assert_error(
            &Engine::open(config).await.unwrap_err(),
            ErrorKind::Invalid,
            &[word],
        );
    }
}

#[tokio::test]
async fn a_folder_of_something_else_is_not_taken_for_a_root() {
    let dir = tempdir().unwrap();
    std::fs::write(dir.path().join("holiday.jpg"), "not ours").unwrap();
    let error = Engine::open(quiet_config(&url_of(dir.path())))
        .await
        .unwrap_err();
    assert_error(&error, ErrorKind::Invalid, &[&url_of(dir.path())]);
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "something was written into it: {left:?}");
}

#[tokio::test]
async fn a_root_that_is_a_file_is_refused() {
    let dir = tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "not a folder").unwrap();
    let root = url::Url::from_file_path(&file).unwrap();
    let error = Engine::open(quiet_config(root.as_str())).await.unwrap_err();
    assert!(error.to_string().contains("file"), "{error}");
    assert_eq!(std::fs::read_to_string(file).unwrap(), "not a folder");
}

#[tokio::test]
async fn a_meta_service_that_does_not_answer_is_named_and_waited_for() {
    let dir = tempdir().unwrap();
    let mut config = quiet_config(&url_of(dir.path()));
    config.compaction.mode = CompactionMode::Remote;
    // Port 1 on loopback: nobody listens there.
    config.compaction.remote.meta = vec!["http://127.0.0.1:1".into()];
    config.compaction.l0_runs_trigger = 2;
    let (engine, table) = small_engine(config).await;
    for round in 0..3 {
        table
            .write(readings(&[(1, None, Some(round))]))
            .await
            .unwrap();
        table.flush().await.unwrap();
    }
    eventually("the address is named", async || {
        let waiting = engine.stats().compaction.waiting;
        waiting.is_some_and(|reason| reason.contains("127.0.0.1:1"))
    })
    .await;
    table.write(readings(&[(1, None, Some(9))])).await.unwrap();
    assert_eq!(
        reading_rows(&scan(&table, ScanRequest::all()).await),
        [(1, None, Some(9))]
    );
    let stats = engine.stats().compaction;
    assert!(
        stats.fallbacks.is_empty() && stats.jobs_failed.is_empty(),
        "{stats:?}"
    );
    engine.close().await.unwrap();
}

#[tokio::test]
async fn a_get_of_a_key_that_is_not_there_is_no_error() {
    let dir = tempdir().unwrap();
    let (engine, table) = small_engine(quiet_config(&url_of(dir.path()))).await;
    assert_eq!(
        table
            .get(reading_keys(&[(1, None)]))
            .await
            .unwrap()
            .num_rows(),
        0
    );
    assert!(sst_files(dir.path(), &table).is_empty());
    engine.close().await.unwrap();
}
