//! Decodes rows of a row group, tests them, and puts together what was decoded in two phases.

use std::sync::Arc;

use arrow::{
    array::{AsArray, BooleanArray, RecordBatch, RecordBatchOptions},
    buffer::BooleanBuffer,
    compute::{filter_record_batch, or},
    datatypes::{Schema, SchemaRef, UInt8Type},
};
use parquet::arrow::arrow_reader::{
    ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder, RowSelectionPolicy,
};

use super::{
    chunks::{SparseObject, guarded},
    file::{Opened, SstFile},
    rows::RowRanges,
    schema::ColumnPlan,
    select::{Selected, Selector},
    stats::ReadStats,
};
use crate::{
    error::{Error, Result},
    types::{Filter, Key, KeyEncoder, KeyRange, OP_COLUMN, Op, TableSchema, TimeRange},
};

/// The chosen rows of some columns of a row group, in batches.
pub(super) struct Decoder {
    reader: ParquetRecordBatchReader,
    columns: ColumnPlan,
    group: usize,
    /// Rows still to come.
    rows: RowRanges,
}

impl Decoder {
    /// Decodes `rows` of `group` from `object`, which has all that is needed for them.
    pub(super) fn new(
        opened: &Opened,
        group: usize,
        columns: ColumnPlan,
        rows: RowRanges,
        object: SparseObject,
        batch_rows: usize,
    ) -> Result<Self> {
        let parquet = opened.parquet.clone();
        let mask = columns.mask.clone();
        let is_whole = rows == RowRanges::all(opened.group_rows(group));
        let reader = guarded(|| {
            let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(object, parquet)
                .with_row_groups(vec![group])
                .with_projection(mask)
                .with_batch_size(batch_rows);
            let builder = match is_whole {
                true => builder,
                // With masks it would decode what lies between the rows, which is not there.
                false => builder
                    .with_row_selection_policy(RowSelectionPolicy::Selectors)
                    .with_row_selection(rows.selection()),
            };
            builder.build()
        })?;
        Ok(Self {
            reader,
            columns,
            group,
            rows,
        })
    }

    /// The next batch, and which rows they are.
    pub(super) fn next(&mut self) -> Result<Option<(RecordBatch, RowRanges)>> {
        let wrong = |group| {
            Error::corrupt(format!(
                "row group {group} does not have the rows its footer says"
            ))
        };
        match guarded(|| self.reader.next().transpose())? {
            Some(batch) => {
                let batch = self.columns.adapt(&batch)?;
                let rows = self.rows.take(batch.num_rows());
                if rows.count() != batch.num_rows() {
                    return Err(wrong(self.group));
                }
                Ok(Some((batch, rows)))
            }
            None if self.rows.is_empty() => Ok(None),
            None => Err(wrong(self.group)),
        }
    }
}

/// The wanted rows of a row group in memory.
pub(super) enum Rows {
    /// Decoded in one phase, and tested as they are.
    Direct {
        decoder: Decoder,
        tests: Tests,
        tested: usize,
        passed: usize,
    },
    /// In their second phase.
    Late(Late),
}

/// Rows that passed, of which the columns that the tests looked at have been decoded.
pub(super) struct Late {
    /// Of the other columns, for these rows and perhaps some between them.
    decoder: Decoder,
    passed: RowRanges,
    /// Of all these rows, in order; how many have been handed out.
    tested: RecordBatch,
    done: usize,
}

impl Rows {
    pub(super) fn direct(decoder: Decoder, tests: Tests) -> Self {
        Self::Direct {
            decoder,
            tests,
            tested: 0,
            passed: 0,
        }
    }

    /// The next rows, with the columns `output`.
    pub(super) fn next(
        &mut self,
        output: &SchemaRef,
        stats: &ReadStats,
    ) -> Result<Option<RecordBatch>> {
        let (decoder, tests, tested, passed) = match self {
            Self::Late(late) => return late.next(output),
            Self::Direct {
                decoder,
                tests,
                tested,
                passed,
            } => (decoder, tests, tested, passed),
        };
        let Some((batch, rows)) = decoder.next()? else {
            return Ok(None);
        };
        if tests.is_empty() {
            return of_columns(output, &[&batch]).map(Some);
        }
        let pass = tests.pass(&batch, &rows)?;
        stats.add_rows_filtered(pass.filtered as u64);
        *tested += batch.num_rows();
        *passed += pass.mask.count_set_bits();
        let batch = keep(&of_columns(output, &[&batch])?, &pass.mask)?;
        Ok(Some(batch))
    }

