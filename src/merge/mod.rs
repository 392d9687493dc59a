//! The merge: many sorted sources become one, and retention decides which versions of a key survive.
//!
//! Pure and synchronous: sources are iterators, what comes out is an iterator. A compaction, a flush
//! and a scan run the same code and differ only in [`Keep`].
//!
//! ```text
//! source 0  a@3 c@3 d@3      ┐            ┌────────┐  survivors   ┌────────┐
//! source 1  a@2 b@2          ├─ Cursor ──►│ Merge  ├─────────────►│ Output ├─► batches
//! source 2  b@1✝ c@1         ┘  (order    └────────┘  (as pieces  └────────┘
//!                                checked)  Retain      of batches)  slice, concat or interleave
//! ```
//!
//! 1. `cursor` holds the current batch of a source, its row-encoded keys, and checks its order.
//! 2. [`Merge`] keeps the sources in a binary heap, and takes from the first of them the stretch of rows
//!    that precede every other source's next row, found by galloping.
//! 3. `retain` decides row by row, or for a whole stretch at once where nothing can be dropped.
//! 4. `output` cuts surviving pieces into batches, copying as little as possible; `combine` makes one of the
//!    rows of a key where columns have merge operators.
//!
//! # Order
//! Sources and output are ordered by key ascending, then seq descending, then arrival: rows of equal
//! key and seq keep the order of their source, and those of a source with a lower index come first.

mod combine;
mod cursor;
mod kway;
mod output;
mod retain;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use arrow::{
    array::RecordBatch,
    datatypes::{FieldRef, Schema},
};

pub use kway::Merge;

use crate::{
    error::{Error, Result},
    types::{
        KeyEncoder, MergeOperator, OP_COLUMN, RangeDelete, Retention, RowSum, SEQ_COLUMN, Seq,
        TableSchema, WriteMode,
    },
};

/// Batches of the stored schema, or of a projection of it that keeps the key, `__seq` and `__op`, in
/// [order](self#order). Batches may be empty; all sources of a merge have the same columns.
pub type SortedSource = Box<dyn Iterator<Item = Result<RecordBatch>> + Send>;

/// Where a merge finds what it needs in the batches of its sources.
#[derive(Clone, Debug)]
pub struct MergeColumns {
    /// Encodes the key of these batches.
    pub key: KeyEncoder,
    /// Position of `__seq`.
    pub seq: usize,
    /// Position of `__op`.
    pub op: usize,
    /// Position of the time column.
    pub time: Option<usize>,
    /// The operator of each column; `None` where the newest row takes the place of the others.
    pub operators: Option<Arc<[MergeOperator]>>,
}

impl MergeColumns {
    /// The positions in batches with columns `columns`: the stored ones of `schema`, or some of them.
    ///
    /// # Errors
    /// `Internal`, naming the column, when one that the merge needs is not there.
    pub fn find(schema: &TableSchema, columns: &Schema) -> Result<Self> {
        let find = |name: &str| {
            let missing = |_| Error::internal(format!("merge: column {name:?} is not projected"));
            columns.index_of(name).map_err(missing)
        };
        let key = schema.key_names().into_iter().map(find);
        let time = schema.time().map(|at| schema.columns().field(at).name());
        let operator = |field: &FieldRef| {
            let at = schema.columns().index_of(field.name());
            at.map_or(MergeOperator::LastValue, |at| schema.operators()[at])
        };
        let operators = schema
            .combines()
            .then(|| columns.fields().iter().map(operator).collect());
        Ok(Self {
            key: schema.key_encoder().at(&key.collect::<Result<Vec<_>>>()?),
            seq: find(SEQ_COLUMN)?,
            op: find(OP_COLUMN)?,
            time: time.map(|name| find(name)).transpose()?,
            operators,
        })
    }
}

/// Which rows come out of a merge.
///
/// In an upsert table a row hides every row of its key with a lower seq; of rows with equal key and seq,
/// which sources should not hold, the first counts. In an append table, and where columns have merge operators,
/// only a tombstone hides anything: the rows of its key with a lower seq, puts and tombstones alike. A range
/// delete is a tombstone for all keys with a time inside. A row hidden at seq *h* is still seen from the read
/// points below *h*. With merge operators, puts that are seen from the same read points become one, with the
/// seq of the newest. Expired rows are seen by nobody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Keep {
    /// For files: every row that is hidden by none, or is seen from a read point. Others are *shadowed*.
    /// With `drop_tombstones`, surviving tombstones with no surviving row of their key below them, which
    /// then hide nothing, are *deleted*.
    Retained(Retention),
    /// For readers: the puts seen from this read point. In an upsert table that is one row a key at most.
    Visible(View),
}

/// What a reader sees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Nothing newer than this.
    pub seq: Seq,
    /// No rows with an earlier time, in the unit of the time column.
    pub expiry: Option<i64>,
    /// Nothing that these hide; those above `seq` hide nothing.
    pub range_deletes: Vec<RangeDelete>,
}

/// How to merge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergeOptions {
    /// How rows of equal key combine.
    pub mode: WriteMode,
    /// Which rows come out.
    pub keep: Keep,
    /// Rows in an output batch at most.
    pub batch_rows: usize,
    /// Whether [`MergeStats`] hash the rows, and not only count them.
    pub hash_rows: bool,
}

impl MergeOptions {
    /// Rows in an output batch unless chosen otherwise.
    pub const BATCH_ROWS: usize = 8_192;

    /// A merge that writes files: keeps what `retention` says, and hashes rows for the proof.
    pub fn retained(mode: WriteMode, retention: Retention) -> Self {
        Self {
            mode,
            keep: Keep::Retained(retention),
            batch_rows: Self::BATCH_ROWS,
            hash_rows: true,
        }
    }

    /// A merge that answers a reader, and only counts rows.
    pub fn visible(mode: WriteMode, view: View) -> Self {
        Self {
            mode,
            keep: Keep::Visible(view),
            batch_rows: Self::BATCH_ROWS,
            hash_rows: false,
        }
    }
}

/// What a merge has done so far. At its end `read` is the sum of the others; before, the newest
/// tombstones of the current key may not be counted among them yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MergeStats {
    /// Rows taken from the sources.
    pub read: RowSum,
    /// Rows that came out, or will with the next batches.
    pub written: RowSum,
    /// Rows dropped because others hide them; for [`Keep::Visible`] also those newer than the read point.
    pub shadowed: RowSum,
    /// Tombstones dropped because nothing is left for them to hide; for [`Keep::Visible`], those seen.
    pub deleted: RowSum,
    /// Rows that became part of a newer one of their key.
    pub combined: RowSum,
    /// Rows dropped because they are past the time to live.
    pub expired: RowSum,
    /// Rows dropped because a range delete hides them.
    pub range_deleted: RowSum,
}

impl MergeStats {
    /// What has been done since `before`.
    #[must_use]
    pub fn since(&self, before: &MergeStats) -> MergeStats {
        MergeStats {
            read: self.read.since(before.read),
            written: self.written.since(before.written),
            shadowed: self.shadowed.since(before.shadowed),
            deleted: self.deleted.since(before.deleted),
            combined: self.combined.since(before.combined),
            expired: self.expired.since(before.expired),
            range_deleted: self.range_deleted.since(before.range_deleted),
        }
    }
}
