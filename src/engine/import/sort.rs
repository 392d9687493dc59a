//! Writes the SSTs of an import, in bounded memory.
//!
//! Rows that come in key order, where time leads the key or there are no windows, go straight through: of each window
//! the rows follow each other, and become a run. All others are sorted:
//! 1. as many as memory is given for are sorted by window and key, and of each window written as an SST that
//!    is read again later: a *spill*;
//! 2. of each window the spills are merged into the final run; too many of them first into fewer, larger ones.
//!
//! Of rows with one key the last one counts: within a part the sort sees to it, between parts the merge, whose sources
//! are given in that order. Rows that all fit into memory are written at once.
//!
//! Spills have small row groups, so that a merge can read many of them in the memory that it is given.

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
};

use arrow::{
    array::{ArrayRef, RecordBatch},
    compute::interleave_record_batch,
    row::Rows,
};
use tokio::{runtime::Handle, sync::mpsc};

use super::{
    ImportOptions, delete,
    rows::{self, InOrder, Input, OfWindow, Received},
};
use crate::{
    engine::{EngineInner, alter, table::TableInner},
    error::Result,
    gc::PendingSsts,
    merge::{Merge, MergeColumns, MergeOptions, SortedSource},
    sst::{ReadRequest, RunHooks, SstAccess, SstOptions, SstReader, SstSpec, write_run},
    threads,
    types::{Retention, Seq, SstId, SstMeta, TableSchema, Window, Windowing, WriteMode},
};

const BATCH_ROWS: usize = 8_192;
/// Memory for the order of one row, besides the row and its key.
const ROW_BYTES: usize = 48;
/// Encoded bytes of a row group of a spill, about.
const SPILL_GROUP_BYTES: usize = 1 << 20;
/// Memory that a merge takes for one spill: a row group decoded, and the next one fetched.
const SPILL_MEMORY: u64 = 8 << 20;

/// Writes the SSTs. Blocks.
pub(super) struct Loader {
    pub(super) engine: Arc<EngineInner>,
    pub(super) table: Arc<TableInner>,
    pub(super) pending: Arc<PendingSsts>,
    pub(super) options: ImportOptions,
    /// The columns that the rows have.
    pub(super) schema: TableSchema,
    pub(super) seq: Seq,
    pub(super) handle: Handle,
}

/// What was written.
pub(super) struct Written {
    /// By window, then by key.
    pub(super) ssts: Vec<Arc<SstMeta>>,
    /// Whose windows they were cut by.
    pub(super) schema: TableSchema,
}

/// A run of spills, sorted, of one part of the rows.
type Spill = Arc<SstMeta>;

impl Loader {
    pub(super) fn load(mut self, input: mpsc::Receiver<Input>) -> Result<Written> {
        let received = Received {
            input,
            table: self.table.clone(),
            schema: self.schema.clone(),
            seq: self.seq,
            handle: self.handle.clone(),
            progress: self.options.progress.clone(),
            has_ended: false,
        };
        let in_order = self.options.sorted;
        let follows_time = self.schema.time() == self.schema.key().first().copied();
        let is_cut = self.schema.options().window != Windowing::None;
        let mut ssts = match in_order {
            true if follows_time || !is_cut => {
                self.straight(InOrder::new(received, self.schema.clone()))
            }
            true => {
                let checked = InOrder::new(received, self.schema.clone());
                self.sorted(checked)
            }
            false => self.sorted(received),
        }?;
        ssts.sort_by(|left, right| {
            let by_window = left.window.cmp(&right.window);
            by_window.then_with(|| left.key_min.cmp(&right.key_min))
        });
        Ok(Written {
            ssts: ssts.into_iter().map(Arc::new).collect(),
            schema: self.schema,
        })
    }

    /// Writes rows that come in the order of windows, and of keys in each.
    fn straight(
        &mut self,
        batches: impl Iterator<Item = Result<RecordBatch>>,
    ) -> Result<Vec<SstMeta>> {
        let mut batches = batches.peekable();
        if let Some(Ok(first)) = batches.peek() {
            let first = first.clone();
            self.choose_window(std::slice::from_ref(&first))?;
        }
        let schema = self.schema.clone();
        let cut =
            |batch: Result<RecordBatch>| match batch.and_then(|batch| rows::cut(&schema, batch)) {
                Ok(stretches) => stretches.into_iter().map(Ok).collect(),
                Err(error) => vec![Err(error)],
            };
        let mut stretches = batches.flat_map(cut).peekable();
        let mut ssts = Vec::new();
        while let Some(next) = stretches.peek() {
            let window = match next {
                Ok(stretch) => stretch.window,
                // It comes out of the run.
                Err(_) => Window::ALL,
            };
            let run = OfWindow {
                window,
                stretches: &mut stretches,
            };
            ssts.extend(self.write_final(window, run)?);
        }
        Ok(ssts)
    }

