//! Describes an SST for people, damaged or not, and any other Parquet file as far as it goes. Reads the
//! whole object.
//!
//! 1. The last eight bytes, the footer's checksum, the Parquet metadata, the key-values: each is reported
//!    when it is wrong, and the next is tried with what there is.
//! 2. With `verify`: every checksum, and every row is decoded and compared with what footer and index say.

mod verify;

use std::collections::BTreeMap;

use bytes::Bytes;
use parquet::{
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
use crate::{error::Result, store::Store, threads};

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
    /// Data pages whose checksum was verified.
    pub pages_verified: u64,
    /// Rows that were decoded.
    pub rows_decoded: u64,
    /// Different keys among these, of SSTs whose whole key Parquet can state the order of.
    pub keys_decoded: Option<u64>,
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
    let described = threads::run(move || file(&bytes, verify));
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
            let index = own.as_ref().and_then(|own| {
                verify::checksums(bytes, &metadata, own, &mut report);
                verify::index(bytes, &metadata, own, &mut report)
            });
            verify::rows(bytes, own.as_ref(), index.as_ref(), &mut report);
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
