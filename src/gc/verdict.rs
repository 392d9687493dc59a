//! What becomes of an object, and why, in words for people.

use std::fmt;

use crate::{manifest::Departure, types::JobId};

/// What becomes of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It stays.
    Keep(Kept),
    /// It goes.
    Delete(Deleted),
}

/// Why an object stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kept {
    /// It is in the table.
    Live,
    /// It has left the table, but a scan or a snapshot that began before reads it.
    Read,
    /// This checkpoint holds it.
    Held(String),
    /// It is a checkpoint.
    Checkpoint,
    /// An attempt at this job, which has not ended, has written it or may have.
    Job(JobId),
    /// A flush or an import is about to bring it into the table.
    BeingWritten,
    /// It may go once it is old enough.
    WithinGrace,
    /// It is a record of a log, or of the write-ahead log: their writers remove what they need no more.
    Log,
    /// The catalog, or the manifest of its table, is damaged.
    Undecided,
    /// Its name is none that this version of Siltstone gives.
    Unknown,
}

/// Why an object goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Deleted {
    /// An SST that was replaced by a compaction.
    LeftTable,
    /// An SST all of whose rows were past their time to live.
    Expired,
    /// An SST all of whose rows a range delete hid.
    RangeDeleted,
    /// It is of a table that is in no catalog.
    DroppedTable,
    /// An SST of an attempt whose result did not count, at a job that has ended.
    LostAttempt,
    /// An SST that a flush or an import wrote and did not commit.
    Uncommitted,
    /// The result of a task of a job that has ended.
    EndedJobResult,
    /// A checkpoint that has ended.
    EndedCheckpoint,
    /// A look at the store that was not tidied up.
    Probe,
    /// An object that was never written to its end.
    Staged,
    /// A record that precedes the snapshot at which readers of its log begin.
    OldLogRecord,
}

impl Deleted {
    /// Every reason.
    pub const ALL: [Self; 11] = [
        Self::LeftTable,
        Self::Expired,
        Self::RangeDeleted,
        Self::DroppedTable,
        Self::LostAttempt,
        Self::Uncommitted,
        Self::EndedJobResult,
        Self::EndedCheckpoint,
        Self::Probe,
        Self::Staged,
        Self::OldLogRecord,
    ];

    /// The reason as one word, for counters.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::LeftTable => "left_table",
            Self::Expired => "expired",
            Self::RangeDeleted => "range_deleted",
            Self::DroppedTable => "dropped_table",
            Self::LostAttempt => "lost_attempt",
            Self::Uncommitted => "uncommitted",
            Self::EndedJobResult => "ended_job_result",
            Self::EndedCheckpoint => "ended_checkpoint",
            Self::Probe => "probe",
            Self::Staged => "staged",
            Self::OldLogRecord => "old_log_record",
        }
    }
}

impl From<Departure> for Deleted {
    fn from(departure: Departure) -> Self {
        match departure {
            Departure::Replaced => Self::LeftTable,
            Departure::Expired => Self::Expired,
            Departure::RangeDeleted => Self::RangeDeleted,
        }
    }
}

impl Kept {
    /// The reason as one word.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Read => "read",
            Self::Held(_) => "held",
            Self::Checkpoint => "checkpoint",
            Self::Job(_) => "job",
            Self::BeingWritten => "being_written",
            Self::WithinGrace => "within_grace",
            Self::Log => "log",
            Self::Undecided => "undecided",
            Self::Unknown => "unknown",
        }
    }
}

impl Verdict {
    /// Why it goes, if it does.
    pub fn deleted(&self) -> Option<Deleted> {
        match self {
            Self::Keep(_) => None,
            Self::Delete(reason) => Some(*reason),
        }
    }
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Live => f.write_str("live"),
            Self::Read => f.write_str("read by a scan or snapshot"),
            Self::Held(checkpoint) => write!(f, "held by checkpoint {checkpoint}"),
            Self::Checkpoint => f.write_str("checkpoint"),
            Self::Job(job) => write!(f, "input or possible output of job {job}"),
            Self::BeingWritten => f.write_str("being written"),
            Self::WithinGrace => f.write_str("within the grace"),
            Self::Log => f.write_str("record of a log"),
            Self::Undecided => f.write_str("what it belongs to is damaged"),
            Self::Unknown => f.write_str("unknown: not ours"),
        }
    }
}

impl fmt::Display for Deleted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LeftTable => "replaced by compaction",
            Self::Expired => "all rows expired",
            Self::RangeDeleted => "all rows range-deleted",
            Self::DroppedTable => "dropped table",
            Self::LostAttempt => "output of a lost attempt at a finished job",
            Self::Uncommitted => "output of a killed flush or import",
            Self::EndedJobResult => "result of a finished job",
            Self::EndedCheckpoint => "expired checkpoint",
            Self::Probe => "leftover probe",
            Self::Staged => "leftover of a write that did not end",
            Self::OldLogRecord => "log record before a snapshot",
        })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keep(reason) => reason.fmt(f),
            Self::Delete(reason) => reason.fmt(f),
        }
    }
}
