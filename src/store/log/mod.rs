//! A numbered log of objects: record *n+1* is created with put-if-absent, and whoever creates it has
//! appended. Catalog, manifests, plan log and the object WAL are such logs.
//!
//! **Reading.** Every [`Record`] says at which one its reader begins: the newest snapshot up to it. So the
//! newest record, found by one listing, names all that an open needs, and nothing else is read.
//!
//! **Writing.** A [`LogWriter`] claims a higher epoch when it opens; from then on a writer with an older
//! epoch finds the claim in its way and is `Fenced`. An append whose answer was lost is looked up by its
//! attempt id before it is retried.
//!
//! **Removal.** What stands before the newest snapshot is removed once the snapshot is older than the
//! grace. From then on put-if-absent no longer keeps an old writer out: it could create, below the
//! snapshot, the very record whose removal it slept through. So a writer that has not known the tail for
//! half the grace believes in what it created only after a listing shows that nothing stands beyond it.

mod follower;
mod record;
mod rests;
mod upkeep;
mod writer;

use std::{ops::Range, sync::Arc, time::Duration};

use futures::{Stream, StreamExt, TryStreamExt, stream};

pub use follower::{Followed, LogFollower};
pub use record::{Record, RecordKind};
pub use upkeep::SnapshotRule;
pub use writer::{APPEND_ATTEMPTS_MAX, LogWriter};

use super::{Store, layout};
use crate::{
    clock::Env,
    error::{Error, ErrorKind, Result},
};

/// How long records are kept after a snapshot made them needless, unless the log is told otherwise.
pub const GRACE: Duration = Duration::from_secs(600);
/// Records read, or removed, at once.
const REQUESTS_MAX: usize = 16;

/// Where a log takes its time from, and how long it keeps what is needless.
#[derive(Clone, Debug)]
pub struct LogSettings {
    /// Time, and nothing else.
    pub env: Env,
    /// How long records are kept after a snapshot made them needless. All writers of a log must have the
    /// same.
    pub grace: Duration,
}

impl From<Env> for LogSettings {
    fn from(env: Env) -> Self {
        Self { env, grace: GRACE }
    }
}

/// A log's folder, for reading.
#[derive(Clone, Debug)]
pub struct Log {
    store: Store,
    folder: Arc<str>,
    env: Env,
    grace: Duration,
}

impl Log {
    /// The log in `folder`.
    pub fn new(
        store: Store,
        folder: impl Into<Arc<str>>,
        settings: impl Into<LogSettings>,
    ) -> Self {
        let LogSettings { env, grace } = settings.into();
        Self {
            store,
            folder: folder.into(),
            env,
            grace,
        }
    }

    /// Its folder.
    pub fn folder(&self) -> &str {
        &self.folder
    }

    /// The records from the newest snapshot on, in order; all of them when there is none; empty when
    /// there is no log. One listing, and one read a record.
    ///
    /// # Errors
    /// `Corrupt`, naming the object, when a record is damaged or missing.
    pub async fn read(&self) -> Result<Vec<Record>> {
        loop {
            let Some(newest) = self.newest().await? else {
                return Ok(Vec::new());
            };
            let earlier = self.records(newest.base..newest.number);
            let error = match earlier.try_collect::<Vec<_>>().await {
                Ok(mut records) => {
                    records.push(newest);
                    self.check_epochs(&records)?;
                    return Ok(records);
                }
                Err(error) => error,
            };
            // The writer may have removed meanwhile what a newer snapshot made needless.
            let is_needed = async || {
                let now = self.newest().await?;
                Ok::<_, Error>(now.is_none_or(|now| now.base <= newest.base))
            };
            if error.kind() != ErrorKind::Corrupt || is_needed().await? {
                return Err(error);
            }
        }
    }

    /// Epochs never fall along a log: a record that an older writer appended after a newer one's was never
    /// acknowledged rightly.
    fn check_epochs(&self, records: &[Record]) -> Result<()> {
        let falls = |pair: &&[Record]| pair[0].epoch > pair[1].epoch;
        match records.windows(2).find(falls) {
            None => Ok(()),
            Some(pair) => {
                let name = self.name(pair[1].number);
                let (before, epoch) = (pair[0].epoch, pair[1].epoch);
                Err(Error::corrupt(format!(
                    "log record {name} has epoch {epoch}, the one before it {before}"
                )))
            }
        }
    }

    /// The newest record; `None` when there is no log.
    ///
    /// # Errors
    /// As for [`Self::read`].
    pub async fn newest(&self) -> Result<Option<Record>> {
        let mut missing = 0;
        loop {
            match self.newest_number().await? {
                0 => return Ok(None),
                // The writer may have removed it meanwhile, after a newer one.
                newest if newest != missing => match self.record(newest).await? {
                    Some(record) => return Ok(Some(record)),
                    None => missing = newest,
                },
                // Only the greatest number is taken from the listing: a listing that runs beside an append
                // may show a record and not the one before it.
                newest => return self.needed(newest).await.map(Some),
            }
        }
    }

    async fn newest_number(&self) -> Result<u64> {
        let numbers = self.numbers().await?;
        Ok(numbers.into_iter().max().unwrap_or(0))
    }

    /// Numbers of the objects that are there, in no order.
    async fn numbers(&self) -> Result<Vec<u64>> {
        let objects = self.store.list(&self.folder).await?;
        let numbers = objects.iter();
        Ok(numbers
            .filter_map(|object| layout::parse_log_record(&self.folder, &object.name))
            .collect())
    }

    /// The records with these numbers, in order, several read at once.
    ///
    /// # Errors
    /// As for [`Self::read`].
    pub fn records(&self, numbers: Range<u64>) -> impl Stream<Item = Result<Record>> + '_ {
        let reads = stream::iter(numbers).map(|number| self.needed(number));
        reads.buffered(REQUESTS_MAX)
    }

    /// The records after number `after`, in order.
    pub async fn read_after(&self, after: u64) -> Result<Vec<Record>> {
        let mut records = Vec::new();
        while let Some(record) = self.record(after + 1 + records.len() as u64).await? {
            records.push(record);
        }
        Ok(records)
    }

    /// As [`Self::read_after`], but as far as a listing tells: in time that does not depend on how fast others append.
    async fn read_beyond(&self, after: u64) -> Result<Vec<Record>> {
        let newest = self.newest_number().await?;
        let records: Vec<Record> = self.records(after + 1..newest + 1).try_collect().await?;
        self.check_epochs(&records)?;
        Ok(records)
    }

    /// Record `number`, or `None` when it has not been written.
    pub async fn record(&self, number: u64) -> Result<Option<Record>> {
        let name = self.name(number);
        match self.store.get(&name).await {
            Ok(bytes) => Record::decode(&name, number, &bytes).map(Some),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn needed(&self, number: u64) -> Result<Record> {
        let record = self.record(number).await?;
        record.ok_or_else(|| {
            let name = self.name(number);
            Error::corrupt(format!("log record {name} is missing"))
        })
    }

    /// Removes records that no reader needs; those that are gone count as removed.
    pub async fn remove(&self, numbers: impl IntoIterator<Item = u64>) -> Result<()> {
        let names = numbers.into_iter().map(|number| self.name(number));
        let removals =
            stream::iter(names).map(|name| async move { self.store.delete(&name).await });
        removals.buffer_unordered(REQUESTS_MAX).try_collect().await
    }

    fn name(&self, number: u64) -> String {
        layout::log_record(&self.folder, number)
    }
}

#[cfg(test)]
mod tests;
