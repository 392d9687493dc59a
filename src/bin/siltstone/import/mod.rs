//! `siltstone import`: rows of Parquet files become rows of a table, all of them at once or none.
//!
//! 1. Footers, columns and names are looked at, without opening the root: what can be refused is refused before an
//!    engine that works on it has to stop.
//! 2. The root is taken over, and the table created, if that is asked for.
//! 3. A thread reads the files one after the other, `columns` makes rows of the table of them, and the table imports
//!    them. If that fails, a table that was created is dropped.

mod columns;

use std::{collections::BTreeMap, path::PathBuf, pin::pin, sync::Arc, time::Duration};

use arrow::{
    array::RecordBatch,
    datatypes::{Field, FieldRef, Schema},
};
use bytesize::ByteSize;
use clap::Args;
use futures::{Stream, stream};
use serde_json::json;
use siltstone::{
    clock::Env,
    config::Bytes,
    engine::{Engine, ImportOptions, ImportProgress, ImportReport, Table},
    error::{Error, ErrorKind, Result},
    manifest::inspect as manifests,
    sst,
    store::Store,
    types::{TableId, TableOptions, TableSchema, Windowing},
};
use tokio::{sync::mpsc, task::JoinHandle};

use self::columns::ColumnFit;
use crate::{
    inspect::open_root,
    parquet_files::ParquetFile,
    progress::{Phase, interrupted},
    taken_over,
};

/// Batches that were read and wait to be imported.
const BATCHES_AHEAD: usize = 2;
/// How often progress is shown.
const SHOWN_EVERY: Duration = Duration::from_millis(200);
/// Under this key a file tells the ids of its columns, which are no ids of the table's.
const FIELD_ID: &str = "PARQUET:field_id";

/// What to import, and where.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// A root: a URL, or a directory. It is taken over: an engine that has it open stops.
    root: String,
    /// Name of the table.
    table: String,
    /// Parquet files, not compressed or by zstd. Columns go by name; those that are missing become null. Of equal
    /// keys the last row counts.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Creates the table, with the columns of the first file; and the root, if there is none.
    #[arg(long, requires = "key")]
    create: bool,
    /// The new table's key: names of columns, parted by commas.
    #[arg(
        long,
        value_name = "COLUMNS",
        value_delimiter = ',',
        requires = "create"
    )]
    key: Vec<String>,
    /// The new table's time column, one of the key's.
    #[arg(long, value_name = "COLUMN", requires = "create")]
    time: Option<String>,
    /// Width of the new table's windows, as "30days"; "auto", which is the default with --time; "none".
    #[arg(long, value_name = "DURATION", requires = "time", value_parser = windowing)]
    window: Option<Windowing>,
    /// The rows of all files, one after the other, are in the order of the key: nothing is sorted.
    #[arg(long)]
    sorted: bool,
    /// Memory for sorting; more rows than fit are sorted in parts, in files of the root.
    #[arg(long, value_name = "BYTES", default_value = "256MiB")]
    memory: ByteSize,
    /// The engine's configuration file: for its write-ahead log, and the sizes of SSTs.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Prints JSON.
    #[arg(long)]
    json: bool,
}

fn windowing(text: &str) -> std::result::Result<Windowing, String> {
    match text {
        "auto" => Ok(Windowing::Auto),
        "none" => Ok(Windowing::None),
        width => match humantime::parse_duration(width) {
            Ok(width) => Ok(width.into()),
            Err(_) => {
                Err("it is no duration such as \"30days\", not \"auto\", and not \"none\"".into())
            }
        },
    }
}

/// Imports, and prints what that did.
///
/// # Errors
/// `Invalid`, naming file and column, for files that do not fit the table; naming the row, for rows that are not
/// sorted although they should be; `Corrupt`, naming the file, for damaged ones; `NotFound`; `Closed` when it is
/// interrupted; as for opening an engine, and for [`Table::import`].
pub async fn run(options: Options) -> Result<()> {
    // What the Parquet decoder asserts about damaged bytes is caught, and reported.
    std::panic::set_hook(Box::new(|panic| tracing::debug!(%panic, "caught")));
    let files = options.files.iter().map(|file| ParquetFile::open(file));
    let files = files.collect::<Result<Vec<_>>>()?;
    let schema = schema_before(&options, &files).await?;
    fit(&schema, &files)?;
    let (root, config) = (options.root.as_str(), options.config.as_deref());
    let engine = match options.create {
        true => taken_over::open_or_create(root, config).await,
        false => taken_over::open(root, config).await,
    }?;
    let imported = import_into(&engine, schema, &files, &options).await;
    let closed = engine.close().await;
    let report = imported?;
    closed?;
    print(&report, &options);
    Ok(())
}

