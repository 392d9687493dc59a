//! What processes leave behind when they are killed is found and deleted, by the next engine or by `siltstone gc`,
//! and nothing else is.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use futures::stream;
use serde_json::Value;
use siltstone::{
    config::Millis,
    engine::{Engine, ImportOptions, ScanRequest, Table},
    manifest::inspect,
    store::layout,
    types::{JobId, SstId, TaskId},
};
use tempfile::tempdir;

use crate::{
    crashes::check_acknowledged,
    engine_process::{EngineProcess, Load},
    inspect::{contents, json, siltstone, text},
    support::{
        assert_same, eventually, flights, quiet_config, readings, scan, small_engine, sst_files,
        url_of,
    },
};

const FLIGHTS: usize = 60_000;

/// Names of the table's SSTs that are there.
pub fn ssts_there(root: &Path, table: &Table) -> BTreeSet<String> {
    let names = sst_files(root, table).into_iter();
    names
        .map(|file| file.file_stem().unwrap().to_string_lossy().into_owned())
        .collect()
}

/// Sweeps, and checks that exactly the SSTs are left that the manifest names, and no result.
pub async fn check_nothing_is_left_behind(engine: &Engine, table: &Table, root: &Path) {
    engine.wait_compacted().await.unwrap();
    engine.collect_garbage().await.unwrap();
    let id = table.stats().id;
    let version = inspect::version(engine.store(), id).await.unwrap();
    let version = version.version.unwrap();
    let live = version.ssts().map(|sst| sst.id);
    let named = live.chain(version.obsolete.keys().copied());
    let named: BTreeSet<String> = named.map(|sst| sst.to_string()).collect();
    assert_eq!(ssts_there(root, table), named);
    let results = format!("{}/results", layout::table(id));
    assert_eq!(engine.store().list(&results).await.unwrap(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_killed_between_upload_and_commit_leaves_nothing_for_long() {
    let dir = tempdir().unwrap();
    let mut process = EngineProcess::start(Load::CommitsNothing, dir.path(), None, FLIGHTS);
    process.acknowledges(1).await;
    let parquet = || {
        let files = contents(dir.path()).into_keys();
        let is_sst =
            |file: &std::path::PathBuf| file.extension().is_some_and(|end| end == "parquet");
        files.filter(is_sst).count()
    };
    eventually("ssts are uploaded", async || parquet() > 0).await;
    let acknowledged = process.kill().await;
    let uploaded = parquet();

    let mut config = Load::CommitsNothing.config(dir.path(), None);
    config.gc.grace = Millis(0);
    let engine = Engine::open(config).await.unwrap();
    let table = engine.table("flights").unwrap();
    check_acknowledged(&table, FLIGHTS, acknowledged).await;
    check_nothing_is_left_behind(&engine, &table, dir.path()).await;
    let deleted = engine.stats().gc.deleted;
    assert!(deleted["uncommitted"] >= uploaded as u64, "{deleted:?}");
    check_acknowledged(&table, FLIGHTS, acknowledged).await;
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_killed_while_it_imports_has_imported_nothing_and_leaves_nothing_for_long() {
    let dir = tempdir().unwrap();
    let mut process = EngineProcess::start(Load::Import, dir.path(), None, FLIGHTS);
    process.acknowledges(100).await;
    process.kill().await;
    let mut config = Load::Import.config(dir.path(), None);
    config.gc.grace = Millis(0);
    let engine = Engine::open(config).await.unwrap();
    let table = engine.table("flights").unwrap();
    assert!(!ssts_there(dir.path(), &table).is_empty(), "it spills");
    assert_eq!(scan(&table, ScanRequest::all()).await.num_rows(), 0);
    check_nothing_is_left_behind(&engine, &table, dir.path()).await;
    assert!(ssts_there(dir.path(), &table).is_empty());

    // Again, to the end.
    let batches = flights(FLIGHTS).replay(5_000).unwrap();
    let imported = table.import(stream::iter(batches), ImportOptions::default());
    assert_eq!(imported.await.unwrap().rows, FLIGHTS as u64);
    let landed = flights(FLIGHTS).landed().unwrap();
    assert_same(&landed, &scan(&table, ScanRequest::all()).await);
    engine.close().await.unwrap();
}

/// Decision and reason by name.
fn decisions(listed: &Value) -> BTreeMap<String, (String, String)> {
    let objects = listed["objects"].as_array().unwrap().iter();
    let word = |object: &Value, key| object[key].as_str().unwrap().to_owned();
    objects
        .map(|object| {
            assert!(object["bytes"].as_u64().is_some(), "{object}");
            let decision = (word(object, "decision"), word(object, "reason"));
            (word(object, "name"), decision)
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn gc_tells_and_deletes_what_nobody_needs() {
    let dir = tempdir().unwrap();
    let mut config = quiet_config(&url_of(dir.path()));
    config.gc.grace = Millis::secs(3_600);
    let (engine, table) = small_engine(config).await;
    for value in 0..2 {
        table
            .write(readings(&[(1, None, Some(value))]))
            .await
            .unwrap();
        table.flush().await.unwrap();
    }
    let inputs = ssts_there(dir.path(), &table);
    table.compact().await.unwrap();
    let ssts = ssts_there(dir.path(), &table);
    let live = ssts.difference(&inputs).next().unwrap();
    let id = table.stats().id;
    let task = TaskId {
        job: JobId::from_parts(1, 1),
        index: 0,
    };
    let flushed = layout::sst(id, SstId::flushed(1, 1));
    let (result, probe) = (layout::result(id, task, 0), layout::probe(1, 1));
    let strange = format!("{}/notes", layout::table(id));
    for name in [&flushed, &result, &probe, &strange] {
        let body = bytes::Bytes::from_static(b"x");
        engine.store().put(name, body).await.unwrap();
    }
    let root = text(dir.path());
    let before = contents(dir.path());
    let (listed, is_well) = json(&["gc", root, "--dry-run"]);
    assert!(is_well);
    let decisions_now = decisions(&listed);
    let decided = |name: &str| {
        let (decision, reason) = &decisions_now[name];
        (decision.as_str(), reason.as_str())
    };
    assert_eq!(
        decided(&flushed),
        ("delete", "output of a killed flush or import")
    );
    assert_eq!(decided(&result), ("delete", "result of a finished job"));
    assert_eq!(decided(&probe), ("delete", "leftover probe"));
    assert_eq!(decided(&strange), ("keep", "unknown: not ours"));
    let catalog = layout::log_record(layout::CATALOG, 1);
    assert_eq!(decided(&catalog), ("keep", "record of a log"));
    let sst = |name: &str| format!("{}/{name}.parquet", layout::ssts(id));
    // Replaced a moment ago: kept for five minutes, as an engine would that is not told otherwise.
    for input in &inputs {
        assert_eq!(decided(&sst(input)), ("keep", "within the grace"));
    }
    assert_eq!(decided(&sst(live)), ("keep", "live"));
    let short = dir.path().join("short.toml");
    let url = url_of(dir.path());
    std::fs::write(&short, format!("root = {url:?}\n[gc]\ngrace = '0s'\n")).unwrap();
    let (listed, _) = json(&["gc", root, "--dry-run", "--config", text(&short)]);
    std::fs::remove_file(&short).unwrap();
    for input in &inputs {
        let (decision, reason) = &decisions(&listed)[&sst(input)];
        assert_eq!(
            (decision.as_str(), reason.starts_with("replaced")),
            ("delete", true)
        );
    }
    let shown = siltstone(&["gc", root, "--dry-run"]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(
        shown.contains("leftover probe") && shown.contains("3 of "),
        "{shown}"
    );
    assert_eq!(contents(dir.path()), before, "nothing has changed");

    let refused = siltstone(&["gc", root]);
    assert_eq!(refused.status.code(), Some(2));
    engine.close().await.unwrap();
    let (swept, is_well) = json(&["gc", root, "--offline"]);
    assert!(is_well);
    assert_eq!(swept["deleted"]["uncommitted"], 1);
    assert_eq!(swept["kept"]["unknown"], 1, "{swept}");
    let left = contents(dir.path());
    let is_there = |name: &str| left.contains_key(&dir.path().join(name));
    assert!(!is_there(&flushed) && !is_there(&result) && !is_there(&probe));
    assert!(is_there(&strange) && inputs.iter().all(|input| is_there(&sst(input))));
}

#[test]
fn a_root_that_is_not_there_is_not_made() {
    let dir = tempdir().unwrap();
    let missing = dir.path().join("nothing");
    for how in ["--dry-run", "--offline"] {
        let refused = siltstone(&["gc", text(&missing), how]);
        assert_eq!(refused.status.code(), Some(1), "{how}");
    }
    assert!(!missing.exists());
}
