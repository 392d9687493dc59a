//! What a scan reads, in pieces: each a range of keys with the sources that have some, read by itself.
//!
//! 1. SSTs that cannot hold a wanted key or time are left out.
//! 2. The others, and the memtables, are cut into [stretches](super::stretch).
//! 3. A long stretch is cut further, where row groups begin, so that several threads can share it, and a descending
//!    scan need not hold it all.
//! 4. A piece of one SST that has one visible row a key is read *directly*: only the columns that are returned, each
//!    batch as it is. Any other is *merged*; SSTs that are disjoint by key are chained for that, so that few are
//!    open at a time.

use std::{collections::HashMap, sync::Arc};

use arrow::{
    array::{AsArray, BooleanArray, RecordBatch, UInt32Array},
    compute::{filter_record_batch, take_record_batch},
    datatypes::UInt8Type,
};

use super::{
    Touched,
    chains::chains,
    plan::{Output, ScanPlan},
    stretch::{Span, Stretch, stretches},
};
use crate::{
    engine::view::{ReadCounters, ReadView},
    error::{Error, Result},
    merge::{Merge, MergeColumns, MergeOptions, SortedSource},
    sst::SstReader,
    types::{ColumnMap, Key, KeyRange, OP_COLUMN, Op, SstId, SstMeta, WriteMode},
};

/// Rows of a piece, about, where several threads share a scan.
const PIECE_ROWS: u64 = 256 << 10;
/// Rows of a piece of a descending scan, which is in memory as a whole.
const PIECE_ROWS_DESCENDING: u64 = 32 << 10;
/// Pages that each source should have in a piece: those at its ends are decoded twice.
const PIECE_PAGES: u64 = 8;
const PAGE_ROWS: u64 = 8 << 10;

/// Batches that are read one after the other; for threads that may block.
pub(super) type Batches = Box<dyn Iterator<Item = Result<RecordBatch>> + Send>;

/// All that a scan may read.
pub(super) struct ReadSet {
    view: ReadView,
    pub(super) plan: ScanPlan,
    /// SSTs that can hold something wanted.
    ssts: Vec<Arc<SstMeta>>,
    /// Those that are open.
    opened: HashMap<SstId, SstReader>,
    /// Keys in the memtables.
    memory: Option<Span>,
    pub(super) counters: Arc<ReadCounters>,
}

impl Drop for ReadSet {
    fn drop(&mut self) {
        self.counters.touched(&self.view.touched().stats());
    }
}

/// Keys to be read together.
pub(super) struct Piece {
    keys: KeyRange,
    /// Positions in `ssts`.
    ssts: Vec<usize>,
    has_memory: bool,
}

impl ReadSet {
    pub(super) fn new(view: ReadView, plan: ScanPlan, counters: Arc<ReadCounters>) -> Self {
        let (mut ssts, mut skipped) = (Vec::new(), 0);
        for (window, of_window) in &view.version().windows {
            let times = plan.times.map(|times| times.and(window.times()));
            let is_outside = plan.is_empty() || times.is_some_and(|times| times.is_empty());
            for sst in of_window.ssts() {
                match !is_outside && view.can_see(sst) && wants(&plan, sst) {
                    true => ssts.push(sst.clone()),
                    false => skipped += 1,
                }
            }
        }
        view.touched().ssts(ssts.len(), skipped);
        let memory = view.memory_span().map(|(min, max)| Span { min, max });
        Self {
            view,
            memory: memory.filter(|_| !plan.is_empty()),
            ssts,
            opened: HashMap::new(),
            plan,
            counters,
        }
    }

    /// Opens all SSTs, some at a time: for a read that looks into each of them. May block.
    pub(super) fn open_all(&mut self) -> Result<()> {
        let readers = self.view.open_all(&self.ssts)?;
        let ids = self.ssts.iter().map(|sst| sst.id);
        self.opened = ids.zip(readers).collect();
        Ok(())
    }

