//! When the engine deletes, and by whom: SSTs that left a table soon after the grace, from what the version knows; everything
//! else that nobody needs by a sweep over all that is stored, now and then, because listing costs. And its heartbeat,
//! one request: whether another engine has taken the root over. Without it an engine that does nothing but write to a
//! WAL of its own would not notice.

use std::{collections::HashSet, sync::Arc, time::Duration};

use async_trait::async_trait;

use super::{
    EngineInner, clone,
    table::{TableInner, lock},
};
use crate::{
    clock::Backoff,
    compaction::Scheduler,
    error::{Error, ErrorKind, Result},
    gc::{self, Swept},
    store::layout,
    types::{Deletion, TableId},
};

const INTERVAL_MAX: Duration = Duration::from_secs(30);
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// How often an engine asks whether another has taken over.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// Asks now and then whether another engine has taken over, until this one ends.
pub(super) async fn heartbeat(engine: Arc<EngineInner>) {
    loop {
        tokio::select! {
            biased;
            () = engine.cancel.cancelled() => return,
            () = tokio::time::sleep(HEARTBEAT) => {}
        }
        let leads = engine.catalog.lock().await.check_leads().await;
        if let Err(error) = leads {
            tracing::warn!(%error, "heartbeat failed");
            engine.fail_if_fenced(error);
        }
    }
}

/// Sweeps until the engine ends.
pub(super) async fn run(engine: Arc<EngineInner>) {
    let mut rounds = Rounds::new(&engine);
    tokio::select! {
        biased;
        () = engine.cancel.cancelled() => return,
        // What the engine before had no time for.
        swept = sweep_unknown_tables(&engine) => drop(note(&engine, "dropped tables", swept)),
    }
    loop {
        let sweeps_everything = rounds.next();
        tokio::select! {
            biased;
            () = engine.cancel.cancelled() => return,
            () = tokio::time::sleep(rounds.pause) => {}
        }
        engine.sweeper.next_round();
        tokio::select! {
            biased;
            () = engine.cancel.cancelled() => return,
            () = round(&engine, sweeps_everything, &mut rounds) => {}
        }
    }
}

/// When everything is swept, in rounds.
struct Rounds {
    pause: Duration,
    interval: Duration,
    /// Until the next sweep of everything.
    left: Duration,
    /// Sweeps of everything in a row that did not do all they should.
    incomplete: u32,
}

impl Rounds {
    fn new(engine: &EngineInner) -> Self {
        let config = &engine.config.gc;
        let interval = config.orphans_interval.duration().max(INTERVAL_MIN);
        Self {
            pause: engine.sweep_pause().min(interval),
            interval,
            // The first one soon: most of what is left behind is left by an engine that was killed.
            left: interval.min(INTERVAL_MAX),
            incomplete: 0,
        }
    }

    /// Whether the round that begins after the next pause is to sweep everything.
    fn next(&mut self) -> bool {
        self.left = self.left.saturating_sub(self.pause);
        self.left.is_zero()
    }

    /// Everything was swept. When something failed it is tried again sooner.
    fn swept(&mut self, is_complete: bool) {
        self.incomplete = if is_complete { 0 } else { self.incomplete + 1 };
        self.left = match self.incomplete {
            0 => self.interval,
            times => self.interval.min(self.pause * (1 << times.min(10))),
        };
    }
}

async fn round(engine: &Arc<EngineInner>, sweeps_everything: bool, rounds: &mut Rounds) {
    if sweeps_everything {
        let (swept, failure) = sweep_everything(engine).await;
        rounds.swept(failure.is_none() && swept.failed.is_empty());
        return;
    }
    for table in tables(engine) {
        release_clones(engine, &table).await;
        let swept = engine.sweeper.sweep_obsolete(table.swept()).await;
        if let Some(swept) = swept.transpose()
            && let Ok(swept) = note(engine, &table.name, swept)
        {
            *lock(&table.held_back) = swept.held_back();
        }
    }
}

/// Sweeps all that is stored. One failure does not keep the rest from being swept; the first is returned.
pub(super) async fn sweep_everything(engine: &Arc<EngineInner>) -> (Swept, Option<Error>) {
    let (mut sum, mut failure) = (Swept::default(), None);
    let mut add = |swept: Result<Swept>| match swept {
        Ok(swept) => sum.add(swept),
        Err(error) => drop(failure.get_or_insert(error)),
    };
    let swept = sweep_unknown_tables(engine).await;
    add(note(engine, "dropped tables", swept));
    for table in tables(engine) {
        release_clones(engine, &table).await;
        let swept = engine.sweeper.sweep_table(table.swept()).await;
        // One that has been dropped meanwhile is another's.
        if !table.cancel.is_cancelled() {
            let swept = note(engine, &table.name, swept);
            if let Ok(swept) = &swept {
                *lock(&table.held_back) = swept.held_back();
            }
            add(swept);
        }
        tokio::task::yield_now().await;
    }
    let swept = engine.sweeper.sweep_leftovers(&engine.cancel).await;
    add(note(engine, "leftovers", swept));
    let is_complete = failure.is_none() && sum.failed.is_empty();
    engine.sweeper.swept_everything(is_complete);
    (sum, failure)
}

