//! The writing end of a log: claiming an epoch, appending under it, and removing what is old.
//!
//! Invariants:
//! * A record counts as appended only if every later reader will see it.
//! * After a record of a newer epoch was met, nothing is appended.
//! * Whether an attempt whose answer was lost took effect is known before the next record is decided.

use std::time::Duration;

use bytes::Bytes;

use super::{Log, Record, RecordKind, SnapshotRule, rests::Rests};
use crate::{
    clock::Moment,
    error::{Error, ErrorKind, Result},
    store::Created,
    types::Epoch,
};

/// How often an append whose answers are lost is tried before it is given up as `Unavailable`.
pub const APPEND_ATTEMPTS_MAX: u32 = 8;
/// How often a claim is tried in whose way the appends of others come.
const CLAIM_ATTEMPTS_MAX: u32 = 500;
const RETRY_DELAY_MIN: Duration = Duration::from_millis(10);
const RETRY_DELAY_MAX: Duration = Duration::from_secs(1);

/// The one writer of a log, until another claims a higher epoch. Appends need `&mut self`: one at a
/// time.
#[derive(Debug)]
pub struct LogWriter {
    log: Log,
    epoch: Epoch,
    last: u64,
    /// Where a reader of the next record begins.
    base: u64,
    /// Attempts at record `last + 1` that ended without our knowing how, or whose future was dropped:
    /// the record may be any of them, now or later, for a request can arrive after its caller gave up.
    in_doubt: Vec<u128>,
    /// When `last` was the tail for certain.
    tail_at: Moment,
    snapshots: SnapshotRule,
    /// Records before this number are needless, and have been since then at the latest.
    obsolete: Option<(u64, Moment)>,
    rests: Option<Rests>,
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

/// How a log is taken over.
struct Claim<A, B> {
    /// The epoch to claim, if another log decides it.
    at: Option<Epoch>,
    /// Gives a fresh random id for each attempt.
    attempts: A,
    /// The claim's body, from the records that precede it.
    body: B,
    /// Whether the records that precede the claim are wanted, or only the newest of them.
    whole: bool,
}

impl<A, B> Claim<A, B> {
    /// The records that precede it, and when they were asked for. Of a log that was read before, in vain, only what has
    /// come since is read: who reads all again each time never catches up with a busy writer.
    async fn preceding(
        &self,
        log: &Log,
        before: Option<(LogWriter, Vec<Record>)>,
    ) -> Result<(Vec<Record>, Moment)> {
        let asked_at = log.env.moment();
        let records = match before {
            Some((writer, mut records)) if self.whole && !writer.is_stale() => {
                records.extend(log.read_beyond(writer.last).await?);
                records
            }
            _ if self.whole => log.read().await?,
            _ => log.newest().await?.into_iter().collect(),
        };
        Ok((records, asked_at))
    }
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
        Self::open_with(log, attempts, |_| Ok(Bytes::new())).await
    }

    /// As [`LogWriter::open`], with a body for the claim that may depend on the records before it.
    ///
    /// # Errors
    /// What `body` answers, too: then nothing is claimed.
    pub async fn open_with(
        log: Log,
        attempts: impl FnMut() -> u128,
        body: impl FnMut(&[Record]) -> Result<Bytes>,
    ) -> Result<(Self, Vec<Record>)> {
        let claim = Claim {
            at: None,
            attempts,
            body,
            whole: true,
        };
        Self::claim(log, claim).await
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
        let claim = Claim {
            at: Some(epoch),
            attempts,
            body: |_: &[Record]| Ok(Bytes::new()),
            whole: true,
        };
        Self::claim(log, claim).await
    }

    /// As [`LogWriter::open_at`], but reads the newest record only: what precedes the claim is to be read
    /// with [`Log::records`], from [`Self::base`] on, when it is too much to be held at once.
    ///
    /// # Errors
    /// As for [`LogWriter::open_at`].
    pub async fn open_tail(log: Log, epoch: Epoch, attempts: impl FnMut() -> u128) -> Result<Self> {
        let claim = Claim {
            at: Some(epoch),
            attempts,
            body: |_: &[Record]| Ok(Bytes::new()),
            whole: false,
        };
        Self::claim(log, claim).await.map(|(writer, _)| writer)
    }

