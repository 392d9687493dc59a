//! `siltstone verify`: reads everything that the manifests of a root name, and says what is damaged, and which rows that
//! concerns. Changes nothing; an engine may be at work meanwhile.

use std::sync::Mutex;

use clap::Args;
use siltstone::{
    clock::Env,
    error::{Error, Result},
    verify::{self, Fault, Progress, Report, Rows},
};

use crate::{inspect::open_root, progress::Phase};

/// Which root, and how much of it.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// A root: a URL, or a directory.
    root: String,
    /// Only this table; may be repeated.
    #[arg(long = "table", value_name = "NAME")]
    tables: Vec<String>,
    /// Prints JSON.
    #[arg(long)]
    json: bool,
}

/// Verifies, and prints what was found.
///
/// # Errors
/// `NotFound` when there is no such root or table; `Unavailable`; `Corrupt` at the end, when something is wrong.
pub async fn run(options: Options) -> Result<()> {
    let store = open_root(&options.root)?;
    let env = Env::default();
    let bytes = Mutex::new(0);
    let phase: Mutex<Option<Phase>> = Mutex::new(None);
    let progress = |progress| {
        let (Ok(mut bytes), Ok(mut phase)) = (bytes.lock(), phase.lock()) else {
            return;
        };
        match progress {
            Progress::Bytes(more) => *bytes += more,
            Progress::Read(read) => {
                let begin = || Phase::new("verify".into(), *bytes, &env);
                let phase = phase.get_or_insert_with(begin);
                phase.advance(read, || "bytes".into());
            }
        }
    };
    let report = verify::verify(&store, &options.tables, progress).await?;
    drop(phase);
    match options.json {
        true => print_json(&report)?,
        false => print(&report),
    }
    match report.is_clean() {
        true => Ok(()),
        false => Err(Error::corrupt(format!("{} is damaged", store.url()))),
    }
}

fn print_json(report: &Report) -> Result<()> {
    let text = serde_json::to_string_pretty(report);
    let text = text.map_err(|error| Error::internal("json").with_source(error))?;
    println!("{text}");
    Ok(())
}

fn print(report: &Report) {
    for fault in &report.faults {
        println!("catalog: {fault}");
    }
    for (name, table) in &report.tables {
        let (ssts, rows, bytes) = (table.ssts, table.rows, table.bytes);
        let faults = match table.faults.len() {
            0 => "nothing is wrong".to_owned(),
            1 => "1 fault".to_owned(),
            faults => format!("{faults} faults"),
        };
        println!("table {name:?}: {ssts} SSTs, {rows} rows, {bytes} bytes: {faults}");
        for fault in &table.faults {
            print_fault(fault);
        }
    }
}

fn print_fault(fault: &Fault) {
    println!("  {}: {}", fault.object, fault.what);
    let Some(Rows {
        count,
        row_group,
        key_min,
        key_max,
        times,
    }) = &fault.rows
    else {
        return;
    };
    let place = match row_group {
        Some(group) => format!(" in row group {group}"),
        None => String::new(),
    };
    let (min, max) = (key_min.join(", "), key_max.join(", "));
    println!("    concerns {count} rows{place}, with keys from ({min}) to ({max})");
    if let Some((min, max)) = times {
        println!("    times in the SST: {min} to {max}");
    }
}