    /// Whether tests should come first, as these rows have shown; `None` when they have not.
    pub(super) fn tests_first(&self) -> Option<bool> {
        match self {
            Self::Direct {
                tests,
                tested,
                passed,
                ..
            } if tests.is_scattered() => Some(tests.pay(*tested, *passed)),
            _ => None,
        }
    }
}

impl Late {
    /// `decoder` yields at least the rows `passed`, whose columns so far are `tested`.
    pub(super) fn new(decoder: Decoder, passed: RowRanges, tested: RecordBatch) -> Self {
        Self {
            decoder,
            passed,
            tested,
            done: 0,
        }
    }

    fn next(&mut self, output: &SchemaRef) -> Result<Option<RecordBatch>> {
        let Some((batch, rows)) = self.decoder.next()? else {
            return Ok(None);
        };
        let passed = rows.places_of(&self.passed.and(&rows));
        let batch = keep(&batch, &passed.mask(batch.num_rows()))?;
        let tested = self.tested.slice(self.done, batch.num_rows());
        self.done += batch.num_rows();
        of_columns(output, &[&tested, &batch]).map(Some)
    }
}

/// The columns `output`, from whichever of `batches` has each.
fn of_columns(output: &SchemaRef, batches: &[&RecordBatch]) -> Result<RecordBatch> {
    let rows = batches.first().map_or(0, |batch| batch.num_rows());
    let columns = output.fields().iter().map(|field| {
        let mut found = batches
            .iter()
            .filter_map(|batch| batch.column_by_name(field.name()));
        let found = found.next().cloned();
        found.ok_or_else(|| Error::internal(format!("column {:?} was not decoded", field.name())))
    });
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    let columns = columns.collect::<Result<_>>()?;
    Ok(RecordBatch::try_new_with_options(
        output.clone(),
        columns,
        &options,
    )?)
}

/// The rows of `batch` whose bits in `mask` are set.
pub(super) fn keep(batch: &RecordBatch, mask: &BooleanBuffer) -> Result<RecordBatch> {
    let mut runs = mask.set_slices();
    match (runs.next(), runs.next()) {
        (None, _) => Ok(batch.slice(0, 0)),
        (Some((start, end)), None) => Ok(batch.slice(start, end - start)),
        _ => Ok(filter_record_batch(
            batch,
            &BooleanArray::new(mask.clone(), None),
        )?),
    }
}

/// What must be tested of the rows that were selected.
pub(super) struct Tests {
    /// Columns that the tests look at.
    pub(super) columns: SchemaRef,
    keys: Option<KeyTest>,
    times: Option<(TimeRange, usize)>,
    filter: Option<FilterTest>,
}

struct KeyTest {
    range: KeyRange,
    points: Option<Arc<[Key]>>,
    /// The rows to be tested.
    rows: RowRanges,
    encoder: KeyEncoder,
}

struct FilterTest {
    filter: Filter,
    keep_tombstones: bool,
}

/// Which rows of a batch pass.
pub(super) struct Passed {
    pub(super) mask: BooleanBuffer,
    /// How many failed because of the filter.
    pub(super) filtered: usize,
}

impl Tests {
    pub(super) fn new(file: &SstFile, selector: &Selector, selected: &Selected) -> Self {
        let schema = &file.schema;
        let test_keys = !selected.unsure_keys.is_empty();
        let time = schema.time().filter(|_| selected.unsure_times);
        let time = time.map(|column| schema.columns().field(column).name().as_str());
        let filter = selector.pruning.as_ref().map(|pruning| FilterTest {
            filter: pruning.filter.clone(),
            keep_tombstones: pruning.keep_tombstones,
        });
        let mut names: Vec<&str> = Vec::new();
        if test_keys {
            names.extend(schema.key_names());
        }
        names.extend(time);
        if let Some(test) = &filter {
            names.extend(test.filter.columns().iter().map(String::as_str));
            names.extend(test.keep_tombstones.then_some(OP_COLUMN));
        }
        let stored = schema.stored().fields().iter();
        let columns = stored.filter(|field| names.contains(&field.name().as_str()));
        let columns = Arc::new(Schema::new(columns.cloned().collect::<Vec<_>>()));
        let position = |name: &str| {
            let at = columns.index_of(name);
            at.expect("it is a name of a stored column")
        };
        let keys = test_keys.then(|| {
            let key: Vec<usize> = schema.key_names().into_iter().map(position).collect();
            KeyTest {
                range: selector.keys.clone(),
                points: selector.points.clone(),
                rows: selected.unsure_keys.clone(),
                encoder: schema.key_encoder().at(&key),
            }
        });
        Self {
            keys,
            times: selector.times.zip(time.map(position)),
            filter,
            columns,
        }
    }

