//! What a manifest of many SSTs costs: opening it, and one commit. `cargo bench --bench manifest` measures
//! 100,000 SSTs; `SSTS=…` in the environment another number, in any profile. Not criterion's: what is
//! measured changes what the next measurement would find.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use siltstone::{
    clock::Env,
    manifest::{Edit, Manifest, SstRef},
    store::Store,
    types::{
        Epoch, Key, Seq, SstId, SstMeta, TableId, TableOptions, TableSchema, Window, Windowing,
    },
};

/// SSTs that one commit of the set-up adds.
const SSTS_A_COMMIT: u64 = 1_000;
/// Commits measured, enough for some snapshots among them.
const COMMITS: u64 = 600;

fn main() {
    let is_bench = std::env::args().any(|argument| argument == "--bench");
    let ssts = std::env::var("SSTS").ok().map(|ssts| ssts.parse());
    let ssts = ssts.transpose().expect("SSTS is a number");
    let ssts: u64 = ssts.unwrap_or(if is_bench { 100_000 } else { 2_000 });
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    for windows in [1, 1_000] {
        let dir = tempfile::tempdir().expect("a folder");
        let file = url::Url::from_directory_path(dir.path()).expect("a path");
        for url in ["memory:///", file.as_str()] {
            runtime.block_on(measure(url, ssts, windows));
        }
    }
}

async fn measure(url: &str, ssts: u64, windows: u64) {
    let store = Store::open(url).expect("a store");
    let table = TableId::from_parts(1, 1);
    let manifest = Manifest::create(&store, table, Epoch(1), schema(windows > 1), Env::default());
    let manifest = manifest.await.expect("a new manifest");
    for start in (0..ssts).step_by(SSTS_A_COMMIT as usize) {
        let numbers = start..(start + SSTS_A_COMMIT).min(ssts);
        let added: Vec<_> = numbers.map(|number| sst(number, windows)).collect();
        commit(&manifest, added, Vec::new()).await;
    }
    drop(manifest);

    let began = Instant::now();
    let manifest = Manifest::open(&store, table, Epoch(2), Env::default()).await;
    let opened = began.elapsed();
    let manifest = manifest.expect("the manifest opens");
    let live = manifest.version().ssts().count();
    assert_eq!(live as u64, ssts);

    // As a compaction does: four leave, one comes.
    let mut times: Vec<Duration> = Vec::new();
    for number in 0..COMMITS.min(ssts / 4) {
        let removed = (4 * number..4 * number + 4).map(|number| SstRef {
            window: window_at(number % windows, windows),
            id: SstId::flushed(1, number.into()),
        });
        let mut added = sst(ssts + number, windows).as_ref().clone();
        added.window = window_at(0, windows);
        added.times = Some((0, 0));
        let began = Instant::now();
        commit(&manifest, vec![Arc::new(added)], removed.collect()).await;
        times.push(began.elapsed());
    }
    times.sort();
    let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
    let scheme = url.split(':').next().unwrap_or_default();
    println!(
        "{ssts} SSTs in {windows} windows, {scheme}: open {opened:.2?}, commit {median:.2?} (median), {worst:.2?} (worst, with a snapshot)"
    );
}

async fn commit(manifest: &Manifest, added: Vec<Arc<SstMeta>>, removed: Vec<SstRef>) {
    let edit = Edit {
        flushed_seq: Some(Seq(1)),
        added,
        removed,
        ..Edit::default()
    };
    let committed = manifest.commit(|_| Ok(Some(edit.clone()))).await;
    committed.expect("an edit that fits");
}

fn schema(has_windows: bool) -> TableSchema {
    let time = DataType::Timestamp(TimeUnit::Second, None);
    let columns = Arc::new(Schema::new(vec![Field::new("time", time, false)]));
    let options = TableOptions {
        window: match has_windows {
            true => Windowing::Fixed(Duration::from_secs(1)),
            false => Windowing::None,
        },
        ..TableOptions::default()
    };
    let time = has_windows.then_some("time");
    TableSchema::new(columns, &["time"], time, options).expect("a schema that can be")
}

fn window_at(number: u64, windows: u64) -> Window {
    match windows {
        1 => Window::ALL,
        _ => Window::new(number as i64, number as i64 + 1),
    }
}

/// SSTs of level 1 that lie side by side.
fn sst(number: u64, windows: u64) -> Arc<SstMeta> {
    let key = Key::from(&[&[7; 24][..], &number.to_be_bytes()].concat()[..]);
    let window = (number % windows) as i64;
    Arc::new(SstMeta {
        id: SstId::flushed(1, number.into()),
        level: 1,
        window: window_at(number % windows, windows),
        bytes: 64 << 20,
        rows: 1_000_000,
        tombstones: 0,
        key_min: key.clone(),
        key_max: key,
        seq_min: Seq(1),
        seq_max: Seq(1),
        times: Some((window, window)),
        schema_version: 1,
        rows_hash: number,
        applied_seq: Seq(0),
        home: None,
    })
}
