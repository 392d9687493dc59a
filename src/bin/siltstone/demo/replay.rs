//! One mode of the demo: opens an engine, writes every state of every flight, compacts, and reads all of
//! it back.

use std::{path::Path, time::Duration};

use arrow::array::RecordBatch;
use futures::StreamExt;
use siltstone::{
    clock::Env,
    config::{Bytes, CompactionMode, EngineConfig},
    engine::{CompactionStats, Engine, ScanRequest, Table, TableStats},
    error::{Error, Result},
};

use crate::{
    flights::{Answers, Flights, STATES},
    progress::Phase,
};

/// Rows of a batch: about a third of a day's events.
const BATCH_ROWS: usize = 1_000;
/// Flushes that a replay is cut into, so that compaction has something to do.
const FLUSHES: u64 = 128;
/// What one written row takes in memory, about.
const ROW_BYTES: u64 = 200;

/// What one mode did, and what it holds now.
#[derive(Debug)]
pub struct Run {
    /// `"local"` or `"remote"`.
    pub name: &'static str,
    /// Rows written.
    pub rows_written: u64,
    /// Wall time of all writes.
    pub write_time: Duration,
    /// Time that each write took, ascending.
    pub write_latencies: Vec<Duration>,
    /// Most SSTs that were live at once while rows were written.
    pub ssts_peak: u64,
    /// Most level-0 runs that one window had while rows were written.
    pub l0_runs_peak: u64,
    /// The table when everything was written and flushed.
    pub before: TableStats,
    /// The table when everything was merged.
    pub after: TableStats,
    /// Wall time of the last merge.
    pub compact_time: Duration,
    /// Compaction, from beginning to end.
    pub compaction: CompactionStats,
    /// Answers of the table.
    pub answers: Answers,
    /// The first row that differs from the source, in words; `None` when all are equal.
    pub difference: Option<String>,
    /// Node processes that were started for it.
    pub nodes_started: usize,
}

impl Run {
    /// The write time that `share` of the writes did not exceed.
    pub fn write_latency(&self, share: f64) -> Duration {
        let last = self.write_latencies.len().saturating_sub(1);
        let at = (last as f64 * share).ceil() as usize;
        self.write_latencies.get(at).copied().unwrap_or_default()
    }
}

/// A configuration under which even a short replay flushes and compacts many times.
pub fn config(dir: &Path, flights: &Flights, mode: CompactionMode) -> Result<EngineConfig> {
    let root = url::Url::from_directory_path(dir)
        .map_err(|()| Error::invalid(format!("folder {} is not absolute", dir.display())))?;
    let written = (flights.rows().num_rows() * STATES) as u64 * ROW_BYTES;
    let mut config = EngineConfig::new(root);
    config.memory.memtable_bytes = Bytes((written / FLUSHES).clamp(64 << 10, 4 << 20));
    config.compaction.mode = mode;
    config.compaction.task_bytes_target = Bytes((written / FLUSHES / 4).clamp(16 << 10, 512 << 10));
    Ok(config)
}

/// Runs one mode on an empty root.
pub async fn run(
    name: &'static str,
    config: EngineConfig,
    flights: &Flights,
    env: &Env,
) -> Result<Run> {
    let engine = Engine::open(config).await?;
    let run = run_on(name, &engine, flights, env).await;
    let closed = engine.close().await;
    let run = run?;
    closed?;
    Ok(run)
}

async fn run_on(name: &'static str, engine: &Engine, flights: &Flights, env: &Env) -> Result<Run> {
    let table = engine
        .create_table("flights", flights.table_schema()?)
        .await?;
    let started = env.monotonic();
    let mut written = write(name, engine, &table, flights, env).await?;
    let write_time = env.monotonic() - started;
    written.latencies.sort_unstable();
    let before = table.stats();

    let started = env.monotonic();
    compact(name, engine, &table, env).await?;
    let compact_time = env.monotonic() - started;

    let (answers, difference) = read_back(name, &table, flights, env).await?;
    Ok(Run {
        name,
        rows_written: written.rows,
        write_time,
        write_latencies: written.latencies,
        ssts_peak: written.ssts_peak,
        l0_runs_peak: written.l0_runs_peak,
        before,
        after: table.stats(),
        compact_time,
        compaction: engine.stats().compaction,
        answers,
        difference,
        nodes_started: 0,
    })
}

