//! Batches and the columns of a table: whether a batch has them, and how one with the columns of another
//! schema version is brought up to date.
//!
//! Whatever is stored carries the id of each column in the metadata of its Arrow field, under the key that
//! Parquet's field ids have; so a stored batch can be read without the schema that it was written with.

use arrow::{
    array::{Array, ArrayRef, RecordBatch, RecordBatchOptions, new_null_array},
    compute::{CastOptions, cast_with_options},
    datatypes::{Field, FieldRef, Schema, SchemaRef},
};

use crate::error::{Error, Result};

/// Metadata of a stored field: the id of its column.
const COLUMN_ID: &str = "PARQUET:field_id";

/// `field` with the column's id in its metadata.
pub(super) fn with_id(field: &Field, id: u32) -> Field {
    let mut metadata = field.metadata().clone();
    metadata.insert(COLUMN_ID.to_owned(), id.to_string());
    field.clone().with_metadata(metadata)
}

/// The id of a stored column.
pub fn column_id(field: &Field) -> Option<u32> {
    field.metadata().get(COLUMN_ID)?.parse().ok()
}

/// How the wanted columns are made of a batch with others: columns added since are null, dropped ones are
/// left out, renamed ones are found by id, widened ones are cast.
#[derive(Clone, Debug)]
pub struct ColumnMap {
    wanted: SchemaRef,
    /// For each wanted column its position among those that are there.
    origins: Vec<Option<usize>>,
}

impl ColumnMap {
    /// From the stored columns `there` to the stored columns `wanted`.
    ///
    /// # Errors
    /// `Corrupt`, naming the column, when one that cannot be null is not there.
    pub fn new(wanted: SchemaRef, there: &[FieldRef]) -> Result<Self> {
        let origin = |field: &FieldRef| {
            let id = column_id(field);
            let same = |other: &FieldRef| column_id(other) == id && id.is_some();
            let origin = there.iter().position(same);
            if origin.is_none() && !field.is_nullable() {
                let name = field.name();
                return Err(Error::corrupt(format!("it has no column {name:?}")));
            }
            Ok(origin)
        };
        let origins = wanted.fields().iter().map(origin).collect::<Result<_>>()?;
        Ok(Self { wanted, origins })
    }

    /// The columns that it makes.
    pub fn wanted(&self) -> &SchemaRef {
        &self.wanted
    }

    /// Positions of the columns that it needs of those that are there, ascending.
    pub fn needed(&self) -> Vec<usize> {
        let mut needed: Vec<usize> = self.origins.iter().flatten().copied().collect();
        needed.sort_unstable();
        needed
    }

    /// The same for batches that have only the columns [`Self::needed`], in that order.
    #[must_use]
    pub fn narrowed(mut self) -> Self {
        let needed = self.needed();
        for origin in self.origins.iter_mut().flatten() {
            *origin = needed.partition_point(|at| at < origin);
        }
        self
    }

    /// Whether a batch stays as it is.
    fn is_identity(&self, batch: &RecordBatch) -> bool {
        batch.schema_ref().fields() == self.wanted.fields()
    }

    /// The wanted columns of `batch`.
    ///
    /// # Errors
    /// `Corrupt`, naming the column, when it is of a type that does not cast to the wanted one, or has nulls
    /// where there must be none.
    pub fn apply(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        if self.is_identity(batch) {
            return Ok(batch.clone());
        }
        let rows = batch.num_rows();
        let columns = self.wanted.fields().iter().zip(&self.origins);
        let columns = columns.map(|(field, origin)| match origin {
            Some(at) => as_wanted(field, batch.column(*at)),
            None => Ok(new_null_array(field.data_type(), rows)),
        });
        let columns = columns.collect::<Result<Vec<ArrayRef>>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(self.wanted.clone(), columns, &options)
            .map_err(|error| Error::corrupt("its columns do not fit the table").with_source(error))
    }
}

fn as_wanted(field: &FieldRef, column: &ArrayRef) -> Result<ArrayRef> {
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

/// `batch` under `columns`, which differ from its own in names and metadata only.
pub(super) fn relabel(batch: &RecordBatch, columns: &SchemaRef) -> Result<RecordBatch> {
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    let arrays = batch.columns().to_vec();
    Ok(RecordBatch::try_new_with_options(
        columns.clone(),
        arrays,
        &options,
    )?)
}

/// Whether `batch` has exactly the columns `wanted`.
///
/// # Errors
/// `Invalid`, naming the column and both types, or the column and the row of a null where there must be none.
pub(super) fn check(wanted: &Schema, batch: &RecordBatch) -> Result<()> {
    let given = batch.schema();
    for (at, want) in wanted.fields().iter().enumerate() {
        let name = want.name();
        let Some(give) = given.fields().get(at) else {
            let data_type = want.data_type();
            return Err(Error::invalid(format!(
                "column {name:?} ({data_type}) is missing from the batch"
            )));
        };
        if give.name() != name {
            let other = give.name();
            return Err(Error::invalid(format!(
                "column {at} is {name:?} in the table, {other:?} in the batch"
            )));
        }
        if give.data_type() != want.data_type() {
            let (want, give) = (want.data_type(), give.data_type());
            return Err(Error::invalid(format!(
                "column {name:?} is {want} in the table, {give} in the batch"
            )));
        }
        let column = batch.column(at);
        if !want.is_nullable() && column.logical_null_count() > 0 {
            let nulls = column.logical_nulls().expect("the null count is not zero");
            let row = (0..column.len())
                .find(|&row| nulls.is_null(row))
                .unwrap_or(0);
            return Err(Error::invalid(format!(
                "column {name:?} is not nullable, but row {row} is null"
            )));
        }
    }
    if let Some(extra) = given.fields().get(wanted.fields().len()) {
        let (name, data_type) = (extra.name(), extra.data_type());
        return Err(Error::invalid(format!(
            "column {name:?} ({data_type}) of the batch is not in the table"
        )));
    }
    Ok(())
}
