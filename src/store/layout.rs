//! The name of every object under a root, built and parsed here and nowhere else.
//!
//! ```text
//! catalog/00000000000000000007.log              tables that exist (numbered log)
//! wal/<engine>/00000000000000000012.wal         the WAL, when it is kept on the object store (numbered log)
//! tables/<table>/manifest/00000000000000000042.log
//! tables/<table>/sst/<sst>.parquet
//! tables/<table>/results/<job>/<task index>-<n> part n of a task's result: the first one written is final
//! tables/<table>/checkpoints/<id>-<expires>     when it ends, in ms since the Unix epoch; 0 for never
//! meta/00000000000000000003.log                 the meta service's plan log
//! probe/<ulid>                                  written at open, to see what the store promises
//! ```
//! On a local disk an object that is being written has a name of its own until it is done: its later name, `#`
//! and digits.

use std::str::FromStr;

use ulid::Ulid;

use crate::types::{CheckpointId, JobId, SstId, TableId, TaskId};

/// Folder of the catalog's log.
pub const CATALOG: &str = "catalog";
/// Folder of the tables.
pub const TABLES: &str = "tables";
/// Folder of the WALs.
pub const WAL: &str = "wal";
/// Folder of the plan log.
pub const META: &str = "meta";

/// Folder of the probes.
pub const PROBE: &str = "probe";

/// What a name says of its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectName {
    /// A record of a log: of a table's manifest, or of the root's.
    LogRecord {
        /// The table whose manifest it is of.
        table: Option<TableId>,
        /// Its number.
        number: u64,
    },
    /// An SST.
    Sst(TableId, SstId),
    /// A part of a task's result, and its position among them.
    Result(TableId, TaskId, u32),
    /// A checkpoint, and when it ends, in milliseconds since the Unix epoch.
    Checkpoint(TableId, CheckpointId, Option<u64>),
    /// What an open left of its look at the store, and when that was, in milliseconds since the Unix epoch.
    Probe(u64),
}

impl ObjectName {
    /// The table in whose folder it is.
    pub fn table(&self) -> Option<TableId> {
        match self {
            Self::Sst(table, _) | Self::Result(table, _, _) | Self::Checkpoint(table, _, _) => {
                Some(*table)
            }
            Self::LogRecord { table, .. } => *table,
            Self::Probe(_) => None,
        }
    }
}

/// What `name` says of its object; `None` for names that this module does not build.
pub fn parse(name: &str) -> Option<ObjectName> {
    let parts: Vec<&str> = name.split('/').collect();
    let of_log = |table| {
        let (folder, _) = name.rsplit_once('/')?;
        let number = parse_log_record(folder, name)?;
        Some(ObjectName::LogRecord { table, number })
    };
    match parts[..] {
        [CATALOG | META, _] | [WAL, _, _] => of_log(None),
        [TABLES, table, "manifest", _] => of_log(Some(id(table)?)),
        [TABLES, table, "sst", file] => {
            let sst = id(file.strip_suffix(".parquet")?)?;
            Some(ObjectName::Sst(id(table)?, sst))
        }
        [TABLES, table, "results", job, part] => {
            let (index, part) = part.split_once('-')?;
            let task = TaskId {
                job: id(job)?,
                index: id(index)?,
            };
            Some(ObjectName::Result(id(table)?, task, id(part)?))
        }
        [TABLES, table, "checkpoints", _] => {
            let (table, (held, expires_ms)) = (id(table)?, parse_checkpoint(name)?);
            let is_ours = name == checkpoint(table, held, expires_ms);
            is_ours.then_some(ObjectName::Checkpoint(table, held, expires_ms))
        }
        [PROBE, ulid] => Some(ObjectName::Probe(id::<Ulid>(ulid)?.timestamp_ms())),
        _ => None,
    }
}

/// The id that `text` is; `None` also where it is written otherwise than this module would.
fn id<T: FromStr + ToString>(text: &str) -> Option<T> {
    let id: T = text.parse().ok()?;
    (id.to_string() == text).then_some(id)
}

/// The object that was being written under this name, when it is a name for that.
pub fn staged(name: &str) -> Option<ObjectName> {
    let (object, digits) = name.rsplit_once('#')?;
    let is_number = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
    is_number.then(|| parse(object))?
}

/// Whether a root may hold `name` at its top.
pub fn is_known_top(name: &str) -> bool {
    matches!(name, CATALOG | META | TABLES | WAL | PROBE)
}

/// Name of a probe.
pub fn probe(unix_ms: u64, random: u128) -> String {
    format!("{PROBE}/{}", Ulid::from_parts(unix_ms, random))
}

/// Folder with everything of one table.
pub fn table(table: TableId) -> String {
    format!("tables/{table}")
}

/// Folder of a table's manifest log.
pub fn manifest(table: TableId) -> String {
    format!("tables/{table}/manifest")
}

/// Folder of a table's SSTs.
pub fn ssts(table: TableId) -> String {
    format!("tables/{table}/sst")
}

