//! Opens an SST: fetches its footer, and holds it against what the manifest knows of it.
//!
//! 1. The last 64 KiB, or all of a smaller object, in one request; when the footer is longer, the rest of
//!    it in another.
//! 2. The footer's checksum, over the raw bytes.
//! 3. Parquet metadata and key-values. Table, id, counts, bounds and hash must be the manifest's.
//! 4. Row groups: as many keys and checksums as there are row groups and column chunks, every chunk
//!    inside the object.
//!
//! An open reader holds the parsed footer, nothing else, and is cheap to clone.

use std::{
    fmt,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use parquet::{
    arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions},
    errors::ParquetError,
    file::{
        metadata::{ParquetMetaData, ParquetMetaDataReader},
        statistics::Statistics,
    },
};
use tokio::runtime::Handle;

use super::{
    chunks::guarded,
    filter::KeyFilter,
    footer::{self, Footer, Place, TRAILER_BYTES},
    schema::{ColumnPlan, projected},
    source::{ReadRequest, SstSource},
};
use crate::{
    error::{Error, ErrorKind, Result},
    store::{Store, layout},
    types::{Key, SstMeta, TableId, TableSchema, column_id},
};

/// What is fetched at first: enough for the footer of most SSTs.
const TAIL_BYTES: u64 = 64 << 10;

/// An open SST.
#[derive(Clone)]
pub struct SstReader {
    pub(super) file: Arc<SstFile>,
}

impl fmt::Debug for SstReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SstReader({})", self.file.name)
    }
}

/// What an open SST and its sources share.
pub(super) struct SstFile {
    pub(super) store: Store,
    pub(super) name: String,
    pub(super) meta: Arc<SstMeta>,
    pub(super) schema: TableSchema,
    pub(super) parquet: ArrowReaderMetadata,
    row_group_keys: Vec<Key>,
    chunk_crcs: Vec<u32>,
    chunks: Vec<Range<u64>>,
    filter: Option<Place>,
    pub(super) stats: Arc<ReadStats>,
}

/// What reading an SST has cost so far.
#[derive(Debug, Default)]
pub struct ReadStats {
    pub(super) bytes: AtomicU64,
    pub(super) row_groups_read: AtomicU64,
    pub(super) row_groups_skipped: AtomicU64,
}

impl ReadStats {
    /// Bytes fetched from the store.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Row groups fetched.
    pub fn row_groups_read(&self) -> u64 {
        self.row_groups_read.load(Ordering::Relaxed)
    }

    /// Row groups that could hold nothing asked for, and were not fetched.
    pub fn row_groups_skipped(&self) -> u64 {
        self.row_groups_skipped.load(Ordering::Relaxed)
    }
}

/// One row group, seen from outside: where an SST can be cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowGroupBound {
    /// Its first key. The last versions of a key may be followed by more in the next row group.
    pub first_key: Key,
    /// Rows in it.
    pub rows: u64,
    /// Encoded bytes of it.
    pub bytes: u64,
}

impl SstReader {
    /// Opens the SST that a manifest describes as `meta`, of the table `table`, whose schema is now
    /// `schema`.
    ///
    /// # Errors
    /// All name the object. `NotFound` when there is none; `Unavailable`; `Corrupt` when it is damaged, of
    /// a newer format, or not what `meta` says.
    pub async fn open(
        store: &Store,
        schema: &TableSchema,
        table: TableId,
        meta: Arc<SstMeta>,
    ) -> Result<Self> {
        let name = layout::sst(table, meta.id);
        let stats = Arc::new(ReadStats::default());
        let footer = fetch_footer(store, &name, meta.bytes, &stats).await?;
        let file = SstFile::parse(store, schema, table, meta, name.clone(), &footer, stats);
        Ok(Self {
            file: Arc::new(file.map_err(|error| naming(&name, error))?),
        })
    }

    /// Name of its object.
    pub fn name(&self) -> &str {
        &self.file.name
    }

    /// What the manifest knows of it.
    pub fn meta(&self) -> &Arc<SstMeta> {
        &self.file.meta
    }

    /// Counters, shared by all sources of this reader and its clones.
    pub fn stats(&self) -> &Arc<ReadStats> {
        &self.file.stats
    }

