//! The engine against a model of a few maps: whatever is done in whatever order, and whatever the store does
//! meanwhile, both give the same rows.
//!
//! `PROPTEST_CASES` sets the number of cases, for long runs.

mod condition;
mod kept;
mod oracle;
mod steps;

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use arrow::{array::RecordBatch, util::display::array_value_to_string};
use futures::stream;
use proptest::{prelude::*, test_runner::Config};
use siltstone::{
    clock::{Env, ManualClock},
    config::{Bytes, EngineConfig, Millis, WalMode},
    engine::{Engine, ImportOptions, ScanRequest, Snapshot, Table, WriteOptions},
    error::{ErrorKind, Result},
    store::{Store, faulty::Faults},
    types::{Alteration, Key, KeyRange, Seq, TableSchema, TimeRange},
    verify::verify,
};
use tempfile::{TempDir, tempdir};
use tokio::runtime::Runtime;

use self::{
    kept::Kept,
    oracle::{Id, Oracle, Row},
    steps::{Change, NOW_MS, Read, Setup, Step, setup, step},
};

/// No step takes as long, whatever the store does.
const PATIENCE: Duration = Duration::from_secs(30);

fn cases() -> Config {
    let cases = std::env::var("PROPTEST_CASES").ok();
    Config {
        cases: cases.and_then(|cases| cases.parse().ok()).unwrap_or(48),
        failure_persistence: None,
        // A step that does not end costs a minute each time.
        max_shrink_iters: 100,
        ..Config::default()
    }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn the_engine_agrees_with_the_model(
        setup in setup(),
        steps in proptest::collection::vec(step(), 1..50),
    ) {
        static RUNTIME: OnceLock<Runtime> = OnceLock::new();
        let runtime = RUNTIME.get_or_init(|| Runtime::new().unwrap());
        runtime.block_on(async {
            let mut case = Case::new(&setup).await;
            for (at, step) in steps.iter().enumerate() {
                let ended = tokio::time::timeout(PATIENCE, case.run(step)).await;
                let ended = ended.unwrap_or_else(|_| Err(case.stuck()));
                ended.unwrap_or_else(|what| panic!("step {at}, {step:?}: {what}"));
            }
            let ended = tokio::time::timeout(PATIENCE, case.finish()).await;
            let ended = ended.unwrap_or_else(|_| Err(case.stuck()));
            ended.unwrap_or_else(|what| panic!("at the end: {what}"));
        });
    }
}

/// An engine, what it should hold, and the snapshots, checkpoints and clones that were taken, each with what it should
/// show.
struct Case {
    config: EngineConfig,
    store: Store,
    faults: Arc<Faults>,
    clock: Arc<ManualClock>,
    now_ms: u64,
    engine: Engine,
    table: Table,
    oracle: Oracle,
    snapshots: Vec<(Snapshot, Oracle, i64)>,
    kept: Vec<Kept>,
    /// How many there have been.
    kept_ever: usize,
    last_seq: Seq,
    _wal: TempDir,
}

/// Keys, and all columns as text.
type Rows = Vec<(Id, Row)>;

/// What differs, in words.
type Check = std::result::Result<(), String>;

impl Case {
    async fn new(setup: &Setup) -> Self {
        let wal = tempdir().unwrap();
        let (store, faults) = Store::open("memory:///").unwrap().with_faults();
        let mut config = EngineConfig::new("memory:///");
        setup.configure(&mut config, wal.path());
        config.compaction.l0_runs_trigger = 2;
        config.compaction.sst_bytes_target = Bytes(1 << 10);
        config.compaction.planning.level_bytes_min = Bytes(4 << 10);
        config.compaction.planning.level_ratio = 2;
        config.compaction.planning.tier_runs = 2;
        config.gc.grace = Millis(0);
        let clock = Arc::new(ManualClock::new(Duration::from_millis(NOW_MS)));
        let engine = open(&config, &store, &clock).await;
        let schema = setup.schema();
        let table = engine.create_table("table", schema.clone()).await.unwrap();
        Self {
            config,
            store,
            faults,
            clock,
            now_ms: NOW_MS,
            engine,
            table,
            oracle: Oracle::new(&schema),
            snapshots: Vec::new(),
            kept: Vec::new(),
            kept_ever: 0,
            last_seq: Seq(0),
            _wal: wal,
        }
    }

    /// What is known of a step that does not end.
    fn stuck(&self) -> String {
        let (table, compaction) = (self.table.stats(), self.engine.stats().compaction);
        format!("it does not end: {table:?}, {compaction:?}")
    }

