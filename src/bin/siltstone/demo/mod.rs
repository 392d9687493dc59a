//! `siltstone demo`: a year of flights as three states each, written in time order in many small
//! batches, once with compaction in this process and once on compaction nodes; then a report, and a
//! check of all that came out.
//!
//! `replay` runs one mode, `cluster` owns the child processes, `report` prints. The folder is left
//! behind for other tools to read.

mod cluster;
mod replay;
mod report;

use std::path::{Path, PathBuf};

use bytes::Bytes;
use clap::{Args, ValueEnum};
use siltstone::{
    clock::Env,
    config::CompactionMode,
    error::{Error, Result},
};

use self::{cluster::Cluster, replay::Run};
use crate::{
    flights::{Answers, Flights},
    progress::interrupted,
};

/// The source, so that the binary needs no files of its own.
const FLIGHTS: &[u8] = include_bytes!("../../../../examples/data/flights.parquet");

/// What the demo can be told.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Flights to replay; each is written three times. Default: all 336776.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    rows: Option<u64>,
    /// Folder for the databases; must be empty or missing. Default: a new one among the temporary files.
    #[arg(long, value_name = "PATH")]
    dir: Option<PathBuf>,
    /// Compaction nodes to start, one process each.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    nodes: u16,
    /// Where compaction runs: in this process, on compaction nodes, or first the one, then the other.
    #[arg(long, value_enum, default_value_t = Mode::Both)]
    mode: Mode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    Both,
    Local,
    Remote,
}

impl Mode {
    fn runs(self) -> &'static [CompactionMode] {
        match self {
            Self::Both => &[CompactionMode::Local, CompactionMode::Remote],
            Self::Local => &[CompactionMode::Local],
            Self::Remote => &[CompactionMode::Remote],
        }
    }
}

/// Runs the demo; stops, leaving no process behind, on an interrupt.
///
/// # Errors
/// Any error of the engine; `Internal` when a check failed.
pub async fn run(options: Options) -> Result<()> {
    tokio::select! {
        done = replay_and_check(options) => done,
        interrupted = interrupted() => Err(interrupted),
    }
}

async fn replay_and_check(options: Options) -> Result<()> {
    let env = Env::default();
    let started = env.monotonic();
    let rows_max = options.rows.map_or(usize::MAX, |rows| {
        usize::try_from(rows).unwrap_or(usize::MAX)
    });
    let flights = Flights::read(Bytes::from_static(FLIGHTS), rows_max)?;
    let dir = new_folder(options.dir.as_deref(), &env)?;
    println!(
        "{} flights, {} rows to write in each mode; files go to {}",
        report::count(flights.rows().num_rows() as u64),
        report::count((flights.rows().num_rows() * crate::flights::STATES) as u64),
        dir.display(),
    );
    let mut runs = Vec::new();
    for &mode in options.mode.runs() {
        runs.push(run_mode(mode, &options, &flights, &dir, &env).await?);
    }
    let source = Answers::of(flights.rows())?;
    let published =
        (flights.rows().num_rows() as u64 == Answers::published().rows).then(Answers::published);
    report::print_runs(&runs);
    let failed = report::print_checks(&runs, &source, published.as_ref());
    report::print_farewell(&dir, &runs, env.monotonic() - started);
    match failed {
        0 => Ok(()),
        failed => Err(Error::internal(format!("{failed} checks failed"))),
    }
}

async fn run_mode(
    mode: CompactionMode,
    options: &Options,
    flights: &Flights,
    dir: &Path,
    env: &Env,
) -> Result<Run> {
    let is_remote = mode == CompactionMode::Remote;
    let name = if is_remote { "remote" } else { "local" };
    let root = dir.join(name);
    create_folder(&root)?;
    let mut config = replay::config(&root, flights, mode)?;
    let mut cluster = None;
    if is_remote {
        let services = dir.join("services");
        create_folder(&services)?;
        let started = Cluster::start(&services, usize::from(options.nodes)).await?;
        config.compaction.remote.meta = vec![started.meta().to_owned()];
        cluster = Some(started);
    }
    let run = replay::run(name, config, flights, env).await;
    if let Some(cluster) = cluster {
        cluster.stop().await;
    }
    let mut run = run.map_err(|error| error.context(format!("{name} mode")))?;
    run.nodes_started = if is_remote {
        usize::from(options.nodes)
    } else {
        0
    };
    Ok(run)
}

/// The folder asked for, or a new one; empty in either case.
fn new_folder(asked: Option<&Path>, env: &Env) -> Result<PathBuf> {
    let dir = match asked {
        Some(dir) => dir.to_owned(),
        None => std::env::temp_dir().join(format!("siltstone-demo-{:08x}", env.random() as u32)),
    };
    create_folder(&dir)?;
    let unreadable = |error| Error::invalid(format!("folder {}", dir.display())).with_source(error);
    let dir = dir.canonicalize().map_err(unreadable)?;
    if std::fs::read_dir(&dir)
        .map_err(unreadable)?
        .next()
        .is_some()
    {
        return Err(Error::invalid(format!(
            "folder {} is not empty",
            dir.display()
        )));
    }
    Ok(dir)
}

fn create_folder(dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir).map_err(|error| {
        Error::invalid(format!("folder {} cannot be created", dir.display())).with_source(error)
    })
}
