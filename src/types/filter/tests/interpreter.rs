//! SQL's logic of three values, row by row, as plainly as can be.

use std::cmp::Ordering;

use super::*;

/// A value in the interpreter.
#[derive(Clone, Debug, PartialEq)]
enum Value {
    Text(String),
    Number(i64),
    Float(f64),
    Flag(bool),
}

fn value(row: &Row, name: &str) -> Option<Value> {
    match name {
        "text" => row.0.clone().map(Value::Text),
        "number" => row.1.map(|number| Value::Number(number.into())),
        "time" => Some(Value::Number(row.2)),
        "float" => row.3.map(Value::Float),
        "flag" => row.4.map(Value::Flag),
        _ => row.5.clone().map(Value::Text),
    }
}

fn order(left: &Value, right: &Value) -> Ordering {
    match (left, right) {
        (Value::Text(left), Value::Text(right)) => left.cmp(right),
        (Value::Number(left), Value::Number(right)) => left.cmp(right),
        (Value::Flag(left), Value::Flag(right)) => left.cmp(right),
        (Value::Float(left), Value::Float(right)) => {
            // No order means that there is a NaN.
            let order = left.partial_cmp(right);
            order.unwrap_or_else(|| left.is_nan().cmp(&right.is_nan()))
        }
        other => panic!("{other:?}"),
    }
}

fn literal_value(name: &str, literal: &Literal) -> Option<Value> {
    if literal.is_null() {
        return None;
    }
    let text = arrow::util::display::array_value_to_string(literal.array(), 0).unwrap();
    Some(match name {
        "text" | "dictionary" => Value::Text(text),
        "number" | "time" => Value::Number(text.parse().unwrap()),
        "float" => Value::Float(text.parse().unwrap()),
        _ => Value::Flag(text.parse().unwrap()),
    })
}

/// Whether `predicate` is true or false of `row`, if either.
pub(super) fn interpret(predicate: &Predicate, row: &Row) -> Option<bool> {
    let side = |operand: &Operand, other: &Operand| match (operand, other) {
        (Operand::Column(name), _) => value(row, name),
        (Operand::Literal(literal), Operand::Column(name)) => literal_value(name, literal),
        (Operand::Literal(_), Operand::Literal(_)) => unreachable!("none is made"),
    };
    match predicate {
        Predicate::Compare {
            left,
            comparison,
            right,
        } => {
            let order = order(&side(left, right)?, &side(right, left)?);
            Some(match comparison {
                Comparison::Eq => order.is_eq(),
                Comparison::NotEq => order.is_ne(),
                Comparison::Lt => order.is_lt(),
                Comparison::LtEq => order.is_le(),
                Comparison::Gt => order.is_gt(),
                Comparison::GtEq => order.is_ge(),
            })
        }
        Predicate::In { column, values } => {
            let mine = value(row, column);
            let equal = values
                .iter()
                .map(|value| Some(order(mine.as_ref()?, &literal_value(column, value)?).is_eq()));
            any_of(equal)
        }
        Predicate::IsNull(name) => Some(value(row, name).is_none()),
        Predicate::Not(inner) => interpret(inner, row).map(|holds| !holds),
        Predicate::Or(parts) => any_of(parts.iter().map(|part| interpret(part, row))),
        Predicate::And(parts) => {
            let differs = parts
                .iter()
                .map(|part| interpret(part, row).map(|holds| !holds));
            any_of(differs).map(|fails| !fails)
        }
    }
}

fn any_of(parts: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    let parts: Vec<_> = parts.collect();
    if parts.contains(&Some(true)) {
        return Some(true);
    }
    (!parts.contains(&None)).then_some(false)
}
