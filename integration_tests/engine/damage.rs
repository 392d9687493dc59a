//! Damaged objects: whatever reads one names it, and nothing else is lost; damage to one table does not concern the
//! others.

use std::path::{Path, PathBuf};

use siltstone::{
    config::EngineConfig,
    engine::{Engine, ScanRequest, Table},
    error::ErrorKind,
    types::TableOptions,
};
use tempfile::tempdir;

use crate::{
    bad_input::assert_error,
    support::{
        assert_same, quiet_config, readings, readings_schema, scan, small_engine, try_scan, url_of,
    },
};

/// Ways to damage an object.
#[derive(Clone, Copy, Debug)]
enum Damage {
    Emptied,
    Truncated,
    Flipped,
    Gone,
}

fn damage(file: &Path, damage: Damage) {
    let mut bytes = std::fs::read(file).unwrap();
    match damage {
        Damage::Emptied => bytes.clear(),
        Damage::Truncated => bytes.truncate(bytes.len() * 2 / 3),
        Damage::Flipped => {
            // Inside the first column's pages, and inside a log record's body.
            let at = 44;
            bytes[at] ^= 0x10;
        }
        Damage::Gone => return std::fs::remove_file(file).unwrap(),
    }
    std::fs::write(file, bytes).unwrap();
}

/// A root with the tables `good` and `bad`, each with one flushed SST; closed.
async fn two_tables(dir: &Path) -> (EngineConfig, PathBuf) {
    let config = quiet_config(&url_of(dir));
    let engine = Engine::open(config.clone()).await.unwrap();
    let mut folder = PathBuf::new();
    for name in ["good", "bad"] {
        let table = engine
            .create_table(name, readings_schema(TableOptions::default()))
            .await
            .unwrap();
        let rows: Vec<_> = (0..5_000)
            .map(|at| (at, Some(at as i32 % 7), Some(at * at)))
            .collect();
        table.write(readings(&rows)).await.unwrap();
        table.flush().await.unwrap();
        folder = dir.join("tables").join(table.stats().id.to_string());
    }
    engine.close().await.unwrap();
    (config, folder)
}

async fn assert_works(engine: &Engine, name: &str) {
    let table = engine.table(name).unwrap();
    assert_eq!(scan(&table, ScanRequest::all()).await.num_rows(), 5_000);
    table.write(readings(&[(-1, None, None)])).await.unwrap();
    table.flush().await.unwrap();
    table.compact().await.unwrap();
    assert_eq!(scan(&table, ScanRequest::all()).await.num_rows(), 5_001);
}

fn file_name(file: &Path) -> String {
    file.file_name().unwrap().to_string_lossy().into_owned()
}

/// Whatever reads the damaged SST names it; the table takes writes, and the other table does not notice.
async fn check_damaged_sst(config: EngineConfig, sst: &Path, kinds: &[ErrorKind]) {
    let name = file_name(sst);
    let engine = Engine::open(config).await.unwrap();
    let table: Table = engine.table("bad").unwrap();
    let error = try_scan(&table, ScanRequest::all()).await.unwrap_err();
    assert!(kinds.contains(&error.kind()), "{error}");
    assert!(
        error.to_string().contains(&name),
        "{name} is missing from: {error}"
    );
    table.write(readings(&[(9, None, None)])).await.unwrap();
    table.flush().await.unwrap();
    let error = table.compact().await.unwrap_err();
    assert!(kinds.contains(&error.kind()), "{error}");
    assert!(
        error.to_string().contains(&name),
        "{name} is missing from: {error}"
    );
    let ssts = table.stats().ssts;
    assert_eq!(ssts, 2, "the damaged SST is still listed");
    assert_works(&engine, "good").await;
    engine.close().await.unwrap();
}

#[tokio::test]
async fn a_damaged_sst_is_named_and_nothing_else_is_lost() {
    for way in [
        Damage::Emptied,
        Damage::Truncated,
        Damage::Flipped,
        Damage::Gone,
    ] {
        let dir = tempdir().unwrap();
        let (config, folder) = two_tables(dir.path()).await;
        let sst = the_one_object(&folder.join("sst"));
        damage(&sst, way);
        let kinds = match way {
            Damage::Gone => &[ErrorKind::NotFound, ErrorKind::Corrupt][..],
            _ => &[ErrorKind::Corrupt][..],
        };
        println!("{way:?}");
        check_damaged_sst(config, &sst, kinds).await;
    }
}

/// Wherever a bit flips, a scan says so or does not depend on it; it never gives other rows.
#[tokio::test]
async fn no_flipped_bit_changes_what_a_scan_gives() {
    let dir = tempdir().unwrap();
    let (config, folder) = two_tables(dir.path()).await;
    let sst = the_one_object(&folder.join("sst"));
    let whole = std::fs::read(&sst).unwrap();
    let rows: Vec<_> = (0..5_000)
        .map(|at| (at, Some(at as i32 % 7), Some(at * at)))
        .collect();
    let mut noticed = 0;
    let positions = (0..whole.len()).step_by(whole.len() / 60);
    for at in positions.clone() {
        let mut bytes = whole.clone();
        bytes[at] ^= 1 << (at % 8);
        std::fs::write(&sst, bytes).unwrap();
        let engine = Engine::open(config.clone()).await.unwrap();
        match try_scan(&engine.table("bad").unwrap(), ScanRequest::all()).await {
            Ok(scanned) => assert_same(&readings(&rows), &scanned),
            Err(error) => {
                assert_error(&error, ErrorKind::Corrupt, &[&file_name(&sst)]);
                noticed += 1;
            }
        }
        engine.close().await.unwrap();
    }
    // A scan reads neither the filter over keys nor, without bounds, the indexes.
    assert!(
        noticed * 5 > positions.count(),
        "{noticed} flips noticed only"
    );
}

