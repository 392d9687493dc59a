//! The one door for changes to a table: load, apply, check the invariants, append under our epoch,
//! publish. When another record stands in the way, reload and decide again; when the answer was lost,
//! look before retrying.

use std::sync::{Arc, Mutex, Weak};

use tokio::sync::watch;

use super::{
    codec,
    edit::Edit,
    invariants,
    pins::{Pin, Pins, ReadPoints},
    version::Version,
};
use crate::{
    clock::Env,
    error::{Error, ErrorKind, Result},
    store::{
        Store, layout,
        log::{Log, LogSettings, LogWriter, Record, RecordKind},
    },
    threads,
    types::{Epoch, Seq, TableId, TableSchema},
};

/// How often a commit that meets foreign records is decided anew.
const RELOADS_MAX: u32 = 16;

/// A table's manifest, open for writing. Readers take [`Manifest::version`]; it never blocks.
#[derive(Debug)]
pub struct Manifest {
    table: TableId,
    env: Env,
    /// The log; the current version covers all its records. One commit at a time.
    writer: tokio::sync::Mutex<LogWriter>,
    /// The current version; written by the commit that holds `writer`.
    current: watch::Sender<Arc<Version>>,
    /// Versions before the current one that were published, as far as somebody still holds them.
    earlier: Mutex<Vec<Weak<Version>>>,
    /// What snapshots read at.
    read_points: Arc<ReadPoints>,
    /// Why no commit can succeed any more.
    fenced: watch::Sender<Option<Error>>,
}

impl Manifest {
    /// Creates the manifest of a new table, under the engine's `epoch`.
    ///
    /// # Errors
    /// `Conflict` when the table has one already, or `Fenced` when that is a newer engine's.
    pub async fn create(
        store: &Store,
        table: TableId,
        epoch: Epoch,
        schema: TableSchema,
        settings: impl Into<LogSettings>,
    ) -> Result<Self> {
        let nothing = Version::new(schema);
        Self::create_with(store, table, epoch, &nothing, settings).await
    }

    /// As [`Self::create`], of a table that begins with what `version` has; its jobs, and what is obsolete in it,
    /// are left out.
    ///
    /// # Errors
    /// As for [`Self::create`].
    pub async fn create_with(
        store: &Store,
        table: TableId,
        epoch: Epoch,
        version: &Version,
        settings: impl Into<LogSettings>,
    ) -> Result<Self> {
        let settings = settings.into();
        let env = settings.env.clone();
        let log = Log::new(store.clone(), layout::manifest(table), settings);
        let (writer, records) = LogWriter::open_at(log, epoch, || env.random()).await?;
        if !records.is_empty() {
            return Err(Error::conflict(format!(
                "table {table} has a manifest already"
            )));
        }
        let empty = Version::new(version.schema.clone());
        let manifest = Self::with(table, env, empty, writer);
        let first = Edit {
            schema: Some(version.schema.clone()),
            added: version.ssts().cloned().collect(),
            flushed_seq: Some(version.flushed_seq).filter(|seq| *seq > Seq(0)),
            range_deletes: version.range_deletes.clone(),
            ..Edit::default()
        };
        manifest.commit(|_| Ok(Some(first.clone()))).await?;
        Ok(manifest)
    }

    /// Opens a manifest for writing under the engine's `epoch`; an older engine that has it open is fenced.
    ///
    /// # Errors
    /// `NotFound` when there is none; `Corrupt`, naming the object; `Fenced` when a newer engine has it.
    pub async fn open(
        store: &Store,
        table: TableId,
        epoch: Epoch,
        settings: impl Into<LogSettings>,
    ) -> Result<Self> {
        let settings = settings.into();
        let env = settings.env.clone();
        let log = Log::new(store.clone(), layout::manifest(table), settings);
        let (writer, records) = LogWriter::open_at(log, epoch, || env.random()).await?;
        let mut version = None;
        for record in &records {
            version = replay(table, version, record)?;
        }
        let version =
            version.ok_or_else(|| Error::not_found(format!("table {table} has no manifest")))?;
        invariants::check(&version).map_err(|error| {
            Error::corrupt(format!("manifest of table {table}")).with_source(error)
        })?;
        let manifest = Self::with(table, env, version, writer);
        // A table that is opened again and again, and never changed, gets longer too.
        let mut writer = manifest.writer.lock().await;
        manifest.maintain(&mut writer).await;
        drop(writer);
        Ok(manifest)
    }

