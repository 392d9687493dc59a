//! What fuzzing found (`.ci/fuzz`), one file a finding, under the name of its target: none of it panics,
//! hangs or asks for memory that is not there any more.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use bytes::Bytes;
use siltstone::{manifest, sst, wal};

/// Passes every finding of `target` to `try_it`, and fails when one takes long.
fn each(target: &str, try_it: impl Fn(&Bytes)) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("integration_tests/testdata/fuzz");
    let mut tried = 0;
    for entry in fs::read_dir(dir.join(target)).unwrap() {
        let path = entry.unwrap().path();
        let began = Instant::now();
        try_it(&fs::read(&path).unwrap().into());
        let took = began.elapsed();
        assert!(
            took < Duration::from_secs(5),
            "{}: {took:?}",
            path.display()
        );
        tried += 1;
    }
    assert!(tried > 0, "{target} has no findings");
}

#[test]
fn payloads_of_the_wal() {
    each("wal_segment", |bytes| {
        wal::inspect::segment("1.wal", bytes);
        assert!(wal::inspect::payload(bytes).is_err());
    });
}

#[test]
fn bodies_of_log_records() {
    each("log_record", manifest::inspect::bodies);
}

#[test]
fn any_of_them_as_a_footer() {
    for target in ["wal_segment", "log_record"] {
        each(target, |bytes| {
            assert!(!sst::inspect::file(bytes, true).faults.is_empty());
        });
    }
}
