//! The catalog: which tables exist, and which WAL their newest rows are in. Its epoch is the engine's: who
//! claims it fences the engine before.
//!
//! Rows that were not flushed when an engine ended are in its WAL only. So the claim names the engine's
//! WAL, a clean close says that nothing is left in it, and a claim under another WAL is refused in between.

use super::codec::{self, CatalogEdit, CatalogState};
use crate::{
    clock::Env,
    error::{Error, ErrorKind, Result},
    store::{
        Store, layout,
        log::{Log, LogSettings, LogWriter, Record, RecordKind},
    },
    types::{Epoch, TableId},
};

/// How often a commit that meets foreign records is decided anew.
const RELOADS_MAX: u32 = 16;

/// Which WAL an engine writes to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WalIdentity {
    /// What kind of WAL it is, as `wal.mode` has it: `local`, `object_store` or `none`.
    pub mode: String,
    /// Tells it from all others of its kind.
    pub id: String,
    /// Where it is, for people.
    pub place: String,
    /// The root that it belongs to, if it says so itself; not recorded.
    pub root: Option<String>,
}

impl WalIdentity {
    /// The mode of engines without a WAL.
    pub const NONE: &str = "none";

    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.mode == other.mode && self.id == other.id
    }
}

/// The list of tables, open for writing. One change at a time (`&mut self`).
#[derive(Debug)]
pub struct Catalog {
    env: Env,
    writer: LogWriter,
    state: CatalogState,
}

impl Catalog {
    /// Whether `store` has a catalog: whether it is a Siltstone root.
    pub async fn exists(store: &Store) -> Result<bool> {
        Ok(!store.list(layout::CATALOG).await?.is_empty())
    }

    /// Opens the catalog for writing, creating it when there is none; an engine that has it open is
    /// fenced. The engine's newest rows will be in `wal`.
    ///
    /// # Errors
    /// `Corrupt`, naming the object. `Invalid`, before anybody is fenced, when rows of the engine before may
    /// be in another WAL only.
    pub async fn open(
        store: &Store,
        settings: impl Into<LogSettings>,
        wal: WalIdentity,
    ) -> Result<Self> {
        Self::claim(store, settings.into(), wal, check_wal).await
    }

    /// As [`Catalog::open`], but rows that are only in another WAL are given up.
    ///
    /// # Errors
    /// `Corrupt`, naming the object.
    pub async fn open_abandoning(
        store: &Store,
        settings: impl Into<LogSettings>,
        wal: WalIdentity,
    ) -> Result<Self> {
        Self::claim(store, settings.into(), wal, |_, _| Ok(())).await
    }

    async fn claim(
        store: &Store,
        settings: LogSettings,
        wal: WalIdentity,
        check: impl Fn(&CatalogState, &WalIdentity) -> Result<()>,
    ) -> Result<Self> {
        let env = settings.env.clone();
        let log = Log::new(store.clone(), layout::CATALOG, settings);
        let mut state = CatalogState::default();
        let (mut claimed, new_root) = (None, env.random());
        let claim = |records: &[Record]| {
            state = CatalogState::default();
            for record in records {
                replay(&mut state, record)?;
            }
            check_root(&state, &wal)?;
            check(&state, &wal)?;
            let root = match state.root.is_empty() {
                true => format!("{new_root:032x}"),
                false => state.root.clone(),
            };
            claimed = Some(codec::CatalogClaim {
                wal: wal.clone(),
                root,
            });
            Ok(claimed
                .as_ref()
                .map(codec::encode_catalog_claim)
                .unwrap_or_default())
        };
        let (writer, _) = LogWriter::open_with(log, || env.random(), claim).await?;
        if let Some(claimed) = claimed {
            state.claim(claimed, writer.epoch());
        }
        let mut catalog = Self { env, writer, state };
        catalog.maintain().await;
        Ok(catalog)
    }

    /// The engine's epoch.
    pub fn epoch(&self) -> Epoch {
        self.writer.epoch()
    }

    /// The root's id: random, for good.
    pub fn root(&self) -> &str {
        &self.state.root
    }

    /// Epoch of the first engine that had the WAL of this one, since another was used: what is older in it was
    /// given up.
    pub fn wal_since(&self) -> Epoch {
        self.state.wal_since
    }

    /// All tables, by name.
    pub fn tables(&self) -> impl Iterator<Item = (&str, TableId)> {
        let tables = self.state.tables.iter();
        tables.map(|(name, id)| (name.as_str(), *id))
    }

