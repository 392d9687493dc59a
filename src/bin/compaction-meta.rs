//! The meta service as a process of its own: many databases, one fleet of compaction nodes.

use std::process::ExitCode;

use clap::Parser;
use siltstone::cli::{self, meta};

#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(flatten)]
    options: meta::Options,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    cli::init_logging("info");
    cli::run("compaction-meta", meta::run(arguments.options))
}
