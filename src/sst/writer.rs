//! Writes one SST, streaming.
//!
//! 1. Check the rows against the rows before them: order, window. What the sources or the merge got
//!    wrong ends here, always; it never becomes a file.
//! 2. Encode them, some columns side by side, into the current row group, which ends at
//!    [`SstOptions::row_group_rows`] or [`SstOptions::row_group_bytes`].
//!    What is encoded is cut at multiples of [`SstOptions::page_rows`], where a page of each column ends.
//! 3. A finished row group goes to the sink in one piece, after the CRC-32 of each column chunk and of each
//!    page is taken.
//! 4. At the end: the filter over whole keys, the index, page index and footer, with bounds, counts, hash
//!    and checksums.
//!
//! Memory: the encoded column chunks of one row group, eight bytes a key for the filter, a key a page and four
//! bytes a page of each column for the index.

use std::{mem, ops::Range};

use arrow::{
    array::{Array, AsArray, Int64Array, RecordBatch},
    datatypes::{UInt8Type, UInt64Type},
    row::Rows,
};
use bytes::Bytes;
use parquet::{
    arrow::{
        ArrowWriter,
        arrow_writer::{
            ArrowColumnWriter, ArrowLeafColumn, ArrowRowGroupWriterFactory, compute_leaves,
        },
    },
    file::writer::SerializedFileWriter,
};

use super::{
    bounds::Bounds,
    encoding::{self, encoding_error, may_hold_nan, side_by_side},
    filter,
    footer::{self, Footer, Place},
    index::{ChunkIndex, GroupIndex, Index},
};
use crate::{
    error::{Error, Result},
    types::{Key, Op, Seq, SstId, SstMeta, TableId, TableSchema, Window},
};

/// How SSTs are cut and compressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SstOptions {
    /// Size in bytes at which a run goes on in another SST. Default: 128 MiB.
    pub sst_bytes_target: u64,
    /// Rows in a row group, the unit of reading, at most. Default: 131,072.
    pub row_group_rows: usize,
    /// Encoded bytes at which a row group ends, about. Default: 32 MiB.
    pub row_group_bytes: usize,
    /// Rows in a page; fewer where a page of a wide column is full before. Default: 8,192.
    pub page_rows: usize,
    /// Bits a key in the filter over whole keys; 0 for no filter. Default: 10, by which one in a hundred
    /// look-ups of an absent key reads in vain.
    pub filter_bits_per_key: usize,
    /// Threads that encode the columns of a batch side by side, the writing one included. Default: 2.
    pub encode_threads: usize,
    /// Level of zstd, 1 to 22. Default: 1; 3 takes a fifth more time for 2 % fewer bytes.
    pub zstd_level: i32,
}

impl Default for SstOptions {
    fn default() -> Self {
        Self {
            sst_bytes_target: 128 << 20,
            row_group_rows: 128 << 10,
            row_group_bytes: 32 << 20,
            page_rows: 8 << 10,
            filter_bits_per_key: 10,
            encode_threads: 2,
            zstd_level: 1,
        }
    }
}

/// What the SSTs of a run have in common.
#[derive(Clone, Debug)]
pub struct SstSpec {
    /// Schema of the table.
    pub schema: TableSchema,
    /// The table.
    pub table: TableId,
    /// Level of the SSTs.
    pub level: u8,
    /// The window that all rows lie in.
    pub window: Window,
    /// Range deletes up to this seq hide none of the rows.
    pub applied_seq: Seq,
    /// How to cut and compress.
    pub options: SstOptions,
}

/// Takes the bytes of an SST, in order.
pub trait SstSink {
    /// Adds `piece` to the end. May block.
    fn append(&mut self, piece: Bytes) -> Result<()>;
}

impl SstSink for Vec<u8> {
    fn append(&mut self, piece: Bytes) -> Result<()> {
        self.extend_from_slice(&piece);
        Ok(())
    }
}

/// Encodes one SST into a sink. See the head of this file.
pub struct SstWriter<S> {
    spec: SstSpec,
    id: SstId,
    sink: S,
    /// Writes into a buffer that holds at most one row group, or the footer.
    parquet: SerializedFileWriter<Vec<u8>>,
    columns: ArrowRowGroupWriterFactory,
    group: Option<Group>,
    bounds: Bounds,
    row_group_keys: Vec<Key>,
    chunk_crcs: Vec<u32>,
    index: Vec<GroupIndex>,
    bytes: u64,
}

