//! `siltstone export` beside an engine at work, and what is left when it fails: nothing.

use std::fs;

use crate::{
    import_export::{refused, rows, rows_in, small_root, ssts_in},
    inspect::{contents, json, text},
    support::{reading_rows, readings},
};

#[tokio::test(flavor = "multi_thread")]
async fn what_is_flushed_is_exported_beside_an_engine_at_work() {
    let (root, files, engine, table) = small_root().await;
    let out = files.path().join("out.parquet");
    table
        .write(readings(&[(5, Some(5), Some(5))]))
        .await
        .unwrap();
    let export = ["export", text(root.path()), "readings", text(&out)];
    assert!(json(&export).1);
    let exported = rows_in(&out);
    assert_eq!(reading_rows(&exported).len(), 3);
    assert_eq!(
        exported.schema().fields(),
        table.schema().columns().fields()
    );
    table.flush().await.unwrap();

    let first = fs::read(&out).unwrap();
    refused(&export, 2, &["out.parquet", "exists", "--force"]);
    assert_eq!(fs::read(&out).unwrap(), first);
    assert!(json(&[&export[..], &["--force"]].concat()).1);
    assert_eq!(reading_rows(&rows_in(&out)), rows(&table).await);
    // The reader held what it read, and let go of it.
    let checkpoints = json(&["checkpoints", text(root.path()), "--table", "readings"]);
    assert_eq!(checkpoints.0.as_array().map(Vec::len), Some(0));
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_export_leaves_no_file() {
    let (root, files, engine, _table) = small_root().await;
    engine.close().await.unwrap();
    let out = files.path().join("out.parquet");
    let root_text = text(root.path());
    let export = |table: &str, more: &[&str], code: i32, words: &[&str]| {
        refused(
            &[&["export", root_text, table, text(&out)], more].concat(),
            code,
            words,
        );
    };
    export("writings", &[], 1, &["\"writings\"", "\"readings\""]);
    export("readings", &["--columns", "at,x"], 2, &["\"x\""]);
    export(
        "readings",
        &["--start", "soon"],
        2,
        &["\"soon\"", "2013-07-01"],
    );
    let nowhere = files.path().join("no/out.parquet");
    refused(
        &["export", root_text, "readings", text(&nowhere)],
        2,
        &["out.parquet"],
    );
    refused(
        &[
            "export",
            root_text,
            "readings",
            text(files.path()),
            "--force",
        ],
        2,
        &["a file"],
    );
    // The last SST of the scan is damaged.
    let ssts = ssts_in(root.path()).into_iter();
    for sst in ssts.filter(|file| rows_in(file).num_rows() == 1) {
        let mut bytes = fs::read(&sst).unwrap();
        let end = bytes.len() / 4;
        bytes[4..end].fill(0xff);
        fs::write(&sst, bytes).unwrap();
    }
    export("readings", &[], 1, &["corrupt"]);
    assert_eq!(contents(files.path()).len(), 0);
}
