//! A compaction node as a process of its own.

use std::process::ExitCode;

use clap::Parser;
use siltstone::cli::{self, node};

#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(flatten)]
    options: node::Options,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    cli::init_logging("info");
    cli::run("compaction-node", node::run(arguments.options))
}
