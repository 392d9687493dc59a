//! What a table should hold, as plain maps, and the batches that are written to it.

use std::{collections::BTreeMap, sync::Arc};

use arrow::{
    array::{
        ArrayRef, AsArray, Int32Array, Int64Array, RecordBatch, StringArray,
        TimestampMillisecondArray,
    },
    compute::cast,
    datatypes::{DataType, Field, Int32Type, TimestampMillisecondType},
};
use siltstone::types::{Alteration, MergeOperator, TableSchema, TimeRange, WriteMode};

use super::{
    condition::Cell,
    steps::{Change, Read, first_columns},
};

/// A key.
pub type Id = (i64, Option<i32>);
/// All columns of a row, as text.
pub type Row = Vec<Option<String>>;
/// Values by the id of their column; nulls are left out.
type Values = BTreeMap<u32, Value>;

#[derive(Clone, Debug, PartialEq)]
enum Value {
    Number(i64),
    Text(String),
}

#[derive(Clone, Debug)]
pub struct Oracle {
    mode: WriteMode,
    /// Value columns.
    columns: BTreeMap<u32, Column>,
    /// Of a key in an append table: every row. Otherwise one.
    rows: BTreeMap<Id, Vec<Values>>,
    /// Time to live in milliseconds, and the time before which rows had expired when it was set.
    ttl: Option<i64>,
    floor: i64,
    added: usize,
}

#[derive(Clone, Copy, Debug)]
struct Column {
    operator: MergeOperator,
    is_text: bool,
}

impl Oracle {
    pub fn new(schema: &TableSchema) -> Self {
        let mut oracle = Self {
            mode: schema.write_mode(),
            columns: BTreeMap::new(),
            rows: BTreeMap::new(),
            ttl: None,
            floor: i64::MIN,
            added: 0,
        };
        oracle.set_schema(schema);
        oracle
    }

    /// Columns that are gone take their values with them.
    pub fn set_schema(&mut self, schema: &TableSchema) {
        let fields = schema.columns().fields().iter();
        let columns = fields.zip(schema.column_ids()).zip(schema.operators());
        self.columns = columns
            .skip(2)
            .map(|((field, &id), &operator)| {
                let is_text = *field.data_type() == DataType::Utf8;
                (id, Column { operator, is_text })
            })
            .collect();
        for values in self.rows.values_mut().flatten() {
            values.retain(|id, _| self.columns.contains_key(id));
        }
    }

    pub fn write(&mut self, rows: &[(Id, i64)]) {
        let mut rows = rows.to_vec();
        if self.mode == WriteMode::Upsert {
            // Of equal keys inside a batch the last row counts.
            let last: BTreeMap<Id, i64> = rows.into_iter().collect();
            rows = last.into_iter().collect();
        }
        for (id, number) in rows {
            let values = self.columns.iter().filter_map(|(&column, kind)| {
                let value = value_of(column, number)?;
                Some((column, kind.value(value)))
            });
            let values: Values = values.collect();
            let stored = self.rows.entry(id).or_default();
            match stored.last_mut().filter(|_| self.mode == WriteMode::Upsert) {
                None => stored.push(values),
                Some(row) => combine(&self.columns, row, values),
            }
        }
    }

    pub fn delete(&mut self, ids: &[Id]) {
        self.rows.retain(|id, _| !ids.contains(id));
    }

    pub fn delete_range(&mut self, times: TimeRange) {
        self.rows.retain(|(at, _), _| !times.contains(*at));
    }

    /// The time before which rows are expired at `now_ms`.
    pub fn expiry(&self, now_ms: u64) -> i64 {
        let ttl = self.ttl.map_or(i64::MIN, |ttl| now_ms as i64 - ttl);
        ttl.max(self.floor)
    }

    /// Something is altered at `now_ms`: what has expired stays so.
    pub fn begin_alteration(&mut self, now_ms: u64) {
        self.floor = self.expiry(now_ms);
    }

