//! A predicate made ready for one table: columns found, literals of the columns' types, in negation normal form.
//!
//! `Not` is pushed down to the leaves, where it turns a comparison into the opposite one; with nulls both are
//! unknown, so that the three values of SQL's logic need no third one here: what is unknown counts as false at the
//! leaf, and `And` and `Or` of such leaves are true just where SQL's are.
//!
//! The same leaves look at single rows ([`Filter::evaluate`]), at the least and greatest value of many
//! ([`Leaf::may_match`], for row groups and pages), and at the key ([`Filter::key_hints`]).

mod key_hints;
mod leaf;
mod pruning;
#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, fmt, sync::Arc};

use arrow::{
    array::{Array, BooleanArray, RecordBatch},
    compute::{and, or},
    datatypes::DataType,
};

pub use key_hints::KeyHints;
pub use leaf::Leaf;
pub use pruning::ColumnBounds;

use super::{Comparison, Operand, Predicate, TableSchema};
use crate::error::{Error, Result};

/// A condition on rows of one table. Cheap to clone.
#[derive(Clone, PartialEq)]
pub struct Filter {
    root: Arc<Node>,
    columns: Arc<[String]>,
}

/// A part of a filter.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    /// All of them hold; true for none.
    And(Vec<Node>),
    /// One of them holds; false for none.
    Or(Vec<Node>),
    /// One comparison.
    Leaf(Leaf),
}

impl fmt::Debug for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.root.fmt(f)
    }
}

impl Filter {
    /// `predicate` for the table of `schema`.
    ///
    /// # Errors
    /// `Invalid`, naming the column: there is none of that name; its type has no order, or is not that of what it is
    /// compared with; a literal does not fit it.
    pub fn new(predicate: &Predicate, schema: &TableSchema) -> Result<Self> {
        Ok(Self::of(bind(predicate, schema, false)?))
    }

    fn of(root: Node) -> Self {
        let mut columns = BTreeSet::new();
        root.add_columns(&mut columns);
        Self {
            root: Arc::new(root),
            columns: columns.into_iter().collect(),
        }
    }

    /// Names of the columns that it looks at, each once.
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// Its outermost part.
    pub fn root(&self) -> &Node {
        &self.root
    }

    /// In which rows of `batch` it holds; no nulls. Columns are found by their names.
    ///
    /// # Errors
    /// `Internal`, naming the column, when `batch` lacks one of its columns.
    pub fn evaluate(&self, batch: &RecordBatch) -> Result<BooleanArray> {
        self.root.evaluate(batch)
    }

    /// Takes it apart into conditions that must hold together: one on the columns `is_first` alone, and the rest.
    pub fn split(&self, is_first: impl Fn(&str) -> bool) -> (Option<Filter>, Option<Filter>) {
        let parts = match self.root.as_ref() {
            Node::And(parts) => parts.clone(),
            other => vec![other.clone()],
        };
        let (first, rest): (Vec<Node>, Vec<Node>) = parts.into_iter().partition(|part| {
            let mut columns = BTreeSet::new();
            part.add_columns(&mut columns);
            columns.iter().all(|column| is_first(column))
        });
        let together = |parts: Vec<Node>| (!parts.is_empty()).then(|| Self::of(Node::And(parts)));
        (together(first), together(rest))
    }

    /// What it says about the key: where to look for rows in which it holds.
    ///
    /// # Errors
    /// `Internal` when a literal does not encode.
    pub fn key_hints(&self, schema: &TableSchema) -> Result<KeyHints> {
        key_hints::of(self.conjuncts(), schema)
    }

    /// Leaves that must all hold; there may be more to it.
    fn conjuncts(&self) -> impl Iterator<Item = &Leaf> {
        let parts = match self.root.as_ref() {
            Node::And(parts) => parts.as_slice(),
            other => std::slice::from_ref(other),
        };
        parts.iter().filter_map(|part| match part {
            Node::Leaf(leaf) => Some(leaf),
            _ => None,
        })
    }
}

impl Node {
    fn constant(value: bool) -> Self {
        match value {
            true => Self::And(Vec::new()),
            false => Self::Or(Vec::new()),
        }
    }

