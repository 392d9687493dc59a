//! Whether what an SST says of itself is so: its checksums, its index, the order and number of its keys.

use std::cmp::Ordering;

use bytes::Bytes;
use parquet::{
    arrow::arrow_reader::ParquetRecordBatchReaderBuilder, errors::ParquetError,
    file::metadata::ParquetMetaData,
};

use super::SstReport;
use crate::{
    error,
    sst::{
        chunks::guarded,
        footer::{self, Footer},
        index::Index,
    },
    types::{Key, KeyEncoder, SEQ_COLUMN},
};

/// Verifies the checksums of column chunks, key filter and page index.
pub(super) fn checksums(
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
    let page_index = own.index.range.end..report.bytes.saturating_sub(report.footer_bytes);
    let filter = own
        .filter
        .iter()
        .map(|filter| ("key filter", filter.range.clone(), filter.crc));
    let blocks = filter.chain([("page index", page_index, own.page_index_crc)]);
    for (name, range, crc) in blocks {
        let (start, length) = (range.start, range.end.saturating_sub(range.start));
        if part(bytes, start, length).map(crc32fast::hash) != Some(crc) {
            let what = format!("{name}: checksum of its {length} bytes at {start} does not match");
            report.faults.push(what);
        }
    }
}

/// The index, if it is whole, and the checksums in it verified.
pub(super) fn index(
    bytes: &Bytes,
    metadata: &ParquetMetaData,
    own: &Footer,
    report: &mut SstReport,
) -> Option<Index> {
    let (start, length) = (
        own.index.range.start,
        own.index.range.end - own.index.range.start,
    );
    let block = part(bytes, start, length).filter(|part| crc32fast::hash(part) == own.index.crc);
    let Some(block) = block else {
        let what = format!("index: checksum of its {length} bytes at {start} does not match");
        report.faults.push(what);
        return None;
    };
    let index = Index::parse(bytes.slice_ref(block)).and_then(|index| {
        // The footer may be damaged.
        error::guarded(|| index.check(metadata, &own.row_group_keys))?;
        Ok(index)
    });
    match index {
        Ok(index) => {
            pages(bytes, metadata, &index, report);
            Some(index)
        }
        Err(error) => {
            report.faults.push(format!("index: {}", error.message()));
            None
        }
    }
}

fn pages(bytes: &Bytes, metadata: &ParquetMetaData, index: &Index, report: &mut SstReport) {
    for (at, group) in index.groups.iter().enumerate() {
        for (column, own) in group.chunks.iter().enumerate() {
            let locations = metadata
                .offset_index()
                .and_then(|pages| pages.get(at)?.get(column))
                .map_or(&[][..], |pages| pages.page_locations());
            let chunk = metadata.row_group(at).column(column);
            let start = chunk.byte_range().0;
            let first = locations.first().map_or(start, |page| page.offset as u64);
            let dictionary = (
                "dictionary".to_owned(),
                start,
                first - start,
                own.dictionary_crc,
            );
            let data =
                locations
                    .iter()
                    .zip(&own.page_crcs)
                    .enumerate()
                    .map(|(page, (place, crc))| {
                        let (start, length) =
                            (place.offset as u64, place.compressed_page_size as u64);
                        (format!("page {page}"), start, length, *crc)
                    });
            for (name, start, length, crc) in [dictionary].into_iter().chain(data) {
                if part(bytes, start, length).map(crc32fast::hash) == Some(crc) {
                    report.pages_verified += u64::from(name != "dictionary");
                } else {
                    report.faults.push(format!(
                        "row group {at}, column {}, {name}: checksum of its {length} bytes at {start} \
                         does not match",
                        chunk.column_path()
                    ));
                }
            }
        }
    }
}

fn part(bytes: &Bytes, start: u64, length: u64) -> Option<&[u8]> {
    let end = start.checked_add(length)?;
    bytes.get(usize::try_from(start).ok()?..usize::try_from(end).ok()?)
}

