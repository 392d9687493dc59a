//! Describes an SST for people, damaged or not, and any other Parquet file as far as it goes. Reads the
//! whole object.
//!
//! 1. The last eight bytes, the footer's checksum, the Parquet metadata, the key-values: each is reported
//!    when it is wrong, and the next is tried with what there is.
//! 2. With `verify`: the checksum of every column chunk and of the key filter, and every row is decoded.

use std::collections::BTreeMap;

use bytes::Bytes;
use parquet::{
    arrow::arrow_reader::ParquetRecordBatchReaderBuilder,
    errors::ParquetError,
    file::metadata::{
        ColumnChunkMetaData, PageIndexPolicy, ParquetMetaData, ParquetMetaDataReader,
    },
};
use serde::Serialize;

use super::{
    chunks::guarded,
    footer::{self, Footer},
};
use crate::{error::Result, store::Store};

/// Values longer than this are cut in reports: keys of all row groups, checksums of all chunks.
const VALUE_CHARS_MAX: usize = 200;

/// A Parquet object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SstReport {
    /// Its size.
    pub bytes: u64,
    /// Bytes of the footer, its length and magic included.
    pub footer_bytes: u64,
    /// Who wrote it, as it says.
    pub created_by: Option<String>,
    /// Rows, as the footer says.
    pub rows: u64,
    /// Columns and their types.
    pub columns: Vec<String>,
    /// The footer's key-values; those of Siltstone begin with `siltstone.`. Long ones are cut.
    pub key_values: BTreeMap<String, String>,
    /// Its row groups.
    pub row_groups: Vec<RowGroupReport>,
    /// Column chunks whose checksum was verified.
    pub chunks_verified: u64,
    /// Rows that were decoded.
    pub rows_decoded: u64,
    /// What is wrong, and where.
    pub faults: Vec<String>,
}

/// One row group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RowGroupReport {
    /// Rows in it.
    pub rows: i64,
    /// Its first key, encoded, in hex; of SSTs only.
    pub first_key: Option<String>,
    /// Its column chunks.
    pub chunks: Vec<ChunkReport>,
}

/// One column of a row group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ChunkReport {
    /// Path of the column.
    pub column: String,
    /// Where it begins.
    pub offset: i64,
    /// Its size.
    pub bytes: i64,
    /// Its size before compression.
    pub bytes_uncompressed: i64,
    /// Values in it, nulls included.
    pub values: i64,
    /// Encodings of its pages.
    pub encodings: Vec<String>,
    /// Bytes of its data pages, with their headers; empty without a page index.
    pub pages: Vec<i32>,
}

/// Describes the object called `name`.
///
/// # Errors
/// `NotFound`; `Unavailable`. Damage is no error.
pub async fn object(store: &Store, name: &str, verify: bool) -> Result<SstReport> {
    let bytes = store.get(name).await?;
    let described = tokio::task::spawn_blocking(move || file(&bytes, verify));
    described
        .await
        .map_err(|error| crate::error::Error::internal("inspection panicked").with_source(error))
}

/// Describes the file whose content is `bytes`.
pub fn file(bytes: &Bytes, verify: bool) -> SstReport {
    let mut report = SstReport {
        bytes: bytes.len() as u64,
        ..SstReport::default()
    };
    if let Some(metadata) = metadata(bytes, &mut report) {
        let own = key_values(bytes, &metadata, &mut report);
        let described = guarded(|| {
            report.row_groups = row_groups(&metadata, own.as_ref());
            Ok::<_, ParquetError>(())
        });
        if let Err(error) = described {
            report.faults.push(format!("row groups: {error}"));
        }
        if verify {
            if let Some(own) = &own {
                verify_checksums(bytes, &metadata, own, &mut report);
            }
            decode_rows(bytes, &mut report);
        }
    }
    report
}

/// The Parquet metadata, whether or not it was written by us, and undamaged.
fn metadata(bytes: &Bytes, report: &mut SstReport) -> Option<ParquetMetaData> {
    let length = match footer::footer_bytes(bytes) {
        Ok(length) if length <= bytes.len() => length,
        Ok(length) => {
            let have = bytes.len();
            let what =
                format!("footer: its {length} bytes do not fit into the {have} of the object");
            report.faults.push(what);
            return None;
        }
        Err(error) => {
            let message = error.message();
            let what = format!("footer: {message}; without it no row can be found");
            report.faults.push(what);
            return None;
        }
    };
    report.footer_bytes = length as u64;
    if let Err(error) = footer::check_seal(&bytes[bytes.len() - length..]) {
        report.faults.push(format!("footer: {}", error.message()));
    }
    let parse = |policy: PageIndexPolicy| {
        guarded(|| {
            ParquetMetaDataReader::new()
                .with_page_index_policy(policy)
                .parse_and_finish(bytes)
        })
    };
    let parsed = parse(PageIndexPolicy::Optional).or_else(|error| {
        let parsed = parse(PageIndexPolicy::Skip);
        if parsed.is_ok() {
            report.faults.push(format!("page index: {error}"));
        }
        parsed
    });
    match parsed {
        Ok(metadata) => Some(metadata),
        Err(error) => {
            let what = format!("footer: {error}; without it no row can be found");
            report.faults.push(what);
            None
        }
    }
}

