//! Readers of a root that an engine has open, which deletes with a grace of zero.

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use siltstone::{
    clock::{Clock, Env, ManualClock},
    config::{EngineConfig, Millis},
    engine::{CheckpointKind, Engine, Reader, ReaderTable, ScanRequest},
    error::{ErrorKind, Result},
    store::{
        Store,
        faulty::{Effect, Fault, Faults, Operation},
    },
    types::Alteration,
};
use tempfile::tempdir;
use tokio_util::sync::CancellationToken;

use crate::{
    checkpoints::Bench,
    support::{
        Reading, eventually, one_second_windows, quiet_config, reading_keys, reading_rows,
        readings, readings_schema, small_config, small_engine, url_of,
    },
};

const LIFETIME: Duration = Duration::from_secs(60);

/// A reader of the bench's root, on a store with a script of its own.
async fn reader_of(bench: &Bench) -> (Reader, Arc<Faults>) {
    let (store, faults) = bench.store.clone().with_faults();
    let reader = open(&bench.config, store, &bench.clock).await.unwrap();
    (reader, faults)
}

async fn open(config: &EngineConfig, store: Store, clock: &Arc<ManualClock>) -> Result<Reader> {
    open_with(config, store, clock, Millis(5)).await
}

async fn open_with(
    config: &EngineConfig,
    store: Store,
    clock: &Arc<ManualClock>,
    refresh: Millis,
) -> Result<Reader> {
    let mut config = config.clone();
    config.reader.refresh = refresh;
    config.reader.checkpoint_lifetime = Millis(LIFETIME.as_millis() as u64);
    let env = Env::seeded(clock.clone(), 77);
    let builder = Engine::reader(config).store(store).env(env).name("r");
    builder.open().await
}

async fn rows_of(table: &ReaderTable) -> Result<Vec<Reading>> {
    let batches = table.scan(ScanRequest::all()).await?.collect().await?;
    Ok(batches.iter().flat_map(reading_rows).collect())
}

