//! Reads the rows of an SST as a sorted source, row group by row group.
//!
//! 1. [Select](super::select) what can be wanted: row groups, and pages in them.
//! 2. Fetch what of the wanted columns overlaps that, with one request, and while a row group is being decoded,
//!    fetch the next. Check the CRC-32 of each piece.
//! 3. Decode, bring the columns up to date with the table's schema, and [test](Tests) the rows that may not be
//!    wanted after all.
//!
//! *Late materialisation*: where the tests may leave out rows here and there, the columns that they look at are
//! decoded first, for the whole row group, and the others only for the rows that passed. Both are fetched at
//! once where they are small: a request costs as much as [`TOGETHER_BYTES`]. A filter that few rows failed in
//! the row group before is tested on decoded rows instead.
//!
//! Memory: what was fetched of one row group, and of the first phase of the next.

use std::{collections::VecDeque, sync::Arc};

use arrow::{array::RecordBatch, compute::concat_batches, datatypes::SchemaRef};
use bytes::Bytes;
use tokio::{runtime::Handle, task::JoinHandle};

use super::{
    chunks::SparseObject,
    decode::{Decoder, Late, Rows, Tests, keep},
    fetch::{self, Piece},
    file::SstFile,
    reader::naming,
    rows::RowRanges,
    schema::{ColumnPlan, with_columns},
    select::{Selected, Selector},
};
use crate::{
    error::{Error, Result},
    threads,
    types::{Filter, Key, KeyRange, TimeRange},
};

/// Fewer bytes than these are fetched in vain rather than with a request of their own.
const TOGETHER_BYTES: u64 = 256 << 10;
/// Fewer rows than these are decoded in vain rather than skipped.
const SKIP_ROWS_MIN: usize = 32;

/// What to read of an SST. The default is everything.
#[derive(Clone, Debug)]
pub struct ReadRequest {
    /// Names of stored columns to read; `None` for all. They come in the order of the table.
    pub projection: Option<Vec<String>>,
    /// Only these columns. Otherwise the key, `__seq` and `__op` come always, for a merge needs them.
    pub exact: bool,
    /// Only rows with these keys.
    pub keys: KeyRange,
    /// Only rows with one of these keys, which ascend, each once.
    pub points: Option<Arc<[Key]>>,
    /// Only rows with these times. Time is part of the key, so that this takes or leaves all versions of a
    /// key.
    pub times: Option<TimeRange>,
    /// Only rows for which it holds. It takes or leaves single versions of a key: mind what they hide.
    pub filter: Option<Filter>,
    /// Tombstones pass `filter` whatever it says.
    pub keep_tombstones: bool,
    /// Rows in a batch at most.
    pub batch_rows: usize,
}

impl Default for ReadRequest {
    fn default() -> Self {
        Self {
            projection: None,
            exact: false,
            keys: KeyRange::ALL,
            points: None,
            times: None,
            filter: None,
            keep_tombstones: false,
            batch_rows: 8_192,
        }
    }
}

/// The rows of an SST, in order. Ends after the first error. Blocks while it waits for the store.
pub struct SstSource {
    file: Arc<SstFile>,
    selector: Selector,
    /// The columns of its batches.
    output: SchemaRef,
    /// Leaf columns of these and of the filter.
    leaves: Vec<usize>,
    batch_rows: usize,
    handle: Handle,
    /// Row groups still to be looked at.
    groups: VecDeque<usize>,
    /// The next row group with wanted rows, being fetched.
    next: Option<Begun>,
    current: Option<Rows>,
    /// Whether tests are worth a phase of their own, as the row group before taught.
    tests_first: bool,
}

/// A row group of which the first phase is being fetched.
struct Begun {
    selected: Selected,
    tests: Tests,
    /// What is decoded first.
    first: ColumnPlan,
    /// What is decoded afterwards, if there are two phases.
    second: Option<ColumnPlan>,
    fetch: Fetch,
    /// Whether that fetches what the second phase needs, too.
    is_all: bool,
}

/// Pieces of a row group on their way.
struct Fetch {
    group: usize,
    pieces: Vec<Piece>,
    task: JoinHandle<Result<Vec<Bytes>>>,
}

