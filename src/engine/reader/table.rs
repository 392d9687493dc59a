//! A table of a reader: how it follows the table's manifest, or stays at a checkpoint, and the handle that users
//! hold.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use arrow::array::RecordBatch;
use tokio::sync::Mutex;

use super::{Reader, ReaderInner, hold::Holder};
use crate::{
    engine::{
        ScanRequest, ScanStream, checkpoint, scan,
        view::{ReadCounters, ReadSource, ReadView},
    },
    error::{Error, ErrorKind, Result},
    manifest::{ManifestFollower, Version, checkpoints},
    types::{Seq, TableId, TableSchema},
};

/// How often a checkpoint is made anew that comes too late.
const ATTEMPTS_MAX: usize = 16;

/// A table as a reader has it open.
pub(super) struct FollowedTable {
    pub(super) id: TableId,
    pub(super) name: String,
    pub(super) holder: Holder,
    /// One step at a time; `None` for a table at a checkpoint.
    follower: Mutex<Option<ManifestFollower>>,
    is_followed: bool,
    /// It is not in the catalog any more.
    is_dropped: AtomicBool,
    reads: Arc<ReadCounters>,
}

impl FollowedTable {
    fn new(
        reader: &ReaderInner,
        name: &str,
        id: TableId,
        follower: Option<ManifestFollower>,
    ) -> Self {
        Self {
            id,
            name: name.to_owned(),
            holder: Holder::new(reader.parts.clone(), id),
            is_followed: follower.is_some(),
            follower: Mutex::new(follower),
            is_dropped: AtomicBool::new(false),
            reads: Arc::default(),
        }
    }

    /// The table as it is now, and follows it.
    ///
    /// # Errors
    /// `NotFound` when it is dropped meanwhile; `Corrupt`, naming the object; `Unavailable`.
    pub(super) async fn open(reader: &ReaderInner, name: &str, id: TableId) -> Result<Self> {
        let store = &reader.parts.store;
        let follower = ManifestFollower::open(store, id, reader.logs.clone()).await?;
        let table = Self::new(reader, name, id, Some(follower));
        match table.advance(reader).await {
            Ok(()) => Ok(table),
            Err(error) => {
                table.give_up().await;
                Err(error)
            }
        }
    }

    /// The table at its checkpoint called `checkpoint`.
    ///
    /// # Errors
    /// `NotFound` when there is none, or it ends meanwhile; `Unavailable`.
    pub(super) async fn open_at(
        reader: &ReaderInner,
        name: &str,
        id: TableId,
        checkpoint: &str,
    ) -> Result<Self> {
        let table = Self::new(reader, name, id, None);
        match table.copy(reader, checkpoint).await {
            Ok(()) => Ok(table),
            Err(error) => {
                table.give_up().await;
                Err(error)
            }
        }
    }

    async fn give_up(&self) {
        if let Err(error) = self.holder.give_up().await {
            tracing::warn!(table = %self.id, %error, "checkpoints of a reader are left until they expire");
        }
    }

    /// Holds what the checkpoint called `name` holds, as of who replaces a checkpoint.
    async fn copy(&self, reader: &ReaderInner, name: &str) -> Result<()> {
        let store = &reader.parts.store;
        for _ in 0..ATTEMPTS_MAX {
            let listed = checkpoints::list(store, self.id).await?;
            let found = checkpoints::find(&listed, name, reader.parts.env.unix_ms());
            let found = found.ok_or_else(|| checkpoint::not_found(name))?;
            let hold = self.holder.put_copy(&found).await?;
            if checkpoints::exists(store, self.id, &found).await? {
                self.holder.show(&found.version, Some(found.expiry), hold);
                return Ok(());
            }
        }
        Err(Error::unavailable(format!(
            "checkpoint {name:?} is replaced all the time"
        )))
    }

    /// Shows what was committed so far, as of who creates a checkpoint.
    ///
    /// # Errors
    /// `NotFound` when the table is dropped; `Corrupt`; `Unavailable`: what was shown before is shown still.
    pub(super) async fn advance(&self, reader: &ReaderInner) -> Result<()> {
        let mut follower = self.follower.lock().await;
        let Some(follower) = &mut *follower else {
            return Ok(());
        };
        self.note_dropped(reader).await;
        self.check_there()?;
        let mut version = follower.refresh().await?.clone();
        for _ in 0..ATTEMPTS_MAX {
            if self.holder.show_if_held(&version) {
                return Ok(());
            }
            let expiry = version.schema.expiry(reader.parts.env.unix_ms());
            let hold = self.holder.put(&version, expiry).await?;
            let tip = self.tip(reader, follower).await?;
            if tip.has_all_of(&version) {
                self.holder.show(&version, None, hold);
                return Ok(());
            }
            version = tip;
        }
        Err(Error::unavailable(format!(
            "table {:?} changes faster than a checkpoint can be made of it",
            self.name
        )))
    }

