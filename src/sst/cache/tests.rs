//! Pages in memory and on disk: what was kept is found, what was damaged is not.

use bytes::Bytes;
use tempfile::tempdir;

use super::*;
use crate::config::{Bytes as Size, CacheConfig};

const PAGE: usize = 64 << 10;

fn key(number: u64) -> SstKey {
    SstKey {
        table: TableId::from_parts(1, 1),
        id: SstId::flushed(number, 0),
    }
}

/// Bytes that differ from page to page, and do not compress.
fn page(number: u64) -> Bytes {
    let words =
        (0..PAGE as u64 / 8).map(|at| (number << 32 | at).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    words.flat_map(u64::to_le_bytes).collect::<Vec<_>>().into()
}

fn wanted(number: u64) -> Page {
    Page {
        offset: number * PAGE as u64,
        crc: crc32fast::hash(&page(number)),
    }
}

async fn find(cache: &SstCache, number: u64) -> Option<Bytes> {
    cache.pages(key(0), &[wanted(number)]).await.swap_remove(0)
}

fn config(data: Size) -> CacheConfig {
    CacheConfig {
        data_bytes: data,
        ..CacheConfig::default()
    }
}

#[tokio::test]
async fn what_was_kept_is_found_until_it_is_forgotten() {
    let cache = SstCache::open(&config(Size::mib(4))).await.unwrap();
    assert_eq!(find(&cache, 1).await, None);
    cache.keep(key(0), wanted(1).offset, &page(1));
    assert_eq!(find(&cache, 1).await, Some(page(1)));
    assert_eq!(cache.pages(key(9), &[wanted(1)]).await, [None]);
    assert_eq!(cache.pages_of(key(0)), [(PAGE as u64, PAGE as u64)]);
    let stats = cache.stats();
    assert_eq!((stats.data_hits, stats.data_misses), (1, 2));
    assert!(stats.data_bytes > PAGE as u64);
    cache.forget(key(0));
    assert_eq!(find(&cache, 1).await, None);
    assert!(cache.pages_of(key(0)).is_empty());
    assert_eq!(cache.stats().data_bytes, 0);
}

#[tokio::test]
async fn memory_is_bounded_and_what_leaves_it_is_known() {
    let cache = SstCache::open(&config(Size::mib(1))).await.unwrap();
    for number in 0..100 {
        cache.keep(key(0), wanted(number).offset, &page(number));
    }
    let stats = cache.stats();
    assert!(stats.data_bytes <= 1 << 20, "{stats:?}");
    assert!(stats.data_evictions >= 80, "{stats:?}");
    assert_eq!(
        cache.pages_of(key(0)).len() as u64 + stats.data_evictions,
        100
    );
    let none = SstCache::open(&config(Size(0))).await.unwrap();
    none.keep(key(0), 0, &page(0));
    assert_eq!(find(&none, 0).await, None);
}

#[tokio::test]
async fn what_leaves_the_memory_is_on_the_disk_and_what_is_damaged_there_is_not_served() {
    let dir = tempdir().unwrap();
    let config = CacheConfig {
        disk_dir: Some(dir.path().to_owned()),
        disk_bytes: Size::mib(64),
        ..config(Size::mib(1))
    };
    let cache = SstCache::open(&config).await.unwrap();
    for number in 0..60 {
        cache.keep(key(0), wanted(number).offset, &page(number));
    }
    cache.close().await;
    drop(cache);

    // It is there again after a restart.
    let cache = SstCache::open(&config).await.unwrap();
    let mut found = 0;
    for number in 0..60 {
        if let Some(bytes) = find(&cache, number).await {
            assert_eq!(bytes, page(number));
            found += 1;
        }
    }
    assert!(found > 30, "{found} of 60");
    assert_eq!(cache.stats().disk_hits, found);
    cache.close().await;
    drop(cache);

    // A byte in each page, wherever it lies.
    for file in std::fs::read_dir(dir.path()).unwrap() {
        let file = file.unwrap().path();
        let mut bytes = std::fs::read(&file).unwrap();
        for at in (PAGE / 2..bytes.len()).step_by(PAGE / 2) {
            bytes[at] ^= 1;
        }
        std::fs::write(&file, bytes).unwrap();
    }
    let cache = SstCache::open(&config).await.unwrap();
    for number in 0..60 {
        assert!(
            find(&cache, number)
                .await
                .is_none_or(|bytes| bytes == page(number))
        );
    }
    assert!(cache.stats().disk_hits < found, "nothing was damaged");
}