    fn with(table: TableId, env: Env, version: Version, writer: LogWriter) -> Self {
        Self {
            table,
            env,
            writer: tokio::sync::Mutex::new(writer),
            current: watch::Sender::new(Arc::new(version)),
            earlier: Mutex::default(),
            read_points: Arc::default(),
            fenced: watch::Sender::new(None),
        }
    }

    /// The table.
    pub fn table(&self) -> TableId {
        self.table
    }

    /// The current version.
    pub fn version(&self) -> Arc<Version> {
        self.current.borrow().clone()
    }

    /// Versions before the current one that a read still holds.
    pub fn pinned(&self) -> Vec<Arc<Version>> {
        let mut earlier = self.earlier.lock().expect("no panic under this lock");
        earlier.retain(|version| version.strong_count() > 0);
        earlier.iter().filter_map(Weak::upgrade).collect()
    }

    /// Has [`Self::pinned`] list `version`, which a checkpoint holds, for as long as somebody holds it.
    pub fn pin_version(&self, version: &Arc<Version>) {
        let mut earlier = self.earlier.lock().expect("no panic under this lock");
        earlier.push(Arc::downgrade(version));
    }

    /// Whether a read holds the current version or one before it.
    pub fn is_read(&self) -> bool {
        Arc::strong_count(&self.current.borrow()) > 1 || !self.pinned().is_empty()
    }

    /// Pins the seq that `read` answers: no merge that starts later drops what it sees.
    pub fn pin(&self, read: impl FnOnce() -> Seq) -> Pin {
        self.read_points.pin(|| (read(), self.expiry()))
    }

    /// What merges that start now must leave to readers.
    pub fn pins(&self) -> Pins {
        self.read_points.pins(|| self.expiry())
    }

    /// The time before which rows are expired for who reads now, in the unit of the time column.
    pub fn expiry(&self) -> Option<i64> {
        self.version().schema.expiry(self.env.unix_ms())
    }

    /// Tells of every new version.
    pub fn subscribe(&self) -> watch::Receiver<Arc<Version>> {
        self.current.subscribe()
    }

    /// Makes the edit that `decide` derives from the current version durable, and publishes the version
    /// after it, which is returned. `decide` may be called again, with a newer version; `None` means that
    /// nothing is left to do, and makes a commit idempotent.
    ///
    /// Cancel-safe: whether a dropped commit took effect is settled by the next one.
    ///
    /// # Errors
    /// What `decide` answers; `Fenced` when another engine has taken the table over; `Conflict` when the
    /// edit does not fit the version; `Internal` when it breaks an invariant; `Unavailable` when the store
    /// did not answer: the edit may or may not have been made, and the next commit finds out.
    pub async fn commit(
        &self,
        mut decide: impl FnMut(&Version) -> Result<Option<Edit>>,
    ) -> Result<Arc<Version>> {
        let mut writer = self.writer.lock().await;
        for _ in 0..RELOADS_MAX {
            self.check_fenced()?;
            let version = self.version();
            let Some(mut edit) = decide(&version)? else {
                return Ok(version);
            };
            edit.at_ms = self.env.unix_ms();
            let next = version.apply(&edit)?;
            invariants::check_edit(&next, &edit)?;
            let body = codec::encode_edit(&edit);
            match writer
                .append(RecordKind::Edit, body, self.env.random())
                .await
            {
                Ok(_) => {
                    let next = Arc::new(next);
                    self.publish(next.clone());
                    self.maintain(&mut writer).await;
                    return Ok(next);
                }
                Err(error) if error.kind() == ErrorKind::Conflict => {
                    self.reload(&mut writer).await?
                }
                Err(error) => return Err(self.refused(error)),
            }
        }
        let table = self.table;
        Err(Error::conflict(format!(
            "manifest of table {table} keeps changing under the commit"
        )))
    }

