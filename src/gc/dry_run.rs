//! What a sweep would delete, seen from outside: no epoch is claimed, nothing is changed.
//!
//! The order is that of a real sweep: list, versions, checkpoints. What only a running engine knows, its scans and
//! the flushes and imports that it is about to commit, is not among the facts; so what is to be deleted here is
//! deleted there only if they do not need it.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::{Deleted, Facts, Kept, Verdict, candidates};
use crate::{
    clock::Env,
    error::{ErrorKind, Result},
    manifest::{
        checkpoints::{self, Held},
        inspect,
    },
    store::{
        ObjectInfo, Store,
        layout::{self, ObjectName},
        log::Log,
    },
    types::TableId,
};

/// What the engine of the root would be told.
#[derive(Clone, Copy, Debug)]
pub struct DryRunOptions {
    /// How long what has left a table, or never entered it, is kept.
    pub grace_ms: u64,
    /// How long records of logs are kept that nobody needs.
    pub log_grace_ms: u64,
}

/// Every object of a root, and what becomes of it.
#[derive(Clone, Debug, Default)]
pub struct DryRun {
    /// By name.
    pub objects: Vec<Judged>,
    /// What is damaged, and keeps objects from being decided about.
    pub faults: Vec<String>,
}

/// An object and what becomes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judged {
    /// Its name.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// What becomes of it.
    pub verdict: Verdict,
}

/// Decides about every object of `store`.
///
/// # Errors
/// `NotFound` when there is no root; `Unavailable`. Damage is no error.
pub async fn dry_run(store: &Store, options: DryRunOptions, env: &Env) -> Result<DryRun> {
    let mut objects = store.list("").await?;
    objects.extend(store.list_staged().await?);
    objects.sort_by(|left, right| left.name.cmp(&right.name));
    let (tables, faults) = inspect::tables(store).await?;
    let mut judging = Judging {
        store,
        options,
        env,
        is_catalog_whole: faults.is_empty(),
        catalog: tables.into_iter().map(|(_, id)| id).collect(),
        run: DryRun {
            faults,
            ..DryRun::default()
        },
        bases: HashMap::new(),
    };
    for (table, objects) in by_table(objects) {
        let verdicts = match table {
            Some(table) => judging.judge_table(table, &objects).await?,
            None => judging.judge_root(&objects).await?,
        };
        let objects = objects.into_iter().zip(verdicts);
        judging
            .run
            .objects
            .extend(objects.map(|(object, verdict)| Judged {
                name: object.name,
                bytes: object.bytes,
                verdict,
            }));
    }
    let mut run = judging.run;
    run.objects
        .sort_by(|left, right| left.name.cmp(&right.name));
    Ok(run)
}

/// Objects by the table in whose folder they are.
fn by_table(objects: Vec<ObjectInfo>) -> BTreeMap<Option<TableId>, Vec<ObjectInfo>> {
    let mut tables = BTreeMap::<_, Vec<_>>::new();
    for object in objects {
        let table = layout::parse(&object.name).and_then(|name| name.table());
        tables.entry(table).or_default().push(object);
    }
    tables
}

/// A checkpoint can be over before its time: when a newer one has its name.
fn end_checkpoints(objects: &[ObjectInfo], verdicts: &mut [Verdict], ended: &HashSet<String>) {
    for (object, verdict) in objects.iter().zip(verdicts) {
        if ended.contains(&object.name) {
            *verdict = Verdict::Delete(Deleted::EndedCheckpoint);
        }
    }
}

struct Judging<'a> {
    store: &'a Store,
    options: DryRunOptions,
    env: &'a Env,
    is_catalog_whole: bool,
    catalog: HashSet<TableId>,
    run: DryRun,
    /// By the folder of a log: where its readers begin; `None` where that cannot be found out.
    bases: HashMap<String, Option<u64>>,
}

