//! The decision: which of the objects listed may be deleted, and why. Pure functions over listings, versions and
//! ids; the head of `gc` says in which order these must have been gathered.

use std::{collections::HashSet, sync::Arc};

use super::{Deleted, Kept, Verdict};
use crate::{
    error::{Error, Result},
    manifest::{Version, checkpoints::Held},
    store::{
        ObjectInfo,
        layout::{self, ObjectName},
    },
    types::{JobId, SstId, TableId},
};

/// Age at which what an open or a write has left half done is taken as left behind by a crash.
const LEFTOVER_MS: u64 = 60 * 60 * 1_000;

/// What is known of a table, gathered in the order of these fields after the objects were listed.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// SSTs that flushes and imports are about to commit.
    pub pending: &'a HashSet<SstId>,
    /// The current version.
    pub version: &'a Version,
    /// What checkpoints hold.
    pub held: &'a Held,
    /// Versions before the current one that reads hold.
    pub pinned: &'a [Arc<Version>],
    /// How long what has left the table, or never entered it, is kept.
    pub grace_ms: u64,
    /// The time, in milliseconds since the Unix epoch.
    pub now_ms: u64,
}

/// Decides about objects in the folder of `table`, one verdict each.
pub fn judge(table: TableId, objects: &[ObjectInfo], facts: &Facts<'_>) -> Vec<Verdict> {
    let named = Named::by(facts);
    let verdicts = objects.iter().map(|object| {
        let name = layout::parse(&object.name);
        match name {
            Some(ObjectName::Sst(of, sst)) if of == table => named.judge_sst(sst, facts),
            Some(ObjectName::Result(of, task, _)) if of == table => judge_result(task.job, facts),
            Some(ObjectName::Checkpoint(of, _, ends_ms)) if of == table => {
                judge_checkpoint(ends_ms, facts.now_ms)
            }
            Some(ObjectName::LogRecord {
                table: Some(of), ..
            }) if of == table => Verdict::Keep(Kept::Log),
            _ => Verdict::Keep(Kept::Unknown),
        }
    });
    verdicts.collect()
}

/// Decides about objects in the folder of a table that is in no catalog, and that no read of this process holds.
/// Checkpoints and what they hold stay until they end.
pub fn judge_dropped(
    table: TableId,
    objects: &[ObjectInfo],
    held: &Held,
    now_ms: u64,
) -> Vec<Verdict> {
    let verdicts = objects.iter().map(|object| {
        let name = layout::parse(&object.name);
        match name.filter(|name| name.table() == Some(table)) {
            None => Verdict::Keep(Kept::Unknown),
            Some(ObjectName::Sst(_, sst)) if held.contains(sst) => {
                Verdict::Keep(held_by(held, sst))
            }
            Some(ObjectName::Checkpoint(_, _, ends_ms)) => judge_checkpoint(ends_ms, now_ms),
            Some(_) => Verdict::Delete(Deleted::DroppedTable),
        }
    });
    verdicts.collect()
}

/// Decides about probes, and about objects whose writing has not ended. Both are left alone for an hour, whatever
/// the grace: an open in the middle of its probe must find it, and a write in parts may pause.
pub fn judge_leftovers(objects: &[ObjectInfo], now_ms: u64) -> Vec<Verdict> {
    let verdicts = objects.iter().map(|object| {
        let leftover = match layout::parse(&object.name) {
            Some(ObjectName::Probe(at_ms)) => Some((at_ms, Deleted::Probe)),
            Some(_) => None,
            None => layout::staged(&object.name).map(|_| {
                let modified_ms = u64::try_from(object.modified_ms).unwrap_or(0);
                (modified_ms, Deleted::Staged)
            }),
        };
        match leftover {
            None => Verdict::Keep(Kept::Unknown),
            Some((at_ms, reason)) if is_over(at_ms, LEFTOVER_MS, now_ms) => Verdict::Delete(reason),
            Some(_) => Verdict::Keep(Kept::WithinGrace),
        }
    });
    verdicts.collect()
}

/// Tables that have a folder but are not in the catalog: dropped, or never finished being created.
pub fn unknown_tables(folders: &[String], catalog: &HashSet<TableId>) -> Vec<TableId> {
    let tables = folders.iter().filter_map(|folder| folder.parse().ok());
    tables.filter(|table| !catalog.contains(table)).collect()
}

fn judge_result(job: JobId, facts: &Facts<'_>) -> Verdict {
    match facts.version.jobs.contains_key(&job) {
        true => Verdict::Keep(Kept::Job(job)),
        false => Verdict::Delete(Deleted::EndedJobResult),
    }
}