    /// The filter over its keys, read from the store; `None` when it was written without one.
    ///
    /// # Errors
    /// `NotFound` when the object is gone; `Unavailable`; `Corrupt` when the filter is damaged.
    pub async fn key_filter(&self) -> Result<Option<KeyFilter>> {
        let file = &self.file;
        let Some(place) = &file.filter else {
            return Ok(None);
        };
        let range = place.range.clone();
        let blocks =
            one_range(&file.store, &file.name, file.meta.bytes, range, &file.stats).await?;
        if crc32fast::hash(&blocks) != place.crc {
            let error = Error::corrupt("checksum of its key filter does not match");
            return Err(naming(&file.name, error));
        }
        let filter = KeyFilter::parse(blocks);
        let broken = || naming(&file.name, Error::corrupt("its key filter is not one"));
        filter.map(Some).ok_or_else(broken)
    }

    /// Its row groups, in order.
    pub fn row_group_bounds(&self) -> Vec<RowGroupBound> {
        let keys = self.file.row_group_keys.iter();
        let groups = self.file.parquet.metadata().row_groups().iter();
        keys.zip(groups)
            .enumerate()
            .map(|(group, (key, metadata))| RowGroupBound {
                first_key: key.clone(),
                rows: metadata.num_rows() as u64,
                bytes: self
                    .file
                    .group_chunks(group)
                    .map(|(range, _)| range.end - range.start)
                    .sum(),
            })
            .collect()
    }

    /// The rows that `request` asks for, as a sorted source. Its first row group is being fetched when
    /// this returns. The source blocks, on requests that run on `handle`: use it on a thread that may.
    ///
    /// # Errors
    /// `Invalid` for a projection of unknown columns; `Corrupt` when the file lacks columns.
    pub fn source(&self, request: &ReadRequest, handle: Handle) -> Result<SstSource> {
        let wanted = projected(&self.file.schema, request.projection.as_deref())?;
        let parquet = &self.file.parquet;
        let columns = ColumnPlan::new(wanted, parquet.schema().fields(), parquet.parquet_schema())
            .map_err(|error| naming(&self.file.name, error))?;
        Ok(SstSource::new(self.file.clone(), columns, request, handle))
    }
}

impl SstFile {
    fn parse(
        store: &Store,
        schema: &TableSchema,
        table: TableId,
        meta: Arc<SstMeta>,
        name: String,
        footer: &[u8],
        stats: Arc<ReadStats>,
    ) -> Result<Self> {
        footer::check_seal(footer)?;
        let thrift = &footer[..footer.len() - TRAILER_BYTES];
        let (parquet, chunks) = guarded(|| {
            let metadata = Arc::new(ParquetMetaDataReader::decode_metadata(thrift)?);
            let chunks = chunk_ranges(&metadata);
            let options = ArrowReaderOptions::new();
            let parquet = ArrowReaderMetadata::try_new(metadata, options)?;
            Ok::<_, ParquetError>((parquet, chunks))
        })?;
        let pairs = parquet.metadata().file_metadata().key_value_metadata();
        let own = Footer::parse(pairs.map_or(&[], |pairs| &pairs[..]), meta.bytes)?;
        check_identity(&own, schema, table, &meta)?;
        check_row_groups(&own, parquet.metadata(), &chunks, footer.len() as u64)?;
        Ok(Self {
            store: store.clone(),
            name,
            meta,
            schema: schema.clone(),
            parquet,
            row_group_keys: own.row_group_keys,
            chunk_crcs: own.chunk_crcs,
            filter: own.filter,
            chunks,
            stats,
        })
    }

    /// Least and greatest key that `group` can hold.
    pub(super) fn group_keys(&self, group: usize) -> (&Key, &Key) {
        let next = self.row_group_keys.get(group + 1);
        let upper = next.unwrap_or(&self.meta.key_max);
        (&self.row_group_keys[group], upper)
    }

    /// Least and greatest time in `group`, from its statistics or else from the whole file's.
    pub(super) fn group_times(&self, group: usize) -> Option<(i64, i64)> {
        let column = self.schema.time()?;
        let id = column_id(self.schema.stored().field(column));
        let mut fields = self.parquet.schema().fields().iter().enumerate();
        let (root, field) = fields.find(|(_, field)| column_id(field) == id)?;
        if field.data_type() != self.schema.stored().field(column).data_type() {
            return None;
        }
        let columns = self.parquet.metadata().row_group(group).columns();
        let roots = self.parquet.parquet_schema();
        let leaf = (0..columns.len()).find(|&leaf| roots.get_column_root_idx(leaf) == root)?;
        match columns[leaf].statistics() {
            Some(Statistics::Int64(times)) => Some((*times.min_opt()?, *times.max_opt()?)),
            _ => self.meta.times,
        }
    }

