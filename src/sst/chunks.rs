//! The parts of an object that are in memory, as the Parquet decoder wants to see them; and the fence
//! around that decoder.

use bytes::{Buf, Bytes, buf::Reader};
use parquet::{
    errors::ParquetError,
    file::reader::{ChunkReader, Length},
};

use crate::error::{self, Error, Result};

/// Byte ranges of an object. Reading outside of them is an error of the decoder.
#[derive(Clone)]
pub(super) struct SparseObject {
    /// Size of the object.
    bytes: u64,
    /// Starts and contents, ascending.
    parts: Vec<(u64, Bytes)>,
}

impl SparseObject {
    /// Parts of an object of `bytes` bytes, with where each begins.
    pub(super) fn new(bytes: u64, parts: impl IntoIterator<Item = (u64, Bytes)>) -> Self {
        let mut parts: Vec<(u64, Bytes)> = parts.into_iter().collect();
        parts.sort_unstable_by_key(|(start, _)| *start);
        Self { bytes, parts }
    }

    /// From `start` to the end of the part it lies in.
    fn from(&self, start: u64) -> Result<Bytes, ParquetError> {
        let after = self.parts.partition_point(|(first, _)| *first <= start);
        let part = self.parts[..after].last();
        let inside = part.and_then(|(first, bytes)| {
            let skip = usize::try_from(start - first).ok()?;
            (skip <= bytes.len()).then(|| bytes.slice(skip..))
        });
        inside.ok_or_else(|| ParquetError::EOF(format!("offset {start} was not fetched")))
    }
}

impl Length for SparseObject {
    fn len(&self) -> u64 {
        self.bytes
    }
}

impl ChunkReader for SparseObject {
    type T = Reader<Bytes>;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        Ok(self.from(start)?.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        let bytes = self.from(start)?;
        if length > bytes.len() {
            let have = bytes.len();
            return Err(ParquetError::EOF(format!(
                "{length} bytes at offset {start}, of which {have} were fetched"
            )));
        }
        Ok(bytes.slice(..length))
    }
}

/// Runs `decode`, which works on bytes from a store. Its errors, and its panics too, become `Corrupt`: the
/// decoder asserts some of what a damaged file can break.
pub(super) fn guarded<T, E>(decode: impl FnOnce() -> Result<T, E>) -> Result<T>
where
    E: std::error::Error + Send + Sync + 'static,
{
    error::guarded(|| {
        decode().map_err(|error| Error::corrupt("it does not decode").with_source(error))
    })
}
