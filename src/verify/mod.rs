//! Reads everything that the manifests of a root name, and says what is wrong with it, and which rows that concerns.
//! From outside: no epoch is claimed and nothing is changed, so that an engine may be at work meanwhile. What it
//! deletes while this runs is looked for again in the manifest before it counts as missing.
//!
//! 1. Catalog and manifests, record by record, and the [invariants](crate::manifest::invariants) of what they add up
//!    to.
//! 2. Checkpoints, and results of jobs that are under way: whether they can be read.
//! 3. Every SST that a version or a checkpoint names, row group by row group: `sst`.

mod sst;

use std::collections::BTreeMap;

use futures::{StreamExt, stream};
use serde::Serialize;
use tokio::runtime::Handle;

use crate::{
    compaction::TaskPart,
    error::{Error, Result},
    manifest::{Version, checkpoints, inspect},
    store::{Store, layout},
    threads,
    types::{SstId, SstMeta, TableId, TableSchema},
};

/// SSTs read at once.
const SSTS_AT_ONCE: usize = 4;

/// What was found in a root.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// What is wrong with the catalog.
    pub faults: Vec<String>,
    /// Its tables, by name.
    pub tables: BTreeMap<String, TableReport>,
}

/// What was found in a table.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TableReport {
    /// Its id.
    pub id: String,
    /// SSTs that were read.
    pub ssts: u64,
    /// Rows in them, as far as they could be read.
    pub rows: u64,
    /// Bytes of their objects, as the manifest has them.
    pub bytes: u64,
    /// What is wrong.
    pub faults: Vec<Fault>,
}

/// Something that is wrong.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fault {
    /// The object, or the part of the manifest, that is damaged.
    pub object: String,
    /// What is wrong with it.
    pub what: String,
    /// The rows that it concerns; `None` when that is not known, or none are.
    pub rows: Option<Rows>,
}

/// Rows of an SST.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Rows {
    /// How many.
    pub count: u64,
    /// The row groups that they are in, if not all.
    pub row_group: Option<usize>,
    /// The first of their keys, column by column, as text.
    pub key_min: Vec<String>,
    /// No key is greater.
    pub key_max: Vec<String>,
    /// Least and greatest time in the SST, in the unit of the time column.
    pub times: Option<(i64, i64)>,
}

/// How far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// So many bytes of SSTs are to be read.
    Bytes(u64),
    /// An SST of so many bytes has been read.
    Read(u64),
}

impl Report {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.faults.is_empty() && self.tables.values().all(|table| table.faults.is_empty())
    }
}

/// Verifies the tables of the root in `store` that are called `names`; all, if none are named. `progress` is told how
/// far it has come.
///
/// # Errors
/// `NotFound`, naming a table that the catalog does not have; `Unavailable`. Damage is no error, but reported.
pub async fn verify(
    store: &Store,
    names: &[String],
    progress: impl Fn(Progress) + Sync,
) -> Result<Report> {
    let (tables, faults) = inspect::tables(store).await?;
    let is_there = |name: &&String| tables.iter().any(|(other, _)| other == *name);
    if let Some(unknown) = names.iter().find(|name| !is_there(name)) {
        let url = store.url();
        return Err(Error::not_found(format!(
            "the catalog of {url} has no table {unknown:?}"
        )));
    }
    let mut report = Report {
        faults,
        ..Report::default()
    };
    let wanted = tables
        .into_iter()
        .filter(|(name, _)| names.is_empty() || names.contains(name));
    let mut found = Vec::new();
    for (name, id) in wanted {
        let (table, ssts) = look_at(store, id).await?;
        progress(Progress::Bytes(ssts.iter().map(|sst| sst.meta.bytes).sum()));
        found.push((name, id, table, ssts));
    }
    for (name, id, mut table, ssts) in found {
        let mut reading = stream::iter(ssts)
            .map(|sst| read(store, id, sst))
            .buffered(SSTS_AT_ONCE);
        while let Some(read) = reading.next().await {
            let (sst, verified) = read?;
            progress(Progress::Read(sst.meta.bytes));
            table.ssts += 1;
            table.bytes += sst.meta.bytes;
            table.rows += verified.rows;
            if verified.is_missing && !is_named(store, id, sst.meta.id).await? {
                continue;
            }
            table.faults.extend(verified.faults);
        }
        report.tables.insert(name, table);
    }
    Ok(report)
}

/// An SST to be read, and the schema to read it under.
struct Named {
    meta: SstMeta,
    schema: TableSchema,
}

/// What is known of a table without reading its SSTs, and those that are to be read.
async fn look_at(store: &Store, id: TableId) -> Result<(TableReport, Vec<Named>)> {
    let mut report = TableReport {
        id: id.to_string(),
        ..TableReport::default()
    };
    let mut ssts: BTreeMap<SstId, Named> = BTreeMap::new();
    let mut add = |version: &Version| {
        for sst in version.ssts() {
            ssts.entry(sst.id).or_insert_with(|| Named {
                meta: sst.as_ref().clone(),
                schema: version.schema.clone(),
            });
        }
    };
    let seen = inspect::version(store, id).await?;
    let fault = |what: String| Fault {
        object: layout::manifest(id),
        what,
        rows: None,
    };
    report.faults.extend(seen.faults.into_iter().map(fault));
    if let Some(version) = &seen.version {
        add(version);
        for job in version.jobs.keys() {
            for object in store.list(&layout::results(id, *job)).await? {
                let bytes = store.get(&object.name).await?;
                let read = TaskPart::decode(&object.name, &bytes).map(drop);
                report
                    .faults
                    .extend(read.err().map(|error| of(&object.name, &error)));
            }
        }
    }
    for listed in checkpoints::list(store, id).await? {
        match &listed.checkpoint {
            Ok(checkpoint) => add(&checkpoint.version),
            Err(error) => report.faults.push(of(&listed.object, error)),
        }
    }
    Ok((report, ssts.into_values().collect()))
}

fn of(object: &str, error: &Error) -> Fault {
    Fault {
        object: object.to_owned(),
        what: error.to_string(),
        rows: None,
    }
}

async fn read(store: &Store, table: TableId, sst: Named) -> Result<(Named, sst::Verified)> {
    let (store, handle) = (store.clone(), Handle::current());
    let reading = threads::run(move || {
        let verified = sst::verify(&store, &handle, table, &sst.meta, &sst.schema)?;
        Ok((sst, verified))
    });
    let read = reading.await;
    read.map_err(|error| Error::internal("verify panicked").with_source(error))?
}

/// Whether anything names `sst` still.
async fn is_named(store: &Store, table: TableId, sst: SstId) -> Result<bool> {
    let (_, ssts) = look_at(store, table).await?;
    Ok(ssts.iter().any(|named| named.meta.id == sst))
}
