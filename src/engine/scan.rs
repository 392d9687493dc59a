//! Scans: one merge over the memtables and SSTs of a version, on a thread of its own, streamed to the reader.
//!
//! 1. A [view](ReadView) is taken: memtables, version, and the seq up to which batches are visible.
//! 2. The view makes sources of what can hold a wanted key or time.
//! 3. The merge yields the newest visible version of each key. Time and limit are applied above it: both
//!    could be evaluated below, but only for time, a key column, is that cheap, and SSTs are pruned by it.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
    thread,
};

use arrow::{
    array::{BooleanArray, RecordBatch, RecordBatchOptions},
    compute::filter_record_batch,
    datatypes::{FieldRef, Schema, SchemaRef},
};
use futures::Stream;
use tokio::sync::mpsc;

use super::{
    table::Table,
    view::{ReadAt, ReadCounters, ReadView},
};
use crate::{
    error::{Error, Result},
    sst::{ReadRequest, projected},
    types::{KeyRange, TableSchema, TimeRange},
};

/// Batches that wait for a slow reader.
const BATCHES_AHEAD: usize = 2;

/// What to scan. The default is everything.
#[derive(Clone, Debug, Default)]
pub struct ScanRequest {
    /// Names of the columns to return, in this order; `None` for all.
    pub projection: Option<Vec<String>>,
    /// Keys to return; [`TableSchema::key_of`](crate::types::TableSchema::key_of) makes bounds.
    pub keys: KeyRange,
    /// Times to return, by the time column.
    pub times: Option<TimeRange>,
    /// Rows to return at most.
    pub limit: Option<usize>,
}

impl ScanRequest {
    /// Everything.
    pub fn all() -> Self {
        Self::default()
    }

    /// Only these columns, in this order.
    #[must_use]
    pub fn columns<'a>(mut self, names: impl IntoIterator<Item = &'a str>) -> Self {
        self.projection = Some(names.into_iter().map(str::to_owned).collect());
        self
    }

    /// Only keys inside `keys`.
    #[must_use]
    pub fn keys(mut self, keys: KeyRange) -> Self {
        self.keys = keys;
        self
    }

    /// Only times inside `times`.
    #[must_use]
    pub fn times(mut self, times: TimeRange) -> Self {
        self.times = Some(times);
        self
    }

    /// At most `rows` rows, the first in key order.
    #[must_use]
    pub fn limit(mut self, rows: usize) -> Self {
        self.limit = Some(rows);
        self
    }
}

/// The rows of a scan, in key order, as batches of the requested columns. Dropping it ends the scan.
/// What it reads stays readable until then, whatever is compacted or deleted meanwhile.
#[derive(Debug)]
pub struct ScanStream {
    schema: SchemaRef,
    batches: mpsc::Receiver<Result<RecordBatch>>,
}

impl ScanStream {
    /// The columns of each batch.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// All remaining batches.
    ///
    /// # Errors
    /// The first error of the scan.
    pub async fn collect(mut self) -> Result<Vec<RecordBatch>> {
        let mut batches = Vec::new();
        while let Some(batch) = self.batches.recv().await {
            batches.push(batch?);
        }
        Ok(batches)
    }
}

impl Stream for ScanStream {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.batches.poll_recv(context)
    }
}

/// Starts a scan of an engine's table.
pub(super) fn scan(table: &Table, request: ScanRequest, at: ReadAt) -> Result<ScanStream> {
    table.engine.check_alive()?;
    table.inner.check_open()?;
    let view = ReadView::new(&table.engine.store, &table.inner, at);
    scan_view(view, &request, table.inner.reads.clone())
}

