//! One comparison of a filter, and how it looks at rows.

use std::collections::HashSet;

use arrow::{
    array::{Array, ArrayRef, AsArray, BooleanArray, Datum, RecordBatch, Scalar, new_null_array},
    compute::{
        CastOptions, cast, cast_with_options, concat, is_not_null, is_null, kernels::cmp, or,
    },
    datatypes::{DataType, Float16Type, Float32Type, Float64Type},
    row::{OwnedRow, RowConverter, SortField},
};

use super::{Node, known};
use crate::{
    error::{Error, Result},
    types::{Comparison, Literal},
};

/// From so many values on, a set of them is made.
const SET_VALUES_MIN: usize = 9;

/// One comparison, of a column or of two.
#[derive(Clone, Debug, PartialEq)]
pub struct Leaf(pub(super) Kind);

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
    /// With a value of the column's type, not null.
    Compare {
        column: String,
        comparison: Comparison,
        literal: ArrayRef,
    },
    Columns {
        left: String,
        comparison: Comparison,
        right: String,
    },
    /// With any of some values of the column's type, none of them null, and at least one; `negated`: with none.
    In {
        column: String,
        values: ArrayRef,
        negated: bool,
    },
    Null {
        column: String,
        negated: bool,
    },
}

impl Leaf {
    pub(super) fn null(column: &str, negated: bool) -> Self {
        Self(Kind::Null {
            column: column.to_owned(),
            negated,
        })
    }

    pub(super) fn columns_compare(left: &str, comparison: Comparison, right: &str) -> Self {
        Self(Kind::Columns {
            left: left.to_owned(),
            comparison,
            right: right.to_owned(),
        })
    }

    pub(super) fn compare(
        column: &str,
        data_type: &DataType,
        comparison: Comparison,
        literal: &Literal,
    ) -> Result<Node> {
        if literal.is_null() {
            return Ok(Node::constant(false));
        }
        Ok(Node::Leaf(Self(Kind::Compare {
            column: column.to_owned(),
            comparison,
            literal: canonical(&fit(column, data_type, literal)?),
        })))
    }

    pub(super) fn is_in(
        column: &str,
        data_type: &DataType,
        values: &[Literal],
        negated: bool,
    ) -> Result<Node> {
        let has_null = values.iter().any(Literal::is_null);
        let values = values.iter().filter(|value| !value.is_null());
        let values = values.map(|value| fit(column, data_type, value));
        let values = values.collect::<Result<Vec<ArrayRef>>>()?;
        // Whether a value differs from a null is unknown.
        if negated && has_null || !negated && values.is_empty() {
            return Ok(Node::constant(false));
        }
        if values.is_empty() {
            return Ok(Node::constant(true));
        }
        let values: Vec<&dyn Array> = values.iter().map(AsRef::as_ref).collect();
        Ok(Node::Leaf(Self(Kind::In {
            column: column.to_owned(),
            values: canonical(&concat(&values)?),
            negated,
        })))
    }

    /// The one column that it looks at; `None` when there are two.
    pub fn column(&self) -> Option<&str> {
        match &self.0 {
            Kind::Compare { column, .. } | Kind::In { column, .. } | Kind::Null { column, .. } => {
                Some(column)
            }
            Kind::Columns { .. } => None,
        }
    }

    pub(super) fn columns(&self) -> impl Iterator<Item = &str> {
        let (one, other) = match &self.0 {
            Kind::Columns { left, right, .. } => (Some(left.as_str()), Some(right.as_str())),
            _ => (self.column(), None),
        };
        one.into_iter().chain(other)
    }

    pub(super) fn evaluate(&self, batch: &RecordBatch) -> Result<BooleanArray> {
        match &self.0 {
            Kind::Null { column, negated } => {
                let column = find(batch, column)?;
                Ok(match negated {
                    true => is_not_null(column)?,
                    false => is_null(column)?,
                })
            }
            Kind::Compare {
                column,
                comparison,
                literal,
            } => {
                let column = find(batch, column)?;
                // The kernels know dictionaries; what is canonical is a matter of values.
                let column = match column.data_type() {
                    DataType::Dictionary(_, values) if values.is_floating() => values_of(column)?,
                    _ => column.clone(),
                };
                compare(
                    &canonical(&column),
                    *comparison,
                    &Scalar::new(literal.clone()),
                )
            }
            Kind::Columns {
                left,
                comparison,
                right,
            } => {
                let (left, right) = (
                    values_of(find(batch, left)?)?,
                    values_of(find(batch, right)?)?,
                );
                compare(&canonical(&left), *comparison, &canonical(&right))
            }
            Kind::In {
                column,
                values,
                negated,
            } => {
                let column = find(batch, column)?;
                let holds = among(&canonical(&values_of(column)?), values)?;
                if !negated {
                    return Ok(holds);
                }
                let differs = BooleanArray::new(!holds.values(), None);
                Ok(arrow::compute::and(&differs, &is_not_null(column)?)?)
            }
        }
    }
}

fn find<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a ArrayRef> {
    let column = batch.column_by_name(name);
    column.ok_or_else(|| Error::internal(format!("filter: column {name:?} is not in the batch")))
}

/// The values themselves, of a dictionary.
fn values_of(column: &ArrayRef) -> Result<ArrayRef> {
    match column.data_type() {
        DataType::Dictionary(_, values) => Ok(cast(column, values)?),
        _ => Ok(column.clone()),
    }
}

