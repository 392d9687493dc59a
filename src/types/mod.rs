//! The vocabulary that every module shares: ids, schemas, keys, ranges, SST metadata. Plain values:
//! no I/O, no async, no clock.

mod alter;
mod columns;
mod deletion;
mod filter;
mod ids;
mod key;
mod key_range;
mod options;
mod predicate;
mod range_delete;
mod retention;
mod row_sum;
mod schema;
mod sst_meta;
mod time_range;

pub use alter::Alteration;
pub use columns::{ColumnMap, column_id};
pub use deletion::Deletion;
pub use filter::{ColumnBounds, Filter, KeyHints, Leaf, Node};
pub use ids::{CheckpointId, Epoch, JobId, NodeId, OwnerId, Seq, SstId, TableId, TaskId, Token};
pub use key::{Key, KeyEncoder};
pub use key_range::KeyRange;
pub use options::{MergeOperator, PlannerKind, TableOptions, Windowing, WriteMode};
pub use predicate::{Column, Comparison, Literal, Operand, Predicate, column};
pub use range_delete::RangeDelete;
pub use retention::Retention;
pub use row_sum::{RowSum, row_hash};
pub(crate) use schema::{Columns as SchemaColumns, Parts as SchemaParts};
pub use schema::{OP_COLUMN, Op, SEQ_COLUMN, TableSchema};
pub use sst_meta::SstMeta;
pub use time_range::{TimeRange, Window, WindowWidth};
