//! Footers of SSTs: any bytes as a file, and as a footer that is framed as it should be.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use siltstone::sst::inspect;

fuzz_target!(
    // Panics of the Arrow and Parquet decoders are caught where they are called. One that is not caught
    // aborts all the same, without a word.
    init: std::panic::set_hook(Box::new(|_| {})),
    |data: &[u8]| {
        inspect::file(&Bytes::copy_from_slice(data), false);
        let length = (data.len() as u32).to_le_bytes();
        let framed = [b"PAR1", data, &length, b"PAR1"].concat();
        inspect::file(&framed.into(), false);
    }
);