    fn open(&self, sst: &Arc<SstMeta>) -> Result<SstReader> {
        match self.opened.get(&sst.id) {
            Some(reader) => Ok(reader.clone()),
            None => self.view.open(sst),
        }
    }

    pub(super) fn touched(&self) -> &Arc<Touched> {
        self.view.touched()
    }

    /// The stretches to read, in the order of the scan.
    pub(super) fn stretches(&self) -> Vec<Stretch> {
        let span = |sst: &Arc<SstMeta>| Span {
            min: sst.key_min.clone(),
            max: sst.key_max.clone(),
        };
        let spans = self.ssts.iter().map(span).chain(self.memory.clone());
        let mut stretches = stretches(&spans.collect::<Vec<_>>(), &self.plan.keys);
        if let Some(points) = &self.plan.points {
            stretches.retain(|stretch| !inside(points, &stretch.keys).is_empty());
        }
        if self.plan.descending {
            stretches.reverse();
        }
        stretches
    }

    /// The pieces of `stretch`, in the order of the scan; `threads` share it. May block.
    pub(super) fn pieces(&self, stretch: Stretch, threads: usize) -> Result<Vec<Piece>> {
        let has_memory = stretch.sources.last() == Some(&self.ssts.len());
        let mut ssts = stretch.sources;
        ssts.truncate(ssts.len() - usize::from(has_memory));
        let mut starts = self.cuts(&stretch.keys, &ssts, has_memory, threads)?;
        starts.retain(|key| {
            stretch.keys.contains(&key.0) && Some(key) != stretch.keys.start.as_ref()
        });
        let mut pieces = Vec::with_capacity(starts.len() + 1);
        let mut start = stretch.keys.start;
        let ends = starts.into_iter().map(Some).chain([stretch.keys.end]);
        for end in ends {
            let keys = KeyRange {
                start: std::mem::replace(&mut start, end.clone()),
                end,
            };
            let has_keys = |&at: &usize| {
                let sst = &self.ssts[at];
                keys.overlaps(&sst.key_min, &sst.key_max)
            };
            pieces.push(Piece {
                ssts: ssts.iter().copied().filter(has_keys).collect(),
                has_memory,
                keys,
            });
        }
        if self.plan.descending {
            pieces.reverse();
        }
        Ok(pieces)
    }

    /// Keys at which pieces should begin, ascending.
    fn cuts(
        &self,
        keys: &KeyRange,
        ssts: &[usize],
        has_memory: bool,
        threads: usize,
    ) -> Result<Vec<Key>> {
        if self.plan.points.is_some() {
            return Ok(Vec::new());
        }
        let rows: u64 = ssts.iter().map(|&at| self.ssts[at].rows).sum();
        let target = match self.plan.descending {
            true => PIECE_ROWS_DESCENDING,
            false if threads > 1 => PIECE_ROWS.max(ssts.len() as u64 * PIECE_PAGES * PAGE_ROWS),
            false => return Ok(Vec::new()),
        };
        let largest = ssts.iter().max_by_key(|&&at| self.ssts[at].rows);
        if let Some(&largest) = largest.filter(|_| rows > target) {
            let sst = &self.ssts[largest];
            let reader = self.open(sst)?;
            // The others are taken to have their rows where the largest has.
            let every = (target as u128 * sst.rows as u128 / rows as u128) as u64;
            let begins = match self.plan.descending {
                true => reader
                    .blocks()
                    .into_iter()
                    .map(|block| (block.first_key, block.rows))
                    .collect(),
                false => reader
                    .row_group_bounds()
                    .into_iter()
                    .map(|group| (group.first_key, group.rows))
                    .collect(),
            };
            return Ok(every_so_many(begins, every));
        }
        match has_memory && self.plan.descending {
            true => Ok(self.view.memory_cuts(keys, target as usize)),
            false => Ok(Vec::new()),
        }
    }