impl Drop for Fetch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl SstSource {
    /// Reads the columns `output` of what `request` asks for.
    pub(super) fn new(
        file: Arc<SstFile>,
        request: &ReadRequest,
        output: SchemaRef,
        handle: Handle,
    ) -> Result<Self> {
        let filtered = request.filter.as_ref().map_or(&[][..], Filter::columns);
        let wanted = with_columns(&file.schema, |name| {
            output.index_of(name).is_ok() || filtered.iter().any(|other| other == name)
        });
        let selector = Selector::new(&file, request);
        let groups = selector.groups(&file)?;
        let mut source = Self {
            leaves: plan(&file, wanted)?.leaves,
            selector,
            output,
            batch_rows: request.batch_rows.max(1),
            handle,
            groups: groups.into(),
            next: None,
            current: None,
            tests_first: true,
            file,
        };
        let all = source.file.opened.parquet.metadata().num_row_groups();
        for group in (0..all).filter(|group| source.groups.binary_search(group).is_err()) {
            source.count_skipped(group);
        }
        source.begin_next()?;
        Ok(source)
    }

    /// The columns of its batches.
    pub fn schema(&self) -> &SchemaRef {
        &self.output
    }

    fn count_skipped(&self, group: usize) {
        let stats = &self.file.access.stats;
        stats.add_row_groups_skipped(1);
        stats.add_pages_skipped(fetch::count_pages(&self.file.opened, group, &self.leaves));
    }

    /// Counts the reading of `pieces`, of the columns `leaves` of `group`.
    fn count_read(&self, group: usize, leaves: &[usize], pieces: &[Piece]) {
        let stats = &self.file.access.stats;
        let read = pieces.iter().filter(|piece| piece.is_page()).count() as u64;
        let all = fetch::count_pages(&self.file.opened, group, leaves);
        stats.add_pages_read(read);
        stats.add_pages_skipped(all.saturating_sub(read));
    }

    fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(rows) = &mut self.current {
                match rows.next(&self.output, &self.file.access.stats)? {
                    Some(batch) if batch.num_rows() == 0 => {}
                    Some(batch) => return Ok(Some(batch)),
                    None => {
                        self.tests_first = rows.tests_first().unwrap_or(self.tests_first);
                        self.current = None;
                    }
                }
            } else if let Some(begun) = self.next.take() {
                self.current = self.open(begun)?;
            } else {
                return Ok(None);
            }
        }
    }

    /// Fetches the first phase of the next row group that has wanted rows.
    fn begin_next(&mut self) -> Result<()> {
        while let Some(group) = self.groups.pop_front() {
            let selected = self.selector.rows(&self.file, group)?;
            if !selected.rows.is_empty() {
                self.next = Some(self.begin(selected)?);
                return Ok(());
            }
            self.count_skipped(group);
        }
        Ok(())
    }

    fn begin(&self, selected: Selected) -> Result<Begun> {
        let (file, group) = (&self.file, selected.group);
        let tests = Tests::new(file, &self.selector, &selected);
        let is_tested = |name: &str| tests.columns.index_of(name).is_ok();
        let is_wanted = |name: &str| self.output.index_of(name).is_ok();
        let rest = with_columns(&file.schema, |name| is_wanted(name) && !is_tested(name));
        let in_two = tests.is_scattered() && self.tests_first && !rest.fields().is_empty();
        let (first, second) = match in_two {
            true => (tests.columns.clone(), Some(plan(file, rest)?)),
            false => {
                let all = with_columns(&file.schema, |name| is_tested(name) || is_wanted(name));
                (all, None)
            }
        };
        let first = plan(file, first)?;
        let rows = &selected.rows;
        let mut pieces = fetch::pieces(&file.opened, group, &first.leaves, rows);
        self.count_read(group, &first.leaves, &pieces);
        file.access.stats.add_row_groups_read(1);
        let mut is_all = second.is_none();
        if let Some(second) = &second {
            let others = fetch::pieces(&file.opened, group, &second.leaves, rows);
            is_all = fetch::total_bytes(&others) <= TOGETHER_BYTES;
            if is_all {
                self.count_read(group, &second.leaves, &others);
                pieces.extend(others);
                pieces.sort_unstable_by_key(|piece| piece.range.start);
            }
        }
        Ok(Begun {
            fetch: self.fetch(group, pieces),
            selected,
            tests,
            first,
            second,
            is_all,
        })
    }

    fn fetch(&self, group: usize, pieces: Vec<Piece>) -> Fetch {
        let (file, wanted) = (self.file.clone(), pieces.clone());
        Fetch {
            group,
            pieces,
            task: self
                .handle
                .spawn(async move { fetch::fetch(&file, &wanted).await }),
        }
    }

    /// Waits for `fetch`, and verifies what it brought.
    fn receive(&self, mut fetch: Fetch) -> Result<SparseObject> {
        let joined = threads::wait(&self.handle, &mut fetch.task);
        let parts = joined.map_err(|error| {
            if error.is_panic() {
                Error::internal("its fetch panicked").with_source(error)
            } else {
                Error::closed("its fetch was stopped").with_source(error)
            }
        })??;
        fetch::verify(&self.file, fetch.group, &fetch.pieces, parts)
    }

    /// Rows of the row group that was begun; `None` when no row passed the tests.
    fn open(&mut self, begun: Begun) -> Result<Option<Rows>> {
        let object = self.receive(begun.fetch)?;
        let Selected { group, rows, .. } = begun.selected;
        let Some(second) = begun.second else {
            self.begin_next()?;
            let decoder = self.decoder(group, begun.first, rows, object)?;
            return Ok(Some(Rows::direct(decoder, begun.tests)));
        };
        let decoder = self.decoder(group, begun.first, rows.clone(), object.clone())?;
        let (passed, tested) = self.test(decoder, &begun.tests)?;
        // What lies between two rows that are close to one another costs less than skipping it, if it is there.
        let wanted = passed.joined(SKIP_ROWS_MIN).and(&rows);
        let mut object = Some(object).filter(|_| begun.is_all);
        if !begun.is_all {
            let pieces = fetch::pieces(&self.file.opened, group, &second.leaves, &wanted);
            self.count_read(group, &second.leaves, &pieces);
            let fetch = (!passed.is_empty()).then(|| self.fetch(group, pieces));
            self.begin_next()?;
            object = fetch.map(|fetch| self.receive(fetch)).transpose()?;
        } else {
            self.begin_next()?;
        }
        let Some(object) = object.filter(|_| !passed.is_empty()) else {
            return Ok(None);
        };
        let decoder = self.decoder(group, second, wanted, object)?;
        Ok(Some(Rows::Late(Late::new(decoder, passed, tested))))
    }

    /// The first of two phases: which rows pass, and the columns of theirs that are decoded so far.
    fn test(&mut self, mut decoder: Decoder, tests: &Tests) -> Result<(RowRanges, RecordBatch)> {
        let (mut passed, mut batches) = (RowRanges::default(), Vec::new());
        let output = tests.columns.fields().iter().enumerate();
        let output = output.filter(|(_, field)| self.output.index_of(field.name()).is_ok());
        let output: Vec<usize> = output.map(|(at, _)| at).collect();
        let schema = Arc::new(tests.columns.project(&output)?);
        let mut tested = 0;
        while let Some((batch, rows)) = decoder.next()? {
            let pass = tests.pass(&batch, &rows)?;
            self.file
                .access
                .stats
                .add_rows_filtered(pass.filtered as u64);
            tested += batch.num_rows();
            batches.push(keep(&batch.project(&output)?, &pass.mask)?);
            passed.append(&rows.keep(&pass.mask));
        }
        self.tests_first = tests.pay(tested, passed.count());
        Ok((passed, concat_batches(&schema, &batches)?))
    }

    fn decoder(
        &self,
        group: usize,
        columns: ColumnPlan,
        rows: RowRanges,
        object: SparseObject,
    ) -> Result<Decoder> {
        let opened = &self.file.opened;
        Decoder::new(opened, group, columns, rows, object, self.batch_rows)
    }
}

impl Iterator for SstSource {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.next_batch();
        if next.is_err() {
            self.groups.clear();
            self.next = None;
            self.current = None;
        }
        next.map_err(|error| naming(&self.file.name, error))
            .transpose()
    }
}

/// How to make the columns `wanted` of what is in the file.
fn plan(file: &SstFile, wanted: SchemaRef) -> Result<ColumnPlan> {
    let parquet = &file.opened.parquet;
    ColumnPlan::new(wanted, parquet.schema().fields(), parquet.parquet_schema())
}
