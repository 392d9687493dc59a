//! What survives a crash, for every kind of WAL. A crash is an engine that is not closed, and another
//! opened beside it; `dist::crashes` kills processes.

use std::{path::Path, sync::Arc};

use siltstone::{
    config::{Bytes, EngineConfig, Millis, WalMode},
    engine::{Durability, Engine, ScanRequest, Table, WriteOptions},
    error::{ErrorKind, Result},
    store::{
        Store,
        faulty::{Effect, Fault, Faults, Operation},
    },
    types::{Seq, TableOptions, WriteMode},
};
use tempfile::{TempDir, tempdir};

use crate::support::{
    eventually, one_second_windows, quiet_config, reading_keys, readings, readings_schema, scan,
};

pub const MODES: [WalMode; 3] = [WalMode::Local, WalMode::ObjectStore, WalMode::None];

const BUFFERED: WriteOptions = WriteOptions {
    durability: Durability::Buffered,
};

/// A root in memory that engines come to, one after the other.
pub struct Root {
    pub store: Store,
    pub faults: Arc<Faults>,
    pub config: EngineConfig,
    pub dir: TempDir,
}

impl Root {
    pub fn new(mode: WalMode) -> Self {
        let (store, faults) = Store::open("memory:///").unwrap().with_faults();
        let dir = tempdir().unwrap();
        let mut config = quiet_config("memory:///");
        config.wal.mode = mode;
        config.wal.dir = Some(dir.path().join("wal"));
        config.wal.linger = Millis(0);
        Self {
            store,
            faults,
            config,
            dir,
        }
    }

    pub async fn open_with(&self, change: impl FnOnce(&mut EngineConfig)) -> Result<Engine> {
        let mut config = self.config.clone();
        change(&mut config);
        let builder = Engine::builder(config).store(self.store.clone());
        builder.open().await
    }

    pub async fn open(&self) -> Engine {
        self.open_with(|_| {}).await.unwrap()
    }

    /// An engine on another machine, with all that the first has synced.
    pub async fn take_over(&self) -> Engine {
        let copy = tempfile::tempdir_in(self.dir.path()).unwrap().keep();
        if self.config.wal.mode == WalMode::Local {
            copy_files(&self.dir.path().join("wal"), &copy);
        }
        let taken = self.open_with(|config| config.wal.dir = Some(copy)).await;
        taken.unwrap()
    }

    /// Has the next object of the WAL wait until the faults are released.
    fn block_wal(&self) {
        let block = Fault::new(Operation::Create, "wal/", Effect::Block);
        self.faults.add(block.times(1));
    }

    async fn wal_is_blocked(&self) {
        eventually("the WAL's object is on its way", async || {
            self.faults.blocked() == 1
        })
        .await;
    }
}

