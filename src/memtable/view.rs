//! What a memtable held at one moment: for reads, and for the flush.

use std::{collections::BTreeMap, sync::Arc};

use arrow::{
    array::{RecordBatch, UInt64Array},
    compute::{max, min, take_record_batch},
};

use super::chunk::{Chunk, gather, order_of};
use crate::{
    error::{Error, Result},
    types::{Key, KeyRange, TableSchema, Window, WindowWidth},
};

/// The rows of a memtable at one moment. Immutable, and cheap to clone but for the list of chunks.
#[derive(Clone, Debug)]
pub struct MemtableView {
    schema: TableSchema,
    chunks: Vec<Arc<Chunk>>,
}

impl MemtableView {
    pub(super) fn new(schema: TableSchema, chunks: Vec<Arc<Chunk>>) -> Self {
        Self { schema, chunks }
    }

    /// Sources for a k-way merge: batches with the stored columns, each sorted by key, then by seq,
    /// newest first, and cut to `keys`. Of rows equal in key and seq, the one of the earlier source was
    /// inserted first. None is empty. Copies nothing.
    pub fn sources(&self, keys: &KeyRange) -> Vec<RecordBatch> {
        let chunks = self.chunks.iter();
        chunks
            .filter_map(|chunk| {
                let rows = chunk.rows_in(keys);
                (!rows.is_empty()).then(|| chunk.batch().slice(rows.start, rows.len()))
            })
            .collect()
    }

    /// As [`Self::sources`], but the rows with one of the keys `points`, which ascend. Copies them.
    pub fn sources_of(&self, points: &[Key]) -> Result<Vec<RecordBatch>> {
        let mut sources = Vec::new();
        for chunk in &self.chunks {
            let rows = points.iter().flat_map(|point| {
                let rows = chunk.rows_in(&KeyRange::closed(point, point));
                rows.map(|row| row as u64)
            });
            let rows: UInt64Array = rows.collect::<Vec<_>>().into();
            if !rows.is_empty() {
                sources.push(take_record_batch(chunk.batch(), &rows)?);
            }
        }
        Ok(sources)
    }

    /// Least and greatest key; `None` without rows.
    pub fn span(&self) -> Option<(Key, Key)> {
        let spans = self.chunks.iter().filter_map(|chunk| chunk.span());
        let (min, max) =
            spans.reduce(|(min, max), (first, last)| (min.min(first), max.max(last)))?;
        Some((Key::from(min), Key::from(max)))
    }

    /// Keys inside `keys`, ascending, with about `rows` rows between them.
    pub fn cuts(&self, keys: &KeyRange, rows: usize) -> Vec<Key> {
        let largest = self
            .chunks
            .iter()
            .max_by_key(|chunk| chunk.rows_in(keys).len());
        let Some(largest) = largest else {
            return Vec::new();
        };
        // The other chunks are taken to have their rows where the largest has.
        let inside = largest.rows_in(keys);
        let all: usize = self
            .chunks
            .iter()
            .map(|chunk| chunk.rows_in(keys).len())
            .sum();
        let every = (rows.max(1) as u128 * inside.len() as u128).div_ceil(all.max(1) as u128);
        let cuts = inside.clone().step_by((every as usize).max(1)).skip(1);
        cuts.map(|row| Key::from(largest.key(row))).collect()
    }

    /// The schema that the rows were written under.
    pub fn schema(&self) -> &TableSchema {
        &self.schema
    }

    /// Least and greatest time; `None` without a time column or rows.
    pub fn times(&self) -> Result<Option<(i64, i64)>> {
        let Some(time) = self.schema.time() else {
            return Ok(None);
        };
        let mut bounds: Option<(i64, i64)> = None;
        for chunk in &self.chunks {
            let times = TableSchema::times(chunk.batch(), time)?;
            if let (Some(min), Some(max)) = (min(&times), max(&times)) {
                let (least, greatest) = bounds.unwrap_or((min, max));
                bounds = Some((least.min(min), greatest.max(max)));
            }
        }
        Ok(bounds)
    }

    /// All rows, for a flush: by windows of `width`, ascending, each with its rows in one order in batches of at
    /// most `batch_rows` rows. Without a width everything is in one window. Copies all rows.
    ///
    /// # Errors
    /// `Invalid` when `batch_rows` is 0; `TooLarge` when a single row does not fit into a batch.
    pub fn by_window(
        &self,
        width: Option<WindowWidth>,
        batch_rows: usize,
    ) -> Result<Vec<(Window, Vec<RecordBatch>)>> {
        if batch_rows == 0 {
            return Err(Error::invalid("a batch of 0 rows cannot hold any"));
        }
        let mut windows = BTreeMap::<Window, Vec<(usize, usize)>>::new();
        let window_of = self.windows(width)?;
        for (chunk, row) in order_of(&self.chunks) {
            windows
                .entry(window_of[chunk].at(row))
                .or_default()
                .push((chunk, row));
        }
        windows
            .into_iter()
            .map(|(window, order)| Ok((window, gather(&self.chunks, &order, batch_rows)?)))
            .collect()
    }

    #[cfg(test)]
    pub(super) fn chunks(&self) -> &[Arc<Chunk>] {
        &self.chunks
    }

    /// The windows of each chunk's rows.
    fn windows(&self, width: Option<WindowWidth>) -> Result<Vec<Windows>> {
        let windows = |chunk: &Arc<Chunk>| {
            let (Some(width), Some(time)) = (width, self.schema.time()) else {
                return Ok(Windows::All(Window::ALL));
            };
            let times = TableSchema::times(chunk.batch(), time)?;
            let windows = times.values().iter().map(|&time| width.window_of(time));
            Ok(Windows::Each(windows.collect()))
        };
        self.chunks.iter().map(windows).collect()
    }
}

/// The windows of a chunk's rows.
enum Windows {
    All(Window),
    Each(Vec<Window>),
}

impl Windows {
    fn at(&self, row: usize) -> Window {
        match self {
            Self::All(window) => *window,
            Self::Each(windows) => windows[row],
        }
    }
}
