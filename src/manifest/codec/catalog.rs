//! What the catalog holds, and the bodies of its records.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::ids;
use crate::{
    error::Result,
    manifest::WalIdentity,
    proto::{self as pb, stored_id},
    types::{Epoch, TableId},
};

/// All that the catalog's records add up to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::manifest) struct CatalogState {
    /// Tables by name.
    pub(in crate::manifest) tables: BTreeMap<String, TableId>,
    /// The WAL of the engine that claimed last.
    pub(in crate::manifest) wal: Option<WalIdentity>,
    /// Epoch of the first engine that had it, since another one was used.
    pub(in crate::manifest) wal_since: Epoch,
    /// The root's id; empty before the first claim.
    pub(in crate::manifest) root: String,
    /// It closed with nothing left in its WAL.
    pub(in crate::manifest) is_wal_clean: bool,
}

/// A change to the catalog.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::manifest) struct CatalogEdit {
    pub(in crate::manifest) created: Vec<(String, TableId)>,
    pub(in crate::manifest) dropped: Vec<TableId>,
    pub(in crate::manifest) is_wal_clean: bool,
}

impl CatalogState {
    /// Makes an edit.
    pub(in crate::manifest) fn apply(&mut self, edit: &CatalogEdit) {
        self.tables.retain(|_, id| !edit.dropped.contains(id));
        self.tables.extend(edit.created.iter().cloned());
        self.is_wal_clean |= edit.is_wal_clean;
    }

    /// An engine takes over, with `epoch`.
    pub(in crate::manifest) fn claim(&mut self, claim: CatalogClaim, epoch: Epoch) {
        let is_same = self.wal.as_ref().is_some_and(|wal| wal.is_same(&claim.wal));
        if !is_same {
            self.wal_since = epoch;
        }
        self.wal = Some(claim.wal);
        self.root = claim.root;
        self.is_wal_clean = false;
    }
}

/// An engine takes the root over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::manifest) struct CatalogClaim {
    /// Where it writes.
    pub(in crate::manifest) wal: WalIdentity,
    /// The root's id.
    pub(in crate::manifest) root: String,
}

pub(in crate::manifest) fn encode_catalog_claim(claim: &CatalogClaim) -> Bytes {
    pb::encode(&pb::CatalogClaim {
        wal: Some((&claim.wal).into()),
        root: claim.root.clone(),
    })
}

pub(in crate::manifest) fn decode_catalog_claim(body: Bytes) -> Result<CatalogClaim> {
    let claim: pb::CatalogClaim = pb::decode(body, "catalog claim")?;
    Ok(CatalogClaim {
        wal: pb::required(claim.wal, "wal")?.into(),
        root: claim.root,
    })
}

pub(in crate::manifest) fn encode_catalog_edit(edit: &CatalogEdit) -> Bytes {
    let created = edit.created.iter();
    pb::encode(&pb::CatalogEdit {
        created: created.map(|(name, id)| catalog_table(name, *id)).collect(),
        dropped: edit.dropped.iter().map(TableId::to_string).collect(),
        wal_clean: edit.is_wal_clean,
    })
}

pub(in crate::manifest) fn decode_catalog_edit(body: Bytes) -> Result<CatalogEdit> {
    let edit: pb::CatalogEdit = pb::decode(body, "catalog edit")?;
    let created = edit.created.into_iter();
    Ok(CatalogEdit {
        created: created
            .map(|table| Ok((table.name, stored_id(&table.id)?)))
            .collect::<Result<_>>()?,
        dropped: ids(&edit.dropped)?,
        is_wal_clean: edit.wal_clean,
    })
}

pub(in crate::manifest) fn encode_catalog(state: &CatalogState) -> Bytes {
    let tables = state.tables.iter();
    pb::encode(&pb::CatalogSnapshot {
        tables: tables.map(|(name, id)| catalog_table(name, *id)).collect(),
        wal: state.wal.as_ref().map(Into::into),
        wal_clean: state.is_wal_clean,
        wal_since: state.wal_since.0,
        root: state.root.clone(),
    })
}

pub(in crate::manifest) fn decode_catalog(body: Bytes) -> Result<CatalogState> {
    let snapshot: pb::CatalogSnapshot = pb::decode(body, "catalog snapshot")?;
    let tables = snapshot.tables.into_iter();
    Ok(CatalogState {
        tables: tables
            .map(|table| Ok((table.name, stored_id(&table.id)?)))
            .collect::<Result<_>>()?,
        wal: snapshot.wal.map(Into::into),
        is_wal_clean: snapshot.wal_clean,
        wal_since: Epoch(snapshot.wal_since),
        root: snapshot.root,
    })
}

fn catalog_table(name: &str, id: TableId) -> pb::CatalogTable {
    pb::CatalogTable {
        id: id.to_string(),
        name: name.to_owned(),
    }
}

impl From<&WalIdentity> for pb::WalIdentity {
    fn from(wal: &WalIdentity) -> Self {
        Self {
            mode: wal.mode.clone(),
            id: wal.id.clone(),
            place: wal.place.clone(),
        }
    }
}

impl From<pb::WalIdentity> for WalIdentity {
    fn from(wal: pb::WalIdentity) -> Self {
        Self {
            mode: wal.mode,
            id: wal.id,
            place: wal.place,
            root: None,
        }
    }
}
