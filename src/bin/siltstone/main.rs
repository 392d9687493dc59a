//! The operator's tool: a demo on real data, what a meta service knows about nodes and jobs, and what lies
//! in a root.
//!
//! The hidden commands `meta` and `node` are the services that also come as the binaries
//! `compaction-meta` and `compaction-node`: with them this one file is a whole cluster, which the demo
//! starts from itself.

mod admin;
mod checkpoints;
mod demo;
mod explain;
mod export;
mod flights;
mod gc;
mod import;
mod inspect;
mod parquet_files;
mod progress;
mod quarantine;
mod stats;
mod steer;
mod taken_over;
mod verify;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use siltstone::{
    cli::{self, meta, node},
    error::Result,
};

#[derive(Parser)]
#[command(version, about = "Siltstone: an embeddable LSM storage engine", long_about = None)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Replays a year of flights into a table, compacts it in this process and on compaction nodes, and
    /// checks what comes out.
    Demo(demo::Options),
    /// Lists the compaction nodes that a meta service knows.
    Nodes(admin::Listed),
    /// Lists the compaction jobs that a meta service has.
    Jobs(admin::Listed),
    /// Lists the databases that share a meta service's nodes: weights, queues, pauses, engines.
    Owners(admin::Listed),
    /// Lists the SSTs that engines leave alone because jobs with them failed.
    Quarantine(admin::Listed),
    /// Says why a table is being compacted, or is not; or why a task waits.
    Explain(explain::Options),
    /// Has a compaction node take no more tasks, and end when those it has have ended.
    Drain(steer::Drain),
    /// Has tasks not be run. Their engines leave the SSTs alone for a while.
    Cancel(steer::Tasks),
    /// Has tasks that were given up or cancelled tried again, or SSTs that are in quarantine.
    Retry(steer::Retry),
    /// Has the jobs of tasks go before all others.
    Raise(steer::Tasks),
    /// Keeps the tasks of an owner or of a table back; those that run go on.
    Pause(steer::Pausable),
    /// Ends a pause.
    Resume(steer::Pausable),
    /// Sets an owner's share of the nodes, in proportion to those of the others.
    Weight(steer::Weight),
    /// Shows how the tables of a root look: SSTs, levels, windows, amplification.
    Stats(stats::Options),
    /// Lists what keeps the SSTs of a table from being deleted: checkpoints of users, readers and clones.
    Checkpoints(checkpoints::Options),
    /// Reads everything that the manifests of a root name, and says what is damaged.
    Verify(verify::Options),
    /// Describes what is stored, object by object, damaged or not.
    Inspect(inspect::Options),
    /// Lists the objects that nobody needs, with the reason; deletes them where no engine runs.
    Gc(gc::Options),
    /// Loads Parquet files into a table, all of them at once or none. Takes the root over while it works: an
    /// engine that has it open stops.
    Import(import::Options),
    /// Writes the flushed rows of a table to one Parquet file. An engine may be at work meanwhile.
    Export(export::Options),
    /// Runs a meta service, as `compaction-meta` does.
    #[command(hide = true)]
    Meta(meta::Options),
    /// Runs a compaction node, as `compaction-node` does.
    #[command(hide = true)]
    Node(node::Options),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let level = match arguments.command {
        Command::Meta(_) | Command::Node(_) => "info",
        _ => "warn",
    };
    cli::init_logging(level);
    cli::run("siltstone", run(arguments.command))
}

async fn run(command: Command) -> Result<()> {
    match command {
        Command::Demo(options) => demo::run(options).await,
        Command::Nodes(options) => admin::nodes(options).await,
        Command::Jobs(options) => admin::jobs(options).await,
        Command::Owners(options) => admin::owners(options).await,
        Command::Quarantine(options) => quarantine::run(options).await,
        Command::Explain(options) => explain::run(options).await,
        Command::Drain(options) => steer::drain(options).await,
        Command::Cancel(options) => steer::cancel(options).await,
        Command::Retry(options) => steer::retry(options).await,
        Command::Raise(options) => steer::raise(options).await,
        Command::Pause(options) => steer::pause(options, true).await,
        Command::Resume(options) => steer::pause(options, false).await,
        Command::Weight(options) => steer::weight(options).await,
        Command::Stats(options) => stats::run(options).await,
        Command::Checkpoints(options) => checkpoints::run(options).await,
        Command::Verify(options) => verify::run(options).await,
        Command::Inspect(options) => inspect::run(options).await,
        Command::Gc(options) => gc::run(options).await,
        Command::Import(options) => import::run(options).await,
        Command::Export(options) => export::run(options).await,
        Command::Meta(options) => meta::run(options).await,
        Command::Node(options) => node::run(options).await,
    }
}
