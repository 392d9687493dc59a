//! Whether Parquet can hold a table's columns: found out by writing one value of each.

use std::sync::Arc;

use arrow::{
    array::{RecordBatch, new_null_array},
    datatypes::Schema,
};
use parquet::{arrow::ArrowWriter, errors::ParquetError};

use super::chunks::guarded;
use crate::{
    error::{Error, Result},
    types::TableSchema,
};

/// Checks that SSTs can hold every column of `schema`.
///
/// # Errors
/// `Invalid`, naming the first column that they cannot hold, and its type.
pub fn check_storable(schema: &TableSchema) -> Result<()> {
    for field in schema.columns().fields() {
        let nullable = field.as_ref().clone().with_nullable(true);
        let written = guarded(|| -> Result<(), ParquetError> {
            let column = new_null_array(field.data_type(), 1);
            let columns = Arc::new(Schema::new(vec![nullable]));
            let batch = RecordBatch::try_new(columns.clone(), vec![column])?;
            let mut writer = ArrowWriter::try_new(Vec::new(), columns, None)?;
            writer.write(&batch)?;
            writer.close().map(drop)
        });
        if let Err(error) = written {
            let (name, data_type) = (field.name(), field.data_type());
            let message =
                format!("column {name:?} has type {data_type}, which parquet cannot hold");
            return Err(Error::invalid(message).with_source(error));
        }
    }
    Ok(())
}