    /// What `change` comes to, if anything, under this schema.
    pub fn alteration(&mut self, schema: &TableSchema, change: &Change) -> Option<Alteration> {
        let values = schema.columns().fields();
        let name = |at: usize| Some(values.get(2 + at)?.name().clone());
        Some(match *change {
            Change::Add(at) => {
                let (field, operator) = first_columns().swap_remove(at);
                let operator = match self.mode {
                    WriteMode::Upsert => operator,
                    WriteMode::Append => MergeOperator::LastValue,
                };
                self.added += 1;
                let name = format!("{}{}", field.name(), self.added);
                let field = field.with_name(name);
                Alteration::AddColumn { field, operator }
            }
            Change::Drop(at) => Alteration::DropColumn { name: name(at)? },
            Change::Widen(at) => Alteration::WidenColumn {
                name: name(at)?,
                data_type: wider(values.get(2 + at)?)?,
            },
            Change::Rename(at) => {
                self.added += 1;
                let from = values.get(at)?.name().clone();
                let to = format!("{}{}", from.trim_end_matches(char::is_numeric), self.added);
                Alteration::RenameColumn { from, to }
            }
            Change::Window(window) => Alteration::SetWindow(window),
            Change::Ttl(ms) => {
                self.ttl = ms.map(|ms| ms as i64);
                Alteration::SetTtl(ms.map(std::time::Duration::from_millis))
            }
            Change::Planner(planner) => Alteration::SetPlanner(Some(planner)),
        })
    }

    /// What `read` should give under `schema`, where rows with a time before `expiry` are expired.
    pub fn rows(&self, schema: &TableSchema, expiry: i64, read: &Read) -> Vec<(Id, Row)> {
        let is_wanted = |id: &Id| {
            id.0 >= expiry
                && read.start.is_none_or(|start| *id >= start)
                && read.end.is_none_or(|end| *id < end)
                && read
                    .times
                    .is_none_or(|(start, end)| (start..end).contains(&id.0))
        };
        let wanted = self.rows.iter().filter(|(id, _)| is_wanted(id));
        let narrow = narrow(schema);
        let shown = |field: &&Arc<Field>| !read.narrow || narrow.contains(field.name());
        let rows = wanted.flat_map(|(id, rows)| rows.iter().map(move |row| (*id, row)));
        let meets = |(id, values): &(Id, &Values)| {
            let cell = |at: usize| cell(schema, *id, values, at);
            let condition = read.condition.as_ref();
            condition.is_none_or(|condition| condition.holds(schema, &cell) == Some(true))
        };
        let rows = rows.filter(meets).map(|(id, values)| {
            let fields = schema.columns().fields().iter();
            let columns = fields.zip(schema.column_ids()).enumerate();
            let columns = columns.filter(|(_, (field, _))| shown(field));
            let cells = columns.map(|(at, (field, column))| match at {
                0 => Some(time_text(id.0)),
                1 => id.1.map(|id| id.to_string()),
                _ => values
                    .get(column)
                    .map(|value| value.text(field.data_type())),
            });
            (id, cells.collect())
        });
        let mut rows: Vec<(Id, Row)> = rows.collect();
        if read.descending {
            rows.reverse();
        }
        let limit = read.limit.filter(|_| has_unique_keys(schema));
        rows.truncate(limit.unwrap_or(usize::MAX));
        rows
    }
}

/// What the row with this key and these values has in the column at `at`.
fn cell<'a>(schema: &TableSchema, id: Id, values: &'a Values, at: usize) -> Option<Cell<'a>> {
    match at {
        0 => Some(Cell::Number(id.0)),
        1 => id.1.map(|id| Cell::Number(id.into())),
        _ => Some(match values.get(&schema.column_ids()[at])? {
            Value::Number(number) => Cell::Number(*number),
            Value::Text(text) => Cell::Text(text),
        }),
    }
}

impl Column {
    fn value(self, number: i64) -> Value {
        if self.is_text {
            Value::Text(format!("{number},"))
        } else {
            Value::Number(number)
        }
    }
}

impl Value {
    fn text(&self, data_type: &DataType) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Number(number) if data_type.is_floating() => format!("{number}.0"),
            Self::Number(number) => number.to_string(),
        }
    }
}

