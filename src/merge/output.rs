//! Surviving rows become batches, with as little copying as possible.
//!
//! Survivors are noted as *pieces*: stretches of rows of a held input batch. They become a batch when
//! enough have come together:
//! 1. one piece is a slice of its input batch, without a copy;
//! 2. long pieces are concatenated, column by column;
//! 3. short ones are interleaved, row by row.
//!
//! A piece of [`SLICE_ROWS`] rows and more is not copied to fill up the batch before it, unless that
//! would leave a tiny batch behind.

use std::{collections::VecDeque, sync::Arc};

use arrow::{
    array::{Array, RecordBatch, UInt64Array},
    compute::{concat_batches, interleave_record_batch, take_record_batch},
    datatypes::SchemaRef,
};

use super::combine::combine;
use crate::{
    error::{Error, Result},
    types::MergeOperator,
};

/// Rows that make a stretch worth a batch of its own.
const SLICE_ROWS: usize = 1_024;
/// Rows a piece on average from which concatenating beats interleaving.
const CONCAT_ROWS: usize = 32;

/// Bytes of an output batch, about: far below what overflows 32-bit offsets.
const BATCH_BYTES: usize = 64 << 20;

/// An input batch.
struct Held {
    batch: RecordBatch,
    /// Bytes of a row, on average.
    row_bytes: usize,
}

impl Held {
    fn new(batch: &RecordBatch) -> Self {
        let bytes = batch.columns().iter().map(|column| {
            let bytes = column.to_data().get_slice_memory_size();
            bytes.unwrap_or_else(|_| column.get_array_memory_size())
        });
        Self {
            row_bytes: bytes.sum::<usize>() / batch.num_rows().max(1),
            batch: batch.clone(),
        }
    }
}

/// Rows `start..start + rows` of held batch `slot`.
#[derive(Clone, Copy)]
struct Piece {
    slot: usize,
    start: usize,
    rows: usize,
}

pub(super) struct Output {
    batch_rows: usize,
    schema: Option<SchemaRef>,
    /// Input batches that pieces refer to.
    held: Vec<Held>,
    held_max: usize,
    /// Where each source's current batch is held.
    slots: Vec<Option<usize>>,
    pieces: Vec<Piece>,
    /// Rows of all pieces.
    rows: usize,
    /// Bytes of all pieces, about.
    bytes: usize,
    /// Where columns have merge operators: one a column.
    operators: Option<Arc<[MergeOperator]>>,
    /// Which of the rows become part of the row before them.
    joins: Vec<usize>,
    indices: Vec<(usize, usize)>,
    ready: VecDeque<RecordBatch>,
}

impl Output {
    pub(super) fn new(
        sources: usize,
        batch_rows: usize,
        operators: Option<Arc<[MergeOperator]>>,
    ) -> Self {
        Self {
            batch_rows: batch_rows.max(1),
            schema: None,
            held: Vec::new(),
            held_max: (4 * sources).max(16),
            slots: vec![None; sources],
            pieces: Vec::new(),
            rows: 0,
            bytes: 0,
            operators,
            joins: Vec::new(),
            indices: Vec::new(),
            ready: VecDeque::new(),
        }
    }

    /// The next finished batch.
    pub(super) fn pop(&mut self) -> Option<RecordBatch> {
        self.ready.pop_front()
    }

    /// `source` has gone on to the next batch, `batch`.
    ///
    /// # Errors
    /// `Internal` when its columns are not those of the batches before.
    pub(super) fn loaded(&mut self, source: usize, batch: &RecordBatch) -> Result<()> {
        self.slots[source] = None;
        let schema = self.schema.get_or_insert_with(|| batch.schema());
        if schema.fields() != batch.schema_ref().fields() {
            return Err(Error::internal(format!(
                "merge: source {source} has columns {:?}, others have {:?}",
                batch.schema_ref().fields(),
                schema.fields()
            )));
        }
        Ok(())
    }

    /// Adds `rows` rows from `start` of the current batch of `source`.
    pub(super) fn add(&mut self, source: usize, batch: &RecordBatch, start: usize, rows: usize) {
        if rows == 0 {
            return;
        }
        let slot = *self.slots[source].get_or_insert_with(|| {
            self.held.push(Held::new(batch));
            self.held.len() - 1
        });
        self.rows += rows;
        self.bytes += rows * self.held[slot].row_bytes;
        match self.pieces.last_mut() {
            Some(last) if last.slot == slot && last.start + last.rows == start => last.rows += rows,
            _ => self.pieces.push(Piece { slot, start, rows }),
        }
    }