/// Fills in what the file says of itself as a whole.
fn key_values(bytes: &Bytes, metadata: &ParquetMetaData, report: &mut SstReport) -> Option<Footer> {
    let file = metadata.file_metadata();
    report.created_by = file.created_by().map(str::to_owned);
    report.rows = u64::try_from(file.num_rows()).unwrap_or_default();
    let columns = file.schema_descr().columns().iter();
    report.columns = columns
        .map(|column| format!("{}: {}", column.path(), column.physical_type()))
        .collect();
    let pairs = file.key_value_metadata().map_or(&[][..], Vec::as_slice);
    for pair in pairs {
        let value = pair.value.clone().unwrap_or_default();
        let cut: String = value.chars().take(VALUE_CHARS_MAX).collect();
        let value = match value.chars().count() {
            chars if chars > VALUE_CHARS_MAX => format!("{cut}… ({chars} characters)"),
            _ => cut,
        };
        report.key_values.insert(pair.key.clone(), value);
    }
    match Footer::parse(pairs, bytes.len() as u64) {
        Ok(own) => Some(own),
        Err(error) => {
            report
                .faults
                .push(format!("key-values: {}", error.message()));
            None
        }
    }
}

fn row_groups(metadata: &ParquetMetaData, own: Option<&Footer>) -> Vec<RowGroupReport> {
    let groups = metadata.row_groups().iter().enumerate();
    groups
        .map(|(at, group)| RowGroupReport {
            rows: group.num_rows(),
            first_key: own
                .and_then(|own| own.row_group_keys.get(at))
                .map(|key| footer::hex(&key.0)),
            chunks: group
                .columns()
                .iter()
                .enumerate()
                .map(|(column, chunk)| ChunkReport {
                    pages: pages(metadata, at, column),
                    ..chunk_report(chunk)
                })
                .collect(),
        })
        .collect()
}

fn chunk_report(chunk: &ColumnChunkMetaData) -> ChunkReport {
    let dictionary = chunk.dictionary_page_offset();
    ChunkReport {
        column: chunk.column_path().string(),
        offset: dictionary.unwrap_or(chunk.data_page_offset()),
        bytes: chunk.compressed_size(),
        bytes_uncompressed: chunk.uncompressed_size(),
        values: chunk.num_values(),
        encodings: chunk
            .encodings()
            .map(|encoding| encoding.to_string())
            .collect(),
        pages: Vec::new(),
    }
}

/// Sizes of the data pages of one column of one row group.
fn pages(metadata: &ParquetMetaData, group: usize, column: usize) -> Vec<i32> {
    let index = metadata.offset_index();
    let column = index.and_then(|index| index.get(group)?.get(column));
    let locations = column.map_or(&[][..], |column| column.page_locations().as_slice());
    locations
        .iter()
        .map(|page| page.compressed_page_size)
        .collect()
}

fn verify_checksums(
    bytes: &Bytes,
    metadata: &ParquetMetaData,
    own: &Footer,
    report: &mut SstReport,
) {
    let chunks = metadata.row_groups().iter().enumerate();
    let chunks =
        chunks.flat_map(|(at, group)| group.columns().iter().map(move |chunk| (at, chunk)));
    let chunks: Vec<_> = chunks.collect();
    if chunks.len() != own.chunk_crcs.len() {
        let (have, want) = (own.chunk_crcs.len(), chunks.len());
        let what = format!("key-values: {have} checksums for {want} column chunks");
        report.faults.push(what);
    }
    for ((group, chunk), crc) in chunks.into_iter().zip(&own.chunk_crcs) {
        let place = format!("row group {group}, column {}", chunk.column_path());
        let Ok((start, length)) = guarded(|| Ok::<_, ParquetError>(chunk.byte_range())) else {
            report.faults.push(format!("{place}: it has no place"));
            continue;
        };
        match part(bytes, start, length) {
            None => report.faults.push(format!(
                "{place}: its {length} bytes at {start} lie outside of the object"
            )),
            Some(part) if crc32fast::hash(part) != *crc => report.faults.push(format!(
                "{place}: checksum of its {length} bytes at {start} does not match"
            )),
            Some(_) => report.chunks_verified += 1,
        }
    }
    if let Some(filter) = &own.filter {
        let (start, length) = (filter.range.start, filter.range.end - filter.range.start);
        let crc = part(bytes, start, length).map(crc32fast::hash);
        if crc != Some(filter.crc) {
            let what =
                format!("key filter: checksum of its {length} bytes at {start} does not match");
            report.faults.push(what);
        }
    }
}

fn part(bytes: &Bytes, start: u64, length: u64) -> Option<&[u8]> {
    let end = start.checked_add(length)?;
    bytes.get(usize::try_from(start).ok()?..usize::try_from(end).ok()?)
}

/// Decodes every row group on its own, so that one that is damaged does not hide the others.
fn decode_rows(bytes: &Bytes, report: &mut SstReport) {
    for group in 0..report.row_groups.len() {
        let mut rows = 0;
        let decoded = guarded(|| {
            let builder = ParquetRecordBatchReaderBuilder::try_new(bytes.clone())?;
            for batch in builder.with_row_groups(vec![group]).build()? {
                rows += batch?.num_rows() as u64;
            }
            Ok::<_, ParquetError>(())
        });
        report.rows_decoded += rows;
        if let Err(error) = decoded {
            let what = format!("row group {group}: after {rows} rows: {error}");
            report.faults.push(what);
        }
    }
    if report.faults.is_empty() && report.rows_decoded != report.rows {
        let (have, want) = (report.rows_decoded, report.rows);
        let what = format!("rows: the footer says {want}, but {have} were decoded");
        report.faults.push(what);
    }
}