/// Makes the newer `values` part of `row`.
fn combine(columns: &BTreeMap<u32, Column>, row: &mut Values, mut values: Values) {
    for (&id, column) in columns {
        let (older, newer) = (row.remove(&id), values.remove(&id));
        let both = older.clone().zip(newer.clone());
        let combined = match (column.operator, both) {
            (MergeOperator::LastValue, _) => newer,
            (MergeOperator::Sum, Some((Value::Number(older), Value::Number(newer)))) => {
                Some(Value::Number(older + newer))
            }
            (MergeOperator::Min, Some((Value::Number(older), Value::Number(newer)))) => {
                Some(Value::Number(older.min(newer)))
            }
            (MergeOperator::Max, Some((Value::Number(older), Value::Number(newer)))) => {
                Some(Value::Number(older.max(newer)))
            }
            (MergeOperator::BytesAppend, Some((Value::Text(older), Value::Text(newer)))) => {
                Some(Value::Text(older + &newer))
            }
            _ => newer.or(older),
        };
        row.extend(combined.map(|value| (id, value)));
    }
}

/// The value of a column in a row that was made from `number`; small, so that no sum overflows.
fn value_of(column: u32, number: i64) -> Option<i64> {
    let column = i64::from(column);
    ((number + column).rem_euclid(4) != 0).then_some(number * (column % 3 + 1))
}

pub fn has_unique_keys(schema: &TableSchema) -> bool {
    schema.write_mode() == WriteMode::Upsert
}

/// Some of the columns, in their order; the key is among them.
pub fn narrow(schema: &TableSchema) -> Vec<String> {
    let fields = schema.columns().fields().iter();
    let narrow = fields.enumerate().filter(|(at, _)| *at < 2 || at % 2 == 1);
    narrow.map(|(_, field)| field.name().clone()).collect()
}

fn wider(field: &Field) -> Option<DataType> {
    Some(match field.data_type() {
        DataType::Int8 => DataType::Int16,
        DataType::Int16 => DataType::Int32,
        DataType::Int32 => DataType::Int64,
        DataType::Float32 => DataType::Float64,
        _ => return None,
    })
}

fn time_text(at: i64) -> String {
    let array = TimestampMillisecondArray::from(vec![at]);
    arrow::util::display::array_value_to_string(&array, 0).unwrap()
}

/// A batch of these rows with the columns of `schema`.
pub fn batch(schema: &TableSchema, rows: &[(Id, i64)]) -> RecordBatch {
    let ids: Vec<Id> = rows.iter().map(|(id, _)| *id).collect();
    let mut columns = key_columns(&ids);
    let fields = schema.columns().fields().iter();
    for (field, &id) in fields.zip(schema.column_ids()).skip(2) {
        let numbers = rows.iter().map(|(_, number)| value_of(id, *number));
        columns.push(match field.data_type() {
            DataType::Utf8 => Arc::new(
                numbers
                    .map(|number| number.map(|number| format!("{number},")))
                    .collect::<StringArray>(),
            ),
            data_type => cast(&numbers.collect::<Int64Array>(), data_type).unwrap(),
        });
    }
    RecordBatch::try_new(schema.columns().clone(), columns).unwrap()
}

/// A batch of these keys.
pub fn keys(schema: &TableSchema, ids: &[Id]) -> RecordBatch {
    RecordBatch::try_new(schema.key_schema(), key_columns(ids)).unwrap()
}

fn key_columns(ids: &[Id]) -> Vec<ArrayRef> {
    let times = ids.iter().map(|id| id.0);
    vec![
        Arc::new(TimestampMillisecondArray::from_iter_values(times)),
        Arc::new(ids.iter().map(|id| id.1).collect::<Int32Array>()),
    ]
}

/// The key of a row that was read; the key's columns come first.
pub fn id_of(batch: &RecordBatch, row: usize) -> Id {
    let times = batch.column(0).as_primitive::<TimestampMillisecondType>();
    let ids = batch.column(1).as_primitive::<Int32Type>();
    let id = arrow::array::Array::is_valid(ids, row).then(|| ids.value(row));
    (times.value(row), id)
}
