//! Describes a catalog or a manifest for people, damaged or not, without opening it for writing: no epoch
//! is claimed, nothing is created.
//!
//! 1. Every record of the log is read by itself; one that is missing or damaged is reported.
//! 2. What they add up to is worked out as at open, from the newest snapshot that can be read on; a record
//!    that does not fit is reported and left out. What precedes that snapshot may have been removed, in part
//!    or whole.

mod log;
mod report;

use std::sync::Arc;

use bytes::Bytes;

use log::ReadLog;
pub use report::{CatalogReport, JobLine, ManifestReport, RecordReport, SstLine, VersionReport};

use super::{
    Edit, Shape, Version, catalog, codec,
    codec::{CatalogEdit, CatalogState},
    commit, invariants,
};
use crate::{
    error::Result,
    store::{
        Store, layout,
        log::{Record, RecordKind},
    },
    types::TableId,
};

/// Describes the catalog of `store`.
///
/// # Errors
/// `NotFound` when there is none; `Unavailable`. Damage is no error.
pub async fn catalog(store: &Store) -> Result<CatalogReport> {
    let log = ReadLog::read(store, layout::CATALOG).await?;
    let mut report = CatalogReport::default();
    let mut state = CatalogState::default();
    for (at, entry) in log.entries.iter().enumerate() {
        let summary = entry.record.as_ref().map(|record| match record.kind {
            RecordKind::Claim => match codec::decode_catalog_claim(record.body.clone()) {
                Ok(claim) => format!("an engine took over, with the wal of {}", claim.wal),
                Err(error) => error.to_string(),
            },
            RecordKind::Snapshot => match codec::decode_catalog(record.body.clone()) {
                Ok(state) => format!("{} tables", state.tables.len()),
                Err(error) => error.to_string(),
            },
            RecordKind::Edit => match codec::decode_catalog_edit(record.body.clone()) {
                Ok(edit) => catalog_summary(&edit),
                Err(error) => error.to_string(),
            },
        });
        report.log.push(entry.line(summary));
        if let Some(record) = entry.record.as_ref().filter(|_| at >= log.first) {
            report.epoch = report.epoch.max(record.epoch.0);
            if let Err(error) = catalog::replay(&mut state, record) {
                report.faults.push(error.to_string());
            }
        }
    }
    report.wal = state.wal.as_ref().map(ToString::to_string);
    report.is_wal_clean = state.is_wal_clean;
    let tables = state.tables.into_iter();
    report.tables = tables.map(|(name, id)| (name, id.to_string())).collect();
    report.faults.extend(log.faults);
    Ok(report)
}

/// Describes the manifest of `table`.
///
/// # Errors
/// `NotFound` when there is none; `Unavailable`. Damage is no error.
pub async fn manifest(store: &Store, table: TableId) -> Result<ManifestReport> {
    let log = ReadLog::read(store, &layout::manifest(table)).await?;
    let lines = log.entries.iter();
    let lines = lines.map(|entry| entry.line(entry.record.as_ref().map(summary)));
    let (lines, needed) = (lines.collect(), &log.entries[log.first..]);
    let records = needed.iter().filter_map(|entry| entry.record.as_ref());
    let epoch = records.map(|record| record.epoch.0).max();
    let seen = Seen::of(table, log);
    Ok(ManifestReport {
        table: table.to_string(),
        epoch: epoch.unwrap_or_default(),
        version: seen.version.as_deref().map(VersionReport::of),
        log: lines,
        faults: seen.faults,
    })
}

/// A table, as far as its manifest can be read from outside.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The version that the records add up to, if that can be found out. Where there are faults it may be an
    /// older one, or one that never was.
    pub version: Option<Arc<Version>>,
    /// What is wrong, and where.
    pub faults: Vec<String>,
}

/// The current version of `table`.
///
/// # Errors
/// As for [`manifest()`].
pub async fn version(store: &Store, table: TableId) -> Result<Seen> {
    let log = ReadLog::read(store, &layout::manifest(table)).await?;
    Ok(Seen::of(table, log))
}

