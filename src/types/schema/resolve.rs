//! What the names and ids of a schema stand for: columns of the key, the time column, merge operators; and the columns
//! that are stored. Each check names the column that fails it.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef, TimeUnit};

use super::{
    super::{MergeOperator, TableOptions, WriteMode, columns},
    OP_COLUMN, OP_ID, SEQ_COLUMN, SEQ_ID,
};
use crate::error::{Error, Result};

pub(super) fn check_names(columns: &Schema) -> Result<()> {
    for (at, field) in columns.fields().iter().enumerate() {
        let name = field.name();
        if name == SEQ_COLUMN || name == OP_COLUMN {
            return Err(Error::invalid(format!("column name {name:?} is reserved")));
        }
        if columns.fields()[..at]
            .iter()
            .any(|other| other.name() == name)
        {
            return Err(Error::invalid(format!(
                "column name {name:?} is used twice"
            )));
        }
    }
    Ok(())
}

pub(super) fn check_ids(columns: &Schema, ids: &[u32], next_id: u32) -> Result<()> {
    let columns = columns.fields().len();
    let is_fresh = |at: usize| ids[at] < next_id && !ids[..at].contains(&ids[at]);
    if ids.len() != columns || !(0..columns).all(is_fresh) {
        return Err(Error::invalid(format!(
            "column ids {ids:?} are not {columns} different ones below {next_id}"
        )));
    }
    Ok(())
}

/// The operator of each column.
pub(super) fn find_operators(
    columns: &Schema,
    key: &[usize],
    options: &TableOptions,
) -> Result<Vec<MergeOperator>> {
    let mut operators = vec![MergeOperator::LastValue; columns.fields().len()];
    for (name, &operator) in &options.operators {
        let at = columns.index_of(name).ok().filter(|at| !key.contains(at));
        let Some(at) = at else {
            return Err(Error::invalid(format!(
                "merge operator {operator} is for {name:?}, which is not a value column"
            )));
        };
        let data_type = columns.field(at).data_type();
        if !operator.supports(data_type) {
            return Err(Error::invalid(format!(
                "merge operator {operator} does not go with column {name:?} of type {data_type}"
            )));
        }
        if options.write_mode == WriteMode::Append {
            return Err(Error::invalid(format!(
                "merge operator {operator} of column {name:?}: an append table combines no rows"
            )));
        }
        operators[at] = operator;
    }
    Ok(operators)
}

pub(super) fn find_key(columns: &Schema, names: &[String]) -> Result<Vec<usize>> {
    if names.is_empty() {
        return Err(Error::invalid("the primary key has no columns"));
    }
    let mut key = Vec::with_capacity(names.len());
    for name in names {
        let at = columns
            .index_of(name)
            .map_err(|_| Error::invalid(format!("key column {name:?} is not in the schema")))?;
        if key.contains(&at) {
            return Err(Error::invalid(format!(
                "key column {name:?} is named twice"
            )));
        }
        key.push(at);
    }
    Ok(key)
}

pub(super) fn find_time(columns: &Schema, key: &[usize], name: &str) -> Result<(usize, TimeUnit)> {
    let at = columns
        .index_of(name)
        .map_err(|_| Error::invalid(format!("time column {name:?} is not in the schema")))?;
    let field = columns.field(at);
    if !key.contains(&at) {
        return Err(Error::invalid(format!(
            "time column {name:?} is not part of the key"
        )));
    }
    let DataType::Timestamp(unit, _) = field.data_type() else {
        let data_type = field.data_type();
        return Err(Error::invalid(format!(
            "time column {name:?} has type {data_type}, not a timestamp"
        )));
    };
    if field.is_nullable() {
        return Err(Error::invalid(format!("time column {name:?} is nullable")));
    }
    Ok((at, *unit))
}

pub(super) fn stored_schema(columns: &Schema, ids: &[u32], key: &[usize]) -> SchemaRef {
    let mut fields: Vec<FieldRef> = Vec::with_capacity(columns.fields().len() + 2);
    for (at, (field, &id)) in columns.fields().iter().zip(ids).enumerate() {
        let nullable = field.is_nullable() || !key.contains(&at);
        let field = columns::with_id(field, id).with_nullable(nullable);
        fields.push(Arc::new(field));
    }
    let own =
        |name, data_type, id| Arc::new(columns::with_id(&Field::new(name, data_type, false), id));
    fields.push(own(SEQ_COLUMN, DataType::UInt64, SEQ_ID));
    fields.push(own(OP_COLUMN, DataType::UInt8, OP_ID));
    Arc::new(Schema::new(fields))
}
