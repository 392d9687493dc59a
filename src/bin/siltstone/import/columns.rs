//! How the columns of a Parquet file become those of a table: found by name, and converted where no value is lost.
//! Pure.
//!
//! Types decide for numbers, strings and bytes: a wider one takes all values of a narrower one. Values decide for times:
//! a coarser unit takes those that it can tell exactly. Dictionaries are as good as what they hold. Other types must be
//! the same, but for the names of the items of lists.

use std::sync::Arc;

use arrow::{
    array::{Array, ArrayRef, RecordBatch, RecordBatchOptions, make_array, new_null_array},
    compute::{CastOptions, can_cast_types, cast_with_options, kernels::cmp::distinct},
    datatypes::{DataType, Schema, SchemaRef},
    error::ArrowError,
    util::display::array_value_to_string,
};
use siltstone::error::{Error, Result};

/// Nothing becomes null that is not.
const STRICT: CastOptions<'static> = CastOptions {
    safe: false,
    format_options: arrow::util::display::FormatOptions::new(),
};

/// The columns of a table, and where they are in a file.
#[derive(Clone, Debug)]
pub struct ColumnFit {
    wanted: SchemaRef,
    file: String,
    /// For each column of the table its position in the file; `None` where it is not there, and null.
    origins: Vec<Option<usize>>,
}

impl ColumnFit {
    /// How a file with the columns `given` becomes a table with the columns `wanted`. `file` names it in messages.
    ///
    /// # Errors
    /// `Invalid`, naming the file, and the columns that are not in the table; one that is missing although it must
    /// not be null; or one whose type does not become that of the table, with both types.
    pub fn new(wanted: &SchemaRef, file: &str, given: &Schema) -> Result<Self> {
        let names: Vec<&str> = given
            .fields()
            .iter()
            .map(|field| field.name().as_str())
            .collect();
        let is_unknown = |name: &&str| wanted.column_with_name(name).is_none();
        let unknown: Vec<String> = names
            .iter()
            .copied()
            .filter(is_unknown)
            .map(|name| format!("{name:?}"))
            .collect();
        if !unknown.is_empty() {
            let unknown = unknown.join(", ");
            return Err(Error::invalid(format!(
                "file {file} has columns that the table has not: {unknown}"
            )));
        }
        let mut origins = Vec::with_capacity(wanted.fields().len());
        for field in wanted.fields() {
            let (name, data_type) = (field.name(), field.data_type());
            let mut found = (0..names.len()).filter(|&at| names[at] == name);
            let origin = found.next();
            if found.next().is_some() {
                return Err(Error::invalid(format!(
                    "file {file} has more than one column {name:?}"
                )));
            }
            match origin {
                None if !field.is_nullable() => {
                    return Err(Error::invalid(format!(
                        "file {file} has no column {name:?} ({data_type}), which must not be null"
                    )));
                }
                Some(at) if !fits(data_type, given.field(at).data_type()) => {
                    let there = given.field(at).data_type();
                    return Err(Error::invalid(format!(
                        "file {file}: column {name:?} is {there} in it, {data_type} in the table, which would lose values"
                    )));
                }
                _ => origins.push(origin),
            }
        }
        Ok(Self {
            wanted: wanted.clone(),
            file: file.to_owned(),
            origins,
        })
    }

