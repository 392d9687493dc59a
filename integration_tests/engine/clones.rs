//! Clones: they share bytes with their source, and nothing else; what they share is there until the last of them
//! needs it no more.

use siltstone::{
    engine::{CheckpointKind, Engine, ScanRequest, Table},
    error::ErrorKind,
    store::faulty::{Effect, Fault, Operation},
    types::{Alteration, TimeRange},
};

use crate::{
    checkpoints::{Bench, open},
    support::{
        Reading, eventually, one_second_windows, reading_keys, reading_rows, readings,
        readings_schema, scan,
    },
};

async fn rows_of(table: &Table) -> Vec<Reading> {
    reading_rows(&scan(table, ScanRequest::all()).await)
}

fn rows(ids: std::ops::Range<i32>, value: i64) -> Vec<Reading> {
    ids.map(|id| (10, Some(id), Some(value))).collect()
}

async fn write(table: &Table, ids: std::ops::Range<i32>, value: i64) {
    table.write(readings(&rows(ids, value))).await.unwrap();
    table.flush().await.unwrap();
}

/// Names of the checkpoints of clones in the folder of `table`.
async fn clones_of(table: &Table) -> Vec<String> {
    let checkpoints = table.checkpoints().await.unwrap();
    let clones = checkpoints.into_iter();
    let clones = clones.filter(|one| one.kind == CheckpointKind::Clone);
    clones.map(|one| one.name).collect()
}

