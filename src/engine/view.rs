//! What a read sees, fixed when it begins: memtables, and the SSTs of a version. Holding the view keeps its SSTs
//! from being deleted.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering},
};

use arrow::array::RecordBatch;
use futures::{StreamExt, TryStreamExt, stream};
use tokio::runtime::Handle;

use super::{
    scan::{ScanStats, Touched},
    table::{TableInner, lock},
};
use crate::{
    error::Result,
    manifest::Version,
    memtable::MemtableView,
    merge::View,
    sst::{ReadRequest, SstAccess, SstCache, SstReader, SstSource},
    store::Store,
    threads,
    types::{Key, KeyRange, Seq, SstMeta, TableId, TableSchema},
};

/// SSTs opened at once.
const OPENS_MAX: usize = 16;

/// Where reads find SSTs.
#[derive(Clone)]
pub(super) struct ReadSource {
    pub(super) store: Store,
    pub(super) cache: SstCache,
}

/// Where a read stands.
#[derive(Clone, Copy, Debug)]
pub(super) enum ReadAt {
    /// It sees what is visible when it begins.
    Now,
    /// It sees nothing newer than this seq, and rows as expired that have an earlier time.
    Pinned(Seq, Option<i64>),
}

/// What reads of a table count.
#[derive(Default)]
pub(super) struct ReadCounters {
    pub(super) scans: AtomicU64,
    pub(super) gets: AtomicU64,
    pub(super) rows_read: AtomicU64,
    pub(super) bytes_read: AtomicU64,
    touched: Mutex<ScanStats>,
}

impl ReadCounters {
    /// Notes what a read touched.
    pub(super) fn touched(&self, stats: &ScanStats) {
        lock(&self.touched).add(stats);
    }

    /// What the reads that have ended touched.
    pub(super) fn all_touched(&self) -> ScanStats {
        *lock(&self.touched)
    }

    /// Notes a batch that is returned to a reader.
    pub(super) fn read(&self, batch: &RecordBatch) {
        self.rows_read
            .fetch_add(batch.num_rows() as u64, Ordering::Relaxed);
        self.bytes_read
            .fetch_add(batch.get_array_memory_size() as u64, Ordering::Relaxed);
    }
}

/// What a read sees. Cheap to clone. Its methods block: only for threads that may.
#[derive(Clone)]
pub(super) struct ReadView {
    version: Arc<Version>,
    memtables: Arc<[MemtableView]>,
    view: Arc<View>,
    ssts: Arc<Ssts>,
    touched: Arc<Touched>,
}

/// How the SSTs of a view are reached.
struct Ssts {
    access: SstAccess,
    table: TableId,
    schema: TableSchema,
    handle: Handle,
}

impl ReadView {
    /// What a read of `table` sees. Must be called inside a runtime.
    pub(super) fn new(source: &ReadSource, table: &TableInner, at: ReadAt) -> Self {
        let (version, memory) = table.memory.view(|| {
            let version = table.manifest.version();
            let flushed_seq = version.flushed_seq;
            (version, flushed_seq)
        });
        let (seq, expiry) = match at {
            ReadAt::Now => (memory.visible, table.manifest.expiry()),
            ReadAt::Pinned(seq, expiry) => (seq, expiry),
        };
        Self::with(source, table.id(), version, memory.memtables, (seq, expiry))
    }

    /// All that is in the SSTs of `version`, but rows with a time before `expiry`. Must be called inside a runtime.
    pub(super) fn of_version(
        source: &ReadSource,
        table: TableId,
        version: Arc<Version>,
        expiry: Option<i64>,
    ) -> Self {
        Self::with(source, table, version, Vec::new(), (Seq(u64::MAX), expiry))
    }

    fn with(
        source: &ReadSource,
        table: TableId,
        version: Arc<Version>,
        memtables: Vec<MemtableView>,
        (seq, expiry): (Seq, Option<i64>),
    ) -> Self {
        let touched = Arc::new(Touched::default());
        let access = SstAccess::by_pages(&source.store, touched.inside.clone());
        let ssts = Ssts {
            access: access.cached(&source.cache),
            table,
            schema: version.schema.clone(),
            handle: Handle::current(),
        };
        let view = View {
            seq,
            expiry,
            range_deletes: version.range_deletes.clone(),
        };
        Self {
            version,
            memtables: memtables.into(),
            view: Arc::new(view),
            ssts: Arc::new(ssts),
            touched,
        }
    }