    /// Byte ranges and checksums of the column chunks of `group`.
    pub(super) fn group_chunks(&self, group: usize) -> impl Iterator<Item = (Range<u64>, u32)> {
        let leaves = self.parquet.parquet_schema().num_columns();
        let group = group * leaves..(group + 1) * leaves;
        let chunks = self.chunks[group.clone()].iter().cloned();
        chunks.zip(self.chunk_crcs[group].iter().copied())
    }
}

/// The SST's footer, from its first byte to the end of the object.
async fn fetch_footer(store: &Store, name: &str, bytes: u64, stats: &ReadStats) -> Result<Bytes> {
    if bytes < TRAILER_BYTES as u64 {
        let error = format!("its {bytes} bytes are too few for an sst");
        return Err(naming(name, Error::corrupt(error)));
    }
    let start = bytes.saturating_sub(TAIL_BYTES);
    let tail = one_range(store, name, bytes, start..bytes, stats).await?;
    let length = footer::footer_bytes(&tail).map_err(|error| naming(name, error))?;
    if let Some(skip) = tail.len().checked_sub(length) {
        return Ok(tail.slice(skip..));
    }
    let Some(first) = bytes.checked_sub(length as u64) else {
        let error = format!("a footer of {length} bytes does not fit into its {bytes} bytes");
        return Err(naming(name, Error::corrupt(error)));
    };
    let head = one_range(store, name, bytes, first..start, stats).await?;
    Ok([head, tail].concat().into())
}

async fn one_range(
    store: &Store,
    name: &str,
    bytes: u64,
    range: Range<u64>,
    stats: &ReadStats,
) -> Result<Bytes> {
    let mut parts = fetch(store, name, bytes, std::slice::from_ref(&range), stats).await?;
    let part = parts.pop();
    part.ok_or_else(|| Error::internal(format!("sst {name}: the store sent nothing")))
}

/// Byte ranges of an object that should have `bytes` bytes.
///
/// # Errors
/// `Corrupt` when it has another size; the store's own otherwise.
pub(super) async fn fetch(
    store: &Store,
    name: &str,
    bytes: u64,
    ranges: &[Range<u64>],
    stats: &ReadStats,
) -> Result<Vec<Bytes>> {
    let wanted = |range: &Range<u64>| range.end - range.start;
    let fetched = store.get_ranges(name, ranges).await;
    match &fetched {
        Ok(parts) => {
            let complete = parts.iter().map(|part| part.len() as u64);
            if complete.eq(ranges.iter().map(wanted)) {
                let total: u64 = ranges.iter().map(wanted).sum();
                stats.bytes.fetch_add(total, Ordering::Relaxed);
                return fetched;
            }
        }
        Err(error) if error.kind() == ErrorKind::NotFound => return fetched,
        Err(_) => {}
    }
    // Some stores answer a range past the end with an error like any other, some with fewer bytes.
    match store.size(name).await? {
        Some(size) if size != bytes => Err(Error::corrupt(format!(
            "sst {name}: the object has {size} bytes, the manifest says {bytes}"
        ))),
        Some(_) => fetched.and_then(|_| {
            Err(Error::unavailable(format!(
                "read {name}: the store sent fewer bytes than asked for"
            )))
        }),
        None => Err(Error::not_found(format!(
            "read {name}: there is no such object"
        ))),
    }
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
    // A trivial move changes the level in the manifest only.
    let own = SstMeta {
        level: meta.level,
        ..own.meta.clone()
    };
    if own != *meta {
        return Err(Error::corrupt(format!(
            "it is not what the manifest says: {own:?} against {meta:?}"
        )));
    }
    Ok(())
}

fn check_row_groups(
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
    if own.keys == 0 || own.keys > own.meta.rows {
        let (keys, rows) = (own.keys, own.meta.rows);
        return Err(Error::corrupt(format!("{keys} keys in {rows} rows")));
    }
    let mut parts = chunks
        .iter()
        .chain(own.filter.iter().map(|filter| &filter.range))
        .chain([&own.index.range]);
    if let Some(outside) = parts.find(|part| part.end > end) {
        return Err(Error::corrupt(format!(
            "a part of it lies at {outside:?}, its footer begins at {end}"
        )));
    }
    Ok(())
}

/// `error` of the SST whose object is `name`.
pub(super) fn naming(name: &str, error: Error) -> Error {
    error.context(format_args!("sst {name}"))
}