/// Starts a scan of what `view` sees.
pub(super) fn scan_view(
    view: ReadView,
    request: &ScanRequest,
    counters: Arc<ReadCounters>,
) -> Result<ScanStream> {
    let plan = ScanPlan::new(view.schema(), request)?;
    let schema = plan.output.schema.clone();
    let (sender, batches) = mpsc::channel(BATCHES_AHEAD);
    counters.scans.fetch_add(1, Ordering::Relaxed);
    // A thread of its own: one that waits for a slow reader must not keep others from theirs.
    let thread = thread::Builder::new().name("siltstone-scan".into());
    let started = thread.spawn(move || {
        let emit = |batch: RecordBatch| {
            counters.read(&batch);
            sender.blocking_send(Ok(batch)).is_ok()
        };
        // A panic must not look like the end of the rows.
        let result = catch_unwind(AssertUnwindSafe(|| plan.run(&view, emit)));
        if let Err(error) = result.unwrap_or_else(|_| Err(Error::internal("scan panicked"))) {
            // A reader that has gone does not want to know.
            let _ = sender.blocking_send(Err(error));
        }
    });
    started
        .map_err(|error| Error::unavailable("a scan's thread cannot start").with_source(error))?;
    Ok(ScanStream { schema, batches })
}

/// A checked request.
struct ScanPlan {
    read: ReadRequest,
    output: Output,
    /// Position of the time column among those read.
    time: Option<usize>,
    limit: usize,
}

impl ScanPlan {
    fn new(schema: &TableSchema, request: &ScanRequest) -> Result<Self> {
        if request.times.is_some() && schema.time().is_none() {
            return Err(Error::invalid(
                "a scan by time needs a table with a time column",
            ));
        }
        let columns = schema.columns();
        let returned = match &request.projection {
            None => columns.clone(),
            Some(names) => {
                let columns = names.iter().map(|name| column(schema, name));
                Arc::new(Schema::new(columns.collect::<Result<Vec<_>>>()?))
            }
        };
        let read = ReadRequest {
            projection: request.projection.clone(),
            keys: request.keys.clone(),
            times: request.times,
            ..ReadRequest::default()
        };
        let merged = projected(schema, read.projection.as_deref())?;
        let time = schema.time().map(|at| columns.field(at).name());
        Ok(Self {
            time: time.map(|name| merged.index_of(name)).transpose()?,
            output: Output::new(&merged, returned)?,
            limit: request.limit.unwrap_or(usize::MAX),
            read,
        })
    }

    /// Hands each batch to `emit` until it declines.
    fn run(&self, view: &ReadView, mut emit: impl FnMut(RecordBatch) -> bool) -> Result<()> {
        let mut left = self.limit;
        if left == 0 || self.read.keys.is_empty() {
            return Ok(());
        }
        for batch in view.merge(&self.read)? {
            let mut batch = self.in_time(batch?)?;
            if batch.num_rows() == 0 {
                continue;
            }
            if batch.num_rows() > left {
                batch = batch.slice(0, left);
            }
            left -= batch.num_rows();
            if !emit(self.output.of(&batch)?) || left == 0 {
                return Ok(());
            }
        }
        Ok(())
    }

    fn in_time(&self, batch: RecordBatch) -> Result<RecordBatch> {
        let (Some(wanted), Some(column)) = (self.read.times, self.time) else {
            return Ok(batch);
        };
        let times = TableSchema::times(&batch, column)?;
        let keep: BooleanArray = times
            .values()
            .iter()
            .map(|&time| Some(wanted.contains(time)))
            .collect();
        Ok(filter_record_batch(&batch, &keep)?)
    }
}

fn column(schema: &TableSchema, name: &str) -> Result<FieldRef> {
    let columns = schema.columns();
    let at = columns.index_of(name);
    let at = at.map_err(|_| Error::invalid(format!("column {name:?} is not in the table")))?;
    Ok(columns.fields()[at].clone())
}

/// The way from merged batches to those that a reader sees: the table's own columns, in the order asked
/// for, nullable only where the table has them so.
pub(super) struct Output {
    schema: SchemaRef,
    positions: Vec<usize>,
}

impl Output {
    /// From batches with the columns `merged` to batches with the columns `schema`.
    pub(super) fn new(merged: &Schema, schema: SchemaRef) -> Result<Self> {
        let fields = schema.fields().iter();
        let positions = fields.map(|field| merged.index_of(field.name()));
        Ok(Self {
            positions: positions.collect::<Result<_, _>>()?,
            schema,
        })
    }

    /// What a reader sees of `batch`.
    pub(super) fn of(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let columns = self.positions.iter().map(|&at| batch.column(at).clone());
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let (schema, columns) = (self.schema.clone(), columns.collect());
        Ok(RecordBatch::try_new_with_options(
            schema, columns, &options,
        )?)
    }
}
