//! A source of a merge at its current row: the batch, its keys in row encoding, its order checked.

use std::{cmp::Ordering, ops::Range};

use arrow::{
    array::{Array, AsArray, Int64Array, RecordBatch},
    buffer::ScalarBuffer,
    compute::{max, min},
    datatypes::{DataType, UInt8Type, UInt64Type},
    row::Rows,
};

use super::{
    MergeColumns, SortedSource,
    retain::{Retain, Timed},
};
use crate::{
    error::{Error, Result},
    types::{Op, RangeDelete, Seq, TableSchema},
};

/// Walks through one source. Before the first [`Cursor::load`], and after the last, it is at no row.
pub(super) struct Cursor {
    source: SortedSource,
    /// Position among the sources: the last criterion of the order.
    index: usize,
    loaded: Option<Loaded>,
    position: usize,
    /// Key and seq of the last row of the batch before, to check the order across batches.
    last: Option<(Vec<u8>, Seq)>,
}

/// A batch and what the merge needs to know of it.
pub(super) struct Loaded {
    pub(super) batch: RecordBatch,
    pub(super) keys: Rows,
    pub(super) seqs: ScalarBuffer<u64>,
    pub(super) ops: ScalarBuffer<u8>,
    /// The greatest seq in it.
    pub(super) seq_max: Seq,
    /// Whether no two neighbours have the same key, no row is a tombstone, and none can go for its time.
    pub(super) plain: bool,
    /// Where times decide: the time of each row, and the range deletes that can hide one.
    timed: Option<(Int64Array, Vec<RangeDelete>)>,
}

impl Loaded {
    pub(super) fn key(&self, row: usize) -> &[u8] {
        self.keys.row(row).data()
    }

    pub(super) fn seq(&self, row: usize) -> Seq {
        Seq(self.seqs[row])
    }

    pub(super) fn is_tombstone(&self, row: usize) -> bool {
        self.ops[row] == Op::Delete as u8
    }

    /// What decides by time about `row`.
    pub(super) fn timed(&self, row: usize) -> Option<Timed<'_>> {
        let (times, deletes) = self.timed.as_ref()?;
        Some(Timed {
            time: times.value(row),
            deletes,
        })
    }

    fn rows(&self) -> usize {
        self.batch.num_rows()
    }
}

impl Cursor {
    pub(super) fn new(source: SortedSource, index: usize) -> Self {
        Self {
            source,
            index,
            loaded: None,
            position: 0,
            last: None,
        }
    }

    /// Goes to the first row of the next batch that has any; false at the end of the source.
    ///
    /// # Errors
    /// The source's own; `Corrupt` when its rows are out of order; `Internal` when its columns are not
    /// what `columns` says.
    pub(super) fn load(&mut self, columns: &MergeColumns, retain: &Retain) -> Result<bool> {
        if let Some(done) = self.loaded.take()
            && done.rows() > 0
        {
            let row = done.rows() - 1;
            let (key, seq) = self.last.get_or_insert_default();
            key.clear();
            key.extend_from_slice(done.key(row));
            *seq = done.seq(row);
        }
        self.position = 0;
        let batch = loop {
            match self.source.next().transpose()? {
                None => return Ok(false),
                Some(batch) if batch.num_rows() == 0 => {}
                Some(batch) => break batch,
            }
        };
        let loaded = self.check(batch, columns, retain)?;
        self.loaded = Some(loaded);
        Ok(true)
    }

