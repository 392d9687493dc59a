//! A table's schema: Arrow columns, a primary key, perhaps a time column, and how writes combine.

use std::{fmt, sync::Arc, time::Duration};

use arrow::{
    array::{Array, ArrayRef, Int64Array, RecordBatch, new_null_array},
    compute::cast,
    datatypes::{DataType, Field, FieldRef, Schema, SchemaRef, TimeUnit},
};

use super::{Key, KeyEncoder, Seq, Window, WindowWidth};
use crate::error::{Error, Result};

/// Name of the `UInt64` column that SSTs keep each row's seq in.
pub const SEQ_COLUMN: &str = "__seq";
/// Name of the `UInt8` column that SSTs keep each row's [`Op`] in.
pub const OP_COLUMN: &str = "__op";

/// What a stored row does to its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Op {
    /// Gives the key the row's values.
    Put = 0,
    /// Deletes the key; the row's values are null. A tombstone.
    Delete = 1,
}

/// How rows of equal key combine.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Deserialize, serde::Serialize,
)]
#[serde(rename_all = "lowercase")]
pub enum WriteMode {
    /// The newest row of a key wins.
    #[default]
    Upsert,
    /// Every row is kept; the key only sorts.
    Append,
}

/// What can be chosen per table, besides its columns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableOptions {
    /// How rows of equal key combine. Default: upsert.
    pub write_mode: WriteMode,
    /// Width of the time windows that SSTs never cross; needs a time column. Default: one window.
    pub window: Option<Duration>,
}

/// The schema of a table. Immutable and cheap to clone.
#[derive(Clone, Debug)]
pub struct TableSchema {
    columns: SchemaRef,
    key: Arc<[usize]>,
    time: Option<usize>,
    options: TableOptions,
    width: Option<WindowWidth>,
    version: u32,
    stored: SchemaRef,
    encoder: KeyEncoder,
}

impl PartialEq for TableSchema {
    fn eq(&self, other: &Self) -> bool {
        self.columns == other.columns
            && self.key == other.key
            && self.time == other.time
            && self.options == other.options
            && self.version == other.version
    }
}

impl TableSchema {
    /// A schema with `columns`, ordered by the columns named in `key`, in that order. `time` names the
    /// key column to cut windows by.
    ///
    /// # Errors
    /// `Invalid`, naming the column: the key is empty, repeated, unknown or of a type that cannot be
    /// ordered; the time column is not a non-null timestamp in the key; a name is taken or reserved.
    pub fn new(
        columns: SchemaRef,
        key: &[&str],
        time: Option<&str>,
        options: TableOptions,
    ) -> Result<Self> {
        Self::with_version(columns, key, time, options, 1)
    }