/// Ends checkpoints of clones that need nothing of `table` any more, if the last sweep found something held.
async fn release_clones(engine: &EngineInner, table: &TableInner) {
    let is_held = lock(&table.held_back).ssts > 0;
    if is_held {
        clone::release(engine, table.id()).await;
    }
}

/// Says how a sweep of `what` ended, and ends the engine if it has been taken over.
fn note(engine: &EngineInner, what: &str, swept: Result<Swept>) -> Result<Swept> {
    match &swept {
        Ok(swept) if swept.deleted.is_empty() => {}
        Ok(swept) => tracing::info!(what, deleted = ?swept.deleted, "objects deleted"),
        Err(error) if error.kind() == ErrorKind::Closed => {}
        Err(error) => tracing::warn!(what, %error, "not everything that could go was deleted"),
    }
    swept.map_err(|error| engine.fail_if_fenced(error))
}

fn tables(engine: &EngineInner) -> Vec<Arc<TableInner>> {
    lock(&engine.tables).values().cloned().collect()
}

impl EngineInner {
    /// How often what has left is looked through.
    fn sweep_pause(&self) -> Duration {
        let grace = self.config.gc.grace.duration();
        grace.clamp(INTERVAL_MIN, INTERVAL_MAX)
    }
}

/// Whoever compacts deletes, too, if it takes deletions at all: in remote mode nodes do.
#[async_trait]
impl gc::Delegate for Scheduler {
    fn deletes_max(&self) -> usize {
        self.compactor().deletes_max()
    }

    async fn delete(&self, table: TableId, names: &[String]) -> Vec<Deletion> {
        self.compactor().delete(table, names).await
    }
}

impl TableInner {
    fn swept(&self) -> gc::Table<'_> {
        gc::Table {
            manifest: &self.manifest,
            pending: &self.pending,
            cancel: &self.cancel,
        }
    }
}

/// Deletes the objects of the dropped table `id`, once no read of `table`, its last handle if it was open,
/// holds them; those that checkpoints hold when these have ended. What the engine does not get round to, the
/// next one finds.
pub(super) async fn delete_dropped(
    engine: Arc<EngineInner>,
    id: TableId,
    table: Option<Arc<TableInner>>,
) {
    let deleted = async {
        let mut backoff = Backoff::for_outage();
        loop {
            // First a pause: a read that has just found the table open is about to hold its version.
            tokio::time::sleep(INTERVAL_MIN).await;
            if table.as_ref().is_some_and(|table| table.manifest.is_read()) {
                continue;
            }
            lock(&engine.dropped).remove(&id);
            clone::release(&engine, id).await;
            let swept = engine.sweeper.sweep_dropped(id, &engine.cancel).await;
            match note(&engine, "dropped table", swept) {
                Ok(swept) if swept.is_held() => tokio::time::sleep(engine.sweep_pause()).await,
                Ok(swept) if swept.failed.is_empty() => return,
                _ => backoff.pause().await,
            }
        }
    };
    tokio::select! {
        biased;
        () = engine.cancel.cancelled() => {}
        () = deleted => drop(lock(&engine.deleting).remove(&id)),
    }
}

/// Deletes tables that were dropped, or never finished being created, by an engine before, or whose objects were
/// written by attempts that did not know.
async fn sweep_unknown_tables(engine: &Arc<EngineInner>) -> Result<Swept> {
    let folders = engine.store.list_folders(layout::TABLES).await?;
    let unknown = {
        // A table that this engine creates is in the catalog, or came to nothing, by the time this is ours. One that a
        // newer engine creates comes after its claim: if there is no claim yet, none of the folders listed is such a
        // table. Ids never come back.
        let mut catalog = engine.catalog.lock().await;
        catalog.check_leads().await?;
        let known: HashSet<TableId> = catalog.tables().map(|(_, id)| id).collect();
        gc::unknown_tables(&folders, &known)
    };
    let mut sum = Swept::default();
    for table in unknown {
        if lock(&engine.deleting).contains(&table) {
            continue;
        }
        clone::release(engine, table).await;
        let swept = engine.sweeper.sweep_dropped(table, &engine.cancel).await?;
        if swept.is_held() && lock(&engine.deleting).insert(table) {
            let later = delete_dropped(engine.clone(), table, None);
            engine.tracker.spawn(later);
        }
        sum.add(swept);
    }
    Ok(sum)
}
