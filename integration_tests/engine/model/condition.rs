//! Conditions that rows are filtered by: as the engine's predicates, and by the model's own reading of them.

use arrow::datatypes::{DataType, Field};
use proptest::prelude::*;
use siltstone::types::{Comparison, Literal, Operand, Predicate, TableSchema, column};

use super::steps::NOW_MS;

/// A condition, before it is known which columns there are: they are counted round the table's.
#[derive(Clone, Debug)]
pub enum Condition {
    Compare(usize, Comparison, i64),
    In(usize, Vec<i64>),
    IsNull(usize),
    Not(Box<Condition>),
    And(Vec<Condition>),
    Or(Vec<Condition>),
}

/// What a cell holds, in the model.
pub enum Cell<'a> {
    Number(i64),
    Text(&'a str),
}

pub fn condition() -> impl Strategy<Value = Condition> {
    let comparison = proptest::sample::select(vec![
        Comparison::Eq,
        Comparison::NotEq,
        Comparison::Lt,
        Comparison::LtEq,
        Comparison::Gt,
        Comparison::GtEq,
    ]);
    // The key's columns often: what is known of them is made use of most.
    let at = prop_oneof![2 => 0..2_usize, 3 => 0..9_usize];
    let number = -9..9_i64;
    let leaf = prop_oneof![
        6 => (at.clone(), comparison, number.clone()).prop_map(|(at, how, number)| Condition::Compare(at, how, number)),
        2 => (at.clone(), proptest::collection::vec(number, 0..4)).prop_map(|(at, numbers)| Condition::In(at, numbers)),
        1 => at.prop_map(Condition::IsNull),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        let parts = proptest::collection::vec(inner.clone(), 1..4);
        prop_oneof![
            3 => parts.clone().prop_map(Condition::And),
            1 => parts.prop_map(Condition::Or),
            1 => inner.prop_map(|inner| Condition::Not(Box::new(inner))),
        ]
    })
}

fn field(schema: &TableSchema, at: usize) -> &Field {
    let fields = schema.columns().fields();
    &fields[at % fields.len()]
}

/// A number as it is compared with a column: times go by quarters of a second around the clock's start.
fn value(field: &Field, number: i64) -> i64 {
    match field.data_type() {
        DataType::Timestamp(..) => NOW_MS as i64 + 250 * number,
        _ => number,
    }
}

fn text(number: i64) -> String {
    format!("{number},")
}

impl Condition {
    pub fn predicate(&self, schema: &TableSchema) -> Predicate {
        let literal = |at: usize, number: i64| match field(schema, at).data_type() {
            DataType::Utf8 => Literal::from(text(number)),
            _ => Literal::from(value(field(schema, at), number)),
        };
        let name = |at: usize| field(schema, at).name().clone();
        let all = |parts: &[Self]| parts.iter().map(|part| part.predicate(schema)).collect();
        match self {
            Self::Compare(at, comparison, number) => Predicate::Compare {
                left: Operand::Column(name(*at)),
                comparison: *comparison,
                right: Operand::Literal(literal(*at, *number)),
            },
            Self::In(at, numbers) => {
                column(name(*at)).is_in(numbers.iter().map(|number| literal(*at, *number)))
            }
            Self::IsNull(at) => column(name(*at)).is_null(),
            Self::Not(inner) => !inner.predicate(schema),
            Self::And(parts) => Predicate::And(all(parts)),
            Self::Or(parts) => Predicate::Or(all(parts)),
        }
    }

    /// Whether it is true or false of a row, if either. `cell` gives the row's cell at a position.
    pub fn holds<'a>(
        &self,
        schema: &TableSchema,
        cell: &impl Fn(usize) -> Option<Cell<'a>>,
    ) -> Option<bool> {
        let columns = schema.columns().fields().len();
        let order = |at: usize, number: i64| {
            Some(match cell(at % columns)? {
                Cell::Number(mine) => mine.cmp(&value(field(schema, at), number)),
                Cell::Text(mine) => mine.cmp(&text(number)),
            })
        };
        match self {
            Self::Compare(at, comparison, number) => {
                let order = order(*at, *number)?;
                Some(match comparison {
                    Comparison::Eq => order.is_eq(),
                    Comparison::NotEq => order.is_ne(),
                    Comparison::Lt => order.is_lt(),
                    Comparison::LtEq => order.is_le(),
                    Comparison::Gt => order.is_gt(),
                    Comparison::GtEq => order.is_ge(),
                })
            }
            Self::In(at, numbers) => {
                let mut unknown = false;
                for &number in numbers {
                    match order(*at, number) {
                        Some(order) if order.is_eq() => return Some(true),
                        Some(_) => {}
                        None => unknown = true,
                    }
                }
                (!unknown).then_some(false)
            }
            Self::IsNull(at) => Some(cell(at % columns).is_none()),
            Self::Not(inner) => inner.holds(schema, cell).map(|holds| !holds),
            Self::And(parts) => decide(parts.iter().map(|part| part.holds(schema, cell)), false),
            Self::Or(parts) => decide(parts.iter().map(|part| part.holds(schema, cell)), true),
        }
    }
}

/// `decisive` if one of `parts` is, unknown if one is unknown, else the opposite.
fn decide(parts: impl Iterator<Item = Option<bool>>, decisive: bool) -> Option<bool> {
    let parts: Vec<_> = parts.collect();
    if parts.contains(&Some(decisive)) {
        return Some(decisive);
    }
    (!parts.contains(&None)).then_some(!decisive)
}
