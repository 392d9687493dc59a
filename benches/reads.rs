//! What reads cost: scans and gets of a year of flights, each beside what it is compared with, one after the other in
//! turn, with the requests and bytes that they take from the store.
//!
//! Times are medians over `ROUNDS` (default 15). On one core (`taskset -c 0`) a scan has one thread, as the plain
//! Parquet reader has; on more it shares the pieces out.

#[path = "../src/bin/siltstone/flights.rs"]
#[allow(dead_code, reason = "a bench uses its part")]
mod flights;

use std::{
    fs::File,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use arrow::{
    array::{BooleanArray, Int64Array, RecordBatch, UInt32Array},
    compute::{filter_record_batch, kernels::cmp, prep_null_mask_filter, take_record_batch},
};
use futures::StreamExt;
use parquet::arrow::{ProjectionMask, arrow_reader::ParquetRecordBatchReaderBuilder};
use siltstone::{
    config::{Bytes, CompactionMode, EngineConfig, WalMode},
    engine::{Engine, ScanRequest, ScanStats, Table},
    manifest::inspect::{self, SstLine},
    store::StoreStats,
    types::{OP_COLUMN, SEQ_COLUMN, column},
};
use tokio::runtime::Runtime;

use self::flights::Flights;

const SOURCE: &[u8] = include_bytes!("../examples/data/flights.parquet");
const NARROW: [&str; 2] = ["carrier", "distance"];
/// Minutes: about one flight in three hundred is as late.
const LATE: i64 = 300;
const GETS: usize = 100;

/// A root with all flights, as they landed, in one table.
struct Root {
    config: EngineConfig,
    /// The live SSTs as plain Parquet.
    files: Vec<PathBuf>,
}

impl Root {
    /// Merged, or in as many SSTs as flushes made, the windows of each flight three times.
    async fn new(dir: &Path, merged: bool) -> Self {
        let root = format!("file://{}", dir.display());
        let mut config = EngineConfig::new(root);
        config.wal.mode = WalMode::None;
        config.memory.memtable_bytes = Bytes::mib(8);
        config.compaction.mode = CompactionMode::Off;
        let flights = Flights::read(SOURCE.into(), usize::MAX).expect("the source is whole");
        let engine = Engine::open(config.clone()).await.expect("an engine opens");
        let schema = flights.table_schema().expect("the schema fits");
        let table = engine
            .create_table("flights", schema)
            .await
            .expect("a new table");
        for batch in flights.replay(4_096).expect("the source fits") {
            table.write(batch.expect("a batch")).await.expect("a write");
        }
        match merged {
            true => drop(table.compact().await.expect("a compaction")),
            false => table.flush().await.expect("a flush"),
        }
        let id = table.stats().id;
        let manifest = inspect::manifest(engine.store(), id).await;
        let version = manifest.expect("a manifest").version.expect("a version");
        // Those that were replaced are in the folder, too, for a while.
        let file = |sst: &SstLine| dir.join(format!("tables/{id}/sst/{}.parquet", sst.id));
        let files = version.ssts.iter().map(file).collect();
        engine.close().await.expect("a close");
        Self { config, files }
    }

    async fn open(&self) -> (Engine, Table) {
        let engine = Engine::open(self.config.clone())
            .await
            .expect("an engine opens");
        let table = engine.table("flights").expect("the table is there");
        (engine, table)
    }
}

/// Rows of `files` through the plain Parquet reader: `columns`, or all but those of the engine.
fn read_plainly(
    files: &[PathBuf],
    columns: Option<&[&str]>,
    keep: impl Fn(&RecordBatch) -> BooleanArray,
) -> usize {
    let mut rows = 0;
    for file in files {
        let file = File::open(file).expect("a file");
        let builder = ParquetRecordBatchReaderBuilder::try_new(file).expect("a parquet file");
        let schema = builder.schema().clone();
        let names = schema.fields().iter().map(|field| field.name().as_str());
        let names: Vec<&str> = match columns {
            Some(columns) => columns.to_vec(),
            None => names
                .filter(|name| ![SEQ_COLUMN, OP_COLUMN].contains(name))
                .collect(),
        };
        let mask = ProjectionMask::columns(builder.parquet_schema(), names);
        let reader = builder.with_projection(mask).with_batch_size(8_192);
        for batch in reader.build().expect("a reader") {
            let batch = batch.expect("a batch");
            let keep = keep(&batch);
            rows += match keep.true_count() == batch.num_rows() {
                true => std::hint::black_box(batch).num_rows(),
                false => {
                    std::hint::black_box(filter_record_batch(&batch, &keep).expect("a filter"))
                        .num_rows()
                }
            };
        }
    }
    rows
}

fn everything(batch: &RecordBatch) -> BooleanArray {
    BooleanArray::from(vec![true; batch.num_rows()])
}

fn late(batch: &RecordBatch) -> BooleanArray {
    let delays = batch.column_by_name("dep_delay").expect("it is there");
    let late = cmp::gt(delays, &Int64Array::new_scalar(LATE)).expect("integers");
    // A delay that is not known is not late.
    prep_null_mask_filter(&late)
}

/// One way to do something, and what it took.
struct Case<'a> {
    name: String,
    run: Box<dyn FnMut() -> usize + 'a>,
    times: Vec<Duration>,
}