/// Its holder finds it gone, and knows that it holds nothing.
fn judge_checkpoint(ends_ms: Option<u64>, now_ms: u64) -> Verdict {
    match ends_ms.is_some_and(|ends_ms| ends_ms <= now_ms) {
        true => Verdict::Delete(Deleted::EndedCheckpoint),
        false => Verdict::Keep(Kept::Checkpoint),
    }
}

fn held_by(held: &Held, sst: SstId) -> Kept {
    Kept::Held(held.holder(sst).unwrap_or_default().to_owned())
}

fn is_over(since_ms: u64, grace_ms: u64, now_ms: u64) -> bool {
    since_ms.saturating_add(grace_ms) <= now_ms
}

/// The SSTs that versions name.
struct Named {
    live: HashSet<SstId>,
    read: HashSet<SstId>,
}

impl Named {
    fn by(facts: &Facts<'_>) -> Self {
        let read = facts.pinned.iter().flat_map(|version| version.ssts());
        Self {
            live: facts.version.ssts().map(|sst| sst.id).collect(),
            read: read.map(|sst| sst.id).collect(),
        }
    }

    fn judge_sst(&self, sst: SstId, facts: &Facts<'_>) -> Verdict {
        match self.keeps(sst, facts) {
            Some(reason) => Verdict::Keep(reason),
            None => {
                let (since_ms, reason) = match (facts.version.obsolete.get(&sst), sst) {
                    (Some(left), _) => (left.since_ms, Deleted::from(left.departure)),
                    // Its job has ended, and nobody will ask what became of it.
                    (None, SstId::Compacted { .. }) => {
                        return Verdict::Delete(Deleted::LostAttempt);
                    }
                    (None, SstId::Flushed(_)) => (sst.written_ms(), Deleted::Uncommitted),
                };
                match is_over(since_ms, facts.grace_ms, facts.now_ms) {
                    true => Verdict::Delete(reason),
                    false => Verdict::Keep(Kept::WithinGrace),
                }
            }
        }
    }

    /// Who names `sst`, or may come to name it.
    fn keeps(&self, sst: SstId, facts: &Facts<'_>) -> Option<Kept> {
        if self.live.contains(&sst) {
            return Some(Kept::Live);
        }
        if facts.pending.contains(&sst) {
            return Some(Kept::BeingWritten);
        }
        if facts.held.contains(sst) {
            return Some(held_by(facts.held, sst));
        }
        if self.read.contains(&sst) {
            return Some(Kept::Read);
        }
        match sst {
            SstId::Compacted { task, .. } if facts.version.jobs.contains_key(&task.job) => {
                Some(Kept::Job(task.job))
            }
            _ => None,
        }
    }
}

/// An object is deleted only if no version, snapshot, scan, checkpoint or live job names it, and nobody is about to.
/// Checks that of `objects` of one table, the other way round than [`judge`]: it goes through all who name something.
///
/// # Errors
/// `Internal`, naming the object and who needs it.
pub fn is_named_by_nobody(objects: &[ObjectName], facts: &Facts<'_>) -> Result<()> {
    let mut doomed = HashSet::new();
    let mut doomed_jobs = HashSet::new();
    for object in objects {
        match object {
            ObjectName::Sst(_, sst) => {
                doomed.insert(*sst);
                if let SstId::Compacted { task, .. } = sst {
                    doomed_jobs.insert(task.job);
                }
            }
            ObjectName::Result(_, task, _) => {
                doomed_jobs.insert(task.job);
            }
            ObjectName::LogRecord { .. } | ObjectName::Checkpoint(..) | ObjectName::Probe(_) => {}
        }
    }
    let needed = |what: String, who: &str| {
        Err(Error::internal(format!(
            "invariant is_named_by_nobody is broken: {who} needs {what}, which was about to be deleted"
        )))
    };
    let check = |ssts: &mut dyn Iterator<Item = SstId>, who: &str| {
        for sst in ssts {
            if doomed.contains(&sst) {
                return needed(format!("sst {sst}"), who);
            }
        }
        Ok(())
    };
    let version = facts.version;
    let pinned = facts.pinned.iter().flat_map(|version| version.ssts());
    let inputs = version.jobs.values().flat_map(|job| &job.inputs);
    check(&mut version.ssts().map(|sst| sst.id), "the version")?;
    check(&mut pinned.map(|sst| sst.id), "a read")?;
    let held = doomed.iter().copied();
    check(
        &mut held.filter(|&sst| facts.held.contains(sst)),
        "a checkpoint",
    )?;
    check(&mut facts.pending.iter().copied(), "a flush or an import")?;
    check(&mut inputs.copied(), "a live job")?;
    match version.jobs.keys().find(|job| doomed_jobs.contains(job)) {
        None => Ok(()),
        Some(job) => needed(format!("what an attempt at job {job} wrote"), "that job"),
    }
}

#[cfg(test)]
mod tests;