/// Name of an SST's object.
pub fn sst(table: TableId, sst: SstId) -> String {
    format!("tables/{table}/sst/{sst}.parquet")
}

/// The SST that an object's name names.
pub fn parse_sst(name: &str) -> Option<SstId> {
    let stem = name.rsplit('/').next()?.strip_suffix(".parquet")?;
    stem.parse().ok()
}

/// Folder of the results of a job's tasks.
pub fn results(table: TableId, job: JobId) -> String {
    format!("tables/{table}/results/{job}")
}

/// Name of part `part` of a task's result.
pub fn result(table: TableId, task: TaskId, part: u32) -> String {
    format!("tables/{table}/results/{}/{}-{part}", task.job, task.index)
}

/// Folder of a table's checkpoints.
pub fn checkpoints(table: TableId) -> String {
    format!("tables/{table}/checkpoints")
}

/// Name of a checkpoint that ends at `expires_ms`, in milliseconds since the Unix epoch, or never.
pub fn checkpoint(table: TableId, id: CheckpointId, expires_ms: Option<u64>) -> String {
    let expires_ms = expires_ms.unwrap_or(0);
    format!("tables/{table}/checkpoints/{id}-{expires_ms}")
}

/// The checkpoint that an object's name names, and when it ends.
pub fn parse_checkpoint(name: &str) -> Option<(CheckpointId, Option<u64>)> {
    let (id, expires_ms) = name.rsplit('/').next()?.split_once('-')?;
    let expires_ms: u64 = expires_ms.parse().ok()?;
    Some((id.parse().ok()?, (expires_ms > 0).then_some(expires_ms)))
}

/// Folder of the object WAL of the engine called `engine`.
pub fn wal(engine: &str) -> String {
    format!("{WAL}/{engine}")
}

/// Name of record `number` of the log in folder `log`.
pub fn log_record(log: &str, number: u64) -> String {
    format!("{log}/{number:020}.{}", log_extension(log))
}

/// The number of the record of the log in folder `log` that an object's name names.
pub fn parse_log_record(log: &str, name: &str) -> Option<u64> {
    let name = name.strip_prefix(log)?.strip_prefix('/')?;
    let (stem, extension) = name.split_once('.')?;
    (stem.len() == 20 && extension == log_extension(log)).then(|| stem.parse().ok())?
}

fn log_extension(log: &str) -> &'static str {
    match log.split('/').next() {
        Some(WAL) => "wal",
        _ => "log",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(table: Option<TableId>) -> ObjectName {
        ObjectName::LogRecord { table, number: 7 }
    }

    #[test]
    fn names_parse_back() {
        let table = TableId::from_parts(1, 2);
        let id = SstId::flushed(3, 4);
        assert_eq!(parse_sst(&sst(table, id)), Some(id));
        for log in [CATALOG, META, &manifest(table), &wal("siltstone")] {
            assert_eq!(parse_log_record(log, &log_record(log, 7)), Some(7));
            assert_eq!(parse_log_record(log, &log_record("other", 7)), None);
            assert_eq!(parse_log_record(log, &format!("{log}/7.log")), None);
        }
        let task = TaskId {
            job: JobId::from_parts(5, 6),
            index: 7,
        };
        let held = CheckpointId::from_parts(3, 3);
        for (name, object) in [
            (sst(table, id), ObjectName::Sst(table, id)),
            (result(table, task, 17), ObjectName::Result(table, task, 17)),
            (probe(8, 9), ObjectName::Probe(8)),
            (
                checkpoint(table, held, Some(7)),
                ObjectName::Checkpoint(table, held, Some(7)),
            ),
            (log_record(CATALOG, 7), record(None)),
            (log_record(&wal("siltstone"), 7), record(None)),
            (log_record(&manifest(table), 7), record(Some(table))),
        ] {
            assert_eq!(parse(&name), Some(object), "{name}");
            assert_eq!(staged(&format!("{name}#12")), Some(object), "{name}");
            for strange in [
                format!("{name}#"),
                format!("{name}#1x"),
                format!("x{name}"),
                format!("{name}/x"),
                name.to_lowercase(),
                name.replace('7', "+7"),
            ] {
                let is_same = strange == name;
                assert!(is_same || parse(&strange).is_none(), "{strange}");
                assert_eq!(staged(&strange), None, "{strange}");
            }
        }
        // A local WAL may lie in a folder of its own inside.
        let inside = "wal/siltstone/local/00000000000000000007.wal";
        assert_eq!(parse_log_record(&wal("siltstone"), inside), None);
        assert_eq!(parse_sst("tables/x/sst/junk.parquet"), None);
        let id = CheckpointId::from_parts(5, 6);
        for expires_ms in [None, Some(1), Some(u64::MAX)] {
            let name = checkpoint(table, id, expires_ms);
            assert_eq!(parse_checkpoint(&name), Some((id, expires_ms)));
        }
        for name in ["x", "x-1", &id.to_string(), &format!("{id}-soon")] {
            assert_eq!(
                parse_checkpoint(&format!("tables/x/checkpoints/{name}")),
                None
            );
        }
    }
}
