//! Snapshots: a read point that flushes and compactions leave alone.

use std::sync::Arc;

use arrow::array::RecordBatch;

use super::{ScanRequest, ScanStream, scan, table::Table, view::ReadAt};
use crate::{error::Result, manifest::Pin, types::Seq};

/// A table as it was at one moment. Cheap to clone. While one is held, compaction keeps what it sees: drop it when
/// it is not needed any more. It does not outlive the engine.
///
/// Columns are those of the table's schema when it is read.
#[derive(Clone)]
pub struct Snapshot {
    table: Table,
    pin: Arc<Pin>,
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Snapshot({:?} at {})", self.table.name(), self.seq())
    }
}

impl Snapshot {
    pub(super) async fn new(table: &Table) -> Result<Self> {
        table.engine.check_alive()?;
        table.inner.check_open()?;
        let inner = &table.inner;
        let _settled = inner.range_deleting.lock().await;
        let pin = inner.manifest.pin(|| inner.memory.visible());
        Ok(Self {
            table: table.clone(),
            pin: Arc::new(pin),
        })
    }

    /// The last batch that it sees.
    pub fn seq(&self) -> Seq {
        self.pin.seq()
    }

    /// As [`Table::scan`], at this snapshot.
    ///
    /// # Errors
    /// As for [`Table::scan`].
    pub async fn scan(&self, request: ScanRequest) -> Result<ScanStream> {
        scan::scan(&self.table, request, self.at())
    }

    /// As [`Table::get`], at this snapshot.
    ///
    /// # Errors
    /// As for [`Table::get`].
    pub async fn get(&self, keys: RecordBatch) -> Result<RecordBatch> {
        scan::get(&self.table, keys, self.at()).await
    }

    fn at(&self) -> ReadAt {
        ReadAt::Pinned(self.pin.seq(), self.pin.expiry())
    }
}
