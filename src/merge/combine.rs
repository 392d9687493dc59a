//! Combines neighbouring rows of equal key into one, column by column, as the columns' merge operators say.
//!
//! A group is a row and those after it that become part of it, from the newest to the oldest. Where an
//! operator chooses one of the values, its position is found and all are taken at once; sums and appended
//! bytes are computed.

use std::{cmp::Ordering, sync::Arc};

use arrow::{
    array::{
        Array, ArrayRef, AsArray, GenericByteArray, GenericByteBuilder, PrimitiveArray,
        RecordBatch, UInt64Array, downcast_primitive_array, make_comparator,
    },
    compute::{SortOptions, take},
    datatypes::{
        ArrowNativeTypeOp, ArrowPrimitiveType, ByteArrayType, DataType, GenericBinaryType,
        GenericStringType,
    },
};

use crate::{
    error::{Error, Result},
    types::MergeOperator,
};

/// The rows of `batch`, where each row in `joins` (ascending, never the first) has become part of the row before it.
/// `operators` has one operator a column.
///
/// # Errors
/// `Internal` when an operator does not go with its column; `TooLarge` when appended bytes outgrow a column.
pub(super) fn combine(
    batch: &RecordBatch,
    joins: &[usize],
    operators: &[MergeOperator],
) -> Result<RecordBatch> {
    let groups = Groups::new(batch.num_rows(), joins);
    let firsts = groups.pick(|rows| rows.start);
    let columns = batch.columns().iter().zip(operators);
    let columns = columns.map(|(column, operator)| match operator {
        MergeOperator::LastValue => Ok(take(column, &firsts, None)?),
        MergeOperator::LastNonNull => last_non_null(column, &groups),
        MergeOperator::Min => extreme(column, &groups, Ordering::Less),
        MergeOperator::Max => extreme(column, &groups, Ordering::Greater),
        MergeOperator::Sum => sum(column, &groups),
        MergeOperator::BytesAppend => append(column, &groups),
    });
    let columns = columns.collect::<Result<Vec<ArrayRef>>>()?;
    Ok(RecordBatch::try_new(batch.schema(), columns)?)
}

/// Stretches of rows that become one row each.
struct Groups {
    /// First row of each, and at the end the number of rows.
    bounds: Vec<usize>,
}

impl Groups {
    fn new(rows: usize, joins: &[usize]) -> Self {
        let mut bounds = Vec::with_capacity(rows - joins.len() + 1);
        let mut joins = joins.iter().copied().peekable();
        for row in 0..rows {
            if joins.next_if_eq(&row).is_none() {
                bounds.push(row);
            }
        }
        bounds.push(rows);
        Self { bounds }
    }

    fn iter(&self) -> impl Iterator<Item = std::ops::Range<usize>> {
        self.bounds.windows(2).map(|pair| pair[0]..pair[1])
    }

    fn count(&self) -> usize {
        self.bounds.len() - 1
    }

    fn pick(&self, row_of: impl Fn(std::ops::Range<usize>) -> usize) -> UInt64Array {
        UInt64Array::from_iter_values(self.iter().map(|rows| row_of(rows) as u64))
    }
}

fn last_non_null(column: &ArrayRef, groups: &Groups) -> Result<ArrayRef> {
    let nulls = column.logical_nulls();
    let is_valid = |row: &usize| nulls.as_ref().is_none_or(|nulls| nulls.is_valid(*row));
    let rows = groups.pick(|mut rows| {
        let newest = rows.start;
        rows.find(is_valid).unwrap_or(newest)
    });
    Ok(take(column, &rows, None)?)
}

/// The value of each group that is in `order` to all others. NaN is above all numbers.
fn extreme(column: &ArrayRef, groups: &Groups, order: Ordering) -> Result<ArrayRef> {
    let compare = make_comparator(column, column, SortOptions::default())?;
    let rows = groups.pick(|rows| {
        let newest = rows.start;
        let valid = rows.filter(|&row| column.is_valid(row));
        let better = |best, row| {
            if compare(row, best) == order {
                row
            } else {
                best
            }
        };
        valid.reduce(better).unwrap_or(newest)
    });
    Ok(take(column, &rows, None)?)
}

fn sum(column: &ArrayRef, groups: &Groups) -> Result<ArrayRef> {
    let column = column.as_ref();
    downcast_primitive_array!(
        column => Ok(Arc::new(sum_of(column, groups))),
        other => Err(unsupported(MergeOperator::Sum, other)),
    )
}

fn sum_of<T: ArrowPrimitiveType>(column: &PrimitiveArray<T>, groups: &Groups) -> PrimitiveArray<T> {
    let sums = groups.iter().map(|rows| {
        let values = rows.rev().filter(|&row| column.is_valid(row));
        values
            .map(|row| column.value(row))
            .reduce(|sum, value| sum.add_wrapping(value))
    });
    let sums: PrimitiveArray<T> = sums.collect();
    sums.with_data_type(column.data_type().clone())
}

fn append(column: &ArrayRef, groups: &Groups) -> Result<ArrayRef> {
    match column.data_type() {
        DataType::Utf8 => append_of::<GenericStringType<i32>>(column.as_bytes(), groups),
        DataType::LargeUtf8 => append_of::<GenericStringType<i64>>(column.as_bytes(), groups),
        DataType::Binary => append_of::<GenericBinaryType<i32>>(column.as_bytes(), groups),
        DataType::LargeBinary => append_of::<GenericBinaryType<i64>>(column.as_bytes(), groups),
        other => Err(unsupported(MergeOperator::BytesAppend, other)),
    }
}

fn append_of<T: ByteArrayType>(column: &GenericByteArray<T>, groups: &Groups) -> Result<ArrayRef>
where
    T::Native: Piece,
{
    let bytes = column.value_data().len();
    if i64::try_from(bytes).is_err() || (size_of::<T::Offset>() == 4 && bytes > i32::MAX as usize) {
        return Err(Error::too_large(format!(
            "{bytes} appended bytes do not fit into a column of {}",
            T::DATA_TYPE
        )));
    }
    let mut builder = GenericByteBuilder::<T>::with_capacity(groups.count(), bytes);
    let mut value = Vec::new();
    for rows in groups.iter() {
        value.clear();
        let mut is_null = true;
        for row in rows.rev().filter(|&row| column.is_valid(row)) {
            let piece: &[u8] = column.value(row).as_ref();
            value.extend_from_slice(piece);
            is_null = false;
        }
        if is_null {
            builder.append_null();
        } else {
            builder.append_value(T::Native::joined(&value)?);
        }
    }
    Ok(Arc::new(builder.finish()))
}

/// A value of a column of bytes.
trait Piece {
    /// The value of these bytes, which are whole values one after the other.
    fn joined(bytes: &[u8]) -> Result<&Self>;
}

impl Piece for [u8] {
    fn joined(bytes: &[u8]) -> Result<&Self> {
        Ok(bytes)
    }
}

impl Piece for str {
    fn joined(bytes: &[u8]) -> Result<&Self> {
        str::from_utf8(bytes)
            .map_err(|error| Error::corrupt("appended strings are not UTF-8").with_source(error))
    }
}

fn unsupported(operator: MergeOperator, data_type: &DataType) -> Error {
    Error::internal(format!(
        "merge operator {operator} met a column of {data_type}"
    ))
}