/// The row group being encoded.
struct Group {
    columns: Vec<ArrowColumnWriter>,
    rows: usize,
    /// Keys of the rows that begin a block.
    marks: Vec<Key>,
    /// Leaf by leaf, whether it may hold NaN.
    nan: Vec<bool>,
}

impl<S: SstSink> SstWriter<S> {
    /// A writer of the SST `id`.
    ///
    /// # Errors
    /// `Invalid` when Parquet lacks a column's type or zstd the level.
    pub fn new(spec: &SstSpec, id: SstId, sink: S) -> Result<Self> {
        let properties = encoding::properties(&spec.schema, &spec.options)?;
        let stored = spec.schema.stored().clone();
        let writer =
            ArrowWriter::try_new(Vec::new(), stored, Some(properties)).map_err(encoding_error)?;
        let (parquet, columns) = writer.into_serialized_writer().map_err(encoding_error)?;
        Ok(Self {
            spec: spec.clone(),
            id,
            sink,
            parquet,
            columns,
            group: None,
            bounds: Bounds::new(
                spec.schema.write_mode(),
                spec.options.filter_bits_per_key > 0,
            ),
            row_group_keys: Vec::new(),
            chunk_crcs: Vec::new(),
            index: Vec::new(),
            bytes: 0,
        })
    }

