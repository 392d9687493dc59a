//! What others do while an import goes on, and what becomes of it when the store or the engine goes away.

use std::{sync::Arc, time::Duration};

use arrow::array::RecordBatch;
use futures::{
    StreamExt,
    stream::{self, BoxStream},
};
use siltstone::{
    engine::{Engine, ImportOptions, ScanRequest},
    error::{ErrorKind, Result},
    store::faulty::{Effect, Fault, Operation},
    types::{Alteration, MergeOperator, TableOptions, TimeRange},
};
use tempfile::tempdir;

use super::{Bench, batches, rows, sorted, spilling};
use crate::support::{
    Reading, eventually, one_second_windows, quiet_config, reading_keys, reading_rows, readings,
    readings_schema, scan, url_of,
};

#[tokio::test(flavor = "multi_thread")]
async fn what_happens_during_an_import_is_older_and_what_happens_after_it_newer() {
    let bench = Bench::new(one_second_windows()).await;
    let table = bench.table.clone();
    let write = async |rows: &[Reading]| table.write(readings(rows)).await.unwrap();
    write(&[(1, None, Some(1)), (2, None, Some(1)), (9, None, Some(1))]).await;
    let first = bench.table.clone();
    let meanwhile = async move {
        // A write, a delete, and a delete by time, all flushed, and merged to where nothing remembers them.
        let rows = [
            (3, None, Some(2)),
            (4, None, Some(2)),
            (1_500, None, Some(2)),
        ];
        first.write(readings(&rows)).await.unwrap();
        first
            .delete(reading_keys(&[(1, None), (5, None)]))
            .await
            .unwrap();
        let times = TimeRange { start: 2, end: 4 };
        first.delete_range(times).await.unwrap();
        first.compact().await.unwrap();
        let snapshot = first.snapshot().await.unwrap();
        (Ok(readings(&[(7, None, Some(3))])), snapshot)
    };
    let (send, snapshot) = tokio::sync::oneshot::channel();
    let imported = [
        (1, None, Some(3)),
        (2, None, Some(3)),
        (4, None, Some(3)),
        (5, None, Some(3)),
    ];
    let rows_first = stream::iter([Ok(readings(&imported))]);
    let rows_then = stream::once(async move {
        let (batch, snapshot) = meanwhile.await;
        send.send(snapshot).unwrap();
        batch
    });
    let report = bench
        .table
        .import(rows_first.chain(rows_then), spilling())
        .await
        .unwrap();
    assert_eq!(report.rows, 5);
    let then = [
        (1, None, Some(3)),
        (2, None, Some(3)),
        (4, None, Some(3)),
        (5, None, Some(3)),
        (7, None, Some(3)),
        (9, None, Some(1)),
        (1_500, None, Some(2)),
    ];
    assert_eq!(rows(&table).await, then);
    let snapshot = snapshot.await.unwrap();
    let seen = snapshot.scan(ScanRequest::all()).await.unwrap();
    let seen: Vec<Reading> = seen
        .collect()
        .await
        .unwrap()
        .iter()
        .flat_map(reading_rows)
        .collect();
    assert_eq!(
        seen,
        [
            (4, None, Some(2)),
            (9, None, Some(1)),
            (1_500, None, Some(2))
        ]
    );

    let after = write(&[(1, None, Some(4))]).await;
    assert!(after > report.seq);
    table.delete(reading_keys(&[(2, None)])).await.unwrap();
    table
        .delete_range(TimeRange { start: 5, end: 6 })
        .await
        .unwrap();
    let last = [
        (1, None, Some(4)),
        (4, None, Some(3)),
        (7, None, Some(3)),
        (9, None, Some(1)),
        (1_500, None, Some(2)),
    ];
    assert_eq!(rows(&table).await, last);
    drop(snapshot);
    table.compact().await.unwrap();
    assert_eq!(rows(&table).await, last);
    table.await_durable(after).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_go_on_while_an_import_waits_to_commit() {
    let bench = Bench::new(one_second_windows()).await;
    bench
        .table
        .write(readings(&[(1, None, Some(1))]))
        .await
        .unwrap();
    let commits = Fault::new(Operation::Create, "manifest", Effect::Block);
    bench.faults.add(commits.times(1));
    let table = bench.table.clone();
    let importing = tokio::spawn(async move {
        let rows = batches(&[readings(&[(1, None, Some(2)), (2, None, Some(2))])]);
        table.import(rows, ImportOptions::default()).await
    });
    eventually("the flush before it commits", async || {
        bench.faults.blocked() == 1
    })
    .await;
    bench
        .table
        .write(readings(&[(2, None, Some(3))]))
        .await
        .unwrap();
    assert_eq!(
        rows(&bench.table).await,
        [(1, None, Some(1)), (2, None, Some(3))]
    );
    // Nothing that is newer is flushed before the import is in.
    let table = bench.table.clone();
    let flushing = tokio::spawn(async move { table.flush().await });
    let table = bench.table.clone();
    let snapping = tokio::spawn(async move { table.snapshot().await });
    bench.faults.release();
    importing.await.unwrap().unwrap();
    flushing.await.unwrap().unwrap();
    let want = [(1, None, Some(2)), (2, None, Some(3))];
    assert_eq!(rows(&bench.table).await, want);
    let snapshot = snapping.await.unwrap().unwrap();
    let seen = snapshot
        .scan(ScanRequest::all())
        .await
        .unwrap()
        .collect()
        .await
        .unwrap();
    assert_eq!(seen.iter().flat_map(reading_rows).collect::<Vec<_>>(), want);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_imports_once() {
    let bench = Bench::new(one_second_windows()).await;
    for effect in [Effect::LoseAnswer, Effect::Fail] {
        bench
            .faults
            .add(Fault::new(Operation::Create, "manifest", effect).times(30));
        bench
            .import(&[(1, None, Some(1)), (1_200, None, Some(2))], sorted())
            .await;
        bench.faults.clear();
        assert_eq!(
            rows(&bench.table).await,
            [(1, None, Some(1)), (1_200, None, Some(2))]
        );
    }
    assert_eq!(bench.table.stats().ssts, 4);
    bench.engine.collect_garbage().await.unwrap();
    assert_eq!(bench.objects().await, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn imports_outlive_the_engine_and_the_wal_goes_on_after_them() {
    let dir = tempdir().unwrap();
    let config = quiet_config(&url_of(dir.path()));
    let engine = Engine::open(config.clone()).await.unwrap();
    let schema = readings_schema(one_second_windows());
    let table = engine.create_table("readings", schema).await.unwrap();
    table
        .write(readings(&[(1, None, Some(1)), (2, None, Some(1))]))
        .await
        .unwrap();
    let imported = readings(&[(2, None, Some(2)), (3, None, Some(2))]);
    let report = table.import(batches(&[imported]), sorted()).await.unwrap();
    let seq = table
        .write(readings(&[(3, None, Some(3)), (4, None, Some(3))]))
        .await
        .unwrap();
    assert!(seq > report.seq);
    let want = rows(&table).await;
    assert_eq!(
        want.iter().map(|row| row.2.unwrap()).collect::<Vec<_>>(),
        [1, 2, 3, 3]
    );
    engine.close().await.unwrap();
    let engine = Engine::open(config).await.unwrap();
    let table = engine.table("readings").unwrap();
    assert_eq!(rows(&table).await, want);
    assert!(table.write(readings(&[(5, None, None)])).await.unwrap() > seq);
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn imported_rows_combine_with_those_before_and_after_but_not_with_each_other() {
    let bench = Bench::new(TableOptions {
        operators: [("value".to_owned(), MergeOperator::Sum)].into(),
        ..one_second_windows()
    })
    .await;
    bench
        .table
        .write(readings(&[(1, None, Some(1))]))
        .await
        .unwrap();
    for options in [ImportOptions::default(), spilling(), sorted()] {
        let parts = [
            readings(&[(1, None, Some(500)), (1, None, Some(600))]),
            readings(&[(1, None, Some(10))]),
        ];
        bench.table.import(batches(&parts), options).await.unwrap();
    }
    bench
        .table
        .write(readings(&[(1, None, Some(100))]))
        .await
        .unwrap();
    assert_eq!(rows(&bench.table).await, [(1, None, Some(131))]);
    bench.table.compact().await.unwrap();
    assert_eq!(rows(&bench.table).await, [(1, None, Some(131))]);
}

/// Whenever it begins: here it waits for another.
#[tokio::test(flavor = "multi_thread")]
async fn an_import_has_the_columns_that_the_table_had_when_it_was_called() {
    let bench = Bench::new(one_second_windows()).await;
    let (release, released) = tokio::sync::oneshot::channel::<()>();
    let held = stream::once(async move {
        released.await.unwrap();
        Ok(readings(&[(1, None, Some(1))]))
    });
    let import = |batches: BoxStream<'static, Result<RecordBatch>>, options: ImportOptions| {
        let table = bench.table.clone();
        tokio::spawn(async move { table.import(batches, options).await })
    };
    let options = ImportOptions::default();
    let progress = options.progress.clone();
    let begun = stream::iter([Ok(readings(&[(0, None, Some(0))]))]).chain(held);
    let first = import(begun.boxed(), options);
    eventually("the first one reads", async || progress.rows_read() == 1).await;
    let asked = Arc::new(tokio::sync::Notify::new());
    let tell = asked.clone();
    let rows_2 = stream::once(async move {
        tell.notify_one();
        Ok(readings(&[(1_200, None, Some(2))]))
    });
    let second = import(rows_2.boxed(), ImportOptions::default());
    asked.notified().await;
    let field = arrow::datatypes::Field::new("note", arrow::datatypes::DataType::Utf8, true);
    let operator = MergeOperator::LastValue;
    let change = Alteration::AddColumn { field, operator };
    bench.table.alter(&[change]).await.unwrap();
    release.send(()).unwrap();
    first.await.unwrap().unwrap();
    second.await.unwrap().unwrap();
    let batch = scan(&bench.table, ScanRequest::all()).await;
    assert_eq!((batch.num_rows(), batch.num_columns()), (3, 4));
}

#[tokio::test(flavor = "multi_thread")]
async fn windows_that_change_meanwhile_refuse_the_import_and_columns_do_not() {
    let bench = Bench::new(one_second_windows()).await;
    let schema_changes = [
        (
            Alteration::SetWindow(Duration::from_secs(5).into()),
            Some(ErrorKind::Conflict),
        ),
        (
            Alteration::AddColumn {
                field: arrow::datatypes::Field::new("note", arrow::datatypes::DataType::Utf8, true),
                operator: MergeOperator::LastValue,
            },
            None,
        ),
    ];
    for (change, refused) in schema_changes {
        let table = bench.table.clone();
        let first = stream::iter([Ok(readings(&[(1, None, Some(1))]))]);
        let then = stream::once(async move {
            table.alter(&[change]).await.unwrap();
            Ok(readings(&[(1_200, None, Some(2))]))
        });
        let imported = bench.table.import(first.chain(then), spilling()).await;
        assert_eq!(imported.err().map(|error| error.kind()), refused);
        let objects = if refused.is_some() { 0 } else { 1 };
        assert_eq!(bench.objects().await, objects);
    }
    let batch = scan(&bench.table, ScanRequest::all()).await;
    assert_eq!((batch.num_rows(), batch.num_columns()), (2, 4));
}