    async fn claim<A, B>(log: Log, mut claim: Claim<A, B>) -> Result<(Self, Vec<Record>)>
    where
        A: FnMut() -> u128,
        B: FnMut(&[Record]) -> Result<Bytes>,
    {
        let (mut records, mut asked_at) = claim.preceding(&log, None).await?;
        for _ in 0..CLAIM_ATTEMPTS_MAX {
            // Epochs never fall along a log.
            let newest = records.last().map_or(Epoch(0), |record| record.epoch);
            if let Some(epoch) = claim.at.filter(|epoch| *epoch <= newest) {
                let folder = &log.folder;
                return Err(Error::fenced(format!(
                    "log {folder} was taken over with epoch {newest}; ours is {epoch}"
                )));
            }
            let epoch = claim.at.unwrap_or(Epoch(newest.0 + 1));
            let mut writer = Self::behind(&log, epoch, &records, asked_at);
            let (body, attempt) = ((claim.body)(&records)?, (claim.attempts)());
            let others = match writer.append(RecordKind::Claim, body, attempt).await {
                Ok(_) if claim.whole || writer.is_tail(attempt).await? => {
                    return Ok((writer, records));
                }
                Ok(_) => None,
                Err(error) if matches!(error.kind(), ErrorKind::Conflict | ErrorKind::Fenced) => {
                    Some((writer, records))
                }
                Err(error) => return Err(error),
            };
            (records, asked_at) = claim.preceding(&log, others).await?;
        }
        Err(Error::conflict(format!(
            "log {} cannot be taken over: others have written to it just before, {CLAIM_ATTEMPTS_MAX} times",
            log.folder
        )))
    }

    /// The writer whose claim is to follow `records`, which were asked for at `asked_at`.
    fn behind(log: &Log, epoch: Epoch, records: &[Record], asked_at: Moment) -> Self {
        let mut writer = Self {
            log: log.clone(),
            epoch,
            last: 0,
            base: 1,
            in_doubt: Vec::new(),
            tail_at: asked_at,
            snapshots: SnapshotRule::default(),
            obsolete: None,
            rests: None,
        };
        for record in records {
            writer.note(record, asked_at);
        }
        writer
    }

    /// The same, but it rests now and then while it is busy, so that another can take the log over. For a log that its
    /// writer learns only from that it was taken over.
    #[must_use]
    pub fn resting(mut self) -> Self {
        self.rests = Some(Rests::default());
        self
    }

    /// Our epoch.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Number of the last record known to be in the log.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Number of the record at which a reader begins.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// The log it writes.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Records before `number` are needless: readers of what is appended from now on begin there, or at
    /// the record itself. For logs without snapshots.
    pub fn begin_at(&mut self, number: u64) {
        if number > self.base {
            self.set_base(number.min(self.last + 1), self.log.env.moment());
        }
    }

    fn set_base(&mut self, base: u64, since: Moment) {
        self.base = base;
        self.obsolete = self.obsolete.or((base > 1).then_some((base, since)));
    }

    /// Counts `record`, which stands after `last`, as read or written at `at`.
    fn note(&mut self, record: &Record, at: Moment) {
        let bytes = record.bytes();
        match record.kind {
            RecordKind::Snapshot => self.snapshots.snapshot(bytes),
            RecordKind::Edit | RecordKind::Claim => self.snapshots.edit(bytes),
        }
        if record.base > self.base {
            self.set_base(record.base, at);
        }
        self.last = record.number;
        self.tail_at = at;
        self.in_doubt.clear();
    }

