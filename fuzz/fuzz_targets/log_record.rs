//! Objects of the numbered logs: any bytes as an object, and as the body of a record of a manifest or a
//! catalog.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use siltstone::{manifest::inspect, store::log::Record};

fuzz_target!(
    // Panics of the Arrow and Parquet decoders are caught where they are called. One that is not caught
    // aborts all the same, without a word.
    init: std::panic::set_hook(Box::new(|_| {})),
    |data: &[u8]| {
        let bytes = Bytes::copy_from_slice(data);
        if let Ok(record) = Record::decode("fuzz", 1, &bytes) {
            assert_eq!(record.encode(), bytes);
        }
        inspect::bodies(&bytes);
    }
);
