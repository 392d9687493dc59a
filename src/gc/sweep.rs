//! Gathers the facts in the order that makes the decision safe, deletes, and says so in the manifest.
//!
//! Slowly: a bounded number of objects at once, with a pause before the next. Those of tables go to the delegate, if
//! there is one; what it leaves is deleted here. An object whose deletion fails, or is not confirmed, is tried again
//! after more and more rounds, alone; so is what a checkpoint holds. All is counted.

use std::{
    collections::HashSet,
    fmt,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use tokio_util::sync::CancellationToken;

use super::{
    Delegate, Deleted, Facts, GcStats, Kept, Pending, Swept, Verdict, candidates, retries::Retries,
};
use crate::{
    clock::Env,
    error::{Error, Result},
    manifest::{
        Catalog, Edit, Manifest, Version,
        checkpoints::{self, Held},
    },
    store::{
        ObjectInfo, Store,
        layout::{self, ObjectName},
    },
    types::{Deletion, SstId, TableId},
};

/// Objects deleted at once here.
const CHUNK: usize = 500;
/// Between two chunks.
const PAUSE: Duration = Duration::from_millis(100);

/// Deletes the garbage of an engine.
pub struct Sweeper {
    store: Store,
    env: Env,
    delegate: Arc<dyn Delegate>,
    /// The engine's: to find out whether it leads.
    catalog: Arc<tokio::sync::Mutex<Catalog>>,
    grace_ms: u64,
    state: Mutex<State>,
    /// Held by the one sweep that runs.
    sweeping: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    retries: Retries,
    stats: GcStats,
}

/// An open table, to be swept.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a> {
    /// Its manifest.
    pub manifest: &'a Manifest,
    /// What its flushes and imports are about to commit.
    pub pending: &'a Pending,
    /// Ends the sweep.
    pub cancel: &'a CancellationToken,
}

/// Facts, as they were gathered.
struct Gathered {
    pending: HashSet<SstId>,
    version: Arc<Version>,
    held: Held,
    pinned: Vec<Arc<Version>>,
    grace_ms: u64,
    now_ms: u64,
}

impl Gathered {
    fn facts(&self) -> Facts<'_> {
        Facts {
            pending: &self.pending,
            version: &self.version,
            pinned: &self.pinned,
            held: &self.held,
            grace_ms: self.grace_ms,
            now_ms: self.now_ms,
        }
    }
}

/// Which of those that could go are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Only {
    /// Those that have not failed, and those that have failed long enough ago.
    Due,
    All,
}

/// An object to be deleted.
#[derive(Clone, Debug)]
struct Doomed {
    name: String,
    reason: Deleted,
}

/// Who has deleted an object.
#[derive(Clone, Copy, Debug)]
enum By {
    Engine,
    Nodes,
}

impl By {
    fn as_str(self) -> &'static str {
        match self {
            Self::Engine => "engine",
            Self::Nodes => "nodes",
        }
    }
}

impl fmt::Debug for Sweeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sweeper({:?})", self.store)
    }
}

impl Sweeper {
    /// A sweeper of the root in `store` for the engine that has `catalog`, which has `delegate` delete what it will.
    /// What has left a table, or never entered it, is kept for `grace_ms`.
    pub fn new(
        store: Store,
        env: Env,
        delegate: Arc<dyn Delegate>,
        catalog: Arc<tokio::sync::Mutex<Catalog>>,
        grace_ms: u64,
    ) -> Self {
        Self {
            store,
            env,
            delegate,
            catalog,
            grace_ms,
            state: Mutex::default(),
            sweeping: tokio::sync::Mutex::default(),
        }
    }

    /// What was deleted so far.
    pub fn stats(&self) -> GcStats {
        let state = self.state();
        GcStats {
            objects_failing: state.retries.failed(),
            ..state.stats.clone()
        }
    }

    /// A round begins: what failed in earlier ones may be due.
    pub fn next_round(&self) {
        self.state().retries.next_round();
    }

    /// A sweep of everything has ended.
    pub fn swept_everything(&self, is_complete: bool) {
        let mut state = self.state();
        state.stats.sweeps += 1;
        if is_complete {
            state.stats.last_error = None;
        }
    }

