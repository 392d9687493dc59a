//! A scan's request, checked against the table's schema and made ready: which columns to read, and which part of
//! the predicate may be evaluated where.
//!
//! A condition on the key holds for all versions of a key or for none: it goes below the merge. A condition on
//! values must not: it could leave out the newest version of a key and let an older one through. It goes above the
//! merge, and below it only where there are no versions to choose from: in an append table, whose rows hide none,
//! and for an SST that has no two rows of a key and whose keys nothing else can have.

use std::sync::Arc;

use arrow::{
    array::{BooleanArray, RecordBatch, RecordBatchOptions},
    compute::filter_record_batch,
    datatypes::{FieldRef, Schema, SchemaRef},
};

use super::ScanRequest;
use crate::{
    error::{Error, Result},
    sst::{ReadRequest, projected},
    types::{Filter, Key, KeyRange, OP_COLUMN, TableSchema, TimeRange, WriteMode},
};

/// A checked request.
#[derive(Debug)]
pub(super) struct ScanPlan {
    pub(super) keys: KeyRange,
    /// Only these keys, ascending.
    pub(super) points: Option<Arc<[Key]>>,
    pub(super) times: Option<TimeRange>,
    /// The whole condition, and its parts: on the key alone, and the rest.
    filter: Option<Filter>,
    key_filter: Option<Filter>,
    pub(super) value_filter: Option<Filter>,
    /// Names of the columns that a merge must see.
    merged: Option<Vec<String>>,
    /// What the reader sees.
    pub(super) columns: SchemaRef,
    pub(super) limit: usize,
    pub(super) descending: bool,
    mode: WriteMode,
}

impl ScanPlan {
    pub(super) fn new(schema: &TableSchema, request: &ScanRequest) -> Result<Self> {
        if request.times.is_some() && schema.time().is_none() {
            return Err(Error::invalid(
                "a scan by time needs a table with a time column",
            ));
        }
        let columns = match &request.projection {
            None => schema.columns().clone(),
            Some(names) => {
                let columns = names.iter().map(|name| column(schema, name));
                Arc::new(Schema::new(columns.collect::<Result<Vec<_>>>()?))
            }
        };
        let filter = request.predicate.as_ref();
        let filter = filter.map(|predicate| Filter::new(predicate, schema));
        let filter = filter.transpose()?;
        let hints = filter.as_ref().map(|filter| filter.key_hints(schema));
        let hints = hints.transpose()?.unwrap_or_default();
        let key = schema.key_names();
        let is_key = |name: &str| key.contains(&name);
        let (key_filter, value_filter) = match &filter {
            Some(filter) => filter.split(is_key),
            None => (None, None),
        };
        let merged = request.projection.clone().map(|mut names| {
            names.extend(value_filter.iter().flat_map(Filter::columns).cloned());
            names
        });
        let times = match (request.times, hints.times) {
            (Some(asked), Some(hint)) => Some(asked.and(hint)),
            (asked, hint) => asked.or(hint),
        };
        Ok(Self {
            keys: request.keys.and(&hints.keys),
            points: hints.points.map(Into::into),
            times,
            filter,
            key_filter,
            value_filter,
            merged,
            columns,
            limit: request.limit.unwrap_or(usize::MAX),
            descending: request.descending,
            mode: schema.write_mode(),
        })
    }

    /// All columns of the rows with the keys `points`, which ascend, and whose times are in `times`.
    pub(super) fn of_points(
        schema: &TableSchema,
        points: Vec<Key>,
        times: Option<TimeRange>,
    ) -> Result<Self> {
        let mut plan = Self::new(schema, &ScanRequest::all())?;
        plan.times = times;
        plan.points = Some(points.into());
        Ok(plan)
    }

    /// Whether it can return anything.
    pub(super) fn is_empty(&self) -> bool {
        self.limit == 0
            || self.keys.is_empty()
            || self.points.as_ref().is_some_and(|points| points.is_empty())
    }

    /// The columns that a merge sees: those asked for, those of conditions on values, and what it needs itself.
    pub(super) fn merged_columns(&self, schema: &TableSchema) -> Result<SchemaRef> {
        projected(schema, self.merged.as_deref())
    }

    /// What a merge reads of an SST, of `keys` and `points`. `is_alone`: it has one row a key, and nothing else can have
    /// these keys.
    pub(super) fn below_merge(
        &self,
        keys: KeyRange,
        points: Option<Arc<[Key]>>,
        is_alone: bool,
    ) -> ReadRequest {
        let is_append = self.mode == WriteMode::Append;
        let filter = match is_alone || is_append {
            true => &self.filter,
            false => &self.key_filter,
        };
        ReadRequest {
            projection: self.merged.clone(),
            keys,
            points,
            times: self.times,
            filter: filter.clone(),
            // They hide rows of other SSTs.
            keep_tombstones: is_append,
            ..ReadRequest::default()
        }
    }

    /// What to read of an SST whose rows need no merge: the columns to be returned, and the operation of each row
    /// where there are tombstones.
    pub(super) fn direct(
        &self,
        keys: KeyRange,
        points: Option<Arc<[Key]>>,
        has_tombstones: bool,
    ) -> ReadRequest {
        let names = self
            .columns
            .fields()
            .iter()
            .map(|field| field.name().clone());
        let op = has_tombstones.then(|| OP_COLUMN.to_owned());
        ReadRequest {
            projection: Some(names.chain(op).collect()),
            exact: true,
            keys,
            points,
            times: self.times,
            filter: self.filter.clone(),
            ..ReadRequest::default()
        }
    }

    /// The rows of `batch`, in memory, that may go into a merge: by what their keys are.
    pub(super) fn of_memory(
        &self,
        batch: &RecordBatch,
        time: Option<usize>,
    ) -> Result<RecordBatch> {
        let mut batch = batch.clone();
        if let (Some(wanted), Some(time)) = (self.times, time) {
            let times = TableSchema::times(&batch, time)?;
            let keep = times.values().iter().map(|&time| wanted.contains(time));
            batch = filter_record_batch(&batch, &BooleanArray::from(keep.collect::<Vec<_>>()))?;
        }
        match &self.key_filter {
            Some(filter) => Ok(filter_record_batch(&batch, &filter.evaluate(&batch)?)?),
            None => Ok(batch),
        }
    }
}

fn column(schema: &TableSchema, name: &str) -> Result<FieldRef> {
    let columns = schema.columns();
    let at = columns.index_of(name);
    let at = at.map_err(|_| Error::invalid(format!("column {name:?} is not in the table")))?;
    Ok(columns.fields()[at].clone())
}

/// The way from batches as they were read to those that a reader sees: the table's own columns, in the order asked
/// for, nullable only where the table has them so.
pub(super) struct Output {
    schema: SchemaRef,
    positions: Vec<usize>,
}

impl Output {
    /// From batches with the columns `read` to batches with the columns `schema`.
    pub(super) fn new(read: &Schema, schema: SchemaRef) -> Result<Self> {
        let fields = schema.fields().iter();
        let positions = fields.map(|field| read.index_of(field.name()));
        Ok(Self {
            positions: positions.collect::<Result<_, _>>()?,
            schema,
        })
    }

    /// What a reader sees of `batch`.
    pub(super) fn of(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let columns = self.positions.iter().map(|&at| batch.column(at).clone());
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let (schema, columns) = (self.schema.clone(), columns.collect());
        Ok(RecordBatch::try_new_with_options(
            schema, columns, &options,
        )?)
    }
}
