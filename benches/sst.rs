//! Encoding an SST, and scanning it from a store in memory: half a million rows of a metrics table.

use std::{hint::black_box, sync::Arc};

use arrow::{
    array::{
        ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray, TimestampMillisecondArray,
        UInt8Array, UInt64Array,
    },
    datatypes::{DataType, Field, Schema, TimeUnit},
};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use siltstone::{
    sst::{ReadRequest, SstAccess, SstOptions, SstReader, SstSpec, SstWriter},
    store::{Store, layout},
    types::{Seq, SstId, SstMeta, TableId, TableOptions, TableSchema, Window},
};
use tokio::runtime::Runtime;

const HOSTS: usize = 200;
const TIMES: usize = 2_500;
const BATCH_ROWS: usize = 8_192;

fn spec(encode_threads: usize) -> SstSpec {
    let time = DataType::Timestamp(TimeUnit::Millisecond, None);
    let columns = Schema::new(vec![
        Field::new("host", DataType::Utf8, false),
        Field::new("at", time, false),
        Field::new("region", DataType::Utf8, true),
        Field::new("requests", DataType::Int64, true),
        Field::new("load", DataType::Float64, true),
        Field::new("idle", DataType::Float64, true),
    ]);
    let options = TableOptions::default();
    let schema = TableSchema::new(Arc::new(columns), &["host", "at"], Some("at"), options);
    SstSpec {
        schema: schema.expect("the schema is valid"),
        table: TableId::from_parts(1, 1),
        level: 0,
        window: Window::ALL,
        applied_seq: Seq(0),
        options: SstOptions {
            encode_threads,
            ..SstOptions::default()
        },
    }
}

fn batches(schema: &TableSchema) -> Vec<RecordBatch> {
    let rows: Vec<(usize, usize)> = (0..HOSTS)
        .flat_map(|host| (0..TIMES).map(move |time| (host, time)))
        .collect();
    let batches = rows.chunks(BATCH_ROWS).map(|rows| {
        let noise = |row: &(usize, usize)| (row.0 * 7_919 + row.1 * 104_729) % 10_007;
        let columns: Vec<ArrayRef> = vec![
            Arc::new(StringArray::from_iter_values(
                rows.iter().map(|row| format!("host-{:05}", row.0)),
            )),
            Arc::new(TimestampMillisecondArray::from_iter_values(
                rows.iter().map(|row| 10_000 * row.1 as i64),
            )),
            Arc::new(StringArray::from_iter_values(
                rows.iter().map(|row| format!("region-{}", row.0 % 9)),
            )),
            Arc::new(Int64Array::from_iter_values(
                rows.iter().map(|row| noise(row) as i64),
            )),
            Arc::new(Float64Array::from_iter_values(
                rows.iter().map(|row| (noise(row) % 101) as f64),
            )),
            Arc::new(Float64Array::from_iter_values(
                rows.iter()
                    .map(|row| noise(row) as f64 / 3.0 + row.1 as f64),
            )),
            Arc::new(UInt64Array::from_value(1, rows.len())),
            Arc::new(UInt8Array::from_value(0, rows.len())),
        ];
        RecordBatch::try_new(schema.stored().clone(), columns).expect("the columns fit")
    });
    batches.collect()
}

fn write(spec: &SstSpec, batches: &[RecordBatch]) -> (SstMeta, Vec<u8>) {
    let id = SstId::flushed(1, 1);
    let mut writer = SstWriter::new(spec, id, Vec::new()).expect("the types are known");
    for batch in batches {
        writer.write(batch).expect("the rows are sorted");
    }
    writer.finish().expect("there are rows")
}

fn sst(criterion: &mut Criterion) {
    let batches = batches(&spec(1).schema);
    let mut group = criterion.benchmark_group("sst");
    group.sample_size(10);
    group.throughput(Throughput::Elements((HOSTS * TIMES) as u64));
    for threads in [1, 2] {
        let spec = spec(threads);
        group.bench_function(format!("write/{threads}"), |bencher| {
            bencher.iter(|| black_box(write(&spec, &batches)));
        });
    }

    let spec = spec(1);
    let (meta, object) = write(&spec, &batches);
    let runtime = Runtime::new().expect("threads are to be had");
    let store = Store::open("memory:///").expect("memory is always there");
    let reader = runtime.block_on(async {
        let name = layout::sst(spec.table, meta.id);
        store.put(&name, object.into()).await?;
        SstReader::open(
            &SstAccess::by_chunks(&store),
            &spec.schema,
            spec.table,
            Arc::new(meta),
        )
        .await
    });
    let reader = reader.expect("it was just written");
    group.bench_function("scan", |bencher| {
        bencher.iter(|| {
            let source = reader.source(&ReadRequest::default(), runtime.handle().clone());
            for batch in source.expect("all columns are there") {
                black_box(batch.expect("it was just written"));
            }
        });
    });
    group.finish();
}

criterion_group!(benches, sst);
criterion_main!(benches);
