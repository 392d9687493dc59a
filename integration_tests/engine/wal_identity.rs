//! Which WAL belongs to which root: rows that are only in one are not passed by, and those that were given up do not
//! come back.

use siltstone::{
    config::{EngineConfig, WalMode},
    engine::{Engine, WriteOptions},
    error::ErrorKind,
    store::Store,
};

use tempfile::tempdir;

use crate::durability::{Root, create, rows, write};

#[tokio::test(flavor = "multi_thread")]
async fn a_root_whose_rows_may_be_in_another_wal_is_not_opened() {
    let elsewhere = tempdir().unwrap();
    let folder = elsewhere.path().join("wal");
    let refused = async |root: &Root, change: &dyn Fn(&mut EngineConfig), words: &[&str]| {
        let error = root.open_with(change).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        for word in words.iter().chain(&["flush every table"]) {
            assert!(error.message().contains(word), "{word} is not in: {error}");
        }
    };
    for mode in [WalMode::Local, WalMode::ObjectStore] {
        let root = Root::new(mode);
        let engine = root.open().await;
        let table = create(&engine, "readings").await;
        write(&table, 1, WriteOptions::default()).await.unwrap();
        let other = match mode {
            WalMode::Local => WalMode::ObjectStore,
            _ => WalMode::Local,
        };
        let changes: [&dyn Fn(&mut EngineConfig); 3] = [
            &|config| config.wal.mode = other,
            &|config| config.wal.mode = WalMode::None,
            // Another WAL of the same mode: of another name, or in another folder.
            &|config| {
                config.name = "other".into();
                config.wal.dir = Some(folder.clone());
            },
        ];
        // While it runs, after it was closed with rows in the WAL, and after a crash of the next.
        for round in 0..3 {
            for change in changes {
                refused(&root, change, &["mode", "wal"]).await;
            }
            match round {
                0 => {
                    // Refusing has fenced nobody.
                    write(&table, 2, WriteOptions::default()).await.unwrap();
                    engine.close().await.unwrap();
                }
                _ => drop(root.take_over().await),
            }
        }
        // With everything flushed it is clean, and free to change.
        let engine = root.take_over().await;
        let table = engine.table("readings").unwrap();
        assert_eq!(rows(&table).await, 2, "{mode:?}");
        table.flush().await.unwrap();
        engine.close().await.unwrap();
        let engine = root.open_with(changes[0]).await.unwrap();
        let table = engine.table("readings").unwrap();
        assert_eq!(rows(&table).await, 2);
        write(&table, 3, WriteOptions::default()).await.unwrap();
        engine.close().await.unwrap();
        // The WAL before is now the wrong one.
        refused(&root, &|config| config.wal.mode = mode, &["mode"]).await;
        // Unless what is in the other is given up.
        let builder = Engine::builder(root.config.clone()).store(root.store.clone());
        let engine = builder.abandon_wal().open().await.unwrap();
        let table = engine.table("readings").unwrap();
        assert_eq!(rows(&table).await, 2);
        engine.close().await.unwrap();
        // What was given up does not come back when its WAL is used again.
        let engine = root.open_with(changes[0]).await.unwrap();
        assert_eq!(rows(&engine.table("readings").unwrap()).await, 2);
        engine.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_wal_there_is_nothing_to_be_left_behind() {
    let root = Root::new(WalMode::None);
    let engine = root.open().await;
    let table = create(&engine, "readings").await;
    write(&table, 1, WriteOptions::default()).await.unwrap();
    table.flush().await.unwrap();
    for mode in [WalMode::ObjectStore, WalMode::None] {
        drop(
            root.open_with(|config| config.wal.mode = mode)
                .await
                .unwrap(),
        );
        if mode == WalMode::ObjectStore {
            let error = root.open_with(|_| {}).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
            let same = root.open_with(|config| config.wal.mode = mode).await;
            same.unwrap().close().await.unwrap();
        }
    }
}

/// The machine that had the WAL is lost, its rows are given up, and it comes back.
#[tokio::test(flavor = "multi_thread")]
async fn rows_that_were_given_up_stay_given_up() {
    for mode in [WalMode::Local, WalMode::ObjectStore] {
        let root = Root::new(mode);
        let engine = root.open().await;
        let table = create(&engine, "readings").await;
        for row in 1..5 {
            write(&table, row, WriteOptions::default()).await.unwrap();
        }
        engine.close().await.unwrap();
        let mut config = root.config.clone();
        config.wal.mode = WalMode::None;
        let builder = Engine::builder(config).store(root.store.clone());
        let engine = builder.abandon_wal().open().await.unwrap();
        let table = engine.table("readings").unwrap();
        write(&table, 9, WriteOptions::default()).await.unwrap();
        engine.close().await.unwrap();
        for _ in 0..2 {
            let engine = root.open().await;
            let table = engine.table("readings").unwrap();
            assert_eq!(rows(&table).await, 1, "{mode:?}");
            engine.close().await.unwrap();
        }
        // What is written from now on is kept.
        let engine = root.open().await;
        write(
            &engine.table("readings").unwrap(),
            10,
            WriteOptions::default(),
        )
        .await
        .unwrap();
        engine.close().await.unwrap();
        let engine = root.open().await;
        assert_eq!(
            rows(&engine.table("readings").unwrap()).await,
            2,
            "{mode:?}"
        );
        engine.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_local_wal_of_another_root_is_refused_and_left_alone() {
    let root = Root::new(WalMode::Local);
    let engine = root.open().await;
    let table = create(&engine, "readings").await;
    write(&table, 1, WriteOptions::default()).await.unwrap();
    engine.close().await.unwrap();
    for other in [Store::open("memory:///").unwrap(), {
        let other = Root::new(WalMode::None);
        other.open().await.close().await.unwrap();
        other.store
    }] {
        let builder = Engine::builder(root.config.clone()).store(other);
        let error = builder.open().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(
            error.to_string().contains("belongs to another root"),
            "{error}"
        );
    }
    let engine = root.open().await;
    assert_eq!(rows(&engine.table("readings").unwrap()).await, 1);
    engine.close().await.unwrap();
}