    /// The columns of the table, of a batch of the file. `first_row` is the number of its first row in the file.
    ///
    /// # Errors
    /// `Invalid`, naming file, column and row: a null that must not be, or a value that the table's type does not
    /// have.
    pub fn apply(&self, batch: &RecordBatch, first_row: u64) -> Result<RecordBatch> {
        let rows = batch.num_rows();
        let mut columns = Vec::with_capacity(self.origins.len());
        for (field, origin) in self.wanted.fields().iter().zip(&self.origins) {
            let (name, wanted, file) = (field.name(), field.data_type(), &self.file);
            let Some(at) = *origin else {
                columns.push(new_null_array(wanted, rows));
                continue;
            };
            let given = batch.column(at);
            let column = convert(wanted, given).map_err(|misfit| {
                let there = given.data_type();
                let error = Error::invalid(format!(
                    "file {file}: column {name:?} is {there} in it, {wanted} in the table{}",
                    misfit.after(first_row)
                ));
                match misfit {
                    Misfit::Value { .. } => error,
                    Misfit::Cast(source) => error.with_source(source),
                }
            })?;
            if !field.is_nullable()
                && let Some(nulls) = column
                    .logical_nulls()
                    .filter(|nulls| nulls.null_count() > 0)
            {
                let row = (0..rows).find(|&row| nulls.is_null(row)).unwrap_or(0) as u64;
                return Err(Error::invalid(format!(
                    "file {file}: column {name:?} is null in row {}, which the table does not allow",
                    first_row + row
                )));
            }
            columns.push(column);
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        Ok(RecordBatch::try_new_with_options(
            self.wanted.clone(),
            columns,
            &options,
        )?)
    }
}

/// Why a column does not become another one.
#[derive(Debug)]
enum Misfit {
    /// The value of this row does not.
    Value { row: u64, value: String },
    /// The conversion says why.
    Cast(ArrowError),
}

impl Misfit {
    /// What there is to say after the types; the batch begins with row `first_row` of the file.
    fn after(&self, first_row: u64) -> String {
        match self {
            Self::Value { row, value } => {
                format!(", which cannot tell {value} in row {}", first_row + row)
            }
            Self::Cast(_) => format!(", in a row from {first_row} on"),
        }
    }
}

impl From<ArrowError> for Misfit {
    fn from(error: ArrowError) -> Self {
        Self::Cast(error)
    }
}

/// Whether values of type `given` become values of type `wanted` without loss; of times, those that are exact.
fn fits(wanted: &DataType, given: &DataType) -> bool {
    use DataType::{
        Binary, BinaryView, Dictionary, Duration, FixedSizeBinary, FixedSizeList, Float16, Float32,
        Float64, LargeBinary, LargeList, LargeUtf8, List, Null, Time32, Time64, Timestamp, Utf8,
        Utf8View,
    };
    if wanted == given {
        return true;
    }
    let fits = match (wanted, given) {
        (_, Null) => true,
        (_, Dictionary(_, values)) => return fits(wanted, values),
        (Dictionary(_, values), _) => return fits(values, given),
        (Timestamp(_, wanted), Timestamp(_, given)) => is_same_instant(wanted, given),
        (Time32(_) | Time64(_), Time32(_) | Time64(_)) | (Duration(_), Duration(_)) => true,
        (DataType::Date64, DataType::Date32) => true,
        (Utf8 | LargeUtf8 | Utf8View, Utf8 | LargeUtf8 | Utf8View) => true,
        (
            Binary | LargeBinary | BinaryView,
            Binary | LargeBinary | BinaryView | FixedSizeBinary(_),
        ) => true,
        (Float32, Float16) | (Float64, Float16 | Float32) => true,
        (Float32, _) => integer(given).is_some_and(|(_, bits)| bits <= 16),
        (Float64, _) => integer(given).is_some_and(|(_, bits)| bits <= 32),
        (List(wanted) | LargeList(wanted), List(given)) | (LargeList(wanted), LargeList(given)) => {
            item_fits(wanted, given)
        }
        (FixedSizeList(wanted, length), FixedSizeList(given, other)) => {
            length == other && item_fits(wanted, given)
        }
        _ => integer_fits(wanted, given) || decimal_fits(wanted, given),
    };
    fits && can_cast_types(given, wanted)
}

fn item_fits(wanted: &arrow::datatypes::Field, given: &arrow::datatypes::Field) -> bool {
    let (to, from) = (wanted.data_type(), given.data_type());
    // Values of items are not looked at.
    let by_type = to == from || !is_time(to);
    (wanted.is_nullable() || !given.is_nullable()) && by_type && fits(to, from)
}

/// Whether numbers mean the same in both time zones: without one they are taken as UTC.
fn is_same_instant(wanted: &Option<Arc<str>>, given: &Option<Arc<str>>) -> bool {
    let is_utc = |zone: &Arc<str>| {
        let names = ["utc", "etc/utc", "z", "+00:00", "+0000", "+00"];
        names.contains(&zone.to_lowercase().as_str())
    };
    match (wanted, given) {
        (Some(_), Some(_)) | (None, None) => true,
        (Some(zone), None) | (None, Some(zone)) => is_utc(zone),
    }
}

/// Whether it is signed, and its bits.
fn integer(data_type: &DataType) -> Option<(bool, usize)> {
    let bits = data_type.primitive_width()? * 8;
    let is_signed = data_type.is_signed_integer();
    (is_signed || data_type.is_unsigned_integer()).then_some((is_signed, bits))
}

fn integer_fits(wanted: &DataType, given: &DataType) -> bool {
    match (integer(wanted), integer(given)) {
        (Some((true, wanted)), Some((false, given))) => wanted > given,
        (Some((wanted_sign, wanted)), Some((given_sign, given))) => {
            wanted_sign == given_sign && wanted >= given
        }
        _ => false,
    }
}

fn decimal_fits(wanted: &DataType, given: &DataType) -> bool {
    use DataType::{Decimal32, Decimal64, Decimal128, Decimal256};
    let digits = |data_type: &DataType| match *data_type {
        Decimal32(precision, scale)
        | Decimal64(precision, scale)
        | Decimal128(precision, scale)
        | Decimal256(precision, scale) => {
            Some((i16::from(precision) - i16::from(scale), i16::from(scale)))
        }
        _ => None,
    };
    let both = digits(wanted).zip(digits(given));
    both.is_some_and(|(wanted, given)| wanted.0 >= given.0 && wanted.1 >= given.1)
}

/// Whether values decide.
fn is_time(data_type: &DataType) -> bool {
    use DataType::{Duration, Time32, Time64, Timestamp};
    matches!(
        data_type,
        Timestamp(..) | Time32(_) | Time64(_) | Duration(_)
    )
}

/// `column`, whose type [fits](fits), as one of type `wanted`.
fn convert(wanted: &DataType, column: &ArrayRef) -> Result<ArrayRef, Misfit> {
    let cast = |column: &ArrayRef, to: &DataType| cast_with_options(column, to, &STRICT);
    match (wanted, column.data_type()) {
        (wanted, given) if wanted == given => Ok(column.clone()),
        (wanted, DataType::Dictionary(_, values)) => convert(wanted, &cast(column, values)?),
        (DataType::Dictionary(_, values), _) => Ok(cast(&convert(values, column)?, wanted)?),
        (DataType::Timestamp(unit, _), DataType::Timestamp(_, zone)) => {
            let same_zone = DataType::Timestamp(*unit, zone.clone());
            let converted = exactly(&same_zone, column)?;
            // The numbers count from the same moment in every zone.
            let data = converted.to_data().into_builder();
            Ok(make_array(data.data_type(wanted.clone()).build()?))
        }
        (wanted, given) if is_time(wanted) && is_time(given) => exactly(wanted, column),
        (wanted, _) => Ok(cast(column, wanted)?),
    }
}

/// Times in another unit.
fn exactly(wanted: &DataType, column: &ArrayRef) -> Result<ArrayRef, Misfit> {
    let converted = cast_with_options(column, wanted, &STRICT)?;
    let back = cast_with_options(&converted, column.data_type(), &STRICT)?;
    let differs = distinct(&back, column)?;
    match (0..column.len()).find(|&row| differs.value(row)) {
        None => Ok(converted),
        Some(row) => Err(Misfit::Value {
            row: row as u64,
            value: array_value_to_string(column, row)?,
        }),
    }
}

#[cfg(test)]
mod tests {
    use arrow::{
        array::{
            AsArray, DictionaryArray, Int32Array, Int64Array, StringArray,
            TimestampMicrosecondArray,
        },
        datatypes::{Field, Int8Type, TimeUnit, TimestampMillisecondType},
    };

