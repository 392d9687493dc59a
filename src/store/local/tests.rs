//! Directories are seen from both sides: through the store and through the file system.

use std::path::Path as FilePath;

use super::*;
use crate::{
    clock::Env,
    config::StoreConfig,
    error::ErrorKind,
    store::{Created, Store, limits::Limits, tests::names},
};

fn open_at(path: &FilePath) -> Store {
    Store::open(Url::from_directory_path(path).unwrap().as_str()).unwrap()
}

fn body(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

/// Names of the files in `dir`, sorted.
fn files(dir: &FilePath) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<String> = entries.map(name).collect();
    names.sort();
    names
}

#[tokio::test]
async fn puts_and_creates_leave_only_the_object() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_at(&dir.path().join("deep/root"));
    store.put("a/b/one", body("1")).await.unwrap();
    store.put("a/b/one", body("2")).await.unwrap();
    assert_eq!(
        store.create("a/b/two", body("x")).await.unwrap(),
        Created::New
    );
    assert_eq!(
        store.create("a/b/two", body("y")).await.unwrap(),
        Created::Exists
    );
    let root = dir.path().join("deep/root");
    assert_eq!(files(&root.join("a/b")), ["one", "two"]);
    assert_eq!(fs::read(root.join("a/b/one")).unwrap(), b"2");
    assert_eq!(fs::read(root.join("a/b/two")).unwrap(), b"x");
    // A directory that somebody removed is made again.
    fs::remove_dir_all(root.join("a")).unwrap();
    store.put("a/b/one", body("3")).await.unwrap();
    assert_eq!(files(&root.join("a/b")), ["one"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_many_creators_one_wins() {
    let dir = tempfile::tempdir().unwrap();
    // Two stores over one directory, as two processes have.
    let stores = [open_at(dir.path()), open_at(dir.path())];
    for round in 0..4 {
        let name = format!("log/{round}/1");
        let creators: Vec<_> = (0..32)
            .map(|creator| {
                let (store, name) = (stores[creator % 2].clone(), name.clone());
                tokio::spawn(async move {
                    let body = Bytes::from(creator.to_string());
                    let created = store.create(&name, body).await.unwrap();
                    (created == Created::New).then_some(creator)
                })
            })
            .collect();
        let mut winners = Vec::new();
        for creator in creators {
            winners.extend(creator.await.unwrap());
        }
        let [winner] = winners[..] else {
            panic!("winners: {winners:?}");
        };
        assert_eq!(stores[0].get(&name).await.unwrap(), winner.to_string());
        assert_eq!(files(&dir.path().join(format!("log/{round}"))), ["1"]);
    }
}

#[tokio::test]
async fn leftover_staging_files_disturb_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_at(dir.path());
    fs::create_dir(dir.path().join("log")).unwrap();
    let process = u64::from(std::process::id()) << 32;
    for number in (0..64).map(|n| process + n).chain([1, 2]) {
        fs::write(dir.path().join(format!("log/1#{number}")), "torn").unwrap();
    }
    assert_eq!(names(&store, "log").await, Vec::<String>::new());
    assert_eq!(
        store.create("log/1", body("whole")).await.unwrap(),
        Created::New
    );
    store.put("log/1", body("whole")).await.unwrap();
    assert_eq!(names(&store, "log").await, ["log/1"]);
    assert_eq!(store.get("log/1").await.unwrap(), "whole");
    assert_eq!(files(&dir.path().join("log")).len(), 67);
}

#[tokio::test]
async fn an_upload_shows_nothing_until_it_is_finished() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_at(dir.path());
    let part = Bytes::from(vec![1; 5 << 20]);
    let mut upload = store.upload("sst/large");
    for _ in 0..4 {
        upload.write(part.clone()).await.unwrap();
    }
    assert_eq!(names(&store, "sst").await, Vec::<String>::new());
    assert!(files(&dir.path().join("sst"))[0].starts_with("large#"));
    upload.finish().await.unwrap();
    assert_eq!(files(&dir.path().join("sst")), ["large"]);

    let mut given_up = store.upload("sst/given-up");
    for _ in 0..4 {
        given_up.write(part.clone()).await.unwrap();
    }
    drop(given_up);
    let mut aborted = store.upload("sst/aborted");
    for _ in 0..4 {
        aborted.write(part.clone()).await.unwrap();
    }
    aborted.abort().await.unwrap();
    // The parts in flight of a dropped upload end on threads of their own.
    for _ in 0..100 {
        if files(&dir.path().join("sst")) == ["large"] {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("left behind: {:?}", files(&dir.path().join("sst")));
}

#[tokio::test]
async fn roots_with_odd_names_work() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["with space", "100%", "a%20b", "ünï#code?", "plus+and&"] {
        let root = dir.path().join(name);
        let store = open_at(&root);
        store.put("tables/t/1.log", body("x")).await.unwrap();
        assert_eq!(
            fs::read(root.join("tables/t/1.log")).unwrap(),
            b"x",
            "{name}"
        );
        assert_eq!(names(&store, "tables").await, ["tables/t/1.log"], "{name}");
        assert_eq!(store.get("tables/t/1.log").await.unwrap(), "x", "{name}");
        assert_eq!(open_at(&root).list_folders("").await.unwrap(), ["tables"]);
    }
    let error = Store::open("file://elsewhere/dir").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.message().contains("elsewhere"), "{error}");
}