    fn add_columns(&self, columns: &mut BTreeSet<String>) {
        match self {
            Self::And(parts) | Self::Or(parts) => {
                parts.iter().for_each(|part| part.add_columns(columns));
            }
            Self::Leaf(leaf) => columns.extend(leaf.columns().map(str::to_owned)),
        }
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<BooleanArray> {
        let rows = batch.num_rows();
        let (parts, start, combine) = match self {
            Self::Leaf(leaf) => return leaf.evaluate(batch),
            Self::And(parts) => (parts, true, and as fn(&_, &_) -> _),
            Self::Or(parts) => (parts, false, or as fn(&_, &_) -> _),
        };
        let mut holds = BooleanArray::from(vec![start; rows]);
        for part in parts {
            let decided = match start {
                true => holds.true_count() == 0,
                false => holds.true_count() == rows,
            };
            if decided {
                break;
            }
            holds = combine(&holds, &part.evaluate(batch)?)?;
        }
        Ok(holds)
    }
}

/// `predicate`, or with `negated` its opposite.
fn bind(predicate: &Predicate, schema: &TableSchema, negated: bool) -> Result<Node> {
    let all = |parts: &[Predicate]| -> Result<Vec<Node>> {
        let parts = parts.iter().map(|part| bind(part, schema, negated));
        parts.collect()
    };
    match predicate {
        Predicate::Not(inner) => bind(inner, schema, !negated),
        Predicate::And(parts) if !negated => Ok(flat_and(all(parts)?)),
        Predicate::Or(parts) if negated => Ok(flat_and(all(parts)?)),
        Predicate::And(parts) | Predicate::Or(parts) => Ok(Node::Or(all(parts)?)),
        Predicate::IsNull(name) => {
            find(schema, name)?;
            Ok(Node::Leaf(Leaf::null(name, negated)))
        }
        Predicate::In { column, values } => {
            let data_type = comparable(schema, column)?;
            Leaf::is_in(column, &data_type, values, negated)
        }
        Predicate::Compare {
            left,
            comparison,
            right,
        } => {
            let comparison = match negated {
                true => comparison.negated(),
                false => *comparison,
            };
            bind_comparison(left, comparison, right, schema)
        }
    }
}

/// `And`s in an `And` are its own parts.
fn flat_and(parts: Vec<Node>) -> Node {
    let parts = parts.into_iter().flat_map(|part| match part {
        Node::And(inner) => inner,
        other => vec![other],
    });
    Node::And(parts.collect())
}

fn bind_comparison(
    left: &Operand,
    comparison: Comparison,
    right: &Operand,
    schema: &TableSchema,
) -> Result<Node> {
    match (left, right) {
        (Operand::Column(left), Operand::Column(right)) => {
            let (left_type, right_type) = (comparable(schema, left)?, comparable(schema, right)?);
            if left_type != right_type {
                return Err(Error::invalid(format!(
                    "column {left:?} is {left_type}, and is compared with column {right:?}, which is {right_type}"
                )));
            }
            Ok(Node::Leaf(Leaf::columns_compare(left, comparison, right)))
        }
        (Operand::Column(column), Operand::Literal(literal)) => {
            Leaf::compare(column, &comparable(schema, column)?, comparison, literal)
        }
        (Operand::Literal(literal), Operand::Column(column)) => {
            let mirrored = comparison.mirrored();
            Leaf::compare(column, &comparable(schema, column)?, mirrored, literal)
        }
        (Operand::Literal(left), Operand::Literal(right)) => {
            leaf::constants(left, comparison, right)
        }
    }
}

fn find<'a>(schema: &'a TableSchema, name: &str) -> Result<&'a DataType> {
    let field = schema.columns().field_with_name(name);
    let field =
        field.map_err(|_| Error::invalid(format!("column {name:?} is not in the table")))?;
    Ok(field.data_type())
}

/// The type of the values of a column that can be compared; that of a dictionary's values.
fn comparable(schema: &TableSchema, name: &str) -> Result<DataType> {
    let data_type = match find(schema, name)? {
        DataType::Dictionary(_, values) => values.as_ref(),
        data_type => data_type,
    };
    let compares = data_type.is_numeric()
        || matches!(
            data_type,
            DataType::Boolean
                | DataType::Utf8
                | DataType::LargeUtf8
                | DataType::Utf8View
                | DataType::Binary
                | DataType::LargeBinary
                | DataType::BinaryView
                | DataType::FixedSizeBinary(_)
                | DataType::Timestamp(..)
                | DataType::Date32
                | DataType::Date64
                | DataType::Time32(_)
                | DataType::Time64(_)
                | DataType::Duration(_)
        );
    if !compares {
        return Err(Error::invalid(format!(
            "column {name:?} is {data_type}, which does not compare"
        )));
    }
    Ok(data_type.clone())
}

/// Where `holds` is null, it is unknown: not true.
fn known(holds: BooleanArray) -> BooleanArray {
    match holds.nulls() {
        Some(nulls) if nulls.null_count() > 0 => {
            BooleanArray::new(holds.values() & nulls.inner(), None)
        }
        _ => BooleanArray::new(holds.values().clone(), None),
    }
}
