//! `siltstone inspect` and `siltstone stats` on good roots, live ones, damaged ones, and files of others:
//! they tell what they find, change nothing, and never give up early.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::Value;
use siltstone::{
    config::WalMode,
    engine::{Engine, Table},
};
use tempfile::{TempDir, tempdir};

use crate::support::{quiet_config, readings, small_engine, sst_files, url_of};

/// A root with a table of two windows, two flushes and a compaction, and a batch that is in the WAL only.
async fn small_root() -> (TempDir, Engine, Table) {
    let dir = tempdir().unwrap();
    let (engine, table) = small_engine(quiet_config(&url_of(dir.path()))).await;
    for round in 0..2 {
        let rows: Vec<_> = (0..50)
            .map(|id| (100 + 900 * i64::from(id % 2), Some(id), Some(round)))
            .collect();
        table.write(readings(&rows)).await.unwrap();
        table.flush().await.unwrap();
    }
    table.compact().await.unwrap();
    table.write(readings(&[(1, Some(1), None)])).await.unwrap();
    (dir, engine, table)
}

/// Runs the operator's tool.
pub fn siltstone(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_siltstone"));
    let output = command.args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains("panicked"), "{arguments:?}: {said}");
    output
}

/// What the command printed as JSON, and whether it found nothing wrong.
#[track_caller]
pub fn json(arguments: &[&str]) -> (Value, bool) {
    let output = siltstone(&[arguments, &["--json"]].concat());
    let code = output.status.code();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        matches!(code, Some(0 | 1)),
        "{arguments:?}: {code:?} {said}"
    );
    let value = serde_json::from_slice(&output.stdout);
    let value = value.unwrap_or_else(|error| panic!("{arguments:?}: {error}: {said}"));
    (value, code == Some(0))
}

pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// All files under `dir`, with their contents.
pub fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(contents(&path));
        } else {
            found.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
    found
}

fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let is_meant = |path: &PathBuf| path.extension().is_some_and(|found| found == extension);
    let found = contents(dir).into_keys();
    found.filter(is_meant).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_root_is_described_and_left_as_it_is() {
    let (dir, engine, table) = small_root().await;
    let root = text(dir.path());
    let before = contents(dir.path());

    let (catalog, good) = json(&["inspect", "catalog", root]);
    assert!(good, "{catalog:#}");
    let id = table.stats().id.to_string();
    assert_eq!(catalog["tables"]["readings"], id.as_str());
    let (manifest, good) = json(&["inspect", "manifest", root, "readings"]);
    assert!(good, "{manifest:#}");
    let stats = table.stats();
    let version = &manifest["version"];
    assert_eq!(version["ssts"].as_array().unwrap().len() as u64, stats.ssts);
    assert_eq!(version["flushed_seq"], stats.flushed_seq.0);
    assert_eq!(
        version["shape"],
        serde_json::to_value(&stats.shape).unwrap()
    );
    let by_id = json(&["inspect", "manifest", root, &id]);
    assert_eq!(by_id, (manifest, true));
    let (listed, good) = json(&["stats", root]);
    assert!(good, "{listed:#}");
    let listed = &listed["tables"]["readings"];
    assert_eq!(listed["version"]["read_runs_max"], stats.read_runs_max);
    assert_eq!(
        listed["objects"].as_u64().unwrap(),
        stats.ssts + stats.obsolete_ssts
    );
    for file in sst_files(dir.path(), &table) {
        let (sst, good) = json(&["inspect", "sst", text(&file), "--verify"]);
        assert!(good, "{sst:#}");
        assert_eq!(sst["rows"], sst["rows_decoded"]);
        assert_eq!(sst["key_values"]["siltstone.table"], id.as_str());
        let chunk = &sst["row_groups"][0]["chunks"][0];
        assert!(!chunk["pages"].as_array().unwrap().is_empty(), "{sst:#}");
    }
    let wal = dir.path().join("wal/siltstone/local");
    let (segments, good) = json(&["inspect", "wal", text(&wal)]);
    assert!(good, "{segments:#}");
    let records = segments[0][1]["records"].as_array().unwrap().clone();
    assert_eq!(records.last().unwrap()["rows"], 1);
    assert_eq!(records.last().unwrap()["table"], id.as_str());
    assert!(contents(dir.path()) == before, "something was changed");

    // For people, too.
    let url = url_of(dir.path());
    for (arguments, wanted) in [
        (&["inspect", "catalog", &url, "--log"][..], "readings"),
        (
            &["inspect", "manifest", &url, "readings", "--log"],
            "+2 ssts of",
        ),
        (&["inspect", "manifest", &url, "readings"], "level"),
        (&["inspect", "wal", text(&wal)], "put"),
        (&["stats", &url], "runs max"),
        (&["stats", &url, "--table", "readings"], "window"),
    ] {
        let output = siltstone(arguments);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{arguments:?}: {said}");
        assert!(said.contains(wanted), "{arguments:?}: {said}");
    }
    // It was not fenced.
    table.write(readings(&[(2, Some(2), None)])).await.unwrap();
    table.flush().await.unwrap();
    engine.close().await.unwrap();
}

