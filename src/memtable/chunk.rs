//! Immutable sorted rows with their encoded keys, and how they are sorted and merged.
//!
//! Order: key, then seq, newest first, then as given. Both steps use the standard library's stable sort,
//! which finds the sorted stretches in its input and merges them.

use std::{cmp::Ordering, ops::Range, sync::Arc};

use arrow::{
    array::{Array, ArrayRef, AsArray, RecordBatch, UInt64Array},
    compute::{cast, interleave_record_batch, take_record_batch},
    datatypes::{DataType, UInt64Type},
};

use crate::{
    error::{Error, Result},
    types::{KeyRange, TableSchema, WriteMode},
};

/// Sorted rows.
#[derive(Debug)]
pub(super) struct Chunk {
    batch: RecordBatch,
    keys: Keys,
    seqs: UInt64Array,
}

impl Chunk {
    /// The rows of `batch`, which has stored columns and one seq, sorted. Of equal keys the last one is
    /// kept in an upsert table, all of them in an append table. Shares no memory with `batch`.
    pub(super) fn sort(schema: &TableSchema, batch: &RecordBatch) -> Result<Self> {
        let rows = schema.key_encoder().encode(batch)?;
        let mut order: Vec<usize> = (0..batch.num_rows()).collect();
        order.sort_by(|&a, &b| rows.row(a).cmp(&rows.row(b)));
        if schema.write_mode() == WriteMode::Upsert {
            let mut at = 0;
            let following = order.clone();
            order.retain(|&row| {
                at += 1;
                following
                    .get(at)
                    .is_none_or(|&next| rows.row(row) != rows.row(next))
            });
        }
        let mut keys = Keys::with_capacity(order.len(), rows.size());
        for &row in &order {
            keys.push(rows.row(row).data());
        }
        keys.shrink();
        let order = UInt64Array::from_iter_values(order.into_iter().map(|row| row as u64));
        let sorted = compact(take_record_batch(batch, &order)?)?;
        Ok(Self::new(schema, sorted, keys))
    }

    /// The rows of all `chunks`, which were inserted in this order.
    pub(super) fn merge(schema: &TableSchema, chunks: &[Arc<Chunk>]) -> Result<Self> {
        let order = order_of(chunks);
        let key_bytes = chunks.iter().map(|chunk| chunk.keys.data.len()).sum();
        let mut keys = Keys::with_capacity(order.len(), key_bytes);
        for &(chunk, row) in &order {
            keys.push(chunks[chunk].key(row));
        }
        let batch = gather_one(chunks, &order)?;
        Ok(Self::new(schema, batch, keys))
    }

    fn new(schema: &TableSchema, batch: RecordBatch, keys: Keys) -> Self {
        let seqs = seqs(&batch, schema).clone();
        Self { batch, keys, seqs }
    }

    /// Number of rows.
    pub(super) fn rows(&self) -> usize {
        self.batch.num_rows()
    }

    /// Memory that it holds.
    pub(super) fn bytes(&self) -> u64 {
        (self.batch.get_array_memory_size() + self.keys.bytes()) as u64
    }

    /// The rows.
    pub(super) fn batch(&self) -> &RecordBatch {
        &self.batch
    }

    /// Positions of the rows whose keys lie in `range`.
    pub(super) fn rows_in(&self, range: &KeyRange) -> Range<usize> {
        let below = |bound: &[u8]| self.keys.count_below(bound);
        let start = range.start.as_ref().map_or(0, |key| below(&key.0));
        let end = range.end.as_ref().map_or(self.rows(), |key| below(&key.0));
        start..end.max(start)
    }

    /// Its first and its last key.
    pub(super) fn span(&self) -> Option<(&[u8], &[u8])> {
        let last = self.rows().checked_sub(1)?;
        Some((self.key(0), self.key(last)))
    }

    /// The key of a row.
    pub(super) fn key(&self, row: usize) -> &[u8] {
        self.keys.get(row)
    }
}

/// The seqs of a stored batch.
pub(super) fn seqs<'a>(batch: &'a RecordBatch, schema: &TableSchema) -> &'a UInt64Array {
    let column = schema.columns().fields().len();
    batch.column(column).as_primitive::<UInt64Type>()
}

/// Every row of `chunks`, inserted in this order, as (chunk, row), sorted.
pub(super) fn order_of(chunks: &[Arc<Chunk>]) -> Vec<(usize, usize)> {
    // Comparing a few bytes kept beside each row settles most comparisons without touching the keys.
    struct Entry {
        prefix: u64,
        chunk: u32,
        row: u32,
    }
    let shared = shared_prefix(chunks);
    let mut entries = Vec::with_capacity(chunks.iter().map(|chunk| chunk.rows()).sum());
    for (at, chunk) in chunks.iter().enumerate() {
        entries.extend((0..chunk.rows()).map(|row| Entry {
            prefix: prefix_after(chunk.key(row), shared),
            chunk: at as u32,
            row: row as u32,
        }));
    }
    let place = |entry: &Entry| (entry.chunk as usize, entry.row as usize);
    entries.sort_by(|a, b| match a.prefix.cmp(&b.prefix) {
        Ordering::Equal => {
            let ((chunk_a, row_a), (chunk_b, row_b)) = (place(a), place(b));
            let (chunk_a, chunk_b) = (&chunks[chunk_a], &chunks[chunk_b]);
            let by_key = chunk_a.key(row_a).cmp(chunk_b.key(row_b));
            by_key.then_with(|| chunk_b.seqs.value(row_b).cmp(&chunk_a.seqs.value(row_a)))
        }
        unequal => unequal,
    });
    entries.iter().map(place).collect()
}

