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

use std::collections::VecDeque;

use arrow::{
    array::RecordBatch,
    compute::{concat_batches, interleave_record_batch},
    datatypes::SchemaRef,
};

use crate::error::{Error, Result};

/// Rows that make a stretch worth a batch of its own.
const SLICE_ROWS: usize = 1_024;
/// Rows a piece on average from which concatenating beats interleaving.
const CONCAT_ROWS: usize = 32;

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
    held: Vec<RecordBatch>,
    held_max: usize,
    /// Where each source's current batch is held.
    slots: Vec<Option<usize>>,
    pieces: Vec<Piece>,
    /// Rows of all pieces.
    rows: usize,
    indices: Vec<(usize, usize)>,
    ready: VecDeque<RecordBatch>,
}

impl Output {
    pub(super) fn new(sources: usize, batch_rows: usize) -> Self {
        Self {
            batch_rows: batch_rows.max(1),
            schema: None,
            held: Vec::new(),
            held_max: (4 * sources).max(16),
            slots: vec![None; sources],
            pieces: Vec::new(),
            rows: 0,
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
            self.held.push(batch.clone());
            self.held.len() - 1
        });
        self.rows += rows;
        match self.pieces.last_mut() {
            Some(last) if last.slot == slot && last.start + last.rows == start => last.rows += rows,
            _ => self.pieces.push(Piece { slot, start, rows }),
        }
    }

    /// As [`Output::add`], for rows that will stay: a long stretch passes on without being copied.
    pub(super) fn add_stretch(
        &mut self,
        source: usize,
        batch: &RecordBatch,
        start: usize,
        rows: usize,
    ) -> Result<()> {
        if rows >= SLICE_ROWS && (self.rows == 0 || self.rows >= SLICE_ROWS) {
            self.flush()?;
            self.emit(batch.slice(start, rows));
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
            last.rows -= taken;
            rows -= taken;
            if last.rows == 0 {
                self.pieces.pop();
            }
        }
    }

    /// Whether it is time to flush: enough rows, or too many input batches held for them.
    pub(super) fn is_full(&self) -> bool {
        self.rows >= self.batch_rows || self.held.len() >= self.held_max
    }

    /// Makes all pieces into batches.
    pub(super) fn flush(&mut self) -> Result<()> {
        if let Some(batch) = self.build()? {
            self.emit(batch);
        }
        self.pieces.clear();
        self.held.clear();
        self.slots.fill(None);
        self.rows = 0;
        Ok(())
    }

    fn build(&mut self) -> Result<Option<RecordBatch>> {
        let slice = |piece: &Piece| self.held[piece.slot].slice(piece.start, piece.rows);
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
                let held: Vec<&RecordBatch> = self.held.iter().collect();
                interleave_record_batch(&held, &self.indices)?
            }
        };
        Ok(Some(batch))
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