/// The schema of the table, as it is or as it is to be, without opening the root for writing.
async fn schema_before(options: &Options, files: &[ParquetFile]) -> Result<TableSchema> {
    let name = &options.table;
    let there = match open_root(&options.root) {
        Ok(store) => tables(&store).await?.map(|tables| (store, tables)),
        Err(error) if error.kind() == ErrorKind::NotFound && options.create => None,
        Err(error) => return Err(error),
    };
    let (store, tables) = match (there, options.create) {
        (Some((store, tables)), false) => (store, tables),
        (Some((_, tables)), true) if tables.contains_key(name) => {
            return Err(Error::invalid(format!(
                "table {name:?} exists already; without --create it is imported into"
            )));
        }
        (_, true) => return new_schema(options, &files[0]),
        (None, false) => {
            let root = &options.root;
            return Err(Error::not_found(format!(
                "{root} is not a siltstone root: it has no catalog; --create makes one"
            )));
        }
    };
    let Some(&id) = tables.get(name) else {
        let message = no_table(name, tables.keys());
        return Err(Error::not_found(format!("{message}; --create makes it")));
    };
    let seen = manifests::version(&store, id).await?;
    match seen.version {
        Some(version) => Ok(version.schema.clone()),
        None => Err(Error::corrupt(format!(
            "the manifest of table {name:?}: {}",
            seen.faults.join("; ")
        ))),
    }
}

