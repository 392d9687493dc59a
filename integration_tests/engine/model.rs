//! The engine against a `BTreeMap`: whatever is done in whatever order, both give the same rows.
//!
//! `PROPTEST_CASES` sets the number of cases.

use std::{collections::BTreeMap, sync::OnceLock};

use arrow::array::RecordBatch;
use proptest::{prelude::*, test_runner::Config};
use siltstone::{
    config::{Bytes, EngineConfig},
    engine::{Engine, ScanRequest, Table},
    types::{Key, KeyRange, TimeRange},
};
use tempfile::tempdir;
use tokio::runtime::Runtime;

use crate::support::{
    Reading, one_second_windows, reading_keys, reading_rows, readings, readings_schema, scan,
    url_of,
};

type Id = (i64, Option<i32>);
type Model = BTreeMap<Id, Option<i64>>;

#[derive(Clone, Debug)]
enum Step {
    Write(Vec<Reading>),
    Delete(Vec<Id>),
    Flush,
    Compact,
    Reopen,
    Get(Vec<Id>),
    Scan(Scan),
}

#[derive(Clone, Debug)]
struct Scan {
    start: Option<Id>,
    end: Option<Id>,
    times: Option<(i64, i64)>,
    limit: Option<usize>,
    swapped: bool,
}

/// Few keys, so that they meet; in five windows, one of them before the epoch.
fn id() -> impl Strategy<Value = Id> {
    let id = prop_oneof![1 => Just(None), 4 => (-2..3_i32).prop_map(Some)];
    ((-3..15_i64).prop_map(|at| at * 250), id)
}

fn step() -> impl Strategy<Value = Step> {
    let row = (id(), proptest::option::weighted(0.8, any::<i64>()));
    let rows = proptest::collection::vec(row.prop_map(|((at, id), value)| (at, id, value)), 1..12);
    let ids = || proptest::collection::vec(id(), 1..6);
    let scan = (
        proptest::option::of(id()),
        proptest::option::of(id()),
        proptest::option::of((-1_000..4_000_i64, -1_000..4_000_i64)),
        proptest::option::of(0..20_usize),
        any::<bool>(),
    );
    let scan = scan.prop_map(|(start, end, times, limit, swapped)| Scan {
        start,
        end,
        times,
        limit,
        swapped,
    });
    prop_oneof![
        8 => rows.prop_map(Step::Write),
        3 => ids().prop_map(Step::Delete),
        3 => Just(Step::Flush),
        1 => Just(Step::Compact),
        1 => Just(Step::Reopen),
        2 => ids().prop_map(Step::Get),
        4 => scan.prop_map(Step::Scan),
    ]
}

fn cases() -> Config {
    let cases = std::env::var("PROPTEST_CASES").ok();
    Config {
        cases: cases.and_then(|cases| cases.parse().ok()).unwrap_or(24),
        failure_persistence: None,
        ..Config::default()
    }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn the_engine_agrees_with_a_map(steps in proptest::collection::vec(step(), 1..40)) {
        static RUNTIME: OnceLock<Runtime> = OnceLock::new();
        RUNTIME.get_or_init(|| Runtime::new().unwrap()).block_on(run(&steps));
    }
}

async fn run(steps: &[Step]) {
    let dir = tempdir().unwrap();
    let mut config = EngineConfig::new(url_of(dir.path()));
    config.compaction.l0_runs_trigger = 2;
    config.compaction.sst_bytes_target = Bytes(1 << 10);
    let mut engine = Engine::open(config.clone()).await.unwrap();
    let schema = readings_schema(one_second_windows());
    let mut table = engine.create_table("readings", schema).await.unwrap();
    let mut model = Model::new();
    for (at, step) in steps.iter().enumerate() {
        match step {
            Step::Write(rows) => {
                table.write(readings(rows)).await.unwrap();
                model.extend(rows.iter().map(|&(at, id, value)| ((at, id), value)));
            }
            Step::Delete(ids) => {
                table.delete(reading_keys(ids)).await.unwrap();
                model.retain(|id, _| !ids.contains(id));
            }
            Step::Flush => table.flush().await.unwrap(),
            Step::Compact => {
                table.compact().await.unwrap();
                assert!(table.stats().sst_rows >= model.len() as u64);
            }
            Step::Reopen => {
                engine.close().await.unwrap();
                engine = Engine::open(config.clone()).await.unwrap();
                table = engine.table("readings").unwrap();
            }
            Step::Get(ids) => {
                let mut ids = ids.clone();
                ids.sort_unstable();
                ids.dedup();
                let got = table.get(reading_keys(&ids)).await.unwrap();
                let wanted = ids
                    .iter()
                    .filter_map(|id| Some((id.0, id.1, *model.get(id)?)));
                assert_eq!(reading_rows(&got), wanted.collect::<Vec<_>>(), "step {at}");
            }
            Step::Scan(request) => check_scan(&table, &model, request, at).await,
        }
    }
    let everything = Scan {
        start: None,
        end: None,
        times: None,
        limit: None,
        swapped: false,
    };
    check_scan(&table, &model, &everything, steps.len()).await;
    engine.close().await.unwrap();
}

async fn check_scan(table: &Table, model: &Model, asked: &Scan, step: usize) {
    let bound = |id: &Option<Id>| -> Option<Key> {
        id.map(|id| table.schema().key_of(&reading_keys(&[id])).unwrap())
    };
    let keys = KeyRange {
        start: bound(&asked.start),
        end: bound(&asked.end),
    };
    let mut request = ScanRequest::all().keys(keys);
    if let Some((start, end)) = asked.times {
        request = request.times(TimeRange { start, end });
    }
    if let Some(limit) = asked.limit {
        request = request.limit(limit);
    }
    if asked.swapped {
        request = request.columns(["value", "id", "at"]);
    }
    let inside = |id: &Id| {
        asked.start.is_none_or(|start| *id >= start)
            && asked.end.is_none_or(|end| *id < end)
            && asked
                .times
                .is_none_or(|(start, end)| (start..end).contains(&id.0))
    };
    let wanted = model.iter().filter(|(id, _)| inside(id));
    let wanted = wanted.map(|(id, value)| (id.0, id.1, *value));
    let wanted: Vec<Reading> = wanted.take(asked.limit.unwrap_or(usize::MAX)).collect();
    let mut found: RecordBatch = scan(table, request).await;
    if asked.swapped {
        found = found.project(&[2, 1, 0]).unwrap();
    }
    assert_eq!(reading_rows(&found), wanted, "step {step}: {asked:?}");
}