fn copy_files(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// Every row counts.
fn append() -> TableOptions {
    TableOptions {
        write_mode: WriteMode::Append,
        ..one_second_windows()
    }
}

pub async fn create(engine: &Engine, name: &str) -> Table {
    let schema = readings_schema(append());
    engine.create_table(name, schema).await.unwrap()
}

pub async fn write(table: &Table, at: i64, options: WriteOptions) -> Result<Seq> {
    let batch = readings(&[(at, None, Some(at))]);
    table.write_with(batch, options).await
}

pub async fn rows(table: &Table) -> usize {
    scan(table, ScanRequest::all()).await.num_rows()
}

#[tokio::test(flavor = "multi_thread")]
async fn synced_rows_survive_the_loss_of_the_process() {
    for mode in [WalMode::Local, WalMode::ObjectStore] {
        let root = Root::new(mode);
        let engine = root.open().await;
        let table = create(&engine, "readings").await;
        for at in 0..10 {
            write(&table, at, WriteOptions::default()).await.unwrap();
            if at == 5 {
                table.flush().await.unwrap();
            }
        }
        let next = root.take_over().await;
        let taken = next.table("readings").unwrap();
        assert_eq!(rows(&taken).await, 10, "{mode:?}");
        write(&taken, 11, WriteOptions::default()).await.unwrap();
        taken.flush().await.unwrap();
        assert_eq!(rows(&taken).await, 11, "{mode:?}");
        next.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_engine_fences_the_first_whatever_it_does() {
    for mode in MODES {
        let root = Root::new(mode);
        let first = root.open().await;
        let table = create(&first, "readings").await;
        write(&table, 1, WriteOptions::default()).await.unwrap();
        table.flush().await.unwrap();
        let second = root.take_over().await;
        // With a WAL that both share, even the next write knows. Else the heartbeat tells.
        let written = write(&table, 2, WriteOptions::default()).await;
        assert!(mode != WalMode::ObjectStore || written.is_err());
        eventually("the first engine knows", async || {
            write(&table, 3, WriteOptions::default()).await.is_err()
        })
        .await;
        let schema = readings_schema(append());
        let errors = [
            write(&table, 4, WriteOptions::default()).await.map(drop),
            write(&table, 4, BUFFERED).await.map(drop),
            table.delete(reading_keys(&[(1, None)])).await.map(drop),
            table.flush().await,
            table.compact().await.map(drop),
            table.await_durable(Seq(1_000_000)).await,
            first.create_table("other", schema).await.map(drop),
            first.drop_table("readings").await,
            first.close().await,
        ];
        for (at, error) in errors.into_iter().enumerate() {
            let error = error.unwrap_err();
            // A seq that was not written is the caller's mistake, whoever leads.
            let wanted = match at {
                5 => ErrorKind::Invalid,
                _ => ErrorKind::Fenced,
            };
            assert_eq!(error.kind(), wanted, "{mode:?} {at}: {error}");
            assert!(at == 5 || error.message().contains("epoch"), "{error}");
        }
        let table = second.table("readings").unwrap();
        assert_eq!(rows(&table).await, 1, "{mode:?}");
        write(&table, 5, WriteOptions::default()).await.unwrap();
        table.flush().await.unwrap();
        second.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_buffered_batch_is_visible_at_once_and_durable_when_awaited() {
    for mode in MODES {
        let root = Root::new(mode);
        let engine = root.open().await;
        let table = create(&engine, "readings").await;
        root.block_wal();
        let first = write(&table, 1, BUFFERED).await.unwrap();
        let deleted = table
            .delete_with(reading_keys(&[(9, None)]), BUFFERED)
            .await;
        let last = write(&table, 2, BUFFERED).await.unwrap();
        assert_eq!(
            (deleted.unwrap(), last),
            (Seq(first.0 + 1), Seq(first.0 + 2))
        );
        assert_eq!(rows(&table).await, 2);
        let error = table.await_durable(Seq(last.0 + 1)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        if mode == WalMode::ObjectStore {
            root.wal_is_blocked().await;
            let waiting = tokio::spawn({
                let table = table.clone();
                async move { table.await_durable(last).await }
            });
            tokio::task::yield_now().await;
            assert!(!waiting.is_finished());
            root.faults.release();
            waiting.await.unwrap().unwrap();
        }
        table.await_durable(last).await.unwrap();
        assert_eq!(table.stats().flushed_seq == last, mode == WalMode::None);
        let next = root.take_over().await;
        assert_eq!(rows(&next.table("readings").unwrap()).await, 2, "{mode:?}");
        next.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_takes_the_last_buffered_batches_and_says_so() {
    let root = Root::new(WalMode::ObjectStore);
    let engine = root.open().await;
    let (one, two) = (create(&engine, "one").await, create(&engine, "two").await);
    write(&one, 1, BUFFERED).await.unwrap();
    let safe = write(&two, 1, WriteOptions::default()).await.unwrap();
    root.block_wal();
    for at in 2..5 {
        write(&one, at, BUFFERED).await.unwrap();
        write(&two, at, BUFFERED).await.unwrap();
    }
    // A flush makes what it takes along durable, although the WAL does not answer.
    one.flush().await.unwrap();
    one.await_durable(Seq(4)).await.unwrap();
    two.await_durable(safe).await.unwrap();
    let waiting = tokio::spawn({
        let two = two.clone();
        async move { two.await_durable(Seq(4)).await }
    });
    root.wal_is_blocked().await;
    let next = root.take_over().await;
    root.faults.release();
    let error = waiting.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    assert_eq!(rows(&next.table("one").unwrap()).await, 4);
    assert_eq!(rows(&next.table("two").unwrap()).await, 1);
    next.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_engine_says_that_nothing_more_becomes_durable() {
    let root = Root::new(WalMode::ObjectStore);
    let engine = root.open().await;
    let table = create(&engine, "readings").await;
    root.block_wal();
    let seq = write(&table, 1, BUFFERED).await.unwrap();
    root.wal_is_blocked().await;
    let waiting = tokio::spawn({
        let table = table.clone();
        async move { table.await_durable(seq).await }
    });
    let closing = tokio::spawn(async move { engine.close().await });
    let error = waiting.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    root.faults.release();
    closing.await.unwrap().unwrap();
    // What was queued is in the WAL all the same.
    let next = root.open().await;
    assert_eq!(rows(&next.table("readings").unwrap()).await, 1);
    next.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_away_delays_writes_to_an_object_wal() {
    let root = Root::new(WalMode::ObjectStore);
    let engine = root.open().await;
    let table = create(&engine, "readings").await;
    for operation in [Operation::Create, Operation::Get, Operation::List] {
        root.faults.add(Fault::new(operation, "", Effect::Fail));
    }
    let writes: Vec<_> = (0..5)
        .map(|at| {
            let table = table.clone();
            tokio::spawn(async move { write(&table, at, WriteOptions::default()).await })
        })
        .collect();
    eventually("the delay has a reason", async || {
        engine.stats().wal_error.is_some()
    })
    .await;
    assert!(writes.iter().all(|write| !write.is_finished()));
    root.faults.clear();
    for write in writes {
        write.await.unwrap().unwrap();
    }
    assert_eq!(engine.stats().wal_error, None);
    assert_eq!(rows(&table).await, 5);
    let next = root.take_over().await;
    assert_eq!(rows(&next.table("readings").unwrap()).await, 5);
    next.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_local_wal_on_a_full_disk_is_made_up_for() {
    let root = Root::new(WalMode::Local);
    // Each segment has room for one batch or two; its successor cannot be created.
    let engine = root
        .open_with(|config| config.wal.segment_bytes = Bytes(64 << 10))
        .await
        .unwrap();
    let table = create(&engine, "readings").await;
    let large = |at: i64| {
        let rows: Vec<_> = (at..at + 4_000).map(|at| (at, None, Some(at))).collect();
        readings(&rows)
    };
    table.write(large(0)).await.unwrap();
    let segments = root.dir.path().join("wal");
    let in_the_way = segments.join("00000000000000000002.wal");
    std::fs::create_dir(&in_the_way).unwrap();
    let error = table.write(large(10_000)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(engine.stats().wal_error.unwrap().contains("02.wal"));
    // A buffered batch that the WAL does not take is flushed instead.
    let seq = table.write_with(large(20_000), BUFFERED).await.unwrap();
    table.await_durable(seq).await.unwrap();
    assert_eq!(table.stats().flushed_seq, seq);
    std::fs::remove_dir(&in_the_way).unwrap();
    table.write(large(30_000)).await.unwrap();
    assert_eq!(engine.stats().wal_error, None);
    assert_eq!(rows(&table).await, 12_000);
    let next = root.take_over().await;
    assert_eq!(rows(&next.table("readings").unwrap()).await, 12_000);
    next.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_that_hold_the_wal_back_are_flushed() {
    for mode in [WalMode::Local, WalMode::ObjectStore] {
        let root = Root::new(mode);
        let engine = root
            .open_with(|config| {
                config.memory.memtable_bytes = Bytes::mib(64);
                config.wal.bytes_max = Bytes::mib(1);
                config.wal.segment_bytes = Bytes(128 << 10);
            })
            .await
            .unwrap();
        let (idle, busy) = (create(&engine, "idle").await, create(&engine, "busy").await);
        write(&idle, 1, WriteOptions::default()).await.unwrap();
        let rows: Vec<_> = (0..4_000).map(|at| (at, None, Some(at))).collect();
        eventually("the idle table is flushed", async || {
            busy.write(readings(&rows)).await.unwrap();
            idle.stats().flushes == 1
        })
        .await;
        eventually("the WAL is short again", async || {
            busy.write(readings(&rows)).await.unwrap();
            engine.stats().wal_bytes < 1 << 20
        })
        .await;
        engine.close().await.unwrap();
    }
}
