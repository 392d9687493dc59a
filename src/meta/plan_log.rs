//! Where the plan survives: in memory, for tests and for fleets that may forget their queue; or as a
//! numbered log under a root of an object store.
//!
//! A log may hold an update twice, when the first append of it was lost and then was not: applying it
//! again changes nothing.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;

use super::{
    codec,
    update::{PlanSnapshot, PlanUpdate},
};
use crate::{
    clock::Env,
    error::{Error, Result},
    store::{
        Store, layout,
        log::{Log, LogWriter, Record, RecordKind, SnapshotRule},
    },
    types::Epoch,
};

/// What a plan log held when it was opened: the newest snapshot, and the updates after it, in order.
#[derive(Clone, Debug, Default)]
pub struct Replay {
    /// The plan as it once was; `None` when no snapshot has been taken.
    pub snapshot: Option<PlanSnapshot>,
    /// What changed since.
    pub updates: Vec<PlanUpdate>,
}

/// A log of plan updates with one writer: the meta service that opened it last.
#[async_trait]
pub trait PlanLog: Send + 'static {
    /// Takes the log over; whoever had it is fenced. May be called again, after a `Conflict`. Until it
    /// succeeds, nothing can be appended.
    ///
    /// # Errors
    /// `Fenced` when this log was open before and another has taken over since. `Corrupt`, naming the
    /// object; `Unavailable`.
    async fn open(&mut self) -> Result<Replay>;

    /// Appends `updates`, all or none, durably.
    ///
    /// # Errors
    /// `Fenced` when another has taken over. `Unavailable`: they may be in the log or not; append them
    /// again. `Conflict`: open again, then append them again.
    async fn append(&mut self, updates: &[PlanUpdate]) -> Result<()>;

    /// Checks that nobody else has taken over so far.
    ///
    /// # Errors
    /// `Fenced` when another has. `Unavailable`. `Conflict`: open again.
    async fn check_leads(&mut self) -> Result<()>;

    /// Appends all that the updates so far add up to, so that a replay can start there.
    ///
    /// # Errors
    /// As for [`Self::append`].
    async fn append_snapshot(&mut self, snapshot: &PlanSnapshot) -> Result<()>;

    /// Whether a snapshot should be appended now, so that a replay stays short.
    fn is_snapshot_due(&self) -> bool;

    /// A snapshot that was due could not be appended: it is due again some updates later.
    fn snapshot_failed(&mut self);
}

/// The plan log that a configuration names: `memory:///` or the URL of a root.
///
/// # Errors
/// `Invalid` for a URL that names no store.
pub fn open_plan_log(url: &str, env: Env) -> Result<Box<dyn PlanLog>> {
    if url.starts_with("memory:") {
        return Ok(Box::new(MemoryPlanLog::default()));
    }
    Ok(Box::new(ObjectPlanLog::new(Store::open(url)?, env)))
}

/// A plan log in memory. Clones share it, each a writer of its own.
#[derive(Clone, Debug, Default)]
pub struct MemoryPlanLog {
    shared: Arc<Mutex<Records>>,
    epoch: u64,
    snapshots: SnapshotRule,
}

#[derive(Debug, Default)]
struct Records {
    epoch: u64,
    snapshot: Option<Bytes>,
    updates: Vec<Bytes>,
}

impl MemoryPlanLog {
    fn write(&self, change: impl FnOnce(&mut Records)) -> Result<()> {
        let mut records = self.shared.lock().expect("no panic under this lock");
        self.check_epoch(&records)?;
        change(&mut records);
        Ok(())
    }

    fn check_epoch(&self, records: &Records) -> Result<()> {
        if records.epoch != self.epoch {
            let (ours, theirs) = (self.epoch, records.epoch);
            return Err(Error::fenced(format!(
                "plan log in memory was opened with epoch {theirs}; ours is {ours}"
            )));
        }
        Ok(())
    }
}

#[async_trait]
impl PlanLog for MemoryPlanLog {
    async fn open(&mut self) -> Result<Replay> {
        let mut records = self.shared.lock().expect("no panic under this lock");
        if self.epoch > 0 {
            self.check_epoch(&records)?;
        }
        records.epoch += 1;
        self.epoch = records.epoch;
        let mut replay = Replay {
            snapshot: match records.snapshot.clone() {
                Some(body) => Some(codec::decode_snapshot(body)?),
                None => None,
            },
            updates: Vec::new(),
        };
        self.snapshots
            .snapshot(records.snapshot.as_ref().map_or(0, Bytes::len));
        for body in &records.updates {
            self.snapshots.edit(body.len());
            replay.updates.extend(codec::decode_updates(body.clone())?);
        }
        Ok(replay)
    }

    async fn append(&mut self, updates: &[PlanUpdate]) -> Result<()> {
        let body = codec::encode_updates(updates);
        let bytes = body.len();
        self.write(|records| records.updates.push(body))?;
        self.snapshots.edit(bytes);
        Ok(())
    }