    use super::*;

    fn timestamp(unit: TimeUnit, zone: Option<&str>) -> DataType {
        DataType::Timestamp(unit, zone.map(Into::into))
    }

    fn list(item: &str, data_type: DataType, nullable: bool) -> DataType {
        DataType::List(Arc::new(Field::new(item, data_type, nullable)))
    }

    #[test]
    fn types_fit_where_nothing_can_be_lost() {
        use DataType::*;
        use TimeUnit::{Microsecond, Millisecond, Nanosecond, Second};
        let dictionary = |values| Dictionary(Box::new(Int32), Box::new(values));
        for (wanted, given) in [
            (Int64, Int32),
            (Int64, UInt32),
            (UInt64, UInt8),
            (Float64, Int32),
            (Float64, Float32),
            (Float32, UInt16),
            (Utf8, LargeUtf8),
            (Utf8, Utf8View),
            (Utf8, dictionary(Utf8)),
            (dictionary(Utf8), LargeUtf8),
            (Binary, FixedSizeBinary(4)),
            (Decimal128(12, 2), Decimal128(10, 1)),
            (timestamp(Second, None), timestamp(Nanosecond, None)),
            (
                timestamp(Microsecond, None),
                timestamp(Millisecond, Some("UTC")),
            ),
            (Time64(Microsecond), Time32(Second)),
            (Date64, Date32),
            (list("item", Int64, true), list("element", Int32, false)),
            (Int64, Null),
        ] {
            assert!(fits(&wanted, &given), "{given} as {wanted}");
        }
        for (wanted, given) in [
            (Int32, Int64),
            (UInt64, Int8),
            (Int32, UInt32),
            (Int64, UInt64),
            (Float64, Int64),
            (Float32, Float64),
            (Int64, Float64),
            (Utf8, Int64),
            (Int64, Utf8),
            (Utf8, Binary),
            (Int64, dictionary(Utf8)),
            (Decimal128(10, 1), Decimal128(10, 2)),
            (Decimal128(10, 2), Decimal128(10, 1)),
            (Int64, timestamp(Second, None)),
            (timestamp(Second, None), Int64),
            (timestamp(Second, None), timestamp(Second, Some("+02:00"))),
            (list("item", Int64, false), list("item", Int64, true)),
            (
                list("item", Time32(Second), true),
                list("item", Time32(Millisecond), true),
            ),
            (Boolean, Int8),
        ] {
            assert!(!fits(&wanted, &given), "{given} as {wanted}");
        }
    }

