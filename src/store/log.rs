//! A numbered log of objects: record *n+1* is created with put-if-absent, and whoever creates it has
//! appended. Catalog, manifest and plan log are such logs.
//!
//! A record, little-endian:
//! ```text
//! 0    8  magic "SILTLOG\0"
//! 8    2  format version, 1
//! 10   1  kind: 0 edit, 1 snapshot, 2 epoch claim
//! 11   1  reserved, 0
//! 12   8  epoch of the writer
//! 20  16  attempt id: random, tells our own record after a lost answer
//! 36   4  length of the body
//! 40   n  body (protobuf)
//! 40+n 4  CRC-32 of everything before it
//! ```
//!
//! A reader starts from the newest snapshot and applies the edits after it. A [`LogWriter`] claims a
//! higher epoch when it opens; from then on a writer with an older epoch finds the claim in its way and
//! is `Fenced`. An append whose answer was lost is looked up by its attempt id before it is retried.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};

use super::{Created, Store, layout};
use crate::{
    error::{Error, ErrorKind, Result},
    types::Epoch,
};

const MAGIC: &[u8; 8] = b"SILTLOG\0";
const VERSION: u16 = 1;
const HEADER_BYTES: usize = 40;
const CRC_BYTES: usize = 4;

/// What a record's body holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// A change to what the records before it add up to.
    Edit,
    /// All that the records before it add up to.
    Snapshot,
    /// Nothing: a writer took over with the record's epoch.
    Claim,
}

/// One record of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its place in the log, from 1.
    pub number: u64,
    /// What the body holds.
    pub kind: RecordKind,
    /// Epoch of the writer.
    pub epoch: Epoch,
    /// Random id of the append.
    pub attempt: u128,
    /// An encoded edit or snapshot.
    pub body: Bytes,
}

impl Record {
    /// The record's object.
    pub fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(HEADER_BYTES + self.body.len() + CRC_BYTES);
        bytes.put_slice(MAGIC);
        bytes.put_u16_le(VERSION);
        bytes.put_u8(match self.kind {
            RecordKind::Edit => 0,
            RecordKind::Snapshot => 1,
            RecordKind::Claim => 2,
        });
        bytes.put_u8(0);
        bytes.put_u64_le(self.epoch.0);
        bytes.put_u128_le(self.attempt);
        bytes.put_u32_le(self.body.len() as u32);
        bytes.put_slice(&self.body);
        let crc = crc32fast::hash(&bytes);
        bytes.put_u32_le(crc);
        bytes.freeze()
    }

    /// The record in `bytes`, the object `name` of number `number`.
    ///
    /// # Errors
    /// `Corrupt`, naming the object: not a record, truncated, damaged, or from a newer version.
    pub fn decode(name: &str, number: u64, bytes: &Bytes) -> Result<Self> {
        let corrupt = |what: String| Error::corrupt(format!("log record {name}: {what}"));
        let length = bytes.len();
        if length < HEADER_BYTES + CRC_BYTES {
            return Err(corrupt(format!("{length} bytes are too few for a record")));
        }
        if &bytes[..8] != MAGIC {
            return Err(corrupt("does not begin with SILTLOG".into()));
        }
        let version = u16::from_le_bytes(bytes[8..10].try_into().expect("2 bytes"));
        if version != VERSION {
            return Err(corrupt(format!(
                "format version {version}; this siltstone reads version {VERSION}"
            )));
        }
        let body_bytes = u32::from_le_bytes(bytes[36..40].try_into().expect("4 bytes")) as usize;
        if length != HEADER_BYTES + body_bytes + CRC_BYTES {
            return Err(corrupt(format!(
                "{length} bytes, but its body has {body_bytes}"
            )));
        }
        let (content, crc) = bytes.split_at(length - CRC_BYTES);
        let crc = u32::from_le_bytes(crc.try_into().expect("4 bytes"));
        if crc32fast::hash(content) != crc {
            return Err(corrupt("checksum does not match".into()));
        }
        let kind = match bytes[10] {
            0 => RecordKind::Edit,
            1 => RecordKind::Snapshot,
            2 => RecordKind::Claim,
            kind => return Err(corrupt(format!("kind {kind} is not known"))),
        };
        Ok(Self {
            number,
            kind,
            epoch: Epoch(u64::from_le_bytes(
                bytes[12..20].try_into().expect("8 bytes"),
            )),
            attempt: u128::from_le_bytes(bytes[20..36].try_into().expect("16 bytes")),
            body: bytes.slice(HEADER_BYTES..HEADER_BYTES + body_bytes),
        })
    }
}

/// A log's folder, for reading.
#[derive(Clone, Debug)]
pub struct Log {
    store: Store,
    folder: String,
}

