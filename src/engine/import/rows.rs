//! The rows of an import on their way: received, checked, stored; then as sorted stretches, each in one window.

use std::{
    collections::VecDeque,
    iter::Peekable,
    sync::{Arc, atomic::Ordering},
};

use arrow::{
    array::{BooleanArray, RecordBatch},
    compute::filter_record_batch,
    row::Rows,
};
use tokio::{runtime::Handle, sync::mpsc};

use super::ImportProgress;
use crate::{
    engine::table::TableInner,
    error::{Error, Result},
    threads,
    types::{Key, Seq, TableSchema, Window, WriteMode},
};

/// What comes from the caller.
#[derive(Debug)]
pub(super) enum Input {
    Batch(RecordBatch),
    Failed(Error),
    End,
}

/// Stored batches, as they come. Blocks.
pub(super) struct Received {
    pub(super) input: mpsc::Receiver<Input>,
    pub(super) table: Arc<TableInner>,
    pub(super) schema: TableSchema,
    pub(super) seq: Seq,
    pub(super) handle: Handle,
    pub(super) progress: Arc<ImportProgress>,
    pub(super) has_ended: bool,
}

impl Received {
    fn receive(&mut self) -> Result<Option<RecordBatch>> {
        let input = threads::wait(&self.handle, async {
            tokio::select! {
                biased;
                () = self.table.cancel.cancelled() => None,
                input = self.input.recv() => input,
            }
        });
        let batch = match input {
            Some(Input::Batch(batch)) => batch,
            Some(Input::Failed(error)) => return Err(error),
            Some(Input::End) => return Ok(None),
            None => {
                self.table.check_open()?;
                return Err(Error::closed("the import was given up"));
            }
        };
        let schema = &self.schema;
        let before = self.progress.rows_read();
        let naming = |error: Error| error.context(format!("rows from {before} on of the import"));
        schema.check_batch(&batch).map_err(naming)?;
        let rows = batch.num_rows() as u64;
        let counter = &self.progress.rows_read;
        counter.fetch_add(rows, Ordering::Relaxed);
        schema.puts(&schema.label(&batch)?, self.seq).map(Some)
    }
}

impl Iterator for Received {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.has_ended {
            let batch = self.receive();
            self.has_ended = !matches!(batch, Ok(Some(_)));
            match batch.transpose()? {
                Ok(batch) if batch.num_rows() == 0 => {}
                batch => return Some(batch),
            }
        }
        None
    }
}

/// Batches that claim to be in key order, checked; in an upsert table only the last row of each key.
pub(super) struct InOrder<I> {
    batches: I,
    schema: TableSchema,
    /// Rows before the current batch.
    rows: u64,
    /// The last row so far, which is held back until another key is met, and its key.
    held: Option<(RecordBatch, Key)>,
    /// Batches that are ready.
    ready: VecDeque<RecordBatch>,
    has_ended: bool,
}

impl<I: Iterator<Item = Result<RecordBatch>>> InOrder<I> {
    pub(super) fn new(batches: I, schema: TableSchema) -> Self {
        Self {
            batches,
            schema,
            rows: 0,
            held: None,
            ready: VecDeque::new(),
            has_ended: false,
        }
    }

    fn take(&mut self, batch: RecordBatch) -> Result<()> {
        let keys = self.schema.key_encoder().encode(&batch)?;
        self.check(&keys)?;
        self.rows += batch.num_rows() as u64;
        let last = batch.num_rows() - 1;
        let held = (batch.slice(last, 1), Key::from(keys.row(last).data()));
        if self.schema.write_mode() == WriteMode::Append {
            self.ready.push_back(batch);
            self.held = Some(held);
            return Ok(());
        }
        let before = self.held.replace(held);
        if let Some((row, key)) = before
            && key.0[..] != *keys.row(0).data()
        {
            self.ready.push_back(row);
        }
        let counts: BooleanArray = (0..=last)
            .map(|row| Some(row < last && keys.row(row) != keys.row(row + 1)))
            .collect();
        let counted = match counts.true_count() == last {
            true => batch.slice(0, last),
            false => filter_record_batch(&batch, &counts)?,
        };
        if counted.num_rows() > 0 {
            self.ready.push_back(counted);
        }
        Ok(())
    }

    /// That `keys` do not descend, after the last row before.
    fn check(&self, keys: &Rows) -> Result<()> {
        let held = self.held.as_ref().map(|(_, key)| &key.0[..]);
        let first = held
            .is_some_and(|held| held > keys.row(0).data())
            .then_some(0);
        let descends = |&row: &usize| keys.row(row - 1) > keys.row(row);
        match first.or_else(|| (1..keys.num_rows()).find(descends)) {
            None => Ok(()),
            Some(row) => {
                let (row, key) = (self.rows + row as u64, self.schema.key_names().join(", "));
                Err(Error::invalid(format!(
                    "row {row} of the import comes before the row ahead of it: they are not sorted by ({key})"
                )))
            }
        }
    }
}

impl<I: Iterator<Item = Result<RecordBatch>>> Iterator for InOrder<I> {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(batch) = self.ready.pop_front() {
                return Some(Ok(batch));
            }
            if self.has_ended {
                return None;
            }
            let taken = match self.batches.next() {
                Some(batch) => batch.and_then(|batch| self.take(batch)),
                None => {
                    self.has_ended = true;
                    let held = self.held.take().map(|(row, _)| row);
                    let held = held.filter(|_| self.schema.write_mode() == WriteMode::Upsert);
                    self.ready.extend(held);
                    Ok(())
                }
            };
            if let Err(error) = taken {
                self.has_ended = true;
                return Some(Err(error));
            }
        }
    }
}

/// Rows that follow each other, in one window.
pub(super) struct Stretch {
    pub(super) window: Window,
    pub(super) batch: RecordBatch,
}

/// Cuts `batch` where one window ends and another begins.
pub(super) fn cut(schema: &TableSchema, batch: RecordBatch) -> Result<Vec<Stretch>> {
    let Some(windows) = windows_of(schema, &batch)? else {
        let window = Window::ALL;
        return Ok(vec![Stretch { window, batch }]);
    };
    let mut start = 0;
    let parts = windows.chunk_by(|left, right| left == right);
    let stretches = parts.map(|part| {
        let batch = batch.slice(start, part.len());
        start += part.len();
        let window = part[0];
        Stretch { window, batch }
    });
    Ok(stretches.collect())
}

/// The window of each row; `None` where all are in one.
pub(super) fn windows_of(schema: &TableSchema, batch: &RecordBatch) -> Result<Option<Vec<Window>>> {
    let (Some(width), Some(time)) = (schema.window_width(), schema.time()) else {
        return Ok(None);
    };
    let times = TableSchema::times(batch, time)?;
    let windows = times.values().iter().map(|&time| width.window_of(time));
    Ok(Some(windows.collect()))
}

/// The batches of the window that `stretches` have come to, until they come to another.
pub(super) struct OfWindow<'a, I: Iterator<Item = Result<Stretch>>> {
    pub(super) window: Window,
    pub(super) stretches: &'a mut Peekable<I>,
}

impl<I: Iterator<Item = Result<Stretch>>> Iterator for OfWindow<'_, I> {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let window = self.window;
        let is_inside = |next: &Result<Stretch>| match next {
            Ok(stretch) => stretch.window == window,
            Err(_) => true,
        };
        let next = self.stretches.next_if(is_inside)?;
        Some(next.map(|stretch| stretch.batch))
    }
}
