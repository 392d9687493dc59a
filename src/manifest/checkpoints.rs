//! The checkpoints of a table: objects in its folder, each of which keeps the SSTs that it names from being
//! deleted, whoever put it there. Users of this process, readers in others and clones hold SSTs by them, and
//! only the engine ever writes to a manifest.
//!
//! # The two sides
//! **Who deletes** an SST that left the version
//! 1. takes the candidates from the current version first;
//! 2. ends checkpoints that have expired: deletes their objects;
//! 3. lists the checkpoints: what this listing shows holds, even if it has expired meanwhile;
//! 4. takes what reads of its own process pin;
//! 5. deletes candidates that neither names.
//!
//! **Who creates** a checkpoint of a version that it knows from the manifest
//! 1. puts the object;
//! 2. reads the manifest's tip, and the catalog's: if every SST is still live there, and the table in the
//!    catalog, the checkpoint holds;
//! 3. otherwise it deletes its object, and begins again with the newer version.
//!
//! **Who replaces** a checkpoint by another one of the same SSTs, to have it last longer or for itself,
//! 1. puts the new object;
//! 2. looks for the old one: if it is still there, the new one holds. Only then may the old one go.
//!
//! # Why that is safe, without any grace
//! Let an SST be named by a checkpoint that holds, and a candidate of a sweep.
//! * It left the version before the sweep's first step, and was live at the creator's second step, which
//!   therefore came before it. The creator's put came earlier still, so the sweep's listing, its third step,
//!   shows the object. The store lists what was put before.
//! * Of a dropped table all SSTs are candidates from the moment the catalog lacks it; the creator found it
//!   there later than its put: the same.
//! * When a checkpoint replaces another, the old one was there after the put of the new one. A listing after
//!   the put shows the new one; one before it came before the old one went, and shows that. A listing that
//!   takes several requests goes by ascending names, and the new name is the greater: if the old one has
//!   gone before the listing comes to its name, the listing comes to the new one later than its put. What is
//!   listed and then gone when it is read has the listing made again.
//!
//! Clocks decide only when step 2 of the sweep ends a checkpoint: those of a holder that is late, or behind
//! by more than the time it has left, find it gone, and know that they hold nothing.
//!
//! Who dies between its steps leaves an object that keeps what is still there, and may name what is not: a read
//! of it fails, and names the SST.
//!
//! A checkpoint that cannot be read holds everything in its table until its name says that it has expired.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use futures::{StreamExt, stream};

use super::{Checkpoint, codec};
use crate::{
    error::{Error, ErrorKind, Result},
    store::{Created, Store, layout},
    types::{CheckpointId, SstId, TableId},
};

/// Checkpoints read at once.
const READS_MAX: usize = 16;
/// Listings of one table's checkpoints, while they come and go, until it is given up as `Unavailable`.
const LISTINGS_MAX: usize = 16;

/// A checkpoint as it was listed.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Name of its object.
    pub object: String,
    /// The checkpoint, or why it cannot be read: `Corrupt`, naming the object.
    pub checkpoint: Result<Arc<Checkpoint>>,
}

/// What the checkpoints of a table hold.
#[derive(Clone, Debug, Default)]
pub struct Held {
    /// SSTs, each with one of those who hold it, in words.
    ssts: HashMap<SstId, Arc<str>>,
    /// Other tables in whose folders some of them are.
    homes: HashSet<TableId>,
    checkpoints: usize,
    damaged: Vec<Error>,
}

impl Held {
    /// What these checkpoints hold.
    pub fn by<'a>(listed: impl IntoIterator<Item = &'a Listed>) -> Self {
        let mut held = Self::default();
        for listed in listed {
            held.checkpoints += 1;
            match &listed.checkpoint {
                Ok(checkpoint) => {
                    let holder: Arc<str> = checkpoint.purpose.to_string().into();
                    let ssts = || checkpoint.version.ssts();
                    held.ssts.extend(ssts().map(|sst| (sst.id, holder.clone())));
                    held.homes.extend(ssts().filter_map(|sst| sst.home));
                }
                Err(error) => held.damaged.push(error.clone()),
            }
        }
        held
    }

    /// Whether a checkpoint holds `sst`, or may: one that cannot be read holds all.
    pub fn contains(&self, sst: SstId) -> bool {
        self.holder(sst).is_some()
    }

    /// One of those who hold `sst`, in words.
    pub fn holder(&self, sst: SstId) -> Option<&str> {
        let damaged = self.damaged.first();
        let unknown = damaged.map(|_| "that cannot be read");
        self.ssts.get(&sst).map(|holder| &**holder).or(unknown)
    }

    /// Whether a checkpoint names an SST in the folder of `home`, another table, or may.
    pub fn names_home(&self, home: TableId) -> bool {
        !self.damaged.is_empty() || self.homes.contains(&home)
    }

    /// Whether there is no checkpoint.
    pub fn is_empty(&self) -> bool {
        self.checkpoints == 0
    }

    /// Why checkpoints could not be read; each names its object.
    pub fn damaged(&self) -> &[Error] {
        &self.damaged
    }
}

/// All checkpoints of `table`, in the order of their ids, expired or not.
///
/// # Errors
/// `Unavailable`. One that cannot be decoded is listed with its error.
pub async fn list(store: &Store, table: TableId) -> Result<Vec<Listed>> {
    let folder = layout::checkpoints(table);
    for _ in 0..LISTINGS_MAX {
        let objects = store.list(&folder).await?;
        let mut names: Vec<String> = objects.into_iter().map(|object| object.name).collect();
        names.sort();
        let reads = stream::iter(names).map(|name| read(store, name));
        let listed: Vec<Result<Listed>> = reads.buffered(READS_MAX).collect().await;
        let is_gone = |read: &Result<Listed>| {
            read.as_ref()
                .is_err_and(|error| error.kind() == ErrorKind::NotFound)
        };
        // Another one may have been put in its place, after the listing.
        if !listed.iter().any(is_gone) {
            return listed.into_iter().collect();
        }
    }
    Err(Error::unavailable(format!(
        "list {folder}: checkpoints come and go all the time"
    )))
}