    fn table() -> SchemaRef {
        Arc::new(Schema::new(vec![
            Field::new("at", timestamp(TimeUnit::Millisecond, None), false),
            Field::new("name", DataType::Utf8, true),
            Field::new("count", DataType::Int64, true),
        ]))
    }

    fn file(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
        RecordBatch::try_from_iter_with_nullable(
            columns
                .into_iter()
                .map(|(name, column)| (name, column, true)),
        )
        .unwrap()
    }

    fn apply(batch: &RecordBatch, first_row: u64) -> Result<RecordBatch> {
        ColumnFit::new(&table(), "\"a.parquet\"", &batch.schema())?.apply(batch, first_row)
    }

    #[test]
    fn columns_are_found_by_name_and_converted() {
        let names: DictionaryArray<Int8Type> = vec![Some("a"), None].into_iter().collect();
        let micros = TimestampMicrosecondArray::from(vec![1_000, -2_000]).with_timezone("UTC");
        let batch = file(vec![("name", Arc::new(names)), ("at", Arc::new(micros))]);
        let rows = apply(&batch, 0).unwrap();
        assert_eq!(rows.schema(), table());
        let millis = rows.column(0).as_primitive::<TimestampMillisecondType>();
        assert_eq!(millis.values()[..], [1, -2]);
        assert_eq!(
            rows.column(1).as_string::<i32>(),
            &StringArray::from(vec![Some("a"), None])
        );
        assert_eq!(rows.column(2).null_count(), 2);
    }

    #[test]
    fn what_would_be_lost_is_named() {
        let at = |values: Vec<Option<i64>>| Arc::new(TimestampMicrosecondArray::from(values));
        let good = || at(vec![Some(0), Some(1_000)]);
        let said = |batch: &RecordBatch| apply(batch, 10).unwrap_err().to_string();

        let said_of = said(&file(vec![("at", at(vec![Some(0), Some(1_001)]))]));
        for word in ["a.parquet", "\"at\"", "µs", "ms", "row 11", "00.001001"] {
            assert!(said_of.contains(word), "{word}: {said_of}");
        }
        let said_of = said(&file(vec![("at", at(vec![Some(0), None]))]));
        assert!(said_of.contains("null in row 11"), "{said_of}");
        let said_of = said(&file(vec![("at", at(vec![Some(i64::MAX)]))]));
        assert!(said_of.contains("row 10"), "{said_of}");
        let said_of = said(&file(vec![
            ("at", good()),
            ("x", Arc::new(Int32Array::from(vec![1, 2]))),
            ("y", Arc::new(Int32Array::from(vec![1, 2]))),
        ]));
        assert!(said_of.contains("\"x\", \"y\""), "{said_of}");
        let said_of = said(&file(vec![(
            "name",
            Arc::new(StringArray::from(vec!["a"])),
        )]));
        assert!(said_of.contains("no column \"at\""), "{said_of}");
        let numbers = Int64Array::from(vec![1, 2]);
        let said_of = said(&file(vec![("at", good()), ("name", Arc::new(numbers))]));
        for word in ["\"name\"", "Int64", "Utf8"] {
            assert!(said_of.contains(word), "{word}: {said_of}");
        }
    }
}
