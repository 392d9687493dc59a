//! Time windows: every unit, times before the epoch and at both ends of what 64 bits hold, late and future rows,
//! and widths that the first flush chooses.

use std::{sync::Arc, time::Duration};

use arrow::{
    array::{AsArray, Int64Array, RecordBatch},
    compute::cast,
    datatypes::{DataType, Field, Int64Type, Schema, TimeUnit},
};
use siltstone::{
    engine::{Engine, ScanRequest, Table},
    types::{Alteration, KeyRange, MergeOperator, TableOptions, TableSchema, TimeRange, Windowing},
};
use tempfile::tempdir;

use crate::support::{
    quiet_config, reading_keys, reading_rows, readings, readings_schema, scan, url_of,
};

const UNITS: [TimeUnit; 4] = [
    TimeUnit::Second,
    TimeUnit::Millisecond,
    TimeUnit::Microsecond,
    TimeUnit::Nanosecond,
];

fn times_of(table: &Table, times: &[i64]) -> RecordBatch {
    let schema = table.schema();
    let column = schema.columns().field(0).data_type().clone();
    let times = cast(&Int64Array::from(times.to_vec()), &column).unwrap();
    RecordBatch::try_new(schema.columns().clone(), vec![times]).unwrap()
}

async fn found(table: &Table, request: ScanRequest) -> Vec<i64> {
    let rows = scan(table, request).await;
    let times = cast(rows.column(0), &DataType::Int64).unwrap();
    times.as_primitive::<Int64Type>().values().to_vec()
}

async fn engine_and_table(
    dir: &std::path::Path,
    unit: TimeUnit,
    window: Windowing,
) -> (Engine, Table) {
    let engine = Engine::open(quiet_config(&url_of(dir))).await.unwrap();
    let time = DataType::Timestamp(unit, Some("UTC".into()));
    let columns = Arc::new(Schema::new(vec![Field::new("at", time, false)]));
    let options = TableOptions {
        window,
        ..TableOptions::default()
    };
    let schema = TableSchema::new(columns, &["at"], Some("at"), options).unwrap();
    let table = engine.create_table("times", schema).await.unwrap();
    (engine, table)
}

#[tokio::test]
async fn times_of_every_unit_and_size_come_back() {
    for unit in UNITS {
        let width = Duration::from_secs(1 << 40).min(Duration::from_nanos(1 << 60));
        for window in [Windowing::None, Windowing::Fixed(width), Windowing::Auto] {
            let dir = tempdir().unwrap();
            let (engine, table) = engine_and_table(dir.path(), unit, window).await;
            let times = [
                i64::MIN,
                i64::MIN + 1,
                -1_000_000_007,
                -1,
                0,
                1,
                1_000_000_007,
                i64::MAX - 1,
                i64::MAX,
            ];
            table.write(times_of(&table, &times)).await.unwrap();
            for round in 0..3 {
                let case = format!("{unit:?}, {window:?}, round {round}");
                assert_eq!(found(&table, ScanRequest::all()).await, times, "{case}");
                let within = |start, end| ScanRequest::all().times(TimeRange { start, end });
                assert_eq!(found(&table, within(-1, 1)).await, [-1, 0], "{case}");
                assert_eq!(
                    found(&table, within(i64::MIN, 0)).await,
                    times[..4],
                    "{case}"
                );
                assert_eq!(
                    found(&table, within(2, i64::MAX)).await,
                    times[6..],
                    "{case}"
                );
                let key = |time| table.schema().key_of(&times_of(&table, &[time])).unwrap();
                let keys = KeyRange {
                    start: Some(key(i64::MAX)),
                    end: None,
                };
                assert_eq!(
                    found(&table, ScanRequest::all().keys(keys)).await,
                    [i64::MAX],
                    "{case}"
                );
                let got = table
                    .get(times_of(&table, &[i64::MIN, i64::MAX, 5]))
                    .await
                    .unwrap();
                assert_eq!(got.num_rows(), 2, "{case}");
                match round {
                    0 => table.flush().await.unwrap(),
                    _ => {
                        table.compact().await.unwrap();
                    }
                }
            }
            table.delete(times_of(&table, &[i64::MIN])).await.unwrap();
            table
                .delete_range(TimeRange {
                    start: 0,
                    end: i64::MAX,
                })
                .await
                .unwrap();
            assert_eq!(found(&table, ScanRequest::all()).await, times[1..4]);
            table.compact().await.unwrap();
            assert_eq!(found(&table, ScanRequest::all()).await, times[1..4]);
            engine.close().await.unwrap();
        }
    }
}

