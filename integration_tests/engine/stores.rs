//! One story on every kind of store: write, flush, compact, reopen, read. On S3 the conformance suite, too,
//! and a server that drops every seventh request or its answer.

use std::{path::Path, process::Command, time::Duration};

use siltstone::{
    config::{CompactionMode, EngineConfig, WalMode},
    engine::{Engine, ScanRequest},
    error::ErrorKind,
    store::{Operation, Store},
};
use tempfile::tempdir;

use crate::{
    conformance,
    s3_server::{self, BUCKET, CREDENTIALS},
    support::{assert_same, flights, scan, small_config, url_of},
};

/// Set in the child process that `s3` starts: the store's credentials are environment variables, and
/// those belong to a whole process.
const S3_CHILD: &str = "TEST_S3_WAL_DIR";

async fn tell_the_story(config: EngineConfig, durable: bool) {
    let flights = flights(3_000);
    let engine = Engine::open(config.clone()).await.unwrap();
    let table = engine
        .create_table("flights", flights.table_schema().unwrap())
        .await
        .unwrap();
    for batch in flights.replay(300).unwrap() {
        table.write(batch.unwrap()).await.unwrap();
    }
    table.compact().await.unwrap();
    let late = flights.rows().slice(0, 100);
    table.write(late).await.unwrap();
    let landed = flights.landed().unwrap();
    assert_same(&landed, &scan(&table, ScanRequest::all()).await);
    engine.close().await.unwrap();
    if durable {
        let engine = Engine::open(config).await.unwrap();
        let table = engine.table("flights").unwrap();
        assert_same(&landed, &scan(&table, ScanRequest::all()).await);
        table.compact().await.unwrap();
        assert_same(&landed, &scan(&table, ScanRequest::all()).await);
        engine.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn memory() {
    let mut config = small_config("memory:///");
    config.wal.mode = WalMode::None;
    tell_the_story(config, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn file() {
    let dir = tempdir().unwrap();
    tell_the_story(small_config(&url_of(dir.path())), true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s3() {
    let (objects, wal) = (tempdir().unwrap(), tempdir().unwrap());
    let address = s3_server::start(objects.path()).await;
    run_child("stores::s3_child", &format!("http://{address}"), wal.path()).await;
    let manifest = objects.path().join(BUCKET).join("a/root/tables");
    assert!(manifest.exists(), "the objects are not where they belong");
}

#[tokio::test(flavor = "multi_thread")]
async fn s3_that_does_not_answer_is_named() {
    let wal = tempdir().unwrap();
    // Port 1 on loopback: nobody listens there.
    run_child(
        "stores::s3_child_without_server",
        "http://127.0.0.1:1",
        wal.path(),
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s3_conforms() {
    let (objects, wal) = (tempdir().unwrap(), tempdir().unwrap());
    let address = s3_server::start(objects.path()).await;
    let endpoint = format!("http://{address}");
    run_child("stores::s3_child_conforms", &endpoint, wal.path()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn s3_that_drops_requests_and_answers() {
    let (objects, wal) = (tempdir().unwrap(), tempdir().unwrap());
    let address = s3_server::start_flaky(objects.path()).await;
    let endpoint = format!("http://{address}");
    run_child("stores::s3_child_of_a_flaky_server", &endpoint, wal.path()).await;
}

/// Runs the ignored test `name` of this program in a process of its own.
async fn run_child(name: &str, endpoint: &str, wal: &Path) {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child
        .args(["--exact", name, "--ignored", "--nocapture"])
        .env(S3_CHILD, wal)
        .env("AWS_ENDPOINT", endpoint)
        .env("AWS_ALLOW_HTTP", "true")
        .env("AWS_REGION", "us-east-1")
        .env("AWS_ACCESS_KEY_ID", CREDENTIALS.0)
        .env("AWS_SECRET_ACCESS_KEY", CREDENTIALS.1);
    let output = tokio::task::spawn_blocking(move || child.output().unwrap())
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("1 passed"), "{said}");
}

/// In a child, what it works on.
fn s3_config() -> EngineConfig {
    let wal = std::env::var_os(S3_CHILD).expect("started by another test");
    let mut config = small_config(&format!("s3://{BUCKET}/a/root"));
    config.wal.dir = Some(wal.into());
    config.compaction.mode = CompactionMode::Local;
    config
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "started by the test s3, with the server's address in its environment"]
async fn s3_child() {
    tell_the_story(s3_config(), true).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "started by the test s3_that_does_not_answer_is_named"]
async fn s3_child_without_server() {
    let opened = tokio::time::timeout(Duration::from_secs(60), Engine::open(s3_config())).await;
    let error = opened
        .expect("it waits for more than a minute")
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "started by the test s3_conforms, with the server's address in its environment"]
async fn s3_child_conforms() {
    let store = Store::open(&format!("s3://{BUCKET}/some/root")).unwrap();
    conformance::conforms(&store).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "started by the test s3_that_drops_requests_and_answers"]
async fn s3_child_of_a_flaky_server() {
    let store = Store::open(&format!("s3://{BUCKET}/root")).unwrap();
    // Until parts, the beginnings and completions of uploads, and reads were among what was dropped.
    let retried = || {
        let stats = store.stats();
        [Operation::Part, Operation::Upload, Operation::Get].map(|of| stats.of(of).retries)
    };
    let mut uploads = 0;
    while retried().contains(&0) {
        assert!(uploads < 30, "{:?}", store.stats());
        let name = format!("large/{uploads}");
        let mut upload = store.upload(&name);
        for _ in 0..9 {
            upload.write(vec![uploads; 1 << 20].into()).await.unwrap();
        }
        upload.finish().await.unwrap();
        let read = store.get(&name).await.unwrap();
        assert!(read.len() == 9 << 20 && read.iter().all(|byte| *byte == uploads));
        uploads += 1;
    }
    let listed = store.list("large").await.unwrap();
    assert_eq!(listed.len(), usize::from(uploads));
    // A create is sent once: it may be in doubt, but its outcome is never somebody else's.
    let mut in_doubt = 0;
    for number in 0..50 {
        let name = format!("log/{number}");
        match store.create(&name, "mine".into()).await {
            Ok(created) => assert_eq!(created, siltstone::store::Created::New, "{name}"),
            Err(error) => {
                assert!(error.is_unavailable(), "{error}");
                in_doubt += 1;
            }
        }
    }
    assert!(in_doubt > 0);
    let stats = store.stats();
    assert_eq!(stats.of(Operation::Create).retries, 0, "{stats:?}");
    // And a whole engine on top of it.
    tell_the_story(s3_config(), true).await;
}
