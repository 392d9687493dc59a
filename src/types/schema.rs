//! A table's schema: Arrow columns, a primary key, perhaps a time column, and how writes combine.

mod resolve;

use std::sync::Arc;

use arrow::{
    array::{ArrayRef, Int64Array, RecordBatch, new_null_array},
    compute::cast,
    datatypes::{DataType, FieldRef, Schema, SchemaRef, TimeUnit},
};

use super::{
    Key, KeyEncoder, MergeOperator, PlannerKind, Seq, TableOptions, Window, WindowWidth, Windowing,
    WriteMode,
    columns::{self, ColumnMap},
    time_range::nanos,
};
use crate::error::{Error, Result};

/// Name of the `UInt64` column that SSTs keep each row's seq in.
pub const SEQ_COLUMN: &str = "__seq";
/// Name of the `UInt8` column that SSTs keep each row's [`Op`] in.
pub const OP_COLUMN: &str = "__op";

/// Ids of these two; a table's own are below.
const SEQ_ID: u32 = i32::MAX as u32 - 1;
const OP_ID: u32 = i32::MAX as u32;

/// What a stored row does to its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Op {
    /// Gives the key the row's values.
    Put = 0,
    /// Deletes the key; the row's values are null. A tombstone.
    Delete = 1,
}

/// The schema of a table. Immutable and cheap to clone.
#[derive(Clone, Debug)]
pub struct TableSchema {
    columns: SchemaRef,
    ids: Arc<[u32]>,
    next_id: u32,
    operators: Arc<[MergeOperator]>,
    key: Arc<[usize]>,
    time: Option<usize>,
    options: TableOptions,
    expiry_floor: Option<i64>,
    width: Option<WindowWidth>,
    version: u32,
    stored: SchemaRef,
    encoder: KeyEncoder,
}

/// Columns with their ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Columns {
    pub(crate) schema: SchemaRef,
    /// One a column; each was given once.
    pub(crate) ids: Vec<u32>,
    /// What the next column will have.
    pub(crate) next_id: u32,
}

/// What a schema is made of: what a manifest records, and an alteration changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parts {
    pub(crate) columns: Columns,
    /// Names of the key's columns, in key order.
    pub(crate) key: Vec<String>,
    pub(crate) time: Option<String>,
    pub(crate) options: TableOptions,
    /// What was expired under an earlier time to live stays so.
    pub(crate) expiry_floor: Option<i64>,
    pub(crate) version: u32,
}

impl PartialEq for TableSchema {
    fn eq(&self, other: &Self) -> bool {
        self.to_parts() == other.to_parts()
    }
}

impl TableSchema {
    /// A schema with `columns`, ordered by the columns named in `key`, in that order. `time` names the
    /// key column to cut windows by.
    ///
    /// # Errors
    /// `Invalid`, naming the column: the key is empty, repeated, unknown or of a type that cannot be
    /// ordered; the time column is not a non-null timestamp in the key; a name is taken or reserved; a merge
    /// operator is for no value column, for another type, or for an append table; windows or a time to live
    /// lack a time column.
    pub fn new(
        columns: SchemaRef,
        key: &[&str],
        time: Option<&str>,
        options: TableOptions,
    ) -> Result<Self> {
        let next_id = columns.fields().len() as u32 + 1;
        Self::from_parts(Parts {
            columns: Columns {
                schema: columns,
                ids: (1..next_id).collect(),
                next_id,
            },
            key: key.iter().map(|&name| name.to_owned()).collect(),
            time: time.map(str::to_owned),
            options,
            expiry_floor: None,
            version: 1,
        })
    }

    /// Errors as for [`TableSchema::new`].
    pub(crate) fn from_parts(parts: Parts) -> Result<Self> {
        let (columns, options) = (parts.columns.schema, parts.options);
        resolve::check_names(&columns)?;
        resolve::check_ids(&columns, &parts.columns.ids, parts.columns.next_id)?;
        let key = resolve::find_key(&columns, &parts.key)?;
        let fields: Vec<FieldRef> = key.iter().map(|&at| columns.fields()[at].clone()).collect();
        let encoder = KeyEncoder::new(&fields, &key)?;
        let time = parts
            .time
            .map(|name| resolve::find_time(&columns, &key, &name));
        let (time, unit) = time.transpose()?.unzip();
        if unit.is_none() && options.window != Windowing::None {
            return Err(Error::invalid("a window needs a time column"));
        }
        if let Windowing::Fixed(width) = options.window
            && u64::try_from(width.as_nanos()).is_err()
        {
            return Err(Error::invalid(format!(
                "a window of {width:?} is wider than 584 years"
            )));
        }
        if unit.is_none() && options.ttl.is_some() {
            return Err(Error::invalid("a time to live needs a time column"));
        }
        let width = options.window.width().zip(unit);
        let width = width.map(|(width, unit)| WindowWidth::new(width, unit));
        let stored = resolve::stored_schema(&columns, &parts.columns.ids, &key);
        Ok(Self {
            operators: resolve::find_operators(&columns, &key, &options)?.into(),
            columns,
            ids: parts.columns.ids.into(),
            next_id: parts.columns.next_id,
            key: key.into(),
            time,
            options,
            expiry_floor: parts.expiry_floor,
            width: width.transpose()?,
            version: parts.version,
            stored,
            encoder,
        })
    }