fn id_of(table: &Table) -> String {
    table.stats().id.to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clone_shares_the_bytes_and_goes_its_own_way() {
    let mut bench = Bench::new().await;
    let many: Vec<Reading> = (0..50_000).map(|at| (at, None, Some(at * 7_919))).collect();
    bench.table.write(readings(&many)).await.unwrap();
    bench.table.flush().await.unwrap();
    // Hidden by a range delete, and not flushed.
    let times = TimeRange {
        start: 100,
        end: 200,
    };
    bench.table.delete_range(times).await.unwrap();
    bench
        .table
        .write(readings(&[(5, None, None)]))
        .await
        .unwrap();
    let mut want = many.clone();
    want.retain(|row| !(100..200).contains(&row.0));
    want[5].2 = None;
    bench.table.flush().await.unwrap();

    let (before, ssts) = (bench.store.stats(), bench.objects("/sst/").await);
    let clone = bench.engine.clone_table("readings", "clone").await.unwrap();
    let written = bench.store.stats().bytes_written - before.bytes_written;
    let stats = clone.stats();
    assert_eq!(stats.sst_bytes_shared, stats.sst_bytes);
    assert!(
        written < stats.sst_bytes / 4,
        "{written} of {}",
        stats.sst_bytes
    );
    assert_eq!(bench.objects("/sst/").await, ssts);
    assert!(rows_of(&clone).await == want);
    let found = clone
        .get(reading_keys(&[(5, None), (7, None), (150, None)]))
        .await
        .unwrap();
    assert_eq!(reading_rows(&found), [want[5], want[7]]);

    // Neither sees what is done to the other.
    write(&bench.table, 0..3, 1).await;
    write(&clone, 0..3, 2).await;
    clone
        .delete_range(TimeRange {
            start: 1_000,
            end: i64::MAX,
        })
        .await
        .unwrap();
    let renamed = Alteration::RenameColumn {
        from: "value".into(),
        to: "amount".into(),
    };
    clone.alter(&[renamed]).await.unwrap();
    let mut of_clone = want.clone();
    of_clone.retain(|row| row.0 < 1_000);
    of_clone.splice(11..11, rows(0..3, 2));
    let mut of_source = want;
    of_source.splice(11..11, rows(0..3, 1));
    for _ in 0..2 {
        for (name, want) in [("readings", &of_source), ("clone", &of_clone)] {
            let table = bench.engine.table(name).unwrap();
            assert!(rows_of(&table).await == *want, "{name}");
            table.compact().await.unwrap();
            assert!(rows_of(&table).await == *want, "{name}");
        }
        bench.reopen().await;
    }
    assert_eq!(
        bench
            .engine
            .table("clone")
            .unwrap()
            .stats()
            .sst_bytes_shared,
        0
    );
    // Both have rewritten everything.
    bench.swept(0).await;
    let clone = bench.engine.table("clone").unwrap();
    eventually("nothing is left of before", || async {
        let live = bench.table.stats().ssts + clone.stats().ssts;
        bench.objects("/sst/").await.len() as u64 == live
    })
    .await;
    assert_eq!(clones_of(&bench.table).await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_shared_outlives_the_source_and_goes_with_the_last_clone() {
    let mut bench = Bench::new().await;
    write(&bench.table, 0..3, 1).await;
    let source = id_of(&bench.table);
    let first = bench.engine.clone_table("readings", "first").await.unwrap();
    write(&first, 3..6, 1).await;
    // Of two homes.
    let second = bench.engine.clone_table("first", "second").await.unwrap();
    let (of_first, of_second) = (id_of(&first), id_of(&second));
    let mut held_by = clones_of(&bench.table).await;
    held_by.sort();
    let mut want = vec![of_first.clone(), of_second.clone()];
    want.sort();
    assert_eq!(held_by, want);
    assert_eq!(clones_of(&first).await, [of_second.as_str()]);
    assert_eq!(second.stats().sst_bytes_shared, second.stats().sst_bytes);

    for name in ["readings", "first"] {
        bench.engine.drop_table(name).await.unwrap();
    }
    for _ in 0..2 {
        eventually("what nobody shares is deleted", || async {
            bench.objects("/sst/").await.len() == 2
                && bench
                    .objects("/manifest/")
                    .await
                    .iter()
                    .all(|name| name.contains(&of_second))
        })
        .await;
        let second = bench.engine.table("second").unwrap();
        assert_eq!(rows_of(&second).await, rows(0..6, 1));
        bench.reopen().await;
    }
    // The first does not need it any more, the second does: one checkpoint of two is left in the source's folder.
    let of_source = || async {
        bench
            .objects("/checkpoints/")
            .await
            .iter()
            .filter(|name| name.contains(&source))
            .count()
    };
    eventually("the first clone holds nothing", || async {
        of_source().await == 1
    })
    .await;
    let second = bench.engine.table("second").unwrap();
    second.create_checkpoint("a", None).await.unwrap();
    write(&second, 0..6, 2).await;
    second.compact().await.unwrap();
    assert_eq!(second.stats().sst_bytes_shared, 0);
    eventually("the second is swept", || async {
        second.stats().obsolete_ssts == second.stats().obsolete_ssts_held
    })
    .await;
    let view = second.at_checkpoint("a").await.unwrap();
    second.delete_checkpoint("a").await.unwrap();
    // Its checkpoint did, and now a read does.
    bench.swept_again().await;
    let batches = view.scan(ScanRequest::all()).await.unwrap();
    let batches = batches.collect().await.unwrap();
    let found: Vec<Reading> = batches.iter().flat_map(reading_rows).collect();
    assert_eq!(found, rows(0..6, 1));
    drop(view);
    eventually("nothing is left but the second clone's", || async {
        bench
            .objects("")
            .await
            .iter()
            .all(|name| name.contains(&of_second))
    })
    .await;
    assert_eq!(rows_of(&second).await, rows(0..6, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_clone_is_kept_by_its_reads_and_checkpoints_and_lets_go() {
    let bench = Bench::new().await;
    write(&bench.table, 0..3, 1).await;
    let clone = bench.engine.clone_table("readings", "clone").await.unwrap();
    let id = clone.stats().id;
    clone.create_checkpoint("a", None).await.unwrap();
    let running = clone.scan(ScanRequest::all()).await.unwrap();
    bench.engine.drop_table("clone").await.unwrap();
    write(&bench.table, 0..3, 2).await;
    bench.table.compact().await.unwrap();
    bench.swept(1).await;
    let batches = running.collect().await.unwrap();
    assert_eq!(
        batches.iter().flat_map(reading_rows).collect::<Vec<_>>(),
        rows(0..3, 1)
    );
    // Another process still reads the checkpoint of the dropped clone.
    let mut config = bench.config.clone();
    config.reader.refresh = siltstone::config::Millis(5);
    let reader = Engine::reader(config).store(bench.store.clone());
    let reader = reader.open().await.unwrap();
    let at = reader.table_at(&id.to_string(), "a").await.unwrap();
    bench
        .engine
        .delete_dropped_checkpoint(id, "a")
        .await
        .unwrap();
    bench.swept_again().await;
    let found = at
        .scan(ScanRequest::all())
        .await
        .unwrap()
        .collect()
        .await
        .unwrap();
    assert_eq!(
        found.iter().flat_map(reading_rows).collect::<Vec<_>>(),
        rows(0..3, 1)
    );
    reader.close().await.unwrap();
    bench.swept(0).await;
    assert_eq!(bench.objects("/sst/").await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_follows_a_clone() {
    let bench = Bench::new().await;
    write(&bench.table, 0..3, 1).await;
    let clone = bench.engine.clone_table("readings", "clone").await.unwrap();
    let mut config = bench.config.clone();
    config.reader.refresh = siltstone::config::Millis(600_000 / 10);
    let reader = Engine::reader(config).store(bench.store.clone());
    let reader = reader.open().await.unwrap();
    let table = reader.table("clone").await.unwrap();
    let rows_at = || async {
        let batches = table
            .scan(ScanRequest::all())
            .await
            .unwrap()
            .collect()
            .await;
        batches
            .unwrap()
            .iter()
            .flat_map(reading_rows)
            .collect::<Vec<_>>()
    };
    assert_eq!(rows_at().await, rows(0..3, 1));
    write(&clone, 0..3, 2).await;
    clone.compact().await.unwrap();
    bench.engine.drop_table("readings").await.unwrap();
    bench.swept_again().await;
    assert_eq!(
        rows_at().await,
        rows(0..3, 1),
        "the reader holds what the clone shared"
    );
    table.refresh().await.unwrap();
    assert_eq!(rows_at().await, rows(0..3, 2));
    reader.close().await.unwrap();
    eventually("nothing is left but the clone's", || async {
        let id = id_of(&clone);
        bench
            .objects("")
            .await
            .iter()
            .all(|name| name.contains(&id))
    })
    .await;
}

/// Each request of a clone's making is lost once, or the engine ends in its middle.
#[tokio::test(flavor = "multi_thread")]
async fn a_clone_that_is_interrupted_is_whole_or_holds_nothing() {
    for (operation, name) in [
        (Operation::Create, "/checkpoints/"),
        (Operation::Create, "/manifest/"),
        (Operation::Create, "catalog/"),
    ] {
        for effect in [Effect::LoseAnswer, Effect::Fail, Effect::Block] {
            let mut bench = Bench::new().await;
            write(&bench.table, 0..3, 1).await;
            bench
                .faults
                .add(Fault::new(operation, name, effect).times(1));
            let engine = bench.engine.clone();
            let cloning =
                tokio::spawn(async move { engine.clone_table("readings", "clone").await });
            if effect == Effect::Block {
                eventually("the request waits", || async {
                    bench.faults.blocked() == 1
                })
                .await;
                // Another engine takes over, and the first goes on.
                let newer = open(&bench.config, &bench.store, &bench.clock, 5).await;
                bench.faults.release();
                let fenced = cloning.await.unwrap().unwrap_err();
                assert_eq!(fenced.kind(), ErrorKind::Fenced);
                let _ = bench.engine.close().await;
                bench.table = newer.table("readings").unwrap();
                bench.engine = newer;
            } else {
                let cloned = cloning.await.unwrap();
                let clone = cloned.unwrap_or_else(|error| panic!("{name} {effect:?}: {error}"));
                assert_eq!(rows_of(&clone).await, rows(0..3, 1));
                bench.engine.drop_table("clone").await.unwrap();
            }
            let missing = bench.engine.table("clone").unwrap_err();
            assert_eq!(missing.kind(), ErrorKind::NotFound);
            write(&bench.table, 0..3, 2).await;
            bench.table.compact().await.unwrap();
            bench.swept(0).await;
            assert_eq!(clones_of(&bench.table).await, [""; 0], "{name} {effect:?}");
            bench.engine.close().await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_cloned_is_refused() {
    let bench = Bench::new().await;
    let engine = &bench.engine;
    let missing = engine.clone_table("other", "clone").await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    for name in ["", "readings"] {
        let refused = engine.clone_table("readings", name).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid);
    }
    // An empty table is a table.
    let clone = engine.clone_table("readings", "clone").await.unwrap();
    assert_eq!(rows_of(&clone).await, []);
    write(&clone, 0..1, 1).await;
    let schema = readings_schema(one_second_windows());
    assert_eq!(clone.schema().options(), schema.options());
    assert_eq!(bench.objects("/checkpoints/").await, [""; 0]);
}
