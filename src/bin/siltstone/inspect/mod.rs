//! `siltstone inspect`: what lies in a root, or in a copy of one, object by object. Reads only: it claims no
//! epoch and creates nothing. What is damaged is described, and the command goes on and ends with exit
//! code 1.

mod print;

use std::path::{Path, PathBuf};

use bytes::Bytes;
use clap::{Args, Subcommand};
use serde::Serialize;
use siltstone::{
    error::{Error, Result},
    manifest, sst,
    store::Store,
    types::TableId,
    wal,
};
use url::Url;

/// What to look at.
#[derive(Args, Clone, Debug)]
pub struct Options {
    #[command(subcommand)]
    what: What,
    /// Prints JSON, with all there is to know.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand, Clone, Debug)]
enum What {
    /// The list of tables.
    Catalog {
        /// A root: a URL, or a directory.
        root: String,
        /// Lists the records of the log.
        #[arg(long)]
        log: bool,
    },
    /// A table: its columns, SSTs and jobs.
    Manifest {
        /// A root: a URL, or a directory.
        root: String,
        /// Name or id of the table.
        table: String,
        /// Lists the records of the log, instead of the SSTs.
        #[arg(long)]
        log: bool,
    },
    /// Segments of the write-ahead log.
    Wal {
        /// A segment, a directory of them, or the URL of an object.
        place: String,
    },
    /// An SST, or any other Parquet file.
    Sst {
        /// A file, or the URL of an object.
        place: String,
        /// Verifies the checksum of every column chunk, and decodes every row.
        #[arg(long)]
        verify: bool,
    },
}

/// Describes what was asked for.
///
/// # Errors
/// `NotFound`; `Unavailable`; `Corrupt` at the end, when something of it is damaged.
pub async fn run(options: Options) -> Result<()> {
    let json = options.json;
    match options.what {
        What::Catalog { root, log } => {
            let report = manifest::inspect::catalog(&open_root(&root)?).await?;
            show(json, &report, || print::catalog(&report, log));
            end(&root, &report.faults)
        }
        What::Manifest { root, table, log } => {
            let store = open_root(&root)?;
            let id = find_table(&store, &table).await?;
            let report = manifest::inspect::manifest(&store, id).await?;
            show(json, &report, || print::manifest(&report, log));
            end(&format!("manifest of table {table}"), &report.faults)
        }
        What::Wal { place } => inspect_wal(&place, json).await,
        What::Sst { place, verify } => {
            // What the Parquet decoder asserts about damaged bytes is caught, and reported.
            std::panic::set_hook(Box::new(|panic| tracing::debug!(%panic, "caught")));
            let (store, name) = open_object(&place)?;
            let report = sst::inspect::object(&store, &name, verify).await?;
            show(json, &report, || print::sst(&report, verify));
            end(&place, &report.faults)
        }
    }
}

/// Opens a root that is there, given as a URL or as a directory.
///
/// # Errors
/// `NotFound` when it is not; `Invalid` when it names no store.
pub fn open_root(root: &str) -> Result<Store> {
    if root.contains("://") {
        return Store::open_existing(root);
    }
    let path = absolute(Path::new(root))?;
    let url = Url::from_directory_path(&path);
    let url = url.map_err(|()| Error::invalid(format!("{root:?} is not a directory")))?;
    Store::open_existing(url.as_str())
}

/// The id of the table that `table` names, by name or by id.
///
/// # Errors
/// `NotFound` when it is neither.
pub async fn find_table(store: &Store, table: &str) -> Result<TableId> {
    // An id is looked for where the catalog is damaged, too.
    if let Ok(id) = table.parse::<TableId>() {
        return Ok(id);
    }
    let (tables, _) = manifest::inspect::tables(store).await?;
    let found = tables.into_iter().find(|(name, _)| name == table);
    found.map(|(_, id)| id).ok_or_else(|| {
        let url = store.url();
        Error::not_found(format!("the catalog of {url} has no table {table:?}"))
    })
}

fn absolute(path: &Path) -> Result<PathBuf> {
    let missing =
        |error| Error::not_found(format!("{}: no such file", path.display())).with_source(error);
    path.canonicalize().map_err(missing)
}

/// The store and the name of an object, given as a URL or as a file.
fn open_object(place: &str) -> Result<(Store, String)> {
    let url = match Url::parse(place) {
        Ok(url) if place.contains("://") => url,
        _ => Url::from_file_path(absolute(Path::new(place))?)
            .map_err(|()| Error::invalid(format!("{place:?} is not a file")))?,
    };
    let text = url.as_str();
    let split = text.rsplit_once('/').filter(|(_, name)| !name.is_empty());
    let (folder, name) =
        split.ok_or_else(|| Error::invalid(format!("{place:?} does not name an object")))?;
    Ok((
        Store::open_existing(&format!("{folder}/"))?,
        name.to_owned(),
    ))
}

async fn inspect_wal(place: &str, json: bool) -> Result<()> {
    let mut faults = Vec::new();
    let mut reports = Vec::new();
    for (name, bytes) in segments(place).await? {
        let report = wal::inspect::segment(&name, &bytes);
        let of_file = report.faults.iter();
        faults.extend(of_file.map(|fault| format!("{name}: {fault}")));
        reports.push((name, report));
    }
    show(json, &reports, || {
        for (name, report) in &reports {
            print::segment(name, report);
        }
    });
    end(place, &faults)
}

/// Names and contents of the segments at `place`, in order.
async fn segments(place: &str) -> Result<Vec<(String, Bytes)>> {
    if place.contains("://") {
        let (store, name) = open_object(place)?;
        let bytes = store.get(&name).await?;
        return Ok(vec![(place.to_owned(), bytes)]);
    }
    let path = absolute(Path::new(place))?;
    let unreadable =
        |error| Error::unavailable(format!("read {}", path.display())).with_source(error);
    let mut files = vec![path.clone()];
    if path.is_dir() {
        files.clear();
        for entry in std::fs::read_dir(&path).map_err(unreadable)? {
            files.push(entry.map_err(unreadable)?.path());
        }
        files.retain(|file| file.extension().is_some_and(|extension| extension == "wal"));
        files.sort();
    }
    if files.is_empty() {
        return Err(Error::not_found(format!(
            "there are no wal segments in {place}"
        )));
    }
    let read = |file: PathBuf| {
        let bytes = std::fs::read(&file).map_err(unreadable)?;
        Ok((file.display().to_string(), Bytes::from(bytes)))
    };
    files.into_iter().map(read).collect()
}

fn show(json: bool, report: &impl Serialize, print: impl FnOnce()) {
    if json {
        let value = serde_json::to_value(report).expect("reports have text keys");
        println!("{value:#}");
    } else {
        print();
    }
}

/// The end of the command: an error, if there were faults.
fn end(place: &str, faults: &[String]) -> Result<()> {
    if faults.is_empty() {
        return Ok(());
    }
    let count = faults.len();
    Err(Error::corrupt(format!(
        "{place}: {count} faults, the first: {}",
        faults[0]
    )))
}