impl<'a> Case<'a> {
    fn new(name: &str, run: impl FnMut() -> usize + 'a) -> Self {
        Self {
            name: name.to_owned(),
            run: Box::new(run),
            times: Vec::new(),
        }
    }

    fn median(&mut self) -> Duration {
        self.times.sort_unstable();
        self.times[self.times.len() / 2]
    }
}

/// Runs all cases in turn, and prints each with its time as a multiple of the first one's.
fn compare(title: &str, mut cases: Vec<Case<'_>>) {
    let rounds = std::env::var("ROUNDS")
        .ok()
        .and_then(|rounds| rounds.parse().ok())
        .unwrap_or(15);
    let rows: Vec<usize> = cases.iter_mut().map(|case| (case.run)()).collect();
    assert!(
        rows.windows(2).all(|pair| pair[0] == pair[1]),
        "{title}: {rows:?} rows"
    );
    for _ in 0..rounds {
        for case in &mut cases {
            let started = Instant::now();
            assert_eq!((case.run)(), rows[0], "{}", case.name);
            case.times.push(started.elapsed());
        }
    }
    println!("\n{title}, {} rows", rows[0]);
    let first = cases[0].median();
    for case in &mut cases {
        let median = case.median();
        let ratio = median.as_secs_f64() / first.as_secs_f64();
        println!(
            "  {:<44} {:>9.2} ms  x {ratio:.2}",
            case.name,
            median.as_secs_f64() * 1e3
        );
    }
}

async fn count(table: &Table, request: ScanRequest) -> (usize, ScanStats) {
    let mut scan = table.scan(request).await.expect("a scan");
    let mut rows = 0;
    while let Some(batch) = scan.next().await {
        rows += std::hint::black_box(batch.expect("a batch")).num_rows();
    }
    (rows, scan.stats())
}

/// Prints what one scan takes from the store.
fn show(runtime: &Runtime, root: &Root, name: &str, request: ScanRequest) {
    runtime.block_on(async {
        let (engine, table) = root.open().await;
        let before = engine.store().stats();
        let (rows, stats) = count(&table, request).await;
        let (requests, bytes) = since(&before, &engine.store().stats());
        println!(
            "  {name}: {rows} rows, {requests} requests, {} KiB",
            bytes >> 10
        );
        println!("    {stats:?}");
        engine.close().await.expect("a close");
    });
}

fn since(before: &StoreStats, after: &StoreStats) -> (u64, u64) {
    let gets = |stats: &StoreStats| {
        stats
            .requests
            .get("get")
            .map_or(0, |requests| requests.done)
    };
    (
        gets(after) - gets(before),
        after.bytes_read - before.bytes_read,
    )
}

