//! Plain Parquet files on this machine, as other tools write and read them: what `siltstone import` reads, and what
//! `siltstone export` writes. Not SSTs; those are the library's.
//!
//! A file is read batch by batch and written row group by row group, and never held as a whole. It is written under
//! another name beside its own, which it gets when it is complete.

use std::{
    fs::{self, File},
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

use arrow::{
    array::RecordBatch,
    datatypes::{Schema, SchemaRef},
};
use parquet::{
    arrow::{
        ArrowWriter,
        arrow_reader::{ArrowReaderMetadata, ParquetRecordBatchReaderBuilder},
    },
    basic::{Compression, ZstdLevel},
    file::{metadata::ParquetMetaData, properties::WriterProperties},
};
use siltstone::error::{Error, Result};

/// Rows of a batch at most.
const BATCH_ROWS_MAX: usize = 8_192;
/// Bytes of a batch, about.
const BATCH_BYTES: u64 = 8 << 20;
/// Rows of a row group that is written, at most.
const ROW_GROUP_ROWS_MAX: usize = 1 << 20;
/// Encoded bytes of a row group that is written, about; they are in memory until it is complete.
const ROW_GROUP_BYTES: usize = 64 << 20;
/// Level of the compression: as for SSTs.
const ZSTD_LEVEL: i32 = 1;

/// A file that can be read. Its footer was.
#[derive(Clone, Debug)]
pub struct ParquetFile {
    path: PathBuf,
    rows: u64,
    columns: SchemaRef,
}

impl ParquetFile {
    /// Reads the footer of the file at `path`.
    ///
    /// # Errors
    /// `NotFound`; `Corrupt` when it is not Parquet; `Invalid` when it is compressed in a way that this build does
    /// not read. All name the file.
    pub fn open(path: &Path) -> Result<Self> {
        let (_, metadata) = load(path)?;
        check_compression(path, metadata.metadata())?;
        Ok(Self {
            path: path.to_owned(),
            rows: rows_of(metadata.metadata()),
            columns: columns_of(&metadata),
        })
    }

    /// Its path, as it was given, in quotes.
    pub fn name(&self) -> String {
        name_of(&self.path)
    }

    /// Its rows.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Its columns.
    pub fn columns(&self) -> &SchemaRef {
        &self.columns
    }

    /// Its rows, in batches. Blocks.
    ///
    /// # Errors
    /// `NotFound`, or `Corrupt` when it is another file by now; each batch `Corrupt` when it cannot be decoded, and
    /// the last one when there are fewer rows than there should be. All name the file.
    pub fn batches(&self) -> Result<impl Iterator<Item = Result<RecordBatch>>> {
        let (file, metadata) = load(&self.path)?;
        if columns_of(&metadata) != self.columns || rows_of(metadata.metadata()) != self.rows {
            return Err(Error::corrupt(format!(
                "file {} was changed meanwhile",
                self.name()
            )));
        }
        let rows = batch_rows(metadata.metadata());
        let mut reader = decoded(&self.path, || {
            let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(file, metadata);
            builder.with_batch_size(rows).build()
        })?;
        let (mut come, mut has_ended) = (0, false);
        let next = move || {
            if has_ended {
                return None;
            }
            let batch = decoded(&self.path, || reader.next().transpose());
            let batch = batch.and_then(|batch| match batch {
                None if come < self.rows => {
                    let (name, rows) = (self.name(), self.rows);
                    Err(Error::corrupt(format!(
                        "file {name} ends after {come} of its {rows} rows"
                    )))
                }
                batch => Ok(batch),
            });
            match &batch {
                Ok(Some(batch)) => come += batch.num_rows() as u64,
                Ok(None) | Err(_) => has_ended = true,
            }
            batch.transpose()
        };
        Ok(std::iter::from_fn(next))
    }
}

fn name_of(path: &Path) -> String {
    format!("{:?}", path.display().to_string())
}

/// Runs `decode`, which reads the file at `path`. What the decoder asserts about damaged bytes is an error, too.
fn decoded<T, E>(path: &Path, decode: impl FnOnce() -> std::result::Result<T, E>) -> Result<T>
where
    E: std::error::Error + Send + Sync + 'static,
{
    let corrupt = || Error::corrupt(format!("file {} cannot be decoded", name_of(path)));
    match catch_unwind(AssertUnwindSafe(decode)) {
        Ok(decoded) => decoded.map_err(|error| corrupt().with_source(error)),
        Err(_) => Err(corrupt()),
    }
}

fn load(path: &Path) -> Result<(File, ArrowReaderMetadata)> {
    let file = File::open(path).map_err(|error| {
        Error::not_found(format!("file {} cannot be read", name_of(path))).with_source(error)
    })?;
    let metadata = decoded(path, || {
        ArrowReaderMetadata::load(&file, Default::default())
    })?;
    Ok((file, metadata))
}

/// The columns, without what else a file says of itself.
fn columns_of(metadata: &ArrowReaderMetadata) -> SchemaRef {
    Schema::new(metadata.schema().fields().clone()).into()
}

fn rows_of(metadata: &ParquetMetaData) -> u64 {
    let groups = metadata.row_groups().iter();
    groups.map(|group| group.num_rows().max(0) as u64).sum()
}

/// Rows of a batch of about [`BATCH_BYTES`].
fn batch_rows(metadata: &ParquetMetaData) -> usize {
    let groups = metadata.row_groups().iter();
    let bytes: u64 = groups
        .map(|group| group.total_byte_size().max(0) as u64)
        .sum();
    let row = (bytes / rows_of(metadata).max(1)).max(1);
    usize::try_from(BATCH_BYTES / row).map_or(BATCH_ROWS_MAX, |rows| rows.clamp(1, BATCH_ROWS_MAX))
}

/// That every column is compressed in a way that this build has.
fn check_compression(path: &Path, metadata: &ParquetMetaData) -> Result<()> {
    let groups = metadata.row_groups().iter();
    for chunk in groups.flat_map(|group| group.columns()) {
        match chunk.compression() {
            Compression::UNCOMPRESSED | Compression::ZSTD(_) | Compression::SNAPPY => {}
            other => {
                let (name, column) = (name_of(path), chunk.column_path());
                return Err(Error::invalid(format!(
                    "file {name}: column {column} is compressed by {other}; only zstd, snappy and no compression are read"
                )));
            }
        }
    }
    Ok(())
}

/// What a file that was written has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrittenFile {
    /// Its rows.
    pub rows: u64,
    /// Its size.
    pub bytes: u64,
    /// Its row groups.
    pub row_groups: usize,
}