    /// The rows of `piece`, in the order of the scan, as the reader sees them.
    pub(super) fn read(&self, piece: Piece) -> Result<Batches> {
        let batches = match self.direct(&piece)? {
            Some(batches) => batches,
            None => self.merged(piece)?,
        };
        match self.plan.descending {
            true => descending(batches),
            false => Ok(batches),
        }
    }

    /// The rows of a piece that needs no merge; `None` when it does.
    fn direct(&self, piece: &Piece) -> Result<Option<Batches>> {
        let ([at], false) = (&piece.ssts[..], piece.has_memory) else {
            return Ok(None);
        };
        let sst = &self.ssts[*at];
        let mode = self.view.schema().write_mode();
        if !self.view.sees_all(sst) || mode == WriteMode::Append && sst.tombstones > 0 {
            return Ok(None);
        }
        let Some(points) = self.points_of(sst, &piece.keys)? else {
            return Ok(Some(Box::new(std::iter::empty())));
        };
        let reader = self.open(sst)?;
        if mode == WriteMode::Upsert && !reader.keys_are_unique() {
            return Ok(None);
        }
        let has_tombstones = sst.tombstones > 0;
        let request = self
            .plan
            .direct(piece.keys.clone(), points.0, has_tombstones);
        let source = self.view.source(&reader, &request)?;
        let output = Output::new(source.schema(), self.plan.columns.clone())?;
        Ok(Some(Box::new(source.map(move |batch| {
            let batch = batch?;
            let batch = match has_tombstones {
                true => without_tombstones(&batch)?,
                false => batch,
            };
            output.of(&batch)
        }))))
    }

    fn merged(&self, piece: Piece) -> Result<Batches> {
        let schema = self.view.schema();
        let columns = self.plan.merged_columns(schema)?;
        let merge_columns = MergeColumns::find(schema, &columns)?;
        let mut sources: Vec<SortedSource> = Vec::new();
        for memtable in self.view.memtables().iter().filter(|_| piece.has_memory) {
            let map = ColumnMap::new(columns.clone(), memtable.schema().stored().fields())?;
            let batches = match &self.plan.points {
                Some(points) => memtable.sources_of(inside(points, &piece.keys))?,
                None => memtable.sources(&piece.keys),
            };
            for batch in batches {
                let batch = self
                    .plan
                    .of_memory(&map.apply(&batch)?, merge_columns.time)?;
                sources.push(Box::new(std::iter::once(Ok(batch))));
            }
        }
        let ssts: Vec<Arc<SstMeta>> = piece.ssts.iter().map(|&at| self.ssts[at].clone()).collect();
        for chain in chains(&ssts) {
            sources.push(self.chain(chain, &ssts, &piece)?);
        }
        let options = MergeOptions::visible(schema.write_mode(), self.view.visible().clone());
        let merge = Merge::new(sources, merge_columns, options);
        let output = Output::new(&columns, self.plan.columns.clone())?;
        let filter = self.plan.value_filter.clone();
        Ok(Box::new(merge.map(move |batch| {
            let mut batch = batch?;
            if let Some(filter) = &filter {
                batch = filter_record_batch(&batch, &filter.evaluate(&batch)?)?;
            }
            output.of(&batch)
        })))
    }

    /// SSTs that are sorted and disjoint by key one after the other, opened as they are reached. `all` are those of
    /// the piece.
    fn chain(
        &self,
        chain: Vec<Arc<SstMeta>>,
        all: &[Arc<SstMeta>],
        piece: &Piece,
    ) -> Result<SortedSource> {
        let mut requests = Vec::with_capacity(chain.len());
        for sst in chain {
            let Some(Points(points)) = self.points_of(&sst, &piece.keys)? else {
                continue;
            };
            let is_apart = |other: &Arc<SstMeta>| other.id == sst.id || !sst.may_share_keys(other);
            let is_alone = !piece.has_memory
                && sst.seq_max <= self.view.visible().seq
                && all.iter().all(is_apart);
            let request = |is_alone| {
                let points = points.clone();
                self.plan.below_merge(piece.keys.clone(), points, is_alone)
            };
            requests.push((sst, request(is_alone), request(false)));
        }
        let (view, opened) = (self.view.clone(), self.opened.clone());
        let open = move |(sst, alone, among_others): (Arc<SstMeta>, _, _)| -> SortedSource {
            let reader = match opened.get(&sst.id) {
                Some(reader) => Ok(reader.clone()),
                None => view.open(&sst),
            };
            let source = reader.and_then(|reader| {
                let request = match reader.keys_are_unique() {
                    true => &alone,
                    false => &among_others,
                };
                view.source(&reader, request)
            });
            match source {
                Ok(source) => Box::new(source),
                Err(error) => Box::new(std::iter::once(Err(error))),
            }
        };
        Ok(Box::new(requests.into_iter().flat_map(open)))
    }