    fn check(&self, batch: RecordBatch, columns: &MergeColumns, retain: &Retain) -> Result<Loaded> {
        let index = self.index;
        let wrong = |column: usize, want: DataType| {
            Error::internal(format!(
                "merge: column {column} of source {index} is not a {want} without nulls"
            ))
        };
        let seqs = batch.column(columns.seq);
        let seqs = seqs
            .as_primitive_opt::<UInt64Type>()
            .filter(|seqs| seqs.null_count() == 0)
            .ok_or_else(|| wrong(columns.seq, DataType::UInt64))?
            .values()
            .clone();
        let ops = batch.column(columns.op);
        let ops = ops
            .as_primitive_opt::<UInt8Type>()
            .filter(|ops| ops.null_count() == 0)
            .ok_or_else(|| wrong(columns.op, DataType::UInt8))?
            .values()
            .clone();
        let keys = columns.key.encode(&batch)?;

        let disorder = |row: usize| {
            Error::corrupt(format!(
                "source {index}: its row at seq {} is out of order: keys must ascend, and the seqs of a \
                 key descend",
                seqs[row]
            ))
        };
        if let Some((key, seq)) = &self.last {
            let first = (keys.row(0).data(), seqs[0]);
            if order((key, seq.0), first) == Ordering::Greater {
                return Err(disorder(0));
            }
        }
        let mut repeats = false;
        for row in 1..batch.num_rows() {
            match keys.row(row - 1).data().cmp(keys.row(row).data()) {
                Ordering::Less => {}
                Ordering::Equal if seqs[row - 1] >= seqs[row] => repeats = true,
                _ => return Err(disorder(row)),
            }
        }
        let tombstones = ops.iter().any(|&op| op != Op::Put as u8);
        let seq_max = Seq(seqs.iter().copied().max().unwrap_or(0));
        let seq_min = Seq(seqs.iter().copied().min().unwrap_or(0));
        let timed = times_that_decide(&batch, columns, retain, seq_min)?;
        Ok(Loaded {
            plain: !repeats && !tombstones && timed.is_none(),
            timed,
            batch,
            keys,
            seqs,
            ops,
            seq_max,
        })
    }

    /// The current batch.
    pub(super) fn loaded(&self) -> &Loaded {
        let loaded = self.loaded.as_ref();
        loaded.expect("only sources that are at a row are asked")
    }

    /// Whether this source's current row comes before `other`'s.
    pub(super) fn precedes(&self, other: &Cursor) -> bool {
        self.row_precedes(self.position, other)
    }

    fn row_precedes(&self, row: usize, other: &Cursor) -> bool {
        let (mine, its) = (self.loaded(), other.loaded());
        let my_row = (mine.key(row), mine.seqs[row]);
        let its_row = (its.key(other.position), its.seqs[other.position]);
        order(my_row, its_row).then(self.index.cmp(&other.index)) == Ordering::Less
    }

    /// The rows from the current one on that precede `rival`'s current row, or all without a rival. The
    /// current row is known to precede it.
    ///
    /// The end is found by doubling steps, then by bisection: a handful of comparisons for a short
    /// stretch, two logarithms of its length for a long one.
    pub(super) fn stretch(&self, rival: Option<&Cursor>) -> Range<usize> {
        let rows = self.loaded().rows();
        let Some(rival) = rival else {
            return self.position..rows;
        };
        let mut inside = self.position;
        let mut step = 1;
        let mut outside = rows;
        while inside + step < rows {
            if !self.row_precedes(inside + step, rival) {
                outside = inside + step;
                break;
            }
            inside += step;
            step *= 2;
        }
        while outside - inside > 1 {
            let middle = inside + (outside - inside) / 2;
            if self.row_precedes(middle, rival) {
                inside = middle;
            } else {
                outside = middle;
            }
        }
        self.position..outside
    }

    /// How many rows from the current one on, of this batch, have the key `key`.
    pub(super) fn rows_of(&self, key: &[u8]) -> usize {
        let loaded = self.loaded();
        let rows = self.position..loaded.rows();
        rows.take_while(|&row| loaded.key(row) == key).count()
    }

    /// Goes on to `row` of the current batch; true when that is past its end.
    pub(super) fn advance(&mut self, row: usize) -> bool {
        self.position = row;
        row == self.loaded().rows()
    }
}

/// The times of the rows of `batch`, and the range deletes that can hide one; `None` where no row can go for
/// its time.
fn times_that_decide(
    batch: &RecordBatch,
    columns: &MergeColumns,
    retain: &Retain,
    seq_min: Seq,
) -> Result<Option<(Int64Array, Vec<RangeDelete>)>> {
    let Some(column) = columns.time.filter(|_| retain.looks_at_times()) else {
        return Ok(None);
    };
    let times = TableSchema::times(batch, column)?;
    let (Some(min), Some(max)) = (min(&times), max(&times)) else {
        return Ok(None);
    };
    let deletes = retain.deletes(seq_min, (min, max));
    let expires = retain.expiry().is_some_and(|expiry| min < expiry);
    Ok((expires || !deletes.is_empty()).then_some((times, deletes)))
}

/// Key ascending, then seq descending.
fn order(left: (&[u8], u64), right: (&[u8], u64)) -> Ordering {
    left.0.cmp(right.0).then(right.1.cmp(&left.1))
}
