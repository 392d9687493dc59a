//! Describes a catalog or a manifest for people, damaged or not, without opening it for writing: no epoch
//! is claimed, nothing is created.
//!
//! 1. Every record of the log is read by itself; one that is missing or damaged is reported.
//! 2. What they add up to is worked out as at open, from the newest snapshot that can be read on; a record
//!    that does not fit is reported and left out. What precedes that snapshot may have been removed, in part
//!    or whole.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use serde::Serialize;

use super::{
    Edit, Shape, Version, catalog, codec,
    codec::{CatalogEdit, CatalogState},
    commit, invariants,
};
use crate::{
    error::{Error, ErrorKind, Result},
    store::{
        Store, layout,
        log::{Record, RecordKind},
    },
    types::TableId,
};

/// One record of a log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RecordReport {
    /// Its number.
    pub number: u64,
    /// Size of its object.
    pub bytes: u64,
    /// When the object was written, in milliseconds since the Unix epoch.
    pub modified_ms: i64,
    /// `"edit"`, `"snapshot"`, `"claim"`, or `"damaged"`.
    pub kind: &'static str,
    /// Epoch of the writer; 0 when it is damaged.
    pub epoch: u64,
    /// What it does, in words.
    pub summary: String,
}

/// The log of a catalog, and what it adds up to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CatalogReport {
    /// Ids of the tables, by name.
    pub tables: BTreeMap<String, String>,
    /// The WAL of the last engine: what is not in SSTs is there.
    pub wal: Option<String>,
    /// Whether that engine closed with nothing left in it.
    pub is_wal_clean: bool,
    /// The newest epoch: that of the last engine that had the root open for writing.
    pub epoch: u64,
    /// Its records, in order.
    pub log: Vec<RecordReport>,
    /// What is wrong, and where.
    pub faults: Vec<String>,
}

/// The log of a manifest, and what it adds up to.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ManifestReport {
    /// Id of the table.
    pub table: String,
    /// The newest epoch.
    pub epoch: u64,
    /// The table as it is; `None` when that cannot be found out.
    pub version: Option<VersionReport>,
    /// The records, in order.
    pub log: Vec<RecordReport>,
    /// What is wrong, and where.
    pub faults: Vec<String>,
}

/// A version of a table.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct VersionReport {
    /// Columns, with type and nullability.
    pub columns: Vec<String>,
    /// Names of the key's columns, in order.
    pub key: Vec<String>,
    /// `"upsert"` or `"append"`.
    pub write_mode: String,
    /// Version of the schema.
    pub schema_version: u32,
    /// Every batch up to here is in SSTs.
    pub flushed_seq: u64,
    /// SSTs by level and window.
    pub shape: Shape,
    /// Live SSTs.
    pub ssts: Vec<SstLine>,
    /// Compaction jobs that are recorded.
    pub jobs: Vec<JobLine>,
    /// Range deletes that may hide rows: seq, and times from the first to before the second, in the unit of
    /// the time column.
    pub range_deletes: Vec<(u64, i64, i64)>,
    /// SSTs that left and are not deleted yet, and when, in milliseconds since the Unix epoch.
    pub obsolete: BTreeMap<String, u64>,
}

/// A live SST.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SstLine {
    /// Its id.
    pub id: String,
    /// Its level.
    pub level: u8,
    /// Its window.
    pub window: String,
    /// Size of its object.
    pub bytes: u64,
    /// Rows in it.
    pub rows: u64,
    /// Of these, tombstones.
    pub tombstones: u64,
    /// Least and greatest seq.
    pub seqs: (u64, u64),
    /// Least and greatest time, in the unit of the time column.
    pub times: Option<(i64, i64)>,
    /// Version of the schema it was written with.
    pub schema_version: u32,
    /// Id of the table whose folder it is in, when that is another one.
    pub home: Option<String>,
}

/// A recorded job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct JobLine {
    /// Its id.
    pub id: String,
    /// Its window.
    pub window: String,
    /// Level of its outputs.
    pub level_target: u8,
    /// Ids of its inputs.
    pub inputs: Vec<String>,
    /// Number of its tasks.
    pub tasks: usize,
    /// When it was recorded, in milliseconds since the Unix epoch.
    pub created_ms: u64,
}

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

