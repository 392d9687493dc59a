//! An object written in pieces.

use bytes::Bytes;
use object_store::buffered::BufWriter;
use tokio::io::AsyncWriteExt;

use super::{Store, store_error};
use crate::error::{Error, Result};

impl Store {
    /// Starts an object of unknown size, written in pieces. It appears, durable, when finished.
    pub fn upload(&self, name: &str) -> Upload {
        let writer =
            BufWriter::with_capacity(self.objects.clone(), self.path(name), Upload::PART_BYTES);
        Upload {
            name: name.to_owned(),
            writer: writer.with_max_concurrency(Upload::PARTS_MAX),
            bytes: 0,
            broken: false,
        }
    }
}

/// An object being written in pieces; small ones go up in one request, large ones in parts.
/// Dropping it unfinished leaves no object.
pub struct Upload {
    name: String,
    writer: BufWriter,
    bytes: u64,
    /// A piece was lost: a write failed or was given up, and the writer no longer knows what it has.
    broken: bool,
}

impl Upload {
    /// Size of a part.
    pub const PART_BYTES: usize = 8 << 20;
    /// Parts in flight at once.
    pub const PARTS_MAX: usize = 2;

    /// Adds `piece` to the end; waits while too many parts are in flight. An upload that failed to take
    /// a piece, or whose future was dropped meanwhile, can no longer be finished.
    ///
    /// # Errors
    /// `Unavailable` when the store does not take the part.
    pub async fn write(&mut self, piece: Bytes) -> Result<()> {
        self.check_whole()?;
        let bytes = piece.len() as u64;
        self.broken = true;
        let put = self.writer.put(piece).await;
        put.map_err(|error| store_error("upload", &self.name, error))?;
        self.broken = false;
        self.bytes += bytes;
        Ok(())
    }

    fn check_whole(&self) -> Result<()> {
        if self.broken {
            let name = &self.name;
            return Err(Error::unavailable(format!(
                "upload {name}: an earlier piece was lost"
            )));
        }
        Ok(())
    }

    /// Bytes added so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Completes the object. Durable when it returns.
    ///
    /// # Errors
    /// `Unavailable` when an earlier piece was lost, or when the store does not answer: then it is open
    /// whether the object exists.
    pub async fn finish(mut self) -> Result<()> {
        self.check_whole()?;
        let finished = self.writer.shutdown().await;
        finished.map_err(|error| match error.downcast() {
            Ok(error) => store_error("upload", &self.name, error),
            Err(error) => Error::unavailable(format!("upload {}", self.name)).with_source(error),
        })
    }

    /// Gives up, and frees the parts that were sent.
    pub async fn abort(mut self) -> Result<()> {
        let abort = self.writer.abort().await;
        abort.map_err(|error| store_error("abort upload of", &self.name, error))
    }
}