    /// As [`TableSchema::new`], with the schema version that a manifest recorded.
    pub fn with_version(
        columns: SchemaRef,
        key: &[&str],
        time: Option<&str>,
        options: TableOptions,
        version: u32,
    ) -> Result<Self> {
        check_names(&columns)?;
        let key = find_key(&columns, key)?;
        let fields: Vec<FieldRef> = key.iter().map(|&at| columns.fields()[at].clone()).collect();
        let encoder = KeyEncoder::new(&fields, &key)?;
        let (time, unit) = match time {
            Some(name) => {
                let (at, unit) = find_time(&columns, &key, name)?;
                (Some(at), Some(unit))
            }
            None => (None, None),
        };
        let width = match (options.window, unit) {
            (Some(width), Some(unit)) => Some(WindowWidth::new(width, unit)?),
            (Some(_), None) => return Err(Error::invalid("a window needs a time column")),
            (None, _) => None,
        };
        let stored = stored_schema(&columns, &key);
        Ok(Self {
            columns,
            key: key.into(),
            time,
            options,
            width,
            version,
            stored,
            encoder,
        })
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

    /// Width of a window, when the table has windows.
    pub fn window_width(&self) -> Option<WindowWidth> {
        self.width
    }

    /// Grows with each change of the schema; starts at 1.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// When `window` ends, in milliseconds since the Unix epoch; `None` without windows.
    pub fn window_end_ms(&self, window: Window) -> Option<i64> {
        let end = self.width?.times_of(window).end;
        let DataType::Timestamp(unit, _) = self.columns.field(self.time?).data_type() else {
            return None;
        };
        Some(match unit {
            TimeUnit::Second => end.saturating_mul(1_000),
            TimeUnit::Millisecond => end,
            TimeUnit::Microsecond => end / 1_000,
            TimeUnit::Nanosecond => end / 1_000_000,
        })
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
        check_columns(&self.columns, batch)
    }

    /// Checks a batch of keys, as `delete` and `get` take them. Errors as for [`Self::check_batch`].
    pub fn check_keys(&self, keys: &RecordBatch) -> Result<()> {
        check_columns(&self.key_schema(), keys)
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

    /// A stored batch that deletes every key of `keys`, whose columns are the key's, at `seq`.
    pub fn tombstones(&self, keys: &RecordBatch, seq: Seq) -> Result<RecordBatch> {
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

    /// A stored batch that puts every row of `batch`, which has the table's columns, at `seq`.
    pub fn puts(&self, batch: &RecordBatch, seq: Seq) -> Result<RecordBatch> {
        self.store(batch.columns().to_vec(), batch.num_rows(), seq, Op::Put)
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

fn check_names(columns: &Schema) -> Result<()> {
    for (at, field) in columns.fields().iter().enumerate() {
        let name = field.name();
        if name == SEQ_COLUMN || name == OP_COLUMN {
            return Err(Error::invalid(format!("column name {name:?} is reserved")));
        }
        if columns.fields()[..at]
            .iter()
            .any(|other| other.name() == name)
        {
            return Err(Error::invalid(format!(
                "column name {name:?} is used twice"
            )));
        }
    }
    Ok(())
}

fn find_key(columns: &Schema, names: &[&str]) -> Result<Vec<usize>> {
    if names.is_empty() {
        return Err(Error::invalid("the primary key has no columns"));
    }
    let mut key = Vec::with_capacity(names.len());
    for name in names {
        let at = columns
            .index_of(name)
            .map_err(|_| Error::invalid(format!("key column {name:?} is not in the schema")))?;
        if key.contains(&at) {
            return Err(Error::invalid(format!(
                "key column {name:?} is named twice"
            )));
        }
        key.push(at);
    }
    Ok(key)
}

fn find_time(columns: &Schema, key: &[usize], name: &str) -> Result<(usize, TimeUnit)> {
    let at = columns
        .index_of(name)
        .map_err(|_| Error::invalid(format!("time column {name:?} is not in the schema")))?;
    let field = columns.field(at);
    if !key.contains(&at) {
        return Err(Error::invalid(format!(
            "time column {name:?} is not part of the key"
        )));
    }
    let DataType::Timestamp(unit, _) = field.data_type() else {
        let data_type = field.data_type();
        return Err(Error::invalid(format!(
            "time column {name:?} has type {data_type}, not a timestamp"
        )));
    };
    if field.is_nullable() {
        return Err(Error::invalid(format!("time column {name:?} is nullable")));
    }
    Ok((at, *unit))
}

fn stored_schema(columns: &Schema, key: &[usize]) -> SchemaRef {
    let mut fields: Vec<FieldRef> = Vec::with_capacity(columns.fields().len() + 2);
    for (at, field) in columns.fields().iter().enumerate() {
        let nullable = field.is_nullable() || !key.contains(&at);
        fields.push(Arc::new(field.as_ref().clone().with_nullable(nullable)));
    }
    fields.push(Arc::new(Field::new(SEQ_COLUMN, DataType::UInt64, false)));
    fields.push(Arc::new(Field::new(OP_COLUMN, DataType::UInt8, false)));
    Arc::new(Schema::new(fields))
}

fn check_columns(wanted: &Schema, batch: &RecordBatch) -> Result<()> {
    let given = batch.schema();
    for (at, want) in wanted.fields().iter().enumerate() {
        let name = want.name();
        let Some(give) = given.fields().get(at) else {
            let data_type = want.data_type();
            return Err(Error::invalid(format!(
                "column {name:?} ({data_type}) is missing from the batch"
            )));
        };
        if give.name() != name {
            let other = give.name();
            return Err(Error::invalid(format!(
                "column {at} is {name:?} in the table, {other:?} in the batch"
            )));
        }
        if give.data_type() != want.data_type() {
            let (want, give) = (want.data_type(), give.data_type());
            return Err(Error::invalid(format!(
                "column {name:?} is {want} in the table, {give} in the batch"
            )));
        }
        let column = batch.column(at);
        if !want.is_nullable() && column.logical_null_count() > 0 {
            let nulls = column.logical_nulls().expect("the null count is not zero");
            let row = (0..column.len())
                .find(|&row| nulls.is_null(row))
                .unwrap_or(0);
            return Err(Error::invalid(format!(
                "column {name:?} is not nullable, but row {row} is null"
            )));
        }
    }
    if let Some(extra) = given.fields().get(wanted.fields().len()) {
        let (name, data_type) = (extra.name(), extra.data_type());
        return Err(Error::invalid(format!(
            "column {name:?} ({data_type}) of the batch is not in the table"
        )));
    }
    Ok(())
}

impl fmt::Display for WriteMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Upsert => "upsert",
            Self::Append => "append",
        })
    }
}
