//! The time to live: what is past it is not read, and its space comes free by itself.

use std::{sync::Arc, time::Duration};

use arrow::{
    array::{ArrayRef, AsArray, Int64Array, RecordBatch},
    compute::cast,
    datatypes::{DataType, Field, Int64Type, Schema, TimeUnit},
};
use siltstone::{
    engine::ScanRequest,
    store::faulty::{Effect, Fault, Operation},
    types::{Alteration, TableOptions, TableSchema, Windowing},
};

use crate::{
    range_deletes::{Bench, rows},
    snapshots::seen,
    support::{eventually, one_second_windows, reading_keys, reading_rows, readings, scan},
};

/// Rows at −2, −1, 0, 1, 2 hours from the epoch, in every unit: each lives for as long as it should.
#[tokio::test]
async fn the_time_to_live_is_right_in_every_unit() {
    let units = [
        (TimeUnit::Second, 1),
        (TimeUnit::Millisecond, 1_000),
        (TimeUnit::Microsecond, 1_000_000),
        (TimeUnit::Nanosecond, 1_000_000_000),
    ];
    for (unit, per_second) in units {
        let bench = Bench::new(Duration::from_secs(3_600)).await;
        let time = DataType::Timestamp(unit, None);
        let columns = Arc::new(Schema::new(vec![Field::new("at", time.clone(), false)]));
        let options = TableOptions {
            window: Duration::from_secs(3_600).into(),
            ttl: Some(Duration::from_secs(7_200)),
            ..TableOptions::default()
        };
        let schema = TableSchema::new(columns.clone(), &["at"], Some("at"), options).unwrap();
        let table = bench.engine.create_table("hours", schema).await.unwrap();
        let hours = [-2, -1, 0, 1, 2_i64].map(|hour| hour * 3_600 * per_second);
        let times: ArrayRef = cast(&Int64Array::from(hours.to_vec()), &time).unwrap();
        table
            .write(RecordBatch::try_new(columns, vec![times]).unwrap())
            .await
            .unwrap();
        for (flushed, left) in [(false, 4), (true, 4), (true, 3), (true, 2)] {
            if flushed {
                table.flush().await.unwrap();
            }
            let found = scan(&table, ScanRequest::all()).await;
            let found = cast(found.column(0), &DataType::Int64).unwrap();
            let found = found.as_primitive::<Int64Type>().values().to_vec();
            assert_eq!(found, hours[5 - left..], "{unit:?}");
            if flushed {
                bench.clock.advance(Duration::from_secs(3_600));
            }
        }
    }
}

#[tokio::test]
async fn expired_windows_go_on_a_timer_and_unread() {
    let bench = Bench::new(Duration::from_secs(2)).await;
    let options = TableOptions {
        ttl: Some(Duration::from_secs(3)),
        ..one_second_windows()
    };
    let table = bench.table(options).await;
    let written = [
        (500, None, None),
        (1_500, None, None),
        (2_500, None, None),
        (60_000, None, None),
    ];
    table.write(readings(&written)).await.unwrap();
    table.flush().await.unwrap();
    assert_eq!(bench.ssts().await, 4);
    bench.clock.advance(Duration::from_millis(3_200));
    // 5.2 s: what is older than 2.2 s has expired.
    assert_eq!(rows(&table).await, [2_500, 60_000]);
    let got = table
        .get(reading_keys(&[(1_500, None), (2_500, None)]))
        .await
        .unwrap();
    assert_eq!(reading_rows(&got).len(), 1);
    // Whoever reads an SST is held.
    let held = Fault::new(Operation::Get, "/sst/", Effect::Block);
    bench.faults.add(held);
    eventually("two windows are gone", async || bench.ssts().await == 2).await;
    assert_eq!(bench.faults.blocked(), 0);
    bench.faults.clear();
    bench.deleted("expired", 2).await;
    // Late rows are accepted, and expired at once.
    table.write(readings(&[(100, None, None)])).await.unwrap();
    assert_eq!(rows(&table).await, [2_500, 60_000]);
    table.flush().await.unwrap();
    assert_eq!(bench.ssts().await, 2);
}

#[tokio::test]
async fn a_snapshot_keeps_what_expires_after_it() {
    let bench = Bench::new(Duration::from_secs(2)).await;
    let options = TableOptions {
        ttl: Some(Duration::from_secs(3)),
        ..one_second_windows()
    };
    let table = bench.table(options).await;
    table
        .write(readings(&[(500, None, None), (9_500, None, None)]))
        .await
        .unwrap();
    let snapshot = table.snapshot().await.unwrap();
    table.flush().await.unwrap();
    bench.clock.advance(Duration::from_secs(5));
    table
        .write(readings(&[(501, None, None), (9_501, None, None)]))
        .await
        .unwrap();
    table.compact().await.unwrap();
    assert_eq!(rows(&table).await, [9_500, 9_501]);
    assert_eq!(seen(&snapshot).await.len(), 2);
    drop(snapshot);
    eventually("the expired window goes", async || {
        table.stats().sst_rows == 2
    })
    .await;
}

#[tokio::test]
async fn a_table_without_windows_expires_too() {
    let bench = Bench::new(Duration::from_secs(10)).await;
    let options = TableOptions {
        window: Windowing::None,
        ttl: Some(Duration::from_secs(5)),
        ..TableOptions::default()
    };
    let table = bench.table(options).await;
    table
        .write(readings(&[(6_000, None, None), (9_000, None, None)]))
        .await
        .unwrap();
    table.flush().await.unwrap();
    bench.clock.advance(Duration::from_secs(2));
    table
        .write(readings(&[(11_000, None, None)]))
        .await
        .unwrap();
    table.compact().await.unwrap();
    assert_eq!(table.stats().sst_rows, 2, "compaction drops expired rows");
    bench.clock.advance(Duration::from_secs(60));
    eventually("all ssts are gone", async || table.stats().ssts == 0).await;
}

#[tokio::test]
async fn a_snapshot_keeps_its_rows_under_a_shorter_life_and_a_longer_one_brings_none_back() {
    let bench = Bench::new(Duration::from_secs(10)).await;
    let table = bench.table(one_second_windows()).await;
    table
        .write(readings(&[(1_500, None, Some(1)), (9_500, None, None)]))
        .await
        .unwrap();
    table.flush().await.unwrap();
    table.delete(reading_keys(&[(9_500, None)])).await.unwrap();
    table.flush().await.unwrap();
    let snapshot = table.snapshot().await.unwrap();
    let ttl = |seconds| Alteration::SetTtl(Some(Duration::from_secs(seconds)));
    table.alter(&[ttl(2)]).await.unwrap();
    assert!(rows(&table).await.is_empty());
    table.write(readings(&[(9_000, None, None)])).await.unwrap();
    table.compact().await.unwrap();
    assert_eq!(seen(&snapshot).await, [(1_500, None, Some(1))]);
    table.alter(&[ttl(1_000)]).await.unwrap();
    table.alter(&[Alteration::SetTtl(None)]).await.unwrap();
    assert_eq!(rows(&table).await, [9_000]);
    drop(snapshot);
    eventually("the expired window goes", async || {
        table.stats().windows == 1
    })
    .await;
}