    /// The newest version of the table, if the catalog has it.
    async fn tip(
        &self,
        reader: &ReaderInner,
        follower: &mut ManifestFollower,
    ) -> Result<Arc<Version>> {
        let tip = follower.refresh().await?.clone();
        reader.refresh_catalog().await?;
        self.note_dropped(reader).await;
        self.check_there()?;
        Ok(tip)
    }

    /// Whether it is the table of that id, and not at a checkpoint.
    pub(super) fn follows(&self, id: TableId) -> bool {
        self.id == id && self.is_followed
    }

    async fn note_dropped(&self, reader: &ReaderInner) {
        // Ids never come back.
        if !reader.catalog.lock().await.has(self.id) {
            self.is_dropped.store(true, Ordering::Release);
        }
    }

    fn check_there(&self) -> Result<()> {
        match self.is_dropped.load(Ordering::Acquire) {
            false => Ok(()),
            true => Err(Error::not_found(format!(
                "table {:?} was dropped",
                self.name
            ))),
        }
    }

    /// Follows, renews, lets go. `is_used` says whether somebody has a handle on it.
    pub(super) async fn round(&self, reader: &ReaderInner, is_used: impl Fn() -> bool) {
        let is_wanted = || is_used() && self.check_there().is_ok();
        // Renewed first: what is not renewed in time is lost.
        let kept = self.holder.upkeep(is_wanted).await;
        let followed = match is_wanted() {
            true => self.advance(reader).await,
            false => Ok(()),
        };
        for error in [kept.err(), followed.err()].into_iter().flatten() {
            if error.kind() != ErrorKind::NotFound {
                tracing::warn!(table = self.name, %error, "reader could not follow the table");
            }
        }
    }
}

/// A table of a [`Reader`]. Cheap to clone. While one is held, the reader follows the table.
#[derive(Clone)]
pub struct ReaderTable {
    pub(super) reader: Reader,
    pub(super) table: Arc<FollowedTable>,
}

impl std::fmt::Debug for ReaderTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ReaderTable({:?})", self.table.name)
    }
}

impl ReaderTable {
    /// Its name, as it was opened.
    pub fn name(&self) -> &str {
        &self.table.name
    }

    /// Its id; its objects are in `tables/<id>/`.
    pub fn id(&self) -> TableId {
        self.table.id
    }

    /// Its schema, as of what is read now.
    ///
    /// # Errors
    /// As for [`Self::scan`].
    pub fn schema(&self) -> Result<TableSchema> {
        let (version, _) = self.version()?;
        Ok(version.schema.clone())
    }

    /// Every batch up to this one is in what is read now.
    ///
    /// # Errors
    /// As for [`Self::scan`].
    pub fn flushed_seq(&self) -> Result<Seq> {
        let (version, _) = self.version()?;
        Ok(version.flushed_seq)
    }

    /// As [`Table::scan`](crate::engine::Table::scan), of what was flushed when the reader looked last. What it
    /// reads stays readable until it ends, as long as the reader can renew its checkpoints.
    ///
    /// # Errors
    /// As for [`Table::scan`](crate::engine::Table::scan); `NotFound` when the table was dropped, unless it is
    /// read at a checkpoint; `Unavailable` when the checkpoint could not be renewed, and what is read may be
    /// deleted; `Closed`.
    pub async fn scan(&self, request: ScanRequest) -> Result<ScanStream> {
        scan::scan_view(self.view()?, &request, self.table.reads.clone())
    }

    /// As [`Table::get`](crate::engine::Table::get), of what was flushed when the reader looked last.
    ///
    /// # Errors
    /// As for [`Table::get`](crate::engine::Table::get) and [`Self::scan`].
    pub async fn get(&self, keys: RecordBatch) -> Result<RecordBatch> {
        let slot = self.reader.inner.get_slots.acquire().await;
        let _slot = slot.map_err(|_| Error::closed("the reader is closed"))?;
        scan::get_view(self.view()?, keys, &self.table.reads).await
    }

    /// Looks now for what was flushed: later reads see everything that was in the manifest before this call.
    /// Does nothing at a checkpoint.
    ///
    /// # Errors
    /// `NotFound` when the table was dropped; `Corrupt`, naming the object; `Unavailable`; `Closed`.
    pub async fn refresh(&self) -> Result<()> {
        let inner = &self.reader.inner;
        inner.check_open()?;
        inner.refresh_catalog().await?;
        self.table.advance(inner).await
    }

    fn version(&self) -> Result<(Arc<Version>, Option<i64>)> {
        self.reader.inner.check_open()?;
        self.table.check_there()?;
        self.table.holder.view()
    }

    fn view(&self) -> Result<ReadView> {
        let (version, expiry) = self.version()?;
        let parts = &self.reader.inner.parts;
        let source = ReadSource {
            store: parts.store.clone(),
            cache: parts.cache.clone(),
        };
        Ok(ReadView::of_version(
            &source,
            self.table.id,
            version,
            expiry,
        ))
    }
}