    /// Writes rows that come in any order.
    fn sorted(
        &mut self,
        batches: impl Iterator<Item = Result<RecordBatch>>,
    ) -> Result<Vec<SstMeta>> {
        let mut part = Part::default();
        let mut spills = BTreeMap::<Window, Vec<Spill>>::new();
        let mut is_first = true;
        let mut batches = batches.peekable();
        while let Some(batch) = batches.next() {
            part.add(&self.schema, batch?)?;
            let is_full = part.bytes >= self.options.memory_bytes;
            if !is_full && batches.peek().is_some() {
                continue;
            }
            if std::mem::take(&mut is_first) {
                self.choose_window(&part.batches)?;
            }
            let part = std::mem::take(&mut part);
            let windows = part.sort(&self.schema)?;
            if spills.is_empty() && batches.peek().is_none() {
                // It all fits.
                let written = windows.into_iter();
                let written =
                    written.map(|(window, rows)| self.write_final(window, part.rows(&rows)));
                return written
                    .collect::<Result<Vec<_>>>()
                    .map(|runs| runs.concat());
            }
            for (window, rows) in windows {
                let spill = self.spill(window, part.rows(&rows))?;
                spills.entry(window).or_default().extend(spill);
            }
        }
        let mut ssts = Vec::new();
        for (window, spills) in spills {
            ssts.extend(self.merge(window, spills)?);
        }
        Ok(ssts)
    }

    /// Merges the spills of a window into its final run, and deletes them.
    fn merge(&self, window: Window, mut spills: Vec<Spill>) -> Result<Vec<SstMeta>> {
        let sources_max = (self.options.memory_bytes / SPILL_MEMORY).max(2) as usize;
        while spills.len() > sources_max {
            let mut fewer = Vec::new();
            // Neighbours, so that they stay in the order of their rows.
            for spills in spills.chunks(sources_max) {
                match spills {
                    [only] => fewer.push(only.clone()),
                    _ => {
                        fewer.extend(self.spill(window, self.merged(spills)?)?);
                        self.forget(spills);
                    }
                }
            }
            spills = fewer;
        }
        let run = self.write_final(window, self.merged(&spills)?)?;
        self.forget(&spills);
        Ok(run)
    }

    /// The rows of `spills`, which are in the order of their rows, in the order of keys.
    fn merged(
        &self,
        spills: &[Spill],
    ) -> Result<impl Iterator<Item = Result<RecordBatch>> + use<>> {
        let schema = &self.schema;
        let request = ReadRequest {
            batch_rows: BATCH_ROWS,
            ..ReadRequest::default()
        };
        let access = SstAccess::by_chunks(&self.engine.store);
        let mut sources = Vec::with_capacity(spills.len());
        for spill in spills {
            let opening = SstReader::open(&access, schema, self.table.id(), spill.clone());
            let source = threads::wait(&self.handle, opening)?;
            let source = source.source(&request, self.handle.clone())?;
            sources.push(Box::new(source) as SortedSource);
        }
        // Of rows with equal key and seq the first source's comes first, and hides the others where one counts.
        if schema.write_mode() == WriteMode::Upsert {
            sources.reverse();
        }
        let columns = MergeColumns {
            // Rows of one import are not combined: of equal keys the last one counts.
            operators: None,
            ..MergeColumns::find(schema, schema.stored())?
        };
        let options = MergeOptions {
            hash_rows: false,
            ..MergeOptions::retained(schema.write_mode(), Retention::default())
        };
        Ok(Merge::new(sources, columns, options))
    }

    fn spill(
        &self,
        window: Window,
        rows: impl Iterator<Item = Result<RecordBatch>>,
    ) -> Result<Vec<Spill>> {
        let options = SstOptions {
            sst_bytes_target: u64::MAX,
            row_group_bytes: SPILL_GROUP_BYTES,
            filter_bits_per_key: 0,
            ..SstOptions::default()
        };
        let progress = &self.options.progress;
        let written = self.write(window, rows, options, &mut |rows| {
            progress.rows_spilled.fetch_add(rows, Ordering::Relaxed);
        });
        Ok(written?.into_iter().map(Arc::new).collect())
    }

    fn write_final(
        &self,
        window: Window,
        rows: impl Iterator<Item = Result<RecordBatch>>,
    ) -> Result<Vec<SstMeta>> {
        let options = SstOptions {
            sst_bytes_target: self.engine.config.compaction.sst_bytes_target.0,
            ..SstOptions::default()
        };
        let progress = &self.options.progress;
        let ssts = self.write(window, rows, options, &mut |rows| {
            progress.rows_written.fetch_add(rows, Ordering::Relaxed);
        })?;
        let bytes = ssts.iter().map(|sst| sst.bytes).sum();
        progress.bytes_written.fetch_add(bytes, Ordering::Relaxed);
        Ok(ssts)
    }