    /// Appends a record; returns its number once it is durable. `attempt` is a fresh random id. When the
    /// future is dropped, the record may or may not be in the log, as after `Unavailable`.
    ///
    /// # Errors
    /// `Fenced` when a writer with a newer epoch has taken over: nothing is appended any more.
    /// `Unavailable` when the store did not answer: the record may or may not be in the log, or
    /// arrive later. `Conflict` when one that was thus in doubt turns out to be in the log: this record
    /// was not appended; [catch up](Self::catch_up), and decide again. `Corrupt` when a damaged record
    /// stands in the way. `TooLarge` when the body is over 4 GiB.
    pub async fn append(&mut self, kind: RecordKind, body: Bytes, attempt: u128) -> Result<u64> {
        if u32::try_from(body.len()).is_err() {
            let bytes = body.len();
            return Err(Error::too_large(format!("log record of {bytes} bytes")));
        }
        if let Some(rests) = &mut self.rests {
            rests.rest(&self.log.env).await;
        }
        let asked_at = self.log.env.moment();
        let number = self.last + 1;
        let record = Record {
            number,
            kind,
            epoch: self.epoch,
            attempt,
            base: match kind {
                RecordKind::Snapshot => number,
                RecordKind::Edit | RecordKind::Claim => self.base,
            },
            body,
        };
        if !self.in_doubt.is_empty()
            && let Some(found) = self.log.record(number).await?
        {
            return Err(self.refused(&found).await);
        }
        self.in_doubt.push(attempt);
        let mut delay = RETRY_DELAY_MIN;
        let mut doubt = self.attempt(&record).await?;
        for _ in 1..APPEND_ATTEMPTS_MAX {
            if doubt.is_none() {
                break;
            }
            tokio::time::sleep(delay).await;
            delay = (delay * 2).min(RETRY_DELAY_MAX);
            doubt = self.attempt(&record).await?;
        }
        if let Some(doubt) = doubt {
            let name = self.log.name(number);
            return Err(doubt.context(format!("append {name}: outcome unknown")));
        }
        self.check_tail(&record).await?;
        self.note(&record, asked_at);
        if let Some(rests) = &mut self.rests {
            rests.appended(asked_at, &self.log.env);
        }
        Ok(number)
    }

    /// Tries once to append `record`; `None` when it is there, `Some` when nobody knows.
    async fn attempt(&self, record: &Record) -> Result<Option<Error>> {
        let doubt = match self.create(record).await? {
            Appended::Committed => return Ok(None),
            Appended::Conflict => Error::unavailable("it exists, but cannot be read"),
            Appended::Unknown(error) => error,
        };
        match self.log.record(record.number).await {
            Ok(Some(found)) if found.attempt == record.attempt => Ok(None),
            Ok(Some(found)) => Err(self.refused(&found).await),
            Ok(None) => Ok(Some(doubt)),
            Err(error) if error.is_unavailable() => Ok(Some(doubt)),
            Err(error) => Err(error),
        }
    }

    /// Creates one record; says what stands in its place when that is not certainly ours.
    async fn create(&self, record: &Record) -> Result<Appended> {
        let name = self.log.name(record.number);
        match self.log.store.create(&name, record.encode()).await {
            Ok(Created::New) => Ok(Appended::Committed),
            Ok(Created::Exists) => Ok(Appended::Conflict),
            Err(error) if error.is_unavailable() => Ok(Appended::Unknown(error)),
            Err(error) => Err(error),
        }
    }

    /// Why the record that was found at `last + 1` keeps ours from being appended.
    async fn refused(&self, found: &Record) -> Error {
        if found.epoch > self.epoch || !self.in_doubt.contains(&found.attempt) {
            return self.overtaken(found);
        }
        if let Err(error) = self.check_tail(found).await {
            return error;
        }
        let name = self.log.name(found.number);
        Error::conflict(format!("{name} is ours after all: reload"))
    }

    /// `found` is another writer's.
    fn overtaken(&self, found: &Record) -> Error {
        let name = self.log.name(found.number);
        let (ours, theirs) = (self.epoch, found.epoch);
        if theirs > ours {
            Error::fenced(format!(
                "{name} was written with epoch {theirs}; ours is {ours}"
            ))
        } else {
            Error::conflict(format!(
                "{name} was written first, with epoch {theirs}; ours is {ours}"
            ))
        }
    }