fn gets(runtime: &Runtime, root: &Root, keys: &RecordBatch) {
    let one = |table: &Table, at: usize| {
        let key = keys.slice(at, 1);
        runtime.block_on(table.get(key)).expect("a get").num_rows()
    };
    println!("\npoint gets, {GETS} keys one by one, and at once");
    let (engine, table) = runtime.block_on(root.open());
    for round in ["cold", "warm"] {
        let before = engine.store().stats();
        let started = Instant::now();
        let found: usize = (0..GETS).map(|at| one(&table, at)).sum();
        let time = started.elapsed();
        let (requests, bytes) = since(&before, &engine.store().stats());
        println!(
            "  {round}: {found} found, {:.0} µs each, {requests} requests, {} KiB",
            time.as_secs_f64() * 1e6 / GETS as f64,
            bytes >> 10
        );
    }
    let started = Instant::now();
    let found = runtime
        .block_on(table.get(keys.clone()))
        .expect("a get")
        .num_rows();
    println!(
        "  warm, at once: {found} found, {:.0} µs a key",
        started.elapsed().as_secs_f64() * 1e6 / GETS as f64
    );
    runtime.block_on(engine.close()).expect("a close");
}

fn main() {
    let runtime = Runtime::new().expect("a runtime");
    let dirs = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    let merged = runtime.block_on(Root::new(dirs[0].path(), true));
    let runs = runtime.block_on(Root::new(dirs[1].path(), false));
    let files = merged.files.clone();
    let (engine, table) = runtime.block_on(merged.open());
    let (runs_engine, runs_table) = runtime.block_on(runs.open());
    let scan = |table: &Table, request: ScanRequest| runtime.block_on(count(table, request)).0;

    compare(
        "all columns of all rows",
        vec![
            Case::new("plain parquet reader, compacted files", || {
                read_plainly(&files, None, everything)
            }),
            Case::new("scan, compacted", || scan(&table, ScanRequest::all())),
            Case::new("scan, overlapping runs", || {
                scan(&runs_table, ScanRequest::all())
            }),
            Case::new("scan, compacted, descending", || {
                scan(&table, ScanRequest::all().descending())
            }),
        ],
    );
    compare(
        "two columns of all rows",
        vec![
            Case::new("plain parquet reader, compacted files", || {
                read_plainly(&files, Some(&NARROW), everything)
            }),
            Case::new("scan, compacted", || {
                scan(&table, ScanRequest::all().columns(NARROW))
            }),
            Case::new("scan, overlapping runs", || {
                scan(&runs_table, ScanRequest::all().columns(NARROW))
            }),
        ],
    );
    let selective = || ScanRequest::all().filter(column("dep_delay").gt(LATE));
    compare(
        "departures later than five hours",
        vec![
            Case::new("plain parquet reader, filtered afterwards", || {
                read_plainly(&files, None, late)
            }),
            Case::new("scan, compacted", || scan(&table, selective())),
            Case::new("scan, overlapping runs", || scan(&runs_table, selective())),
        ],
    );
    let day = || {
        ScanRequest::all().filter(
            column("time_hour").gt_eq("2013-07-01T00:00:00Z")
                & column("time_hour").lt("2013-07-02T00:00:00Z")
                & column("carrier").eq("UA"),
        )
    };
    // What follows opens the roots anew.
    runtime.block_on(engine.close()).expect("a close");
    runtime.block_on(runs_engine.close()).expect("a close");
    println!("\nwhat they take from the store, cold");
    show(&runtime, &merged, "everything", ScanRequest::all());
    show(
        &runtime,
        &merged,
        "two columns",
        ScanRequest::all().columns(NARROW),
    );
    show(&runtime, &merged, "later than five hours", selective());
    show(
        &runtime,
        &runs,
        "later than five hours, overlapping runs",
        selective(),
    );
    show(&runtime, &merged, "one carrier on one day", day());
    show(
        &runtime,
        &merged,
        "the last ten",
        ScanRequest::all().descending().limit(10),
    );

    let flights = Flights::read(SOURCE.into(), usize::MAX).expect("the source is whole");
    let schema = flights.table_schema().expect("the schema fits");
    let keys = flights
        .rows()
        .project(schema.key())
        .expect("the key's columns");
    let every = keys.num_rows() / GETS;
    let some = UInt32Array::from_iter_values((0..GETS).map(|at| (at * every) as u32));
    gets(
        &runtime,
        &merged,
        &take_record_batch(&keys, &some).expect("some keys"),
    );
}
