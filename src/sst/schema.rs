//! From the columns of a file to those a reader asks for.
//!
//! A file keeps the schema it was written with. When the table's has changed since, its batches are
//! brought up to date here: columns added later are null, dropped ones are not read, widened types and
//! types that Parquet gave back a little differently are cast.

use std::sync::Arc;

use arrow::{
    array::{Array, ArrayRef, RecordBatch, RecordBatchOptions, new_null_array},
    compute::{CastOptions, cast_with_options},
    datatypes::{FieldRef, Fields, Schema, SchemaRef},
};
use parquet::{arrow::ProjectionMask, schema::types::SchemaDescriptor};

use crate::{
    error::{Error, Result},
    types::{OP_COLUMN, SEQ_COLUMN, TableSchema},
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

/// What to decode of a file, and how to make the wanted columns of it.
pub(super) struct ColumnPlan {
    /// The wanted columns.
    pub(super) schema: SchemaRef,
    /// What to decode.
    pub(super) mask: ProjectionMask,
    /// Positions of the leaf columns to decode.
    pub(super) leaves: Vec<usize>,
    /// For each wanted column its position among the decoded ones, if the file has it.
    origins: Vec<Option<usize>>,
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
        let mut roots = Vec::new();
        for field in wanted.fields() {
            match file.find(field.name()) {
                Some((root, _)) => roots.push(root),
                None if field.is_nullable() => {}
                None => {
                    let name = field.name();
                    return Err(Error::corrupt(format!("it has no column {name:?}")));
                }
            }
        }
        roots.sort_unstable();
        let origin = |field: &FieldRef| {
            let (root, _) = file.find(field.name())?;
            roots.binary_search(&root).ok()
        };
        let origins = wanted.fields().iter().map(origin).collect();
        let mask = ProjectionMask::roots(parquet, roots.iter().copied());
        let leaves = 0..parquet.num_columns();
        Ok(Self {
            schema: wanted,
            leaves: leaves.filter(|&leaf| mask.leaf_included(leaf)).collect(),
            mask,
            origins,
        })
    }

    /// The wanted columns of a decoded batch.
    ///
    /// # Errors
    /// `Corrupt` when a column is of a type that does not cast to the wanted one, or has nulls where there
    /// must be none.
    pub(super) fn adapt(&self, decoded: &RecordBatch) -> Result<RecordBatch> {
        let rows = decoded.num_rows();
        let columns = self.schema.fields().iter().zip(&self.origins);
        let columns = columns.map(|(field, origin)| match origin {
            Some(at) => adapt_column(field, decoded.column(*at)),
            None => Ok(new_null_array(field.data_type(), rows)),
        });
        let columns = columns.collect::<Result<Vec<ArrayRef>>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)
            .map_err(|error| Error::corrupt("its columns do not fit the table").with_source(error))
    }
}

fn adapt_column(field: &FieldRef, column: &ArrayRef) -> Result<ArrayRef> {
    if column.data_type() == field.data_type() {
        return Ok(column.clone());
    }
    let strict = CastOptions {
        safe: false,
        ..CastOptions::default()
    };
    cast_with_options(column, field.data_type(), &strict).map_err(|error| {
        let (name, want, have) = (field.name(), field.data_type(), column.data_type());
        Error::corrupt(format!(
            "column {name:?} is {have} in it, {want} in the table"
        ))
        .with_source(error)
    })
}
