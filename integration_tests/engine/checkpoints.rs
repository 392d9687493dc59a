//! Checkpoints: what they show, for how long, and that nothing of it is deleted, with a grace of zero.

use std::{sync::Arc, time::Duration};

use siltstone::{
    clock::{Env, ManualClock},
    config::{EngineConfig, Millis},
    engine::{CheckpointKind, CheckpointView, Engine, ScanRequest, Table},
    error::ErrorKind,
    store::{
        Store,
        faulty::{Effect, Fault, Faults, Operation},
    },
    types::{Alteration, TimeRange},
};

use crate::support::{
    Reading, eventually, one_second_windows, quiet_config, reading_keys, reading_rows, readings,
    readings_schema, scan,
};

const NOW_MS: u64 = 1_000_000;

/// An engine with a small table on a store that obeys a script, under a clock that stands still, which deletes
/// without a grace.
pub struct Bench {
    pub config: EngineConfig,
    pub store: Store,
    pub faults: Arc<Faults>,
    pub clock: Arc<ManualClock>,
    pub engine: Engine,
    pub table: Table,
}

impl Bench {
    pub async fn new() -> Self {
        let (store, faults) = Store::open("memory:///").unwrap().with_faults();
        let mut config = quiet_config("memory:///");
        config.wal.mode = siltstone::config::WalMode::None;
        config.gc.grace = Millis(0);
        let clock = Arc::new(ManualClock::new(Duration::from_millis(NOW_MS)));
        let engine = open(&config, &store, &clock, 1).await;
        let schema = readings_schema(one_second_windows());
        let table = engine.create_table("readings", schema).await.unwrap();
        Self {
            config,
            store,
            faults,
            clock,
            engine,
            table,
        }
    }

    /// Closes the engine, and opens another one.
    pub async fn reopen(&mut self) {
        self.engine.close().await.unwrap();
        self.engine = open(&self.config, &self.store, &self.clock, 2).await;
        if let Ok(table) = self.engine.table("readings") {
            self.table = table;
        }
    }

    /// Writes and flushes a row for each of `ids`, all of one value.
    pub async fn write(&self, ids: std::ops::Range<i32>, value: i64) {
        let rows: Vec<Reading> = ids.map(|id| (10, Some(id), Some(value))).collect();
        self.table.write(readings(&rows)).await.unwrap();
        self.table.flush().await.unwrap();
    }

    /// Waits until so many obsolete SSTs are left, which checkpoints hold.
    pub async fn swept(&self, held: u64) {
        eventually("what is obsolete is deleted", || async {
            let stats = self.table.stats();
            (stats.obsolete_ssts, stats.obsolete_ssts_held) == (held, held)
        })
        .await;
    }

    /// Waits until sweeps that find something held have listed a few times more.
    pub async fn swept_again(&self) {
        let before = self.faults.count(Operation::List);
        eventually("sweeps go on", || async {
            self.faults.count(Operation::List) >= before + 10
        })
        .await;
    }

    /// Objects whose name contains `part`.
    pub async fn objects(&self, part: &str) -> Vec<String> {
        let objects = self.store.list("tables").await.unwrap();
        let names = objects.into_iter().map(|object| object.name);
        names.filter(|name| name.contains(part)).collect()
    }
}

pub async fn open(
    config: &EngineConfig,
    store: &Store,
    clock: &Arc<ManualClock>,
    seed: u64,
) -> Engine {
    let env = Env::seeded(clock.clone(), seed);
    let builder = Engine::builder(config.clone()).store(store.clone());
    builder.env(env).open().await.unwrap()
}

async fn rows_at(view: &CheckpointView) -> Vec<Reading> {
    let batches = view.scan(ScanRequest::all()).await.unwrap();
    let batches = batches.collect().await.unwrap();
    batches.iter().flat_map(reading_rows).collect()
}