    pub(crate) fn to_parts(&self) -> Parts {
        let owned = |name: &str| name.to_owned();
        Parts {
            columns: Columns {
                schema: self.columns.clone(),
                ids: self.ids.to_vec(),
                next_id: self.next_id,
            },
            key: self.key_names().into_iter().map(owned).collect(),
            time: self.time.map(|at| owned(self.columns.field(at).name())),
            options: self.options.clone(),
            expiry_floor: self.expiry_floor,
            version: self.version,
        }
    }

    /// Ids of the columns: stable under renaming, and never given twice.
    pub fn column_ids(&self) -> &[u32] {
        &self.ids
    }

    /// How the values of each column combine; those of the key do not matter.
    pub fn operators(&self) -> &[MergeOperator] {
        &self.operators
    }

    /// Whether rows of a key combine by more than the newest taking the place of the others.
    pub fn combines(&self) -> bool {
        let is_plain = |operator: &MergeOperator| *operator == MergeOperator::LastValue;
        !self.operators.iter().all(is_plain)
    }

    /// The table's columns, as its users see them.
    pub fn columns(&self) -> &SchemaRef {
        &self.columns
    }

    /// Positions of the key's columns, in key order.
    pub fn key(&self) -> &[usize] {
        &self.key
    }

    /// Names of the key's columns, in key order.
    pub fn key_names(&self) -> Vec<&str> {
        self.key
            .iter()
            .map(|&at| self.columns.field(at).name().as_str())
            .collect()
    }

    /// Position of the time column.
    pub fn time(&self) -> Option<usize> {
        self.time
    }

    /// The table's options.
    pub fn options(&self) -> &TableOptions {
        &self.options
    }

    /// How rows of equal key combine.
    pub fn write_mode(&self) -> WriteMode {
        self.options.write_mode
    }

    /// The planner of the table. Unless one is chosen, `TimeWindow` for a table with a time column; without
    /// one `Leveled`: then updates hit all keys alike, and what counts is that a read meets few runs and
    /// that old versions take a tenth of the space, not as much again as the data.
    pub fn planner(&self) -> PlannerKind {
        let by_time = match self.time {
            Some(_) => PlannerKind::TimeWindow,
            None => PlannerKind::Leveled,
        };
        self.options.planner.unwrap_or(by_time)
    }

    /// Whether a merge must take neighbours in age only, because what it makes of two rows depends on the
    /// rows between them. Where the newest row simply wins it does not: every row carries its seq.
    pub fn order_matters(&self) -> bool {
        self.write_mode() == WriteMode::Append || self.combines()
    }

    /// Width of a window, when the table has windows.
    pub fn window_width(&self) -> Option<WindowWidth> {
        self.width
    }

    /// The same schema, with these windows.
    ///
    /// # Errors
    /// `Invalid` when the table has no time column, or the width does not suit its unit.
    pub fn with_window(&self, window: Windowing) -> Result<Self> {
        let mut parts = self.to_parts();
        parts.options.window = window;
        Self::from_parts(parts)
    }

    /// Grows with each change of the schema; starts at 1.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Whether `window` is one that rows would be put into today, and not of an earlier width.
    pub fn has_window(&self, window: Window) -> bool {
        match self.width {
            Some(width) => width.window_of(window.times().start) == window,
            None => window == Window::ALL,
        }
    }

    /// When `window` ends, in milliseconds since the Unix epoch; `None` when it never does.
    pub fn window_end_ms(&self, window: Window) -> Option<i64> {
        let end = window.times().end;
        if window == Window::ALL {
            return None;
        }
        let end_ms = i128::from(end) * nanos(self.time_unit()?) / 1_000_000;
        Some(i64::try_from(end_ms).unwrap_or(if end_ms < 0 { i64::MIN } else { i64::MAX }))
    }

    /// Unit of the time column.
    pub fn time_unit(&self) -> Option<TimeUnit> {
        match self.columns.field(self.time?).data_type() {
            DataType::Timestamp(unit, _) => Some(*unit),
            _ => None,
        }
    }

    /// The time, in the unit of the time column, before which rows are expired at `now_ms` (milliseconds
    /// since the Unix epoch); `None` when none ever are.
    pub fn expiry(&self, now_ms: u64) -> Option<i64> {
        self.ttl_expiry(now_ms).max(self.expiry_floor)
    }

    fn ttl_expiry(&self, now_ms: u64) -> Option<i64> {
        let ttl = self.options.ttl?;
        let cutoff = i128::from(now_ms) * 1_000_000 - ttl.as_nanos() as i128;
        let units = cutoff.div_euclid(nanos(self.time_unit()?));
        Some(i64::try_from(units).unwrap_or(if units < 0 { i64::MIN } else { i64::MAX }))
    }

    /// The columns of memtables and SSTs: the table's own, nullable outside the key, then `__seq` and
    /// `__op`.
    pub fn stored(&self) -> &SchemaRef {
        &self.stored
    }