impl Seen {
    fn of(table: TableId, log: ReadLog) -> Self {
        let (mut version, mut faults) = (None::<Version>, Vec::new());
        let records = log.entries[log.first..].iter();
        for record in records.filter_map(|entry| entry.record.as_ref()) {
            match commit::replay(table, version.clone(), record) {
                Ok(next) => version = next,
                Err(error) => faults.push(error.to_string()),
            }
        }
        faults.extend(log.faults);
        if let Some(version) = &version
            && let Err(error) = invariants::check(version)
        {
            faults.push(format!("the version that the records add up to: {error}"));
        }
        Self {
            version: version.map(Arc::new),
            faults,
        }
    }
}

fn catalog_summary(edit: &CatalogEdit) -> String {
    let created = edit.created.iter();
    let created = created.map(|(name, id)| format!("table {name:?} created as {id}"));
    let dropped = edit.dropped.iter().map(|id| format!("table {id} dropped"));
    let clean = edit
        .is_wal_clean
        .then(|| "nothing is left in the wal".into());
    let parts = created.chain(dropped).chain(clean);
    parts.collect::<Vec<_>>().join(", ")
}

/// Decodes `body` as that of every kind of record, which tells only that none of them panics.
#[doc(hidden)]
pub fn bodies(body: &Bytes) {
    drop(codec::decode_version(body.clone()));
    drop(codec::decode_edit(body.clone()));
    drop(codec::decode_catalog(body.clone()));
    drop(codec::decode_catalog_claim(body.clone()));
    drop(codec::decode_catalog_edit(body.clone()));
}

/// What a record of a manifest does.
fn summary(record: &Record) -> String {
    match record.kind {
        RecordKind::Claim => "an engine took over".into(),
        RecordKind::Snapshot => match codec::decode_version(record.body.clone()) {
            Ok(version) => {
                let total = Shape::of(&version).total();
                format!(
                    "{} ssts, {} bytes, {} jobs",
                    total.ssts,
                    total.bytes,
                    version.jobs.len()
                )
            }
            Err(error) => error.to_string(),
        },
        RecordKind::Edit => match codec::decode_edit(record.body.clone()) {
            Ok(edit) => edit_summary(&edit),
            Err(error) => error.to_string(),
        },
    }
}

fn edit_summary(edit: &Edit) -> String {
    let mut parts = Vec::new();
    if let Some(schema) = &edit.schema {
        parts.push(format!("schema version {}", schema.version()));
    }
    parts.extend(edit.jobs_started.iter().map(|job| {
        let (inputs, tasks) = (job.inputs.len(), job.tasks.len());
        format!("job {} of {inputs} ssts in {tasks} tasks", job.id)
    }));
    parts.extend(
        edit.jobs_ended
            .iter()
            .map(|job| format!("end of job {job}")),
    );
    parts.extend(edit.moved.iter().map(|moved| {
        let (sst, level) = (moved.sst.id, moved.level);
        format!("{sst} to level {level}")
    }));
    if !edit.removed.is_empty() {
        let (ssts, departure) = (edit.removed.len(), edit.departure.as_str());
        parts.push(format!("-{ssts} {departure} ssts"));
    }
    if !edit.added.is_empty() {
        let bytes: u64 = edit.added.iter().map(|sst| sst.bytes).sum();
        let rows: u64 = edit.added.iter().map(|sst| sst.rows).sum();
        let ssts = edit.added.len();
        parts.push(format!("+{ssts} ssts of {rows} rows and {bytes} bytes"));
    }
    if let Some(seq) = edit.flushed_seq {
        parts.push(format!("flushed up to {seq}"));
    }
    parts.extend(edit.range_deletes.iter().map(|delete| {
        let (start, end) = (delete.times.start, delete.times.end);
        format!("delete of times {start} to {end} at {}", delete.seq)
    }));
    if !edit.range_deletes_ended.is_empty() {
        parts.push(format!(
            "{} range deletes ended",
            edit.range_deletes_ended.len()
        ));
    }
    if !edit.deleted.is_empty() {
        parts.push(format!("{} objects deleted", edit.deleted.len()));
    }
    if parts.is_empty() {
        parts.push(format!("{edit:?}"));
    }
    parts.join(", ")
}

/// Tables by name, as the catalog has them; and what is wrong with it.
///
/// # Errors
/// As for [`catalog()`].
pub async fn tables(store: &Store) -> Result<(Vec<(String, TableId)>, Vec<String>)> {
    let report = catalog(store).await?;
    let tables = report.tables.iter();
    let tables = tables.filter_map(|(name, id)| Some((name.clone(), id.parse().ok()?)));
    Ok((tables.collect(), report.faults))
}
