//! Damaged and foreign files: `Corrupt`, naming the object, and never a panic or other rows.

use bytes::Bytes;
use parquet::{arrow::arrow_reader::ParquetRecordBatchReaderBuilder, errors::ParquetError};

use super::*;
use crate::sst::chunks::guarded;

/// A file of three row groups, small enough to be damaged everywhere.
fn small() -> (Bench, Arc<SstMeta>, RecordBatch) {
    let mut bench = Bench::metrics(WriteMode::Upsert);
    bench.spec.options.row_group_rows = 20;
    let batch = metrics(&bench.spec.schema, &grid(3, 20));
    let meta = bench.write_one(&batch);
    (bench, meta, batch)
}

fn assert_corrupt(bench: &Bench, meta: &Arc<SstMeta>, what: &str) {
    let (kind, message) = kind(bench.read_all(meta));
    assert_eq!(kind, ErrorKind::Corrupt, "{what}: {message}");
    assert!(
        message.contains(&layout::sst(bench.table, meta.id)),
        "{what}: {message}"
    );
}

#[test]
fn truncated_files_are_corrupt() {
    let (bench, meta, _) = small();
    let object = bench.object(&meta);
    let lengths = (0..object.len())
        .step_by(97)
        .chain(object.len() - 16..object.len());
    for length in lengths {
        bench.put(&meta, object[..length].to_vec());
        assert_corrupt(&bench, &meta, &format!("cut at {length}"));
        // So is a file that was cut before the manifest took its size.
        let short = Arc::new(SstMeta {
            bytes: length as u64,
            ..meta.as_ref().clone()
        });
        assert_corrupt(&bench, &short, &format!("short by design at {length}"));
    }
}

#[test]
fn a_flipped_byte_is_corrupt_or_changes_nothing() {
    let (bench, meta, batch) = small();
    let object = bench.object(&meta);
    let mut harmless = 0;
    for at in 0..object.len() {
        let mut damaged = object.clone();
        damaged[at] ^= 1 << (at % 8);
        bench.put(&meta, damaged);
        let read = bench.open(&meta).and_then(|reader| {
            bench.runtime.block_on(reader.key_filter())?;
            bench.read(&reader, &ReadRequest::default())
        });
        match read {
            Ok(read) => {
                assert_eq!(read, batch, "byte {at}");
                harmless += 1;
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "byte {at}: {error}"),
        }
    }
    // The leading magic.
    assert_eq!(harmless, 4);
}

#[test]
fn another_object_is_corrupt() {
    let (bench, meta, _) = small();
    let other = |change: &dyn Fn(&mut SstMeta)| {
        let mut other = meta.as_ref().clone();
        change(&mut other);
        assert_corrupt(&bench, &Arc::new(other), "other meta");
    };
    other(&|meta| meta.rows += 1);
    other(&|meta| meta.rows_hash ^= 1);
    other(&|meta| meta.window = Window::new(0, 1));
    other(&|meta| meta.key_max = Key::default());
    other(&|meta| meta.times = None);
    let moved = Arc::new(SstMeta {
        level: 3,
        ..meta.as_ref().clone()
    });
    assert_eq!(bench.read_all(&moved).unwrap().num_rows(), 60);
    assert_eq!(
        kind(bench.open_as(&metrics_schema(WriteMode::Append), &meta)).0,
        ErrorKind::Corrupt
    );
}

#[test]
fn a_newer_format_is_refused_by_name() {
    let (bench, meta, _) = small();
    let mut object = bench.object(&meta);
    let mark = b"siltstone.format_version\x18\x01";
    let at = object
        .windows(mark.len())
        .position(|bytes| bytes == mark)
        .unwrap()
        + mark.len();
    object[at] = b'3';
    let seal = b"siltstone.footer_crc\x18\x08";
    let at = object
        .windows(seal.len())
        .position(|bytes| bytes == seal)
        .unwrap()
        + seal.len();
    object[at..at + 8].copy_from_slice(b"00000000");
    crate::sst::footer::seal(&mut object).unwrap();
    bench.put(&meta, object);
    let (kind, message) = kind(bench.open(&meta));
    assert_eq!(kind, ErrorKind::Corrupt);
    assert!(
        message.contains("format version 3; this siltstone reads version 2"),
        "{message}"
    );
}

/// Version 1 was never released.
#[test]
fn an_older_format_is_refused_by_name() {
    let (bench, meta, _) = small();
    let object = include_bytes!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/integration_tests/testdata/golden/sst-v1.parquet"
    ));
    bench.put(&meta, object.to_vec());
    let meta = Arc::new(SstMeta {
        bytes: object.len() as u64,
        ..meta.as_ref().clone()
    });
    let (kind, message) = kind(bench.open(&meta));
    assert_eq!(kind, ErrorKind::Corrupt);
    assert!(
        message.contains("format version 1; this siltstone reads version 2"),
        "{message}"
    );
}

#[test]
fn inspection_finds_every_flipped_byte() {
    let (bench, meta, _) = small();
    let object = bench.object(&meta);
    let report = inspect::file(&object.clone().into(), true);
    assert_eq!(report.faults, [""; 0]);
    // Three row groups of six columns, one page each: they are smaller than a page may be.
    assert_eq!((report.chunks_verified, report.pages_verified), (18, 18));
    assert_eq!((report.rows_decoded, report.keys_decoded), (60, Some(60)));
    // The magic in front says nothing.
    for at in (4..object.len()).step_by(3) {
        let mut damaged = object.clone();
        damaged[at] ^= 1 << (at % 8);
        let report = inspect::file(&damaged.into(), true);
        assert!(!report.faults.is_empty(), "byte {at}");
    }
}

macro_rules! bad_files {
    ($($name:literal)*) => {
        [$((
            $name,
            include_bytes!(concat!(
                env!("CARGO_MANIFEST_DIR"), "/integration_tests/testdata/bad/", $name, ".parquet"
            )).to_vec(),
        )),*]
    };
}

/// The bytes of files that made other Parquet readers crash.
fn bad_files() -> [(&'static str, Vec<u8>); 8] {
    bad_files! {
        "ARROW-GH-41317"
        "ARROW-GH-41321"
        "ARROW-GH-43605"
        "ARROW-GH-45185"
        "ARROW-GH-47662"
        "ARROW-RS-GH-6229-DICTHEADER"
        "ARROW-RS-GH-6229-LEVELS"
        "PARQUET-1481"
    }
}

#[test]
fn known_bad_files_are_corrupt() {
    let (bench, meta, _) = small();
    for (name, object) in bad_files() {
        let bytes = object.len() as u64;
        bench.put(&meta, object);
        let meta = Arc::new(SstMeta {
            bytes,
            ..meta.as_ref().clone()
        });
        assert_corrupt(&bench, &meta, name);
    }
}

/// Checksums keep damage away from the decoder; the fence around it holds without them, too.
#[test]
fn the_decoder_is_fenced() {
    for (name, object) in bad_files() {
        let decoded = guarded(|| {
            let reader = ParquetRecordBatchReaderBuilder::try_new(Bytes::from(object))?;
            reader.build()?.collect::<Result<Vec<_>, _>>()?;
            Ok::<_, ParquetError>(())
        });
        if let Err(error) = decoded {
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{name}: {error}");
        }
    }
    let panic = guarded(|| -> Result<(), ParquetError> { panic!("page {} is odd", 3) });
    assert!(kind(panic).1.contains("page 3 is odd"));
}