/// Decodes every row group on its own, so that one that is damaged does not hide the others.
pub(super) fn rows(
    bytes: &Bytes,
    own: Option<&Footer>,
    index: Option<&Index>,
    report: &mut SstReport,
) {
    let mut keys = Keys::default();
    for group in 0..report.row_groups.len() {
        let mut rows = 0;
        keys.marks = index.map_or_else(Vec::new, |index| {
            let marks = index.groups[group].marks.iter().enumerate();
            let first_rows =
                marks.map(|(at, key)| (at as u64 * u64::from(index.page_rows), key.clone()));
            first_rows.collect()
        });
        let mut disorder = None;
        let decoded = guarded(|| {
            let builder = ParquetRecordBatchReaderBuilder::try_new(bytes.clone())?;
            let encoder =
                own.and_then(|_| key_encoder(builder.metadata(), builder.schema().fields()));
            for batch in builder.with_row_groups(vec![group]).build()? {
                let batch = batch?;
                if let Some(encoder) = &encoder {
                    let encoded = encoder.encode(&batch);
                    let encoded =
                        encoded.map_err(|error| ParquetError::External(Box::new(error)))?;
                    for (row, key) in encoded.iter().enumerate() {
                        disorder = disorder.take().or(keys.add(key.data(), rows + row as u64));
                    }
                }
                rows += batch.num_rows() as u64;
            }
            Ok::<_, ParquetError>(())
        });
        report.rows_decoded += rows;
        if let Err(error) = decoded {
            let what = format!("row group {group}: after {rows} rows: {error}");
            report.faults.push(what);
        }
        if let Some(disorder) = disorder {
            report.faults.push(format!("row group {group}: {disorder}"));
        }
    }
    report.keys_decoded = keys.last.is_some().then_some(keys.different);
    if !report.faults.is_empty() {
        return;
    }
    let (have, want) = (report.rows_decoded, report.rows);
    if have != want {
        let what = format!("rows: the footer says {want}, but {have} were decoded");
        report.faults.push(what);
    }
    if let (Some(have), Some(own)) = (report.keys_decoded, own)
        && have != own.keys
    {
        let want = own.keys;
        let what = format!("keys: the footer says {want}, but there are {have}");
        report.faults.push(what);
    }
}

/// Encodes the key of an SST's rows, as its sorting columns state it; `None` where they end before it does.
fn key_encoder(
    metadata: &ParquetMetaData,
    fields: &arrow::datatypes::Fields,
) -> Option<KeyEncoder> {
    let sorting = metadata.row_groups().first()?.sorting_columns()?;
    let columns = metadata.file_metadata().schema_descr();
    let roots = sorting.iter().map(|sort| {
        let leaf = usize::try_from(sort.column_idx).ok()?;
        (leaf < columns.num_columns()).then(|| columns.get_column_root_idx(leaf))
    });
    let mut roots = roots.collect::<Option<Vec<usize>>>()?;
    let last = fields.get(roots.pop()?)?;
    let key: Option<Vec<_>> = roots
        .iter()
        .map(|&root| fields.get(root).cloned())
        .collect();
    let is_whole = last.name() == SEQ_COLUMN;
    is_whole
        .then(|| KeyEncoder::new(&key?, &roots).ok())
        .flatten()
}

/// The keys decoded so far.
#[derive(Default)]
struct Keys {
    last: Option<Key>,
    different: u64,
    /// First rows of the blocks of this row group, and their keys.
    marks: Vec<(u64, Key)>,
}

impl Keys {
    /// Adds the key of the row at `row` of the row group; says what is wrong with it.
    fn add(&mut self, key: &[u8], row: u64) -> Option<String> {
        let order = self
            .last
            .as_ref()
            .map_or(Ordering::Less, |last| last.0[..].cmp(key));
        if order != Ordering::Equal {
            self.different += 1;
            self.last = Some(Key::from(key));
        }
        if order == Ordering::Greater {
            let key = footer::hex(key);
            return Some(format!("key {key} of row {row} is out of order"));
        }
        let mark = self
            .marks
            .binary_search_by_key(&row, |(row, _)| *row)
            .ok()?;
        let (_, mark) = &self.marks[mark];
        (mark.0 != key).then(|| {
            let key = footer::hex(key);
            format!("row {row} has the key {key}, the index says {mark:?}")
        })
    }
}
