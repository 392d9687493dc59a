//! Conditions on rows: what a scan is asked to return.
//!
//! ```
//! use siltstone::types::{column, Predicate};
//!
//! let late: Predicate = column("origin").eq("JFK").and(column("dep_delay").gt(60));
//! let known = !column("tailnum").is_null();
//! assert_eq!((late & known).to_string(), "origin = 'JFK' and dep_delay > 60 and not tailnum is null");
//! ```
//!
//! The logic is SQL's: a comparison with a null is neither true nor false, and a row is returned where the whole
//! condition is true. Floating-point numbers compare as they are sorted elsewhere: NaN equals itself and is above
//! all numbers; the two zeros are equal.

use std::{fmt, ops, sync::Arc};

use arrow::{
    array::{
        Array, ArrayRef, BinaryArray, BooleanArray, Float64Array, Int64Array, NullArray,
        StringArray, UInt64Array,
    },
    compute::cast,
    datatypes::DataType,
    util::display::array_value_to_string,
};

use crate::error::{Error, Result};

/// A condition on a row. Columns and types are looked at when it is used: [`Filter::new`](super::Filter::new).
#[derive(Clone, Debug, PartialEq)]
pub enum Predicate {
    /// Both operands are there, and compare so.
    Compare {
        /// What is compared.
        left: Operand,
        /// How.
        comparison: Comparison,
        /// What it is compared with.
        right: Operand,
    },
    /// The column's value is one of these.
    In {
        /// Its name.
        column: String,
        /// The values; nulls among them match nothing.
        values: Vec<Literal>,
    },
    /// The column has no value.
    IsNull(String),
    /// All of them hold; true for none.
    And(Vec<Predicate>),
    /// One of them holds; false for none.
    Or(Vec<Predicate>),
    /// It is false. Neither it nor this hold where it compares with a null.
    Not(Box<Predicate>),
}

/// How two values compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Comparison {
    /// `=`
    Eq,
    /// `!=`
    NotEq,
    /// `<`
    Lt,
    /// `<=`
    LtEq,
    /// `>`
    Gt,
    /// `>=`
    GtEq,
}

impl Comparison {
    /// The one that holds where this one does not.
    pub(super) fn negated(self) -> Self {
        match self {
            Self::Eq => Self::NotEq,
            Self::NotEq => Self::Eq,
            Self::Lt => Self::GtEq,
            Self::LtEq => Self::Gt,
            Self::Gt => Self::LtEq,
            Self::GtEq => Self::Lt,
        }
    }

    /// The one that holds with the operands in each other's place.
    pub(super) fn mirrored(self) -> Self {
        match self {
            Self::Eq | Self::NotEq => self,
            Self::Lt => Self::Gt,
            Self::LtEq => Self::GtEq,
            Self::Gt => Self::Lt,
            Self::GtEq => Self::LtEq,
        }
    }
}

/// One side of a comparison.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand {
    /// A column, by name.
    Column(String),
    /// A value.
    Literal(Literal),
}

/// One value, or a null. It takes the type of the column that it is compared with: integers also that of times and
/// decimals, in the column's own unit; strings also that of times, as ISO 8601 has them
/// (UTC, unless they name an offset).
#[derive(Clone, Debug)]
pub struct Literal(ArrayRef);

impl PartialEq for Literal {
    fn eq(&self, other: &Self) -> bool {
        *self.0 == *other.0
    }
}

impl Literal {
    /// No value: it compares with nothing.
    pub fn null() -> Self {
        Self(Arc::new(NullArray::new(1)))
    }

    /// The one value of `array`, of any type.
    ///
    /// # Errors
    /// `Invalid` when it has more or fewer.
    pub fn from_array(array: ArrayRef) -> Result<Self> {
        match array.len() {
            1 => Ok(Self(array)),
            values => Err(Error::invalid(format!(
                "a literal is one value, not {values}"
            ))),
        }
    }

    /// The value, as an array of length 1.
    pub fn array(&self) -> &ArrayRef {
        &self.0
    }

    /// Whether there is no value.
    pub fn is_null(&self) -> bool {
        self.0.logical_null_count() > 0
    }
}

macro_rules! literals {
    ($($from:ty => |$value:ident| $array:expr;)*) => {
        $(impl From<$from> for Literal {
            fn from($value: $from) -> Self {
                Self(Arc::new($array))
            }
        })*
    };
}

literals! {
    bool => |value| BooleanArray::from(vec![value]);
    i32 => |value| Int64Array::from(vec![i64::from(value)]);
    i64 => |value| Int64Array::from(vec![value]);
    u64 => |value| UInt64Array::from(vec![value]);
    f64 => |value| Float64Array::from(vec![value]);
    &str => |value| StringArray::from(vec![value]);
    String => |value| StringArray::from(vec![value]);
    &[u8] => |value| BinaryArray::from(vec![value]);
}

impl<L: Into<Literal>> From<L> for Operand {
    fn from(literal: L) -> Self {
        Self::Literal(literal.into())
    }
}

impl From<Column> for Operand {
    fn from(column: Column) -> Self {
        Self::Column(column.0)
    }
}

/// A column, to make a predicate of.
#[derive(Clone, Debug)]
pub struct Column(String);

/// The column called `name`, to make a predicate of.
pub fn column(name: impl Into<String>) -> Column {
    Column(name.into())
}

