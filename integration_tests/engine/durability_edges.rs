//! The WAL slow at the wrong moment: nobody else waits.

use std::{sync::Arc, time::Duration};

use siltstone::{
    config::{EngineConfig, Millis, WalMode},
    engine::{Engine, Table, WriteOptions},
    store::{
        Store,
        faulty::{Effect, Fault, Faults, Operation},
    },
};
use tempfile::{TempDir, tempdir};

use crate::support::{eventually, one_second_windows, quiet_config, readings, readings_schema};

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
