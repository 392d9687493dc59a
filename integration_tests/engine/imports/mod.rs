//! Bulk load: an import does what writing the same rows would, at once, whatever happens meanwhile.

mod meanwhile;

use std::{sync::Arc, time::Duration};

use arrow::array::{RecordBatch, UInt32Array, UInt64Array};
use futures::{Stream, StreamExt, stream};
use rand::{Rng, SeedableRng, rngs::SmallRng, seq::SliceRandom};
use siltstone::{
    config::{Bytes, EngineConfig, Millis},
    engine::{Engine, ImportOptions, ImportReport, ScanRequest, Table},
    error::{ErrorKind, Result},
    store::{
        Store,
        faulty::{Effect, Fault, Faults, Operation},
        layout,
    },
    types::{TableOptions, TableSchema, Windowing, WriteMode},
};
use tempfile::tempdir;

use crate::support::{
    Reading, assert_same, eventually, flights,
    flights::{Answers, Flights},
    last_of_each_key, one_second_windows, quiet_config, reading_rows, readings, readings_schema,
    scan, small_config, url_of, within,
};

fn sorted() -> ImportOptions {
    ImportOptions {
        sorted: true,
        ..ImportOptions::default()
    }
}

/// So little memory that every batch is sorted by itself.
fn spilling() -> ImportOptions {
    ImportOptions {
        memory_bytes: 1,
        ..ImportOptions::default()
    }
}

fn batches(batches: &[RecordBatch]) -> impl Stream<Item = Result<RecordBatch>> + use<> {
    stream::iter(batches.to_vec()).map(Ok)
}

async fn rows(table: &Table) -> Vec<Reading> {
    reading_rows(&scan(table, ScanRequest::all()).await)
}

/// A table over memory with scripted faults, and no WAL.
struct Bench {
    store: Store,
    faults: Arc<Faults>,
    engine: Engine,
    table: Table,
}

impl Bench {
    async fn new(options: TableOptions) -> Self {
        Self::with(quiet(), readings_schema(options)).await
    }

    async fn with(config: EngineConfig, schema: TableSchema) -> Self {
        let (store, faults) = Store::open("memory:///").unwrap().with_faults();
        let engine = Engine::builder(config).store(store.clone());
        let engine = engine.open().await.unwrap();
        let table = engine.create_table("readings", schema).await.unwrap();
        Self {
            store,
            faults,
            engine,
            table,
        }
    }

    async fn objects(&self) -> usize {
        let folder = layout::ssts(self.table.stats().id);
        self.store.list(&folder).await.unwrap().len()
    }

    async fn import(&self, rows: &[Reading], options: ImportOptions) -> ImportReport {
        let parts: Vec<_> = rows.chunks(50).map(readings).collect();
        let imported = self.table.import(batches(&parts), options);
        imported.await.unwrap()
    }
}

fn quiet() -> EngineConfig {
    let mut config = quiet_config("memory:///");
    config.wal.mode = siltstone::config::WalMode::None;
    config.compaction.sst_bytes_target = Bytes(1 << 10);
    config.gc.grace = Millis(0);
    config
}

/// Batches of random rows over few keys and a handful of windows.
fn random_batches(random: &mut SmallRng, count: usize) -> Vec<RecordBatch> {
    let row = |random: &mut SmallRng| -> Reading {
        let id = random.random_bool(0.9).then(|| random.random_range(0..6));
        let value = random.random_bool(0.8).then(|| random.random());
        (random.random_range(-1_500..3_500) / 100 * 100, id, value)
    };
    (0..count)
        .map(|_| {
            let rows = random.random_range(0..60);
            readings(&(0..rows).map(|_| row(random)).collect::<Vec<_>>())
        })
        .collect()
}

/// The rows of `batches` as one batch in key order, later ones after earlier ones of their key.
fn in_key_order(schema: &TableSchema, batches: &[RecordBatch]) -> RecordBatch {
    let all = arrow::compute::concat_batches(schema.columns(), batches).unwrap();
    let keys = schema.key_encoder().encode(&all).unwrap();
    let mut order: Vec<u64> = (0..all.num_rows() as u64).collect();
    order.sort_by(|&left, &right| keys.row(left as usize).cmp(&keys.row(right as usize)));
    arrow::compute::take_record_batch(&all, &UInt64Array::from(order)).unwrap()
}

