//! What many tables cost one engine: to create, to open, and to keep while nothing happens. Prints its
//! figures: open time, memory, requests and processor time of an idle minute.
//!
//! `cargo bench --bench tables -- [tables] [idle seconds]`; by default 1,000 tables and 60 seconds. Linux only.

use std::{fs, sync::Arc, time::Instant};

use arrow::{
    array::{ArrayRef, Int64Array, RecordBatch},
    datatypes::{DataType, Field, Schema},
};
use siltstone::{
    config::EngineConfig,
    engine::Engine,
    types::{TableOptions, TableSchema},
};

fn columns() -> Arc<Schema> {
    Arc::new(Schema::new(vec![
        Field::new("id", DataType::Int64, false),
        Field::new("value", DataType::Int64, true),
    ]))
}

/// Resident memory of this process in KiB.
fn resident_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let word = line.and_then(|line| line.split_whitespace().nth(1));
    word.and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// Processor time that this process has used, in milliseconds; a tick is 10 ms.
fn processor_ms() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let ticks = fields.split_whitespace().skip(11).take(2);
    ticks
        .filter_map(|ticks| ticks.parse::<u64>().ok())
        .sum::<u64>()
        * 10
}

fn main() {
    let numbers: Vec<u64> = std::env::args()
        .filter_map(|word| word.parse().ok())
        .collect();
    let tables = numbers.first().copied().unwrap_or(1_000);
    let idle_secs = numbers.get(1).copied().unwrap_or(60);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(run(tables, idle_secs));
}

async fn run(tables: u64, idle_secs: u64) {
    let dir = tempfile::tempdir().expect("a folder");
    let root = format!("file://{}", dir.path().display());
    let config = EngineConfig::new(&root);
    let engine = Engine::open(config.clone()).await.expect("an engine opens");
    let started = Instant::now();
    let creating = (0..tables).map(|number| {
        let engine = engine.clone();
        async move {
            let options = TableOptions::default();
            let schema = TableSchema::new(columns(), &["id"], None, options).expect("a schema");
            let table = engine
                .create_table(&format!("table {number}"), schema)
                .await;
            let table = table.expect("a new table");
            let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..100));
            let batch = RecordBatch::try_new(columns(), vec![ids.clone(), ids]);
            table.write(batch.expect("a batch")).await.expect("a write");
            table.flush().await.expect("a flush");
        }
    });
    futures::future::join_all(creating).await;
    println!(
        "{tables} tables created, written and flushed in {:.1?}",
        started.elapsed()
    );
    engine.close().await.expect("it closes");
    drop(engine);

    let before_kib = resident_kib();
    let started = Instant::now();
    let engine = Engine::open(config).await.expect("an engine opens");
    println!("opened in {:.2?}", started.elapsed());
    let more_kib = resident_kib().saturating_sub(before_kib);
    println!("{more_kib} KiB more of memory, {} in all", resident_kib());
    engine.wait_compacted().await.expect("it is open");
    let (requests, processor) = (engine.stats().store, processor_ms());
    tokio::time::sleep(std::time::Duration::from_secs(idle_secs)).await;
    let idle = engine.stats().store;
    println!(
        "{idle_secs} s idle: {} ms of processor time",
        processor_ms() - processor
    );
    println!("requests before: {requests:?}");
    println!("requests after:  {idle:?}");
    engine.close().await.expect("it closes");
}
