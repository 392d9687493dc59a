//! Every planner, end to end: a table comes to rest after a bounded number of jobs, an idle engine asks the
//! store for nothing, and a compaction on request reports what it did.

use std::cell::Cell;
use std::time::Duration;

use siltstone::{
    config::{Bytes, EngineConfig, WalMode},
    engine::{CompactRange, Engine, ScanRequest, Table},
    store::{
        Store,
        faulty::{Faults, Operation},
    },
    types::{Alteration, KeyRange, PlannerKind, TableOptions, TimeRange},
};

use crate::support::{
    Reading, eventually, one_second_windows, reading_keys, reading_rows, readings, readings_schema,
    scan,
};

const PLANNERS: [PlannerKind; 3] = [
    PlannerKind::TimeWindow,
    PlannerKind::Leveled,
    PlannerKind::Tiered,
];

fn config() -> EngineConfig {
    let mut config = EngineConfig::new("memory:///");
    config.wal.mode = WalMode::None;
    config.compaction.l0_runs_trigger = 3;
    config.compaction.sst_bytes_target = Bytes(4 << 10);
    config.compaction.planning.level_bytes_min = Bytes(8 << 10);
    config.compaction.planning.level_ratio = 3;
    config.gc.grace.0 = 1_000;
    config
}

fn options(planner: PlannerKind, base: TableOptions) -> TableOptions {
    TableOptions {
        planner: Some(planner),
        ..base
    }
}

/// The rows of round `round`: half of them new, half of them over those of the round before.
fn rows(round: i64) -> Vec<Reading> {
    let ids = 0..40_i64;
    ids.map(|id| {
        (
            round * 20 + id,
            Some((id % 7) as i32),
            Some(round * 1_000 + id),
        )
    })
    .collect()
}

async fn write_rounds(table: &Table, rounds: std::ops::Range<i64>) {
    for round in rounds {
        table.write(readings(&rows(round))).await.unwrap();
        table.flush().await.unwrap();
    }
}

/// Requests so far, but for reads.
fn changes_and_lists(faults: &Faults) -> u64 {
    let operations = [
        Operation::Put,
        Operation::Create,
        Operation::List,
        Operation::Delete,
        Operation::Upload,
    ];
    operations
        .iter()
        .map(|&operation| faults.count(operation))
        .sum()
}