/// `left` `comparison` `right`; false where one of them is null. Floating-point numbers are to be canonical.
pub(super) fn compare(
    left: &dyn Datum,
    comparison: Comparison,
    right: &dyn Datum,
) -> Result<BooleanArray> {
    let kernel = match comparison {
        Comparison::Eq => cmp::eq,
        Comparison::NotEq => cmp::neq,
        Comparison::Lt => cmp::lt,
        Comparison::LtEq => cmp::lt_eq,
        Comparison::Gt => cmp::gt,
        Comparison::GtEq => cmp::gt_eq,
    };
    Ok(known(kernel(left, right)?))
}

/// Where `column` has one of `values`.
fn among(column: &ArrayRef, values: &ArrayRef) -> Result<BooleanArray> {
    if values.len() < SET_VALUES_MIN {
        let mut holds = BooleanArray::from(vec![false; column.len()]);
        for at in 0..values.len() {
            let value = Scalar::new(values.slice(at, 1));
            holds = or(&holds, &compare(column, Comparison::Eq, &value)?)?;
        }
        return Ok(holds);
    }
    // The converter knows no scalars; a set of encoded values does for every type.
    let converter = RowConverter::new(vec![SortField::new(column.data_type().clone())])?;
    let wanted = converter.convert_columns(std::slice::from_ref(values))?;
    let wanted: HashSet<OwnedRow> = wanted.iter().map(|row| row.owned()).collect();
    let wanted: HashSet<&[u8]> = wanted.iter().map(AsRef::as_ref).collect();
    let rows = converter.convert_columns(std::slice::from_ref(column))?;
    let holds = rows.iter().map(|row| wanted.contains(row.data()));
    Ok(BooleanArray::from(holds.collect::<Vec<_>>()))
}

/// `column` with one NaN, above all numbers, and one zero. Other types stay as they are.
pub(super) fn canonical(column: &ArrayRef) -> ArrayRef {
    macro_rules! floats {
        ($type:ty, $zero:expr) => {{
            let floats = column.as_primitive::<$type>();
            // Minus zero plus zero is zero.
            let canonical = floats.unary::<_, $type>(|value| match value.is_nan() {
                true => <$type as arrow::datatypes::ArrowPrimitiveType>::Native::NAN,
                false => value + $zero,
            });
            std::sync::Arc::new(canonical)
        }};
    }
    match column.data_type() {
        DataType::Float16 => floats!(Float16Type, half_zero()),
        DataType::Float32 => floats!(Float32Type, 0.0),
        DataType::Float64 => floats!(Float64Type, 0.0),
        _ => column.clone(),
    }
}

fn half_zero() -> <Float16Type as arrow::datatypes::ArrowPrimitiveType>::Native {
    Default::default()
}

/// `literal` as a value of `data_type`.
///
/// # Errors
/// `Invalid` when it is not of that kind, or does not fit.
fn fit(column: &str, data_type: &DataType, literal: &Literal) -> Result<ArrayRef> {
    let given = literal.array();
    if given.data_type() == data_type {
        return Ok(given.clone());
    }
    let refused = || {
        Error::invalid(format!(
            "{literal} ({}) does not fit column {column:?}, which is {data_type}",
            given.data_type()
        ))
    };
    if !is_of_kind(given.data_type(), data_type) {
        return Err(refused());
    }
    let strict = CastOptions {
        safe: false,
        ..CastOptions::default()
    };
    let fitted = match data_type {
        // Time zones by name are not known here; without one it is UTC.
        DataType::Timestamp(unit, Some(_)) if is_text(given.data_type()) => {
            let utc = DataType::Timestamp(*unit, Some("+00:00".into()));
            cast_with_options(given, &utc, &strict)
                .and_then(|times| cast_with_options(&times, data_type, &strict))
        }
        _ => cast_with_options(given, data_type, &strict),
    };
    let fitted = fitted.map_err(|error| refused().with_source(error))?;
    // What a cast rounds off is not what was asked for.
    let is_exact = is_text(given.data_type())
        || cast_with_options(&fitted, given.data_type(), &strict)
            .is_ok_and(|back| canonical(&back).to_data() == canonical(given).to_data());
    match is_exact && fitted.null_count() == 0 {
        true => Ok(fitted),
        false => Err(refused()),
    }
}

/// Whether a literal of the type `given` can stand for a value of the type `wanted`.
fn is_of_kind(given: &DataType, wanted: &DataType) -> bool {
    let is_binary = |data_type: &DataType| {
        matches!(
            data_type,
            DataType::Binary
                | DataType::LargeBinary
                | DataType::BinaryView
                | DataType::FixedSizeBinary(_)
        )
    };
    if wanted.is_numeric() {
        return given.is_numeric();
    }
    match wanted {
        DataType::Boolean => *given == DataType::Boolean,
        _ if is_text(wanted) => is_text(given),
        _ if is_binary(wanted) => is_binary(given) || is_text(given),
        _ => given.is_integer() || is_text(given) || given.is_temporal(),
    }
}

fn is_text(data_type: &DataType) -> bool {
    matches!(
        data_type,
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View
    )
}

/// Two literals, compared.
pub(super) fn constants(left: &Literal, comparison: Comparison, right: &Literal) -> Result<Node> {
    if left.is_null() || right.is_null() {
        return Ok(Node::constant(false));
    }
    let (left, right) = (left.array(), right.array());
    if left.data_type() != right.data_type() {
        return Err(Error::invalid(format!(
            "a literal that is {} is compared with one that is {}",
            left.data_type(),
            right.data_type()
        )));
    }
    let holds = compare(&canonical(left), comparison, &canonical(right))?;
    Ok(Node::constant(holds.value(0)))
}

/// No value of `data_type`, for bounds that are not known.
pub(super) fn unknown(data_type: &DataType, parts: usize) -> ArrayRef {
    new_null_array(data_type, parts)
}
