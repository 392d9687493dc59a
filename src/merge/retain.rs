//! Which versions of a key survive: the rules of [`Keep`], applied to the rows of a key from the newest
//! to the oldest.
//!
//! State of one key: the seq of the row that hides the next ones, if there is one. A row at seq *s*
//! hidden by the row at *h* is seen exactly from the read points *p* with *s* ≤ *p* < *h*.

use super::{Keep, MergeOptions};
use crate::types::{Seq, WriteMode};

/// What becomes of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It comes out.
    Kept,
    /// It is hidden, or newer than the read point.
    Shadowed,
    /// It is a tombstone that a reader need not see.
    Deleted,
}

/// Decides the fate of rows, key by key.
pub(super) struct Retain {
    mode: WriteMode,
    keep: Keep,
    /// Seq of the nearest row that hides the ones to come.
    hider: Option<Seq>,
    /// Append mode: a tombstone that will hide rows as soon as their seq is lower than its own.
    tombstone: Option<Seq>,
}

impl Retain {
    pub(super) fn new(options: &MergeOptions) -> Self {
        Self {
            mode: options.mode,
            keep: options.keep.clone(),
            hider: None,
            tombstone: None,
        }
    }

    /// Whether tombstones at the bottom of a key's survivors are to go.
    pub(super) fn drops_tombstones(&self) -> bool {
        matches!(&self.keep, Keep::Retained(retention) if retention.drop_tombstones)
    }

    /// Whether rows up to `seq_max` that put keys of their own are all kept.
    pub(super) fn keeps_all(&self, seq_max: Seq) -> bool {
        match self.keep {
            Keep::Retained(_) => true,
            Keep::Visible(read_seq) => seq_max <= read_seq,
        }
    }

    /// The next row is the newest of another key.
    pub(super) fn start_key(&mut self) {
        self.hider = None;
        self.tombstone = None;
    }

    /// The fate of the next row of the current key.
    pub(super) fn fate(&mut self, seq: Seq, is_tombstone: bool) -> Fate {
        if matches!(self.keep, Keep::Visible(read_seq) if seq > read_seq) {
            return Fate::Shadowed;
        }
        if let Some(tombstone) = self.tombstone
            && tombstone > seq
        {
            self.hider = Some(tombstone);
        }
        let survives = self
            .hider
            .is_none_or(|hider| self.is_seen_below(hider, seq));
        match self.mode {
            WriteMode::Upsert => self.hider = Some(seq),
            WriteMode::Append if is_tombstone => self.tombstone = Some(seq),
            WriteMode::Append => {}
        }
        match (&self.keep, survives) {
            (_, false) => Fate::Shadowed,
            (Keep::Visible(_), true) if is_tombstone => Fate::Deleted,
            _ => Fate::Kept,
        }
    }

    /// Whether a read point sees the row at `seq` although the one at `hider` hides it.
    fn is_seen_below(&self, hider: Seq, seq: Seq) -> bool {
        let Keep::Retained(retention) = &self.keep else {
            return false;
        };
        let below = retention.read_points.partition_point(|&p| p < hider);
        below > 0 && retention.read_points[below - 1] >= seq
    }
}