/// Length of the prefix that all keys share: what the least and the greatest share.
fn shared_prefix(chunks: &[Arc<Chunk>]) -> usize {
    let filled = || chunks.iter().filter(|chunk| chunk.rows() > 0);
    let least = filled().map(|chunk| chunk.key(0)).min();
    let greatest = filled().map(|chunk| chunk.key(chunk.rows() - 1)).max();
    let (Some(least), Some(greatest)) = (least, greatest) else {
        return 0;
    };
    least
        .iter()
        .zip(greatest)
        .take_while(|(a, b)| a == b)
        .count()
}

/// The eight bytes of `key` after the first `skip`, as a number that compares alike.
fn prefix_after(key: &[u8], skip: usize) -> u64 {
    let rest = &key[skip..];
    let mut bytes = [0; 8];
    let length = rest.len().min(8);
    bytes[..length].copy_from_slice(&rest[..length]);
    u64::from_be_bytes(bytes)
}

/// The rows that `order` names, in that order, in batches of at most `batch_rows`; in smaller ones where
/// columns with 32-bit offsets would overflow.
pub(super) fn gather(
    chunks: &[Arc<Chunk>],
    order: &[(usize, usize)],
    batch_rows: usize,
) -> Result<Vec<RecordBatch>> {
    let mut batches = Vec::with_capacity(order.len().div_ceil(batch_rows));
    let mut waiting: Vec<&[(usize, usize)]> = order.chunks(batch_rows).rev().collect();
    while let Some(rows) = waiting.pop() {
        match gather_one(chunks, rows) {
            Ok(batch) => batches.push(batch),
            Err(error) if rows.len() == 1 => return Err(error),
            Err(_) => {
                let (first, second) = rows.split_at(rows.len() / 2);
                waiting.extend([second, first]);
            }
        }
    }
    Ok(batches)
}

fn gather_one(chunks: &[Arc<Chunk>], order: &[(usize, usize)]) -> Result<RecordBatch> {
    let batches: Vec<&RecordBatch> = chunks.iter().map(|chunk| &chunk.batch).collect();
    let gathered = interleave_record_batch(&batches, order).map_err(|error| {
        let rows = order.len();
        Error::too_large(format!("{rows} rows do not fit into a batch")).with_source(error)
    })?;
    compact(gathered)
}

/// `batch`, freed of what its rows do not use: the kernels copy values, but share the buffers of views
/// and the values of dictionaries with their input. Nested columns stay as they are.
fn compact(batch: RecordBatch) -> Result<RecordBatch> {
    let columns: Vec<ArrayRef> = batch.columns().iter().map(compact_column).collect();
    Ok(RecordBatch::try_new(batch.schema(), columns)?)
}

fn compact_column(column: &ArrayRef) -> ArrayRef {
    match column.data_type() {
        DataType::Utf8View => Arc::new(column.as_string_view().gc()),
        DataType::BinaryView => Arc::new(column.as_binary_view().gc()),
        DataType::Dictionary(_, values) => {
            let dictionary = column.as_any_dictionary();
            if dictionary.values().len() <= column.len() {
                return column.clone();
            }
            // Types that cannot be cast to and fro keep their dictionary.
            let plain = cast(column, values);
            let compacted = plain.and_then(|plain| cast(&plain, column.data_type()));
            compacted.unwrap_or_else(|_| column.clone())
        }
        _ => column.clone(),
    }
}

/// Encoded keys, one after the other.
#[derive(Debug)]
struct Keys {
    data: Vec<u8>,
    ends: Vec<usize>,
}

impl Keys {
    fn with_capacity(rows: usize, bytes: usize) -> Self {
        Self {
            data: Vec::with_capacity(bytes),
            ends: Vec::with_capacity(rows),
        }
    }

    fn push(&mut self, key: &[u8]) {
        self.data.extend_from_slice(key);
        self.ends.push(self.data.len());
    }

    fn shrink(&mut self) {
        self.data.shrink_to_fit();
        self.ends.shrink_to_fit();
    }

    fn get(&self, row: usize) -> &[u8] {
        let start = row.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.data[start..self.ends[row]]
    }

    /// How many keys are less than `bound`; the keys are sorted.
    fn count_below(&self, bound: &[u8]) -> usize {
        let (mut low, mut high) = (0, self.ends.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.get(middle) < bound {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    fn bytes(&self) -> usize {
        self.data.capacity() + self.ends.capacity() * size_of::<usize>()
    }
}
