//! Data pages as they are stored, in memory and on a local disk.

use std::{
    collections::{BTreeMap, HashMap},
    io::{Read, Write},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use foyer::{
    BlockEngineConfig, Code, DeviceBuilder, Event, EventListener, FsDeviceBuilder, HybridCache,
    HybridCacheBuilder, S3FifoConfig,
};
use futures::future::join_all;

use super::{CacheStats, SstKey, shards};
use crate::{
    config::CacheConfig,
    error::{Error, Result},
};

/// The disk is written in blocks of this size; nothing larger is kept on it.
const DISK_BLOCK_BYTES: usize = 8 << 20;
/// What an entry takes beside its bytes, about.
const ENTRY_BYTES: usize = 200;

/// A page that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sst) struct Page {
    /// Where in its SST it begins.
    pub(in crate::sst) offset: u64,
    /// CRC-32 of its bytes.
    pub(in crate::sst) crc: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct PageKey {
    sst: SstKey,
    offset: u64,
}

/// See the head of this file.
pub(super) struct Pages {
    cache: HybridCache<PageKey, Bytes>,
    index: Arc<Index>,
    hits: AtomicU64,
    disk_hits: AtomicU64,
    misses: AtomicU64,
    warmed: AtomicU64,
}

/// Which pages are in memory. The cache tells of those that leave.
#[derive(Default)]
struct Index {
    /// By SST and offset: their bytes.
    pages: Mutex<HashMap<SstKey, BTreeMap<u64, u64>>>,
    evictions: AtomicU64,
}

impl Pages {
    pub(super) async fn open(config: &CacheConfig) -> Result<Self> {
        let bytes = config.data_bytes.0 as usize;
        let index = Arc::new(Index::default());
        let builder = HybridCacheBuilder::new()
            .with_name("siltstone-pages")
            .with_event_listener(index.clone())
            .memory(bytes)
            .with_shards(shards(bytes))
            .with_eviction_config(S3FifoConfig::default())
            .with_weighter(|_: &PageKey, page: &Bytes| page.len() + ENTRY_BYTES)
            .storage();
        let builder = match &config.disk_dir {
            None => builder,
            Some(dir) => {
                let device = FsDeviceBuilder::new(dir).with_capacity(config.disk_bytes.0 as usize);
                let device = device.build().map_err(|error| unusable(config, error))?;
                let engine = BlockEngineConfig::new(device).with_block_size(DISK_BLOCK_BYTES);
                builder.with_engine_config(engine)
            }
        };
        let cache = builder.build().await;
        Ok(Self {
            cache: cache.map_err(|error| unusable(config, error))?,
            index,
            hits: AtomicU64::new(0),
            disk_hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            warmed: AtomicU64::new(0),
        })
    }

    pub(super) async fn close(&self) {
        if let Err(error) = self.cache.close().await {
            tracing::warn!(%error, "the disk cache was not closed well");
        }
    }

    pub(super) async fn find(&self, sst: SstKey, wanted: &[Page]) -> Vec<Option<Bytes>> {
        join_all(wanted.iter().map(|page| self.find_one(sst, *page))).await
    }

    async fn find_one(&self, sst: SstKey, page: Page) -> Option<Bytes> {
        let key = PageKey {
            sst,
            offset: page.offset,
        };
        if let Some(entry) = self.cache.memory().get(&key) {
            self.hits.fetch_add(1, Ordering::Relaxed);
            return Some(entry.value().clone());
        }
        let found = match self.cache.is_hybrid() {
            true => self.on_disk(&key, page.crc).await,
            false => None,
        };
        let counter = match found {
            Some(_) => &self.disk_hits,
            None => &self.misses,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        found
    }

    async fn on_disk(&self, key: &PageKey, crc: u32) -> Option<Bytes> {
        let entry = match self.cache.get(key).await {
            Ok(entry) => entry?,
            Err(error) => {
                tracing::warn!(%error, "a page cannot be read from the disk cache");
                return None;
            }
        };
        let page = entry.value().clone();
        if crc32fast::hash(&page) != crc {
            tracing::warn!(sst = %key.sst.id, offset = key.offset, "a page is damaged on the disk cache");
            self.cache.remove(key);
            return None;
        }
        // It is in memory now.
        self.index.add(key, &page);
        Some(page)
    }

    pub(super) fn keep(&self, sst: SstKey, offset: u64, page: &Bytes) {
        let key = PageKey { sst, offset };
        if self.cache.memory().contains(&key) {
            return;
        }
        // A part of a larger buffer would keep all of it.
        let page = Bytes::copy_from_slice(page);
        self.index.add(&key, &page);
        self.cache.insert(key, page);
    }

    pub(super) fn of(&self, sst: SstKey) -> Vec<(u64, u64)> {
        let pages = self.index.lock();
        let pages = pages.get(&sst).into_iter().flatten();
        pages.map(|(&offset, &bytes)| (offset, bytes)).collect()
    }

    pub(super) fn forget(&self, sst: SstKey) {
        for (offset, _) in self.of(sst) {
            self.cache.remove(&PageKey { sst, offset });
        }
    }

    pub(super) fn note_warmed(&self, pages: u64) {
        self.warmed.fetch_add(pages, Ordering::Relaxed);
    }

    pub(super) fn add_to(&self, stats: CacheStats) -> CacheStats {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CacheStats {
            data_bytes: self.cache.memory().usage() as u64,
            data_hits: load(&self.hits),
            disk_hits: load(&self.disk_hits),
            data_misses: load(&self.misses),
            data_evictions: load(&self.index.evictions),
            pages_warmed: load(&self.warmed),
            ..stats
        }
    }
}

fn unusable(config: &CacheConfig, error: foyer::Error) -> Error {
    let dir = config.disk_dir.clone().unwrap_or_default();
    let message = format!("cache.disk_dir {} cannot be used", dir.display());
    Error::unavailable(message).with_source(error)
}

impl Index {
    fn add(&self, key: &PageKey, page: &Bytes) {
        let mut pages = self.lock();
        let pages = pages.entry(key.sst).or_default();
        pages.insert(key.offset, page.len() as u64);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SstKey, BTreeMap<u64, u64>>> {
        self.pages.lock().expect("no panic under this lock")
    }
}

impl EventListener for Index {
    type Key = PageKey;
    type Value = Bytes;

    fn on_leave(&self, reason: Event, key: &PageKey, _: &Bytes) {
        match reason {
            // Another is in its place.
            Event::Replace => return,
            Event::Evict => drop(self.evictions.fetch_add(1, Ordering::Relaxed)),
            Event::Remove | Event::Clear => {}
        }
        let mut pages = self.lock();
        if let Some(of_sst) = pages.get_mut(&key.sst) {
            of_sst.remove(&key.offset);
            if of_sst.is_empty() {
                pages.remove(&key.sst);
            }
        }
    }
}

/// On the cache's disk: the table's id, the SST's, both as text, and the offset.
impl Code for PageKey {
    fn encode(&self, writer: &mut impl Write) -> foyer::Result<()> {
        self.sst.table.to_string().encode(writer)?;
        self.sst.id.to_string().encode(writer)?;
        self.offset.encode(writer)
    }

    fn decode(reader: &mut impl Read) -> foyer::Result<Self> {
        let foreign = |error: Error| {
            foyer::Error::new(foyer::ErrorKind::Parse, "not the key of a page").with_source(error)
        };
        let (table, id) = (String::decode(reader)?, String::decode(reader)?);
        Ok(Self {
            sst: SstKey {
                table: table.parse().map_err(foreign)?,
                id: id.parse().map_err(foreign)?,
            },
            offset: u64::decode(reader)?,
        })
    }

    fn estimated_size(&self) -> usize {
        self.sst.table.to_string().estimated_size()
            + self.sst.id.to_string().estimated_size()
            + self.offset.estimated_size()
    }
}