impl Log {
    /// The log in `folder`.
    pub fn new(store: Store, folder: impl Into<String>) -> Self {
        Self {
            store,
            folder: folder.into(),
        }
    }

    /// The records from the newest snapshot on, in order; all of them when there is none; empty when
    /// there is no log.
    ///
    /// # Errors
    /// `Corrupt`, naming the object, when a record is damaged or missing.
    pub async fn read(&self) -> Result<Vec<Record>> {
        let objects = self.store.list(&self.folder).await?;
        let numbers = objects
            .iter()
            .filter_map(|object| layout::parse_log_record(&object.name));
        // Only the greatest number is taken from the listing: a listing that runs beside an append may
        // show a record and not the one before it.
        let newest = numbers.max().unwrap_or(0);
        let mut records = Vec::new();
        for number in (1..=newest).rev() {
            let record = self.record(number).await?;
            let record = record.ok_or_else(|| self.missing(number))?;
            let is_snapshot = record.kind == RecordKind::Snapshot;
            records.push(record);
            if is_snapshot {
                break;
            }
        }
        records.reverse();
        Ok(records)
    }

    /// The records after number `after`, in order.
    pub async fn read_after(&self, after: u64) -> Result<Vec<Record>> {
        let mut records = Vec::new();
        while let Some(record) = self.record(after + 1 + records.len() as u64).await? {
            records.push(record);
        }
        Ok(records)
    }