    /// Deletes SSTs that have left `table`, as far as the version knows them: without a listing, and without any
    /// request while there are none. `None` when there is nothing to be tried again yet.
    ///
    /// # Errors
    /// `Fenced`; `Unavailable` when the facts could not be gathered; `Closed` with the table.
    pub async fn sweep_obsolete(&self, table: Table<'_>) -> Result<Option<Swept>> {
        let _one = self.sweeping.lock().await;
        let id = table.manifest.table();
        let gathered = self.gather_here(table);
        let left = gathered.version.obsolete.keys();
        let names = left.map(|&sst| unsized_object(layout::sst(id, sst)));
        let mut objects: Vec<ObjectInfo> = names.collect();
        let verdicts = candidates::judge(id, &objects, &gathered.facts());
        drop(gathered);
        let mut verdicts = verdicts.into_iter();
        objects.retain(|_| {
            verdicts
                .next()
                .is_some_and(|verdict| verdict.deleted().is_some())
        });
        if objects.is_empty() {
            return Ok(Some(Swept::default()));
        }
        let mut names = objects.iter().map(|object| &object.name);
        match names.any(|name| self.state().retries.is_due(name)) {
            true => self.sweep(table, objects, Only::Due).await.map(Some),
            false => Ok(None),
        }
    }

    /// Lists everything in the folder of `table`, and deletes what nobody needs.
    ///
    /// # Errors
    /// As for [`Self::sweep_obsolete`].
    pub async fn sweep_table(&self, table: Table<'_>) -> Result<Swept> {
        let _one = self.sweeping.lock().await;
        let folder = layout::table(table.manifest.table());
        let objects = self.store.list(&folder).await?;
        self.sweep(table, objects, Only::All).await
    }

    /// Deletes what is left of `table`, which is not in the catalog, and which no read of this process holds: the
    /// caller has made sure of both. Checkpoints, and what they hold, stay until they end.
    ///
    /// # Errors
    /// `Unavailable` when it could not be listed; `Closed` when `cancel` ends the sweep.
    pub async fn sweep_dropped(&self, table: TableId, cancel: &CancellationToken) -> Result<Swept> {
        let _one = self.sweeping.lock().await;
        let objects = self.store.list(&layout::table(table)).await?;
        let now_ms = self.env.unix_ms();
        let held = checkpoints::held(&self.store, table, now_ms).await?;
        let verdicts = candidates::judge_dropped(table, &objects, &held, now_ms);
        let (mut swept, doomed) = self.sort_out(objects, &verdicts);
        for chunk in chunks(doomed, self.chunk_max()) {
            check_open(cancel)?;
            self.delete(table, &chunk.objects, &mut swept).await;
            chunk.pause().await;
        }
        Ok(swept)
    }

    /// Deletes probes, and files of writes that did not end.
    ///
    /// # Errors
    /// As for [`Self::sweep_dropped`].
    pub async fn sweep_leftovers(&self, cancel: &CancellationToken) -> Result<Swept> {
        let _one = self.sweeping.lock().await;
        let mut objects = self.store.list(layout::PROBE).await?;
        objects.extend(self.store.list_staged().await?);
        let verdicts = candidates::judge_leftovers(&objects, self.env.unix_ms());
        let (mut swept, doomed) = self.sort_out(objects, &verdicts);
        for chunk in chunks(doomed, CHUNK) {
            check_open(cancel)?;
            let doomed: Vec<&Doomed> = chunk.objects.iter().collect();
            self.delete_here(&doomed, &mut swept).await;
            chunk.pause().await;
        }
        Ok(swept)
    }