    /// Whether nothing is tested.
    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_none() && self.times.is_none() && self.filter.is_none()
    }

    /// Whether rows in the midst of others may fail: not only those before the first key asked for, and after
    /// the last.
    pub(super) fn is_scattered(&self) -> bool {
        let by_points = |keys: &KeyTest| keys.points.is_some();
        self.filter.is_some() || self.times.is_some() || self.keys.as_ref().is_some_and(by_points)
    }

    /// Whether tests of which `passed` of `tested` rows passed are worth a phase of their own.
    pub(super) fn pay(&self, tested: usize, passed: usize) -> bool {
        passed <= tested - tested / 4
    }

    /// Which rows of `batch` pass. It has the columns of the tests, in their order among others, and its rows
    /// are `rows` of the row group.
    pub(super) fn pass(&self, batch: &RecordBatch, rows: &RowRanges) -> Result<Passed> {
        let count = batch.num_rows();
        let batch = self.project(batch)?;
        let mut mask = BooleanBuffer::new_set(count);
        if let Some(keys) = &self.keys {
            mask = &mask & &keys.pass(&batch, rows)?;
        }
        if let Some((range, column)) = self.times {
            let times = TableSchema::times(&batch, column)?;
            let times = times.values();
            mask = &mask & &BooleanBuffer::collect_bool(count, |row| range.contains(times[row]));
        }
        let before = mask.count_set_bits();
        if let Some(test) = self.filter.as_ref().filter(|_| before > 0) {
            mask = &mask & test.pass(&batch)?.values();
        }
        let filtered = before - mask.count_set_bits();
        Ok(Passed { mask, filtered })
    }

    /// The columns of the tests alone.
    fn project(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let schema = batch.schema_ref();
        if schema.fields() == self.columns.fields() {
            return Ok(batch.clone());
        }
        let names = self.columns.fields().iter();
        let columns = names.map(|field| schema.index_of(field.name()));
        Ok(batch.project(&columns.collect::<Result<Vec<_>, _>>()?)?)
    }
}

impl KeyTest {
    /// Rows that need no test pass.
    fn pass(&self, batch: &RecordBatch, rows: &RowRanges) -> Result<BooleanBuffer> {
        let unsure = rows.places_of(&self.rows.and(rows));
        let mut passed = Vec::new();
        let mut sure_from = 0;
        for range in unsure.iter() {
            passed.push((sure_from..range.start, true));
            sure_from = range.end;
            let keys = self
                .encoder
                .encode(&batch.slice(range.start, range.len()))?;
            let mut points = self.points.as_deref().unwrap_or_default();
            if let Some(first) = keys.iter().next() {
                let before = points.partition_point(|point| point.0[..] < *first.data());
                points = &points[before..];
            }
            let mut points = points.iter().peekable();
            for (row, key) in keys.iter().enumerate() {
                let key = key.data();
                while points.next_if(|point| &point.0[..] < key).is_some() {}
                let is_point = points.peek().is_some_and(|point| &point.0[..] == key);
                let passes = self.range.contains(key) && (self.points.is_none() || is_point);
                passed.push((range.start + row..range.start + row + 1, passes));
            }
        }
        passed.push((sure_from..batch.num_rows(), true));
        Ok(RowRanges::of(passed).mask(batch.num_rows()))
    }
}

impl FilterTest {
    fn pass(&self, batch: &RecordBatch) -> Result<BooleanArray> {
        let holds = self.filter.evaluate(batch)?;
        if !self.keep_tombstones {
            return Ok(holds);
        }
        let ops = batch.column_by_name(OP_COLUMN);
        let ops = ops.ok_or_else(|| Error::internal("a batch to be filtered has no __op"))?;
        let ops = ops.as_primitive::<UInt8Type>().values();
        let tombstones = BooleanBuffer::collect_bool(ops.len(), |row| ops[row] == Op::Delete as u8);
        Ok(or(&holds, &BooleanArray::new(tombstones, None))?)
    }
}