    async fn check_leads(&mut self) -> Result<()> {
        self.check_epoch(&self.shared.lock().expect("no panic under this lock"))
    }

    async fn append_snapshot(&mut self, snapshot: &PlanSnapshot) -> Result<()> {
        let body = codec::encode_snapshot(snapshot);
        let bytes = body.len();
        self.write(|records| {
            records.snapshot = Some(body);
            records.updates.clear();
        })?;
        self.snapshots.snapshot(bytes);
        Ok(())
    }

    fn is_snapshot_due(&self) -> bool {
        self.snapshots.is_due()
    }

    fn snapshot_failed(&mut self) {
        self.snapshots.failed();
    }
}

/// A plan log on an object store: the numbered log in the root's `meta/` folder.
#[derive(Debug)]
pub struct ObjectPlanLog {
    log: Log,
    writer: Option<LogWriter>,
    /// Of the last writer, when there has been one.
    epoch: Option<Epoch>,
    /// Attempt ids of claims made since then: any of them may be in the log, its answer lost.
    claims: Vec<u128>,
    env: Env,
}

impl ObjectPlanLog {
    /// The plan log under the root `store`.
    pub fn new(store: Store, env: Env) -> Self {
        Self {
            log: Log::new(store, layout::META, env.clone()),
            writer: None,
            epoch: None,
            claims: Vec::new(),
            env,
        }
    }

    fn writer(&mut self) -> Result<&mut LogWriter> {
        let writer = self.writer.as_mut();
        writer.ok_or_else(|| Error::conflict("plan log must be opened again"))
    }

    async fn write(&mut self, kind: RecordKind, body: Bytes) -> Result<()> {
        let attempt = self.env.random();
        let writer = self.writer()?;
        writer.append(kind, body, attempt).await?;
        writer.trim().await;
        Ok(())
    }
}

/// Whoever has lost the log to another does not take it back: checks that nothing in `records` is newer than
/// the epoch that a writer had, or than the `claims` it made since.
fn check_epoch(had: Option<Epoch>, claims: &[u128], records: &[Record]) -> Result<()> {
    let Some(had) = had else {
        return Ok(());
    };
    let claimed = records.iter();
    let claimed = claimed.filter(|record| claims.contains(&record.attempt));
    let ours = claimed.map(|record| record.epoch).fold(had, Epoch::max);
    match records.iter().find(|record| record.epoch > ours) {
        None => Ok(()),
        Some(found) => {
            let name = layout::log_record(layout::META, found.number);
            let theirs = found.epoch;
            Err(Error::fenced(format!(
                "{name} was written with epoch {theirs}; ours is {ours}"
            )))
        }
    }
}

#[async_trait]
impl PlanLog for ObjectPlanLog {
    async fn open(&mut self) -> Result<Replay> {
        // The claim may get into the log although its answer is lost. Then it stands in the old
        // writer's way, who would take it for another's.
        self.writer = None;
        let (env, had) = (&self.env, self.epoch);
        let claims = Mutex::new(&mut self.claims);
        let locked = || claims.lock().expect("no panic under this lock");
        let attempt = || {
            let attempt = env.random();
            locked().push(attempt);
            attempt
        };
        // Another may take over until our claim stands: the very records that precede it decide.
        let body = |records: &[Record]| {
            check_epoch(had, &locked(), records)?;
            Ok(Bytes::new())
        };
        let (writer, records) = LogWriter::open_with(self.log.clone(), attempt, body).await?;
        self.claims.clear();
        self.epoch = Some(writer.epoch());
        self.writer = Some(writer.resting());
        let mut replay = Replay::default();
        for record in records {
            let name = layout::log_record(layout::META, record.number);
            let context = |error: Error| error.context(format!("plan log record {name}"));
            match record.kind {
                RecordKind::Claim => {}
                RecordKind::Edit => {
                    let updates = codec::decode_updates(record.body).map_err(context)?;
                    replay.updates.extend(updates);
                }
                RecordKind::Snapshot => {
                    let snapshot = codec::decode_snapshot(record.body).map_err(context)?;
                    replay.snapshot = Some(snapshot);
                    replay.updates.clear();
                }
            }
        }
        Ok(replay)
    }

    async fn append(&mut self, updates: &[PlanUpdate]) -> Result<()> {
        self.write(RecordKind::Edit, codec::encode_updates(updates))
            .await
    }

    async fn check_leads(&mut self) -> Result<()> {
        self.writer()?.check_leads().await
    }

    async fn append_snapshot(&mut self, snapshot: &PlanSnapshot) -> Result<()> {
        self.write(RecordKind::Snapshot, codec::encode_snapshot(snapshot))
            .await
    }

    fn is_snapshot_due(&self) -> bool {
        let writer = self.writer.as_ref();
        writer.is_some_and(LogWriter::is_snapshot_due)
    }

    fn snapshot_failed(&mut self) {
        if let Some(writer) = &mut self.writer {
            writer.snapshot_failed();
        }
    }
}