    /// Decides about `objects`, which were listed before, and deletes.
    async fn sweep(&self, table: Table<'_>, objects: Vec<ObjectInfo>, only: Only) -> Result<Swept> {
        self.catalog.lock().await.check_leads().await?;
        let id = table.manifest.table();
        let gathered = self.gather(table).await?;
        let verdicts = candidates::judge(id, &objects, &gathered.facts());
        let damaged = gathered.held.damaged().len() as u64;
        drop(gathered);
        let (mut swept, mut doomed) = self.sort_out(objects, &verdicts);
        swept.checkpoints_damaged = damaged;
        if only == Only::Due {
            doomed.retain(|doomed| self.state().retries.is_due(&doomed.name));
        }
        for chunk in chunks(doomed, self.chunk_max()) {
            // Once more, with what is known now: nothing that was learned since may speak against it.
            let gathered = self.gather(table).await?;
            let names = chunk.objects.iter();
            let names: Vec<ObjectName> = names
                .filter_map(|object| layout::parse(&object.name))
                .collect();
            candidates::is_named_by_nobody(&names, &gathered.facts())?;
            drop(gathered);
            check_open(table.cancel)?;
            let gone = self.delete(id, &chunk.objects, &mut swept).await;
            forget_obsolete(table.manifest, &gone).await?;
            chunk.pause().await;
        }
        Ok(swept)
    }

    /// The facts that need no request.
    fn gather_here(&self, table: Table<'_>) -> Gathered {
        let pending = table.pending.now();
        let version = table.manifest.version();
        let pinned = table.manifest.pinned();
        Gathered {
            pending,
            version,
            held: Held::default(),
            pinned,
            grace_ms: self.grace_ms,
            now_ms: self.env.unix_ms(),
        }
    }

    /// All facts, in the order that the head of `gc` demands.
    async fn gather(&self, table: Table<'_>) -> Result<Gathered> {
        let mut gathered = self.gather_here(table);
        let id = table.manifest.table();
        gathered.held = checkpoints::held(&self.store, id, gathered.now_ms).await?;
        gathered.pinned = table.manifest.pinned();
        Ok(gathered)
    }

    /// Counts what stays, and returns what goes. What is held will be looked at again later.
    fn sort_out(&self, objects: Vec<ObjectInfo>, verdicts: &[Verdict]) -> (Swept, Vec<Doomed>) {
        let (mut swept, mut doomed) = (Swept::default(), Vec::new());
        for (object, verdict) in objects.into_iter().zip(verdicts) {
            match verdict {
                Verdict::Delete(reason) => doomed.push(Doomed {
                    name: object.name,
                    reason: *reason,
                }),
                Verdict::Keep(reason) => {
                    *swept.kept.entry(reason.as_str()).or_default() += 1;
                    if let Kept::Held(_) = reason {
                        self.state().retries.postpone(&object.name, false);
                    }
                }
            }
        }
        (swept, doomed)
    }

    /// Objects that are decided about once more, and deleted, together.
    fn chunk_max(&self) -> usize {
        self.delegate.deletes_max().max(CHUNK)
    }

    /// Has `chunk`, objects in the folder of `table`, deleted, and counts. Returns what is gone.
    async fn delete(&self, table: TableId, chunk: &[Doomed], swept: &mut Swept) -> Vec<ObjectName> {
        let mut left: Vec<&Doomed> = Vec::new();
        let mut gone: Vec<&Doomed> = Vec::new();
        match self.delegate.deletes_max() {
            0 => left.extend(chunk),
            _ => {
                let names: Vec<String> = chunk.iter().map(|doomed| doomed.name.clone()).collect();
                let deletions = self.delegate.delete(table, &names).await;
                for (doomed, deletion) in chunk.iter().zip(deletions) {
                    match deletion {
                        Deletion::Confirmed => gone.push(doomed),
                        Deletion::Failed(error) => self.note_failure(doomed, &error, swept),
                        Deletion::Left(reason) => {
                            self.note_left(reason);
                            left.push(doomed);
                        }
                    }
                }
                self.note_deleted(&gone, By::Nodes, swept);
            }
        }
        for (at, left) in left.chunks(CHUNK).enumerate() {
            if at > 0 {
                tokio::time::sleep(PAUSE).await;
            }
            gone.extend(self.delete_here(left, swept).await);
        }
        let gone = gone.into_iter();
        gone.filter_map(|doomed| layout::parse(&doomed.name))
            .collect()
    }