    /// What was touched so far.
    pub(super) fn touched(&self) -> &Arc<Touched> {
        &self.touched
    }

    /// The SSTs, and the schema that all is read under.
    pub(super) fn version(&self) -> &Version {
        &self.version
    }

    /// The schema that it is read under.
    pub(super) fn schema(&self) -> &TableSchema {
        &self.version.schema
    }

    /// Which rows are visible.
    pub(super) fn visible(&self) -> &View {
        &self.view
    }

    /// Rows in memory.
    pub(super) fn memtables(&self) -> &[MemtableView] {
        &self.memtables
    }

    /// Least and greatest key in memory; `None` when nothing is.
    pub(super) fn memory_span(&self) -> Option<(Key, Key)> {
        let spans = self.memtables.iter().filter_map(MemtableView::span);
        spans.reduce(|(min, max), (least, greatest)| (min.min(least), max.max(greatest)))
    }

    /// Keys inside `keys` with about `rows` rows in memory between them.
    pub(super) fn memory_cuts(&self, keys: &KeyRange, rows: usize) -> Vec<Key> {
        let cuts = self
            .memtables
            .iter()
            .map(|memtable| memtable.cuts(keys, rows));
        cuts.max_by_key(Vec::len).unwrap_or_default()
    }

    /// Whether a row of `sst` can be neither expired nor range-deleted.
    pub(super) fn can_see(&self, sst: &SstMeta) -> bool {
        let expiry = self.view.expiry;
        let is_expired = |(_, max)| expiry.is_some_and(|expiry| max < expiry);
        let mut deletes = self.view.range_deletes.iter();
        let is_deleted =
            deletes.any(|delete| delete.seq <= self.view.seq && sst.is_hidden_by(delete));
        !is_deleted && !sst.times.is_some_and(is_expired)
    }

    /// Whether every row of `sst` is visible, unless it is a tombstone or has a newer version: none is newer than the
    /// read, expired, or range-deleted.
    pub(super) fn sees_all(&self, sst: &SstMeta) -> bool {
        let View {
            seq,
            expiry,
            range_deletes,
        } = self.view.as_ref();
        let may_expire = |expiry: i64| sst.times.is_none_or(|(min, _)| min < expiry);
        let mut deletes = range_deletes.iter();
        sst.seq_max <= *seq
            && !expiry.is_some_and(may_expire)
            && !deletes.any(|delete| delete.seq > sst.applied_seq && sst.may_be_hidden_by(delete))
    }

    /// Opens `sst`, unless the cache has it.
    pub(super) fn open(&self, sst: &Arc<SstMeta>) -> Result<SstReader> {
        threads::wait(&self.ssts.handle, self.opening(sst))
    }

    /// Opens `ssts`, some at a time, in this order.
    pub(super) fn open_all(&self, ssts: &[Arc<SstMeta>]) -> Result<Vec<SstReader>> {
        let opening = stream::iter(ssts).map(|sst| self.opening(sst));
        let opened = opening.buffered(OPENS_MAX).try_collect();
        threads::wait(&self.ssts.handle, opened)
    }

    async fn opening(&self, sst: &Arc<SstMeta>) -> Result<SstReader> {
        let Ssts {
            access,
            table,
            schema,
            ..
        } = self.ssts.as_ref();
        SstReader::open(access, schema, *table, sst.clone()).await
    }

    /// The rows of `reader` that `request` asks for.
    pub(super) fn source(&self, reader: &SstReader, request: &ReadRequest) -> Result<SstSource> {
        reader.source(request, self.ssts.handle.clone())
    }

    /// Those of `keys` that `reader` may hold, by its filter over whole keys.
    pub(super) fn may_contain(&self, reader: &SstReader, keys: &[Key]) -> Result<Vec<Key>> {
        let filter = threads::wait(&self.ssts.handle, reader.key_filter())?;
        let may = |key: &&Key| {
            filter
                .as_ref()
                .is_none_or(|filter| filter.may_contain(&key.0))
        };
        Ok(keys.iter().filter(may).cloned().collect())
    }
}
