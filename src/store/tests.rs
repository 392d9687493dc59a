//! What every store must do, over memory and over local disk.

use object_store::memory::InMemory;

use super::*;
use crate::{
    config::StoreConfig,
    error::ErrorKind,
    store::faulty::{Effect, Fault, Operation},
};

fn stores() -> (tempfile::TempDir, [Store; 2]) {
    let dir = tempfile::tempdir().unwrap();
    let url = Url::from_directory_path(dir.path()).unwrap();
    let stores = ["memory:///", url.as_str()].map(|url| Store::open(url).unwrap());
    (dir, stores)
}

fn body(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

/// Names of the objects under `prefix`, sorted.
pub(super) async fn names(store: &Store, prefix: &str) -> Vec<String> {
    let objects = store.list(prefix).await.unwrap();
    let mut names: Vec<String> = objects.into_iter().map(|object| object.name).collect();
    names.sort();
    names
}

#[tokio::test]
async fn objects_are_put_read_listed_and_deleted() {
    let (_dir, stores) = stores();
    for store in stores {
        let missing = store.get("a/1").await.unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        assert!(missing.message().contains("a/1"), "{missing}");
        assert_eq!(store.size("a/1").await.unwrap(), None);
        assert_eq!(store.list("a").await.unwrap(), []);
        assert_eq!(store.list_folders("a").await.unwrap(), [""; 0]);

        store.put("a/1", body("old")).await.unwrap();
        store.put("a/1", body("0123456789")).await.unwrap();
        assert_eq!(
            store.create("a/1", body("new")).await.unwrap(),
            Created::Exists
        );
        assert_eq!(store.get("a/1").await.unwrap(), "0123456789");
        assert_eq!(store.size("a/1").await.unwrap(), Some(10));
        let ranges = store.get_ranges("a/1", &[7..9, 0..1]).await.unwrap();
        assert_eq!(ranges, ["78", "0"]);
        let listed = store.list("a").await.unwrap();
        assert_eq!((&listed[0].name[..], listed[0].bytes), ("a/1", 10));
        assert!(listed[0].modified_ms > 1_600_000_000_000);

        store.delete("a/1").await.unwrap();
        store.delete("a/1").await.unwrap();
        assert_eq!(store.list("").await.unwrap(), []);
    }
}

#[tokio::test]
async fn listings_are_relative_to_the_root_and_end_at_folder_names() {
    let objects: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let below = |root: &str| {
        let backend = Backend {
            objects: objects.clone(),
            parts: None,
            root: Path::from(root),
            url: "memory:///root".into(),
        };
        Store::new(
            backend,
            Limits::local(&StoreConfig::default(), Env::default()),
        )
    };
    let (_dir, [_, local]) = stores();
    for store in [below("some/root"), below(""), local] {
        for name in ["t/a/1", "t/b/c/2", "t/3", "tt/4"] {
            store.put(name, body("x")).await.unwrap();
        }
        assert_eq!(names(&store, "t").await, ["t/3", "t/a/1", "t/b/c/2"]);
        assert_eq!(names(&store, "t/b").await, ["t/b/c/2"]);
        let mut folders = store.list_folders("t").await.unwrap();
        folders.sort();
        assert_eq!(folders, ["a", "b"]);
        if store.root.as_ref().is_empty() {
            continue;
        }
        let everything = ["t/3", "t/a/1", "t/b/c/2", "tt/4"];
        assert_eq!(names(&store, "").await, everything);
        let outside = objects.head(&Path::from("some/root/t/3")).await;
        assert_eq!(outside.unwrap().size, 1);
    }
}

#[tokio::test]
async fn uploads_small_and_large_appear_whole_when_finished() {
    let (_dir, stores) = stores();
    let pieces: Vec<Bytes> = (0..25u8).map(|n| vec![n; 1 << 20].into()).collect();
    for store in stores {
        for count in [0, 1, 8, 25] {
            let name = format!("upload/{count}");
            let mut upload = store.upload(&name);
            for piece in &pieces[..count] {
                upload.write(piece.clone()).await.unwrap();
            }
            assert_eq!(upload.bytes(), (count as u64) << 20);
            assert_eq!(store.size(&name).await.unwrap(), None);
            upload.finish().await.unwrap();
            assert!(store.get(&name).await.unwrap() == pieces[..count].concat());
        }
        let mut one_piece = store.upload("upload/one-piece");
        one_piece.write(pieces.concat().into()).await.unwrap();
        one_piece.finish().await.unwrap();
        assert_eq!(
            store.size("upload/one-piece").await.unwrap(),
            Some(25 << 20)
        );
    }
}

#[tokio::test]
async fn an_upload_dropped_or_broken_leaves_no_object() {
    let (_dir, stores) = stores();
    for store in stores {
        for count in [1, 25] {
            let mut dropped = store.upload("dropped");
            let mut aborted = store.upload("aborted");
            for _ in 0..count {
                dropped.write(vec![1; 1 << 20].into()).await.unwrap();
                aborted.write(vec![1; 1 << 20].into()).await.unwrap();
            }
            drop(dropped);
            aborted.abort().await.unwrap();
        }
        let (faulty, faults) = store.clone().with_faults();
        faults.add(Fault::new(Operation::Upload, "", Effect::Fail));
        let mut failed = faulty.upload("failed");
        failed.write(vec![1; 9 << 20].into()).await.unwrap();
        let error = failed.finish().await.unwrap_err();
        assert!(error.is_unavailable(), "{error}");
        assert!(error.message().contains("failed"), "{error}");
        assert_eq!(store.list("").await.unwrap(), []);
    }
}

#[cfg(unix)]
#[tokio::test]
async fn an_upload_that_lost_a_piece_cannot_be_finished() {
    let dir = tempfile::tempdir().unwrap();
    let url = Url::from_directory_path(dir.path()).unwrap();
    let store = Store::open(url.as_str()).unwrap();
    // The first part cannot be staged: a file is where the folder should be.
    store.put("sst", body("in the way")).await.unwrap();
    let mut upload = store.upload("sst/1");
    let error = upload.write(vec![1; 9 << 20].into()).await.unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    store.delete("sst").await.unwrap();
    assert!(upload.write(body("the rest")).await.is_err());
    assert!(upload.finish().await.unwrap_err().is_unavailable());
    assert_eq!(store.list("").await.unwrap(), []);
}

#[tokio::test]
async fn the_probe_passes_and_leaves_nothing() {
    let (_dir, stores) = stores();
    for store in stores {
        store.probe(&Env::default()).await.unwrap();
        store.probe(&Env::default()).await.unwrap();
        assert_eq!(store.list("").await.unwrap(), []);
    }
}

#[test]
fn urls_that_name_no_store_are_refused() {
    for (url, wanted) in [
        ("no url", "no url"),
        ("ftp://host/dir", "\"ftp\""),
        ("relative/dir", "relative/dir"),
    ] {
        let error = Store::open(url).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.message().contains(wanted), "{error}");
    }
}

#[tokio::test]
async fn the_probe_outlasts_lost_answers_but_not_an_outage() {
    let (_dir, [memory, _]) = stores();
    let (store, faults) = memory.with_faults();
    faults.add(Fault::new(Operation::Create, "", Effect::LoseAnswer).times(2));
    store.probe(&Env::default()).await.unwrap();
    assert_eq!(store.list("").await.unwrap(), []);
    faults.add(Fault::new(Operation::Create, "", Effect::Fail));
    assert!(
        store
            .probe(&Env::default())
            .await
            .unwrap_err()
            .is_unavailable()
    );
}

#[tokio::test]
async fn the_probe_refuses_a_store_that_lies() {
    let (_dir, stores) = stores();
    for store in stores {
        let (lying, faults) = store.with_faults();
        faults.add(Fault::new(Operation::Create, "", Effect::Overwrite));
        let error = lying.probe(&Env::default()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.message().contains("two writers"), "{error}");
        assert_eq!(lying.list("").await.unwrap(), []);
    }
}
