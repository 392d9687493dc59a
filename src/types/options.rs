//! What can be chosen per table besides its columns: how rows of equal key combine, windows, time to live.

use std::{collections::BTreeMap, fmt, str::FromStr, time::Duration};

use arrow::datatypes::DataType;

use crate::error::{Error, Result};

/// How rows of equal key combine.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Deserialize, serde::Serialize,
)]
#[serde(rename_all = "lowercase")]
pub enum WriteMode {
    /// Rows of a key become one, column by column, by each column's [`MergeOperator`].
    #[default]
    Upsert,
    /// Every row is kept; the key only sorts.
    Append,
}

/// How the values of one column combine, over the rows of a key from the oldest to the newest since its
/// last deletion. Nulls count only for [`MergeOperator::LastValue`]; where all values are null the result is
/// null.
///
/// Every operator is associative, so that it does not matter which rows were combined first; but for the
/// last bits of floating-point sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MergeOperator {
    /// The newest value, even if it is null. For every type.
    #[default]
    LastValue,
    /// The newest value that is not null. For every type.
    LastNonNull,
    /// The sum. For integers, where it wraps around, and floating-point numbers.
    Sum,
    /// The least value. For numbers, booleans, times, strings and bytes.
    Min,
    /// The greatest value. For the same types as `Min`.
    Max,
    /// The values one after the other, the oldest first. For `Utf8` and `Binary`, large or not.
    BytesAppend,
}

impl MergeOperator {
    /// All of them.
    pub const ALL: [MergeOperator; 6] = [
        Self::LastValue,
        Self::LastNonNull,
        Self::Sum,
        Self::Min,
        Self::Max,
        Self::BytesAppend,
    ];

    /// Its name, as in `"last_value"`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::LastValue => "last_value",
            Self::LastNonNull => "last_non_null",
            Self::Sum => "sum",
            Self::Min => "min",
            Self::Max => "max",
            Self::BytesAppend => "bytes_append",
        }
    }

    /// Whether it can combine values of `data_type`.
    pub fn supports(self, data_type: &DataType) -> bool {
        use DataType::{
            Binary, Boolean, Date32, Date64, Duration, FixedSizeBinary, Float32, Float64,
            LargeBinary, LargeUtf8, Time32, Time64, Timestamp, Utf8,
        };
        match self {
            Self::LastValue | Self::LastNonNull => true,
            Self::Sum => data_type.is_integer() || matches!(data_type, Float32 | Float64),
            Self::Min | Self::Max => {
                data_type.is_integer()
                    || data_type.is_floating()
                    || data_type.is_decimal()
                    || matches!(
                        data_type,
                        Boolean
                            | Date32
                            | Date64
                            | Time32(_)
                            | Time64(_)
                            | Timestamp(..)
                            | Duration(_)
                            | Utf8
                            | LargeUtf8
                            | Binary
                            | LargeBinary
                            | FixedSizeBinary(_)
                    )
            }
            Self::BytesAppend => matches!(data_type, Utf8 | LargeUtf8 | Binary | LargeBinary),
        }
    }
}

impl fmt::Display for MergeOperator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for MergeOperator {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let named = Self::ALL
            .into_iter()
            .find(|operator| operator.as_str() == text);
        named.ok_or_else(|| Error::invalid(format!("{text:?} is not a merge operator")))
    }
}

/// How a table is cut into time windows, which no SST crosses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Windowing {
    /// Not at all: one window holds everything.
    #[default]
    None,
    /// Windows of this width; needs a time column.
    Fixed(Duration),
    /// Windows of a width that is chosen by the first flush, from how many bytes it has over how much time;
    /// then it is fixed. Needs a time column.
    Auto,
}

impl Windowing {
    /// The width, once there is one.
    pub fn width(self) -> Option<Duration> {
        match self {
            Self::Fixed(width) => Some(width),
            Self::None | Self::Auto => None,
        }
    }
}

impl From<Duration> for Windowing {
    fn from(width: Duration) -> Self {
        Self::Fixed(width)
    }
}

/// Who chooses what a table merges, and so which shape its SSTs come to rest in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PlannerKind {
    /// Each window a pile of flushed runs over one sorted run: for data that comes in order of time.
    TimeWindow,
    /// Levels, each a sorted run and many times as large as the one above: few runs to read, little space
    /// for old versions; each row is rewritten often.
    Leveled,
    /// Sorted runs of doubling size: each row is rewritten seldom; more runs to read, more old versions.
    Tiered,
}

/// What can be chosen per table, besides its columns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableOptions {
    /// How rows of equal key combine. Default: upsert.
    pub write_mode: WriteMode,
    /// Time windows. Default: none.
    pub window: Windowing,
    /// How long a row lives after its time; needs a time column. Expired rows are not read, and their space is
    /// freed without their being read. Default: for ever.
    pub ttl: Option<Duration>,
    /// Merge operators by the name of a value column; other columns have [`MergeOperator::LastValue`].
    /// Only for [`WriteMode::Upsert`].
    pub operators: BTreeMap<String, MergeOperator>,
    /// Who chooses what to merge. Default: see [`TableSchema::planner`](super::TableSchema::planner).
    pub planner: Option<PlannerKind>,
}

impl fmt::Display for PlannerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TimeWindow => "time_window",
            Self::Leveled => "leveled",
            Self::Tiered => "tiered",
        })
    }
}

impl fmt::Display for WriteMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Upsert => "upsert",
            Self::Append => "append",
        })
    }
}