impl VersionReport {
    fn of(version: &Version) -> Self {
        let schema = &version.schema;
        let fields = schema.columns().fields().iter();
        let columns = fields.map(|field| {
            let nullable = if field.is_nullable() { "" } else { " not null" };
            format!("{}: {}{nullable}", field.name(), field.data_type())
        });
        let ssts = version.ssts().map(|sst| SstLine {
            id: sst.id.to_string(),
            level: sst.level,
            window: sst.window.to_string(),
            bytes: sst.bytes,
            rows: sst.rows,
            tombstones: sst.tombstones,
            seqs: (sst.seq_min.0, sst.seq_max.0),
            times: sst.times,
            schema_version: sst.schema_version,
            home: sst.home.map(|home| home.to_string()),
        });
        let jobs = version.jobs.values().map(|job| JobLine {
            id: job.id.to_string(),
            window: job.window.to_string(),
            level_target: job.level_target,
            inputs: job.inputs.iter().map(|sst| sst.to_string()).collect(),
            tasks: job.tasks.len(),
            created_ms: job.created_ms,
        });
        let deletes = version.range_deletes.iter();
        let deletes = deletes.map(|delete| (delete.seq.0, delete.times.start, delete.times.end));
        let obsolete = version.obsolete.iter();
        Self {
            columns: columns.collect(),
            key: schema.key_names().into_iter().map(str::to_owned).collect(),
            write_mode: schema.write_mode().to_string(),
            schema_version: schema.version(),
            flushed_seq: version.flushed_seq.0,
            shape: Shape::of(version),
            ssts: ssts.collect(),
            jobs: jobs.collect(),
            range_deletes: deletes.collect(),
            obsolete: obsolete
                .map(|(sst, obsolete)| (sst.to_string(), obsolete.since_ms))
                .collect(),
        }
    }
}

/// A log, read record by record.
struct ReadLog {
    entries: Vec<Entry>,
    /// Position of the newest snapshot that can be read, or 0.
    first: usize,
    faults: Vec<String>,
}

struct Entry {
    number: u64,
    bytes: u64,
    modified_ms: i64,
    record: Option<Record>,
}

impl Entry {
    fn line(&self, summary: Option<String>) -> RecordReport {
        let kind = self.record.as_ref().map(|record| record.kind);
        RecordReport {
            number: self.number,
            bytes: self.bytes,
            modified_ms: self.modified_ms,
            kind: match kind {
                None => "damaged",
                Some(RecordKind::Edit) => "edit",
                Some(RecordKind::Snapshot) => "snapshot",
                Some(RecordKind::Claim) => "claim",
            },
            epoch: self.record.as_ref().map_or(0, |record| record.epoch.0),
            summary: summary.unwrap_or_default(),
        }
    }
}

impl ReadLog {
    async fn read(store: &Store, folder: &str) -> Result<Self> {
        let objects = store.list(folder).await?;
        let numbered = objects
            .into_iter()
            .filter_map(|object| Some((layout::parse_log_record(folder, &object.name)?, object)));
        let numbered: BTreeMap<u64, _> = numbered.collect();
        if numbered.is_empty() {
            let url = store.url();
            return Err(Error::not_found(format!(
                "there is no log in {folder} of {url}"
            )));
        }
        let mut log = Self {
            entries: Vec::with_capacity(numbered.len()),
            first: 0,
            faults: Vec::new(),
        };
        for (number, object) in numbered {
            let bytes = match store.get(&object.name).await {
                Ok(bytes) => bytes,
                // An engine at work has removed it since it was listed.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            let record = Record::decode(&object.name, number, &bytes);
            if let Err(error) = &record {
                log.faults.push(error.message().to_owned());
            }
            log.entries.push(Entry {
                number,
                bytes: object.bytes,
                modified_ms: object.modified_ms,
                record: record.ok(),
            });
        }
        let is_snapshot = |entry: &Entry| {
            let record = entry.record.as_ref();
            record.is_some_and(|record| record.kind == RecordKind::Snapshot)
        };
        log.first = log.entries.iter().rposition(is_snapshot).unwrap_or(0);
        log.check_start(folder);
        log.check_gaps(folder);
        Ok(log)
    }

    /// From where a reader begins none is missing.
    fn check_gaps(&mut self, folder: &str) {
        for pair in self.entries[self.first..].windows(2) {
            let (start, end) = (pair[0].number + 1, pair[1].number - 1);
            if start <= end {
                self.faults
                    .push(format!("{folder}: records {start} to {end} are missing"));
            }
        }
    }

    /// A log begins with record 1, or with a snapshot.
    fn check_start(&mut self, folder: &str) {
        let first = &self.entries[self.first];
        let is_snapshot =
            first.record.as_ref().map(|record| record.kind) == Some(RecordKind::Snapshot);
        if first.number != 1 && !is_snapshot {
            let number = first.number;
            let what = format!("{folder}: begins with record {number}, and has no snapshot");
            self.faults.push(what);
        }
    }
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