async fn read(store: &Store, object: String) -> Result<Listed> {
    let named = layout::parse_checkpoint(&object);
    let named = named.ok_or_else(|| Error::corrupt(format!("{object} is not a checkpoint's name")));
    let checkpoint = match named {
        Ok(named) => {
            let bytes = store.get(&object).await?;
            codec::decode_checkpoint(&object, named, &bytes).map(Arc::new)
        }
        Err(error) => Err(error),
    };
    Ok(Listed { object, checkpoint })
}

/// Objects among `listed`, in ascending order, of checkpoints that are over at `now_ms`, in milliseconds
/// since the Unix epoch: they have expired, or a newer one has their name.
pub fn ended(listed: &[Listed], now_ms: u64) -> Vec<&Listed> {
    let checkpoints = listed
        .iter()
        .filter_map(|listed| listed.checkpoint.as_ref().ok());
    // In ascending order: the last one stays.
    let newest: HashMap<&str, CheckpointId> = checkpoints
        .filter_map(|checkpoint| Some((checkpoint.name()?, checkpoint.id)))
        .collect();
    let has_expired = |listed: &Listed| {
        let named = layout::parse_checkpoint(&listed.object);
        let expires_ms = named.and_then(|(_, expires_ms)| expires_ms);
        expires_ms.is_some_and(|expires_ms| expires_ms <= now_ms)
    };
    let is_replaced = |listed: &Listed| {
        listed.checkpoint.as_ref().is_ok_and(|checkpoint| {
            let newest = checkpoint.name().map(|name| newest[name]);
            newest.is_some_and(|newest| newest != checkpoint.id)
        })
    };
    let is_over = |listed: &&Listed| has_expired(listed) || is_replaced(listed);
    listed.iter().filter(is_over).collect()
}

/// The checkpoints among `listed` that are not over at `now_ms`, in milliseconds since the Unix epoch.
///
/// # Errors
/// `Corrupt`, naming the object, when one cannot be read.
pub fn live(listed: &[Listed], now_ms: u64) -> Result<Vec<Arc<Checkpoint>>> {
    let ended: HashSet<&str> = ended(listed, now_ms)
        .iter()
        .map(|ended| ended.object.as_str())
        .collect();
    let live = listed
        .iter()
        .filter(|one| !ended.contains(one.object.as_str()));
    live.map(|live| live.checkpoint.clone()).collect()
}

/// The checkpoint among `listed` that a user calls `name`, and that is not over at `now_ms`.
pub fn find(listed: &[Listed], name: &str, now_ms: u64) -> Option<Arc<Checkpoint>> {
    let readable = listed
        .iter()
        .rev()
        .filter_map(|one| one.checkpoint.as_ref().ok());
    // The newest of that name.
    let mut named = readable.filter(|checkpoint| checkpoint.name() == Some(name));
    named.next().filter(|one| !one.has_expired(now_ms)).cloned()
}

/// Ends the checkpoints of `table` that are over at `now_ms`, and answers what the others hold: step 2 and 3
/// of who deletes. To be called after the candidates were taken.
///
/// # Errors
/// `Unavailable`: then nothing may be deleted. That one could not be ended is no error: it holds.
pub async fn held(store: &Store, table: TableId, now_ms: u64) -> Result<Held> {
    let listed = list(store, table).await?;
    let ended: Vec<String> = ended(&listed, now_ms)
        .iter()
        .map(|listed| listed.object.clone())
        .collect();
    let held = match ended.is_empty() {
        true => Held::by(&listed),
        false => {
            for (name, ended) in ended.iter().zip(store.delete_all(&ended).await) {
                match ended {
                    Ok(()) => tracing::info!(%table, name, "checkpoint has ended"),
                    Err(error) => {
                        tracing::warn!(%table, name, %error, "checkpoint was not ended")
                    }
                }
            }
            Held::by(&list(store, table).await?)
        }
    };
    for error in held.damaged() {
        tracing::error!(%table, %error, "nothing of the table is deleted while this checkpoint is there");
    }
    Ok(held)
}

/// Puts `checkpoint` there: the first step of who creates or replaces one.
///
/// # Errors
/// `Unavailable`: it may be there or not. It may be put again.
pub async fn put(store: &Store, table: TableId, checkpoint: &Checkpoint) -> Result<()> {
    let body = codec::encode_checkpoint(checkpoint);
    // Its id is random: what exists is what we put before, without having had an answer.
    match store.create(&object_of(table, checkpoint), body).await? {
        Created::New | Created::Exists => Ok(()),
    }
}

/// Whether `checkpoint` is there.
///
/// # Errors
/// `Unavailable`.
pub async fn exists(store: &Store, table: TableId, checkpoint: &Checkpoint) -> Result<bool> {
    let size = store.size(&object_of(table, checkpoint)).await?;
    Ok(size.is_some())
}

/// Deletes `checkpoint`; one that is gone counts as deleted.
///
/// # Errors
/// `Unavailable`.
pub async fn delete(store: &Store, table: TableId, checkpoint: &Checkpoint) -> Result<()> {
    store.delete(&object_of(table, checkpoint)).await
}

fn object_of(table: TableId, checkpoint: &Checkpoint) -> String {
    layout::checkpoint(table, checkpoint.id, checkpoint.expires_ms)
}