/// The tables of a root by name; `None` when it has no catalog.
async fn tables(store: &Store) -> Result<Option<BTreeMap<String, TableId>>> {
    match manifests::tables(store).await {
        Ok((tables, _)) => Ok(Some(tables.into_iter().collect())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// That there is no table called `name`, but these.
pub fn no_table<'a>(name: &str, tables: impl Iterator<Item = &'a String>) -> String {
    let tables: Vec<String> = tables.map(|table| format!("{table:?}")).collect();
    match tables.is_empty() {
        true => format!("there is no table {name:?}, and no other"),
        false => format!("there is no table {name:?}, but {}", tables.join(", ")),
    }
}

/// The schema of a table with the columns of `file`.
fn new_schema(options: &Options, file: &ParquetFile) -> Result<TableSchema> {
    let time = options.time.as_deref();
    let column = |field: &FieldRef| {
        let mut metadata = field.metadata().clone();
        metadata.remove(FIELD_ID);
        let is_nullable = field.is_nullable() && time != Some(field.name());
        Field::new(field.name(), field.data_type().clone(), is_nullable).with_metadata(metadata)
    };
    let columns: Vec<Field> = file.columns().fields().iter().map(column).collect();
    let by_default = match time {
        Some(_) => Windowing::Auto,
        None => Windowing::None,
    };
    let table = TableOptions {
        window: options.window.unwrap_or(by_default),
        ..TableOptions::default()
    };
    let key: Vec<&str> = options.key.iter().map(String::as_str).collect();
    let schema = TableSchema::new(Schema::new(columns).into(), &key, time, table);
    let naming = |error: Error| error.context(format!("a table like file {}", file.name()));
    let schema = schema.map_err(naming)?;
    sst::check_storable(&schema).map_err(naming)?;
    Ok(schema)
}

/// How each file becomes rows of a table of `schema`.
fn fit(schema: &TableSchema, files: &[ParquetFile]) -> Result<Vec<ColumnFit>> {
    let columns = schema.columns();
    let fit = |file: &ParquetFile| ColumnFit::new(columns, &file.name(), file.columns());
    files.iter().map(fit).collect()
}

/// Imports into the table, or into one that is created, and dropped if that fails.
async fn import_into(
    engine: &Engine,
    schema: TableSchema,
    files: &[ParquetFile],
    options: &Options,
) -> Result<ImportReport> {
    let name = &options.table;
    if !options.create {
        return import(&engine.table(name)?, files, options).await;
    }
    let table = engine.create_table(name, schema).await?;
    let imported = import(&table, files, options).await;
    if imported.is_err()
        && let Err(error) = engine.drop_table(name).await
    {
        tracing::warn!(table = name, %error, "the new table could not be dropped");
    }
    imported
}

async fn import(table: &Table, files: &[ParquetFile], options: &Options) -> Result<ImportReport> {
    // It may have been changed since it was looked at.
    let fits = fit(&table.schema(), files)?;
    let files: Vec<_> = files.iter().cloned().zip(fits).collect();
    let rows = files.iter().map(|(file, _)| file.rows()).sum();
    let progress = Arc::new(ImportProgress::default());
    let settings = ImportOptions {
        sorted: options.sorted,
        memory_bytes: options.memory.as_u64(),
        progress: progress.clone(),
    };
    let mut importing = pin!(table.import(batches(files), settings));
    let mut shown = Shown::new(rows, progress);
    let mut interrupted = pin!(interrupted());
    loop {
        tokio::select! {
            imported = &mut importing => return imported,
            interrupted = &mut interrupted => {
                return Err(interrupted.context("unless all rows had been written, none is imported"));
            }
            () = tokio::time::sleep(SHOWN_EVERY) => shown.show(),
        }
    }
}

/// The rows of all files as rows of the table.
fn batches(files: Vec<(ParquetFile, ColumnFit)>) -> impl Stream<Item = Result<RecordBatch>> {
    let (sender, receiver) = mpsc::channel(BATCHES_AHEAD);
    let reading = tokio::task::spawn_blocking(move || read(&files, &sender));
    stream::unfold((receiver, Some(reading)), next)
}

/// Reads all files; until nobody wants their rows any more.
fn read(files: &[(ParquetFile, ColumnFit)], sender: &mpsc::Sender<RecordBatch>) -> Result<()> {
    for (file, fit) in files {
        let mut first_row = 0;
        for batch in file.batches()? {
            let batch = fit.apply(&batch?, first_row)?;
            first_row += batch.num_rows() as u64;
            if sender.blocking_send(batch).is_err() {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// What is read, and the thread that reads; `None` once it was asked how it ended.
type Reading = (mpsc::Receiver<RecordBatch>, Option<JoinHandle<Result<()>>>);

/// The next batch. That there is none is the end of the rows only if the thread says so.
async fn next((mut receiver, mut reading): Reading) -> Option<(Result<RecordBatch>, Reading)> {
    if let Some(batch) = receiver.recv().await {
        return Some((Ok(batch), (receiver, reading)));
    }
    let ended = reading.take()?.await;
    let lost = |error| Error::internal("the thread that reads the files").with_source(error);
    match ended.map_err(lost) {
        Ok(Ok(())) => None,
        Ok(Err(error)) | Err(error) => Some((Err(error), (receiver, None))),
    }
}

/// Progress on the screen: rows are read, and then, if they were not written meanwhile, written.
struct Shown {
    phase: Phase,
    is_reading: bool,
    rows: u64,
    done: u64,
    progress: Arc<ImportProgress>,
    env: Env,
}

impl Shown {
    fn new(rows: u64, progress: Arc<ImportProgress>) -> Self {
        let env = Env::default();
        Self {
            phase: Phase::new("import: read".into(), rows, &env),
            is_reading: true,
            rows,
            done: 0,
            progress,
            env,
        }
    }

    fn show(&mut self) {
        let progress = self.progress.clone();
        if self.is_reading && progress.rows_read() == self.rows {
            self.phase = Phase::new("import: write".into(), self.rows, &self.env);
            (self.is_reading, self.done) = (false, 0);
        }
        let done = match self.is_reading {
            true => progress.rows_read(),
            false => progress.rows_written(),
        };
        let more = done.saturating_sub(self.done);
        self.done = done;
        self.phase.advance(more, || {
            let bytes = Bytes(progress.bytes_written());
            match progress.rows_spilled() {
                0 => format!("{bytes} written"),
                spilled => format!("{spilled} rows sorted in parts, {bytes} written"),
            }
        });
    }
}

fn print(report: &ImportReport, options: &Options) {
    let (table, files) = (&options.table, options.files.len());
    let seconds = report.elapsed.as_secs_f64();
    if options.json {
        let value = json!({
            "table": table,
            "created": options.create,
            "files": files,
            "rows_read": report.rows_read,
            "rows": report.rows,
            "ssts": report.ssts,
            "ssts_in_level_0": report.ssts_in_level_0,
            "bytes": report.bytes,
            "rows_spilled": report.rows_spilled,
            "seq": report.seq,
            "seconds": seconds,
        });
        println!("{value:#}");
        return;
    }
    println!(
        "table {table:?}: {} rows imported of {} in {files} files, as {} SSTs, {}, in {seconds:.1} s",
        report.rows,
        report.rows_read,
        report.ssts,
        Bytes(report.bytes)
    );
    if report.ssts_in_level_0 > 0 {
        println!(
            "{} SSTs share keys with what was there, and wait to be compacted by an engine",
            report.ssts_in_level_0
        );
    }
}
