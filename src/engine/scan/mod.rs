//! Scans and gets. What is to be read is a matter of metadata; how a piece of it is read, of what overlaps there.
//!
//! 1. A [view](ReadView) is taken: memtables, version, and the seq up to which batches are visible.
//! 2. `plan` checks the request, and takes the predicate apart.
//! 3. `stretch` and `pieces` cut the keys so that what overlaps is merged, and what does not is read as it is.
//! 4. `stream` has threads read the pieces, and hands them out in order.

mod chains;
mod get;
mod pieces;
mod plan;
mod request;
mod stats;
mod stream;
mod stretch;

use std::sync::Arc;

pub(super) use get::{get, get_view};
pub use request::ScanRequest;
pub use stats::ScanStats;
pub(super) use stats::Touched;
pub use stream::ScanStream;

use super::{
    table::Table,
    view::{ReadAt, ReadCounters, ReadView},
};
use crate::error::Result;
use pieces::ReadSet;
use plan::ScanPlan;

/// Starts a scan of an engine's table.
pub(super) fn scan(table: &Table, request: ScanRequest, at: ReadAt) -> Result<ScanStream> {
    table.engine.check_alive()?;
    table.inner.check_open()?;
    let view = ReadView::new(&table.engine.source, &table.inner, at);
    scan_view(view, &request, table.inner.reads.clone())
}

/// Starts a scan of what `view` sees.
pub(super) fn scan_view(
    view: ReadView,
    request: &ScanRequest,
    counters: Arc<ReadCounters>,
) -> Result<ScanStream> {
    let plan = ScanPlan::new(view.schema(), request)?;
    stream::start(ReadSet::new(view, plan, counters))
}
