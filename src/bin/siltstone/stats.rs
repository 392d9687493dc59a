//! `siltstone stats`: how the tables of a root look, from its catalog and manifests. Reads only, so that an
//! engine may be at work meanwhile; what only that engine knows, such as memtables, is not in it.

use std::collections::BTreeMap;

use clap::Args;
use serde_json::{Value, json};
use siltstone::{
    config::{Bytes, CompactionConfig},
    error::{Error, Result},
    manifest::{
        LevelShape,
        inspect::{self, ManifestReport, VersionReport},
    },
    store::{Store, layout},
    types::TableId,
};

use crate::{
    admin::{align_right, new_table},
    inspect::open_root,
};

/// Which root, and how much of it.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// A root: a URL, or a directory.
    root: String,
    /// Only this table, by window and level.
    #[arg(long, value_name = "NAME")]
    table: Option<String>,
    /// Prints JSON, with all there is to know.
    #[arg(long)]
    json: bool,
}

/// What is known of one table.
struct TableFacts {
    name: String,
    manifest: ManifestReport,
    /// Objects in its folder of SSTs, and their bytes: live, obsolete, and left behind.
    objects: LevelShape,
}

/// Prints the stats.
///
/// # Errors
/// `NotFound` when there is no such root or table; `Unavailable`; `Corrupt` at the end, when catalog or
/// manifests are damaged.
pub async fn run(options: Options) -> Result<()> {
    let store = open_root(&options.root)?;
    let (tables, mut faults) = inspect::tables(&store).await?;
    let wanted = tables
        .into_iter()
        .filter(|(name, _)| options.table.as_ref().is_none_or(|table| table == name));
    let mut facts = Vec::new();
    for (name, id) in wanted {
        let table = facts_of(&store, name, id).await?;
        let of_table = table.manifest.faults.iter();
        faults.extend(of_table.map(|fault| format!("table {:?}: {fault}", table.name)));
        facts.push(table);
    }
    if let Some(table) = options.table.filter(|_| facts.is_empty()) {
        let url = store.url();
        return Err(Error::not_found(format!(
            "the catalog of {url} has no table {table:?}"
        )));
    }
    let wal = wal_of(&store).await?;
    if options.json {
        let tables: BTreeMap<&str, Value> = facts
            .iter()
            .map(|table| (table.name.as_str(), json_of(table)))
            .collect();
        let wal = json!({"segments": wal.ssts, "bytes": wal.bytes});
        println!(
            "{:#}",
            json!({"root": store.url(), "tables": tables, "wal": wal})
        );
    } else {
        print_tables(&facts);
        if let [table] = &facts[..]
            && let Some(version) = &table.manifest.version
        {
            print_windows(version);
        }
        if wal.ssts > 0 {
            println!("wal: {} segments, {}", wal.ssts, Bytes(wal.bytes));
        }
        for fault in &faults {
            println!("damaged: {fault}");
        }
    }
    match faults.first() {
        None => Ok(()),
        Some(first) => Err(Error::corrupt(format!(
            "{}: {} faults, the first: {first}",
            options.root,
            faults.len()
        ))),
    }
}

async fn facts_of(store: &Store, name: String, id: TableId) -> Result<TableFacts> {
    let manifest = match inspect::manifest(store, id).await {
        Ok(manifest) => manifest,
        Err(error) => ManifestReport {
            table: id.to_string(),
            faults: vec![error.to_string()],
            ..ManifestReport::default()
        },
    };
    Ok(TableFacts {
        name,
        manifest,
        objects: sum(store, &layout::ssts(id), ".parquet").await?,
    })
}

/// Objects in `folder` whose names end with `extension`.
async fn sum(store: &Store, folder: &str, extension: &str) -> Result<LevelShape> {
    let mut sum = LevelShape::default();
    for object in store.list(folder).await? {
        if object.name.ends_with(extension) {
            sum.ssts += 1;
            sum.bytes += object.bytes;
        }
    }
    Ok(sum)
}

/// Segments of write-ahead logs that lie under the root.
async fn wal_of(store: &Store) -> Result<LevelShape> {
    sum(store, "wal", ".wal").await
}

/// Level-0 runs at which the default configuration compacts.
fn trigger() -> usize {
    CompactionConfig::default().l0_runs_trigger
}

fn json_of(table: &TableFacts) -> Value {
    let version = table.manifest.version.as_ref();
    let derived = version.map(|version| {
        let (runs_max, runs_mean) = version.shape.read_runs();
        json!({
            "debt_bytes": version.shape.debt_bytes(trigger()),
            "read_runs_max": runs_max,
            "read_runs_mean": runs_mean,
            "space_amplification": version.shape.space_amplification(),
            "obsolete_ssts": version.obsolete.len(),
            "jobs": version.jobs.len(),
            "flushed_seq": version.flushed_seq,
            "shape": version.shape,
        })
    });
    json!({
        "id": table.manifest.table,
        "epoch": table.manifest.epoch,
        "faults": table.manifest.faults,
        "objects": table.objects.ssts,
        "object_bytes": table.objects.bytes,
        "version": derived,
    })
}

fn print_tables(tables: &[TableFacts]) {
    let mut printed = new_table([
        "table",
        "rows",
        "SSTs",
        "bytes",
        "stored",
        "windows",
        "level 0",
        "runs max",
        "runs mean",
        "space",
        "debt",
        "jobs",
    ]);
    for table in tables {
        let Some(version) = &table.manifest.version else {
            printed.add_row([&table.name, "damaged"]);
            continue;
        };
        let shape = &version.shape;
        let (total, (runs_max, runs_mean)) = (shape.total(), shape.read_runs());
        let level_0 = shape.levels.get(&0).map_or(0, |level| level.ssts);
        printed.add_row([
            table.name.clone(),
            total.rows.to_string(),
            total.ssts.to_string(),
            Bytes(total.bytes).to_string(),
            Bytes(table.objects.bytes).to_string(),
            shape.windows.len().to_string(),
            level_0.to_string(),
            runs_max.to_string(),
            format!("{runs_mean:.1}"),
            format!("{:.2}", shape.space_amplification()),
            Bytes(shape.debt_bytes(trigger())).to_string(),
            version.jobs.len().to_string(),
        ]);
    }
    align_right(&mut printed, 1..12);
    println!("{printed}");
}

fn print_windows(version: &VersionReport) {
    let mut printed = new_table(["window", "runs", "level", "SSTs", "rows", "bytes"]);
    for (window, shape) in &version.shape.windows {
        for (level, sums) in &shape.levels {
            printed.add_row([
                window.to_string(),
                shape.runs.to_string(),
                level.to_string(),
                sums.ssts.to_string(),
                sums.rows.to_string(),
                Bytes(sums.bytes).to_string(),
            ]);
        }
    }
    align_right(&mut printed, 0..6);
    println!("{printed}");
}
