//! How fast the planner looks through a version, by its number of SSTs.

use std::{collections::HashSet, hint::black_box, sync::Arc, time::Duration};

use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use siltstone::{
    compaction::{
        Claimed,
        planner::{PlannerConfig, Situation, plan},
    },
    config::CompactionConfig,
    manifest::{Edit, Pins, Version},
    types::{Key, Seq, SstId, SstMeta, TableOptions, TableSchema, Window},
};

/// Level-0 runs of each window; every other window has enough of them for a plan.
const L0_RUNS: [u64; 2] = [2, 6];
/// SSTs of each window's level 1.
const LEVEL_1_SSTS: u64 = 10;
const HOUR: i64 = 3_600;

/// A version of `windows` windows, and its number of SSTs.
fn version(windows: i64) -> (Version, usize) {
    let time = DataType::Timestamp(TimeUnit::Second, None);
    let columns = Arc::new(Schema::new(vec![Field::new("time", time, false)]));
    let options = TableOptions {
        window: Duration::from_secs(3_600).into(),
        ..TableOptions::default()
    };
    let schema = TableSchema::new(columns, &["time"], Some("time"), options);
    let version = Version::new(schema.expect("a schema that can be"));
    let mut edit = Edit::default();
    for window in 0..windows {
        let runs = L0_RUNS[window as usize % L0_RUNS.len()];
        let mut add = |level, keys: (u64, u64)| {
            let id = SstId::flushed(1, edit.added.len() as u128);
            edit.added.push(Arc::new(sst(
                id,
                level,
                Window::new(window * HOUR, (window + 1) * HOUR),
                keys,
            )));
        };
        (0..runs).for_each(|_| add(0, (0, LEVEL_1_SSTS)));
        (0..LEVEL_1_SSTS).for_each(|part| add(1, (part, part)));
    }
    let version = version.apply(&edit).expect("an edit that fits");
    (version, edit.added.len())
}

fn sst(id: SstId, level: u8, window: Window, keys: (u64, u64)) -> SstMeta {
    let key = |number: u64| Key::from(&number.to_be_bytes()[..]);
    SstMeta {
        id,
        level,
        window,
        bytes: 64 << 20,
        rows: 1_000_000,
        tombstones: 0,
        key_min: key(keys.0),
        key_max: key(keys.1),
        seq_min: Seq(1),
        seq_max: Seq(2),
        times: None,
        schema_version: 1,
        rows_hash: 0,
        applied_seq: Seq(0),
        home: None,
    }
}

fn planner(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("planner");
    let config = PlannerConfig::from(&CompactionConfig::default());
    for windows in [10, 1_000] {
        let (version, ssts) = version(windows);
        let (claimed, held) = (Claimed::default(), HashSet::new());
        let pins = Pins {
            read_points: Vec::new(),
            expiry: None,
        };
        let situation = Situation {
            version: &version,
            claimed: &claimed,
            held: &held,
            pins: &pins,
            now_ms: 1,
        };
        group.throughput(Throughput::Elements(ssts as u64));
        group.bench_function(BenchmarkId::new("plan, SSTs", ssts), |bencher| {
            bencher.iter(|| plan(black_box(&situation), &config));
        });
    }
    group.finish();
}

criterion_group!(benches, planner);
criterion_main!(benches);
