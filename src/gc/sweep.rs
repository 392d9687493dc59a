//! Deletes what the decision names, and says so in the manifest.

use super::candidates;
use crate::{
    error::Result,
    manifest::{Edit, Manifest, checkpoints},
    store::{Store, layout},
    types::TableId,
};

/// What a sweep of a table's obsolete SSTs found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Objects deleted.
    pub deleted: usize,
    /// SSTs that stay because checkpoints hold them.
    pub held: usize,
    /// Checkpoints that cannot be read, and so hold all.
    pub checkpoints_damaged: usize,
}

/// Deletes the table's obsolete SSTs whose grace is over and that no read and no checkpoint holds. What could
/// not be deleted stays obsolete, for the next sweep.
///
/// # Errors
/// The first error of the store, after what could be deleted was; as for [`Manifest::commit`].
pub async fn sweep_obsolete(
    store: &Store,
    manifest: &Manifest,
    grace_ms: u64,
    now_ms: u64,
) -> Result<Swept> {
    // Candidates, then checkpoints, then reads: `manifest::checkpoints` says why.
    let version = manifest.version();
    let mut candidates = candidates::obsolete(&version, grace_ms, now_ms);
    if candidates.is_empty() {
        return Ok(Swept::default());
    }
    let held = checkpoints::held(store, manifest.table(), now_ms).await?;
    let read = candidates::read(&manifest.pinned());
    let obsolete = candidates.len();
    candidates.retain(|sst| !held.contains(*sst));
    let mut swept = Swept {
        deleted: 0,
        held: obsolete - candidates.len(),
        checkpoints_damaged: held.damaged().len(),
    };
    candidates.retain(|sst| !read.contains(sst));
    let names = candidates
        .iter()
        .map(|&sst| layout::sst(manifest.table(), sst));
    let ended = store.delete_all(&names.collect::<Vec<_>>()).await;
    let mut deleted = Vec::with_capacity(candidates.len());
    let mut failure = Ok(());
    for (sst, ended) in candidates.into_iter().zip(ended) {
        match ended {
            Ok(()) => deleted.push(sst),
            Err(error) => failure = failure.and(Err(error)),
        }
    }
    if !deleted.is_empty() {
        manifest
            .commit(|version| {
                let known = deleted
                    .iter()
                    .filter(|sst| version.obsolete.contains_key(sst));
                let known: Vec<_> = known.copied().collect();
                Ok((!known.is_empty()).then(|| Edit {
                    deleted: known,
                    ..Edit::default()
                }))
            })
            .await?;
    }
    swept.deleted = deleted.len();
    failure.map(|()| swept)
}

/// What became of the objects of a table that is in no catalog.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DroppedSweep {
    /// Objects deleted.
    pub deleted: usize,
    /// There are checkpoints: they, and the SSTs that they hold, are still there.
    pub is_held: bool,
}

/// Deletes the objects of a table that is in no catalog, and that no read of this process holds; but
/// checkpoints and what they hold stay until they end.
///
/// # Errors
/// The first error of the store; call again.
pub async fn delete_table(store: &Store, table: TableId, now_ms: u64) -> Result<DroppedSweep> {
    let held = checkpoints::held(store, table, now_ms).await?;
    let is_held = |name: &str| {
        !held.is_empty()
            && (layout::parse_checkpoint(name).is_some()
                || layout::parse_sst(name).is_some_and(|sst| held.contains(sst)))
    };
    let objects = store.list(&layout::table(table)).await?;
    let names = objects.into_iter().map(|object| object.name);
    let names: Vec<String> = names.filter(|name| !is_held(name)).collect();
    let ended: Result<()> = store.delete_all(&names).await.into_iter().collect();
    ended.map(|()| DroppedSweep {
        deleted: names.len(),
        is_held: !held.is_empty(),
    })
}
