//! Snapshots and batches: what a reader saw once it sees again, and it sees batches wholly.

use std::{collections::BTreeMap, sync::Arc};

use siltstone::{
    engine::{Engine, ScanRequest, Snapshot, Table},
    types::{TableOptions, WriteMode},
};
use tempfile::tempdir;

use crate::support::{
    Reading, one_second_windows, quiet_config, reading_keys, reading_rows, readings,
    readings_schema, scan, small_config, url_of,
};

/// All rows of a snapshot.
pub async fn seen(snapshot: &Snapshot) -> Vec<Reading> {
    let batches = snapshot
        .scan(ScanRequest::all())
        .await
        .unwrap()
        .collect()
        .await
        .unwrap();
    batches.iter().flat_map(reading_rows).collect()
}

async fn table(mode: WriteMode) -> (tempfile::TempDir, Engine, Table) {
    let dir = tempdir().unwrap();
    let engine = Engine::open(quiet_config(&url_of(dir.path())))
        .await
        .unwrap();
    let options = TableOptions {
        write_mode: mode,
        ..one_second_windows()
    };
    let table = engine
        .create_table("readings", readings_schema(options))
        .await
        .unwrap();
    (dir, engine, table)
}

#[tokio::test]
async fn snapshots_read_the_same_through_flushes_and_compactions() {
    let (_dir, _engine, table) = table(WriteMode::Upsert).await;
    let mut taken: Vec<(Snapshot, Vec<Reading>)> = Vec::new();
    let mut rows: BTreeMap<(i64, Option<i32>), Option<i64>> = BTreeMap::new();
    for round in 0..8 {
        let written = [(10, None, Some(round)), (20 + round, Some(1), Some(round))];
        table.write(readings(&written)).await.unwrap();
        rows.extend(written.map(|(at, id, value)| ((at, id), value)));
        if round % 3 == 2 {
            table.delete(reading_keys(&[(10, None)])).await.unwrap();
            rows.remove(&(10, None));
        }
        let now = rows
            .iter()
            .map(|(&(at, id), &value)| (at, id, value))
            .collect();
        taken.push((table.snapshot().await.unwrap(), now));
        if round % 2 == 1 {
            table.flush().await.unwrap();
        }
        if round == 5 {
            table.compact().await.unwrap();
        }
        for (snapshot, wanted) in &taken {
            assert_eq!(
                seen(snapshot).await,
                *wanted,
                "{snapshot:?} in round {round}"
            );
        }
    }
    table.compact().await.unwrap();
    for (snapshot, wanted) in &taken {
        assert_eq!(seen(snapshot).await, *wanted, "{snapshot:?} at the end");
    }
    let kept = table.stats().sst_rows;
    assert!(
        kept > rows.len() as u64,
        "versions are kept for the snapshots"
    );
    taken.clear();
    table
        .write(readings(&[(30_000, None, None), (11, None, None)]))
        .await
        .unwrap();
    table.compact().await.unwrap();
    assert_eq!(
        table.stats().sst_rows,
        rows.len() as u64 + 2,
        "and go with them"
    );
}

#[tokio::test]
async fn a_snapshot_of_an_append_table_keeps_deleted_rows() {
    let (_dir, _engine, table) = table(WriteMode::Append).await;
    table.write(readings(&[(10, None, Some(1))])).await.unwrap();
    table.write(readings(&[(10, None, Some(2))])).await.unwrap();
    let snapshot = table.snapshot().await.unwrap();
    table.flush().await.unwrap();
    table.delete(reading_keys(&[(10, None)])).await.unwrap();
    table.write(readings(&[(10, None, Some(3))])).await.unwrap();
    table.compact().await.unwrap();
    let mut before = seen(&snapshot).await;
    before.sort();
    assert_eq!(before, [(10, None, Some(1)), (10, None, Some(2))]);
    assert_eq!(
        reading_rows(&scan(&table, ScanRequest::all()).await),
        [(10, None, Some(3))]
    );
}

/// Writers replace all rows of the table, batch by batch, while it is flushed and compacted; readers scan it and
/// hold snapshots of it. In every answer all rows are of one batch.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn batches_are_seen_wholly_under_concurrent_writes() {
    let dir = tempdir().unwrap();
    let mut config = small_config(&url_of(dir.path()));
    config.memory.memtable_bytes = siltstone::config::Bytes(32 << 10);
    config.compaction.l0_runs_trigger = 2;
    let engine = Engine::open(config).await.unwrap();
    let schema = readings_schema(one_second_windows());
    let table = engine.create_table("readings", schema).await.unwrap();
    let batch = |round: i64| {
        let rows: Vec<Reading> = (0..200).map(|at| (at * 37, None, Some(round))).collect();
        readings(&rows)
    };
    table.write(batch(0)).await.unwrap();
    let done = Arc::new(tokio_util::sync::CancellationToken::new());
    let mut readers = Vec::new();
    for _ in 0..3 {
        let (table, done) = (table.clone(), done.clone());
        readers.push(tokio::spawn(async move {
            let mut scans = 0;
            while !done.is_cancelled() {
                let snapshot = table.snapshot().await.unwrap();
                let now = reading_rows(&scan(&table, ScanRequest::all()).await);
                let first = seen(&snapshot).await;
                tokio::task::yield_now().await;
                for rows in [&now, &first, &seen(&snapshot).await] {
                    assert_eq!(rows.len(), 200);
                    let one = rows[0].2;
                    assert!(rows.iter().all(|row| row.2 == one), "a batch in part");
                }
                assert_eq!(first, seen(&snapshot).await);
                scans += 1;
            }
            scans
        }));
    }
    let writers: Vec<_> = (0..3)
        .map(|writer| {
            let table = table.clone();
            tokio::spawn(async move {
                for round in 0..40 {
                    let rows: Vec<Reading> = (0..200)
                        .map(|at| (at * 37, None, Some(writer * 1_000 + round)))
                        .collect();
                    table.write(readings(&rows)).await.unwrap();
                }
            })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    done.cancel();
    for reader in readers {
        assert!(reader.await.unwrap() > 0);
    }
    assert!(table.stats().flushes > 0, "nothing was flushed meanwhile");
    engine.close().await.unwrap();
}