    fn write(
        &self,
        window: Window,
        rows: impl Iterator<Item = Result<RecordBatch>>,
        options: SstOptions,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Vec<SstMeta>> {
        let env = &self.engine.env;
        let spec = SstSpec {
            schema: self.schema.clone(),
            table: self.table.id(),
            level: 0,
            window,
            // Those that were made before have lower seqs, those that follow come after the import.
            applied_seq: Seq(0),
            options,
        };
        let hooks = RunHooks {
            id_of: &mut |_| {
                let id = SstId::flushed(env.unix_ms(), env.random());
                self.pending.add(id)
            },
            progress,
            finished: &mut |_| {},
            cancelled: &|| self.table.cancel.is_cancelled(),
        };
        write_run(&self.engine.store, &self.handle, &spec, rows, hooks)
    }

    /// Deletes spills that are not needed any more.
    fn forget(&self, spills: &[Spill]) {
        let ids: Vec<SstId> = spills.iter().map(|spill| spill.id).collect();
        let deleting = delete(&self.engine, &self.table, &ids);
        threads::wait(&self.handle, deleting);
    }

    /// Chooses the width of windows by the first rows, if that has been left to those.
    fn choose_window(&mut self, batches: &[RecordBatch]) -> Result<()> {
        if self.schema.options().window != Windowing::Auto {
            return Ok(());
        }
        let Some(time) = self.schema.time() else {
            return Ok(());
        };
        let (mut bytes, mut bounds) = (0, None::<(i64, i64)>);
        for batch in batches {
            bytes += bytes_of(batch) as u64;
            let times = TableSchema::times(batch, time)?;
            let (min, max) = (arrow::compute::min(&times), arrow::compute::max(&times));
            if let (Some(min), Some(max)) = (min, max) {
                let (least, greatest) = bounds.unwrap_or((min, max));
                bounds = Some((least.min(min), greatest.max(max)));
            }
        }
        let Some(bounds) = bounds else {
            return Ok(());
        };
        let (engine, table) = (&self.engine, &self.table);
        let choice = alter::choose_window(engine, table, || Ok(Some((bytes, bounds))));
        threads::wait(&self.handle, choice)?;
        // The columns stay those that the rows have.
        let chosen = table.manifest.version().schema.options().window;
        self.schema = self.schema.with_window(chosen)?;
        Ok(())
    }
}

/// Rows that are sorted together.
#[derive(Default)]
struct Part {
    batches: Vec<RecordBatch>,
    keys: Vec<Rows>,
    bytes: u64,
}

/// A row: its batch, and its place there.
type Row = (usize, usize);

impl Part {
    fn add(&mut self, schema: &TableSchema, batch: RecordBatch) -> Result<()> {
        let keys = schema.key_encoder().encode(&batch)?;
        let rows = batch.num_rows() * ROW_BYTES;
        self.bytes += (bytes_of(&batch) + keys.size() + rows) as u64;
        self.batches.push(batch);
        self.keys.push(keys);
        Ok(())
    }

    /// The rows of each window that count, in key order.
    fn sort(&self, schema: &TableSchema) -> Result<Vec<(Window, Vec<Row>)>> {
        let mut windows = BTreeMap::<Window, Vec<Row>>::new();
        for (at, batch) in self.batches.iter().enumerate() {
            let window_of = rows::windows_of(schema, batch)?;
            for row in 0..batch.num_rows() {
                let window = window_of
                    .as_ref()
                    .map_or(Window::ALL, |windows| windows[row]);
                windows.entry(window).or_default().push((at, row));
            }
        }
        let is_upsert = schema.write_mode() == WriteMode::Upsert;
        for rows in windows.values_mut() {
            // Stable: rows of one key stay in the order they came in.
            rows.sort_by(|&left, &right| self.key(left).cmp(self.key(right)));
            if is_upsert {
                self.keep_last(rows);
            }
        }
        Ok(windows.into_iter().collect())
    }

    /// Of `rows`, which are sorted, the last one of each key.
    fn keep_last(&self, rows: &mut Vec<Row>) {
        let mut kept = 0;
        for at in 0..rows.len() {
            let is_last = rows
                .get(at + 1)
                .is_none_or(|&next| self.key(rows[at]) != self.key(next));
            if is_last {
                rows[kept] = rows[at];
                kept += 1;
            }
        }
        rows.truncate(kept);
    }

    fn key(&self, (batch, row): Row) -> &[u8] {
        self.keys[batch].row(row).data()
    }

    /// These rows, in batches.
    fn rows<'a>(&'a self, rows: &'a [Row]) -> impl Iterator<Item = Result<RecordBatch>> + 'a {
        let batches: Vec<&RecordBatch> = self.batches.iter().collect();
        rows.chunks(BATCH_ROWS)
            .map(move |rows| Ok(interleave_record_batch(&batches, rows)?))
    }
}

/// Memory of the rows of `batch`, which may be a slice of more.
fn bytes_of(batch: &RecordBatch) -> usize {
    let column = |column: &ArrayRef| {
        let bytes = column.to_data().get_slice_memory_size();
        bytes.unwrap_or_else(|_| column.get_array_memory_size())
    };
    batch.columns().iter().map(column).sum()
}