    /// Adds a table, whose manifest exists already. Nothing is changed when it is there.
    ///
    /// # Errors
    /// `Conflict` when another table has the name; otherwise as for [`Manifest::commit`](super::Manifest::commit).
    pub async fn create(&mut self, name: &str, table: TableId) -> Result<()> {
        let edit = CatalogEdit {
            created: vec![(name.to_owned(), table)],
            ..CatalogEdit::default()
        };
        self.commit(edit, |state| match state.tables.get(name) {
            None => Ok(true),
            Some(&id) if id == table => Ok(false),
            Some(_) => Err(Error::conflict(format!("table {name:?} exists already"))),
        })
        .await
    }

    /// Removes a table. Nothing is changed when it is gone.
    pub async fn drop_table(&mut self, table: TableId) -> Result<()> {
        let edit = CatalogEdit {
            dropped: vec![table],
            ..CatalogEdit::default()
        };
        self.commit(edit, |state| {
            Ok(state.tables.values().any(|&id| id == table))
        })
        .await
    }

    /// Records that every row is in SSTs, so that the next engine may have another WAL. For an engine that
    /// writes no more.
    pub async fn mark_wal_clean(&mut self) -> Result<()> {
        let edit = CatalogEdit {
            is_wal_clean: true,
            ..CatalogEdit::default()
        };
        self.commit(edit, |state| Ok(!state.is_wal_clean)).await
    }

    /// Whether the list is all that there is: no change is on its way whose caller has given up.
    pub fn is_settled(&self) -> bool {
        !self.writer.is_in_doubt()
    }

    /// Checks that no newer engine has taken over so far.
    ///
    /// # Errors
    /// `Fenced` when one has.
    pub async fn check_leads(&mut self) -> Result<()> {
        let leads = self.writer.check_leads().await;
        leads.map_err(|error| error.context("catalog"))
    }

    async fn commit(
        &mut self,
        edit: CatalogEdit,
        is_needed: impl Fn(&CatalogState) -> Result<bool>,
    ) -> Result<()> {
        for _ in 0..RELOADS_MAX {
            if !is_needed(&self.state)? {
                return Ok(());
            }
            let (body, attempt) = (codec::encode_catalog_edit(&edit), self.env.random());
            match self.writer.append(RecordKind::Edit, body, attempt).await {
                Ok(_) => {
                    self.state.apply(&edit);
                    self.maintain().await;
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::Conflict => {
                    for record in self.writer.catch_up().await? {
                        replay(&mut self.state, &record)?;
                    }
                }
                Err(error) => return Err(error.context("catalog")),
            }
        }
        Err(Error::conflict(
            "the catalog keeps changing under the commit",
        ))
    }

    /// Shortens what the next open must read, and removes what none reads.
    async fn maintain(&mut self) {
        if self.writer.is_snapshot_due() {
            let (body, attempt) = (codec::encode_catalog(&self.state), self.env.random());
            let written = self.writer.append(RecordKind::Snapshot, body, attempt);
            if let Err(error) = written.await {
                tracing::warn!(%error, "catalog snapshot was not written");
                self.writer.snapshot_failed();
            }
        }
        self.writer.trim().await;
    }
}

/// Whether `wal` is not another root's.
fn check_root(state: &CatalogState, wal: &WalIdentity) -> Result<()> {
    match &wal.root {
        Some(root) if *root != state.root => Err(Error::invalid(format!(
            "the wal {wal} belongs to another root (id {root}), and may hold its newest rows: choose another \
             wal.dir, or delete the directory if that root is gone"
        ))),
        _ => Ok(()),
    }
}

/// Whether an engine that writes to `wal` may take over.
fn check_wal(state: &CatalogState, wal: &WalIdentity) -> Result<()> {
    let Some(before) = &state.wal else {
        return Ok(());
    };
    if state.is_wal_clean || before.is_same(wal) || before.mode == WalIdentity::NONE {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "rows may be only in the wal of the engine before, {before}, and this one is configured for {wal}: \
         open the root once with the wal it had, flush every table, and close it; or give those rows up \
         with EngineBuilder::abandon_wal"
    )))
}

impl std::fmt::Display for WalIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            mode, id, place, ..
        } = self;
        write!(f, "mode {mode:?}")?;
        if !place.is_empty() {
            write!(f, " at {place:?}")?;
        }
        if !id.is_empty() && id != place {
            write!(f, " (id {id})")?;
        }
        Ok(())
    }
}

pub(super) fn replay(state: &mut CatalogState, record: &Record) -> Result<()> {
    let as_corrupt = |error: Error| {
        Error::corrupt(format!("record {} of the catalog", record.number)).with_source(error)
    };
    let body = record.body.clone();
    match record.kind {
        RecordKind::Claim => {
            let claim = codec::decode_catalog_claim(body).map_err(as_corrupt)?;
            state.claim(claim, record.epoch);
        }
        RecordKind::Snapshot => *state = codec::decode_catalog(body).map_err(as_corrupt)?,
        RecordKind::Edit => state.apply(&codec::decode_catalog_edit(body).map_err(as_corrupt)?),
    }
    Ok(())
}
