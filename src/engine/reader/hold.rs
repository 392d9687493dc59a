//! What a reader holds of one table: checkpoints, each for the versions that are read under it.
//!
//! The newest view is the one that new reads get; earlier ones stay while reads are running that began with them,
//! which is seen by who holds the version. A checkpoint goes when no view is under it any more; its object is
//! deleted one round later, so that a listing which misses it has not missed what replaced it.
//!
//! A checkpoint is renewed when a third of its lifetime is over, and nothing is read under it when two thirds
//! are, counted from before its put by the clock that moved more. So the engine's clock may be ahead by a third
//! of the lifetime, and still nothing is read that is deleted. What was renewed too late, and has been ended
//! meanwhile, is lost, and with it the views under it.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use crate::{
    clock::{Env, Moment},
    engine::table::lock,
    error::{Error, Result},
    manifest::{Checkpoint, Purpose, Version, checkpoints},
    sst::SstCache,
    store::Store,
    types::{CheckpointId, TableId},
};

/// What all tables of a reader share.
pub(super) struct Parts {
    pub(super) store: Store,
    /// What is kept of SSTs that are read.
    pub(super) cache: SstCache,
    pub(super) env: Env,
    /// What the reader calls itself.
    pub(super) name: String,
    /// Of its checkpoints.
    pub(super) lifetime: Duration,
}

impl Parts {
    fn expires_ms(&self) -> Option<u64> {
        Some(self.env.unix_ms() + self.lifetime.as_millis() as u64)
    }
}

/// What a reader holds of one table.
pub(super) struct Holder {
    parts: Arc<Parts>,
    table: TableId,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Oldest first. The last is for new reads.
    views: Vec<View>,
    /// Checkpoints without a view, whose objects are there until the next round, or the one after it.
    retired: Vec<Arc<Checkpoint>>,
}

/// A version that is read, and the checkpoint that holds it.
struct View {
    /// A copy of its own: who else has it is a read.
    version: Arc<Version>,
    /// What it is a copy of.
    source: Arc<Version>,
    /// Time before which rows are expired; `None` for what is now.
    expiry: Option<Option<i64>>,
    hold: Hold,
}

impl View {
    fn new(source: &Arc<Version>, expiry: Option<Option<i64>>, hold: Hold) -> Self {
        Self {
            version: Arc::new(source.for_reading()),
            source: source.clone(),
            expiry,
            hold,
        }
    }
}

/// A checkpoint that is there.
#[derive(Clone)]
struct Hold {
    checkpoint: Arc<Checkpoint>,
    /// Before it was put.
    since: Moment,
}

impl Holder {
    pub(super) fn new(parts: Arc<Parts>, table: TableId) -> Self {
        Self {
            parts,
            table,
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// What a read that begins now sees: a version, and the time before which rows are expired.
    ///
    /// # Errors
    /// `Unavailable` while no checkpoint holds it for certain.
    pub(super) fn view(&self) -> Result<(Arc<Version>, Option<i64>)> {
        let state = self.lock();
        let lost = || {
            let (table, lifetime) = (self.table, self.parts.lifetime);
            Error::unavailable(format!(
                "the checkpoint of reader {:?} on table {table} was not renewed in time: what it reads may be \
                 deleted (its lifetime is {lifetime:?})",
                self.parts.name
            ))
        };
        let view = state.views.last().ok_or_else(lost)?;
        if self.age(&view.hold) > self.parts.lifetime * 2 / 3 {
            return Err(lost());
        }
        let now_ms = self.parts.env.unix_ms();
        let expiry = view.expiry;
        let expiry = expiry.unwrap_or_else(|| view.version.schema.expiry(now_ms));
        Ok((view.version.clone(), expiry))
    }

    fn age(&self, hold: &Hold) -> Duration {
        self.parts.env.since(hold.since)
    }

    /// Shows `version`, if the newest checkpoint names every SST of it; whether it does.
    pub(super) fn show_if_held(&self, version: &Arc<Version>) -> bool {
        let mut state = self.lock();
        let Some(last) = state.views.last() else {
            return false;
        };
        if !last.hold.checkpoint.version.has_all_of(version) {
            return false;
        }
        if !Arc::ptr_eq(&last.source, version) {
            let view = View::new(version, last.expiry, last.hold.clone());
            state.views.push(view);
        }
        true
    }

    /// Shows `version` from now on, which `hold` holds.
    pub(super) fn show(&self, version: &Arc<Version>, expiry: Option<Option<i64>>, hold: Put<'_>) {
        let mut state = self.lock();
        let view = View::new(version, expiry, hold.keep());
        state.views.push(view);
    }

    /// Puts a checkpoint of `version` there. Whether it holds is for the caller to find out.
    ///
    /// # Errors
    /// `Unavailable`.
    pub(super) async fn put(&self, version: &Version, expiry: Option<i64>) -> Result<Put<'_>> {
        let (env, now_ms) = (&self.parts.env, self.parts.env.unix_ms());
        self.put_checkpoint(Checkpoint {
            id: CheckpointId::from_parts(now_ms, env.random()),
            purpose: Purpose::Reader(self.parts.name.clone()),
            created_ms: now_ms,
            expires_ms: self.parts.expires_ms(),
            seq: version.flushed_seq,
            version: Arc::new(version.for_reading()),
            expiry,
        })
        .await
    }

    /// Puts a checkpoint there that holds what `other` holds. Whether it does is for the caller to find out, as of
    /// who replaces a checkpoint.
    ///
    /// # Errors
    /// `Unavailable`.
    pub(super) async fn put_copy(&self, other: &Checkpoint) -> Result<Put<'_>> {
        let (env, now_ms) = (&self.parts.env, self.parts.env.unix_ms());
        self.put_checkpoint(Checkpoint {
            purpose: Purpose::Reader(self.parts.name.clone()),
            ..other.renewed(self.parts.expires_ms(), now_ms, env.random())
        })
        .await
    }