#[tokio::test]
async fn errors_name_the_path() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_at(dir.path());
    store.put("file", body("x")).await.unwrap();
    let error = store.put("file/below", body("x")).await.unwrap_err();
    let path = dir.path().join("file");
    assert!(
        error.to_string().contains(path.to_str().unwrap()),
        "{error}"
    );
    assert!(Store::open(Url::from_directory_path(&path).unwrap().as_str()).is_err());
}

#[tokio::test]
async fn a_read_only_directory_is_a_clean_error() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_at(dir.path());
    store.put("log/1", body("x")).await.unwrap();
    let log = dir.path().join("log");
    let mut permissions = fs::metadata(&log).unwrap().permissions();
    permissions.set_readonly(true);
    fs::set_permissions(&log, permissions.clone()).unwrap();
    // Permissions do not bind the superuser.
    if fs::write(log.join("probe"), "x").is_err() {
        let error = store.create("log/2", body("x")).await.unwrap_err();
        assert!(error.is_unavailable(), "{error}");
        assert!(error.to_string().contains(log.to_str().unwrap()), "{error}");
        assert_eq!(store.get("log/1").await.unwrap(), "x");
    }
    #[expect(
        clippy::permissions_set_readonly_false,
        reason = "a directory of this test, about to be removed"
    )]
    permissions.set_readonly(false);
    fs::set_permissions(&log, permissions).unwrap();
}

#[tokio::test]
async fn an_object_that_may_vanish_is_not_read() {
    let dir = tempfile::tempdir().unwrap();
    let durable_dirs = Arc::<DurableDirs>::default();
    let objects = DurableLocal {
        files: LocalFileSystem::new_with_prefix(dir.path()).unwrap(),
        durable_dirs: durable_dirs.clone(),
    };
    let backend = Backend {
        objects: Arc::new(objects),
        parts: None,
        root: Path::default(),
        url: "file:///test".into(),
    };
    let limits = Limits::local(&StoreConfig::default(), Env::default());
    let store = Store::new(backend, limits);
    store.put("sst/1", body("x")).await.unwrap();
    durable_dirs.fails.store(true, Ordering::Relaxed);
    let error = store.create("log/1", body("x")).await.unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    assert_eq!(files(&dir.path().join("log")), ["1"]);
    let error = store.get("log/1").await.unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    assert_eq!(store.get("sst/1").await.unwrap(), "x");
    durable_dirs.fails.store(false, Ordering::Relaxed);
    assert_eq!(store.get("log/1").await.unwrap(), "x");
    assert!(!durable_dirs.has_doubts.load(Ordering::Relaxed));
}

#[tokio::test]
async fn what_a_crash_left_half_written_is_found_and_deleted_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let store = open_at(dir.path());
    let object = "catalog/00000000000000000001.log";
    store.put(object, body("1")).await.unwrap();
    fs::create_dir(dir.path().join("notes")).unwrap();
    for name in [
        "catalog/00000000000000000002.log#77",
        "catalog/mine#1",
        "notes/00000000000000000002.log#77",
    ] {
        fs::write(dir.path().join(name), "half").unwrap();
    }
    let staged = store.list_staged().await.unwrap();
    let [staged] = &staged[..] else {
        panic!("{staged:?}");
    };
    assert_eq!(staged.name, "catalog/00000000000000000002.log#77");
    assert_eq!(staged.bytes, 4);
    let now_ms = Env::default().unix_ms() as i64;
    assert!((now_ms - 60_000..=now_ms + 60_000).contains(&staged.modified_ms));
    store.delete_staged(&staged.name).await.unwrap();
    store.delete_staged(&staged.name).await.unwrap();
    for other in [object, "catalog/mine#1", "../x#1"] {
        let refused = store.delete_staged(other).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{other}");
    }
    assert_eq!(
        files(&dir.path().join("catalog")),
        ["00000000000000000001.log", "mine#1"]
    );
    assert_eq!(store.list_staged().await.unwrap(), []);
}
