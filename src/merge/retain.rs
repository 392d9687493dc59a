//! Which versions of a key survive: the rules of [`Keep`], applied to the rows of a key from the newest
//! to the oldest.
//!
//! A row at seq *s* hidden by something at *h* is seen exactly from the read points *p* with *s* ≤ *p* < *h*.
//! What hides a row is the nearest of: a newer row of its key, a tombstone only where rows combine or are all
//! kept; a range delete that covers its time. Two rows combine if no read point sees the older one alone, and
//! nothing between them hides the older one.

use super::{Keep, MergeOptions};
use crate::types::{RangeDelete, Seq, WriteMode};

/// What becomes of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It comes out.
    Kept,
    /// It becomes part of the row before it.
    Combined,
    /// It is hidden by a row, or newer than the read point.
    Shadowed,
    /// It is a tombstone that a reader need not see.
    Deleted,
    /// It is past the table's time to live.
    Expired,
    /// A range delete hides it.
    RangeDeleted,
}

/// How a table's rows of equal key go together.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// The newest hides the others.
    Replace,
    /// Puts become one; a tombstone hides what is below.
    Combine,
    /// All are kept; a tombstone hides what is below.
    Append,
}

/// What of a batch its time decides: the range deletes that may cover its rows, and a row's time.
#[derive(Clone, Copy)]
pub(super) struct Timed<'a> {
    pub(super) time: i64,
    pub(super) deletes: &'a [RangeDelete],
}

/// Decides the fate of rows, key by key.
pub(super) struct Retain {
    mode: Mode,
    keep: Keep,
    /// Seq of the nearest row that hides the ones to come.
    hider: Option<Seq>,
    /// Append mode: a tombstone that will hide rows as soon as their seq is lower than its own.
    tombstone: Option<Seq>,
    /// Combine mode: seq of the kept put that the next ones may become part of.
    base: Option<Seq>,
}

impl Retain {
    pub(super) fn new(options: &MergeOptions, combines: bool) -> Self {
        Self {
            mode: match options.mode {
                WriteMode::Append => Mode::Append,
                WriteMode::Upsert if combines => Mode::Combine,
                WriteMode::Upsert => Mode::Replace,
            },
            keep: options.keep.clone(),
            hider: None,
            tombstone: None,
            base: None,
        }
    }

    /// Whether tombstones at the bottom of a key's survivors are to go.
    pub(super) fn drops_tombstones(&self) -> bool {
        matches!(&self.keep, Keep::Retained(retention) if retention.drop_tombstones)
    }

    /// Whether rows up to `seq_max` that put keys of their own are all kept, if their time allows.
    pub(super) fn keeps_all(&self, seq_max: Seq) -> bool {
        match &self.keep {
            Keep::Retained(_) => true,
            Keep::Visible(view) => seq_max <= view.seq,
        }
    }

    /// Time before which rows are expired.
    pub(super) fn expiry(&self) -> Option<i64> {
        match &self.keep {
            Keep::Retained(retention) => retention.expiry,
            Keep::Visible(view) => view.expiry,
        }
    }

    /// The range deletes that can hide rows from `seq_min` on with times from `min` to `max`.
    pub(super) fn deletes(&self, seq_min: Seq, (min, max): (i64, i64)) -> Vec<RangeDelete> {
        let (deletes, seq_max) = match &self.keep {
            Keep::Retained(retention) => (&retention.range_deletes, Seq(u64::MAX)),
            Keep::Visible(view) => (&view.range_deletes, view.seq),
        };
        let applies = |delete: &&RangeDelete| {
            delete.seq > seq_min && delete.seq <= seq_max && delete.times.overlaps(min, max)
        };
        deletes.iter().filter(applies).copied().collect()
    }

    /// Whether any row can be dropped for its time.
    pub(super) fn looks_at_times(&self) -> bool {
        let deletes = match &self.keep {
            Keep::Retained(retention) => &retention.range_deletes,
            Keep::Visible(view) => &view.range_deletes,
        };
        self.expiry().is_some() || !deletes.is_empty()
    }

    /// The next row is the newest of another key.
    pub(super) fn start_key(&mut self) {
        self.hider = None;
        self.tombstone = None;
        self.base = None;
    }

    /// The fate of the next row of the current key. `timed` is needed where its time may decide.
    pub(super) fn fate(&mut self, seq: Seq, is_tombstone: bool, timed: Option<Timed<'_>>) -> Fate {
        if matches!(&self.keep, Keep::Visible(view) if seq > view.seq) {
            return Fate::Shadowed;
        }
        let expiry = self.expiry();
        if timed.is_some_and(|timed| expiry.is_some_and(|expiry| timed.time < expiry)) {
            return Fate::Expired;
        }
        let range_hider = timed.and_then(|row| RangeDelete::hider(row.deletes, seq, row.time));
        if let Some(tombstone) = self.tombstone
            && tombstone > seq
        {
            self.hider = Some(tombstone);
        }
        let row_hider = self.hider;
        let is_hidden = |hider: Option<Seq>| hider.is_some_and(|h| !self.is_seen_below(h, seq));
        let fate = if is_hidden(row_hider) {
            Fate::Shadowed
        } else if is_hidden(range_hider) {
            Fate::RangeDeleted
        } else {
            self.join(seq, is_tombstone, range_hider)
        };
        match self.mode {
            Mode::Replace => self.hider = Some(seq),
            Mode::Append if is_tombstone => self.tombstone = Some(seq),
            Mode::Combine if is_tombstone => (self.hider, self.base) = (Some(seq), None),
            Mode::Combine if fate == Fate::Kept => self.base = Some(seq),
            Mode::Append | Mode::Combine => {}
        }
        fate
    }

    /// The fate of a row that is not hidden.
    fn join(&self, seq: Seq, is_tombstone: bool, range_hider: Option<Seq>) -> Fate {
        if is_tombstone {
            return match self.keep {
                Keep::Visible(_) => Fate::Deleted,
                Keep::Retained(_) => Fate::Kept,
            };
        }
        match self.base {
            // Which no two sources should hold: the first counts.
            Some(base) if base == seq => Fate::Shadowed,
            Some(base)
                if range_hider.is_none_or(|hider| hider > base)
                    && !self.is_seen_below(base, seq) =>
            {
                Fate::Combined
            }
            _ => Fate::Kept,
        }
    }

    /// Whether a read point sees the row at `seq` although something at `hider` hides it.
    fn is_seen_below(&self, hider: Seq, seq: Seq) -> bool {
        let Keep::Retained(retention) = &self.keep else {
            return false;
        };
        let below = retention.read_points.partition_point(|&p| p < hider);
        below > 0 && retention.read_points[below - 1] >= seq
    }
}