    async fn put_checkpoint(&self, checkpoint: Checkpoint) -> Result<Put<'_>> {
        let put = Put {
            holder: self,
            hold: Some(Hold {
                since: self.parts.env.moment(),
                checkpoint: Arc::new(checkpoint),
            }),
        };
        checkpoints::put(&self.parts.store, self.table, put.checkpoint()).await?;
        Ok(put)
    }

    /// Deletes what was retired in an earlier round, lets go of views that nobody reads, and renews the rest.
    /// `is_wanted` says whether a read may still begin.
    ///
    /// # Errors
    /// `Unavailable`: call again.
    pub(super) async fn upkeep(&self, is_wanted: impl Fn() -> bool) -> Result<()> {
        let mut done = self.delete_retired().await;
        self.release(is_wanted);
        for hold in self.due() {
            done = done.and(self.renew(&hold).await);
        }
        done
    }

    /// The checkpoints that are to be renewed.
    fn due(&self) -> Vec<Hold> {
        let (state, mut seen) = (self.lock(), HashSet::new());
        let holds = state.views.iter().map(|view| view.hold.clone());
        let due = holds.filter(|hold| {
            self.age(hold) >= self.parts.lifetime / 3 && seen.insert(hold.checkpoint.id)
        });
        due.collect()
    }

    /// Whether nothing is left of it.
    pub(super) fn is_released(&self) -> bool {
        let state = self.lock();
        state.views.is_empty() && state.retired.is_empty()
    }

    /// Deletes every checkpoint, even if something is read under it.
    ///
    /// # Errors
    /// `Unavailable`: those that are left expire.
    pub(super) async fn give_up(&self) -> Result<()> {
        {
            let mut state = self.lock();
            let views = std::mem::take(&mut state.views);
            let held = views.into_iter().map(|view| view.hold.checkpoint);
            state.retired.extend(held);
        }
        self.delete_retired().await
    }

    /// Lets go of views that nobody reads, and of checkpoints without a view.
    fn release(&self, is_wanted: impl Fn() -> bool) {
        let mut state = self.lock();
        // Under the lock: who begins to want it after this finds no view, and makes one.
        let shown = state.views.len().checked_sub(1).filter(|_| is_wanted());
        let (mut views, mut gone) = (Vec::new(), Vec::new());
        for (at, view) in state.views.drain(..).enumerate() {
            match shown == Some(at) || Arc::strong_count(&view.version) > 1 {
                true => views.push(view),
                false => gone.push(view.hold.checkpoint),
            }
        }
        let held: HashSet<CheckpointId> =
            views.iter().map(|view| view.hold.checkpoint.id).collect();
        gone.retain(|checkpoint| !held.contains(&checkpoint.id));
        gone.dedup_by_key(|checkpoint| checkpoint.id);
        state.views = views;
        state.retired.extend(gone);
    }

    async fn renew(&self, old: &Hold) -> Result<()> {
        let new = self.put_copy(&old.checkpoint).await?;
        let was_there = checkpoints::exists(&self.parts.store, self.table, &old.checkpoint).await?;
        let mut state = self.lock();
        let is_under = |view: &View| view.hold.checkpoint.id == old.checkpoint.id;
        if was_there {
            let new = new.keep();
            for view in state.views.iter_mut().filter(|view| is_under(view)) {
                view.hold = new.clone();
            }
        } else {
            tracing::warn!(table = %self.table, reader = self.parts.name, "checkpoint had ended before it was renewed");
            state.views.retain(|view| !is_under(view));
            state.retired.push(new.keep().checkpoint);
        }
        state.retired.push(old.checkpoint.clone());
        Ok(())
    }

    async fn delete_retired(&self) -> Result<()> {
        let retired = self.lock().retired.clone();
        let mut done = Ok(());
        for checkpoint in retired {
            match checkpoints::delete(&self.parts.store, self.table, &checkpoint).await {
                Ok(()) => {
                    let mut state = self.lock();
                    state.retired.retain(|other| other.id != checkpoint.id);
                }
                Err(error) => done = Err(error),
            }
        }
        done
    }
}

/// A checkpoint that is being put, and under which nothing is read yet. Dropping it retires it: it may be there,
/// whatever the store answered.
pub(super) struct Put<'a> {
    holder: &'a Holder,
    /// Taken when something is read under it.
    hold: Option<Hold>,
}

impl Put<'_> {
    fn checkpoint(&self) -> &Checkpoint {
        let hold = self.hold.as_ref();
        &hold.expect("taken at the end only").checkpoint
    }

    /// It is the caller's to retire. May be called under the holder's lock.
    fn keep(mut self) -> Hold {
        self.hold.take().expect("taken once")
    }
}

impl Drop for Put<'_> {
    fn drop(&mut self) {
        if let Some(hold) = self.hold.take() {
            self.holder.lock().retired.push(hold.checkpoint);
        }
    }
}
