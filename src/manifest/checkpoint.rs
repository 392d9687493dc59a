//! A checkpoint: a version of a table, and who holds it until when. A value; its object is in
//! [`checkpoints`](super::checkpoints).

use std::{fmt, sync::Arc};

use serde::Serialize;

use super::{Shape, Version};
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

/// A checkpoint in numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CheckpointInfo {
    /// Its id. A checkpoint that lasts longer than it was to has got another one.
    pub id: CheckpointId,
    /// Whose it is.
    pub kind: CheckpointKind,
    /// What a user calls it, what the reader calls itself, or the id of the clone.
    pub name: String,
    /// When what it shows was taken, in milliseconds since the Unix epoch.
    pub created_ms: u64,
    /// When it ends, in milliseconds since the Unix epoch; `None` for never.
    pub expires_ms: Option<u64>,
    /// The last batch that it is known to have.
    pub seq: Seq,
    /// SSTs that it holds.
    pub ssts: u64,
    /// Rows in them, shadowed versions and tombstones included.
    pub rows: u64,
    /// Bytes of them.
    pub bytes: u64,
}

/// Whose a checkpoint is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckpointKind {
    /// A user's.
    Named,
    /// A reader's in another process.
    Reader,
    /// A clone's, which shares the SSTs.
    Clone,
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(name) => write!(f, "{name:?}"),
            Self::Reader(name) => write!(f, "of reader {name:?}"),
            Self::Clone(table) => write!(f, "of clone {table}"),
        }
    }
}

impl Checkpoint {
    /// What a user calls it.
    pub fn name(&self) -> Option<&str> {
        match &self.purpose {
            Purpose::Named(name) => Some(name),
            Purpose::Reader(_) | Purpose::Clone(_) => None,
        }
    }

    /// It in numbers.
    pub fn info(&self) -> CheckpointInfo {
        let (kind, name) = match &self.purpose {
            Purpose::Named(name) => (CheckpointKind::Named, name.clone()),
            Purpose::Reader(name) => (CheckpointKind::Reader, name.clone()),
            Purpose::Clone(table) => (CheckpointKind::Clone, table.to_string()),
        };
        let total = Shape::of(&self.version).total();
        CheckpointInfo {
            id: self.id,
            kind,
            name,
            created_ms: self.created_ms,
            expires_ms: self.expires_ms,
            seq: self.seq,
            ssts: total.ssts,
            rows: total.rows,
            bytes: total.bytes,
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