    /// Adds `batch`: stored columns, sorted, after everything before it.
    ///
    /// # Errors
    /// `Internal` when rows are out of order, outside of the window, or of other columns; the sink's own.
    /// After an error the writer is of no more use.
    pub fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let keys = self.encode_keys(batch)?;
        self.append(batch, &keys, 0..batch.num_rows())
    }

    /// Size of the object if it ended now, about.
    pub fn bytes_estimate(&self) -> u64 {
        let columns = self.group.iter().flat_map(|group| &group.columns);
        let in_progress: usize = columns.map(|c| c.get_estimated_total_bytes()).sum();
        self.bytes + in_progress as u64
    }

    /// Writes the footer. Returns what the manifest is to know, and the sink, which has every byte but is
    /// not finished itself.
    ///
    /// # Errors
    /// `Internal` when no row was written; the sink's own.
    pub fn finish(mut self) -> Result<(SstMeta, S)> {
        self.end_group()?;
        let filter = self.write_filter()?;
        let index = self.write_index()?;
        let footer = self.footer(filter, index)?;
        for pair in footer.encode() {
            self.parquet.append_key_value_metadata(pair);
        }
        self.parquet.finish().map_err(encoding_error)?;
        let mut tail = self.take_buffer()?;
        footer::fill_page_index_crc(&mut tail)?;
        footer::seal(&mut tail)?;
        self.forward(tail)?;
        let meta = SstMeta {
            bytes: self.bytes,
            ..footer.meta
        };
        Ok((meta, self.sink))
    }

    pub(super) fn encode_keys(&self, batch: &RecordBatch) -> Result<Rows> {
        let stored = self.spec.schema.stored().fields();
        let given = batch.schema_ref().fields();
        let types = |fields: &arrow::datatypes::Fields| {
            let fields = fields.iter();
            fields
                .map(|f| (f.name().clone(), f.data_type().clone()))
                .collect::<Vec<_>>()
        };
        if stored != given && types(stored) != types(given) {
            return Err(self.wrong(format!("its columns are {stored:?}, a batch has {given:?}")));
        }
        self.spec.schema.key_encoder().encode(batch)
    }

    /// The last key written.
    pub(super) fn key_last(&self) -> Option<&[u8]> {
        (!self.bounds.is_empty()).then_some(&self.bounds.key_last[..])
    }

    /// Adds `rows` of `batch`, whose keys are `keys`.
    pub(super) fn append(
        &mut self,
        batch: &RecordBatch,
        keys: &Rows,
        rows: Range<usize>,
    ) -> Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        self.check(batch, keys, rows.clone())?;
        let page_rows = self.spec.options.page_rows.max(1);
        let mut start = rows.start;
        while start < rows.end {
            let key = || Key::from(keys.row(start).data());
            let group = match &mut self.group {
                Some(group) => group,
                none => {
                    let columns = self
                        .columns
                        .create_column_writers(self.row_group_keys.len());
                    self.row_group_keys.push(key());
                    none.insert(Group::new(columns.map_err(encoding_error)?))
                }
            };
            let filled_page = group.rows % page_rows;
            if filled_page == 0 {
                group.marks.push(key());
            }
            let room = self.spec.options.row_group_rows.max(1) - group.rows;
            let count = room.min(page_rows - filled_page).min(rows.end - start);
            self.encode(&batch.slice(start, count))?;
            start += count;
        }
        Ok(())
    }

    /// Encodes `batch` into the row group, which has begun.
    fn encode(&mut self, batch: &RecordBatch) -> Result<()> {
        let Some(group) = &mut self.group else {
            return Err(writer_error("there is no row group"));
        };
        let options = &self.spec.options;
        let fields = self.spec.schema.stored().fields();
        let mut leaves = Vec::with_capacity(group.columns.len());
        let mut nan = Vec::with_capacity(group.columns.len());
        for (field, column) in fields.iter().zip(batch.columns()) {
            leaves.extend(compute_leaves(field, column).map_err(encoding_error)?);
            nan.resize(leaves.len(), may_hold_nan(column));
        }
        if leaves.len() != group.columns.len() {
            return Err(writer_error("the leaves do not match their writers"));
        }
        for (had, has) in group.nan.iter_mut().zip(nan) {
            *had |= has;
        }
        let work = group.columns.iter_mut().zip(leaves).collect();
        let encode =
            |(writer, leaf): (&mut ArrowColumnWriter, ArrowLeafColumn)| writer.write(&leaf);
        side_by_side(options.encode_threads, work, encode).map_err(encoding_error)?;
        group.rows += batch.num_rows();
        let bytes = group.columns.iter().map(|c| c.get_estimated_total_bytes());
        if group.rows >= options.row_group_rows || bytes.sum::<usize>() >= options.row_group_bytes {
            self.end_group()?;
        }
        Ok(())
    }

    fn end_group(&mut self) -> Result<()> {
        let Some(group) = self.group.take() else {
            return Ok(());
        };
        let mut row_group = self.parquet.next_row_group().map_err(encoding_error)?;
        let threads = self.spec.options.encode_threads;
        let chunks = side_by_side(threads, group.columns, ArrowColumnWriter::close);
        let mut page_sizes = Vec::new();
        for chunk in chunks.map_err(encoding_error)? {
            let pages = chunk.close().offset_index.as_ref();
            let pages = pages.ok_or_else(|| writer_error("a column has no offset index"))?;
            let pages = pages.page_locations().iter();
            let sizes = pages.map(|page| page.compressed_page_size as usize);
            page_sizes.push(sizes.collect::<Vec<_>>());
            chunk
                .append_to_row_group(&mut row_group)
                .map_err(encoding_error)?;
        }
        let metadata = row_group.close().map_err(encoding_error)?;
        let piece = self.take_buffer()?;
        let mut chunks = Vec::new();
        for ((column, sizes), may_hold_nan) in
            metadata.columns().iter().zip(page_sizes).zip(group.nan)
        {
            let (start, bytes) = column.byte_range();
            let start = start.checked_sub(self.bytes).map(|start| start as usize);
            let chunk = start.and_then(|start| piece.get(start..start + bytes as usize));
            let chunk =
                chunk.ok_or_else(|| writer_error("a column chunk is not in its row group"))?;
            self.chunk_crcs.push(crc32fast::hash(chunk));
            chunks.push(page_checksums(chunk, &sizes, may_hold_nan)?);
        }
        self.index.push(GroupIndex {
            marks: group.marks,
            chunks,
        });
        self.forward(piece)
    }

    fn take_buffer(&mut self) -> Result<Vec<u8>> {
        self.parquet
            .flush()
            .map_err(|error| writer_error("flushing").with_source(error))?;
        Ok(mem::take(self.parquet.inner_mut()))
    }

    fn forward(&mut self, piece: Vec<u8>) -> Result<()> {
        self.bytes += piece.len() as u64;
        self.sink.append(piece.into())
    }

    fn write_filter(&mut self) -> Result<Option<Place>> {
        let Some(hashes) = self.bounds.take_key_hashes() else {
            return Ok(None);
        };
        let filter = filter::build(&hashes, self.spec.options.filter_bits_per_key);
        self.write_block(&filter).map(Some)
    }

    fn write_index(&mut self) -> Result<Place> {
        let page_rows = u32::try_from(self.spec.options.page_rows.max(1));
        let index = Index {
            page_rows: page_rows.map_err(|_| writer_error("too many rows in a page"))?,
            groups: mem::take(&mut self.index),
        };
        self.write_block(&index.encode())
    }

    /// Adds bytes that are no part of Parquet's.
    fn write_block(&mut self, block: &[u8]) -> Result<Place> {
        let place = Place::of(self.bytes, block);
        self.parquet
            .write_all(block)
            .map_err(|error| writer_error("writing a block").with_source(error))?;
        let piece = self.take_buffer()?;
        self.forward(piece)?;
        Ok(place)
    }

    fn footer(&mut self, filter: Option<Place>, index: Place) -> Result<Footer> {
        if self.bounds.is_empty() {
            return Err(self.wrong("it has no rows".into()));
        }
        let bounds = &mut self.bounds;
        Ok(Footer {
            table: self.spec.table,
            write_mode: self.spec.schema.write_mode(),
            meta: SstMeta {
                id: self.id,
                level: self.spec.level,
                window: self.spec.window,
                bytes: 0,
                rows: bounds.sum.rows,
                tombstones: bounds.tombstones,
                key_min: bounds.key_min.clone(),
                key_max: Key(mem::take(&mut bounds.key_last).into()),
                seq_min: bounds.seq_min,
                seq_max: bounds.seq_max,
                times: bounds.times,
                schema_version: self.spec.schema.version(),
                applied_seq: self.spec.applied_seq,
                rows_hash: bounds.sum.hash,
                home: None,
            },
            row_group_keys: mem::take(&mut self.row_group_keys),
            chunk_crcs: mem::take(&mut self.chunk_crcs),
            filter,
            index,
            page_index_crc: 0,
            keys: bounds.keys,
        })
    }

    /// Checks `rows` and adds them to the bounds.
    fn check(&mut self, batch: &RecordBatch, keys: &Rows, rows: Range<usize>) -> Result<()> {
        let stored = self.spec.schema.stored().fields().len();
        let seqs = batch.column(stored - 2).as_primitive::<UInt64Type>();
        let ops = batch.column(stored - 1).as_primitive::<UInt8Type>();
        for row in rows.clone() {
            let (key, seq) = (keys.row(row).data(), Seq(seqs.value(row)));
            let is_tombstone = ops.value(row) == Op::Delete as u8;
            let added = self.bounds.add(key, seq, is_tombstone);
            added.map_err(|what| self.wrong(what))?;
        }
        if let Some(column) = self.spec.schema.time() {
            let slice = batch.slice(rows.start, rows.len());
            self.check_times(&TableSchema::times(&slice, column)?)?;
        }
        Ok(())
    }

    fn check_times(&mut self, times: &Int64Array) -> Result<()> {
        let (min, max) = (arrow::compute::min(times), arrow::compute::max(times));
        let (Some(min), Some(max), 0) = (min, max, times.null_count()) else {
            return Err(self.wrong("a time is null".into()));
        };
        let window = self.spec.window;
        if !window.times().covers(min, max) {
            return Err(self.wrong(format!(
                "times {min} to {max} are not all in window {window}"
            )));
        }
        self.bounds.add_times(min, max);
        Ok(())
    }

    fn wrong(&self, what: String) -> Error {
        Error::internal(format!("sst {} being written: {what}", self.id))
    }
}

impl Group {
    fn new(columns: Vec<ArrowColumnWriter>) -> Self {
        Self {
            nan: vec![false; columns.len()],
            columns,
            rows: 0,
            marks: Vec::new(),
        }
    }
}

/// Checksums of the parts of `chunk`: data pages of these sizes, and the dictionary before them.
fn page_checksums(chunk: &[u8], sizes: &[usize], may_hold_nan: bool) -> Result<ChunkIndex> {
    let pages: usize = sizes.iter().sum();
    let dictionary = chunk.len().checked_sub(pages);
    let dictionary =
        dictionary.ok_or_else(|| writer_error("a column chunk has pages that it has not"))?;
    let (dictionary, mut rest) = chunk.split_at(dictionary);
    let page_crcs = sizes.iter().map(|&size| {
        let (page, after) = rest.split_at(size);
        rest = after;
        crc32fast::hash(page)
    });
    Ok(ChunkIndex {
        may_hold_nan,
        page_crcs: page_crcs.collect(),
        dictionary_crc: crc32fast::hash(dictionary),
    })
}

pub(super) fn writer_error(what: &str) -> Error {
    Error::internal(format!("sst writer: {what}"))
}
