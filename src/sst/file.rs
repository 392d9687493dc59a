//! An opened SST: what its footer and index say, checked against what the manifest says.

use std::{ops::Range, sync::Arc};

use bytes::Bytes;
use parquet::{
    arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions},
    errors::ParquetError,
    file::metadata::{PageIndexPolicy, ParquetMetaData, ParquetMetaDataReader},
};
use tokio::sync::OnceCell;

use super::{
    cache::SstKey,
    chunks::guarded,
    filter::KeyFilter,
    footer::{self, Footer, Place, TRAILER_BYTES},
    index::{GroupIndex, Index},
    reader::SstAccess,
};
use crate::{
    error::{self, Error, Result},
    types::{Key, SstMeta, TableId, TableSchema},
};

/// What an open SST and its sources share.
pub(super) struct SstFile {
    pub(super) access: SstAccess,
    /// By which caches know it.
    pub(super) sst: SstKey,
    pub(super) name: String,
    pub(super) meta: Arc<SstMeta>,
    /// Of the table, now.
    pub(super) schema: TableSchema,
    pub(super) opened: Arc<Opened>,
}

/// What an SST says of itself, parsed: the same whoever reads it, and whatever the table has become.
pub(super) struct Opened {
    /// With the page index where there is an index.
    pub(super) parquet: ArrowReaderMetadata,
    pub(super) footer: Footer,
    /// Byte ranges of the column chunks: row group by row group, leaf by leaf.
    chunks: Vec<Range<u64>>,
    /// `None` when it was opened to be read by chunks.
    pub(super) index: Option<Index>,
    /// Fetched with the footer, or when it is needed.
    pub(super) filter: OnceCell<Option<KeyFilter>>,
}

impl Opened {
    /// Parses `footer`, which reaches to the end of the object.
    ///
    /// # Errors
    /// `Corrupt`; the caller adds the name of the object.
    pub(super) fn parse(footer: &[u8], bytes: u64) -> Result<Self> {
        footer::check_seal(footer)?;
        let thrift = &footer[..footer.len() - TRAILER_BYTES];
        let (parquet, chunks) = guarded(|| {
            let metadata = ParquetMetaDataReader::decode_metadata(thrift)?;
            let chunks = chunk_ranges(&metadata);
            let options = ArrowReaderOptions::new();
            let parquet = ArrowReaderMetadata::try_new(Arc::new(metadata), options)?;
            Ok::<_, ParquetError>((parquet, chunks))
        })?;
        let pairs = parquet.metadata().file_metadata().key_value_metadata();
        let own = Footer::parse(pairs.map_or(&[], |pairs| &pairs[..]), bytes)?;
        check_parts(&own, parquet.metadata(), &chunks, footer.len() as u64)?;
        Ok(Self {
            parquet,
            chunks,
            footer: own,
            index: None,
            filter: OnceCell::new(),
        })
    }

    /// The same, with the index and the page index. `tail` is all from the beginning of the index to the end of
    /// the object, of which the last `footer_bytes` are the footer.
    ///
    /// # Errors
    /// `Corrupt`; the caller adds the name of the object.
    pub(super) fn with_index(self, tail: &Bytes, footer_bytes: usize) -> Result<Self> {
        let place = &self.footer.index;
        let bytes = self.footer.meta.bytes;
        let index_bytes = (place.range.end - place.range.start) as usize;
        let index = tail.slice(..index_bytes);
        if crc32fast::hash(&index) != place.crc {
            return Err(Error::corrupt("checksum of its index does not match"));
        }
        let page_index = &tail[index_bytes..tail.len() - footer_bytes];
        if crc32fast::hash(page_index) != self.footer.page_index_crc {
            return Err(Error::corrupt("checksum of its page index does not match"));
        }
        // A copy, for it must not keep all of the tail.
        let index = Index::parse(Bytes::copy_from_slice(&index))?;
        let plain = self.parquet.metadata().as_ref().clone();
        let parquet = guarded(|| {
            let mut reader = ParquetMetaDataReader::new_with_metadata(plain)
                .with_offset_index_policy(PageIndexPolicy::Required)
                .with_column_index_policy(PageIndexPolicy::Optional);
            reader.read_page_indexes_sized(tail, bytes)?;
            let options = ArrowReaderOptions::new();
            ArrowReaderMetadata::try_new(Arc::new(reader.finish()?), options)
        })?;
        error::guarded(|| index.check(parquet.metadata(), &self.footer.row_group_keys))?;
        Ok(Self {
            parquet,
            index: Some(index),
            ..self
        })
    }

    /// Memory that it takes, about, its filter included.
    pub(super) fn memory_bytes(&self) -> usize {
        let place = |place: &Place| (place.range.end - place.range.start) as usize;
        let keys = self
            .footer
            .row_group_keys
            .iter()
            .map(|key| key.0.len() + 32);
        self.parquet.metadata().memory_size()
            + self.chunks.len() * (size_of::<Range<u64>>() + 4)
            + keys.sum::<usize>()
            // Its marks and checksums take little more in memory.
            + 2 * place(&self.footer.index)
            + self.footer.filter.as_ref().map_or(0, place)
    }

    /// Rows in `group`.
    pub(super) fn group_rows(&self, group: usize) -> usize {
        self.parquet.metadata().row_group(group).num_rows() as usize
    }

