//! What a read sees, fixed when it begins, as sources for a merge: memtables, and the SSTs of a version.
//! Holding the view keeps its SSTs from being deleted.
//!
//! SSTs that cannot hold a wanted key or time are left out. The others are chained where they are disjoint
//! by key, so that few are open at a time; each is opened when it is reached, and once a view.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use arrow::array::RecordBatch;
use tokio::runtime::Handle;

use super::table::{TableInner, lock};
use crate::{
    error::Result,
    manifest::Version,
    memtable::MemtableView,
    merge::{Merge, MergeColumns, MergeOptions, SortedSource, View},
    sst::{KeyFilter, ReadRequest, SstReader},
    store::Store,
    types::{ColumnMap, Key, KeyRange, Seq, SstId, SstMeta, TableId, TableSchema, TimeRange},
};

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
}

impl ReadCounters {
    /// Notes a batch that is returned to a reader.
    pub(super) fn read(&self, batch: &RecordBatch) {
        self.rows_read
            .fetch_add(batch.num_rows() as u64, Ordering::Relaxed);
        self.bytes_read
            .fetch_add(batch.get_array_memory_size() as u64, Ordering::Relaxed);
    }
}

/// What a read sees. Its methods block: only for threads that may.
pub(super) struct ReadView {
    version: Arc<Version>,
    memtables: Vec<MemtableView>,
    view: View,
    ssts: Arc<Ssts>,
}

/// The opened SSTs of a view.
struct Ssts {
    store: Store,
    table: TableId,
    schema: TableSchema,
    handle: Handle,
    opened: Mutex<HashMap<SstId, SstReader>>,
    filters: Mutex<HashMap<SstId, Option<Arc<KeyFilter>>>>,
}

impl ReadView {
    /// What a read of `table` sees. Must be called inside a runtime.
    pub(super) fn new(store: &Store, table: &TableInner, at: ReadAt) -> Self {
        let (version, memory) = table.memory.view(|| {
            let version = table.manifest.version();
            let flushed_seq = version.flushed_seq;
            (version, flushed_seq)
        });
        let (seq, expiry) = match at {
            ReadAt::Now => (memory.visible, table.manifest.expiry()),
            ReadAt::Pinned(seq, expiry) => (seq, expiry),
        };
        Self::with(store, table.id(), version, memory.memtables, (seq, expiry))
    }

    /// All that is in the SSTs of `version`, but rows with a time before `expiry`. Must be called inside a runtime.
    #[expect(dead_code, reason = "for readers of other processes, which come next")]
    pub(super) fn of_version(
        store: &Store,
        table: TableId,
        version: Arc<Version>,
        expiry: Option<i64>,
    ) -> Self {
        Self::with(store, table, version, Vec::new(), (Seq(u64::MAX), expiry))
    }

    fn with(
        store: &Store,
        table: TableId,
        version: Arc<Version>,
        memtables: Vec<MemtableView>,
        (seq, expiry): (Seq, Option<i64>),
    ) -> Self {
        let ssts = Ssts {
            store: store.clone(),
            table,
            schema: version.schema.clone(),
            handle: Handle::current(),
            opened: Mutex::default(),
            filters: Mutex::default(),
        };
        let view = View {
            seq,
            expiry,
            range_deletes: version.range_deletes.clone(),
        };
        Self {
            version,
            memtables,
            view,
            ssts: Arc::new(ssts),
        }
    }

    /// The schema that it is read under.
    pub(super) fn schema(&self) -> &TableSchema {
        &self.version.schema
    }

    /// The newest visible version of each key inside `request`, with the columns that it projects.
    pub(super) fn merge(&self, request: &ReadRequest) -> Result<Merge> {
        let is_wanted = |sst: &SstMeta| {
            let in_time =
                |times: TimeRange| sst.times.is_none_or(|(min, max)| times.overlaps(min, max));
            Ok(request.times.is_none_or(in_time)
                && request.keys.overlaps(&sst.key_min, &sst.key_max))
        };
        self.merge_wanted(request, is_wanted)
    }

    /// The visible rows with this key, all columns.
    pub(super) fn merge_key(&self, key: &Key) -> Result<Merge> {
        let request = ReadRequest {
            keys: KeyRange::closed(key, key),
            ..ReadRequest::default()
        };
        self.merge_wanted(&request, |sst| {
            Ok(request.keys.overlaps(&sst.key_min, &sst.key_max)
                && self.ssts.may_contain(sst, key)?)
        })
    }

    fn merge_wanted(
        &self,
        request: &ReadRequest,
        is_wanted: impl Fn(&SstMeta) -> Result<bool>,
    ) -> Result<Merge> {
        let schema = self.schema();
        let columns = crate::sst::projected(schema, request.projection.as_deref())?;
        let mut sources: Vec<SortedSource> = Vec::new();
        for memtable in &self.memtables {
            let map = ColumnMap::new(columns.clone(), memtable.schema().stored().fields())?;
            for batch in memtable.sources(&request.keys) {
                sources.push(Box::new(std::iter::once(Ok(map.apply(&batch)?))));
            }
        }
        let mut wanted = Vec::new();
        for sst in self.version.ssts() {
            if self.can_see(sst) && is_wanted(sst)? {
                wanted.push(sst.clone());
            }
        }
        for chain in chains(wanted) {
            sources.push(Box::new(self.chain(chain, request.clone())));
        }
        let options = MergeOptions::visible(schema.write_mode(), self.view.clone());
        Ok(Merge::new(
            sources,
            MergeColumns::find(schema, &columns)?,
            options,
        ))
    }

