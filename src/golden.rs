//! Frozen bytes of stored formats, for unit tests. What was written once must be read for ever, and is
//! still written so until the format's version changes.

use std::{env, fs, path::Path};

use bytes::Bytes;

/// Compares `bytes` with the golden file `name`; returns the file's bytes, to be decoded. With
/// `REWRITE_GOLDEN` set the file is written instead: for new formats and versions only.
#[track_caller]
pub(crate) fn check(name: &str, bytes: &[u8]) -> Bytes {
    let golden = kept(name, bytes);
    assert!(golden == bytes, "{name}: the format has changed");
    golden
}

/// The golden file `name`, which is only read: what is written today may have other bytes, but must not be
/// read differently. With `REWRITE_GOLDEN` set it becomes `bytes`.
#[track_caller]
pub(crate) fn kept(name: &str, bytes: &[u8]) -> Bytes {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("integration_tests/testdata/golden")
        .join(name);
    if env::var_os("REWRITE_GOLDEN").is_some() {
        fs::write(&file, bytes).unwrap();
    }
    let golden = fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    golden.into()
}
