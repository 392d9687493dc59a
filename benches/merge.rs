//! The merge alone: four sorted sources of 250,000 rows, half of whose keys lie in another source too.

use std::{hint::black_box, sync::Arc};

use arrow::{
    array::{
        ArrayRef, Float64Array, RecordBatch, StringArray, TimestampMillisecondArray, UInt8Array,
        UInt64Array,
    },
    datatypes::{DataType, Field, Schema, TimeUnit},
};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use siltstone::{
    merge::{Merge, MergeColumns, MergeOptions, SortedSource, View},
    types::{Retention, Seq, TableOptions, TableSchema, WriteMode},
};

const HOSTS: usize = 100;
const ROWS: usize = 250_000;
const BATCH_ROWS: usize = 8_192;

fn schema() -> TableSchema {
    let time = DataType::Timestamp(TimeUnit::Millisecond, None);
    let columns = Schema::new(vec![
        Field::new("host", DataType::Utf8, false),
        Field::new("at", time, false),
        Field::new("value", DataType::Float64, true),
    ]);
    let options = TableOptions::default();
    TableSchema::new(Arc::new(columns), &["host", "at"], Some("at"), options)
        .expect("the schema is valid")
}

/// Source `n`: of each host, times of which the second half are also those of source `n + 1`.
fn batches(schema: &TableSchema, n: usize) -> Vec<RecordBatch> {
    let times = ROWS / HOSTS;
    let start = n * times / 2;
    let rows: Vec<(usize, i64)> = (0..HOSTS)
        .flat_map(|host| (start..start + times).map(move |time| (host, time as i64)))
        .collect();
    let batches = rows.chunks(BATCH_ROWS).map(|rows| {
        let columns: Vec<ArrayRef> = vec![
            Arc::new(StringArray::from_iter_values(
                rows.iter().map(|row| format!("host-{:05}", row.0)),
            )),
            Arc::new(TimestampMillisecondArray::from_iter_values(
                rows.iter().map(|row| row.1),
            )),
            Arc::new(Float64Array::from_iter_values(
                rows.iter().map(|row| row.1 as f64),
            )),
            Arc::new(UInt64Array::from_value(n as u64 + 1, rows.len())),
            Arc::new(UInt8Array::from_value(0, rows.len())),
        ];
        RecordBatch::try_new(schema.stored().clone(), columns).expect("the columns fit")
    });
    batches.collect()
}

fn merge(criterion: &mut Criterion) {
    let schema = schema();
    let sources: Vec<Vec<RecordBatch>> = (0..4).map(|n| batches(&schema, n)).collect();
    let columns = MergeColumns::find(&schema, schema.stored()).expect("all columns are there");
    let everything = View {
        seq: Seq(u64::MAX),
        ..View::default()
    };
    let mut group = criterion.benchmark_group("merge");
    group.throughput(Throughput::Elements(4 * ROWS as u64));
    for (name, options) in [
        (
            "retained",
            MergeOptions::retained(WriteMode::Upsert, Retention::default()),
        ),
        (
            "visible",
            MergeOptions::visible(WriteMode::Upsert, everything),
        ),
    ] {
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let sources = sources.iter().cloned();
                let sources = sources
                    .map(|batches| Box::new(batches.into_iter().map(Ok)) as SortedSource)
                    .collect();
                for batch in Merge::new(sources, columns.clone(), options.clone()) {
                    black_box(batch.expect("the sources are sorted"));
                }
            });
        });
    }
    group.finish();
}

criterion_group!(benches, merge);
criterion_main!(benches);