    /// Whether a row of `sst` can be neither expired nor range-deleted.
    fn can_see(&self, sst: &SstMeta) -> bool {
        let expiry = self.view.expiry;
        let is_expired = |(_, max)| expiry.is_some_and(|expiry| max < expiry);
        let mut deletes = self.view.range_deletes.iter();
        let is_deleted =
            deletes.any(|delete| delete.seq <= self.view.seq && sst.is_hidden_by(delete));
        !is_deleted && !sst.times.is_some_and(is_expired)
    }

    /// SSTs that are sorted and disjoint by key one after the other, opened as they are reached.
    fn chain(
        &self,
        run: Vec<Arc<SstMeta>>,
        request: ReadRequest,
    ) -> impl Iterator<Item = Result<RecordBatch>> + Send + use<> {
        let ssts = self.ssts.clone();
        run.into_iter().flat_map(move |sst| -> SortedSource {
            let opened = ssts.open(&sst);
            match opened.and_then(|reader| reader.source(&request, ssts.handle.clone())) {
                Ok(source) => Box::new(source),
                Err(error) => Box::new(std::iter::once(Err(error))),
            }
        })
    }
}

/// `ssts` in as few chains as can be, each sorted and disjoint by key, whatever windows and levels they are
/// of. Where time leads the key, a whole table makes few chains.
fn chains(mut ssts: Vec<Arc<SstMeta>>) -> Vec<Vec<Arc<SstMeta>>> {
    ssts.sort_by(|left, right| left.key_min.cmp(&right.key_min));
    let mut chains: Vec<Vec<Arc<SstMeta>>> = Vec::new();
    // The chain that ends first is the one to go on with, if any is.
    let mut ends: BinaryHeap<Reverse<(Key, usize)>> = BinaryHeap::new();
    for sst in ssts {
        let free = ends.peek().filter(|Reverse((end, _))| *end < sst.key_min);
        let chain = match free {
            Some(_) => ends.pop().map_or(0, |Reverse((_, chain))| chain),
            None => {
                chains.push(Vec::new());
                chains.len() - 1
            }
        };
        ends.push(Reverse((sst.key_max.clone(), chain)));
        chains[chain].push(sst);
    }
    chains
}

impl Ssts {
    fn open(&self, sst: &SstMeta) -> Result<SstReader> {
        if let Some(reader) = lock(&self.opened).get(&sst.id) {
            return Ok(reader.clone());
        }
        let opening = SstReader::open(&self.store, &self.schema, self.table, Arc::new(sst.clone()));
        let reader = self.handle.block_on(opening)?;
        lock(&self.opened).insert(sst.id, reader.clone());
        Ok(reader)
    }

    /// Whether `sst` may hold `key`, by its filter over whole keys.
    fn may_contain(&self, sst: &SstMeta, key: &Key) -> Result<bool> {
        let known = lock(&self.filters).get(&sst.id).cloned();
        let filter = match known {
            Some(filter) => filter,
            None => {
                let filter = self.handle.block_on(self.open(sst)?.key_filter())?;
                let filter = filter.map(Arc::new);
                lock(&self.filters).insert(sst.id, filter.clone());
                filter
            }
        };
        Ok(filter.is_none_or(|filter| filter.may_contain(&key.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Window;

    #[test]
    fn disjoint_ssts_are_chained_and_overlapping_ones_are_not() {
        let sst = |keys: &str| {
            let (min, max) = keys.split_once('-').unwrap();
            Arc::new(SstMeta {
                id: SstId::flushed(1, 0),
                level: 0,
                window: Window::ALL,
                bytes: 1,
                rows: 1,
                tombstones: 0,
                key_min: Key::from(min.as_bytes()),
                key_max: Key::from(max.as_bytes()),
                seq_min: Seq(1),
                seq_max: Seq(1),
                times: None,
                schema_version: 1,
                rows_hash: 0,
                applied_seq: Seq(0),
            })
        };
        let show = |ssts: &[&str]| -> Vec<String> {
            let chains = chains(ssts.iter().map(|keys| sst(keys)).collect());
            let text = |key: &Key| String::from_utf8(key.0.to_vec()).unwrap();
            let chain = |ssts: Vec<Arc<SstMeta>>| {
                let keys = ssts
                    .iter()
                    .map(|sst| format!("{}-{}", text(&sst.key_min), text(&sst.key_max)));
                keys.collect::<Vec<_>>().join(" ")
            };
            chains.into_iter().map(chain).collect()
        };
        assert_eq!(show(&["e-f", "a-b", "c-d"]), ["a-b c-d e-f"]);
        assert_eq!(show(&["a-c", "c-d", "d-e"]), ["a-c d-e", "c-d"]);
        assert_eq!(
            show(&["a-z", "b-c", "d-e", "d-f"]),
            ["a-z", "b-c d-e", "d-f"]
        );
        assert!(show(&[]).is_empty());
    }
}
