//! The k-way merge itself.
//!
//! 1. The source whose current row comes first is at the root of a binary heap; the runner-up is one of
//!    the root's two children.
//! 2. The *stretch*: all rows of the first source's batch that precede the runner-up's current row.
//! 3. Retention decides the stretch. Where every row puts a key of its own, only the first row needs a
//!    look: it may be an older version of the key before. The others are all kept.
//! 4. The source moves on by the stretch, past the end of its batch if need be, and sinks in the heap.
//!
//! What is known of a key is kept across stretches, batches and sources: `last_key` says whether the next
//! row belongs to it. `tail` counts the surviving tombstones at the bottom of the key's survivors; when
//! the key ends and tombstones may go, they are taken back from the output. Output is therefore flushed
//! only while `tail` is empty.

use std::ops::Range;

use arrow::array::RecordBatch;

use super::{
    MergeColumns, MergeOptions, MergeStats, SortedSource,
    cursor::{Cursor, Loaded},
    output::Output,
    retain::{Fate, Retain},
};
use crate::{
    error::Result,
    types::{Key, RowSum, row_hash},
};

/// Merges sorted sources into one sorted sequence of batches. Ends after the first error; pauses at a
/// [cut](Self::cut).
pub struct Merge {
    columns: MergeColumns,
    cursors: Vec<Cursor>,
    /// Indices of the sources that have rows left, as a binary heap, the first in order at the root.
    heap: Vec<usize>,
    keys: KeyState,
    output: Output,
    phase: Phase,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Opening,
    Running,
    /// The current key is being brought to its end.
    Cutting,
    /// It has ended, and that is yet to be told.
    Cut,
    Done,
}

/// The current key, and what the merge has counted.
struct KeyState {
    retain: Retain,
    hash_rows: bool,
    last_key: Option<Vec<u8>>,
    tail: RowSum,
    stats: MergeStats,
}

impl Merge {
    /// A merge of `sources`. Nothing is read before the first batch is asked for.
    pub fn new(sources: Vec<SortedSource>, columns: MergeColumns, options: MergeOptions) -> Self {
        let operators = columns.operators.clone();
        let combines = operators.is_some();
        let output = Output::new(sources.len(), options.batch_rows, operators);
        let cursors = sources.into_iter().enumerate();
        Self {
            columns,
            heap: Vec::with_capacity(cursors.len()),
            cursors: cursors
                .map(|(index, source)| Cursor::new(source, index))
                .collect(),
            keys: KeyState {
                retain: Retain::new(&options, combines),
                hash_rows: options.hash_rows,
                last_key: None,
                tail: RowSum::default(),
                stats: MergeStats::default(),
            },
            output,
            phase: Phase::Opening,
        }
    }

    /// What was read, written and dropped so far.
    pub fn stats(&self) -> MergeStats {
        self.keys.stats
    }

    /// Ends the batches with the rows of the current key: after those that are still to come `next` answers `None`
    /// once, and then goes on with the next key. At that moment the [stats](Self::stats) are those of whole keys,
    /// and every row that was read has come out or was dropped.
    pub fn cut(&mut self) {
        if self.phase == Phase::Running {
            self.phase = Phase::Cutting;
        }
    }

    /// Where the rest begins, at a cut: the least key after the last one that was read. `None` when nothing is
    /// left, or nothing was read yet.
    pub fn rest(&self) -> Option<Key> {
        let last_key = self.keys.last_key.as_deref();
        let last_key = last_key.filter(|_| !self.heap.is_empty());
        last_key.map(|key| Key::from(key).successor())
    }

    fn advance(&mut self) -> Result<()> {
        match self.phase {
            Phase::Opening => {
                self.open()?;
                self.phase = Phase::Running;
            }
            Phase::Running if self.heap.is_empty() => {
                self.keys.end_key(&mut self.output);
                self.output.finish()?;
                self.phase = Phase::Done;
            }
            Phase::Running => self.step(usize::MAX)?,
            Phase::Cutting => match self.repeats() {
                0 => {
                    self.keys.end_key(&mut self.output);
                    self.output.finish()?;
                    self.phase = Phase::Cut;
                }
                repeats => self.step(repeats)?,
            },
            Phase::Cut | Phase::Done => {}
        }
        Ok(())
    }

    fn open(&mut self) -> Result<()> {
        for source in 0..self.cursors.len() {
            if self.load(source)? {
                self.heap.push(source);
            }
        }
        for at in (0..self.heap.len() / 2).rev() {
            self.sink(at);
        }
        Ok(())
    }

    /// How many of the next rows of the first source belong to the current key.
    fn repeats(&self) -> usize {
        let (Some(&source), Some(key)) = (self.heap.first(), &self.keys.last_key) else {
            return 0;
        };
        self.cursors[source].rows_of(key)
    }

    /// Takes a stretch, `rows_max` of its rows at most.
    fn step(&mut self, rows_max: usize) -> Result<()> {
        let source = self.heap[0];
        let rival = self.runner_up().map(|rival| &self.cursors[rival]);
        let mut stretch = self.cursors[source].stretch(rival);
        stretch.end = stretch.end.min(stretch.start.saturating_add(rows_max));
        let end = stretch.end;
        let loaded = self.cursors[source].loaded();
        self.keys.take(source, loaded, stretch, &mut self.output)?;
        if self.cursors[source].advance(end) && !self.load(source)? {
            self.heap.swap_remove(0);
        }
        self.sink(0);
        if self.keys.tail.rows == 0 && self.output.is_full() {
            self.output.flush()?;
        }
        Ok(())
    }

