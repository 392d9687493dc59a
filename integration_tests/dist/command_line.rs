//! The binaries as a user meets them.

use std::{
    path::Path,
    process::{Command, Output, Stdio},
};

use tempfile::tempdir;

use crate::cluster::{Cluster, PATIENCE};

const SILTSTONE: &str = env!("CARGO_BIN_EXE_siltstone");
const META: &str = env!("CARGO_BIN_EXE_compaction-meta");
const NODE: &str = env!("CARGO_BIN_EXE_compaction-node");

fn run(program: &str, arguments: &[&str]) -> Output {
    Command::new(program).args(arguments).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_demo_works_in_both_modes_and_leaves_its_files() {
    let dir = tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let output = run(SILTSTONE, &["demo", "--rows", "12000", "--dir", path]);
    let said = stdout(&output);
    assert!(output.status.success(), "{said}{}", stderr(&output));
    assert!(said.contains("36,000") && said.contains("12,000"), "{said}");
    assert!(said.contains("node-1") && said.contains("node-2"), "{said}");
    assert!(said.contains("ok") && !said.contains("FAILED"), "{said}");
    for mode in ["local", "remote"] {
        assert!(
            has_parquet(&dir.path().join(mode).join("tables")),
            "{mode} left nothing"
        );
    }
}

fn has_parquet(dir: &Path) -> bool {
    std::fs::read_dir(dir).into_iter().flatten().any(|entry| {
        let path = entry.unwrap().path();
        has_parquet(&path)
            || path
                .extension()
                .is_some_and(|extension| extension == "parquet")
    })
}

#[test]
fn the_demo_leaves_a_folder_of_somebody_else_alone() {
    let dir = tempdir().unwrap();
    std::fs::write(dir.path().join("mine"), "precious").unwrap();
    let output = run(SILTSTONE, &["demo", "--dir", dir.path().to_str().unwrap()]);
    assert!(!output.status.success());
    let said = stderr(&output);
    assert!(
        said.contains("not empty") && said.contains(dir.path().to_str().unwrap()),
        "{said}"
    );
}

#[cfg(target_os = "linux")]
#[test]
fn an_interrupted_demo_leaves_no_process_behind() {
    let dir = tempdir().unwrap();
    let mut demo = Command::new(SILTSTONE)
        .args([
            "demo",
            "--mode",
            "remote",
            "--dir",
            dir.path().to_str().unwrap(),
        ])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let started = || children_of(demo.id()).len() == 3 && has_parquet(&dir.path().join("remote"));
    wait_until("the demo writes", started);
    let children = children_of(demo.id());
    let kill = Command::new("kill")
        .args(["-INT", &demo.id().to_string()])
        .status();
    assert!(kill.unwrap().success());
    assert!(!demo.wait().unwrap().success());
    wait_until("its services are gone", || {
        children
            .iter()
            .all(|child| !Path::new(&format!("/proc/{child}/exe")).exists())
    });
}

/// Processes whose parent is `parent`.
#[cfg(target_os = "linux")]
fn children_of(parent: u32) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").unwrap();
    let ids = processes.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    let is_child = |id: &u32| {
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
        let parent_is = |line: &str| line.strip_prefix("PPid:").map(|id| id.trim().parse());
        status.lines().find_map(parent_is) == Some(Ok(parent))
    };
    ids.filter(is_child).collect()
}

#[cfg(target_os = "linux")]
fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let start = std::time::Instant::now();
    while !holds() {
        assert!(
            start.elapsed() < PATIENCE,
            "waited a minute in vain until {what}"
        );
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_and_jobs_are_listed() {
    let cluster = Cluster::start(2).await;
    let ask = |arguments: &[&str]| {
        let output = run(
            SILTSTONE,
            &[arguments, &["--meta", cluster.meta()]].concat(),
        );
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    };
    let said = ask(&["nodes"]);
    for word in ["node-1", "node-2", "active", "1 of 1"] {
        assert!(said.contains(word), "{word:?} is missing from: {said}");
    }
    let nodes: serde_json::Value = serde_json::from_str(&ask(&["nodes", "--json"])).unwrap();
    assert_eq!(nodes.as_array().map(Vec::len), Some(2), "{nodes}");
    assert_eq!(nodes[1]["node"], "node-2");
    assert_eq!(ask(&["jobs", "--json"]).trim(), "[]");
    assert!(ask(&["jobs"]).contains("owner"));
}

#[test]
fn an_address_that_does_not_answer_is_named() {
    for command in ["nodes", "jobs"] {
        let output = run(SILTSTONE, &[command, "--meta", "http://127.0.0.1:1"]);
        assert!(!output.status.success());
        let said = stderr(&output);
        assert!(
            said.contains("unavailable") && said.contains("127.0.0.1:1"),
            "{said}"
        );
    }
}

#[test]
fn services_refuse_what_they_do_not_understand() {
    let dir = tempdir().unwrap();
    let file = dir.path().join("bad.toml");
    std::fs::write(&file, "leese = '2s'").unwrap();
    let file = file.to_str().unwrap();
    for (program, arguments, words) in [
        (META, &["--config", file][..], &["bad.toml", "leese"][..]),
        (META, &["--lease", "soon"], &["soon"]),
        (META, &["--listen", "nowhere"], &["nowhere"]),
        (NODE, &["--config", file], &["bad.toml", "leese"]),
        (NODE, &["--slots", "0"], &["slots"]),
        (NODE, &["--meta", "not an address"], &["not an address"]),
    ] {
        let output = run(program, arguments);
        assert!(!output.status.success(), "{arguments:?}");
        let said = stderr(&output);
        for word in words {
            assert!(
                said.contains(word),
                "{arguments:?}: {word:?} is missing from: {said}"
            );
        }
        assert!(!said.contains("panicked"), "{said}");
    }
}
