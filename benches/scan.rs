//! How fast an engine scans: a window of flights after compaction, before it, and through a projection.

#[path = "../src/bin/siltstone/flights.rs"]
#[allow(dead_code, reason = "a bench uses its part")]
mod flights;

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use futures::StreamExt;
use siltstone::{
    config::{Bytes, CompactionMode, EngineConfig, WalMode},
    engine::{Engine, ScanRequest, Table},
};
use tokio::runtime::Runtime;

use self::flights::Flights;

/// About a month.
const FLIGHTS: usize = 27_000;
const SOURCE: &[u8] = include_bytes!("../examples/data/flights.parquet");

/// A table of flights, each written three times; in as many SSTs as that takes, or merged.
async fn table(merged: bool) -> (Engine, Table) {
    let mut config = EngineConfig::new("memory:///");
    config.wal.mode = WalMode::None;
    config.memory.memtable_bytes = Bytes::mib(4);
    config.compaction.mode = CompactionMode::Off;
    let flights = Flights::read(SOURCE.into(), FLIGHTS).expect("the source is whole");
    let engine = Engine::open(config).await.expect("an engine opens");
    let schema = flights.table_schema().expect("the schema fits");
    let table = engine
        .create_table("flights", schema)
        .await
        .expect("a new table");
    for batch in flights.replay(1_000).expect("the source fits") {
        let batch = batch.expect("a batch");
        table.write(batch).await.expect("a write");
    }
    if merged {
        table.compact().await.expect("a compaction");
    } else {
        table.flush().await.expect("a flush");
    }
    (engine, table)
}

async fn count(table: &Table, request: ScanRequest) -> usize {
    let mut rows = 0;
    let mut scan = table.scan(request).await.expect("a scan");
    while let Some(batch) = scan.next().await {
        rows += black_box(batch.expect("a batch")).num_rows();
    }
    rows
}

fn scans(criterion: &mut Criterion) {
    let runtime = Runtime::new().expect("a runtime");
    let mut group = criterion.benchmark_group("scan");
    group.sample_size(20);
    group.throughput(Throughput::Elements(FLIGHTS as u64));
    for (name, merged) in [("before compaction", false), ("after compaction", true)] {
        let (engine, table) = runtime.block_on(table(merged));
        for (columns, request) in [
            ("all columns", ScanRequest::all()),
            (
                "two columns",
                ScanRequest::all().columns(["carrier", "distance"]),
            ),
        ] {
            group.bench_function(BenchmarkId::new(columns, name), |bencher| {
                bencher.iter(|| {
                    let rows = runtime.block_on(count(&table, request.clone()));
                    assert_eq!(rows, FLIGHTS);
                });
            });
        }
        runtime.block_on(engine.close()).expect("a close");
    }
    group.finish();
}

criterion_group!(benches, scans);
criterion_main!(benches);