fn rows(ids: std::ops::Range<i32>, value: i64) -> Vec<Reading> {
    ids.map(|id| (10, Some(id), Some(value))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_sees_what_was_flushed_and_follows() {
    let bench = Bench::new().await;
    bench.write(0..3, 1).await;
    let late = readings(&[(10, Some(9), Some(9))]);
    bench.table.write(late).await.unwrap();
    let before = bench.objects("").await;
    let (reader, _) = reader_of(&bench).await;
    assert_eq!(reader.tables().await.unwrap(), ["readings"]);
    let table = reader.table("readings").await.unwrap();
    assert_eq!(rows_of(&table).await.unwrap(), rows(0..3, 1));
    let keys = reading_keys(&[(10, Some(1)), (10, Some(9))]);
    let found = table.get(keys).await.unwrap();
    assert_eq!(reading_rows(&found), [(10, Some(1), Some(1))]);
    // It has put one object there, and nothing else.
    let mut after = bench.objects("").await;
    after.retain(|object| !before.contains(object));
    assert!(
        after.len() == 1 && after[0].contains("/checkpoints/"),
        "{after:?}"
    );
    let held = bench.table.checkpoints().await.unwrap();
    assert_eq!(
        (held[0].kind, held[0].name.as_str()),
        (CheckpointKind::Reader, "r")
    );

    // By itself.
    bench.write(0..3, 2).await;
    eventually("the reader follows", || async {
        rows_of(&table).await.unwrap()[..3] == rows(0..3, 2)
    })
    .await;
    // When asked to.
    let renamed = Alteration::RenameColumn {
        from: "value".into(),
        to: "amount".into(),
    };
    bench.write(0..3, 3).await;
    bench.table.compact().await.unwrap();
    bench.table.alter(&[renamed]).await.unwrap();
    table.refresh().await.unwrap();
    assert_eq!(rows_of(&table).await.unwrap()[..3], rows(0..3, 3));
    assert_eq!(table.schema().unwrap().columns().field(2).name(), "amount");
    assert_eq!(
        table.flushed_seq().unwrap(),
        bench.table.stats().flushed_seq
    );
    // One checkpoint is left, of the newest version, and nothing else is kept.
    bench.swept(0).await;
    eventually("old checkpoints are deleted", || async {
        bench.objects("/checkpoints/").await.len() == 1
    })
    .await;

    // Tables come and go.
    let schema = readings_schema(one_second_windows());
    let other = bench
        .engine
        .create_table("other", schema.clone())
        .await
        .unwrap();
    assert_eq!(reader.tables().await.unwrap(), ["other", "readings"]);
    let empty = reader.table("other").await.unwrap();
    assert_eq!(rows_of(&empty).await.unwrap(), []);
    let first = empty.id();
    bench.engine.drop_table("other").await.unwrap();
    assert_eq!(
        empty.refresh().await.unwrap_err().kind(),
        ErrorKind::NotFound
    );
    assert_eq!(
        rows_of(&empty).await.unwrap_err().kind(),
        ErrorKind::NotFound
    );
    let missing = reader.table("other").await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    bench.engine.create_table("other", schema).await.unwrap();
    assert_ne!(reader.table("other").await.unwrap().id(), first);
    drop(other);
    reader.close().await.unwrap();
    let closed = rows_of(&table).await.unwrap_err();
    assert_eq!(closed.kind(), ErrorKind::Closed);
    assert_eq!(bench.objects("/checkpoints/").await, [""; 0]);
}

/// The engine replaces all rows again and again, compacts and deletes; every read sees all of one round.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn reads_are_whole_while_the_engine_compacts_and_deletes() {
    let dir = tempdir().unwrap();
    let mut config = small_config(&url_of(dir.path()));
    config.compaction.l0_runs_trigger = 2;
    config.gc.grace = Millis(0);
    config.reader.refresh = Millis(3);
    let (engine, table) = small_engine(config.clone()).await;
    let batch = |round: i64| {
        let rows: Vec<Reading> = (0..100).map(|at| (at * 57, None, Some(round))).collect();
        readings(&rows)
    };
    table.write(batch(0)).await.unwrap();
    table.flush().await.unwrap();
    let reader = Engine::open_reader(config).await.unwrap();
    let done = CancellationToken::new();
    let mut reading = Vec::new();
    for at in 0..3 {
        let (reader, done) = (reader.clone(), done.clone());
        reading.push(tokio::spawn(async move {
            let (mut reads, mut last) = (0, 0);
            let mut table = reader.table("readings").await.unwrap();
            while !done.is_cancelled() {
                if at == 1 {
                    table.refresh().await.unwrap();
                }
                if at == 2 {
                    table = reader.table("readings").await.unwrap();
                }
                let rows = rows_of(&table).await.unwrap();
                let round = rows[0].2.unwrap();
                assert!(rows.len() == 100 && rows.iter().all(|row| row.2 == Some(round)));
                assert!(round >= last, "{round} after {last}");
                last = round;
                reads += 1;
            }
            (reads, last)
        }));
    }
    for round in 1..=60 {
        table.write(batch(round)).await.unwrap();
        table.flush().await.unwrap();
    }
    let deleted = || async { engine.stats().gc.objects_deleted() > 50 };
    eventually("replaced SSTs are deleted", deleted).await;
    done.cancel();
    for reading in reading {
        let (reads, last) = reading.await.unwrap();
        assert!(reads > 10 && last > 0, "{reads} reads up to round {last}");
    }
    reader.close().await.unwrap();
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_scan_goes_on_reading_what_is_replaced() {
    let bench = Bench::new().await;
    // An SST for each of many windows, far more than are read ahead: they are opened one after the other.
    let round = |value: i64| -> Vec<Reading> {
        let at = |row: i64| row / 2_000 * 1_000 + row % 1_000;
        let id = |row: i64| Some((row / 1_000) as i32);
        let mut rows: Vec<_> = (0..80_000)
            .map(|row| (at(row), id(row), Some(value)))
            .collect();
        rows.sort();
        rows
    };
    bench.table.write(readings(&round(1))).await.unwrap();
    bench.table.flush().await.unwrap();
    let (reader, _) = reader_of(&bench).await;
    let table = reader.table("readings").await.unwrap();
    let mut scan = table.scan(ScanRequest::all()).await.unwrap();
    let mut found = reading_rows(&scan.next().await.unwrap().unwrap());
    for value in 2..4 {
        bench.table.write(readings(&round(value))).await.unwrap();
        bench.table.compact().await.unwrap();
        table.refresh().await.unwrap();
        assert!(rows_of(&table).await.unwrap() == round(value));
        // Longer than its checkpoint lasts without being renewed.
        for _ in 0..4 {
            bench.clock.advance(LIFETIME / 2 - LIFETIME / 10);
            let ends = bench.clock.unix_ms() + LIFETIME.as_millis() as u64;
            eventually("the checkpoints are renewed", || async {
                let held = bench.table.checkpoints().await.unwrap();
                held.iter().all(|one| one.expires_ms == Some(ends))
            })
            .await;
        }
        bench.swept(40).await;
    }
    for batch in scan.collect().await.unwrap() {
        found.extend(reading_rows(&batch));
    }
    assert!(found == round(1));
    bench.swept(0).await;
    reader.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_cannot_renew_reads_nothing() {
    let bench = Bench::new().await;
    bench.write(0..3, 1).await;
    bench.table.create_checkpoint("a", None).await.unwrap();
    let (reader, faults) = reader_of(&bench).await;
    let table = reader.table("readings").await.unwrap();
    let at = reader.table_at("readings", "a").await.unwrap();
    bench.table.delete_checkpoint("a").await.unwrap();
    bench.write(0..3, 2).await;
    bench.table.compact().await.unwrap();
    eventually("the reader follows", || async {
        rows_of(&table).await.unwrap() == rows(0..3, 2)
    })
    .await;
    bench.swept(1).await;
    faults.add(Fault::new(Operation::Create, "/checkpoints/", Effect::Fail));
    bench.clock.advance(LIFETIME * 2 / 3);
    for table in [&table, &at] {
        assert_eq!(rows_of(table).await.unwrap().len(), 3, "it holds still");
    }
    bench.clock.advance(Duration::from_millis(1));
    for table in [&table, &at] {
        let refused = rows_of(table).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unavailable);
        assert!(refused.to_string().contains("not renewed"), "{refused}");
        assert!(table.get(reading_keys(&[(10, Some(1))])).await.is_err());
    }
    bench.clock.advance(LIFETIME);
    bench.swept(0).await;
    bench.write(0..3, 3).await;
    bench.table.compact().await.unwrap();
    bench.swept(0).await;
    faults.clear();
    // What was lost stays lost; what there is can be read again.
    eventually("the reader has a checkpoint again", || async {
        rows_of(&table)
            .await
            .is_ok_and(|found| found == rows(0..3, 3))
    })
    .await;
    let lost = rows_of(&at).await.unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::Unavailable);
    reader.close().await.unwrap();
}

/// The reader's checkpoint is on its way when compaction replaces what it names, and that is deleted.
#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_that_comes_too_late_is_not_read_under() {
    let bench = Bench::new().await;
    bench.write(0..3, 1).await;
    let (store, faults) = bench.store.clone().with_faults();
    // No round of its own repairs what a step does wrong.
    let seldom = Millis(LIFETIME.as_millis() as u64 / 10);
    let reader = open_with(&bench.config, store, &bench.clock, seldom).await;
    let reader = reader.unwrap();
    let late = || Fault::new(Operation::Create, "/checkpoints/", Effect::Block).times(1);
    let mut handle = None;
    // When the table is opened, and when it is followed.
    for value in [2, 3] {
        faults.add(late());
        let (reader, known) = (reader.clone(), handle.clone());
        let step = tokio::spawn(async move {
            match known {
                None => reader.table("readings").await,
                Some(table) => ReaderTable::refresh(&table).await.map(|()| table),
            }
        });
        eventually("the put waits", || async { faults.blocked() == 1 }).await;
        bench.write(0..3, value).await;
        bench.table.compact().await.unwrap();
        bench.swept(u64::from(value == 3)).await;
        faults.release();
        let table = step.await.unwrap().unwrap();
        assert_eq!(rows_of(&table).await.unwrap(), rows(0..3, value));
        handle = Some(table);
        // For the next step.
        bench.write(0..3, value).await;
    }
    // Dropped and deleted meanwhile.
    faults.add(late());
    let table = handle.unwrap();
    let step = tokio::spawn(async move { table.refresh().await });
    eventually("the put waits", || async { faults.blocked() == 1 }).await;
    bench.engine.drop_table("readings").await.unwrap();
    faults.release();
    let dropped = step.await.unwrap().unwrap_err();
    assert_eq!(dropped.kind(), ErrorKind::NotFound);
    reader.close().await.unwrap();
    eventually("nothing is left", || async {
        bench.objects("").await.is_empty()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn checkpoints_are_read_by_name_and_of_dropped_tables_by_id() {
    let bench = Bench::new().await;
    let id = bench.table.stats().id.to_string();
    bench.write(0..3, 1).await;
    bench.table.create_checkpoint("a", None).await.unwrap();
    bench.write(0..3, 2).await;
    bench.table.compact().await.unwrap();
    let (reader, faults) = reader_of(&bench).await;
    let at = reader.table_at("readings", "a").await.unwrap();
    at.refresh().await.unwrap();
    assert_eq!(rows_of(&at).await.unwrap(), rows(0..3, 1));
    for (table, checkpoint) in [("readings", "b"), ("other", "a")] {
        let missing = reader.table_at(table, checkpoint).await.unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
    }
    bench.engine.drop_table("readings").await.unwrap();
    // One SST, the user's checkpoint, and the reader's.
    eventually("the rest is deleted", || async {
        bench.objects("").await.len() == 3
    })
    .await;
    let again = reader.table_at(&id, "a").await.unwrap();
    let table: siltstone::types::TableId = id.parse().unwrap();
    // It ends while a reader copies it.
    faults.add(Fault::new(Operation::Create, "/checkpoints/", Effect::Block).times(1));
    let (copying, id) = (reader.clone(), id.clone());
    let copying = tokio::spawn(async move { copying.table_at(&id, "a").await });
    eventually("the put waits", || async { faults.blocked() == 1 }).await;
    bench
        .engine
        .delete_dropped_checkpoint(table, "a")
        .await
        .unwrap();
    faults.clear();
    let gone = copying.await.unwrap().unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound);
    for table in [&at, &again] {
        assert_eq!(rows_of(table).await.unwrap(), rows(0..3, 1));
    }
    drop(at);
    eventually("two checkpoints are left, or one", || async {
        bench.objects("/checkpoints/").await.len() == 1
    })
    .await;
    assert_eq!(rows_of(&again).await.unwrap(), rows(0..3, 1));
    reader.close().await.unwrap();
    eventually("nothing is left", || async {
        bench.objects("").await.is_empty()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_has_a_handle_on_is_let_go() {
    let bench = Bench::new().await;
    bench.write(0..3, 1).await;
    let (reader, _) = reader_of(&bench).await;
    let nothing_held = || async { bench.objects("/checkpoints/").await.is_empty() };
    drop(reader.table("readings").await.unwrap());
    eventually("the table is let go", nothing_held).await;
    let table = reader.table("readings").await.unwrap();
    let scan = table.scan(ScanRequest::all()).await.unwrap();
    assert_eq!(bench.objects("/checkpoints/").await.len(), 1);
    drop(reader);
    // A handle on a table keeps the reader; so does a scan.
    bench.write(0..3, 2).await;
    table.refresh().await.unwrap();
    assert_eq!(rows_of(&table).await.unwrap(), rows(0..3, 2));
    drop(table);
    let found = scan.collect().await.unwrap();
    assert_eq!(
        found.iter().flat_map(reading_rows).collect::<Vec<_>>(),
        rows(0..3, 1)
    );
    eventually("the reader has gone", nothing_held).await;
}

/// The reader is cut off while the records that it would read next are removed.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_was_cut_off_catches_up_although_the_log_was_trimmed() {
    let bench = Bench::new().await;
    bench.write(0..3, 0).await;
    let (reader, faults) = reader_of(&bench).await;
    let table = reader.table("readings").await.unwrap();
    faults.add(Fault::new(Operation::Get, "/manifest/", Effect::Fail));
    faults.add(Fault::new(Operation::List, "/manifest", Effect::Fail));
    for round in 1..=70 {
        bench.write(0..3, round).await;
    }
    bench.clock.advance(bench.config.gc.log_grace.duration());
    bench.write(0..3, 71).await;
    eventually("the log is trimmed", || async {
        bench.objects("/manifest/").await.len() < 60
    })
    .await;
    faults.clear();
    table.refresh().await.unwrap();
    assert_eq!(rows_of(&table).await.unwrap(), rows(0..3, 71));
    reader.close().await.unwrap();
}

#[tokio::test]
async fn what_cannot_be_opened_is_said() {
    let dir = tempdir().unwrap();
    let mut config = quiet_config(&url_of(dir.path()));
    let missing = Engine::open_reader(config.clone()).await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    config.root = url_of(&dir.path().join("nowhere"));
    let missing = Engine::open_reader(config.clone()).await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    config.reader.refresh = Millis(0);
    config.gc.log_grace = Millis(1);
    let invalid = Engine::open_reader(config).await.unwrap_err();
    assert_eq!(invalid.kind(), ErrorKind::Invalid);
    for key in ["reader.refresh", "gc.log_grace"] {
        assert!(invalid.to_string().contains(key), "{invalid}");
    }
    // What only an engine needs is not asked for.
    let remote = Engine::open_reader(EngineConfig::new("s3:no bucket")).await;
    assert!(!remote.unwrap_err().to_string().contains("wal.dir"));
}