    /// Record `number`, or `None` when it has not been written.
    pub async fn record(&self, number: u64) -> Result<Option<Record>> {
        let name = layout::log_record(&self.folder, number);
        match self.store.get(&name).await {
            Ok(bytes) => Record::decode(&name, number, &bytes).map(Some),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn missing(&self, number: u64) -> Error {
        let name = layout::log_record(&self.folder, number);
        Error::corrupt(format!("log record {name} is missing"))
    }

    /// Creates one record; says what stands in its place when that is not certainly ours.
    async fn append(&self, record: &Record) -> Result<Appended> {
        let name = layout::log_record(&self.folder, record.number);
        match self.store.create(&name, record.encode()).await {
            Ok(Created::New) => Ok(Appended::Committed),
            Ok(Created::Exists) => Ok(Appended::Conflict),
            Err(error) if error.is_unavailable() => Ok(Appended::Unknown(error)),
            Err(error) => Err(error),
        }
    }
}

/// How one attempt to create a record ended.
#[derive(Debug)]
enum Appended {
    Committed,
    /// A record of that number exists; perhaps our own, from a request that was sent twice.
    Conflict,
    /// The answer was lost: the record may exist or not.
    Unknown(Error),
}

/// How often an append whose answers are lost is tried before it is given up as `Unavailable`.
pub const APPEND_ATTEMPTS_MAX: u32 = 8;
const RETRY_DELAY_MIN: Duration = Duration::from_millis(10);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(1);

/// The one writer of a log, until another claims a higher epoch. Appends need `&mut self`: one at a
/// time.
#[derive(Debug)]
pub struct LogWriter {
    log: Log,
    epoch: Epoch,
    last: u64,
    /// Attempts at record `last + 1` that ended without our knowing how, or whose future was dropped:
    /// the record may be any of them, now or later, for a request can arrive after its caller gave up.
    in_doubt: Vec<u128>,
}

impl LogWriter {
    /// Takes the log over: claims an epoch above all others. Returns the records, as [`Log::read`],
    /// that precede the claim.
    ///
    /// `attempts` gives a fresh random id for each append.
    ///
    /// # Errors
    /// `Corrupt` as for [`Log::read`]; `Conflict` when others keep claiming; `Unavailable`.
    pub async fn open(log: Log, attempts: impl FnMut() -> u128) -> Result<(Self, Vec<Record>)> {
        Self::claim(log, None, attempts).await
    }

    /// As [`LogWriter::open`], but claims exactly `epoch`, which another log's writer claimed there: so one
    /// claim decides over many logs.
    ///
    /// # Errors
    /// `Fenced` when the log has a record of `epoch` or a newer one.
    pub async fn open_at(
        log: Log,
        epoch: Epoch,
        attempts: impl FnMut() -> u128,
    ) -> Result<(Self, Vec<Record>)> {
        Self::claim(log, Some(epoch), attempts).await
    }

    async fn claim(
        log: Log,
        at: Option<Epoch>,
        mut attempts: impl FnMut() -> u128,
    ) -> Result<(Self, Vec<Record>)> {
        let mut records = log.read().await?;
        for _ in 0..APPEND_ATTEMPTS_MAX {
            let newest = records.iter().map(|record| record.epoch).max();
            let newest = newest.unwrap_or_default();
            if let Some(epoch) = at.filter(|epoch| *epoch <= newest) {
                let folder = &log.folder;
                return Err(Error::fenced(format!(
                    "log {folder} was taken over with epoch {newest}; ours is {epoch}"
                )));
            }
            let mut writer = Self {
                log: log.clone(),
                epoch: at.unwrap_or(Epoch(newest.0 + 1)),
                last: records.last().map_or(0, |record| record.number),
                in_doubt: Vec::new(),
            };
            match writer
                .append(RecordKind::Claim, Bytes::new(), attempts())
                .await
            {
                Ok(_) => return Ok((writer, records)),
                Err(error) if matches!(error.kind(), ErrorKind::Conflict | ErrorKind::Fenced) => {
                    records.extend(log.read_after(writer.last).await?);
                }
                Err(error) => return Err(error),
            }
        }
        Err(Error::conflict(format!(
            "other writers keep taking over log {}",
            log.folder
        )))
    }

    /// Our epoch.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Number of the last record known to be in the log.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Counts the records up to `number` as read: the next append goes after them.
    pub fn skip_to(&mut self, number: u64) {
        self.last = self.last.max(number);
        self.in_doubt.clear();
    }

    /// Appends a record; returns its number once it is durable. `attempt` is a fresh random id. When the
    /// future is dropped, the record may or may not be in the log, as after `Unavailable`.
    ///
    /// # Errors
    /// `Fenced` when a writer with a newer epoch has taken over: nothing was appended, and nothing will
    /// be. `Unavailable` when the store did not answer: the record may or may not be in the log, or
    /// arrive later. `Conflict` when one that was thus in doubt turns out to be in the log: this record
    /// was not appended; read what is there after the number known before, and decide again. `Corrupt`
    /// when a damaged record stands in the way. `TooLarge` when the body is over 4 GiB.
    pub async fn append(&mut self, kind: RecordKind, body: Bytes, attempt: u128) -> Result<u64> {
        if u32::try_from(body.len()).is_err() {
            let bytes = body.len();
            return Err(Error::too_large(format!("log record of {bytes} bytes")));
        }
        let record = Record {
            number: self.last + 1,
            kind,
            epoch: self.epoch,
            attempt,
            body,
        };
        if !self.in_doubt.is_empty()
            && let Some(found) = self.log.record(record.number).await?
        {
            return Err(self.refused(&found));
        }
        self.in_doubt.push(attempt);
        let mut delay = RETRY_DELAY_MIN;
        for _ in 1..APPEND_ATTEMPTS_MAX {
            if self.attempt(&record).await?.is_none() {
                return Ok(self.committed());
            }
            tokio::time::sleep(delay).await;
            delay = (delay * 2).min(RETRY_DELAY_MAX);
        }
        match self.attempt(&record).await? {
            None => Ok(self.committed()),
            Some(doubt) => {
                let name = layout::log_record(&self.log.folder, record.number);
                Err(doubt.context(format!("append {name}: outcome unknown")))
            }
        }
    }

    /// Tries once to append `record`; `None` when it is in the log, `Some` when nobody knows.
    async fn attempt(&mut self, record: &Record) -> Result<Option<Error>> {
        let doubt = match self.log.append(record).await? {
            Appended::Committed => return Ok(None),
            Appended::Conflict => Error::unavailable("it exists, but cannot be read"),
            Appended::Unknown(error) => error,
        };
        match self.log.record(record.number).await {
            Ok(Some(found)) if found.attempt == record.attempt => Ok(None),
            Ok(Some(found)) => Err(self.refused(&found)),
            Ok(None) => Ok(Some(doubt)),
            Err(error) if error.is_unavailable() => Ok(Some(doubt)),
            Err(error) => Err(error),
        }
    }

    fn committed(&mut self) -> u64 {
        self.in_doubt.clear();
        self.last += 1;
        self.last
    }

    /// Why the record that was found at `last + 1` keeps ours from being appended.
    fn refused(&mut self, found: &Record) -> Error {
        let name = layout::log_record(&self.log.folder, found.number);
        let (ours, theirs) = (self.epoch, found.epoch);
        if theirs > ours {
            Error::fenced(format!(
                "{name} was written with epoch {theirs}; ours is {ours}"
            ))
        } else if self.in_doubt.contains(&found.attempt) {
            self.committed();
            Error::conflict(format!("{name} is ours after all: reload"))
        } else {
            Error::conflict(format!(
                "{name} was written first, with epoch {theirs}; ours is {ours}"
            ))
        }
    }
}

#[cfg(test)]
mod tests;
