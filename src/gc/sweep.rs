//! Deletes what the decision names, and says so in the manifest.

use super::candidates;
use crate::{
    error::Result,
    manifest::{Edit, Manifest},
    store::{Store, layout},
    types::TableId,
};

/// Deletes the table's obsolete SSTs whose grace is over and that no read holds. Returns how many.
/// What could not be deleted stays obsolete, for the next sweep.
///
/// # Errors
/// The first error of the store, after what could be deleted was; as for [`Manifest::commit`].
pub async fn sweep_obsolete(
    store: &Store,
    manifest: &Manifest,
    grace_ms: u64,
    now_ms: u64,
) -> Result<usize> {
    let candidates =
        candidates::obsolete(&manifest.version(), &manifest.pinned(), grace_ms, now_ms);
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
    failure.map(|()| deleted.len())
}

/// Deletes every object of a table that is in no catalog. Returns how many.
///
/// # Errors
/// The first error of the store; call again.
pub async fn delete_table(store: &Store, table: TableId) -> Result<usize> {
    let objects = store.list(&layout::table(table)).await?;
    let count = objects.len();
    let names: Vec<String> = objects.into_iter().map(|object| object.name).collect();
    let ended: Result<()> = store.delete_all(&names).await.into_iter().collect();
    ended.map(|()| count)
}
