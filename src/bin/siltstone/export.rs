//! `siltstone export`: the rows of a table, as far as they are flushed, become one plain Parquet file.
//!
//! The root is opened for reading only, so that an engine may be at work meanwhile, and the rows come from one scan: a
//! consistent picture of the table. A thread of its own encodes them.

use std::{path::PathBuf, pin::pin};

use arrow::{
    array::{RecordBatch, timezone::Tz},
    compute::kernels::cast_utils::string_to_datetime,
    datatypes::TimeUnit,
};
use clap::Args;
use futures::StreamExt;
use serde_json::json;
use siltstone::{
    clock::Env,
    config::Bytes,
    engine::{Engine, Reader, ReaderTable, ScanRequest, ScanStream},
    error::{Error, ErrorKind, Result},
    manifest::inspect as manifests,
    types::{TableSchema, TimeRange},
};
use tokio::sync::mpsc;

use crate::{
    import::no_table,
    inspect::open_root,
    parquet_files::{ParquetWriter, WrittenFile},
    progress::{Phase, interrupted},
    taken_over,
};

/// Batches that were read and wait to be written.
const BATCHES_AHEAD: usize = 2;

/// What to export, and where to.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// A root: a URL, or a directory.
    root: String,
    /// Name of the table.
    table: String,
    /// The Parquet file to write. It gets its name when it is complete.
    #[arg(value_name = "FILE")]
    target: PathBuf,
    /// Names of the columns to write, in this order, parted by commas. Default: all.
    #[arg(long, value_name = "COLUMNS", value_delimiter = ',')]
    columns: Option<Vec<String>>,
    /// The first time to write: an integer in the unit of the time column, or as 2013-07-01T00:00:00Z or 2013-07-01.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    start: Option<String>,
    /// The first time not to write.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    end: Option<String>,
    /// Writes over a file that is there.
    #[arg(long)]
    force: bool,
    /// The engine's configuration file: for how its store is reached.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Prints JSON.
    #[arg(long)]
    json: bool,
}

/// Exports, and prints what that did.
///
/// # Errors
/// `NotFound` when there is no such root or table; `Invalid` for a file that is there, a column or a time that is not;
/// `Corrupt`, naming the object; `Unavailable`, also when the file cannot be written; `Closed` when it
/// is interrupted. Nothing is left of the file then.
pub async fn run(options: Options) -> Result<()> {
    let env = Env::default();
    let started = env.monotonic();
    let mut config = taken_over::config(&options.root, options.config.as_deref())?;
    // That is the engine's.
    config.cache.disk_dir = None;
    let reader = Engine::open_reader(config).await?;
    let exported = export(&reader, &options, &env).await;
    let closed = reader.close().await;
    let written = exported?;
    closed?;
    let seconds = (env.monotonic() - started).as_secs_f64();
    let (table, file) = (&options.table, options.target.display().to_string());
    let WrittenFile {
        rows,
        bytes,
        row_groups,
    } = written;
    if options.json {
        let value = json!({
            "table": table,
            "file": file,
            "rows": rows,
            "bytes": bytes,
            "row_groups": row_groups,
            "seconds": seconds,
        });
        println!("{value:#}");
    } else {
        let bytes = Bytes(bytes);
        println!("table {table:?}: {rows} rows exported to {file:?}, {bytes}, in {seconds:.1} s");
    }
    Ok(())
}

async fn export(reader: &Reader, options: &Options, env: &Env) -> Result<WrittenFile> {
    let table = match reader.table(&options.table).await {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let tables = reader.tables().await?;
            return Err(Error::not_found(no_table(&options.table, tables.iter())));
        }
        table => table?,
    };
    let times = times(options, &table.schema()?)?;
    let expected = rows_expected(options, &table, times).await?;
    let request = ScanRequest {
        projection: options.columns.clone(),
        times,
        ..ScanRequest::all()
    };
    let scan = table.scan(request).await?;
    let suffix = format!("{:08x}", env.random() as u32);
    let columns = scan.schema().clone();
    let writer = ParquetWriter::create(&options.target, columns, &suffix, options.force)?;
    let (sender, receiver) = mpsc::channel(BATCHES_AHEAD);
    let writing = tokio::task::spawn_blocking(move || write(writer, receiver));
    let read = feed(scan, &sender, expected, env).await;
    drop(sender);
    let written = writing.await;
    let lost = |error| Error::internal("the thread that writes the file").with_source(error);
    let written = written.map_err(lost)?;
    read?;
    written
}

/// What there is for the thread that writes.
enum Part {
    Rows(RecordBatch),
    /// That was all; without it the file is given up.
    End,
}