/// `batch` in pieces.
fn pieces(random: &mut SmallRng, batch: &RecordBatch) -> Vec<RecordBatch> {
    let mut pieces = Vec::new();
    let mut start = 0;
    while start < batch.num_rows() {
        let rows = random.random_range(1..40).min(batch.num_rows() - start);
        pieces.push(batch.slice(start, rows));
        start += rows;
    }
    pieces
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_does_what_writing_the_same_rows_does() {
    let mut random = SmallRng::seed_from_u64(11);
    for round in 0..40 {
        let write_mode = match round % 3 {
            0 => WriteMode::Append,
            _ => WriteMode::Upsert,
        };
        let window = match round % 4 {
            0 => Windowing::None,
            1 => Windowing::Auto,
            _ => Duration::from_secs(1).into(),
        };
        let bench = Bench::new(TableOptions {
            write_mode,
            window,
            ..TableOptions::default()
        })
        .await;
        let schema = bench.table.schema();
        let mut written = Vec::new();
        for step in 0..4 {
            let count = random.random_range(0..6);
            let new = random_batches(&mut random, count);
            match step % 2 {
                0 => {
                    for batch in &new {
                        bench.table.write(batch.clone()).await.unwrap();
                    }
                }
                _ => {
                    let (rows, options) = match random.random_range(0..3) {
                        0 => (new.clone(), ImportOptions::default()),
                        1 => (new.clone(), spilling()),
                        _ => {
                            let ordered = in_key_order(&schema, &new);
                            (pieces(&mut random, &ordered), sorted())
                        }
                    };
                    let report = bench.table.import(batches(&rows), options).await.unwrap();
                    let all: usize = new.iter().map(RecordBatch::num_rows).sum();
                    assert_eq!(report.rows_read, all as u64);
                }
            }
            written.extend(new);
            let want = match write_mode {
                WriteMode::Append => in_key_order(&schema, &written),
                WriteMode::Upsert if written.iter().all(|batch| batch.num_rows() == 0) => {
                    readings(&[])
                }
                WriteMode::Upsert => last_of_each_key(&schema, &written),
            };
            let found = rows(&bench.table).await;
            let (mut want, mut have) = (reading_rows(&want), found.clone());
            if write_mode == WriteMode::Append {
                // In which order equal keys come is open.
                want.sort();
                have.sort();
            }
            assert_eq!(have, want, "round {round}, step {step}");
        }
        let before = rows(&bench.table).await;
        bench.table.compact().await.unwrap();
        let mut after = rows(&bench.table).await;
        if write_mode == WriteMode::Append {
            after.sort_by_key(|row| (row.0, row.1));
        }
        assert_eq!(after.len(), before.len(), "round {round}, compacted");
        bench.engine.collect_garbage().await.unwrap();
        assert_eq!(bench.objects().await as u64, bench.table.stats().ssts);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_year_of_flights_gives_the_published_answers_however_it_comes() {
    let flights = flights(usize::MAX);
    let landed = flights.landed().unwrap();
    let mut shuffled: Vec<u32> = (0..landed.num_rows() as u32).collect();
    shuffled.shuffle(&mut SmallRng::seed_from_u64(5));
    let shuffled =
        arrow::compute::take_record_batch(&landed, &UInt32Array::from(shuffled)).unwrap();
    let few = ImportOptions {
        memory_bytes: 24 << 20,
        ..ImportOptions::default()
    };
    for (rows, options, spills) in [
        (&landed, sorted(), false),
        (&shuffled, few, true),
        (&shuffled, ImportOptions::default(), false),
    ] {
        let (dir, table) = flights_table(&flights).await;
        let parts = (0..rows.num_rows()).step_by(20_000);
        let parts = parts.map(|at| rows.slice(at, (rows.num_rows() - at).min(20_000)));
        let parts: Vec<_> = parts.collect();
        let report = table.import(batches(&parts), options).await.unwrap();
        assert_eq!((report.rows, report.ssts_in_level_0), (336_776, 0));
        assert_eq!(report.rows_spilled > 0, spills, "{report:?}");
        let scanned = scan(&table, ScanRequest::all()).await;
        assert_same(&landed, &scanned);
        let mut answers = Answers::of(&scanned).unwrap();
        let published = Answers::published();
        answers
            .carriers
            .retain(|carrier, _| published.carriers.contains_key(carrier));
        assert_eq!(answers, published);
        drop(dir);
    }
}

async fn flights_table(flights: &Flights) -> (tempfile::TempDir, Table) {
    let dir = tempdir().unwrap();
    let engine = Engine::open(small_config(&url_of(dir.path())))
        .await
        .unwrap();
    let schema = flights.table_schema().unwrap();
    let table = engine.create_table("flights", schema).await.unwrap();
    (dir, table)
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_are_not_sorted_although_they_should_be_are_named() {
    for options in [one_second_windows(), TableOptions::default()] {
        let bench = Bench::new(options).await;
        let parts = [
            readings(&[(1, None, None), (2, None, None), (2, None, Some(1))]),
            readings(&[(2, Some(1), None), (1_700, None, None)]),
            readings(&[(1_800, Some(2), None), (1_800, Some(1), None)]),
        ];
        let error = bench
            .table
            .import(batches(&parts), sorted())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        let message = error.to_string();
        assert!(
            message.contains("row 6 ") && message.contains("at, id"),
            "{message}"
        );
        assert_eq!(
            (rows(&bench.table).await, bench.objects().await),
            (vec![], 0)
        );
        // The next one is not held up.
        assert_eq!(bench.import(&[(5, None, None)], sorted()).await.rows, 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_imported_leaves_nothing() {
    let bench = Bench::new(one_second_windows()).await;
    bench
        .table
        .write(readings(&[(1, None, Some(1))]))
        .await
        .unwrap();
    bench.table.flush().await.unwrap();
    let many: Vec<Reading> = (0..500).map(|at| (at * 10, None, Some(at))).collect();
    let parts: Vec<_> = many.chunks(100).map(readings).collect();
    let wrong = readings(&[(1, None, None)]).project(&[0, 1]).unwrap();
    let lacking = [&parts[..], &[wrong]].concat();
    let error = bench
        .table
        .import(batches(&lacking), spilling())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let message = error.to_string();
    assert!(
        message.contains("\"value\"") && message.contains("rows from 500"),
        "{message}"
    );

    let broken = batches(&parts).chain(stream::iter([Err(siltstone::Error::corrupt("source"))]));
    let error = bench.table.import(broken, spilling()).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.message()),
        (ErrorKind::Corrupt, "source")
    );

    for operation in [Operation::Put, Operation::Get] {
        bench
            .faults
            .add(Fault::new(operation, "sst", Effect::Fail).times(1));
        let error = bench
            .table
            .import(batches(&parts), spilling())
            .await
            .unwrap_err();
        assert!(error.is_unavailable(), "{error}");
        bench.faults.clear();
    }
    assert_eq!(bench.objects().await, 1);
    assert_eq!(rows(&bench.table).await, [(1, None, Some(1))]);
    let pending = bench.engine.collect_garbage().await.unwrap().kept;
    assert!(!pending.contains_key("being_written"), "{pending:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_that_is_dropped_leaves_nothing() {
    let bench = Bench::new(one_second_windows()).await;
    let many: Vec<Reading> = (0..500).map(|at| (at * 10, None, Some(at))).collect();
    let parts: Vec<_> = many.chunks(100).map(readings).collect();
    let endless = batches(&parts).chain(stream::pending());
    let options = spilling();
    let progress = options.progress.clone();
    let import = bench.table.import(endless, options);
    let enough = eventually("some is written", async || progress.rows_spilled() > 200);
    tokio::select! {
        _ = import => panic!("it ends"),
        () = enough => {}
    }
    eventually("nothing is left", async || bench.objects().await == 0).await;
    assert_eq!(rows(&bench.table).await, []);
    assert_eq!(bench.import(&many, sorted()).await.rows, 500);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_whose_rows_do_not_come_ends_when_it_fails_or_its_engine_closes() {
    let bench = Bench::new(one_second_windows()).await;
    // It failed at what came, and waits for nothing more.
    let unsorted = batches(&[readings(&[(20, None, None), (10, None, None)])]);
    let refused = bench
        .table
        .import(unsorted.chain(stream::pending()), sorted());
    let refused = within("it is refused", refused).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused}");

    let options = ImportOptions::default();
    let progress = options.progress.clone();
    let table = bench.table.clone();
    let endless = batches(&[readings(&[(10, None, None)])]).chain(stream::pending());
    let endless = tokio::spawn(async move { table.import(endless, options).await });
    eventually("it waits for more", async || progress.rows_read() == 1).await;
    let closed = within("the engine closes", bench.engine.close()).await;
    closed.unwrap();
    let ended = within("the import ends", endless).await.unwrap();
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::Closed);
}

#[tokio::test(flavor = "multi_thread")]
async fn imports_go_below_level_0_where_they_meet_nothing() {
    let bench = Bench::new(one_second_windows()).await;
    let window = |number: i64, value| -> Vec<Reading> {
        let rows = (0..400).map(|at| (number * 1_000 + at * 2, None, Some(value)));
        rows.collect()
    };
    let report = bench
        .import(&[window(0, 1), window(1, 1)].concat(), sorted())
        .await;
    assert!(
        report.ssts >= 2 && report.ssts_in_level_0 == 0,
        "{report:?}"
    );
    // One of the windows is met.
    let report = bench
        .import(
            &[window(1, 2), window(2, 2)].concat(),
            ImportOptions::default(),
        )
        .await;
    assert!(
        report.ssts_in_level_0 > 0 && report.ssts_in_level_0 < report.ssts,
        "{report:?}"
    );
    let stats = bench.table.stats();
    assert_eq!(stats.ssts_by_level[&0], report.ssts_in_level_0, "{stats:?}");
    assert_eq!((stats.imports, stats.rows_imported), (2, 1_600));
    let want = [window(0, 1), window(1, 2), window(2, 2)].concat();
    assert_eq!(rows(&bench.table).await, want);
    bench.table.compact().await.unwrap();
    assert_eq!(rows(&bench.table).await, want);
}
