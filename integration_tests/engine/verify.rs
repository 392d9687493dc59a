//! Verifying a root: what is whole is called whole, and what is damaged is named, with the rows that it concerns.

use std::path::{Path, PathBuf};

use siltstone::{
    config::CompactionMode,
    engine::{Engine, Table},
    error::ErrorKind,
    store::Store,
    types::TableOptions,
    verify::{Fault, Progress, Report, verify},
};
use tempfile::{TempDir, tempdir};

use crate::support::{
    Reading, quiet_config, reading_keys, readings, readings_schema, sst_files, url_of,
};

async fn checked(dir: &Path) -> Report {
    let store = Store::open(&url_of(dir)).unwrap();
    verify(&store, &[], |_| {}).await.unwrap()
}

/// What is wrong with the one table.
async fn faults(dir: &Path) -> Vec<Fault> {
    let report = checked(dir).await;
    assert!(report.faults.is_empty(), "{:?}", report.faults);
    report.tables["readings"].faults.clone()
}

/// A table with one SST of `rows` rows, closed; and the SST's file.
async fn root(rows: i64) -> (TempDir, PathBuf) {
    let dir = tempdir().unwrap();
    let engine = Engine::open(quiet_config(&url_of(dir.path())))
        .await
        .unwrap();
    let table = write(&engine, "readings", rows).await;
    let mut files = sst_files(dir.path(), &table);
    engine.close().await.unwrap();
    (dir, files.swap_remove(0))
}

async fn write(engine: &Engine, name: &str, rows: i64) -> Table {
    let schema = readings_schema(TableOptions::default());
    let table = engine.create_table(name, schema).await.unwrap();
    let rows: Vec<Reading> = (0..rows)
        .map(|n| {
            (
                n,
                Some(7),
                Some((n * n).wrapping_mul(0x1E37_79B9_7F4A_7C15) ^ n.rotate_left(17)),
            )
        })
        .collect();
    table.write(readings(&rows)).await.unwrap();
    table.flush().await.unwrap();
    table
}

#[tokio::test]
async fn a_whole_root_is_called_whole() {
    let dir = tempdir().unwrap();
    let mut config = quiet_config(&url_of(dir.path()));
    config.compaction.mode = CompactionMode::Off;
    let engine = Engine::open(config).await.unwrap();
    let table = write(&engine, "readings", 500).await;
    table.delete(reading_keys(&[(3, Some(7))])).await.unwrap();
    table.flush().await.unwrap();
    write(&engine, "others", 20).await;
    table.create_checkpoint("before", None).await.unwrap();
    table.compact().await.unwrap();
    // While the engine is at work.
    let report = checked(dir.path()).await;
    assert!(report.is_clean(), "{report:?}");
    let readings = &report.tables["readings"];
    // What the checkpoint holds, too.
    assert_eq!((readings.ssts, readings.rows), (3, 500 + 1 + 499));
    let store = Store::open(&url_of(dir.path())).unwrap();
    let steps = std::sync::Mutex::new(Vec::new());
    let only = verify(&store, &["others".to_owned()], |step| {
        steps.lock().unwrap().push(step)
    })
    .await;
    assert_eq!(only.unwrap().tables.keys().collect::<Vec<_>>(), ["others"]);
    let steps = steps.into_inner().unwrap();
    let [Progress::Bytes(all), Progress::Read(read)] = steps[..] else {
        panic!("{steps:?}");
    };
    assert_eq!(all, read);
    let unknown = verify(&store, &["nothing".to_owned()], |_| {})
        .await
        .unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::NotFound);
    engine.close().await.unwrap();
}

/// What is wrong when the byte at `at` is another one.
async fn flipped(dir: &TempDir, file: &Path, whole: &[u8], at: usize) -> Vec<Fault> {
    let mut bytes = whole.to_vec();
    bytes[at] ^= 0x40;
    std::fs::write(file, &bytes).unwrap();
    let found = faults(dir.path()).await;
    let name = file.file_name().unwrap().to_str().unwrap();
    assert!(!found.is_empty(), "byte {at}");
    assert!(
        found.iter().all(|fault| fault.object.ends_with(name)),
        "{found:?}"
    );
    found
}

#[tokio::test]
async fn a_flipped_byte_is_found_with_the_rows_that_it_concerns() {
    let (dir, file) = root(300_000).await;
    assert!(faults(dir.path()).await.is_empty());
    let whole = std::fs::read(&file).unwrap();
    // In the second of three row groups, in the last one, in the footer.
    // Ten bits a key.
    let filter = whole.len() - 200_000;
    let rows = filter - 200_000;
    let places = [
        (rows / 2, Some(1)),
        (rows * 9 / 10, Some(2)),
        (whole.len() - 200, None),
    ];
    for (at, groups) in places {
        let found = flipped(&dir, &file, &whole, at).await;
        let rows = found[0].rows.clone().unwrap();
        assert_eq!(rows.row_group, groups, "{found:?}");
        match groups {
            None => assert_eq!(rows.count, 300_000),
            Some(_) => assert!(
                rows.count < 150_000 && rows.key_min[0].starts_with("1970-01-01T00:0"),
                "{rows:?}"
            ),
        }
    }
    // Rows are not concerned; gets are.
    let found = flipped(&dir, &file, &whole, filter).await;
    assert!(
        found[0].what.contains("filter") && found[0].rows.is_none(),
        "{found:?}"
    );
    std::fs::write(&file, &whole).unwrap();
    assert!(faults(dir.path()).await.is_empty());
}

#[tokio::test]
async fn what_is_cut_short_missing_or_another_is_found() {
    let dir = tempdir().unwrap();
    let engine = Engine::open(quiet_config(&url_of(dir.path())))
        .await
        .unwrap();
    let first = write(&engine, "readings", 100).await;
    let second = write(&engine, "others", 50).await;
    engine.close().await.unwrap();
    let [file, other] = [&first, &second].map(|table| sst_files(dir.path(), table).swap_remove(0));
    let (whole, foreign) = (
        std::fs::read(&file).unwrap(),
        std::fs::read(&other).unwrap(),
    );

    std::fs::write(&file, &whole[..whole.len() - 1]).unwrap();
    let found = faults(dir.path()).await;
    assert!(found[0].what.contains("bytes"), "{found:?}");
    std::fs::write(&file, &foreign).unwrap();
    let found = faults(dir.path()).await;
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].rows.as_ref().unwrap().count, 100);
    std::fs::remove_file(&file).unwrap();
    let found = faults(dir.path()).await;
    assert_eq!(found.len(), 1, "{found:?}");
    let rows = found[0].rows.clone().unwrap();
    assert_eq!(rows.key_min, ["1970-01-01T00:00:00", "7"]);
    assert_eq!(rows.times, Some((0, 99)));
    std::fs::write(&file, &whole).unwrap();
    assert!(checked(dir.path()).await.is_clean());

    // A manifest that says something else; the catalog stays whole.
    let manifest = dir
        .path()
        .join("tables")
        .join(first.stats().id.to_string())
        .join("manifest");
    let mut records: Vec<PathBuf> = std::fs::read_dir(manifest)
        .unwrap()
        .map(|record| record.unwrap().path())
        .collect();
    records.sort();
    let record = records.last().unwrap();
    let mut bytes = std::fs::read(record).unwrap();
    let at = bytes.len() - 3;
    bytes[at] ^= 1;
    std::fs::write(record, bytes).unwrap();
    let report = checked(dir.path()).await;
    assert!(!report.tables["readings"].faults.is_empty(), "{report:?}");
    assert!(report.tables["others"].faults.is_empty(), "{report:?}");
}
