//! What every store must do: one suite, over memory, a local disk, an S3 server inside the test process,
//! and any store that the environment names.

use std::collections::BTreeSet;

use bytes::Bytes;
use futures::{StreamExt, future::join_all, stream};
use siltstone::{
    clock::Env,
    error::ErrorKind,
    store::{Created, Operation, Store, Upload},
};
use tempfile::tempdir;

use crate::support::url_of;

/// URL of a store to be tried besides, such as `s3://bucket/prefix`; whatever else it needs, such as
/// `AWS_ENDPOINT`, is in the environment too. Everything under it is deleted.
const STORE_URL: &str = "SILTSTONE_TEST_STORE";

/// Racers for one object.
const RACERS: usize = 32;
/// More objects than a page of a listing, and than a bulk deletion, can have on S3.
const MANY: usize = 1_100;
const PART: usize = Upload::PART_BYTES;

#[tokio::test(flavor = "multi_thread")]
async fn memory() {
    conforms(&Store::open("memory:///").unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn local_disk() {
    let dir = tempdir().unwrap();
    conforms(&Store::open(&url_of(dir.path())).unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn store_of_the_environment() {
    match std::env::var(STORE_URL) {
        Ok(url) => conforms(&Store::open(&url).unwrap()).await,
        Err(_) => println!("{STORE_URL} is not set: no other store was tried"),
    }
}

/// Runs the suite over `store`, whose root is empty before and after.
pub async fn conforms(store: &Store) {
    store.probe(&Env::default()).await.unwrap();
    assert_eq!(store.list("").await.unwrap(), []);
    objects_come_and_go(store).await;
    of_racing_creators_one_wins(store).await;
    ranges_are_exact(store).await;
    listings_are_complete(store).await;
    deletions_are_answered_one_by_one(store).await;
    uploads_appear_whole(store).await;
    clear(store).await;
    let stats = store.stats();
    assert!(stats.of(Operation::Create).refused >= RACERS as u64 - 1);
    let failed = stats.requests.values();
    // On a store that works nothing is sent twice.
    let sent_again: u64 = failed.map(|requests| requests.retries).sum();
    assert_eq!(sent_again, 0, "{stats:?}");
}

fn body(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

/// Bytes that tell their place.
fn pattern(bytes: usize) -> Bytes {
    let words = (0..bytes.div_ceil(4) as u32).flat_map(u32::to_le_bytes);
    words.take(bytes).collect()
}

async fn clear(store: &Store) {
    let objects = store.list("").await.unwrap();
    let names: Vec<String> = objects.into_iter().map(|object| object.name).collect();
    for ended in store.delete_all(&names).await {
        ended.unwrap();
    }
    assert_eq!(store.list("").await.unwrap(), []);
}

async fn objects_come_and_go(store: &Store) {
    let missing = store.get("a/1").await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound, "{missing}");
    assert!(missing.message().contains("a/1"), "{missing}");
    let missing = store.get_ranges("a/1", &[0..1, 1..2]).await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound, "{missing}");
    assert_eq!(store.size("a/1").await.unwrap(), None);
    store.delete("a/1").await.unwrap();

    store.put("a/1", body("old")).await.unwrap();
    store.put("a/1", body("0123456789")).await.unwrap();
    store.put("a/empty", Bytes::new()).await.unwrap();
    assert_eq!(store.get("a/1").await.unwrap(), "0123456789");
    assert_eq!(store.get("a/empty").await.unwrap(), "");
    assert_eq!(store.size("a/1").await.unwrap(), Some(10));
    assert_eq!(store.size("a/empty").await.unwrap(), Some(0));

    store.delete("a/1").await.unwrap();
    store.delete("a/1").await.unwrap();
    assert_eq!(store.size("a/1").await.unwrap(), None);
    // What was deleted can be created again.
    let created = store.create("a/1", body("new")).await.unwrap();
    assert_eq!(created, Created::New);
    assert_eq!(store.get("a/1").await.unwrap(), "new");
}

async fn of_racing_creators_one_wins(store: &Store) {
    for round in 0..4 {
        let name = format!("race/{round:020}.log");
        let racers = (0..RACERS).map(|racer| {
            let (store, name) = (store.clone(), name.clone());
            tokio::spawn(async move { store.create(&name, racer.to_string().into()).await })
        });
        let ended = join_all(racers).await;
        let ended: Vec<Created> = ended
            .into_iter()
            .map(|ended| ended.unwrap().unwrap())
            .collect();
        let winners: Vec<usize> = (0..RACERS)
            .filter(|&racer| ended[racer] == Created::New)
            .collect();
        assert_eq!(winners.len(), 1, "{name}: {winners:?}");
        assert_eq!(store.get(&name).await.unwrap(), winners[0].to_string());
    }
}

async fn ranges_are_exact(store: &Store) {
    let whole = pattern(3 << 20);
    store.put("ranges", whole.clone()).await.unwrap();
    let size = whole.len() as u64;
    // Near, far, overlapping, out of order, up to the last byte.
    let ranges = [
        size - 1..size,
        5..10,
        0..1,
        7..300,
        2 << 20..(2 << 20) + 1,
        0..size,
    ];
    let parts = store.get_ranges("ranges", &ranges).await.unwrap();
    assert_eq!(parts.len(), ranges.len());
    for (part, range) in parts.iter().zip(&ranges) {
        let want = &whole[range.start as usize..range.end as usize];
        assert!(part == want, "{range:?}: {} bytes", part.len());
    }
    assert_eq!(store.get_ranges("ranges", &[]).await.unwrap(), [""; 0]);
    // Some stores answer with an error, some with what there is; none makes bytes up.
    let ranges = [0..1, size - 2..size + 5];
    if let Ok(parts) = store.get_ranges("ranges", &ranges).await {
        assert_eq!(parts, [whole.slice(..1), whole.slice(whole.len() - 2..)]);
    }
}

async fn listings_are_complete(store: &Store) {
    for name in ["t/a/1", "t/b/c/2", "t/3", "tt/4"] {
        store.put(name, body("xyz")).await.unwrap();
    }
    let names = async |prefix: &str| -> BTreeSet<String> {
        let objects = store.list(prefix).await.unwrap();
        assert!(objects.iter().all(|object| object.bytes > 0), "{objects:?}");
        objects.into_iter().map(|object| object.name).collect()
    };
    let set = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
    assert_eq!(names("t").await, set(&["t/3", "t/a/1", "t/b/c/2"]));
    assert_eq!(names("t/b").await, set(&["t/b/c/2"]));
    assert_eq!(names("nothing").await, set(&[]));
    let mut folders = store.list_folders("t").await.unwrap();
    folders.sort();
    assert_eq!(folders, ["a", "b"]);
    let top: BTreeSet<String> = store.list_top().await.unwrap().into_iter().collect();
    assert!(top.contains("t") && top.contains("tt"), "{top:?}");
    let listed = store.list("t/a").await.unwrap();
    assert_eq!((listed.len(), listed[0].bytes), (1, 3));
    assert!(listed[0].modified_ms > 1_600_000_000_000, "{listed:?}");

    let puts = (0..MANY).map(|number| async move {
        let name = format!("many/{number:05}");
        store.put(&name, body("x")).await.unwrap();
    });
    stream::iter(puts)
        .buffer_unordered(32)
        .collect::<Vec<_>>()
        .await;
    let many = names("many").await;
    let want: BTreeSet<String> = (0..MANY)
        .map(|number| format!("many/{number:05}"))
        .collect();
    assert_eq!(many, want);
}

async fn deletions_are_answered_one_by_one(store: &Store) {
    let mut names: Vec<String> = (0..MANY)
        .map(|number| format!("many/{number:05}"))
        .collect();
    names.insert(7, "many/never-there".into());
    let ended = store.delete_all(&names[1..]).await;
    assert_eq!(ended.len(), names.len() - 1);
    for (ended, name) in ended.iter().zip(&names[1..]) {
        assert!(ended.is_ok(), "{name}: {ended:?}");
    }
    let left = store.list("many").await.unwrap();
    assert_eq!((left.len(), &left[0].name[..]), (1, "many/00000"));
    assert!(store.delete_all(&[]).await.is_empty());
}

async fn uploads_appear_whole(store: &Store) {
    let whole = pattern(3 * PART + 12_345);
    for bytes in [0, 1, PART - 1, PART, PART + 1, whole.len()] {
        let name = format!("upload/{bytes}");
        let mut upload = store.upload(&name);
        for start in (0..bytes).step_by(1 << 20) {
            let end = bytes.min(start + (1 << 20));
            upload.write(whole.slice(start..end)).await.unwrap();
        }
        assert_eq!(upload.bytes(), bytes as u64);
        assert_eq!(store.size(&name).await.unwrap(), None);
        upload.finish().await.unwrap();
        let have = store.get(&name).await.unwrap();
        assert!(have == whole[..bytes], "{bytes}: {} bytes", have.len());
    }
    // One piece of several parts, over an object that is there; ranges across the parts' borders.
    let mut upload = store.upload("upload/0");
    upload.write(whole.clone()).await.unwrap();
    upload.finish().await.unwrap();
    let border = PART as u64;
    let ranges = [border - 3..border + 3, 2 * border - 1..3 * border + 1];
    let parts = store.get_ranges("upload/0", &ranges).await.unwrap();
    for (part, range) in parts.iter().zip(&ranges) {
        assert!(part == &whole[range.start as usize..range.end as usize]);
    }
    for bytes in [1, PART + 1] {
        let mut aborted = store.upload("upload/aborted");
        aborted.write(whole.slice(..bytes)).await.unwrap();
        aborted.abort().await.unwrap();
        let mut dropped = store.upload("upload/dropped");
        dropped.write(whole.slice(..bytes)).await.unwrap();
        drop(dropped);
    }
    for name in ["upload/aborted", "upload/dropped"] {
        assert_eq!(store.size(name).await.unwrap(), None, "{name}");
    }
}
