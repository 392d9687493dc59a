//! The WAL slow, or full, at the wrong moment: nobody else waits, and nothing is lost.

use std::{sync::Arc, time::Duration};

use siltstone::{
    config::{Bytes, CompactionMode, EngineConfig, Millis, WalMode},
    engine::{Durability, Engine, ScanRequest, Table, WriteOptions},
    error::ErrorKind,
    store::{
        Store,
        faulty::{Effect, Fault, Faults, Operation},
    },
    threads::Turns,
};
use tempfile::{TempDir, tempdir};

use crate::support::{
    eventually, one_second_windows, quiet_config, readings, readings_schema, scan,
};

const BUFFERED: WriteOptions = WriteOptions {
    durability: Durability::Buffered,
};

/// A root in memory, whose WAL is of this mode.
fn root(mode: WalMode) -> (Store, Arc<Faults>, EngineConfig, TempDir) {
    let (store, faults) = Store::open("memory:///").unwrap().with_faults();
    let dir = tempdir().unwrap();
    let mut config = quiet_config("memory:///");
    config.wal.mode = mode;
    config.wal.dir = Some(dir.path().join("wal"));
    config.wal.linger = Millis(0);
    (store, faults, config, dir)
}

async fn open(store: &Store, config: &EngineConfig) -> Engine {
    let builder = Engine::builder(config.clone()).store(store.clone());
    builder.open().await.unwrap()
}

async fn create(engine: &Engine) -> Table {
    let schema = readings_schema(one_second_windows());
    engine.create_table("readings", schema).await.unwrap()
}

async fn write(table: &Table, first: i64, rows: i64, options: WriteOptions) {
    let rows: Vec<_> = (first..first + rows)
        .map(|at| (at, None, Some(at)))
        .collect();
    table.write_with(readings(&rows), options).await.unwrap();
}

#[test]
fn a_large_write_that_waits_for_the_wal_holds_no_thread() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(1)
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let (store, faults, config, _dir) = root(WalMode::ObjectStore);
        let engine = open(&store, &config).await;
        let table = create(&engine).await;
        let block = Fault::new(Operation::Create, "wal/", Effect::Block);
        faults.add(block.times(1));
        let written = tokio::spawn({
            let table = table.clone();
            async move { write(&table, 0, 20_000, WriteOptions::default()).await }
        });
        eventually("the WAL's object is on its way", async || {
            faults.blocked() == 1
        })
        .await;
        let other = tokio::task::spawn_blocking(|| ());
        let other = tokio::time::timeout(Duration::from_secs(10), other).await;
        faults.release();
        written.await.unwrap();
        assert!(other.is_ok(), "the only blocking thread waits for the WAL");
        engine.close().await.unwrap();
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_a_full_disk_refused_are_flushed_before_the_engine_is_closed() {
    let (store, faults, mut config, dir) = root(WalMode::Local);
    // A segment has room for one batch; its successor cannot be created.
    config.wal.segment_bytes = Bytes(64 << 10);
    let engine = open(&store, &config).await;
    let table = create(&engine).await;
    write(&table, 0, 4_000, WriteOptions::default()).await;
    let in_the_way = dir.path().join("wal/00000000000000000002.wal");
    std::fs::create_dir(&in_the_way).unwrap();
    faults.add(Fault::new(Operation::Put, "/sst/", Effect::Block));
    write(&table, 10_000, 4_000, BUFFERED).await;
    eventually("the flush is on its way", async || faults.blocked() > 0).await;
    let mut closing = tokio::spawn(async move { engine.close().await });
    let closed = tokio::time::timeout(Duration::from_millis(300), &mut closing).await;
    std::fs::remove_dir(&in_the_way).unwrap();
    faults.release();
    assert!(closed.is_err(), "closed while the rows are in memory only");
    closing.await.unwrap().unwrap();
    let next = open(&store, &config).await;
    let table = next.table("readings").unwrap();
    assert_eq!(scan(&table, ScanRequest::all()).await.num_rows(), 8_000);
    next.close().await.unwrap();
}

/// Its scheduler met the newer engine at every attempt to start a job, and did so again and again.
#[test]
fn an_engine_that_was_overtaken_stops_although_a_flush_hangs() {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().unwrap();
    Turns::block_on(&runtime, 1, async {
        let (store, faults, mut config, _dir) = root(WalMode::None);
        config.compaction.l0_runs_trigger = 2;
        let old = open(&store, &config).await;
        let table = create(&old).await;
        for _ in 0..2 {
            write(&table, 0, 10, BUFFERED).await;
            table.flush().await.unwrap();
        }
        faults.add(Fault::new(Operation::Put, "/sst/", Effect::Block).times(1));
        write(&table, 0, 10, BUFFERED).await;
        let flush = tokio::spawn({
            let table = table.clone();
            async move { table.flush().await }
        });
        eventually("the flush hangs", async || faults.blocked() == 1).await;
        let _new = open(&store, &config).await;
        config.compaction.mode = CompactionMode::Local;
        old.set_compaction(&config.compaction).await.unwrap();
        // Time stands still, so that the heartbeat says nothing.
        for _ in 0..1_000 {
            tokio::task::yield_now().await;
        }
        assert!(flush.is_finished(), "the engine goes on");
        let lost = flush.await.unwrap().unwrap_err();
        assert_eq!(lost.kind(), ErrorKind::Fenced);
        faults.release();
    });
}