    /// The points to look for in `sst`, inside `keys`; `None` when it has none of them, by its bounds and its filter.
    /// May block.
    fn points_of(&self, sst: &Arc<SstMeta>, keys: &KeyRange) -> Result<Option<Points>> {
        let Some(points) = &self.plan.points else {
            return Ok(Some(Points(None)));
        };
        let points = inside(points, &keys.and(&sst.key_range()));
        let found = match points {
            [] => Vec::new(),
            points => self.view.may_contain(&self.open(sst)?, points)?,
        };
        Ok((!found.is_empty()).then(|| Points(Some(found.into()))))
    }
}

/// The keys to look for one by one, if they are known.
struct Points(Option<Arc<[Key]>>);

/// Whether `sst` can hold something that `plan` asks for.
fn wants(plan: &ScanPlan, sst: &SstMeta) -> bool {
    let in_time = match (plan.times, sst.times) {
        (Some(wanted), Some((min, max))) => wanted.overlaps(min, max),
        _ => true,
    };
    let has_point = |points: &Arc<[Key]>| {
        let first = points.partition_point(|point| *point < sst.key_min);
        points.get(first).is_some_and(|point| *point <= sst.key_max)
    };
    in_time
        && plan.keys.overlaps(&sst.key_min, &sst.key_max)
        && plan.points.as_ref().is_none_or(has_point)
}

/// Those of `points`, which ascend, that lie in `keys`.
fn inside<'a>(points: &'a [Key], keys: &KeyRange) -> &'a [Key] {
    let before = |bound: &Key| points.partition_point(|point| point < bound);
    let start = keys.start.as_ref().map_or(0, before);
    let end = keys.end.as_ref().map_or(points.len(), before);
    &points[start..end.max(start)]
}

/// Of parts that begin at these keys and have so many rows, those keys that have about `rows` rows or more between
/// them.
fn every_so_many(begins: Vec<(Key, u64)>, rows: u64) -> Vec<Key> {
    let mut since = 0;
    let mut keys = Vec::new();
    for (key, count) in begins {
        if since >= rows.max(1) {
            keys.push(key);
            since = 0;
        }
        since += count;
    }
    keys
}

fn without_tombstones(batch: &RecordBatch) -> Result<RecordBatch> {
    let ops = batch.column_by_name(OP_COLUMN);
    let ops = ops.and_then(|ops| ops.as_primitive_opt::<UInt8Type>());
    let ops = ops.ok_or_else(|| Error::internal("a scan reads an sst without its operations"))?;
    let puts = ops.values().iter().map(|&op| op == Op::Put as u8);
    let puts = BooleanArray::from(puts.collect::<Vec<_>>());
    Ok(filter_record_batch(batch, &puts)?)
}

/// All of `batches`, the last row first.
fn descending(batches: Batches) -> Result<Batches> {
    let batches = batches.collect::<Result<Vec<_>>>()?;
    Ok(Box::new(batches.into_iter().rev().map(|batch| {
        let rows = u32::try_from(batch.num_rows());
        let rows = rows.map_err(|_| Error::internal("a batch has too many rows to turn around"))?;
        let turned = UInt32Array::from_iter_values((0..rows).rev());
        Ok(take_record_batch(&batch, &turned)?)
    })))
}
