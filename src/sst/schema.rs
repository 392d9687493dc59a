//! From the columns of a file to those a reader asks for.
//!
//! A file keeps the schema it was written with. When the table's has changed since, its batches are brought
//! up to date: columns are found by their ids, which are Parquet's field ids; what Parquet gave back a little
//! differently is cast.

use std::sync::Arc;

use arrow::{
    array::RecordBatch,
    datatypes::{FieldRef, Fields, Schema, SchemaRef},
};
use parquet::{arrow::ProjectionMask, schema::types::SchemaDescriptor};

use crate::{
    error::{Error, Result},
    types::{ColumnMap, OP_COLUMN, SEQ_COLUMN, TableSchema},
};

/// The columns that a source with `projection` yields: of the stored columns, in their order, those
/// named, and always the key, `__seq` and `__op`, which a merge needs. `None` names all.
///
/// # Errors
/// `Invalid`, naming the column, when the table has none of that name.
pub fn projected(schema: &TableSchema, projection: Option<&[String]>) -> Result<SchemaRef> {
    let stored = schema.stored();
    let Some(names) = projection else {
        return Ok(stored.clone());
    };
    if let Some(unknown) = names.iter().find(|name| stored.index_of(name).is_err()) {
        return Err(Error::invalid(format!("there is no column {unknown:?}")));
    }
    let key = schema.key_names();
    let wanted = |field: &&FieldRef| {
        let name = field.name().as_str();
        names.iter().any(|other| other == name)
            || key.contains(&name)
            || [SEQ_COLUMN, OP_COLUMN].contains(&name)
    };
    let fields = stored.fields().iter().filter(wanted).cloned();
    Ok(Arc::new(Schema::new(fields.collect::<Vec<_>>())))
}

/// The columns that a source yields: those [`projected`], or with `exact` only those named, in the table's order.
///
/// # Errors
/// As for [`projected`].
pub(super) fn requested(
    schema: &TableSchema,
    projection: Option<&[String]>,
    exact: bool,
) -> Result<SchemaRef> {
    let wanted = projected(schema, projection)?;
    match projection {
        Some(names) if exact => Ok(with_columns(schema, |name| {
            names.iter().any(|other| other == name)
        })),
        _ => Ok(wanted),
    }
}

/// The stored columns whose names are `wanted`.
pub(super) fn with_columns(schema: &TableSchema, wanted: impl Fn(&str) -> bool) -> SchemaRef {
    let stored = schema.stored().fields().iter();
    let fields = stored.filter(|field| wanted(field.name())).cloned();
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

/// What to decode of a file, and how to make the wanted columns of it.
pub(super) struct ColumnPlan {
    /// From the decoded columns to the wanted ones.
    map: ColumnMap,
    /// What to decode.
    pub(super) mask: ProjectionMask,
    /// Positions of the leaf columns to decode.
    pub(super) leaves: Vec<usize>,
}

impl ColumnPlan {
    /// Plans to read the columns `wanted` from a file with the columns `file`.
    ///
    /// # Errors
    /// `Corrupt` when the file lacks a column that cannot be null.
    pub(super) fn new(
        wanted: SchemaRef,
        file: &Fields,
        parquet: &SchemaDescriptor,
    ) -> Result<Self> {
        let map = ColumnMap::new(wanted, file)?;
        let mask = ProjectionMask::roots(parquet, map.needed());
        let leaves = 0..parquet.num_columns();
        Ok(Self {
            leaves: leaves.filter(|&leaf| mask.leaf_included(leaf)).collect(),
            mask,
            map: map.narrowed(),
        })
    }

    /// The wanted columns of a decoded batch. Errors as for [`ColumnMap::apply`].
    pub(super) fn adapt(&self, decoded: &RecordBatch) -> Result<RecordBatch> {
        self.map.apply(decoded)
    }
}
