//! Changes of a table's schema: nothing that is stored is rewritten, nothing is lost, and names may move.

use std::{sync::Arc, time::Duration};

use arrow::{
    array::{Array, AsArray, Float64Array, Int64Array, RecordBatch},
    datatypes::{DataType, Field, Float64Type, Int64Type},
};
use siltstone::{
    config::WalMode,
    engine::{Engine, ScanRequest, Table},
    error::ErrorKind,
    store::{
        Store,
        faulty::{Effect, Fault, Operation},
    },
    types::{Alteration, MergeOperator, Windowing},
};
use tempfile::tempdir;

use crate::support::{
    one_second_windows, quiet_config, readings, readings_schema, scan, small_engine, url_of,
};

fn add(name: &str) -> Alteration {
    Alteration::AddColumn {
        field: Field::new(name, DataType::Float64, true),
        operator: MergeOperator::LastValue,
    }
}

fn rename(from: &str, to: &str) -> Alteration {
    let (from, to) = (from.to_owned(), to.to_owned());
    Alteration::RenameColumn { from, to }
}

/// A batch of the altered table: the small one's columns, and one more.
fn with_extra(table: &Table, at: i64, extra: f64) -> RecordBatch {
    let old = readings(&[(at, None, Some(1))]);
    let mut columns = old.columns().to_vec();
    columns.push(Arc::new(Float64Array::from(vec![extra])));
    RecordBatch::try_new(table.schema().columns().clone(), columns).unwrap()
}

#[tokio::test]
async fn rows_of_every_version_are_read_under_the_newest() {
    let dir = tempdir().unwrap();
    let config = quiet_config(&url_of(dir.path()));
    let (engine, table) = small_engine(config.clone()).await;
    table.write(readings(&[(10, None, Some(1))])).await.unwrap();
    table.flush().await.unwrap();
    table.write(readings(&[(20, None, Some(2))])).await.unwrap();
    let altered = table
        .alter(&[
            add("extra"),
            rename("value", "worth"),
            rename("id", "number"),
        ])
        .await
        .unwrap();
    assert_eq!(
        (altered.version(), altered.key_names()),
        (2, vec!["at", "number"])
    );
    let error = table
        .write(readings(&[(30, None, None)]))
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    table.write(with_extra(&table, 30, 0.5)).await.unwrap();

    let check = async |table: &Table| {
        let rows = scan(table, ScanRequest::all().columns(["worth", "extra"])).await;
        let worth = rows.column(0).as_primitive::<Int64Type>();
        assert_eq!(worth, &Int64Array::from(vec![1, 2, 1]));
        let extra = rows.column(1).as_primitive::<Float64Type>();
        assert_eq!(extra, &Float64Array::from(vec![None, None, Some(0.5)]));
        assert_eq!(rows.schema().field(0).name(), "worth");
    };
    check(&table).await;
    // Entries of both versions are in the WAL.
    engine.close().await.unwrap();
    let engine = Engine::open(config).await.unwrap();
    let table = engine.table("readings").unwrap();
    assert_eq!(table.schema().version(), 2);
    check(&table).await;
    table.compact().await.unwrap();
    check(&table).await;
    // Dropped for good, whatever comes under its name.
    let drop = Alteration::DropColumn {
        name: "worth".into(),
    };
    table
        .alter(&[drop, rename("extra", "worth")])
        .await
        .unwrap();
    let rows = scan(&table, ScanRequest::all().columns(["worth"])).await;
    assert_eq!(rows.column(0).null_count(), 2);
    let error = table
        .scan(ScanRequest::all().columns(["extra"]))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("extra"), "{error}");
}

#[tokio::test]
async fn a_change_that_cannot_be_made_changes_nothing() {
    let dir = tempdir().unwrap();
    let (_engine, table) = small_engine(quiet_config(&url_of(dir.path()))).await;
    let before = table.schema();
    for changes in [
        vec![add("extra"), rename("nothing", "x")],
        vec![Alteration::DropColumn { name: "at".into() }],
        vec![Alteration::SetWindow(Windowing::Fixed(
            Duration::from_nanos(1),
        ))],
    ] {
        let error = table.alter(&changes).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert_eq!(table.schema(), before);
    }
}

#[tokio::test]
async fn an_alteration_whose_answer_is_lost_is_made_once() {
    let (store, faults) = Store::open("memory:///").unwrap().with_faults();
    let mut config = quiet_config("memory:///");
    config.wal.mode = WalMode::None;
    let engine = Engine::builder(config).store(store).open().await.unwrap();
    let schema = readings_schema(one_second_windows());
    let table = engine.create_table("readings", schema).await.unwrap();
    for effect in [Effect::LoseAnswer, Effect::Fail] {
        for operation in [Operation::Create, Operation::Get] {
            faults.add(Fault::new(operation, "/manifest/", effect).times(3));
        }
        let version = table.schema().version();
        table
            .alter(&[rename("value", "worth"), rename("worth", "value")])
            .await
            .unwrap();
        faults.clear();
        assert_eq!(table.schema().version(), version + 1);
    }
}

/// Writers go on under the schema that they know, while it changes under them.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn writers_go_on_while_the_schema_changes() {
    let dir = tempdir().unwrap();
    let config = quiet_config(&url_of(dir.path()));
    let (engine, table) = small_engine(config.clone()).await;
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let table = table.clone();
            tokio::spawn(async move {
                let mut written = 0;
                for round in 0..60 {
                    let at = writer * 1_000 + round;
                    let batch = readings(&[(at, None, Some(at))]);
                    // Checked under the schema of the moment; the table may be ahead when it is inserted.
                    let schema = table.schema();
                    let mut columns = batch.columns().to_vec();
                    for field in &schema.columns().fields()[3..] {
                        columns.push(arrow::array::new_null_array(field.data_type(), 1));
                    }
                    let batch = RecordBatch::try_new(schema.columns().clone(), columns).unwrap();
                    match table.write(batch).await {
                        Ok(_) => written += 1,
                        Err(error) => assert_eq!(error.kind(), ErrorKind::Invalid, "{error}"),
                    }
                }
                written
            })
        })
        .collect();
    for round in 0..6 {
        table.alter(&[add(&format!("extra{round}"))]).await.unwrap();
        tokio::task::yield_now().await;
    }
    let mut written = 0;
    for writer in writers {
        written += writer.await.unwrap();
    }
    assert!(written > 0);
    assert_eq!(scan(&table, ScanRequest::all()).await.num_rows(), written);
    engine.close().await.unwrap();
    let engine = Engine::open(config).await.unwrap();
    let table = engine.table("readings").unwrap();
    let rows = scan(&table, ScanRequest::all()).await;
    assert_eq!((rows.num_rows(), rows.num_columns()), (written, 9));
    table.flush().await.unwrap();
    assert_eq!(scan(&table, ScanRequest::all()).await.num_rows(), written);
}