    /// Checks that no newer engine has taken the table over so far.
    ///
    /// # Errors
    /// `Fenced` when one has; `Unavailable`.
    pub async fn check_leads(&self) -> Result<()> {
        self.check_fenced()?;
        let leads = self.writer.lock().await.check_leads().await;
        leads.map_err(|error| self.refused(error))
    }

    /// Applies the records that stand after the current version.
    async fn reload(&self, writer: &mut LogWriter) -> Result<()> {
        let mut version = Some(self.version().as_ref().clone());
        let records = writer.catch_up().await;
        for record in records.map_err(|error| self.refused(error))? {
            version = replay(self.table, version, &record)?;
        }
        if let Some(version) = version {
            self.publish(Arc::new(version));
        }
        Ok(())
    }

    /// Shortens what the next open must read, and removes what none reads. A failure is no harm: later
    /// edits try again.
    async fn maintain(&self, writer: &mut LogWriter) {
        if writer.is_snapshot_due()
            && let Err(error) = self.write_snapshot(writer).await
        {
            tracing::warn!(table = %self.table, %error, "manifest snapshot was not written");
            writer.snapshot_failed();
        }
        writer.trim().await;
    }

    async fn write_snapshot(&self, writer: &mut LogWriter) -> Result<()> {
        let version = self.version();
        // Of a large table this takes a while.
        let encoding = threads::run(move || codec::encode_version(&version));
        let body = encoding
            .await
            .map_err(|error| Error::internal("manifest encoding panicked").with_source(error))?;
        let attempt = self.env.random();
        writer.append(RecordKind::Snapshot, body, attempt).await?;
        Ok(())
    }

    fn publish(&self, version: Arc<Version>) {
        // Under one lock, so that `pinned` cannot miss the version that is being replaced.
        let mut earlier = self.earlier.lock().expect("no panic under this lock");
        earlier.retain(|version| version.strong_count() > 0);
        earlier.push(Arc::downgrade(&self.current.send_replace(version)));
    }

    fn refused(&self, error: Error) -> Error {
        let error = error.context(format!("manifest of table {}", self.table));
        if error.kind() == ErrorKind::Fenced {
            self.fenced.send_replace(Some(error.clone()));
        }
        error
    }

    fn check_fenced(&self) -> Result<()> {
        self.fenced.borrow().clone().map_or(Ok(()), Err)
    }

    /// Waits until a newer engine has been met, and says how.
    pub async fn fenced(&self) -> Error {
        let mut fenced = self.fenced.subscribe();
        loop {
            if let Some(error) = fenced.borrow_and_update().clone() {
                return error;
            }
            // The sender lives in `self`, so waiting cannot fail.
            let _ = fenced.changed().await;
        }
    }
}

pub(super) fn replay(
    table: TableId,
    version: Option<Version>,
    record: &Record,
) -> Result<Option<Version>> {
    let place = || format!("record {} of the manifest of table {table}", record.number);
    let as_corrupt = |error: Error| Error::corrupt(place()).with_source(error);
    match record.kind {
        RecordKind::Claim => Ok(version),
        RecordKind::Snapshot => codec::decode_version(record.body.clone())
            .map(Some)
            .map_err(as_corrupt),
        RecordKind::Edit => {
            let edit = codec::decode_edit(record.body.clone()).map_err(as_corrupt)?;
            let version = match (version, &edit.schema) {
                (Some(version), _) => version,
                (None, Some(schema)) => Version::new(schema.clone()),
                (None, None) => {
                    return Err(Error::corrupt(format!("{}: no schema before it", place())));
                }
            };
            version.apply(&edit).map(Some).map_err(as_corrupt)
        }
    }
}