    async fn run(&mut self, step: &Step) -> Check {
        match step {
            Step::Write(rows, durability) => {
                let batch = oracle::batch(&self.table.schema(), rows);
                let options = WriteOptions {
                    durability: *durability,
                };
                let seq = self.table.write_with(batch, options).await.unwrap();
                self.oracle.write(rows);
                return self.check_order(seq);
            }
            Step::Import(rows, spills) => {
                let seq = persist(|| self.import(rows, *spills)).await.unwrap();
                self.oracle.write(rows);
                if !rows.is_empty() {
                    return self.check_order(seq);
                }
            }
            Step::Delete(ids) => {
                let keys = oracle::keys(&self.table.schema(), ids);
                let seq = self.table.delete(keys).await.unwrap();
                self.oracle.delete(ids);
                return self.check_order(seq);
            }
            Step::DeleteRange(times) => {
                self.table.delete_range(*times).await.unwrap();
                self.oracle.delete_range(*times);
            }
            Step::Flush => self.table.flush().await.unwrap(),
            Step::Compact => {
                persist(|| self.table.compact()).await.unwrap();
            }
            Step::Alter(changes) => return self.alter(changes).await,
            Step::Advance(by_ms) => {
                self.clock.advance(Duration::from_millis(*by_ms));
                self.now_ms += by_ms;
            }
            Step::Fault(fault) => self.faults.add(fault.clone()),
            Step::Reopen => self.reopen().await,
            Step::TakeOver => return self.take_over().await,
            Step::Snapshot => {
                let snapshot = self.table.snapshot().await.unwrap();
                let expiry = self.oracle.expiry(self.now_ms);
                self.snapshots.push((snapshot, self.oracle.clone(), expiry));
            }
            Step::DropSnapshot => {
                self.snapshots.pop();
            }
            Step::Keep(what) => self.keep(*what).await,
            Step::Release(at) => self.release(*at).await,
            Step::CompactClones => self.compact_clones().await,
            Step::Read(read) => return self.check(read).await,
            Step::ReadBeside(read) => return self.check_reader(read).await,
        }
        Ok(())
    }

    /// Brings `rows` in, in batches of a few.
    async fn import(&self, rows: &[(Id, i64)], spills: bool) -> Result<Seq> {
        let schema = self.table.schema();
        let batches = rows.chunks(3).map(|rows| Ok(oracle::batch(&schema, rows)));
        let batches: Vec<_> = batches.collect();
        let mut options = ImportOptions::default();
        if spills {
            options.memory_bytes = 1;
        }
        let imported = self.table.import(stream::iter(batches), options);
        imported.await.map(|report| report.seq)
    }

    async fn finish(&mut self) -> Check {
        self.check(&Read::default()).await?;
        self.snapshots.clear();
        persist(|| self.table.compact()).await.unwrap();
        self.check(&Read::default()).await?;
        self.reopen().await;
        self.check(&Read::default()).await?;
        self.engine.close().await.unwrap();
        let report = verify(&self.store, &[], |_| {}).await.unwrap();
        match report.is_clean() {
            true => Ok(()),
            false => Err(format!("what is stored is not whole: {report:?}")),
        }
    }

    fn check_order(&mut self, seq: Seq) -> Check {
        let before = std::mem::replace(&mut self.last_seq, seq);
        if seq <= before {
            return Err(format!("seq {seq} follows {before}"));
        }
        Ok(())
    }

    /// Snapshots do not outlive the engine.
    async fn reopen(&mut self) {
        self.snapshots.clear();
        self.engine.close().await.unwrap();
        // A writer that cannot read what it wrote does not open: these faults are another test's.
        self.faults.clear();
        self.engine = open(&self.config, &self.store, &self.clock).await;
        self.table = self.engine.table("table").unwrap();
    }

    /// Everything durable is there again, and the engine of before does nothing more. A local WAL keeps a second
    /// engine out.
    async fn take_over(&mut self) -> Check {
        if self.config.wal.mode == WalMode::Local {
            return Ok(());
        }
        self.faults.clear();
        self.table.await_durable(self.last_seq).await.unwrap();
        if self.config.wal.mode == WalMode::None {
            self.table.flush().await.unwrap();
        }
        self.snapshots.clear();
        let engine = open(&self.config, &self.store, &self.clock).await;
        let table = std::mem::replace(&mut self.table, engine.table("table").unwrap());
        let before = std::mem::replace(&mut self.engine, engine);
        let batch = oracle::batch(&table.schema(), &[((0, None), 1)]);
        let written = match table.write(batch).await {
            Ok(_) => table.flush().await,
            Err(error) => Err(error),
        };
        let kind = written.err().map(|error| error.kind());
        if kind != Some(ErrorKind::Fenced) {
            return Err(format!("the fenced engine answers {kind:?}"));
        }
        let _ = before.close().await;
        Ok(())
    }

