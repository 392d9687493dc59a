//! Whether parts of a file can hold rows for a leaf, by the least and greatest value in each.

use arrow::{
    array::{Array, ArrayRef, BooleanArray, Scalar},
    compute::{is_null, or},
    datatypes::DataType,
};

use super::leaf::{Kind, Leaf, canonical, compare};
use crate::{error::Result, types::Comparison};

/// More values are taken as the range they span.
const VALUES_MAX: usize = 32;

/// What is known of one column in some parts of a file, such as row groups or pages: one entry a part. Values are of
/// the type that the column has in the table, those of a dictionary's values; a null is unknown.
#[derive(Clone, Debug)]
pub struct ColumnBounds {
    /// Not above any value.
    pub min: ArrayRef,
    /// Not below any value. NaNs do not count.
    pub max: ArrayRef,
    /// How many values are null.
    pub nulls: Option<Vec<u64>>,
    /// How many rows there are.
    pub rows: Vec<u64>,
    /// Whether there can be NaNs: Parquet's statistics leave them out, though NaN is above all numbers.
    pub may_have_nan: bool,
}

impl ColumnBounds {
    /// Of a column that has no value in any of the parts.
    pub fn all_null(data_type: &DataType, rows: Vec<u64>) -> Self {
        let unknown = super::leaf::unknown(data_type, rows.len());
        Self {
            min: unknown.clone(),
            max: unknown,
            nulls: Some(rows.clone()),
            rows,
            may_have_nan: false,
        }
    }
}

impl Leaf {
    /// Which parts can hold a row in which the leaf holds, by what is known of its column.
    ///
    /// # Errors
    /// `Internal` when `bounds` are of another type.
    pub fn may_match(&self, bounds: &ColumnBounds) -> Result<Vec<bool>> {
        let mut may = match &self.0 {
            Kind::Columns { .. } => vec![true; bounds.rows.len()],
            Kind::Null { negated, .. } => return Ok(may_be_null(bounds, *negated)),
            Kind::Compare {
                comparison,
                literal,
                ..
            } => bools(&bounds.may_compare(*comparison, literal)?),
            Kind::In { negated: true, .. } => vec![true; bounds.rows.len()],
            Kind::In { values, .. } => bools(&bounds.may_be_among(values)?),
        };
        // A null compares with nothing.
        if let Some(nulls) = &bounds.nulls {
            for (part, may) in may.iter_mut().enumerate() {
                *may &= nulls[part] < bounds.rows[part];
            }
        }
        Ok(may)
    }
}

impl ColumnBounds {
    fn may_compare(&self, comparison: Comparison, literal: &ArrayRef) -> Result<BooleanArray> {
        let literal = Scalar::new(literal.clone());
        let (min, max) = (canonical(&self.min), canonical(&self.max));
        let unknown = |bound: &ArrayRef| is_null(bound);
        let by_min = |comparison| -> Result<BooleanArray> {
            Ok(or(&compare(&min, comparison, &literal)?, &unknown(&min)?)?)
        };
        let by_max = |comparison| -> Result<BooleanArray> {
            if self.may_have_nan {
                return Ok(BooleanArray::from(vec![true; self.rows.len()]));
            }
            Ok(or(&compare(&max, comparison, &literal)?, &unknown(&max)?)?)
        };
        match comparison {
            Comparison::Lt | Comparison::LtEq => by_min(comparison),
            Comparison::Gt | Comparison::GtEq => by_max(comparison),
            Comparison::Eq => {
                let (above, below) = (by_min(Comparison::LtEq)?, by_max(Comparison::GtEq)?);
                Ok(arrow::compute::and(&above, &below)?)
            }
            // Only where all values are the literal, and that is known, is there no other.
            Comparison::NotEq => {
                let (less, greater) = (by_min(Comparison::NotEq)?, by_max(Comparison::NotEq)?);
                Ok(or(&less, &greater)?)
            }
        }
    }

    fn may_be_among(&self, values: &ArrayRef) -> Result<BooleanArray> {
        if values.len() > VALUES_MAX {
            let order = arrow::compute::sort(values, None)?;
            let (least, greatest) = (order.slice(0, 1), order.slice(order.len() - 1, 1));
            let above = self.may_compare(Comparison::GtEq, &least)?;
            let below = self.may_compare(Comparison::LtEq, &greatest)?;
            return Ok(arrow::compute::and(&above, &below)?);
        }
        let mut may = BooleanArray::from(vec![false; self.rows.len()]);
        for at in 0..values.len() {
            let value = values.slice(at, 1);
            may = or(&may, &self.may_compare(Comparison::Eq, &value)?)?;
        }
        Ok(may)
    }
}

fn may_be_null(bounds: &ColumnBounds, negated: bool) -> Vec<bool> {
    let Some(nulls) = &bounds.nulls else {
        return vec![true; bounds.rows.len()];
    };
    let parts = nulls.iter().zip(&bounds.rows);
    let may = parts.map(|(nulls, rows)| match negated {
        true => nulls < rows,
        false => *nulls > 0,
    });
    may.collect()
}

fn bools(may: &BooleanArray) -> Vec<bool> {
    may.values().iter().collect()
}
