//! What readers keep of SSTs. An SST never changes and its name never comes back, so that nothing here can be stale.
//!
//! * *Opened SSTs*: footers, page indexes and key filters, parsed. A node keeps nothing else, and of what it merges the
//!   footers only.
//! * *Pages*: as they are stored, in memory and, if a folder is configured for it, on a local disk, which takes what
//!   leaves the memory. What comes from that disk is checked against its checksum again.
//!
//! Eviction is S3-FIFO: what was read once, as by a scan of everything, leaves before what is read again. Compactions
//! read past the cache. After one has replaced SSTs that had pages here, `warm` loads the pages of its outputs with the
//! same columns and keys, up to as many bytes.

mod pages;
#[cfg(test)]
mod tests;
mod warm;

use std::{
    fmt,
    future::Future,
    sync::Arc,
    sync::atomic::{AtomicU64, Ordering},
};

use foyer::{Cache, CacheBuilder, S3FifoConfig};
use serde::Serialize;

use super::file::Opened;
use crate::{
    config::CacheConfig,
    error::{Error, Result},
    types::{SstId, TableId},
};
pub(super) use pages::Page;
use pages::Pages;
pub use warm::warm;

/// A shard of a cache should have room for this much at least.
const SHARD_BYTES_MIN: usize = 8 << 20;
const SHARDS_MAX: usize = 16;

/// An SST among those of all tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SstKey {
    /// The table in whose folder it lies.
    pub(super) table: TableId,
    pub(super) id: SstId,
}

/// What readers keep of SSTs. Cheap to clone.
#[derive(Clone)]
pub struct SstCache {
    inner: Arc<Inner>,
}

struct Inner {
    /// By SST, and whether it was opened with its indexes.
    opened: Cache<(SstKey, bool), Arc<Opened>>,
    file_hits: AtomicU64,
    file_misses: AtomicU64,
    pages: Option<Pages>,
}

impl fmt::Debug for SstCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.stats().fmt(f)
    }
}

/// What a cache holds, and how often it helped since it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CacheStats {
    /// Bytes of opened SSTs: footers, indexes, filters.
    pub metadata_bytes: u64,
    /// Opened SSTs that were here when they were asked for.
    pub metadata_hits: u64,
    /// SSTs that had to be opened.
    pub metadata_misses: u64,
    /// Bytes of data pages in memory.
    pub data_bytes: u64,
    /// Pages that were in memory when they were asked for.
    pub data_hits: u64,
    /// Pages that were on the cache's disk.
    pub disk_hits: u64,
    /// Pages that had to be read from the store.
    pub data_misses: u64,
    /// Pages that left the memory for others.
    pub data_evictions: u64,
    /// Pages that were loaded because a compaction had replaced others that were here.
    pub pages_warmed: u64,
}

impl SstCache {
    /// An empty cache, but for what its disk has from before.
    ///
    /// # Errors
    /// `Unavailable`, naming the folder, when its disk cannot be used.
    pub async fn open(config: &CacheConfig) -> Result<Self> {
        let pages = match config.data_bytes.0 {
            0 => None,
            _ => Some(Pages::open(config).await?),
        };
        Ok(Self::new(config.metadata_bytes.0, pages))
    }

    /// An empty cache of opened SSTs, of `bytes` bytes, that keeps no pages.
    pub fn of_opened(bytes: u64) -> Self {
        Self::new(bytes, None)
    }

    fn new(bytes: u64, pages: Option<Pages>) -> Self {
        let bytes = bytes as usize;
        let opened = CacheBuilder::new(bytes)
            .with_name("siltstone-ssts")
            .with_shards(shards(bytes))
            .with_eviction_config(S3FifoConfig::default())
            .with_weighter(|_: &(SstKey, bool), opened: &Arc<Opened>| opened.memory_bytes())
            .build();
        Self {
            inner: Arc::new(Inner {
                opened,
                file_hits: AtomicU64::new(0),
                file_misses: AtomicU64::new(0),
                pages,
            }),
        }
    }

    /// Whether it keeps pages.
    pub fn keeps_pages(&self) -> bool {
        self.inner.pages.is_some()
    }

    /// Waits until the disk has what is on its way to it.
    pub async fn close(&self) {
        if let Some(pages) = &self.inner.pages {
            pages.close().await;
        }
    }

    /// What it holds, and how often it helped.
    pub fn stats(&self) -> CacheStats {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let stats = CacheStats {
            metadata_bytes: self.inner.opened.usage() as u64,
            metadata_hits: load(&self.inner.file_hits),
            metadata_misses: load(&self.inner.file_misses),
            ..CacheStats::default()
        };
        match &self.inner.pages {
            Some(pages) => pages.add_to(stats),
            None => stats,
        }
    }

    /// The opened SST `sst`, which `open` opens if it is not here; once, for all who ask meanwhile.
    pub(super) async fn opened<F>(&self, sst: (SstKey, bool), open: F) -> Result<Arc<Opened>>
    where
        F: Future<Output = Result<Opened>> + Send + 'static,
    {
        if let Some(opened) = self.inner.opened.get(&sst) {
            self.inner.file_hits.fetch_add(1, Ordering::Relaxed);
            return Ok(opened.value().clone());
        }
        self.inner.file_misses.fetch_add(1, Ordering::Relaxed);
        let opened = self
            .inner
            .opened
            .get_or_fetch(&sst, || async move { open.await.map(Arc::new) });
        match opened.await {
            Ok(opened) => Ok(opened.value().clone()),
            Err(error) => Err(own_error(error)),
        }
    }

    /// Of the pages `wanted` of `sst`, those that are here.
    pub(super) async fn pages(&self, sst: SstKey, wanted: &[Page]) -> Vec<Option<bytes::Bytes>> {
        match &self.inner.pages {
            Some(pages) => pages.find(sst, wanted).await,
            None => vec![None; wanted.len()],
        }
    }

    /// Keeps a page of `sst` that begins at `offset`, and whose checksum was verified.
    pub(super) fn keep(&self, sst: SstKey, offset: u64, page: &bytes::Bytes) {
        if let Some(pages) = &self.inner.pages {
            pages.keep(sst, offset, page);
        }
    }

    /// Where the pages of `sst` begin that are in memory, and their bytes.
    pub(super) fn pages_of(&self, sst: SstKey) -> Vec<(u64, u64)> {
        let pages = self.inner.pages.as_ref();
        pages.map_or(Vec::new(), |pages| pages.of(sst))
    }

    /// Counts pages that were loaded in place of others.
    pub(super) fn note_warmed(&self, pages: u64) {
        if let Some(own) = &self.inner.pages {
            own.note_warmed(pages);
        }
    }

    /// Forgets the pages of `sst`.
    pub(super) fn forget(&self, sst: SstKey) {
        if let Some(pages) = &self.inner.pages {
            pages.forget(sst);
        }
    }
}

/// The error that opening gave: the cache passes it on in a wrapping of its own.
fn own_error(error: foyer::Error) -> Error {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(error) = source {
        if let Some(own) = error.downcast_ref::<Error>() {
            return own.clone();
        }
        source = error.source();
    }
    Error::internal("an opened sst was lost on its way to the cache").with_source(error)
}

fn shards(bytes: usize) -> usize {
    (bytes / SHARD_BYTES_MIN).clamp(1, SHARDS_MAX)
}
