//! What is kept of SSTs: by memory and on disk, past compactions, and over a restart.

use siltstone::{
    config::{Bytes, CompactionMode, EngineConfig, WalMode},
    engine::{Engine, ScanRequest, Table},
    store::faulty::Operation,
    types::{TimeRange, column},
};
use tempfile::tempdir;

use crate::support::{
    Reading, eventually, one_second_windows, reading_keys, readings, readings_schema, scan, url_of,
};

fn config(root: &str) -> EngineConfig {
    let mut config = EngineConfig::new(root);
    config.wal.mode = WalMode::None;
    config.compaction.mode = CompactionMode::Off;
    config
}

async fn table(engine: &Engine, name: &str) -> Table {
    let schema = readings_schema(one_second_windows());
    engine.create_table(name, schema).await.unwrap()
}

/// Rows in some windows, the value told by `round`.
async fn write(table: &Table, round: i64) {
    let rows: Vec<Reading> = (0..4_000)
        .map(|n| (n, Some(n as i32), Some(n * round)))
        .collect();
    table.write(readings(&rows)).await.unwrap();
    table.flush().await.unwrap();
}

/// Bytes that it takes from the store to read everything.
async fn cost(table: &Table) -> u64 {
    let mut stream = table.scan(ScanRequest::all()).await.unwrap();
    let mut rows = 0;
    while let Some(batch) = futures::StreamExt::next(&mut stream).await {
        rows += batch.unwrap().num_rows();
    }
    assert_eq!(rows, 4_000);
    stream.stats().bytes_fetched
}

#[tokio::test]
async fn what_was_read_is_not_fetched_again() {
    let engine = Engine::open(config("memory:///")).await.unwrap();
    let table = table(&engine, "readings").await;
    write(&table, 1).await;
    assert!(cost(&table).await > 10_000);
    let before = engine.stats().cache;
    assert_eq!((before.data_hits, before.metadata_misses), (0, 4));
    assert_eq!(cost(&table).await, 0);
    let after = engine.stats().cache;
    assert!(
        after.data_hits > 0 && after.data_misses == before.data_misses,
        "{after:?}"
    );
    assert!(
        after.metadata_hits >= 4 && after.metadata_misses == 4,
        "{after:?}"
    );
    assert!(
        after.data_bytes > 0 && after.metadata_bytes > 0,
        "{after:?}"
    );
    let reads = engine.stats().store.requests["get"].done;
    table
        .get(reading_keys(&[(17, Some(17)), (3_001, Some(3_001))]))
        .await
        .unwrap();
    assert_eq!(engine.stats().store.requests["get"].done, reads);
}

#[tokio::test]
async fn compactions_read_past_the_cache() {
    let engine = Engine::open(config("memory:///")).await.unwrap();
    let (read, compacted) = (
        table(&engine, "read").await,
        table(&engine, "compacted").await,
    );
    for round in 1..3 {
        write(&read, round).await;
        write(&compacted, round).await;
    }
    cost(&read).await;
    let before = engine.stats().cache;
    compacted.compact().await.unwrap();
    assert_eq!(engine.stats().cache, before);
    assert_eq!(cost(&read).await, 0);
}

#[tokio::test]
async fn what_replaces_pages_that_were_read_is_loaded() {
    let engine = Engine::open(config("memory:///")).await.unwrap();
    let table = table(&engine, "readings").await;
    write(&table, 1).await;
    write(&table, 2).await;
    // One window only, and of it one column beside the key.
    let hot = || {
        let times = TimeRange {
            start: 1_000,
            end: 2_000,
        };
        ScanRequest::all().columns(["at", "value"]).times(times)
    };
    let rows = scan(&table, hot()).await;
    table.compact().await.unwrap();
    eventually("the outputs are in the cache", async || {
        engine.stats().cache.pages_warmed > 0
    })
    .await;
    eventually("what left is forgotten", async || {
        let stats = engine.stats().cache;
        let mut stream = table.scan(hot()).await.unwrap();
        while futures::StreamExt::next(&mut stream).await.is_some() {}
        stream.stats().bytes_fetched == 0 && stats.data_bytes > 0
    })
    .await;
    assert_eq!(scan(&table, hot()).await, rows);
    // The other windows were not read before, and are not here.
    assert!(cost(&table).await > 0);
    assert_eq!(engine.stats().cache.data_evictions, 0);
}

#[tokio::test]
async fn pages_survive_a_restart_on_disk() {
    let (dir, disk) = (tempdir().unwrap(), tempdir().unwrap());
    let mut config = config(&url_of(dir.path()));
    config.cache.data_bytes = Bytes::mib(1);
    config.cache.disk_dir = Some(disk.path().to_owned());
    config.cache.disk_bytes = Bytes::mib(64);
    let engine = Engine::open(config.clone()).await.unwrap();
    let first = table(&engine, "readings").await;
    write(&first, 1).await;
    let cold = cost(&first).await;
    engine.close().await.unwrap();

    let engine = Engine::open(config).await.unwrap();
    let again = engine.table("readings").unwrap();
    let warm = cost(&again).await;
    let stats = engine.stats().cache;
    assert!(stats.disk_hits > 0, "{stats:?}");
    // Footers are fetched again; they are a good part of such small SSTs.
    assert!(warm < cold, "{warm} bytes, {cold} before");
    engine.close().await.unwrap();
}

#[tokio::test]
async fn without_a_cache_everything_is_read_again() {
    let mut config = config("memory:///");
    config.cache.data_bytes = Bytes(0);
    config.cache.metadata_bytes = Bytes(0);
    let engine = Engine::open(config).await.unwrap();
    let table = table(&engine, "readings").await;
    write(&table, 1).await;
    let cold = cost(&table).await;
    assert_eq!(cost(&table).await, cold);
    let found = scan(&table, ScanRequest::all().filter(column("value").eq(77i64))).await;
    assert_eq!(found.num_rows(), 1);
    let stats = engine.stats().cache;
    assert_eq!(
        (stats.data_hits, stats.data_bytes, stats.metadata_hits),
        (0, 0, 0)
    );
}

#[tokio::test]
async fn readers_that_come_at_once_open_an_sst_once() {
    let (store, faults) = siltstone::store::Store::open("memory:///")
        .unwrap()
        .with_faults();
    let engine = Engine::builder(config("memory:///"))
        .store(store)
        .open()
        .await
        .unwrap();
    let table = table(&engine, "readings").await;
    table
        .write(readings(&[(1, Some(1), Some(1))]))
        .await
        .unwrap();
    table.flush().await.unwrap();
    let before = faults.count(Operation::Get);
    let gets = (0..20).map(|_| table.get(reading_keys(&[(1, Some(1))])));
    for found in futures::future::join_all(gets).await {
        assert_eq!(found.unwrap().num_rows(), 1);
    }
    // One for the footer, and of the page some; not one for each.
    let requests = faults.count(Operation::Get) - before;
    assert!((2..=21).contains(&requests), "{requests} requests");
}