    /// Deletes `doomed` from here, and counts. Returns what is gone.
    async fn delete_here<'a>(&self, doomed: &[&'a Doomed], swept: &mut Swept) -> Vec<&'a Doomed> {
        let (staged, objects): (Vec<&Doomed>, Vec<&Doomed>) = doomed
            .iter()
            .partition(|doomed| doomed.reason == Deleted::Staged);
        let names: Vec<String> = objects.iter().map(|doomed| doomed.name.clone()).collect();
        let mut ended = Vec::new();
        if !names.is_empty() {
            ended.extend(objects.into_iter().zip(self.store.delete_all(&names).await));
        }
        for doomed in staged {
            ended.push((doomed, self.store.delete_staged(&doomed.name).await));
        }
        let mut gone = Vec::new();
        for (doomed, ended) in ended {
            match ended {
                Ok(()) => gone.push(doomed),
                Err(error) => self.note_failure(doomed, &error, swept),
            }
        }
        self.note_deleted(&gone, By::Engine, swept);
        gone
    }

    fn note_left(&self, reason: &str) {
        let left = &mut self.state().stats.left_to_engine;
        *left.entry(reason.to_owned()).or_default() += 1;
    }

    fn note_deleted(&self, gone: &[&Doomed], by: By, swept: &mut Swept) {
        let mut state = self.state();
        if !gone.is_empty() {
            let deleted = state.stats.deleted_by.entry(by.as_str().to_owned());
            *deleted.or_default() += gone.len() as u64;
        }
        for doomed in gone {
            let reason = doomed.reason.as_str();
            tracing::debug!(name = doomed.name, reason = %doomed.reason, "object deleted");
            *swept.deleted.entry(reason).or_default() += 1;
            *state.stats.deleted.entry(reason.to_owned()).or_default() += 1;
            state.retries.forget(&doomed.name);
        }
    }

    fn note_failure(&self, doomed: &Doomed, error: &Error, swept: &mut Swept) {
        let (name, reason) = (&doomed.name, doomed.reason);
        tracing::warn!(name, %reason, %error, "object was not deleted, and will be tried again");
        swept.failed.push(format!("{name}: {error}"));
        let mut state = self.state();
        state.stats.failures += 1;
        state.stats.last_error = Some(error.to_string());
        state.retries.postpone(name, true);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under this lock")
    }
}

/// Some of what is to be deleted.
struct Chunk {
    objects: Vec<Doomed>,
    is_last: bool,
}

impl Chunk {
    async fn pause(&self) {
        if !self.is_last {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

fn chunks(mut doomed: Vec<Doomed>, objects_max: usize) -> impl Iterator<Item = Chunk> {
    std::iter::from_fn(move || {
        let rest = doomed.split_off(doomed.len().min(objects_max));
        let objects = std::mem::replace(&mut doomed, rest);
        let is_last = doomed.is_empty();
        (!objects.is_empty()).then_some(Chunk { objects, is_last })
    })
}

fn check_open(cancel: &CancellationToken) -> Result<()> {
    match cancel.is_cancelled() {
        true => Err(Error::closed("the sweep was stopped")),
        false => Ok(()),
    }
}

/// An object known by name only.
fn unsized_object(name: String) -> ObjectInfo {
    ObjectInfo {
        name,
        bytes: 0,
        modified_ms: 0,
    }
}

/// Takes SSTs whose objects are gone out of the list of those that have left.
async fn forget_obsolete(manifest: &Manifest, gone: &[ObjectName]) -> Result<()> {
    let ssts = gone.iter().filter_map(|object| match object {
        ObjectName::Sst(_, sst) => Some(*sst),
        _ => None,
    });
    let ssts: Vec<SstId> = ssts.collect();
    let commit = manifest.commit(|version| {
        let known = ssts.iter().copied();
        let deleted: Vec<_> = known
            .filter(|sst| version.obsolete.contains_key(sst))
            .collect();
        Ok((!deleted.is_empty()).then(|| Edit {
            deleted,
            ..Edit::default()
        }))
    });
    commit.await.map(drop)
}
