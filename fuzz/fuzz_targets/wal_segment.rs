//! Segments of the write-ahead log: any bytes as a segment, and as the payload of a record whose checksum
//! is right.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use siltstone::wal::inspect;

fuzz_target!(
    // Panics of the Arrow and Parquet decoders are caught where they are called. One that is not caught
    // aborts all the same, without a word.
    init: std::panic::set_hook(Box::new(|_| {})),
    |data: &[u8]| {
        let bytes = Bytes::copy_from_slice(data);
        let report = inspect::segment("00000000000000000001.wal", &bytes);
        // Nothing is read twice, or where nothing is.
        let bytes: u64 = report.records.iter().map(|record| record.bytes).sum();
        assert!(bytes <= data.len() as u64);
        let _ = inspect::payload(data);
    }
);