macro_rules! comparisons {
    ($($(#[$doc:meta])* $name:ident => $comparison:ident;)*) => {
        $($(#[$doc])*
        pub fn $name(self, other: impl Into<Operand>) -> Predicate {
            Predicate::Compare {
                left: self.into(),
                comparison: Comparison::$comparison,
                right: other.into(),
            }
        })*
    };
}

impl Column {
    comparisons! {
        /// Its value equals `other`.
        eq => Eq;
        /// Its value differs from `other`.
        not_eq => NotEq;
        /// Its value is below `other`.
        lt => Lt;
        /// Its value is below `other`, or equals it.
        lt_eq => LtEq;
        /// Its value is above `other`.
        gt => Gt;
        /// Its value is above `other`, or equals it.
        gt_eq => GtEq;
    }

    /// Its value is one of `values`.
    pub fn is_in<L: Into<Literal>>(self, values: impl IntoIterator<Item = L>) -> Predicate {
        Predicate::In {
            column: self.0,
            values: values.into_iter().map(Into::into).collect(),
        }
    }

    /// It has no value.
    pub fn is_null(self) -> Predicate {
        Predicate::IsNull(self.0)
    }
}

impl Predicate {
    /// Both hold.
    #[must_use]
    pub fn and(self, other: Predicate) -> Predicate {
        match self {
            Self::And(mut all) => {
                all.push(other);
                Self::And(all)
            }
            one => Self::And(vec![one, other]),
        }
    }

    /// One of them holds.
    #[must_use]
    pub fn or(self, other: Predicate) -> Predicate {
        match self {
            Self::Or(mut any) => {
                any.push(other);
                Self::Or(any)
            }
            one => Self::Or(vec![one, other]),
        }
    }
}

impl ops::BitAnd for Predicate {
    type Output = Predicate;

    fn bitand(self, other: Predicate) -> Predicate {
        self.and(other)
    }
}

impl ops::BitOr for Predicate {
    type Output = Predicate;

    fn bitor(self, other: Predicate) -> Predicate {
        self.or(other)
    }
}

impl ops::Not for Predicate {
    type Output = Predicate;

    fn not(self) -> Predicate {
        Self::Not(Box::new(self))
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Eq => "=",
            Self::NotEq => "!=",
            Self::Lt => "<",
            Self::LtEq => "<=",
            Self::Gt => ">",
            Self::GtEq => ">=",
        })
    }
}

impl fmt::Display for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_null() {
            return f.write_str("null");
        }
        // Time zones by name are not known here.
        let utc = match self.0.data_type() {
            DataType::Timestamp(unit, Some(_)) => {
                Some(cast(&self.0, &DataType::Timestamp(*unit, None)).map_err(|_| fmt::Error)?)
            }
            _ => None,
        };
        let value = utc.as_ref().unwrap_or(&self.0);
        let text = array_value_to_string(value, 0).map_err(|_| fmt::Error)?;
        match self.0.data_type() {
            DataType::Timestamp(_, Some(_)) => write!(f, "{text}Z"),
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => {
                write!(f, "'{}'", text.replace('\'', "''"))
            }
            _ => f.write_str(&text),
        }
    }
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Column(name) => f.write_str(name),
            Self::Literal(literal) => literal.fmt(f),
        }
    }
}

impl fmt::Display for Predicate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Compare {
                left,
                comparison,
                right,
            } => write!(f, "{left} {comparison} {right}"),
            Self::In { column, values } => {
                let values: Vec<String> = values.iter().map(Literal::to_string).collect();
                write!(f, "{column} in ({})", values.join(", "))
            }
            Self::IsNull(column) => write!(f, "{column} is null"),
            Self::And(all) if all.is_empty() => f.write_str("true"),
            Self::Or(any) if any.is_empty() => f.write_str("false"),
            Self::And(all) => write_joined(f, all, "and", |part| matches!(part, Self::Or(_))),
            Self::Or(any) => write_joined(f, any, "or", |_| false),
            Self::Not(inner) => match **inner {
                Self::And(_) | Self::Or(_) => write!(f, "not ({inner})"),
                _ => write!(f, "not {inner}"),
            },
        }
    }
}

fn write_joined(
    f: &mut fmt::Formatter<'_>,
    parts: &[Predicate],
    word: &str,
    is_bracketed: impl Fn(&Predicate) -> bool,
) -> fmt::Result {
    for (at, part) in parts.iter().enumerate() {
        if at > 0 {
            write!(f, " {word} ")?;
        }
        match is_bracketed(part) {
            true => write!(f, "({part})")?,
            false => write!(f, "{part}")?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn predicates_read_as_they_are_built() {
        let any = column("a").lt(1).or(column("b").gt_eq(2.5));
        assert_eq!(any.to_string(), "a < 1 or b >= 2.5");
        let all = any.and(column("c").is_in(["it's", "x"]));
        assert_eq!(
            all.to_string(),
            "(a < 1 or b >= 2.5) and c in ('it''s', 'x')"
        );
        assert_eq!(
            (!all).to_string(),
            "not ((a < 1 or b >= 2.5) and c in ('it''s', 'x'))"
        );
        assert_eq!(column("a").eq(column("b")).to_string(), "a = b");
        assert_eq!(column("a").not_eq(Literal::null()).to_string(), "a != null");
        assert_eq!(Predicate::And(vec![]).to_string(), "true");
        for (zone, wanted) in [(None, ""), (Some("UTC"), "Z"), (Some("Europe/Berlin"), "Z")] {
            let zone = zone.map(Into::into);
            let time = DataType::Timestamp(arrow::datatypes::TimeUnit::Second, zone);
            let time = cast(&Int64Array::from(vec![1_372_636_800]), &time).unwrap();
            let text = column("a")
                .eq(Literal::from_array(time).unwrap())
                .to_string();
            assert_eq!(text, format!("a = 2013-07-01T00:00:00{wanted}"));
        }
    }

    #[test]
    fn a_literal_is_one_value() {
        let two: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
        let error = Literal::from_array(two).unwrap_err().to_string();
        assert!(error.contains("not 2"), "{error}");
    }
}
