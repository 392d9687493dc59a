//! What is told of a log and of a version, in plain values that can be printed.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::manifest::{Shape, Version};

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

impl VersionReport {
    pub(super) fn of(version: &Version) -> Self {
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
