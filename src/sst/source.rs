//! Reads the rows of an SST as a sorted source.
//!
//! 1. Choose row groups: by the keys in the footer, exactly; by time, from the statistics of the time
//!    column.
//! 2. Fetch the wanted column chunks of the first with one request, and while a row group is being
//!    decoded, fetch the next.
//! 3. Check each chunk's CRC-32, decode, bring the columns up to date with the table's schema.
//! 4. Where a row group reaches beyond the wanted keys or times, cut its batches to fit.

use std::{
    collections::VecDeque,
    ops::Range,
    sync::{Arc, atomic::Ordering},
};

use arrow::{array::RecordBatch, compute::filter_record_batch, datatypes::SchemaRef};
use bytes::Bytes;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};
use tokio::{runtime::Handle, task::JoinHandle};

use super::{
    chunks::{SparseObject, guarded},
    reader::{SstFile, fetch, naming},
    schema::ColumnPlan,
};
use crate::{
    error::{Error, Result},
    types::{KeyEncoder, KeyRange, TableSchema, TimeRange},
};

/// What to read of an SST. The default is everything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// Names of stored columns to read; the key, `__seq` and `__op` come always. `None` for all.
    pub projection: Option<Vec<String>>,
    /// Only rows with these keys.
    pub keys: KeyRange,
    /// Only rows with these times. Time is part of the key, so that this takes or leaves all versions of a
    /// key.
    pub times: Option<TimeRange>,
    /// Rows in a batch at most.
    pub batch_rows: usize,
}

impl Default for ReadRequest {
    fn default() -> Self {
        Self {
            projection: None,
            keys: KeyRange::ALL,
            times: None,
            batch_rows: 8_192,
        }
    }
}

/// The rows of an SST, in order. Ends after the first error. Blocks while it waits for the store.
pub struct SstSource {
    file: Arc<SstFile>,
    columns: Arc<ColumnPlan>,
    keys: KeyRange,
    key: KeyEncoder,
    times: Option<TimeRange>,
    /// Position of the time column among the wanted ones.
    time: Option<usize>,
    batch_rows: usize,
    handle: Handle,
    /// Row groups still to be fetched.
    groups: VecDeque<usize>,
    fetching: Option<Fetch>,
    decoding: Option<Decoding>,
}

/// A row group on its way.
struct Fetch {
    group: usize,
    ranges: Vec<Range<u64>>,
    task: JoinHandle<Result<Vec<Bytes>>>,
}

impl Drop for Fetch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A row group in memory.
struct Decoding {
    reader: ParquetRecordBatchReader,
    group: usize,
    rows_left: u64,
    cut_keys: bool,
    cut_times: bool,
}

impl SstSource {
    pub(super) fn new(
        file: Arc<SstFile>,
        columns: ColumnPlan,
        request: &ReadRequest,
        handle: Handle,
    ) -> Self {
        let position = |name: &str| {
            let at = columns.schema().index_of(name);
            at.expect("every projection has the key's columns")
        };
        let key: Vec<usize> = file.schema.key_names().into_iter().map(position).collect();
        let key = file.schema.key_encoder().at(&key);
        let time = file.schema.time();
        let time = time.map(|at| position(file.schema.stored().field(at).name()));
        let all = 0..file.parquet.metadata().num_row_groups();
        let skipped = all.len();
        let mut source = Self {
            columns: Arc::new(columns),
            keys: request.keys.clone(),
            key,
            times: request.times.filter(|_| time.is_some()),
            time,
            batch_rows: request.batch_rows.max(1),
            handle,
            groups: VecDeque::new(),
            fetching: None,
            decoding: None,
            file,
        };
        source.groups = all.filter(|&group| source.wants(group)).collect();
        let skipped = (skipped - source.groups.len()) as u64;
        let stats = &source.file.stats;
        stats
            .row_groups_skipped
            .fetch_add(skipped, Ordering::Relaxed);
        source.fetch_next();
        source
    }

    /// The columns of its batches.
    pub fn schema(&self) -> &SchemaRef {
        self.columns.schema()
    }

    /// Whether `group` can hold a wanted row.
    fn wants(&self, group: usize) -> bool {
        let (min, max) = self.file.group_keys(group);
        let in_time = match (self.times, self.file.group_times(group)) {
            (Some(times), Some((min, max))) => times.overlaps(min, max),
            _ => true,
        };
        in_time && self.keys.overlaps(min, max)
    }

    fn fetch_next(&mut self) {
        self.fetching = self.groups.pop_front().map(|group| {
            let chunks: Vec<_> = self.file.group_chunks(group).collect();
            let leaves = self.columns.leaves.iter();
            let ranges: Vec<_> = leaves.map(|&leaf| chunks[leaf].0.clone()).collect();
            let (file, wanted) = (self.file.clone(), ranges.clone());
            let task = self.handle.spawn(async move {
                let bytes = file.meta.bytes;
                fetch(&file.store, &file.name, bytes, &wanted, &file.stats).await
            });
            Fetch {
                group,
                ranges,
                task,
            }
        });
    }

    fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(decoding) = &mut self.decoding {
                match decoding.next(&self.columns)? {
                    Some(batch) => {
                        let (cut_keys, cut_times) = (decoding.cut_keys, decoding.cut_times);
                        let batch = self.cut(batch, cut_keys, cut_times)?;
                        if batch.num_rows() > 0 {
                            return Ok(Some(batch));
                        }
                    }
                    None => self.decoding = None,
                }
            } else if let Some(mut fetch) = self.fetching.take() {
                let joined = self.handle.block_on(&mut fetch.task);
                let parts = joined.map_err(|error| {
                    if error.is_panic() {
                        Error::internal("its fetch panicked").with_source(error)
                    } else {
                        Error::closed("its fetch was stopped").with_source(error)
                    }
                })??;
                self.fetch_next();
                self.decoding = Some(self.decode(&fetch, parts)?);
            } else {
                return Ok(None);
            }
        }
    }

    fn decode(&self, fetch: &Fetch, parts: Vec<Bytes>) -> Result<Decoding> {
        let group = fetch.group;
        let crcs: Vec<u32> = self.file.group_chunks(group).map(|(_, crc)| crc).collect();
        for (part, &leaf) in parts.iter().zip(&self.columns.leaves) {
            if crc32fast::hash(part) != crcs[leaf] {
                let column = self.file.parquet.parquet_schema().column(leaf);
                return Err(Error::corrupt(format!(
                    "checksum of column {} in row group {group} does not match",
                    column.path()
                )));
            }
        }
        let object = SparseObject::new(self.file.meta.bytes, &fetch.ranges, parts);
        let parquet = self.file.parquet.clone();
        let mask = self.columns.mask.clone();
        let reader = guarded(|| {
            ParquetRecordBatchReaderBuilder::new_with_metadata(object, parquet)
                .with_row_groups(vec![group])
                .with_projection(mask)
                .with_batch_size(self.batch_rows)
                .build()
        })?;
        let (min, max) = self.file.group_keys(group);
        let cut_times = self.times.is_some_and(|times| {
            let group = self.file.group_times(group);
            !group.is_some_and(|(min, max)| times.contains(min) && times.contains(max))
        });
        let stats = &self.file.stats;
        stats.row_groups_read.fetch_add(1, Ordering::Relaxed);
        Ok(Decoding {
            reader,
            group,
            rows_left: self.file.parquet.metadata().row_group(group).num_rows() as u64,
            cut_keys: !(self.keys.contains(&min.0) && self.keys.contains(&max.0)),
            cut_times,
        })
    }

    /// Leaves out rows that were not asked for.
    fn cut(&self, batch: RecordBatch, keys: bool, times: bool) -> Result<RecordBatch> {
        let batch = if keys { self.cut_keys(&batch)? } else { batch };
        match (self.times, self.time) {
            (Some(range), Some(column)) if times => {
                let times = TableSchema::times(&batch, column)?;
                let wanted = times.values().iter().map(|&time| range.contains(time));
                Ok(filter_record_batch(
                    &batch,
                    &wanted.collect::<Vec<_>>().into(),
                )?)
            }
            _ => Ok(batch),
        }
    }

    fn cut_keys(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let keys = self.key.encode(batch)?;
        let rows = batch.num_rows();
        let before = |bound: &[u8]| partition(rows, |row| keys.row(row).data() < bound);
        let start = self.keys.start.as_ref().map_or(0, |key| before(&key.0));
        let end = self.keys.end.as_ref().map_or(rows, |key| before(&key.0));
        Ok(batch.slice(start, end.saturating_sub(start)))
    }
}

impl Iterator for SstSource {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.next_batch();
        if next.is_err() {
            self.groups.clear();
            self.fetching = None;
            self.decoding = None;
        }
        next.map_err(|error| naming(&self.file.name, error))
            .transpose()
    }
}

impl Decoding {
    fn next(&mut self, columns: &ColumnPlan) -> Result<Option<RecordBatch>> {
        match guarded(|| self.reader.next().transpose())? {
            Some(batch) => {
                let batch = columns.adapt(&batch)?;
                let left = self.rows_left.checked_sub(batch.num_rows() as u64);
                self.rows_left = left.ok_or_else(|| self.wrong_rows())?;
                Ok(Some(batch))
            }
            None if self.rows_left == 0 => Ok(None),
            None => Err(self.wrong_rows()),
        }
    }

    fn wrong_rows(&self) -> Error {
        let group = self.group;
        Error::corrupt(format!(
            "row group {group} does not have the rows its footer says"
        ))
    }
}

/// The first of `0..rows` for which `before` no longer holds.
fn partition(rows: usize, before: impl Fn(usize) -> bool) -> usize {
    let (mut low, mut high) = (0, rows);
    while low < high {
        let middle = low + (high - low) / 2;
        if before(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}