    /// Byte range and checksum of one column chunk.
    pub(super) fn chunk(&self, group: usize, leaf: usize) -> (Range<u64>, u32) {
        let at = group * self.leaves() + leaf;
        (self.chunks[at].clone(), self.footer.chunk_crcs[at])
    }

    /// Leaf columns.
    pub(super) fn leaves(&self) -> usize {
        self.parquet.parquet_schema().num_columns()
    }

    /// Whether no key has two versions in it.
    pub(super) fn keys_are_unique(&self) -> bool {
        self.footer.keys == self.footer.meta.rows
    }
}

impl SstFile {
    /// Puts `opened` together with what the manifest says of the SST.
    ///
    /// # Errors
    /// `Corrupt` when it is another one; the caller adds the name of the object.
    pub(super) fn check_identity(&self, table: TableId) -> Result<()> {
        check_identity(&self.opened.footer, &self.schema, table, &self.meta)
    }

    /// The blocks of `group`, or all of it where they are not known.
    pub(super) fn blocks(&self, group: usize) -> impl Iterator<Item = Block<'_>> {
        let opened = &self.opened;
        let keys = &opened.footer.row_group_keys;
        let rows = opened.group_rows(group);
        let (marks, step) = match &opened.index {
            Some(Index { page_rows, groups }) => {
                let GroupIndex { marks, .. } = &groups[group];
                (&marks[..], *page_rows as usize)
            }
            None => (&keys[group..=group], rows.max(1)),
        };
        let after = keys.get(group + 1);
        marks.iter().enumerate().map(move |(at, first)| {
            let next = marks.get(at + 1).or(after);
            Block {
                rows: at * step..((at + 1) * step).min(rows),
                first,
                last: next.unwrap_or(&self.meta.key_max),
                last_inside: next.is_none() || !opened.keys_are_unique(),
            }
        })
    }
}

/// Rows whose keys lie between two keys.
pub(super) struct Block<'a> {
    /// Positions in the row group.
    pub(super) rows: Range<usize>,
    /// Key of its first row.
    pub(super) first: &'a Key,
    /// No key in it is greater.
    pub(super) last: &'a Key,
    /// Whether that key can be in it.
    pub(super) last_inside: bool,
}

/// Byte ranges of all column chunks, row group by row group. Panics on ranges below zero.
fn chunk_ranges(metadata: &ParquetMetaData) -> Vec<Range<u64>> {
    let chunks = metadata
        .row_groups()
        .iter()
        .flat_map(|group| group.columns());
    chunks
        .map(|chunk| {
            let (start, bytes) = chunk.byte_range();
            start..start.saturating_add(bytes)
        })
        .collect()
}

fn check_identity(
    own: &Footer,
    schema: &TableSchema,
    table: TableId,
    meta: &SstMeta,
) -> Result<()> {
    if own.table != table {
        let other = own.table;
        return Err(Error::corrupt(format!(
            "it is of table {other}, not of {table}"
        )));
    }
    if own.write_mode != schema.write_mode() {
        let (other, mode) = (own.write_mode, schema.write_mode());
        return Err(Error::corrupt(format!(
            "it is of an {other} table, not of an {mode} one"
        )));
    }
    if own.meta.schema_version > schema.version() {
        let (newer, version) = (own.meta.schema_version, schema.version());
        return Err(Error::internal(format!(
            "it has schema version {newer}, but is read as {version}"
        )));
    }
    // A trivial move changes the level in the manifest only, and only there is it said where a shared SST has its home.
    let own = SstMeta {
        level: meta.level,
        home: meta.home,
        ..own.meta.clone()
    };
    if own != *meta {
        return Err(Error::corrupt(format!(
            "it is not what the manifest says: {own:?} against {meta:?}"
        )));
    }
    Ok(())
}

/// Whether the parts that a footer names are as many as there must be, and lie in front of it.
fn check_parts(
    own: &Footer,
    metadata: &ParquetMetaData,
    chunks: &[Range<u64>],
    footer_bytes: u64,
) -> Result<()> {
    let groups = metadata.row_groups();
    let rows = groups.iter().try_fold(0u64, |sum, group| {
        let rows = u64::try_from(group.num_rows()).ok()?;
        sum.checked_add(rows)
    });
    if rows != Some(own.meta.rows) {
        let want = own.meta.rows;
        return Err(Error::corrupt(format!(
            "its row groups do not have {want} rows"
        )));
    }
    if own.keys == 0 || own.keys > own.meta.rows {
        let (keys, rows) = (own.keys, own.meta.rows);
        return Err(Error::corrupt(format!("{keys} keys in {rows} rows")));
    }
    let leaves = metadata.file_metadata().schema_descr().num_columns();
    if own.row_group_keys.len() != groups.len()
        || own.chunk_crcs.len() != groups.len() * leaves
        || chunks.len() != groups.len() * leaves
    {
        let (keys, crcs) = (own.row_group_keys.len(), own.chunk_crcs.len());
        return Err(Error::corrupt(format!(
            "{keys} keys and {crcs} checksums for {} row groups of {leaves} columns",
            groups.len()
        )));
    }
    let end = own.meta.bytes.saturating_sub(footer_bytes);
    let blocks = own.filter.iter().chain([&own.index]);
    let mut parts = chunks.iter().chain(blocks.map(|Place { range, .. }| range));
    if let Some(outside) = parts.find(|part| part.end > end) {
        return Err(Error::corrupt(format!(
            "a part of it lies at {outside:?}, its footer begins at {end}"
        )));
    }
    Ok(())
}
