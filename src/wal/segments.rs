//! Which segments of a log are still needed: those that hold an entry its table has not released.

use std::collections::{BTreeMap, HashMap};

use crate::types::{Seq, TableId};

/// What is known of a segment.
#[derive(Clone, Debug, Default)]
pub(super) struct Segment {
    /// Its length.
    pub bytes: u64,
    /// The greatest seq in it, by table.
    pub seqs: HashMap<TableId, Seq>,
}

impl Segment {
    /// Notes that it holds an entry.
    pub fn note(&mut self, table: TableId, seq: Seq) {
        let newest = self.seqs.entry(table).or_default();
        *newest = seq.max(*newest);
    }
}

/// The segments of a log, and what was released.
#[derive(Debug, Default)]
pub(super) struct Segments {
    by_number: BTreeMap<u64, Segment>,
    /// Up to where each table's entries are needed no more.
    released: HashMap<TableId, Seq>,
}

impl From<BTreeMap<u64, Segment>> for Segments {
    fn from(by_number: BTreeMap<u64, Segment>) -> Self {
        Self {
            by_number,
            released: HashMap::new(),
        }
    }
}

impl Segments {
    /// Adds a segment.
    pub fn insert(&mut self, number: u64, segment: Segment) {
        self.by_number.insert(number, segment);
    }

    /// Segment `number`, empty if it is new.
    pub fn at(&mut self, number: u64) -> &mut Segment {
        self.by_number.entry(number).or_default()
    }

    /// Forgets a segment that is gone.
    pub fn remove(&mut self, number: u64) {
        self.by_number.remove(&number);
    }

    /// Whether there is a segment of this number.
    pub fn contains(&self, number: u64) -> bool {
        self.by_number.contains_key(&number)
    }

    /// Number of the first segment.
    pub fn first(&self) -> Option<u64> {
        self.by_number.keys().next().copied()
    }

    /// How many there are.
    pub fn len(&self) -> u64 {
        self.by_number.len() as u64
    }

    /// Bytes of all of them.
    pub fn bytes(&self) -> u64 {
        self.by_number.values().map(|segment| segment.bytes).sum()
    }

    /// Every entry of each of these tables, up to its seq, is needed no more.
    pub fn release(&mut self, releases: &[(TableId, Seq)]) {
        for &(table, seq) in releases {
            let released = self.released.entry(table).or_default();
            *released = seq.max(*released);
        }
    }

    /// Forgets releases that no segment needs to know of.
    pub fn forget_releases(&mut self) {
        let segments = &self.by_number;
        // A dropped table is remembered: an append of it may still be on its way.
        self.released.retain(|table, seq| {
            *seq == Seq(u64::MAX) || segments.values().any(|s| s.seqs.contains_key(table))
        });
    }

    /// Numbers of the segments none of whose entries are needed.
    pub fn dead(&self) -> Vec<u64> {
        let segments = self.by_number.iter();
        let dead = segments.filter(|(_, segment)| self.needed_by(segment).next().is_none());
        dead.map(|(&number, _)| number).collect()
    }

    /// Number of the oldest segment that is needed.
    pub fn oldest_needed(&self) -> Option<u64> {
        let mut segments = self.by_number.iter();
        let needed = segments.find(|(_, segment)| self.needed_by(segment).next().is_some());
        needed.map(|(&number, _)| number)
    }

    /// The tables that need the oldest segment that is needed.
    pub fn pins(&self) -> Vec<TableId> {
        let mut segments = self.by_number.values();
        let pinned = segments.find(|segment| self.needed_by(segment).next().is_some());
        pinned.map_or(Vec::new(), |segment| self.needed_by(segment).collect())
    }

    fn needed_by<'a>(&'a self, segment: &'a Segment) -> impl Iterator<Item = TableId> + 'a {
        let is_needed = |table: &TableId, seq: &Seq| {
            self.released
                .get(table)
                .is_none_or(|released| seq > released)
        };
        let seqs = segment.seqs.iter();
        seqs.filter_map(move |(table, seq)| is_needed(table, seq).then_some(*table))
    }
}
