//! What a node is handed as a job's body: bytes that the meta service does not read.

use std::sync::Arc;

use bytes::Bytes;

use crate::{
    compaction::{CompactionJob, cleanup::CleanupJob},
    error::Result,
};

/// A job, as a node sees it.
#[derive(Clone, Debug)]
pub enum JobBody {
    /// SSTs to be merged.
    Compaction(Arc<CompactionJob>),
    /// Objects to be deleted.
    Cleanup(Arc<CleanupJob>),
}

impl JobBody {
    /// The job in `bytes`.
    ///
    /// # Errors
    /// `Corrupt` when they are not one.
    pub fn decode(bytes: &Bytes) -> Result<Self> {
        match CleanupJob::is_in(bytes) {
            true => CleanupJob::decode(bytes).map(|job| Self::Cleanup(Arc::new(job))),
            false => {
                let job = CompactionJob::decode(bytes.clone());
                job.map(|job| Self::Compaction(Arc::new(job)))
            }
        }
    }
}