impl Judging<'_> {
    async fn judge_table(
        &mut self,
        table: TableId,
        objects: &[ObjectInfo],
    ) -> Result<Vec<Verdict>> {
        let now_ms = self.env.unix_ms();
        if !self.catalog.contains(&table) {
            if !self.is_catalog_whole {
                return Ok(vec![Verdict::Keep(Kept::Undecided); objects.len()]);
            }
            let (held, ended) = self.held(table, now_ms).await?;
            let mut verdicts = candidates::judge_dropped(table, objects, &held, now_ms);
            end_checkpoints(objects, &mut verdicts, &ended);
            return Ok(verdicts);
        }
        let seen = match inspect::version(self.store, table).await {
            Err(error) if error.kind() == ErrorKind::NotFound => inspect::Seen {
                version: None,
                faults: vec![error.to_string()],
            },
            seen => seen?,
        };
        let version = seen.version.filter(|_| seen.faults.is_empty());
        let faults = seen.faults.into_iter();
        self.run
            .faults
            .extend(faults.map(|fault| format!("table {table}: {fault}")));
        let mut verdicts = match version {
            None => vec![Verdict::Keep(Kept::Undecided); objects.len()],
            Some(version) => {
                let (held, ended) = self.held(table, now_ms).await?;
                let facts = Facts {
                    pending: &HashSet::new(),
                    version: &version,
                    held: &held,
                    pinned: &[],
                    grace_ms: self.options.grace_ms,
                    now_ms,
                };
                let mut verdicts = candidates::judge(table, objects, &facts);
                end_checkpoints(objects, &mut verdicts, &ended);
                verdicts
            }
        };
        self.judge_logs(objects, &mut verdicts).await?;
        Ok(verdicts)
    }

    /// What checkpoints of `table` hold at `now_ms`, but for those that are over, whose names are returned too.
    async fn held(&mut self, table: TableId, now_ms: u64) -> Result<(Held, HashSet<String>)> {
        let listed = checkpoints::list(self.store, table).await?;
        let ended = checkpoints::ended(&listed, now_ms);
        let ended: HashSet<String> = ended.iter().map(|listed| listed.object.clone()).collect();
        let others = listed
            .iter()
            .filter(|listed| !ended.contains(&listed.object));
        let held = Held::by(others);
        let damaged = held.damaged().iter().map(ToString::to_string);
        self.run.faults.extend(damaged);
        Ok((held, ended))
    }

    /// Decides about what belongs to no table.
    async fn judge_root(&mut self, objects: &[ObjectInfo]) -> Result<Vec<Verdict>> {
        let mut verdicts = candidates::judge_leftovers(objects, self.env.unix_ms());
        // A local write-ahead log may lie inside as well.
        let wal = format!("{}/", layout::WAL);
        for (object, verdict) in objects.iter().zip(&mut verdicts) {
            let is_unknown = *verdict == Verdict::Keep(Kept::Unknown);
            if is_unknown && object.name.starts_with(&wal) {
                *verdict = Verdict::Keep(Kept::Log);
            }
        }
        self.judge_logs(objects, &mut verdicts).await?;
        Ok(verdicts)
    }

    /// Decides about records of the catalog and of manifests; of other logs their services alone know what they need.
    async fn judge_logs(&mut self, objects: &[ObjectInfo], verdicts: &mut [Verdict]) -> Result<()> {
        let written_ms: HashMap<&str, i64> = objects
            .iter()
            .map(|object| (object.name.as_str(), object.modified_ms))
            .collect();
        for (object, verdict) in objects.iter().zip(verdicts) {
            let Some(ObjectName::LogRecord { table, number }) = layout::parse(&object.name) else {
                continue;
            };
            *verdict = Verdict::Keep(Kept::Log);
            let folder = match table {
                Some(table) => layout::manifest(table),
                None if object.name.starts_with(layout::CATALOG) => layout::CATALOG.to_owned(),
                None => continue,
            };
            let Some(base) = self.base(&folder).await? else {
                continue;
            };
            let since_ms = written_ms.get(layout::log_record(&folder, base).as_str());
            let since_ms = since_ms.and_then(|&since_ms| u64::try_from(since_ms).ok());
            let is_over = since_ms.is_some_and(|since_ms| {
                since_ms.saturating_add(self.options.log_grace_ms) <= self.env.unix_ms()
            });
            if number < base && is_over {
                *verdict = Verdict::Delete(Deleted::OldLogRecord);
            }
        }
        Ok(())
    }

    /// The number of the record at which readers of the log in `folder` begin.
    async fn base(&mut self, folder: &str) -> Result<Option<u64>> {
        if let Some(base) = self.bases.get(folder) {
            return Ok(*base);
        }
        let log = Log::new(self.store.clone(), folder, self.env.clone());
        let base = match log.newest().await {
            Ok(newest) => newest.map(|newest| newest.base),
            Err(error) if error.kind() == ErrorKind::Corrupt => None,
            Err(error) => return Err(error),
        };
        self.bases.insert(folder.to_owned(), base);
        Ok(base)
    }
}
