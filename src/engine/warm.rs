//! Keeps the cache warm: where a compaction has replaced SSTs of which readers had pages in the cache, the pages of its
//! outputs that take their place are loaded.

use std::{collections::HashMap, sync::Arc};

use super::{EngineInner, table::TableInner};
use crate::{
    manifest::Version,
    sst::{self, SstAccess},
    types::{SstId, SstMeta},
};

/// The live SSTs, without their version: who holds that holds the objects of SSTs that have left.
type Live = HashMap<SstId, Arc<SstMeta>>;

/// Follows the versions of `table` until its background work is to end.
pub(super) async fn run(engine: Arc<EngineInner>, table: Arc<TableInner>) {
    let mut versions = table.manifest.subscribe();
    let mut before = live(&versions.borrow_and_update());
    loop {
        tokio::select! {
            biased;
            () = table.cancel.cancelled() => return,
            changed = versions.changed() => if changed.is_err() {
                return;
            }
        }
        let (now, schema) = {
            let version = versions.borrow_and_update();
            (live(&version), version.schema.clone())
        };
        let left = |from: &Live, other: &Live| -> Vec<Arc<SstMeta>> {
            let ssts = from.values().filter(|sst| !other.contains_key(&sst.id));
            ssts.cloned().collect()
        };
        let (removed, mut added) = (left(&before, &now), left(&now, &before));
        added.sort_by(|one, other| one.key_min.cmp(&other.key_min));
        before = now;
        let access = SstAccess::by_pages(&engine.store, Arc::default());
        let access = access.cached(&engine.source.cache);
        let warmed = sst::warm(&access, &schema, table.id(), &removed, &added);
        tokio::select! {
            biased;
            () = table.cancel.cancelled() => return,
            warmed = warmed => match warmed {
                Ok(0) => {}
                Ok(pages) => tracing::debug!(table = %table.name, pages, "cache warmed"),
                Err(error) => tracing::debug!(table = %table.name, %error, "the cache was not warmed"),
            }
        }
    }
}

fn live(version: &Version) -> Live {
    let ssts = version.ssts();
    ssts.map(|sst| (sst.id, sst.clone())).collect()
}
