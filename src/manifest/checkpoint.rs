//! A checkpoint: a version of a table, and who holds it until when. A value; its object is in
//! [`checkpoints`](super::checkpoints).

use std::sync::Arc;

use super::Version;
use crate::types::{CheckpointId, Seq, TableId};

/// A version of a table that somebody holds. Immutable: a checkpoint that is to last longer is replaced by
/// another one.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// Its id; greater than that of the one it replaces.
    pub id: CheckpointId,
    /// Whose it is.
    pub purpose: Purpose,
    /// When what it shows was taken, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// When it ends, in milliseconds since the Unix epoch; `None` for never.
    pub expires_ms: Option<u64>,
    /// What it holds, without jobs and without what was obsolete.
    pub version: Arc<Version>,
    /// The last batch that it is known to have: of those after it, it has what was flushed.
    pub seq: Seq,
    /// Rows with an earlier time, in the unit of the time column, had expired.
    pub expiry: Option<i64>,
}

/// Whose a checkpoint is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A user's, who calls it so.
    Named(String),
    /// A reader's in another process, which calls itself so.
    Reader(String),
    /// The engine's, for as long as this table shares the SSTs.
    Clone(TableId),
}

impl Checkpoint {
    /// What a user calls it.
    pub fn name(&self) -> Option<&str> {
        match &self.purpose {
            Purpose::Named(name) => Some(name),
            Purpose::Reader(_) | Purpose::Clone(_) => None,
        }
    }

    /// Whether it has ended at `now_ms`.
    pub fn has_expired(&self, now_ms: u64) -> bool {
        self.expires_ms
            .is_some_and(|expires_ms| expires_ms <= now_ms)
    }

    /// The same, under an id that follows its own and is of about `now_ms`, ending at `expires_ms`.
    #[must_use]
    pub fn renewed(&self, expires_ms: Option<u64>, now_ms: u64, random: u128) -> Self {
        // Even if the clock was set back.
        let after_ms = now_ms.max(self.id.unix_ms() + 1);
        Self {
            id: CheckpointId::from_parts(after_ms, random),
            expires_ms,
            ..self.clone()
        }
    }
}