#[test]
fn what_is_not_there_is_not_created() {
    let dir = tempdir().unwrap();
    let missing = dir.path().join("missing");
    let root = text(&missing);
    for arguments in [
        &["inspect", "catalog", root][..],
        &["inspect", "manifest", root, "readings"],
        &["inspect", "wal", root],
        &["inspect", "sst", root],
        &["stats", root],
        &["stats", text(dir.path())],
        &["inspect", "catalog", &url_of(&missing)],
    ] {
        let output = siltstone(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("not found"), "{arguments:?}: {said}");
    }
    assert!(contents(dir.path()).is_empty());
    let odd = siltstone(&["stats", "ftp://host/root"]);
    assert_eq!(odd.status.code(), Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_ssts_are_described() {
    let (dir, engine, table) = small_root().await;
    let file = sst_files(dir.path(), &table).remove(0);
    engine.close().await.unwrap();
    let good = fs::read(&file).unwrap();
    let copy = dir.path().join("copy.parquet");
    let inspect = |bytes: &[u8]| {
        fs::write(&copy, bytes).unwrap();
        json(&["inspect", "sst", text(&copy), "--verify"])
    };
    for length in [0, 1, 8, good.len() / 2, good.len() - 9, good.len() - 1] {
        let (report, is_good) = inspect(&good[..length]);
        assert!(!is_good, "cut at {length}: {report:#}");
        assert_eq!(report["bytes"], length);
    }
    let mut read_on = 0;
    for at in (0..good.len()).step_by(good.len() / 40) {
        let mut bytes = good.clone();
        bytes[at] ^= 1 << (at % 8);
        let (report, is_good) = inspect(&bytes);
        assert_eq!(is_good, report["faults"].as_array().unwrap().is_empty());
        read_on += usize::from(!is_good && report["chunks_verified"].as_u64() > Some(0));
    }
    assert!(read_on > 5, "{read_on}");
}

#[test]
fn files_of_others_and_broken_ones_are_described() {
    let bad = Path::new(env!("CARGO_MANIFEST_DIR")).join("integration_tests/testdata/bad");
    let broken = files(&bad, "parquet");
    assert!(broken.len() >= 8, "{broken:?}");
    for file in broken {
        let (report, good) = json(&["inspect", "sst", text(&file), "--verify"]);
        assert!(!good, "{}: {report:#}", file.display());
    }
    let flights = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/data/flights.parquet");
    let (report, good) = json(&["inspect", "sst", text(&flights), "--verify"]);
    // Not an SST; but every row of it can be read.
    assert!(!good);
    assert_eq!(report["rows_decoded"], 336_776, "{report:#}");
    assert!(
        report["faults"].to_string().contains("not an sst"),
        "{report:#}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_logs_are_described() {
    let (dir, engine, table) = small_root().await;
    let manifest = format!("tables/{}/manifest", table.stats().id);
    let (id, root) = (table.stats().id.to_string(), text(dir.path()).to_owned());
    engine.close().await.unwrap();
    let records = files(&dir.path().join(manifest), "log");
    assert!(records.len() >= 5, "{records:?}");
    // The last, and one in the middle.
    let last = records.last().unwrap();
    let good = fs::read(last).unwrap();
    for bytes in [
        &good[..good.len() - 1],
        &good[..10],
        &[],
        &[good.clone(), vec![0]].concat(),
    ] {
        fs::write(last, bytes).unwrap();
        let (report, is_good) = json(&["inspect", "manifest", &root, &id]);
        assert!(!is_good, "{report:#}");
        let log = report["log"].as_array().unwrap();
        assert_eq!(log.last().unwrap()["kind"], "damaged");
        assert!(report["version"].is_object(), "{report:#}");
    }
    fs::write(last, &good).unwrap();
    let middle = &records[records.len() - 2];
    let kept = fs::read(middle).unwrap();
    fs::remove_file(middle).unwrap();
    let (report, is_good) = json(&["inspect", "manifest", &root, &id]);
    assert!(
        !is_good && report["faults"].to_string().contains("missing"),
        "{report:#}"
    );
    // The engine's stats tell of it, and of the other tables.
    let (stats, is_good) = json(&["stats", &root]);
    assert!(
        !is_good && stats["tables"]["readings"].is_object(),
        "{stats:#}"
    );
    fs::write(middle, kept).unwrap();
    assert!(json(&["inspect", "manifest", &root, &id]).1);

    let catalog = files(&dir.path().join("catalog"), "log");
    let mut bytes = fs::read(&catalog[0]).unwrap();
    bytes[20] ^= 1;
    fs::write(&catalog[0], bytes).unwrap();
    let (report, is_good) = json(&["inspect", "catalog", &root]);
    assert!(!is_good, "{report:#}");
    assert_eq!(report["tables"]["readings"], id.as_str());
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_segments_are_described() {
    let (dir, engine, _) = small_root().await;
    engine.close().await.unwrap();
    let segment = files(&dir.path().join("wal"), "wal").pop().unwrap();
    let good = fs::read(&segment).unwrap();
    let inspect = |bytes: &[u8]| {
        fs::write(&segment, bytes).unwrap();
        let (report, is_good) = json(&["inspect", "wal", text(&segment)]);
        (report[0][1].clone(), is_good)
    };
    let (report, is_good) = inspect(&good);
    assert!(is_good && report["ended"] == true, "{report:#}");
    let records = report["records"].as_array().unwrap().len();
    let first = report["records"][0]["offset"].as_u64().unwrap() as usize;
    let mut bytes = good.clone();
    bytes[first + 60] ^= 8;
    let (report, is_good) = inspect(&bytes);
    assert!(!is_good, "{report:#}");
    assert_eq!(report["records"].as_array().unwrap().len(), records - 1);
    let fault = format!("offset {first}: ");
    assert!(report["faults"][0].as_str().unwrap().starts_with(&fault));
    for length in [0, 7, 24, good.len() / 2] {
        let (report, _) = inspect(&good[..length]);
        assert_eq!(report["bytes"], length);
        assert_eq!(report["ended"], false);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_wal_on_the_object_store_is_described() {
    let dir = tempdir().unwrap();
    let mut config = quiet_config(&url_of(dir.path()));
    config.wal.mode = WalMode::ObjectStore;
    let (engine, table) = small_engine(config).await;
    for id in 0..3 {
        table.write(readings(&[(1, Some(id), None)])).await.unwrap();
    }
    let segments = dir.path().join("wal/siltstone");
    let (reports, good) = json(&["inspect", "wal", text(&segments)]);
    assert!(good, "{reports:#}");
    let reports = reports.as_array().unwrap();
    let records = reports
        .iter()
        .flat_map(|report| report[1]["records"].as_array().unwrap());
    let rows: u64 = records.map(|record| record["rows"].as_u64().unwrap()).sum();
    assert_eq!(rows, 3, "{reports:#?}");
    assert!(
        reports.iter().all(|report| report[1]["epoch"] == 1),
        "{reports:#?}"
    );
    let (catalog, _) = json(&["inspect", "catalog", text(dir.path())]);
    let wal = catalog["wal"].as_str().unwrap();
    assert!(wal.contains("object_store"), "{wal}");
    engine.close().await.unwrap();

    let last = files(&segments, "wal").pop().unwrap();
    let bytes = fs::read(&last).unwrap();
    fs::write(&last, &bytes[..bytes.len() - 3]).unwrap();
    let (reports, good) = json(&["inspect", "wal", text(&segments)]);
    assert!(!good, "{reports:#}");
}

#[tokio::test]
async fn checkpoints_are_listed_from_outside() {
    let (dir, engine, table) = small_root().await;
    let root = text(dir.path());
    let minute = Some(std::time::Duration::from_secs(60));
    table.create_checkpoint("monday", minute).await.unwrap();
    engine.clone_table("readings", "copy").await.unwrap();
    let reader = Engine::open_reader(engine.config().clone()).await.unwrap();
    let at = reader.table("readings").await.unwrap();
    let (list, is_good) = json(&["checkpoints", root, "--table", "readings"]);
    let mut kinds: Vec<_> = list
        .as_array()
        .unwrap()
        .iter()
        .map(|one| {
            assert_eq!(one["has_ended"], false);
            one["checkpoint"]["kind"].as_str().unwrap().to_owned()
        })
        .collect();
    kinds.sort();
    assert!(is_good);
    assert_eq!(kinds, ["clone", "named", "reader"]);
    let printed = siltstone(&["checkpoints", root, "--table", "readings"]);
    let printed = String::from_utf8_lossy(&printed.stdout).into_owned();
    assert!(
        printed.contains("monday") && printed.contains("never"),
        "{printed}"
    );
    drop(at);
    reader.close().await.unwrap();
    // Damage is told, and the rest all the same.
    let folder = dir.path().join("tables").join(table.stats().id.to_string());
    let object = fs::read_dir(folder.join("checkpoints")).unwrap().next();
    fs::write(object.unwrap().unwrap().path(), "damaged").unwrap();
    let (list, is_good) = json(&["checkpoints", root, "--table", "readings"]);
    assert!(!is_good);
    assert_eq!(list.as_array().unwrap().len(), 2);
    engine.close().await.unwrap();
}