#[tokio::test]
async fn the_first_flush_chooses_a_width_and_it_stays() {
    let dir = tempdir().unwrap();
    let (engine, table) = engine_and_table(dir.path(), TimeUnit::Second, Windowing::Auto).await;
    let two_months: Vec<i64> = (0..5_000_000).step_by(1_000).collect();
    table.write(times_of(&table, &two_months)).await.unwrap();
    assert_eq!(table.schema().options().window, Windowing::Auto);
    table.flush().await.unwrap();
    let chosen = table.schema().options().window;
    let Windowing::Fixed(width) = chosen else {
        panic!("nothing was chosen: {chosen:?}");
    };
    assert!(
        (86_400..=31_536_000).contains(&width.as_secs()),
        "{width:?}"
    );
    // Late and future rows lie in windows of their own.
    let more = [-9_000_000_000, 9_000_000_000];
    table.write(times_of(&table, &more)).await.unwrap();
    table.flush().await.unwrap();
    engine.close().await.unwrap();
    let engine = Engine::open(quiet_config(&url_of(dir.path())))
        .await
        .unwrap();
    let table = engine.table("times").unwrap();
    assert_eq!(table.schema().options().window, chosen);
    let rows = found(&table, ScanRequest::all()).await;
    assert_eq!(rows.len(), two_months.len() + 2);
    assert!(table.stats().windows >= 3);
}

/// Rows for a window that has been compacted already, again and again: newest wins, in every window.
#[tokio::test]
async fn late_rows_find_their_window() {
    let dir = tempdir().unwrap();
    let engine = Engine::open(quiet_config(&url_of(dir.path())))
        .await
        .unwrap();
    let options = TableOptions {
        window: Duration::from_secs(1).into(),
        ..TableOptions::default()
    };
    let table = engine
        .create_table("readings", readings_schema(options))
        .await
        .unwrap();
    for round in 0..4 {
        let late = 500 + round;
        let rows = [
            (round * 1_000, None, Some(round)),
            (-500, None, Some(round)),
            (late, None, None),
        ];
        table.write(readings(&rows)).await.unwrap();
        table.compact().await.unwrap();
        let stats = table.stats();
        assert_eq!(stats.windows, 1 + (round as u64 + 1), "round {round}");
        let levels: Vec<u8> = stats.ssts_by_level.keys().copied().collect();
        assert_eq!(levels, [1], "one run a window");
    }
    let rows = crate::support::reading_rows(&scan(&table, ScanRequest::all()).await);
    assert_eq!(rows.len(), 9);
    assert_eq!(rows[0], (-500, None, Some(3)));
}

/// Windows of two widths side by side: what is newer hides what is older, and tombstones stay for as long as there is
/// something to hide.
#[tokio::test]
async fn windows_of_another_width_lie_beside_those_that_were_there() {
    let fixed = |ms| Windowing::Fixed(Duration::from_millis(ms));
    let changes = [
        (fixed(1_000), fixed(10_000)),
        (fixed(1_000), fixed(300)),
        (fixed(1_000), Windowing::None),
        (Windowing::None, fixed(1_000)),
        (Windowing::None, Windowing::Auto),
        (fixed(1_000), Windowing::Auto),
        (Windowing::Auto, fixed(1_000)),
    ];
    for (before, after) in changes {
        let dir = tempdir().unwrap();
        let engine = Engine::open(quiet_config(&url_of(dir.path())))
            .await
            .unwrap();
        let options = TableOptions {
            window: before,
            operators: [("value".to_owned(), MergeOperator::Sum)].into(),
            ..TableOptions::default()
        };
        let table = engine
            .create_table("readings", readings_schema(options))
            .await
            .unwrap();
        let at = [100, 1_100, 2_100, 25_000];
        let rows = at.map(|at| (at, None, Some(1)));
        table.write(readings(&rows)).await.unwrap();
        table.compact().await.unwrap();
        table.write(readings(&rows[1..2])).await.unwrap();
        table.alter(&[Alteration::SetWindow(after)]).await.unwrap();
        table.write(readings(&rows[1..3])).await.unwrap();
        table.delete(reading_keys(&[(100, None)])).await.unwrap();
        for round in 0..3 {
            let left = reading_rows(&scan(&table, ScanRequest::all()).await);
            let wanted = [
                (1_100, None, Some(3)),
                (2_100, None, Some(2)),
                (25_000, None, Some(1)),
            ];
            assert_eq!(left, wanted, "{before:?} to {after:?}, round {round}");
            if round == 1 {
                table.compact().await.unwrap();
            } else {
                table.flush().await.unwrap();
            }
        }
        // The older windows would be the newer ones' neighbours no more.
        let error = table
            .alter(&[Alteration::SetWindow(before)])
            .await
            .unwrap_err();
        assert!(
            error
                .to_string()
                .contains("windows cannot be changed again"),
            "{error}"
        );
        table.delete_range(TimeRange::ALL).await.unwrap();
        crate::support::eventually("all is gone", async || table.stats().ssts == 0).await;
        table.alter(&[Alteration::SetWindow(before)]).await.unwrap();
        engine.close().await.unwrap();
    }
}