#[derive(Default)]
struct Written {
    rows: u64,
    latencies: Vec<Duration>,
    ssts_peak: u64,
    l0_runs_peak: u64,
}

async fn write(
    name: &str,
    engine: &Engine,
    table: &Table,
    flights: &Flights,
    env: &Env,
) -> Result<Written> {
    let replay = flights.replay(BATCH_ROWS)?;
    let mut phase = Phase::new(format!("{name}: write"), replay.rows() as u64, env);
    let mut written = Written::default();
    for batch in replay {
        let batch = batch?;
        let rows = batch.num_rows() as u64;
        let started = env.monotonic();
        table.write(batch).await?;
        written.latencies.push(env.monotonic() - started);
        written.rows += rows;
        let stats = table.stats();
        written.ssts_peak = written.ssts_peak.max(stats.ssts);
        written.l0_runs_peak = written.l0_runs_peak.max(stats.l0_runs_max);
        phase.advance(rows, || note(engine, &stats));
    }
    table.flush().await?;
    Ok(written)
}

async fn compact(name: &str, engine: &Engine, table: &Table, env: &Env) -> Result<()> {
    let mut phase = Phase::new(format!("{name}: merge"), 0, env);
    let merged = async {
        engine.wait_compacted().await?;
        table.compact().await
    };
    let mut merged = std::pin::pin!(merged);
    loop {
        let pause = tokio::time::sleep(Duration::from_millis(200));
        tokio::select! {
            done = &mut merged => return done.map(drop),
            () = pause => phase.advance(0, || note(engine, &table.stats())),
        }
    }
}

async fn read_back(
    name: &str,
    table: &Table,
    flights: &Flights,
    env: &Env,
) -> Result<(Answers, Option<String>)> {
    let wanted = flights.landed()?;
    let mut phase = Phase::new(format!("{name}: check"), wanted.num_rows() as u64, env);
    let mut answers = Answers::default();
    let mut difference = None;
    let mut at = 0;
    let mut scan = table.scan(ScanRequest::all()).await?;
    while let Some(batch) = scan.next().await {
        let batch = batch?;
        answers.add(&batch)?;
        if difference.is_none() {
            difference = find_difference(&wanted, at, &batch);
        }
        at += batch.num_rows();
        phase.advance(batch.num_rows() as u64, String::new);
    }
    if difference.is_none() && at != wanted.num_rows() {
        difference = Some(format!("{at} rows instead of {}", wanted.num_rows()));
    }
    Ok((answers, difference))
}

/// Compares `batch` with the rows of `wanted` from `at` on.
fn find_difference(wanted: &RecordBatch, at: usize, batch: &RecordBatch) -> Option<String> {
    if at + batch.num_rows() > wanted.num_rows() {
        return Some(format!(
            "more rows than the {} of the source",
            wanted.num_rows()
        ));
    }
    let wanted = wanted.slice(at, batch.num_rows());
    let columns = wanted.columns().iter().zip(batch.columns());
    let (column, _) = columns.enumerate().find(|(_, (want, have))| want != have)?;
    let row = (0..batch.num_rows())
        .find(|&row| wanted.column(column).slice(row, 1) != batch.column(column).slice(row, 1))
        .map_or(at, |row| at + row);
    let name = wanted.schema().field(column).name().clone();
    Some(format!("row {row}, column {name:?}"))
}

fn note(engine: &Engine, stats: &TableStats) -> String {
    let compaction = engine.stats().compaction;
    let tasks: u64 = compaction.nodes.values().map(|node| node.tasks).sum();
    format!("{} SSTs, {tasks} compaction tasks done", stats.ssts)
}