/// A file that is being written. Dropped before it is finished, it leaves nothing.
pub struct ParquetWriter {
    writer: ArrowWriter<File>,
    partial: Partial,
    target: PathBuf,
    overwrite: bool,
}

impl ParquetWriter {
    /// Begins a file with `columns`, to be called `target`. `suffix` sets its name apart until then. A file that
    /// there is already stays, unless `overwrite`.
    ///
    /// # Errors
    /// `Invalid`, naming it, when there is one, or none can be made there.
    pub fn create(
        target: &Path,
        columns: SchemaRef,
        suffix: &str,
        overwrite: bool,
    ) -> Result<Self> {
        check_free(target, overwrite)?;
        let name = target.file_name().unwrap_or_default().to_string_lossy();
        let path = target.with_file_name(format!(".{name}.{suffix}.partial"));
        let file = File::create_new(&path).map_err(|error| {
            Error::invalid(format!("file {} cannot be made", name_of(&path))).with_source(error)
        })?;
        let partial = Partial(path);
        let zstd = ZstdLevel::try_new(ZSTD_LEVEL);
        let zstd = zstd.map_err(|error| Error::internal("zstd level").with_source(error))?;
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(zstd))
            .set_max_row_group_row_count(Some(ROW_GROUP_ROWS_MAX))
            .set_max_row_group_bytes(Some(ROW_GROUP_BYTES))
            .build();
        let writer = ArrowWriter::try_new(file, columns, Some(properties));
        Ok(Self {
            writer: writer.map_err(|error| cannot_write(target, error))?,
            partial,
            target: target.to_owned(),
            overwrite,
        })
    }

    /// Adds rows. Blocks.
    ///
    /// # Errors
    /// `Unavailable`, naming the file.
    pub fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let written = self.writer.write(batch);
        written.map_err(|error| cannot_write(&self.target, error))
    }

    /// Makes the file durable, and gives it its name. Blocks.
    ///
    /// # Errors
    /// `Unavailable`, naming the file; `Invalid` when there is one of that name by now that is to stay.
    pub fn finish(mut self) -> Result<WrittenFile> {
        let finished = self.writer.finish();
        let metadata = finished.map_err(|error| cannot_write(&self.target, error))?;
        let unavailable = |error| cannot_write(&self.target, error);
        let file = self.writer.inner();
        file.sync_all().map_err(unavailable)?;
        let bytes = file.metadata().map_err(unavailable)?.len();
        check_free(&self.target, self.overwrite)?;
        fs::rename(&self.partial.0, &self.target).map_err(unavailable)?;
        Ok(WrittenFile {
            rows: rows_of(&metadata),
            bytes,
            row_groups: metadata.num_row_groups(),
        })
    }
}

fn cannot_write(target: &Path, error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::unavailable(format!("file {} cannot be written", name_of(target))).with_source(error)
}

/// Refuses a `target` that cannot become a file, or is one that is to stay.
fn check_free(target: &Path, overwrite: bool) -> Result<()> {
    let name = name_of(target);
    if target.is_dir() || target.file_name().is_none() {
        return Err(Error::invalid(format!("{name} does not name a file")));
    }
    if !overwrite && target.symlink_metadata().is_ok() {
        return Err(Error::invalid(format!(
            "file {name} exists already; --force writes over it"
        )));
    }
    Ok(())
}

/// A file that is not complete, deleted when dropped. Once it has another name there is nothing to delete.
struct Partial(PathBuf);

impl Drop for Partial {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
