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
        log::{Log, LogWriter, Record, RecordKind},
    },
    types::{Epoch, Seq, TableId, TableSchema},
};

/// Edits after which a snapshot is written.
const EDITS_PER_SNAPSHOT: u64 = 64;
/// How often a commit that meets foreign records is decided anew.
const RELOADS_MAX: u32 = 16;

/// A table's manifest, open for writing. Readers take [`Manifest::version`]; it never blocks.
#[derive(Debug)]
pub struct Manifest {
    table: TableId,
    env: Env,
    /// The log, and how many records the current version covers. One commit at a time.
    writer: tokio::sync::Mutex<Writer>,
    /// The current version; written by the commit that holds `writer`.
    current: watch::Sender<Arc<Version>>,
    /// Versions before the current one that were published, as far as somebody still holds them.
    earlier: Mutex<Vec<Weak<Version>>>,
    /// What snapshots read at.
    read_points: Arc<ReadPoints>,
    /// Why no commit can succeed any more.
    fenced: watch::Sender<Option<Error>>,
}

#[derive(Debug)]
struct Writer {
    log: LogWriter,
    reader: Log,
    /// Number of the last record that is part of the current version.
    applied: u64,
    edits_since_snapshot: u64,
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
        env: Env,
    ) -> Result<Self> {
        let log = Log::new(store.clone(), layout::manifest(table));
        let (writer, records) = LogWriter::open_at(log.clone(), epoch, || env.random()).await?;
        if !records.is_empty() {
            return Err(Error::conflict(format!(
                "table {table} has a manifest already"
            )));
        }
        let manifest = Self::with(table, env, Version::new(schema.clone()), writer, log);
        manifest
            .commit(|_| {
                Ok(Some(Edit {
                    schema: Some(schema.clone()),
                    ..Edit::default()
                }))
            })
            .await?;
        Ok(manifest)
    }

    /// Opens a manifest for writing under the engine's `epoch`; an older engine that has it open is fenced.
    ///
    /// # Errors
    /// `NotFound` when there is none; `Corrupt`, naming the object; `Fenced` when a newer engine has it.
    pub async fn open(store: &Store, table: TableId, epoch: Epoch, env: Env) -> Result<Self> {
        let log = Log::new(store.clone(), layout::manifest(table));
        let (writer, records) = LogWriter::open_at(log.clone(), epoch, || env.random()).await?;
        let mut version = None;
        for record in &records {
            version = replay(table, version, record)?;
        }
        let version =
            version.ok_or_else(|| Error::not_found(format!("table {table} has no manifest")))?;
        invariants::check(&version).map_err(|error| {
            Error::corrupt(format!("manifest of table {table}")).with_source(error)
        })?;
        let manifest = Self::with(table, env, version, writer, log);
        manifest.writer.lock().await.edits_since_snapshot = records.len() as u64;
        Ok(manifest)
    }

    fn with(table: TableId, env: Env, version: Version, log: LogWriter, reader: Log) -> Self {
        let applied = log.last();
        let writer = Writer {
            log,
            reader,
            applied,
            edits_since_snapshot: 0,
        };
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

    /// Whether a read holds the current version or one before it.
    pub fn is_read(&self) -> bool {
        Arc::strong_count(&self.current.borrow()) > 1 || !self.pinned().is_empty()
    }

    /// Pins the seq that `read` answers: no merge that starts later drops what it sees.
    pub fn pin(&self, read: impl FnOnce() -> Seq) -> Pin {
        self.read_points.pin(self.env.unix_ms(), read)
    }

    /// What merges that start now must leave to readers.
    pub fn pins(&self) -> Pins {
        self.read_points.pins(self.env.unix_ms())
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
            invariants::check(&next)?;
            match writer
                .append(RecordKind::Edit, codec::encode_edit(&edit), &self.env)
                .await
            {
                Ok(()) => {
                    let next = Arc::new(next);
                    self.publish(next.clone());
                    writer.snapshot_if_due(&next, &self.env).await;
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

    /// Applies the records that stand after the current version.
    async fn reload(&self, writer: &mut Writer) -> Result<()> {
        let mut version = Some(self.version().as_ref().clone());
        for record in writer.reader.read_after(writer.applied).await? {
            version = replay(self.table, version, &record)?;
            writer.applied = record.number;
            writer.log.skip_to(record.number);
        }
        if let Some(version) = version {
            self.publish(Arc::new(version));
        }
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

impl Writer {
    async fn append(&mut self, kind: RecordKind, body: bytes::Bytes, env: &Env) -> Result<()> {
        self.applied = self.log.append(kind, body, env.random()).await?;
        self.edits_since_snapshot += 1;
        Ok(())
    }

    /// Shortens what the next open must read. A failure is no harm: the next edit tries again.
    async fn snapshot_if_due(&mut self, version: &Version, env: &Env) {
        if self.edits_since_snapshot < EDITS_PER_SNAPSHOT {
            return;
        }
        match self
            .append(RecordKind::Snapshot, codec::encode_version(version), env)
            .await
        {
            Ok(()) => self.edits_since_snapshot = 0,
            Err(error) => tracing::warn!(%error, "manifest snapshot was not written"),
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