    /// Whether the record of `attempt`, which was appended last, is the newest. It may be not where records are
    /// removed without a grace: then it lies in a hole below those that were appended meanwhile.
    async fn is_tail(&self, attempt: u128) -> Result<bool> {
        let newest = self.log.newest().await?;
        Ok(newest.is_some_and(|newest| newest.attempt == attempt))
    }

    /// Whether a record at `last + 1` may have been removed since the tail was known. Half the grace
    /// leaves the other half for the request itself, and for clocks that run at different speeds.
    fn is_stale(&self) -> bool {
        self.log.env.since(self.tail_at) > self.log.grace / 2
    }

    /// Makes sure that `record`, which is ours and exists, is the tail: see the module's "Removal".
    async fn check_tail(&self, record: &Record) -> Result<()> {
        if !self.is_stale() {
            return Ok(());
        }
        match self.log.newest().await? {
            Some(newest) if newest.attempt == record.attempt => Ok(()),
            Some(newest) if newest.number > record.number => Err(self.overtaken(&newest)),
            _ => {
                let name = self.log.name(record.number);
                Err(Error::unavailable(format!("{name} is not listed yet")))
            }
        }
    }

    /// The records after the last one known; from now on it is the last of them.
    ///
    /// # Errors
    /// `Fenced` when a newer writer has taken over; `Corrupt`; `Unavailable`.
    pub async fn catch_up(&mut self) -> Result<Vec<Record>> {
        let asked_at = self.log.env.moment();
        let records = self.beyond().await?;
        // Not passed by: appending behind a newer writer's claim would be believed by both.
        if let Some(newer) = records.iter().find(|record| record.epoch > self.epoch) {
            return Err(self.overtaken(newer));
        }
        for record in &records {
            self.note(record, asked_at);
        }
        self.tail_at = asked_at;
        Ok(records)
    }

    /// Whether an append may still arrive whose caller has given up.
    pub fn is_in_doubt(&self) -> bool {
        !self.in_doubt.is_empty()
    }

    /// Checks that no newer writer has taken over so far.
    ///
    /// # Errors
    /// `Fenced` when one has.
    pub async fn check_leads(&mut self) -> Result<()> {
        let asked_at = self.log.env.moment();
        let records = self.beyond().await?;
        if records.is_empty() {
            self.tail_at = asked_at;
        }
        match records.iter().find(|record| record.epoch > self.epoch) {
            None => Ok(()),
            Some(record) => Err(self.overtaken(record)),
        }
    }

    async fn beyond(&self) -> Result<Vec<Record>> {
        if !self.is_stale() {
            return self.log.read_after(self.last).await;
        }
        let records = self.log.read().await?;
        match records.first() {
            Some(first) if first.number > self.last + 1 && first.epoch > self.epoch => {
                Err(self.overtaken(first))
            }
            _ => Ok(records
                .into_iter()
                .filter(|record| record.number > self.last)
                .collect()),
        }
    }

    /// Whether all that the records add up to should be appended as a snapshot now.
    pub fn is_snapshot_due(&self) -> bool {
        self.snapshots.is_due()
    }

    /// The snapshot that was due could not be written.
    pub fn snapshot_failed(&mut self) {
        self.snapshots.failed();
    }

    /// Removes needless records that are older than the grace, if there may be any: one listing for each
    /// snapshot, and a deletion for each record. A failure is traced, and made up for later.
    pub async fn trim(&mut self) {
        let Some((number, since)) = self.obsolete else {
            return;
        };
        let env = &self.log.env;
        if env.since_at_least(since) < self.log.grace {
            return;
        }
        let now = env.moment();
        let removed = match self.log.numbers().await {
            Ok(mut numbers) => {
                numbers.retain(|at| *at < number);
                self.log.remove(numbers).await
            }
            Err(error) => Err(error),
        };
        self.obsolete = match removed {
            // Not before: when the newer base was set is not remembered.
            Ok(()) => (self.base > number).then_some((self.base, now)),
            Err(error) => {
                let folder = &self.log.folder;
                tracing::warn!(%folder, %error, "old log records were not removed");
                Some((number, now))
            }
        };
    }
}
