//! How fast rows enter a memtable: batches of 1,000 rows into one that grows to 200,000.

use std::sync::Arc;

use arrow::{
    array::{ArrayRef, Float64Array, RecordBatch, StringArray, TimestampMillisecondArray},
    datatypes::{DataType, Field, Schema, TimeUnit},
};
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use siltstone::{
    memtable::Memtable,
    types::{Seq, TableOptions, TableSchema},
};

const BATCHES: usize = 200;
const BATCH_ROWS: usize = 1000;

fn schema() -> TableSchema {
    let columns = Schema::new(vec![
        Field::new("host", DataType::Utf8, false),
        Field::new(
            "time",
            DataType::Timestamp(TimeUnit::Millisecond, None),
            false,
        ),
        Field::new("usage_user", DataType::Float64, true),
        Field::new("usage_system", DataType::Float64, true),
    ]);
    let options = TableOptions::default();
    TableSchema::new(Arc::new(columns), &["host", "time"], Some("time"), options)
        .expect("the schema is valid")
}

/// One batch: a measurement of each of 1,000 hosts.
fn batch(schema: &TableSchema, number: usize) -> RecordBatch {
    let rows = 0..BATCH_ROWS;
    let hosts = rows
        .clone()
        .map(|row| format!("host_{}", row * 7919 % BATCH_ROWS));
    let times = rows.clone().map(|_| (number * 10_000) as i64);
    let values = |factor: f64| rows.clone().map(move |row| (row * number) as f64 * factor);
    let columns: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from_iter_values(hosts)),
        Arc::new(TimestampMillisecondArray::from_iter_values(times)),
        Arc::new(Float64Array::from_iter_values(values(0.1))),
        Arc::new(Float64Array::from_iter_values(values(0.7))),
    ];
    let batch = RecordBatch::try_new(schema.columns().clone(), columns);
    let batch = batch.expect("the columns fit the schema");
    schema
        .puts(&batch, Seq(number as u64 + 1))
        .expect("the columns fit the schema")
}

fn insert(criterion: &mut Criterion) {
    let schema = schema();
    let batches: Vec<RecordBatch> = (0..BATCHES).map(|number| batch(&schema, number)).collect();
    let mut group = criterion.benchmark_group("memtable");
    group.throughput(Throughput::Elements((BATCHES * BATCH_ROWS) as u64));
    group.sample_size(20);
    group.bench_function("insert", |bencher| {
        bencher.iter_batched(
            || Memtable::new(schema.clone()),
            |memtable| {
                for batch in &batches {
                    memtable
                        .insert(batch)
                        .expect("the batch has stored columns");
                }
                memtable
            },
            BatchSize::LargeInput,
        );
    });
    group.finish();
}

criterion_group!(benches, insert);
criterion_main!(benches);