fn rows(ids: std::ops::Range<i32>, value: i64) -> Vec<Reading> {
    ids.map(|id| (10, Some(id), Some(value))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_shows_the_same_through_everything() {
    let mut bench = Bench::new().await;
    bench.write(0..3, 1).await;
    // Not flushed yet.
    let late = [(20, Some(7), Some(1))];
    bench.table.write(readings(&late)).await.unwrap();
    let made = bench.table.create_checkpoint("monday", None).await.unwrap();
    assert_eq!((made.kind, made.expires_ms), (CheckpointKind::Named, None));
    assert_eq!((made.ssts, made.rows), (2, 4));
    let mut want = rows(0..3, 1);
    want.extend(late);

    bench.write(0..2, 2).await;
    let times = TimeRange { start: 15, end: 25 };
    bench.table.delete_range(times).await.unwrap();
    bench
        .table
        .delete(reading_keys(&[(10, Some(2))]))
        .await
        .unwrap();
    let renamed = Alteration::RenameColumn {
        from: "value".into(),
        to: "amount".into(),
    };
    bench.table.alter(&[renamed]).await.unwrap();
    bench.table.compact().await.unwrap();
    bench.swept(2).await;
    let now = scan(&bench.table, ScanRequest::all()).await;
    assert_eq!(reading_rows(&now), rows(0..2, 2));

    for _ in 0..2 {
        let view = bench.table.at_checkpoint("monday").await.unwrap();
        assert_eq!(rows_at(&view).await, want);
        assert_eq!(view.schema().columns().field(2).name(), "value");
        let keys = reading_keys(&[(10, Some(1)), (10, Some(9)), (20, Some(7))]);
        let found = view.get(keys).await.unwrap();
        assert_eq!(reading_rows(&found), [want[1], want[3]]);
        let limited = view.scan(ScanRequest::all().limit(1)).await.unwrap();
        assert_eq!(limited.collect().await.unwrap()[0].num_rows(), 1);
        drop(view);
        bench.reopen().await;
    }
    assert_eq!(bench.table.checkpoints().await.unwrap(), [made]);
    bench.table.delete_checkpoint("monday").await.unwrap();
    bench.swept(0).await;
    assert_eq!(bench.objects("/checkpoints/").await, [""; 0]);
    let ssts = bench.objects("/sst/").await;
    assert_eq!(ssts.len() as u64, bench.table.stats().ssts);
    let gone = bench.table.at_checkpoint("monday").await.unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn names_are_unique_while_they_last_and_lifetimes_can_be_changed() {
    let bench = Bench::new().await;
    bench.write(0..3, 1).await;
    let (table, hour) = (&bench.table, Duration::from_secs(3_600));
    let first = table.create_checkpoint("a", Some(hour)).await.unwrap();
    assert_eq!(first.expires_ms, Some(NOW_MS + 3_600_000));
    for (name, lifetime) in [("a", None), ("", None), ("b", Some(Duration::ZERO))] {
        let refused = table.create_checkpoint(name, lifetime).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{name:?}");
    }
    let taken = table.create_checkpoint("a", None).await.unwrap_err();
    assert!(taken.to_string().contains("\"a\""), "{taken}");
    for name in ["b", ""] {
        let kinds = [
            table
                .extend_checkpoint(name, None)
                .await
                .unwrap_err()
                .kind(),
            table.delete_checkpoint(name).await.unwrap_err().kind(),
            table.at_checkpoint(name).await.unwrap_err().kind(),
        ];
        assert_eq!(kinds, [ErrorKind::NotFound; 3]);
    }

    bench.write(0..3, 2).await;
    table.compact().await.unwrap();
    let longer = table.extend_checkpoint("a", Some(2 * hour)).await.unwrap();
    assert_eq!(longer.expires_ms, Some(NOW_MS + 7_200_000));
    assert_eq!(
        (longer.seq, longer.created_ms),
        (first.seq, first.created_ms)
    );
    bench.clock.advance(hour + hour / 2);
    bench.swept(1).await;
    let view = table.at_checkpoint("a").await.unwrap();
    assert_eq!(rows_at(&view).await, rows(0..3, 1));
    // Ends it early.
    let shorter = Some(Duration::from_millis(1));
    table.extend_checkpoint("a", shorter).await.unwrap();
    bench.clock.advance(Duration::from_millis(1));
    assert_eq!(table.checkpoints().await.unwrap(), []);
    let over = table.at_checkpoint("a").await.unwrap_err();
    assert_eq!(over.kind(), ErrorKind::NotFound);
    // What reads it holds it.
    eventually("the checkpoint is deleted", || async {
        bench.objects("/checkpoints/").await.is_empty()
    })
    .await;
    assert_eq!(rows_at(&view).await, rows(0..3, 1));
    drop(view);
    bench.swept(0).await;
    assert_eq!(bench.objects("/sst/").await.len(), 1);
    let again = table.create_checkpoint("a", None).await.unwrap();
    assert!(again.id > longer.id);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_table_keeps_what_checkpoints_hold_until_they_end() {
    let mut bench = Bench::new().await;
    let id = bench.table.stats().id;
    bench.write(0..3, 1).await;
    for (name, lifetime) in [("for good", None), ("short", Some(Duration::from_secs(1)))] {
        bench.table.create_checkpoint(name, lifetime).await.unwrap();
    }
    bench.write(3..6, 1).await;
    bench.engine.drop_table("readings").await.unwrap();
    for _ in 0..2 {
        eventually("the rest is deleted", || async {
            bench.objects("").await.len() == 3
        })
        .await;
        let dropped = bench.engine.dropped_tables().await.unwrap();
        let mut names: Vec<_> = dropped[&id].iter().map(|one| one.name.as_str()).collect();
        names.sort();
        assert_eq!(names, ["for good", "short"]);
        bench.reopen().await;
    }
    bench.clock.advance(Duration::from_secs(1));
    eventually("one has ended", || async {
        bench.objects("").await.len() == 2
    })
    .await;
    let engine = &bench.engine;
    let unknown = engine.delete_dropped_checkpoint(id, "short").await;
    assert_eq!(unknown.unwrap_err().kind(), ErrorKind::NotFound);
    engine
        .delete_dropped_checkpoint(id, "for good")
        .await
        .unwrap();
    eventually("nothing is left", || async {
        bench.objects("").await.is_empty()
    })
    .await;
    assert!(engine.dropped_tables().await.unwrap().is_empty());
}

/// A sweep has taken its candidates and listed the checkpoints, and reads one of them. Meanwhile another is made,
/// and what it holds is replaced.
#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_made_while_a_sweep_is_on_its_way_holds() {
    let bench = Bench::new().await;
    bench.write(0..3, 1).await;
    bench.table.create_checkpoint("first", None).await.unwrap();
    bench.write(0..3, 2).await;
    bench.table.compact().await.unwrap();
    bench.swept(1).await;
    let listed = Fault::new(Operation::Get, "/checkpoints/", Effect::Block);
    bench.faults.add(listed.times(1));
    eventually("the sweep waits", || async { bench.faults.blocked() == 1 }).await;
    bench.table.create_checkpoint("second", None).await.unwrap();
    bench.write(0..3, 3).await;
    bench.table.compact().await.unwrap();
    bench.faults.release();
    bench.swept(2).await;
    for (name, value) in [("first", 1), ("second", 2)] {
        let view = bench.table.at_checkpoint(name).await.unwrap();
        assert_eq!(rows_at(&view).await, rows(0..3, value));
    }
}

/// The object is on its way when compaction replaces what it names.
#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_that_comes_too_late_is_made_again_of_what_is_there() {
    let bench = Bench::new().await;
    bench.write(0..3, 1).await;
    bench
        .faults
        .add(Fault::new(Operation::Create, "/checkpoints/", Effect::Block).times(1));
    let table = bench.table.clone();
    let making = tokio::spawn(async move { table.create_checkpoint("a", None).await });
    eventually("the put waits", || async { bench.faults.blocked() == 1 }).await;
    bench.write(0..3, 2).await;
    bench.table.compact().await.unwrap();
    bench.swept(0).await;
    bench.faults.release();
    let made = making.await.unwrap().unwrap();
    assert_eq!(bench.objects("/checkpoints/").await.len(), 1);
    let view = bench.table.at_checkpoint("a").await.unwrap();
    assert_eq!((view.seq(), view.info()), (made.seq, made));
    assert_eq!(rows_at(&view).await, rows(0..3, 2));
}

/// Lost answers and a store that is away for a while.
#[tokio::test(flavor = "multi_thread")]
async fn faults_leave_one_checkpoint_or_none() {
    let bench = Bench::new().await;
    bench.write(0..3, 1).await;
    for (operation, effect) in [
        (Operation::Create, Effect::LoseAnswer),
        (Operation::Create, Effect::Fail),
        (Operation::List, Effect::Fail),
        (Operation::Get, Effect::Fail),
        (Operation::Delete, Effect::Fail),
        (Operation::Delete, Effect::LoseAnswer),
    ] {
        let fault = || Fault::new(operation, "/checkpoints", effect).times(2);
        bench.faults.add(fault());
        bench.table.create_checkpoint("a", None).await.unwrap();
        bench.faults.add(fault());
        bench.table.extend_checkpoint("a", None).await.unwrap();
        bench.faults.clear();
        assert_eq!(
            bench.objects("/checkpoints/").await.len(),
            1,
            "{operation:?} {effect:?}"
        );
        let view = bench.table.at_checkpoint("a").await.unwrap();
        assert_eq!(rows_at(&view).await, rows(0..3, 1));
        bench.table.delete_checkpoint("a").await.unwrap();
    }
}

/// The newer engine has replaced, and deleted, what the older one would hold.
#[tokio::test(flavor = "multi_thread")]
async fn a_fenced_engine_makes_no_checkpoint() {
    let bench = Bench::new().await;
    bench.write(0..3, 1).await;
    let newer = open(&bench.config, &bench.store, &bench.clock, 9).await;
    let table = newer.table("readings").unwrap();
    table.write(readings(&rows(0..3, 2))).await.unwrap();
    table.compact().await.unwrap();
    eventually("the input is deleted", || async {
        table.stats().obsolete_ssts == 0
    })
    .await;
    let fenced = bench.table.create_checkpoint("a", None).await.unwrap_err();
    assert_eq!(fenced.kind(), ErrorKind::Fenced);
    assert_eq!(bench.objects("/checkpoints/").await, [""; 0]);
    newer.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_that_cannot_be_read_keeps_everything() {
    let bench = Bench::new().await;
    bench.write(0..3, 1).await;
    bench.table.create_checkpoint("a", None).await.unwrap();
    let object = bench.objects("/checkpoints/").await.remove(0);
    bench.store.put(&object, "damaged".into()).await.unwrap();
    bench.write(0..3, 2).await;
    bench.write(0..3, 3).await;
    bench.table.compact().await.unwrap();
    eventually("a sweep has met it", || async {
        bench.table.stats().checkpoints_damaged == 1
    })
    .await;
    let stats = bench.table.stats();
    assert_eq!((stats.obsolete_ssts, stats.obsolete_ssts_held), (3, 3));
    let corrupt = bench.table.checkpoints().await.unwrap_err();
    assert_eq!(corrupt.kind(), ErrorKind::Corrupt);
    assert!(corrupt.to_string().contains(&object), "{corrupt}");
    // Others can be made and read all the same.
    bench.table.create_checkpoint("b", None).await.unwrap();
    let view = bench.table.at_checkpoint("b").await.unwrap();
    assert_eq!(rows_at(&view).await, rows(0..3, 3));
    bench.store.delete(&object).await.unwrap();
    bench.swept(0).await;
    assert_eq!(bench.objects("/sst/").await.len(), 1);
}

/// Rows that had expired, or were deleted by time, are as they were then, whatever the clock says later.
#[tokio::test(flavor = "multi_thread")]
async fn expiry_stands_still_at_a_checkpoint() {
    let bench = Bench::new().await;
    let ttl = Duration::from_secs(10);
    bench
        .table
        .alter(&[Alteration::SetTtl(Some(ttl))])
        .await
        .unwrap();
    let now = NOW_MS as i64;
    let written = [
        (now - 10_001, None, Some(1)),
        (now - 9_000, None, Some(2)),
        (now, None, Some(3)),
    ];
    bench.table.write(readings(&written)).await.unwrap();
    bench.table.create_checkpoint("a", None).await.unwrap();
    bench.clock.advance(2 * ttl);
    eventually("everything has expired", || async {
        bench.table.stats().ssts == 0
    })
    .await;
    bench.swept(2).await;
    let view = bench.table.at_checkpoint("a").await.unwrap();
    assert_eq!(rows_at(&view).await, written[1..]);
}
