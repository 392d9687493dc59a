//! SSTs: immutable, sorted Parquet objects that any Parquet tool can read. Nothing outside this module
//! sees `parquet`.
//!
//! An SST holds the *stored* columns of a table (its own, then `__seq` and `__op`), sorted by key
//! ascending and seq descending, all in one window:
//! ```text
//! "PAR1"
//! row group 0     one column chunk after the other, each with its CRC-32 in the footer
//! row group 1     …
//! key filter      drawn in `filter`
//! index           where keys are, checksums of pages: drawn in `index`
//! page index      Parquet's: column index, offset index
//! footer          Parquet metadata; its key-values are drawn in `footer`
//! length, "PAR1"
//! ```
//!
//! [`SstWriter`] encodes one SST into an [`SstSink`]; [`write_run`] turns sorted batches into uploaded SSTs
//! of about equal size. [`SstReader`] opens one, and gives [`SstSource`]s: iterators for a merge.
//!
//! # Damage
//! The footer, both indexes, the filter, every column chunk and every page are covered by checksums that are
//! verified before anything is parsed. Should the Parquet decoder panic all the same, the panic is caught and becomes `Corrupt`,
//! naming the object.

mod bounds;
mod cache;
mod chunks;
mod decode;
mod encoding;
mod fetch;
mod file;
mod filter;
mod footer;
mod index;
pub mod inspect;
mod pruning;
mod reader;
mod rows;
mod run;
mod schema;
mod select;
mod source;
mod stats;
mod storable;
#[cfg(test)]
mod tests;
mod writer;

pub use cache::{CacheStats, SstCache, warm};
pub use filter::KeyFilter;
pub use reader::{BlockBound, RowGroupBound, SstAccess, SstReader};
pub use run::{RunHooks, SstRun, SstUpload, write_run};
pub use schema::projected;
pub use source::{ReadRequest, SstSource};
pub use stats::ReadStats;
pub use storable::check_storable;
pub use writer::{SstOptions, SstSink, SstSpec, SstWriter};
