//! The catalog: which tables exist. Its epoch is the engine's: who claims it fences the engine before.

use bytes::Bytes;

use super::codec::{self, CatalogEdit, Tables};
use crate::{
    clock::Env,
    error::{Error, ErrorKind, Result},
    store::{
        Store, layout,
        log::{Log, LogWriter, Record, RecordKind},
    },
    types::{Epoch, TableId},
};

/// Edits after which a snapshot is written.
const EDITS_PER_SNAPSHOT: u64 = 64;
/// How often a commit that meets foreign records is decided anew.
const RELOADS_MAX: u32 = 16;

/// The list of tables, open for writing. One change at a time (`&mut self`).
#[derive(Debug)]
pub struct Catalog {
    env: Env,
    writer: LogWriter,
    reader: Log,
    tables: Tables,
    applied: u64,
    edits_since_snapshot: u64,
}

impl Catalog {
    /// Whether `store` has a catalog: whether it is a Siltstone root.
    pub async fn exists(store: &Store) -> Result<bool> {
        Ok(!store.list(layout::CATALOG).await?.is_empty())
    }

    /// Opens the catalog for writing, creating it when there is none; an engine that has it open is
    /// fenced.
    ///
    /// # Errors
    /// `Corrupt`, naming the object.
    pub async fn open(store: &Store, env: Env) -> Result<Self> {
        let reader = Log::new(store.clone(), layout::CATALOG);
        let (writer, records) = LogWriter::open(reader.clone(), || env.random()).await?;
        let mut tables = Tables::new();
        for record in &records {
            replay(&mut tables, record)?;
        }
        let applied = writer.last();
        Ok(Self {
            env,
            writer,
            reader,
            tables,
            applied,
            edits_since_snapshot: records.len() as u64,
        })
    }

    /// The engine's epoch.
    pub fn epoch(&self) -> Epoch {
        self.writer.epoch()
    }

    /// All tables, by name.
    pub fn tables(&self) -> impl Iterator<Item = (&str, TableId)> {
        self.tables.iter().map(|(name, id)| (name.as_str(), *id))
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
        self.commit(edit, |tables| match tables.get(name) {
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
        self.commit(edit, |tables| Ok(tables.values().any(|&id| id == table)))
            .await
    }

    /// Checks that no newer engine has taken over so far.
    ///
    /// # Errors
    /// `Fenced` when one has.
    pub async fn check_leads(&mut self) -> Result<()> {
        let ours = self.writer.epoch();
        for record in self.reader.read_after(self.applied).await? {
            if record.epoch > ours {
                let theirs = record.epoch;
                return Err(Error::fenced(format!(
                    "the catalog was taken over with epoch {theirs}; ours is {ours}"
                )));
            }
        }
        Ok(())
    }

    async fn commit(
        &mut self,
        edit: CatalogEdit,
        is_needed: impl Fn(&Tables) -> Result<bool>,
    ) -> Result<()> {
        for _ in 0..RELOADS_MAX {
            if !is_needed(&self.tables)? {
                return Ok(());
            }
            let body = codec::encode_catalog_edit(&edit);
            match self.append(RecordKind::Edit, body).await {
                Ok(()) => {
                    apply(&mut self.tables, &edit);
                    self.snapshot_if_due().await;
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::Conflict => self.reload().await?,
                Err(error) => return Err(error.context("catalog")),
            }
        }
        Err(Error::conflict(
            "the catalog keeps changing under the commit",
        ))
    }

    async fn append(&mut self, kind: RecordKind, body: Bytes) -> Result<()> {
        self.applied = self.writer.append(kind, body, self.env.random()).await?;
        self.edits_since_snapshot += 1;
        Ok(())
    }

    async fn snapshot_if_due(&mut self) {
        if self.edits_since_snapshot < EDITS_PER_SNAPSHOT {
            return;
        }
        let body = codec::encode_tables(&self.tables);
        match self.append(RecordKind::Snapshot, body).await {
            Ok(()) => self.edits_since_snapshot = 0,
            Err(error) => tracing::warn!(%error, "catalog snapshot was not written"),
        }
    }

    async fn reload(&mut self) -> Result<()> {
        for record in self.reader.read_after(self.applied).await? {
            replay(&mut self.tables, &record)?;
            self.applied = record.number;
            self.writer.skip_to(record.number);
        }
        Ok(())
    }
}

pub(super) fn replay(tables: &mut Tables, record: &Record) -> Result<()> {
    let as_corrupt = |error: Error| {
        Error::corrupt(format!("record {} of the catalog", record.number)).with_source(error)
    };
    match record.kind {
        RecordKind::Claim => {}
        RecordKind::Snapshot => {
            *tables = codec::decode_tables(record.body.clone()).map_err(as_corrupt)?
        }
        RecordKind::Edit => {
            let edit = codec::decode_catalog_edit(record.body.clone()).map_err(as_corrupt)?;
            apply(tables, &edit);
        }
    }
    Ok(())
}

fn apply(tables: &mut Tables, edit: &CatalogEdit) {
    tables.retain(|_, id| !edit.dropped.contains(id));
    tables.extend(edit.created.iter().cloned());
}
