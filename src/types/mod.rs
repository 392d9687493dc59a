//! The vocabulary that every module shares: ids, schemas, keys, ranges, SST metadata. Plain values:
//! no I/O, no async, no clock.

mod ids;
mod key;
mod key_range;
mod retention;
mod row_sum;
mod schema;
mod sst_meta;
mod time_range;

pub use ids::{Epoch, JobId, NodeId, OwnerId, Seq, SstId, TableId, TaskId, Token};
pub use key::{Key, KeyEncoder};
pub use key_range::KeyRange;
pub use retention::Retention;
pub use row_sum::{RowSum, row_hash};
pub use schema::{OP_COLUMN, Op, SEQ_COLUMN, TableOptions, TableSchema, WriteMode};
pub use sst_meta::SstMeta;
pub use time_range::{TimeRange, Window, WindowWidth};
