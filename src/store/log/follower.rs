//! The reading end of a log that another process writes: what was appended since it was read last, for the
//! price of one request when there is nothing.
//!
//! The tail is where the next record is not there. Once the follower has not known the tail for half the grace,
//! the next record may be missing because it was removed: then it begins anew, with a listing, as after a
//! failure.

use super::{Log, Record};
use crate::{
    clock::Moment,
    error::{Error, Result},
    types::Epoch,
};

/// Follows a log.
#[derive(Debug)]
pub struct LogFollower {
    log: Log,
    /// The last record that is known and what it says, or `None` before the first reading.
    known: Option<Known>,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    last: u64,
    epoch: Epoch,
    /// When `last` was the tail for certain.
    tail_at: Moment,
}

/// What was appended to a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Followed {
    /// The records after those known.
    More(Vec<Record>),
    /// The records as of [`Log::read`], instead of those known.
    Anew(Vec<Record>),
}

impl LogFollower {
    /// Follows `log` from its newest snapshot on.
    pub fn new(log: Log) -> Self {
        Self { log, known: None }
    }

    /// Number of the last record that is known; 0 before the first reading.
    pub fn last(&self) -> u64 {
        self.known.map_or(0, |known| known.last)
    }

    /// Forgets what was read: the next reading begins anew.
    pub fn reset(&mut self) {
        self.known = None;
    }

    /// Reads what was appended.
    ///
    /// # Errors
    /// As for [`Log::read`]; the next reading begins where this one did.
    pub async fn follow(&mut self) -> Result<Followed> {
        let asked_at = self.log.env.moment();
        if let Some(known) = self.known.filter(|known| !self.is_stale(*known)) {
            let records = self.log.read_after(known.last).await?;
            // Reading them may have taken so long that the one after them was removed.
            if !self.is_stale(known) {
                self.check_epochs(known, &records)?;
                self.note(&records, asked_at);
                return Ok(Followed::More(records));
            }
        }
        let asked_at = self.log.env.moment();
        let records = self.log.read().await?;
        self.known = None;
        self.note(&records, asked_at);
        Ok(Followed::Anew(records))
    }

    fn is_stale(&self, known: Known) -> bool {
        self.log.env.since(known.tail_at) > self.log.grace / 2
    }

    fn note(&mut self, records: &[Record], tail_at: Moment) {
        let last = records.last().map(|record| (record.number, record.epoch));
        let known = self.known.map(|known| (known.last, known.epoch));
        self.known = last.or(known).map(|(last, epoch)| Known {
            last,
            epoch,
            tail_at,
        });
    }

    fn check_epochs(&self, known: Known, records: &[Record]) -> Result<()> {
        if let Some(first) = records.first().filter(|first| first.epoch < known.epoch) {
            let name = self.log.name(first.number);
            let (epoch, before) = (first.epoch, known.epoch);
            return Err(Error::corrupt(format!(
                "log record {name} has epoch {epoch}, the one before it {before}"
            )));
        }
        self.log.check_epochs(records)
    }
}
