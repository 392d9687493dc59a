//! `siltstone gc`: which objects of a root nobody needs, and why; and deleting them where no engine runs.
//!
//! A running engine deletes by itself. Nobody else may, for nobody else knows what it reads and writes: so a sweep from
//! the command line is one of an engine that is opened for it, takes the root over, and is closed again.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};
use siltstone::{
    clock::Env,
    config::Bytes,
    error::{Error, Result},
    gc::{DryRun, DryRunOptions, Judged, Verdict, dry_run},
};

use crate::{
    admin::{align_right, new_table},
    inspect::open_root,
    taken_over,
};

/// Which root, and what to do about it.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// A root: a URL, or a directory.
    root: String,
    /// Lists each object, what would become of it and why, and deletes nothing. An engine may be at work meanwhile.
    #[arg(long)]
    dry_run: bool,
    /// Deletes. Only for a root that no engine has open: it is taken over, and an engine that runs on it stops.
    #[arg(long, conflicts_with = "dry_run")]
    offline: bool,
    /// The engine's configuration file: for its graces and, with --offline, for its write-ahead log.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Prints JSON.
    #[arg(long)]
    json: bool,
}

/// Lists or deletes.
///
/// # Errors
/// `Invalid` for neither --dry-run nor --offline; `NotFound` when there is no such root; `Unavailable`; `Corrupt` at
/// the end when catalog or manifests are damaged; as for opening an engine.
pub async fn run(options: Options) -> Result<()> {
    match (options.dry_run, options.offline) {
        (true, _) => list(options).await,
        (false, true) => sweep(options).await,
        (false, false) => Err(Error::invalid(
            "a running engine deletes what nobody needs by itself: --dry-run shows what that is; where none runs, \
             --offline deletes it",
        )),
    }
}

async fn list(options: Options) -> Result<()> {
    let store = open_root(&options.root)?;
    let gc = taken_over::config(&options.root, options.config.as_deref())?.gc;
    let graces = DryRunOptions {
        grace_ms: gc.grace.0,
        log_grace_ms: gc.log_grace.0,
    };
    let run = dry_run(&store, graces, &Env::default()).await?;
    match options.json {
        true => println!("{:#}", json_of(&run)),
        false => print(&run),
    }
    match run.faults.first() {
        None => Ok(()),
        Some(first) => Err(Error::corrupt(format!(
            "{}: {} faults, the first: {first}",
            options.root,
            run.faults.len()
        ))),
    }
}

fn decision(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Keep(_) => "keep",
        Verdict::Delete(_) => "delete",
    }
}

fn json_of(run: &DryRun) -> Value {
    let objects = run.objects.iter().map(|object| {
        json!({
            "name": object.name,
            "bytes": object.bytes,
            "decision": decision(&object.verdict),
            "reason": object.verdict.to_string(),
        })
    });
    json!({"objects": objects.collect::<Vec<_>>(), "faults": run.faults})
}

fn print(run: &DryRun) {
    let mut table = new_table(["object", "bytes", "decision", "reason"]);
    for object in &run.objects {
        table.add_row([
            object.name.clone(),
            object.bytes.to_string(),
            decision(&object.verdict).to_owned(),
            object.verdict.to_string(),
        ]);
    }
    align_right(&mut table, [1]);
    println!("{table}");
    let going = |object: &&Judged| object.verdict.deleted().is_some();
    let (objects, bytes) = run
        .objects
        .iter()
        .filter(going)
        .fold((0, 0), |(objects, bytes), object| {
            (objects + 1, bytes + object.bytes)
        });
    println!(
        "{objects} of {} objects would go, {}; if an engine is at work, only once none of its scans, flushes and \
         imports needs them",
        run.objects.len(),
        Bytes(bytes)
    );
    for fault in &run.faults {
        println!("damaged: {fault}");
    }
}

async fn sweep(options: Options) -> Result<()> {
    let engine = taken_over::open(&options.root, options.config.as_deref()).await?;
    let swept = engine.collect_garbage().await;
    engine.close().await?;
    let swept = swept?;
    if options.json {
        println!("{:#}", json!(swept));
    } else {
        let mut table = new_table(["deleted because", "objects"]);
        for (reason, objects) in &swept.deleted {
            table.add_row([(*reason).to_owned(), objects.to_string()]);
        }
        align_right(&mut table, [1]);
        println!("{table}");
    }
    match swept.failed.first() {
        None => Ok(()),
        Some(first) => Err(Error::unavailable(format!(
            "{} objects were not deleted, the first: {first}",
            swept.failed.len()
        ))),
    }
}