/// Hands the rows on.
async fn feed(
    mut scan: ScanStream,
    sender: &mpsc::Sender<Part>,
    expected: u64,
    env: &Env,
) -> Result<()> {
    let mut phase = Phase::new("export".into(), expected, env);
    let mut interrupted = pin!(interrupted());
    loop {
        let batch = tokio::select! {
            batch = scan.next() => batch,
            interrupted = &mut interrupted => return Err(interrupted),
        };
        let Some(batch) = batch else {
            break;
        };
        let batch = batch?;
        let rows = batch.num_rows() as u64;
        if sender.send(Part::Rows(batch)).await.is_err() {
            // It says itself why it has ended.
            return Ok(());
        }
        phase.advance(rows, || "rows".into());
    }
    // As above.
    let _ = sender.send(Part::End).await;
    Ok(())
}

fn write(mut writer: ParquetWriter, mut parts: mpsc::Receiver<Part>) -> Result<WrittenFile> {
    while let Some(part) = parts.blocking_recv() {
        match part {
            Part::Rows(batch) => writer.write(&batch)?,
            Part::End => return writer.finish(),
        }
    }
    Err(Error::internal("the rows ended early"))
}

/// Rows that are stored, of these times: not fewer than there are, but what is hidden counts, too.
async fn rows_expected(
    options: &Options,
    table: &ReaderTable,
    times: Option<TimeRange>,
) -> Result<u64> {
    let store = open_root(&options.root)?;
    let seen = manifests::version(&store, table.id()).await?;
    let Some(version) = seen.version else {
        return Ok(0);
    };
    let times = times.unwrap_or(TimeRange::ALL);
    let ssts = version.ssts().filter(|sst| {
        let bounds = sst.times;
        bounds.is_none_or(|(min, max)| times.overlaps(min, max))
    });
    Ok(ssts.map(|sst| sst.rows).sum())
}

/// The times that are asked for.
fn times(options: &Options, schema: &TableSchema) -> Result<Option<TimeRange>> {
    if options.start.is_none() && options.end.is_none() {
        return Ok(None);
    }
    let Some(unit) = schema.time_unit() else {
        let table = &options.table;
        return Err(Error::invalid(format!(
            "table {table:?} has no time column: there is no --start, and no --end"
        )));
    };
    let parse = |text: &Option<String>| text.as_deref().map(|text| time(text, unit)).transpose();
    let (start, end) = (parse(&options.start)?, parse(&options.end)?);
    Ok(Some(TimeRange {
        start: start.unwrap_or(i64::MIN),
        end: end.unwrap_or(i64::MAX),
    }))
}

/// The first time in `unit` that is not before `text`: an integer in that unit, or a date, perhaps with a time of day,
/// in UTC unless it names an offset.
fn time(text: &str, unit: TimeUnit) -> Result<i64> {
    if let Ok(time) = text.parse() {
        return Ok(time);
    }
    let invalid = || {
        Error::invalid(format!(
            "{text:?} is no time: neither an integer in units of the time column ({unit:?}), nor as \
             2013-07-01T00:00:00Z or 2013-07-01"
        ))
    };
    let utc: Tz = "+00:00".parse()?;
    let moment = string_to_datetime(&utc, text).map_err(|error| invalid().with_source(error))?;
    let second_nanos: i128 = 1_000_000_000;
    let nanos =
        i128::from(moment.timestamp()) * second_nanos + i128::from(moment.timestamp_subsec_nanos());
    let unit_nanos = match unit {
        TimeUnit::Second => second_nanos,
        TimeUnit::Millisecond => 1_000_000,
        TimeUnit::Microsecond => 1_000,
        TimeUnit::Nanosecond => 1,
    };
    let units = -(-nanos).div_euclid(unit_nanos);
    i64::try_from(units).map_err(|_| invalid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_integers_or_dates() {
        use TimeUnit::{Millisecond, Nanosecond, Second};
        for (text, unit, wanted) in [
            ("17", Second, 17),
            ("-17", Millisecond, -17),
            ("1970-01-02", Second, 86_400),
            ("1970-01-01T00:00:01.5Z", Millisecond, 1_500),
            ("1970-01-01T02:00:00+02:00", Second, 0),
            // The first second that is not before it.
            ("1970-01-01T00:00:01.5Z", Second, 2),
            ("1969-12-31T23:59:58.5Z", Second, -1),
            ("2013-07-01 00:00:00", Nanosecond, 1_372_636_800_000_000_000),
        ] {
            assert_eq!(time(text, unit).unwrap(), wanted, "{text} in {unit:?}");
        }
        for (text, unit) in [
            ("soon", Second),
            ("2013-13-01", Second),
            ("9999-01-01", Nanosecond),
        ] {
            let said = time(text, unit).unwrap_err().to_string();
            assert!(said.contains(text), "{said}");
        }
    }
}