    /// Encodes keys of batches with the table's or the stored columns.
    pub fn key_encoder(&self) -> &KeyEncoder {
        &self.encoder
    }

    /// The key's columns alone, in key order: the schema of the batches that `delete` and `get` take.
    pub fn key_schema(&self) -> SchemaRef {
        let fields: Vec<FieldRef> = self
            .key
            .iter()
            .map(|&at| self.columns.fields()[at].clone())
            .collect();
        Arc::new(Schema::new(fields))
    }

    /// Checks a batch to be written against the table's columns: same names, order and types, no nulls
    /// where the schema has none.
    ///
    /// # Errors
    /// `Invalid`, naming the column and both types, or the column and the row of the null.
    pub fn check_batch(&self, batch: &RecordBatch) -> Result<()> {
        columns::check(&self.columns, batch)
    }

    /// Checks a batch of keys, as `delete` and `get` take them. Errors as for [`Self::check_batch`].
    pub fn check_keys(&self, keys: &RecordBatch) -> Result<()> {
        columns::check(&self.key_schema(), keys)
    }

    /// The key in the one row of `keys`, whose columns are the key's: a bound for a key range.
    ///
    /// # Errors
    /// `Invalid` when there is not exactly one row, or as for [`Self::check_keys`].
    pub fn key_of(&self, keys: &RecordBatch) -> Result<Key> {
        self.check_keys(keys)?;
        if keys.num_rows() != 1 {
            let rows = keys.num_rows();
            return Err(Error::invalid(format!("one key was expected, not {rows}")));
        }
        let columns: Vec<usize> = (0..self.key.len()).collect();
        let rows = self.encoder.at(&columns).encode(keys)?;
        Ok(Key::from(rows.row(0).data()))
    }

    /// `batch`, which has the table's columns, with their ids: to be stored, and read by any later version of
    /// the schema.
    pub fn label(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        columns::relabel(batch, &self.stored_values())
    }

    /// `keys`, which has the key's columns, with their ids.
    pub fn label_keys(&self, keys: &RecordBatch) -> Result<RecordBatch> {
        columns::relabel(keys, &self.stored_key())
    }

    /// A stored batch that deletes every key of `keys` at `seq`. `keys` has the key's columns, or was labelled
    /// by any version of the schema.
    pub fn tombstones(&self, keys: &RecordBatch, seq: Seq) -> Result<RecordBatch> {
        let keys = as_stored(keys, self.stored_key())?;
        let rows = keys.num_rows();
        let mut columns: Vec<ArrayRef> = self.stored.fields()[..self.columns.fields().len()]
            .iter()
            .map(|field| new_null_array(field.data_type(), rows))
            .collect();
        for (position, &at) in self.key.iter().enumerate() {
            columns[at] = keys.column(position).clone();
        }
        self.store(columns, rows, seq, Op::Delete)
    }

    /// A stored batch that puts every row of `batch` at `seq`. `batch` has the table's columns, or was labelled
    /// by any version of the schema.
    pub fn puts(&self, batch: &RecordBatch, seq: Seq) -> Result<RecordBatch> {
        let batch = as_stored(batch, self.stored_values())?;
        self.store(batch.columns().to_vec(), batch.num_rows(), seq, Op::Put)
    }

    /// The stored columns without `__seq` and `__op`.
    fn stored_values(&self) -> SchemaRef {
        let fields = &self.stored.fields()[..self.columns.fields().len()];
        Arc::new(Schema::new(fields.to_vec()))
    }

    /// The stored columns of the key, in key order.
    fn stored_key(&self) -> SchemaRef {
        let fields = self.key.iter().map(|&at| self.stored.fields()[at].clone());
        Arc::new(Schema::new(fields.collect::<Vec<_>>()))
    }

    fn store(
        &self,
        mut columns: Vec<ArrayRef>,
        rows: usize,
        seq: Seq,
        op: Op,
    ) -> Result<RecordBatch> {
        use arrow::array::{UInt8Array, UInt64Array};
        columns.push(Arc::new(UInt64Array::from_value(seq.0, rows)));
        columns.push(Arc::new(UInt8Array::from_value(op as u8, rows)));
        Ok(RecordBatch::try_new(self.stored.clone(), columns)?)
    }

    /// The time column of `batch` as raw values in its own unit. `column` is its position there.
    pub fn times(batch: &RecordBatch, column: usize) -> Result<Int64Array> {
        let times = cast(batch.column(column), &DataType::Int64)?;
        let times = times.as_any().downcast_ref::<Int64Array>();
        Ok(times.expect("cast gave the type asked for").clone())
    }
}

/// The `wanted` columns of `batch`: by their ids where it has been labelled, by position otherwise.
fn as_stored(batch: &RecordBatch, wanted: SchemaRef) -> Result<RecordBatch> {
    let fields = batch.schema_ref().fields();
    match fields.first().and_then(|field| columns::column_id(field)) {
        Some(_) => ColumnMap::new(wanted, fields)?.apply(batch),
        None => Ok(batch.clone()),
    }
}