    fn load(&mut self, source: usize) -> Result<bool> {
        let cursor = &mut self.cursors[source];
        let loaded = cursor.load(&self.columns, &self.keys.retain)?;
        if loaded {
            self.output.loaded(source, &cursor.loaded().batch)?;
        }
        Ok(loaded)
    }

    /// The source that would be first without the first.
    fn runner_up(&self) -> Option<usize> {
        match self.heap[1..] {
            [] => None,
            [only] => Some(only),
            [left, right, ..] if self.precedes(right, left) => Some(right),
            [left, ..] => Some(left),
        }
    }

    fn precedes(&self, left: usize, right: usize) -> bool {
        self.cursors[left].precedes(&self.cursors[right])
    }

    /// Restores the heap below `at`.
    fn sink(&mut self, mut at: usize) {
        loop {
            let children = 2 * at + 1..(2 * at + 3).min(self.heap.len());
            let first = children.reduce(|left, right| {
                let right_is_first = self.precedes(self.heap[right], self.heap[left]);
                if right_is_first { right } else { left }
            });
            match first {
                Some(child) if self.precedes(self.heap[child], self.heap[at]) => {
                    self.heap.swap(child, at);
                    at = child;
                }
                _ => return,
            }
        }
    }
}

impl Iterator for Merge {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(batch) = self.output.pop() {
                return Some(Ok(batch));
            }
            match self.phase {
                Phase::Done => return None,
                Phase::Cut => {
                    self.phase = Phase::Running;
                    return None;
                }
                Phase::Opening | Phase::Running | Phase::Cutting => {}
            }
            if let Err(error) = self.advance() {
                self.phase = Phase::Done;
                return Some(Err(error));
            }
        }
    }
}

impl KeyState {
    /// Decides the rows `stretch` of a source's batch, the next ones in the order.
    fn take(
        &mut self,
        source: usize,
        loaded: &Loaded,
        stretch: Range<usize>,
        output: &mut Output,
    ) -> Result<()> {
        let first = stretch.start;
        let last = stretch.end - 1;
        if loaded.plain && self.retain.keeps_all(loaded.seq_max) {
            let first_fate = self.decide(loaded, first, output);
            if last > first {
                self.end_key(output);
                self.retain.start_key();
                self.keep_all(loaded, first + 1..stretch.end);
                // The last row may have older versions in other sources.
                self.retain.fate(loaded.seq(last), false, None);
                self.remember(loaded.key(last));
            }
            if first_fate == Fate::Combined {
                output.add_combined(source, &loaded.batch, first);
            }
            let start = if first_fate == Fate::Kept {
                first
            } else {
                first + 1
            };
            output.add_stretch(source, &loaded.batch, start, stretch.end - start)?;
        } else {
            for row in stretch {
                match self.decide(loaded, row, output) {
                    Fate::Kept => output.add(source, &loaded.batch, row, 1),
                    Fate::Combined => output.add_combined(source, &loaded.batch, row),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// The fate of `row`, counted.
    fn decide(&mut self, loaded: &Loaded, row: usize, output: &mut Output) -> Fate {
        let (key, seq) = (loaded.key(row), loaded.seq(row));
        let is_tombstone = loaded.is_tombstone(row);
        if self.last_key.as_deref() != Some(key) {
            self.end_key(output);
            self.retain.start_key();
            self.remember(key);
        }
        let fate = self.retain.fate(seq, is_tombstone, loaded.timed(row));
        let hash = if self.hash_rows {
            row_hash(key, seq)
        } else {
            0
        };
        self.stats.read.add_row(hash);
        match fate {
            Fate::Kept if is_tombstone && self.retain.drops_tombstones() => self.tail.add_row(hash),
            Fate::Kept => {
                self.stats.written.add(std::mem::take(&mut self.tail));
                self.stats.written.add_row(hash);
            }
            Fate::Combined => self.stats.combined.add_row(hash),
            Fate::Shadowed => self.stats.shadowed.add_row(hash),
            Fate::Expired => self.stats.expired.add_row(hash),
            Fate::RangeDeleted => self.stats.range_deleted.add_row(hash),
            Fate::Deleted => self.stats.deleted.add_row(hash),
        }
        fate
    }

    /// Counts rows that put keys of their own.
    fn keep_all(&mut self, loaded: &Loaded, rows: Range<usize>) {
        let count = rows.len() as u64;
        let mut hash = 0u64;
        if self.hash_rows {
            for row in rows {
                hash = hash.wrapping_add(row_hash(loaded.key(row), loaded.seq(row)));
            }
        }
        self.stats.read.add(RowSum::new(count, hash));
        self.stats.written.add(RowSum::new(count, hash));
    }

    /// The current key has no more rows: tombstones at its bottom go.
    fn end_key(&mut self, output: &mut Output) {
        let tail = std::mem::take(&mut self.tail);
        if tail.rows > 0 {
            output.take_back(tail.rows as usize);
            self.stats.deleted.add(tail);
        }
    }

    fn remember(&mut self, key: &[u8]) {
        let last_key = self.last_key.get_or_insert_default();
        last_key.clear();
        last_key.extend_from_slice(key);
    }
}