#[tokio::test]
async fn damaged_parquet_of_all_kinds_is_refused_without_a_panic() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("integration_tests/testdata/bad");
    let files = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut seen = 0;
    for file in files.filter(|file| file.extension().is_some_and(|e| e == "parquet")) {
        let dir = tempdir().unwrap();
        let (config, folder) = two_tables(dir.path()).await;
        let sst = the_one_object(&folder.join("sst"));
        std::fs::copy(&file, &sst).unwrap();
        println!("{}", file.display());
        check_damaged_sst(config, &sst, &[ErrorKind::Corrupt]).await;
        seen += 1;
    }
    assert_eq!(seen, 8);
}

#[tokio::test]
async fn a_damaged_manifest_costs_its_table_only() {
    for way in [Damage::Emptied, Damage::Truncated, Damage::Flipped] {
        let dir = tempdir().unwrap();
        let (config, folder) = two_tables(dir.path()).await;
        let record = last_object(&folder.join("manifest"));
        damage(&record, way);
        let engine = Engine::open(config).await.unwrap();
        let error = engine.table("bad").unwrap_err();
        assert_error(&error, ErrorKind::Corrupt, &[&file_name(&record)]);
        assert_eq!(engine.tables(), ["bad", "good"], "it is still listed");
        assert_works(&engine, "good").await;
        engine.close().await.unwrap();
    }
}

#[tokio::test]
async fn a_manifest_or_catalog_from_a_newer_version_is_refused_by_name() {
    let dir = tempdir().unwrap();
    let (config, folder) = two_tables(dir.path()).await;
    let record = last_object(&folder.join("manifest"));
    make_newer(&record);
    let engine = Engine::open(config.clone()).await.unwrap();
    let error = engine.table("bad").unwrap_err();
    assert_error(
        &error,
        ErrorKind::Corrupt,
        &[&file_name(&record), "version 77"],
    );
    engine.close().await.unwrap();
    let record = last_object(&dir.path().join("catalog"));
    make_newer(&record);
    let error = Engine::open(config).await.unwrap_err();
    assert_error(
        &error,
        ErrorKind::Corrupt,
        &[&file_name(&record), "version 77"],
    );
}

/// Gives a log record the format version 77.
fn make_newer(record: &Path) {
    let mut bytes = std::fs::read(record).unwrap();
    bytes[8..10].copy_from_slice(&77_u16.to_le_bytes());
    std::fs::write(record, bytes).unwrap();
}

#[tokio::test]
async fn a_damaged_catalog_stops_the_opening_and_is_named() {
    let dir = tempdir().unwrap();
    let (config, _) = two_tables(dir.path()).await;
    let record = last_object(&dir.path().join("catalog"));
    damage(&record, Damage::Truncated);
    let error = Engine::open(config).await.unwrap_err();
    assert_error(&error, ErrorKind::Corrupt, &[&file_name(&record)]);
}

#[tokio::test]
async fn a_torn_wal_ends_replay_and_damage_before_the_end_is_named() {
    let dir = tempdir().unwrap();
    let config = quiet_config(&url_of(dir.path()));
    let (engine, table) = small_engine(config.clone()).await;
    for round in 0..10 {
        table
            .write(readings(&[(round, None, Some(round))]))
            .await
            .unwrap();
    }
    engine.close().await.unwrap();
    let wal = dir.path().join("wal/siltstone/local");
    let segment = biggest_object(&wal);
    let whole = std::fs::read(&segment).unwrap();
    // As a crash leaves it: without the mark of 24 bytes that closing set at the end, and with the last
    // record torn.
    std::fs::write(&segment, &whole[..whole.len() - 24 - 9]).unwrap();
    let engine = Engine::open(config.clone()).await.unwrap();
    let table = engine.table("readings").unwrap();
    assert_eq!(scan(&table, ScanRequest::all()).await.num_rows(), 9);
    engine.close().await.unwrap();

    let segment = biggest_object(&wal);
    let mut bytes = std::fs::read(&segment).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&segment, bytes).unwrap();
    let error = Engine::open(config).await.unwrap_err();
    assert_error(
        &error,
        ErrorKind::Corrupt,
        &[&file_name(&segment), "offset"],
    );
}

fn objects(folder: &Path) -> Vec<PathBuf> {
    let entries =
        std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn the_one_object(folder: &Path) -> PathBuf {
    let files = objects(folder);
    assert_eq!(files.len(), 1, "{files:?}");
    files[0].clone()
}

fn last_object(folder: &Path) -> PathBuf {
    objects(folder).pop().expect("an object")
}

fn biggest_object(folder: &Path) -> PathBuf {
    let size = |file: &PathBuf| std::fs::metadata(file).unwrap().len();
    objects(folder)
        .into_iter()
        .max_by_key(size)
        .expect("an object")
}