    async fn alter(&mut self, changes: &[Change]) -> Check {
        let schema = self.table.schema();
        let mut oracle = self.oracle.clone();
        oracle.begin_alteration(self.now_ms);
        let mut alterations: Vec<Alteration> = Vec::new();
        let mut altered = schema;
        for change in changes {
            let Some(alteration) = oracle.alteration(&altered, change) else {
                continue;
            };
            altered = altered
                .altered(std::slice::from_ref(&alteration), self.now_ms)
                .unwrap();
            oracle.set_schema(&altered);
            alterations.push(alteration);
        }
        let after = match self.table.alter(&alterations).await {
            Ok(after) => after,
            Err(error)
                if error
                    .to_string()
                    .contains("windows cannot be changed again") =>
            {
                return Ok(());
            }
            Err(error) => return Err(error.to_string()),
        };
        if after.columns() != altered.columns() || after.column_ids() != altered.column_ids() {
            return Err(format!("altered to {after:?}, not {altered:?}"));
        }
        self.oracle = oracle;
        Ok(())
    }

    /// Reads what is there now, at every snapshot, and all that is kept.
    async fn check(&self, read: &Read) -> Check {
        let schema = self.table.schema();
        let request = read.request(&schema);
        let expiry = self.oracle.expiry(self.now_ms);
        let wanted = self.oracle.rows(&schema, expiry, read);
        let found = persist(|| self.scan(None, &request)).await.unwrap();
        compare("scan", read, wanted, found)?;
        if let Some(ids) = &read.get {
            let keys = oracle::keys(&schema, ids);
            let found = persist(|| self.table.get(keys.clone())).await.unwrap();
            let all = Read::default();
            let mut wanted = self.oracle.rows(&schema, expiry, &all);
            wanted.retain(|(id, _)| ids.contains(id));
            compare("get", &all, wanted, rows_of(&[found]))?;
        }
        for (snapshot, oracle, expiry) in &self.snapshots {
            let wanted = oracle.rows(&schema, *expiry, read);
            let found = persist(|| self.scan(Some(snapshot), &request))
                .await
                .unwrap();
            compare("snapshot", read, wanted, found)?;
        }
        self.check_kept(read).await
    }

    async fn scan(&self, snapshot: Option<&Snapshot>, request: &ScanRequest) -> Result<Rows> {
        let stream = match snapshot {
            None => self.table.scan(request.clone()).await?,
            Some(snapshot) => snapshot.scan(request.clone()).await?,
        };
        Ok(rows_of(&stream.collect().await?))
    }
}

async fn open(config: &EngineConfig, store: &Store, clock: &Arc<ManualClock>) -> Engine {
    // Two engines with one seed, under a clock that stands still, would give their SSTs the same names.
    static SEEDS: AtomicU64 = AtomicU64::new(0);
    let seed = SEEDS.fetch_add(1, Ordering::Relaxed);
    let env = Env::seeded(clock.clone(), seed);
    let builder = Engine::builder(config.clone()).store(store.clone());
    builder.env(env).open().await.unwrap()
}

/// Does it again as long as the store fails, which it does a few times only.
async fn persist<T, F: Future<Output = Result<T>>>(mut operation: impl FnMut() -> F) -> Result<T> {
    loop {
        match operation().await {
            Err(error) if error.is_unavailable() => {}
            result => return result,
        }
    }
}

/// All columns as text, the key's first two as an id.
fn rows_of(batches: &[RecordBatch]) -> Rows {
    let rows = batches.iter().flat_map(|batch| {
        (0..batch.num_rows()).map(|row| {
            let cells = batch.columns().iter().map(|column| {
                let text = array_value_to_string(column, row).unwrap();
                column.is_valid(row).then_some(text)
            });
            (oracle::id_of(batch, row), cells.collect())
        })
    });
    rows.collect()
}

/// Rows must come in key order; those of one key, in an append table, in any.
fn compare(what: &str, read: &Read, mut wanted: Rows, mut found: Rows) -> Check {
    let is_sorted = match read.descending {
        true => found.iter().rev().is_sorted_by_key(|(id, _)| *id),
        false => found.is_sorted_by_key(|(id, _)| *id),
    };
    wanted.sort();
    found.sort();
    if is_sorted && wanted == found {
        return Ok(());
    }
    Err(format!(
        "{what} {read:?}:\n want {wanted:?}\n have {found:?}"
    ))
}

impl Read {
    /// As a scan of a table of `schema`.
    fn request(&self, schema: &TableSchema) -> ScanRequest {
        let bound = |id: Option<Id>| -> Option<Key> {
            id.map(|id| schema.key_of(&oracle::keys(schema, &[id])).unwrap())
        };
        let mut request = ScanRequest::all().keys(KeyRange {
            start: bound(self.start),
            end: bound(self.end),
        });
        if let Some(condition) = &self.condition {
            request = request.filter(condition.predicate(schema));
        }
        if self.descending {
            request = request.descending();
        }
        if let Some((start, end)) = self.times {
            request = request.times(TimeRange { start, end });
        }
        if let Some(limit) = self.limit.filter(|_| oracle::has_unique_keys(schema)) {
            request = request.limit(limit);
        }
        if self.narrow {
            request = request.columns(oracle::narrow(schema).iter().map(String::as_str));
        }
        request
    }
}
