//! Catalog and manifests as another process's engine commits them. Reads only: no epoch is claimed, and nothing is
//! written.

use std::{collections::BTreeMap, sync::Arc};

use super::{Version, catalog, codec::CatalogState, commit};
use crate::{
    error::{Error, Result},
    store::{
        Store, layout,
        log::{Followed, Log, LogFollower, LogSettings},
    },
    types::TableId,
};

/// The version of a table, followed.
#[derive(Debug)]
pub struct ManifestFollower {
    table: TableId,
    log: LogFollower,
    version: Arc<Version>,
}

impl ManifestFollower {
    /// The newest version of `table`.
    ///
    /// # Errors
    /// `NotFound` when it has no manifest; `Corrupt`, naming the object; `Unavailable`.
    pub async fn open(
        store: &Store,
        table: TableId,
        settings: impl Into<LogSettings>,
    ) -> Result<Self> {
        let log = Log::new(store.clone(), layout::manifest(table), settings);
        let mut log = LogFollower::new(log);
        let version = match log.follow().await? {
            Followed::More(records) | Followed::Anew(records) => replay(table, None, &records)?,
        };
        Ok(Self {
            table,
            log,
            version,
        })
    }

    /// The version, as it was read last.
    pub fn version(&self) -> &Arc<Version> {
        &self.version
    }

    /// Reads what was committed since; the newest version.
    ///
    /// # Errors
    /// As for [`Self::open`]; the version stays as it was.
    pub async fn refresh(&mut self) -> Result<&Arc<Version>> {
        let (records, known) = match self.log.follow().await? {
            Followed::More(records) => (records, Some(&self.version)),
            Followed::Anew(records) => (records, None),
        };
        if !records.is_empty() || known.is_none() {
            let known = known.map(|version| version.as_ref().clone());
            let version = replay(self.table, known, &records);
            self.version = version.inspect_err(|_| self.log.reset())?;
        }
        Ok(&self.version)
    }
}

fn replay(
    table: TableId,
    mut version: Option<Version>,
    records: &[crate::store::log::Record],
) -> Result<Arc<Version>> {
    for record in records {
        version = commit::replay(table, version, record)?;
    }
    let missing = || Error::not_found(format!("table {table} has no manifest"));
    version.map(Arc::new).ok_or_else(missing)
}

/// The list of tables, followed.
#[derive(Debug)]
pub struct CatalogFollower {
    log: LogFollower,
    state: CatalogState,
}

impl CatalogFollower {
    /// The catalog of `store`.
    ///
    /// # Errors
    /// `NotFound` when there is none; `Corrupt`, naming the object; `Unavailable`.
    pub async fn open(store: &Store, settings: impl Into<LogSettings>) -> Result<Self> {
        let log = Log::new(store.clone(), layout::CATALOG, settings);
        let mut catalog = Self {
            log: LogFollower::new(log),
            state: CatalogState::default(),
        };
        catalog.refresh().await?;
        if catalog.log.last() == 0 {
            let url = store.url();
            return Err(Error::not_found(format!(
                "{url} is not a siltstone root: it has no catalog"
            )));
        }
        Ok(catalog)
    }

    /// All tables, by name, as they were read last.
    pub fn tables(&self) -> &BTreeMap<String, TableId> {
        &self.state.tables
    }

    /// Whether there is a table of that id.
    pub fn has(&self, table: TableId) -> bool {
        self.state.tables.values().any(|&id| id == table)
    }

    /// Reads what was committed since.
    ///
    /// # Errors
    /// As for [`Self::open`]; the list stays as it was.
    pub async fn refresh(&mut self) -> Result<()> {
        let (records, mut state) = match self.log.follow().await? {
            Followed::More(records) => (records, self.state.clone()),
            Followed::Anew(records) => (records, CatalogState::default()),
        };
        for record in &records {
            let replayed = catalog::replay(&mut state, record);
            replayed.inspect_err(|_| self.log.reset())?;
        }
        self.state = state;
        Ok(())
    }
}