    /// Adds a row that becomes part of the one that was added last.
    pub(super) fn add_combined(&mut self, source: usize, batch: &RecordBatch, row: usize) {
        self.joins.push(self.rows);
        self.add(source, batch, row, 1);
    }

    /// As [`Output::add`], for rows that will stay, with keys of their own: a long stretch passes on without
    /// being copied. But for its last row, which others may become part of.
    pub(super) fn add_stretch(
        &mut self,
        source: usize,
        batch: &RecordBatch,
        start: usize,
        rows: usize,
    ) -> Result<()> {
        let open = usize::from(self.operators.is_some()).min(rows);
        let done = rows - open;
        if done >= SLICE_ROWS && (self.rows <= open || self.rows >= SLICE_ROWS) {
            self.finish()?;
            self.emit(batch.slice(start, done));
            self.add(source, batch, start + done, open);
        } else {
            self.add(source, batch, start, rows);
        }
        Ok(())
    }

    /// Takes back the last `rows` rows.
    pub(super) fn take_back(&mut self, mut rows: usize) {
        self.rows -= rows;
        while rows > 0 {
            let last = self.pieces.last_mut();
            let last = last.expect("only rows that were added are taken back");
            let taken = rows.min(last.rows);
            self.bytes -= taken * self.held[last.slot].row_bytes;
            last.rows -= taken;
            rows -= taken;
            if last.rows == 0 {
                self.pieces.pop();
            }
        }
    }

    /// Whether it is time to flush: enough rows, or too many input batches held for them.
    pub(super) fn is_full(&self) -> bool {
        self.rows >= self.batch_rows
            || self.bytes >= BATCH_BYTES
            || self.held.len() >= self.held_max
    }

    /// Makes pieces into batches; all, but for a last row that others may become part of.
    pub(super) fn flush(&mut self) -> Result<()> {
        let Some(batch) = self.build()? else {
            return Ok(());
        };
        self.clear();
        if self.operators.is_none() {
            self.emit(batch);
            return Ok(());
        }
        let done = batch.num_rows() - 1;
        self.emit(batch.slice(0, done));
        // Taken out of the batch, which would otherwise be held as a whole.
        let open = take_record_batch(&batch, &UInt64Array::from(vec![done as u64]))?;
        self.held.push(Held::new(&open));
        self.pieces.push(Piece {
            slot: 0,
            start: 0,
            rows: 1,
        });
        self.rows = 1;
        self.bytes = self.held[0].row_bytes;
        Ok(())
    }

    /// Makes all pieces into batches: no row that is still to come becomes part of another.
    pub(super) fn finish(&mut self) -> Result<()> {
        if let Some(batch) = self.build()? {
            self.emit(batch);
        }
        self.clear();
        Ok(())
    }

    fn clear(&mut self) {
        self.pieces.clear();
        self.joins.clear();
        self.held.clear();
        self.slots.fill(None);
        (self.rows, self.bytes) = (0, 0);
    }

    fn build(&mut self) -> Result<Option<RecordBatch>> {
        let slice = |piece: &Piece| self.held[piece.slot].batch.slice(piece.start, piece.rows);
        let batch = match &self.pieces[..] {
            [] => return Ok(None),
            [piece] => slice(piece),
            pieces if pieces.len() * CONCAT_ROWS <= self.rows => {
                let slices: Vec<RecordBatch> = pieces.iter().map(slice).collect();
                concat_batches(&slices[0].schema(), &slices)?
            }
            pieces => {
                self.indices.clear();
                for piece in pieces {
                    let rows = piece.start..piece.start + piece.rows;
                    self.indices.extend(rows.map(|row| (piece.slot, row)));
                }
                let held: Vec<&RecordBatch> = self.held.iter().map(|held| &held.batch).collect();
                interleave_record_batch(&held, &self.indices)?
            }
        };
        match &self.operators {
            Some(operators) if !self.joins.is_empty() => {
                combine(&batch, &self.joins, operators).map(Some)
            }
            _ => Ok(Some(batch)),
        }
    }

    /// Passes `batch` on, in equal parts when it is too long.
    fn emit(&mut self, batch: RecordBatch) {
        let parts = batch.num_rows().div_ceil(self.batch_rows).max(1);
        let part_rows = batch.num_rows().div_ceil(parts).max(1);
        for start in (0..batch.num_rows()).step_by(part_rows) {
            let rows = part_rows.min(batch.num_rows() - start);
            self.ready.push_back(batch.slice(start, rows));
        }
    }
}