// On one thread, whose clock can be told to run ahead: ten minutes pass as fast as nothing happens in them.
#[tokio::test]
async fn tables_come_to_rest_and_an_idle_engine_asks_for_nothing() {
    let (store, faults) = Store::open("memory:///").unwrap().with_faults();
    let engine = Engine::builder(config()).store(store).open().await.unwrap();
    let mut tables = Vec::new();
    for planner in PLANNERS {
        for (name, base) in [
            ("windows", one_second_windows()),
            ("whole", TableOptions::default()),
        ] {
            let schema = readings_schema(options(planner, base));
            let name = format!("{planner} {name}");
            tables.push(engine.create_table(&name, schema).await.unwrap());
        }
    }
    for table in &tables {
        write_rounds(table, 0..30).await;
    }
    let mut before = Vec::new();
    for table in &tables {
        before.push(reading_rows(&scan(table, ScanRequest::all()).await));
    }
    engine.wait_compacted().await.unwrap();
    let jobs = engine.stats().compaction.jobs_committed;
    // 180 flushes, three to a job at the least; each level of each table may see a row once more.
    assert!((6..=200).contains(&jobs), "{jobs} jobs");
    eventually("what was replaced is deleted", async || {
        tables.iter().all(|table| table.stats().obsolete_ssts == 0)
    })
    .await;
    // A snapshot of the manifest may still follow.
    let last = Cell::new(0);
    eventually("nothing more is asked for", async || {
        let asked = changes_and_lists(&faults);
        last.replace(asked) == asked
    })
    .await;
    tokio::time::pause();
    let (asked, read) = (changes_and_lists(&faults), faults.count(Operation::Get));
    tokio::time::sleep(Duration::from_secs(600)).await;
    // Twice, soon after open and ten minutes later, all that is stored is listed: the tables, the probes, of each table
    // what there is, and its checkpoints.
    let listings = 2 * (2 + 2 * tables.len() as u64);
    let asked = changes_and_lists(&faults) - asked;
    assert!(asked <= listings, "{asked} requests of an idle engine");
    // The heartbeat: whether another engine has taken over, as often as obsolete SSTs are looked for.
    let beats = 600_000 / config().gc.grace.0;
    let read = faults.count(Operation::Get) - read;
    assert!(read <= beats + 1, "{read} reads in {beats} heartbeats");
    tokio::time::resume();
    assert_eq!(engine.stats().compaction.jobs_committed, jobs);
    for (table, before) in tables.iter().zip(before) {
        let stats = table.stats();
        assert!(stats.l0_runs_max < 3, "{}: {stats:?}", table.name());
        let now = reading_rows(&scan(table, ScanRequest::all()).await);
        assert_eq!(now, before, "{}", table.name());
    }
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_compaction_on_request_reports_and_leaves_one_run() {
    let mut config = config();
    config.compaction.mode = siltstone::config::CompactionMode::Off;
    // Nothing obsolete is deleted meanwhile.
    config.gc.grace.0 = 3_600_000;
    let engine = Engine::open(config).await.unwrap();
    for planner in PLANNERS {
        let schema = readings_schema(options(planner, one_second_windows()));
        let table = engine
            .create_table(&planner.to_string(), schema)
            .await
            .unwrap();
        write_rounds(&table, 0..6).await;
        table.delete(reading_keys(&[(0, Some(0))])).await.unwrap();
        table.flush().await.unwrap();
        let before = reading_rows(&scan(&table, ScanRequest::all()).await);
        let ssts = table.stats().ssts;
        let report = table.compact().await.unwrap();
        assert_eq!((report.jobs, report.ssts_read), (1, ssts), "{report:?}");
        // 7 batches, 241 rows: the last version of each key stays, but for the deleted one.
        assert_eq!(report.rows_read, 241);
        assert_eq!(report.rows_deleted, 1);
        assert_eq!(report.rows_written, before.len() as u64);
        let dropped = report.rows_shadowed + report.rows_deleted;
        assert_eq!(report.rows_read - dropped, report.rows_written);
        assert!(report.bytes_written > 0 && report.skipped.is_empty());
        let levels = table.stats().ssts_by_level;
        assert!(levels.len() == 1 && !levels.contains_key(&0), "{levels:?}");
        let again = table.compact().await.unwrap();
        assert_eq!(
            (again.jobs, again.ssts_moved),
            (0, 0),
            "nothing is left to do"
        );
        // A new window with one run: a move, and the object stays where it is.
        table
            .write(readings(&[(5_000, None, Some(1))]))
            .await
            .unwrap();
        let report = table.compact().await.unwrap();
        assert_eq!((report.jobs, report.ssts_moved), (0, 1), "{report:?}");
        assert_eq!(table.stats().obsolete_ssts, ssts);
        assert_eq!(
            reading_rows(&scan(&table, ScanRequest::all()).await).len(),
            before.len() + 1
        );
    }
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_range_is_compacted_and_the_rest_is_left() {
    let mut config = config();
    config.compaction.mode = siltstone::config::CompactionMode::Off;
    let engine = Engine::open(config).await.unwrap();
    let schema = readings_schema(one_second_windows());
    let table = engine.create_table("readings", schema).await.unwrap();
    for value in 0..2 {
        let rows = [0, 500, 1_000, 2_000].map(|at| (at, None, Some(value)));
        table.write(readings(&rows)).await.unwrap();
        table.flush().await.unwrap();
    }
    let range = CompactRange {
        keys: KeyRange::ALL,
        times: Some(TimeRange {
            start: 1_000,
            end: 2_000,
        }),
    };
    let report = table.compact_range(&range).await.unwrap();
    assert_eq!((report.jobs, report.rows_shadowed), (1, 1));
    assert_eq!(table.stats().ssts_by_level[&0], 4);
    let key = |at| table.schema().key_of(&reading_keys(&[(at, None)])).unwrap();
    let range = CompactRange {
        keys: KeyRange::closed(&key(2_000), &key(2_000)),
        times: None,
    };
    table.compact_range(&range).await.unwrap();
    assert_eq!(table.stats().ssts_by_level[&0], 2);
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_planner_can_be_changed_and_the_table_comes_to_rest_again() {
    let engine = Engine::open(config()).await.unwrap();
    let schema = readings_schema(TableOptions::default());
    let table = engine.create_table("readings", schema).await.unwrap();
    let mut round = 0;
    for planner in PLANNERS.into_iter().rev().chain(PLANNERS) {
        let change = Alteration::SetPlanner(Some(planner));
        table.alter(&[change]).await.unwrap();
        write_rounds(&table, round..round + 10).await;
        round += 10;
        engine.wait_compacted().await.unwrap();
        assert!(table.stats().l0_runs_max < 3);
        let found = reading_rows(&scan(&table, ScanRequest::all()).await);
        let last: std::collections::BTreeMap<_, _> = (0..round)
            .flat_map(rows)
            .map(|(at, id, value)| ((at, id), value))
            .collect();
        let wanted: Vec<Reading> = last.into_iter().map(|((at, id), v)| (at, id, v)).collect();
        assert_eq!(found, wanted, "{planner}");
    }
    engine.close().await.unwrap();
}
