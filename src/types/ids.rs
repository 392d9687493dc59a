//! A newtype for every id, each with the one text form that object names, logs and the wire share.

use std::{fmt, str::FromStr};

use serde::{Serialize, Serializer};
use ulid::Ulid;

use crate::error::{Error, Result};

macro_rules! ulid_id {
    ($($(#[$doc:meta])* $name:ident, $what:literal;)*) => {
        $($(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Ulid);

        impl $name {
            /// The id whose upper 48 bits are `unix_ms` and whose lower 80 bits are `random`.
            pub fn from_parts(unix_ms: u64, random: u128) -> Self {
                Self(Ulid::from_parts(unix_ms, random))
            }

            /// When it was given, in milliseconds since the Unix epoch.
            pub fn unix_ms(&self) -> u64 {
                self.0.timestamp_ms()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self> {
                Ulid::from_string(text)
                    .map(Self)
                    .map_err(|_| Error::invalid(format!("{:?} is not a {}", text, $what)))
            }
        })*
    };
}

ulid_id! {
    /// Names a table for good; a table dropped and created again has another id.
    TableId, "table id";
    /// Names a compaction job: a plan that was recorded in a manifest.
    JobId, "job id";
    /// Names a checkpoint; of one table's, later ones have greater ids.
    CheckpointId, "checkpoint id";
}

macro_rules! number_id {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $($(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize,
        )]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        })*
    };
}

number_id! {
    /// Sequence number of a batch: one a batch, growing within a table. It orders the versions of a
    /// key. 0 is before every batch.
    Seq;
    /// Fences engines and leaders: of two writers of one log, the one with the lower epoch is out.
    Epoch;
    /// Orders the attempts at a task. Unique over all attempts at all tasks of a root, so that no two
    /// attempts can name the same output.
    Token;
}

impl Token {
    const LOCAL: u64 = 1 << 63;

    /// The token that follows `last`, for an attempt handed out by the meta service at `unix_ms`.
    /// Led by the time, so that a meta service which lost its log does not repeat itself.
    pub fn next_remote(last: Token, unix_ms: u64) -> Token {
        Token((last.0 + 1).max(unix_ms << 20) & !Self::LOCAL)
    }

    /// The token of an attempt inside the engine; never equal to a remote one. `random` tells it from one that
    /// an engine before took in the same millisecond, or before its clock was set back.
    pub fn next_local(last: Token, unix_ms: u64, random: u128) -> Token {
        let fresh = (unix_ms << 20) | (random as u64 & 0xf_ffff);
        Token(((last.0 & !Self::LOCAL) + 1).max(fresh) | Self::LOCAL)
    }
}

macro_rules! text_id {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $($(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
        pub struct $name(pub String);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.to_owned())
            }
        })*
    };
}

text_id! {
    /// A database in the eyes of the meta service: the engine that submits jobs.
    OwnerId;
    /// A compaction node in the eyes of the meta service.
    NodeId;
}

/// One key range of a job: the unit of dispatch, lease and retry. Text form `<job>-<index>`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId {
    /// The job it is part of.
    pub job: JobId,
    /// Below [`PLANNED_TASKS_MAX`](Self::PLANNED_TASKS_MAX) its position in the job's list of tasks, from 0; above,
    /// which [half](Self::halves) of which task it is.
    pub index: u32,
}

impl TaskId {
    /// A job has fewer planned tasks than this. It is part of the stored formats: never change it.
    pub const PLANNED_TASKS_MAX: u32 = 1_024;

    /// The tasks that are made when this one is cut in two; `None` when the numbers are used up, after
    /// 21 cuts or more.
    ///
    /// Their indexes follow from this one's alone, are greater, and are those of no other task's halves: whoever cuts
    /// tasks of a job need not know what others cut. They are numbered like the nodes of a heap below the planned
    /// tasks.
    pub fn halves(&self) -> Option<[TaskId; 2]> {
        let left = self.index.checked_mul(2)?;
        let left = left.checked_add(Self::PLANNED_TASKS_MAX)?;
        let right = left.checked_add(1)?;
        Some([left, right].map(|index| TaskId { index, ..*self }))
    }

    /// The task it is a half of; `None` for a planned one.
    pub fn whole(&self) -> Option<TaskId> {
        let half = self.index.checked_sub(Self::PLANNED_TASKS_MAX)?;
        let index = half / 2;
        Some(TaskId { index, ..*self })
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.job, self.index)
    }
}

impl fmt::Debug for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for TaskId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = || Error::invalid(format!("{text:?} is not a task id"));
        let (job, index) = text.split_once('-').ok_or_else(bad)?;
        Ok(Self {
            job: job.parse().map_err(|_| bad())?,
            index: index.parse().map_err(|_| bad())?,
        })
    }
}

/// Names an SST; also its object's name without the extension.
///
/// A compacted SST carries the attempt that wrote it, so that two attempts never write the same
/// object and an orphan can be told by its name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SstId {
    /// Written by a flush: `<ulid>`.
    Flushed(Ulid),
    /// Written by a compaction: `<job>-<task>-<token>-<part>`.
    Compacted {
        /// The task that wrote it.
        task: TaskId,
        /// The attempt at that task.
        token: Token,
        /// Position among the attempt's outputs, from 0.
        part: u32,
    },
}

impl SstId {
    /// The id of a flushed SST.
    pub fn flushed(unix_ms: u64, random: u128) -> Self {
        Self::Flushed(Ulid::from_parts(unix_ms, random))
    }

    /// About when it was written, in milliseconds since the Unix epoch: when it was flushed, or when the job
    /// that wrote it was planned.
    pub fn written_ms(&self) -> u64 {
        match self {
            Self::Flushed(ulid) => ulid.timestamp_ms(),
            Self::Compacted { task, .. } => task.job.unix_ms(),
        }
    }
}

impl fmt::Display for SstId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flushed(ulid) => ulid.fmt(f),
            Self::Compacted { task, token, part } => write!(f, "{task}-{token}-{part}"),
        }
    }
}

impl fmt::Debug for SstId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for SstId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = || Error::invalid(format!("{text:?} is not an sst id"));
        let fields: Vec<&str> = text.split('-').collect();
        match fields[..] {
            [ulid] => Ulid::from_string(ulid)
                .map(Self::Flushed)
                .map_err(|_| bad()),
            [job, task, token, part] => Ok(Self::Compacted {
                task: TaskId {
                    job: job.parse().map_err(|_| bad())?,
                    index: task.parse().map_err(|_| bad())?,
                },
                token: Token(token.parse().map_err(|_| bad())?),
                part: part.parse().map_err(|_| bad())?,
            }),
            _ => Err(bad()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn halves_of_a_task_are_those_of_no_other(index in any::<u32>()) {
            let task = TaskId { job: JobId::default(), index };
            for half in task.halves().into_iter().flatten() {
                prop_assert!(half.index > index && half.index >= TaskId::PLANNED_TASKS_MAX);
                prop_assert_eq!(half.whole(), Some(task));
            }
            if let Some(whole) = task.whole() {
                prop_assert!(whole.halves().is_some_and(|halves| halves.contains(&task)));
            }
            prop_assert_eq!(task.whole().is_none(), index < TaskId::PLANNED_TASKS_MAX);
        }
    }

    #[test]
    fn every_task_can_be_cut_21_times() {
        let mut task = TaskId {
            job: JobId::default(),
            index: TaskId::PLANNED_TASKS_MAX - 1,
        };
        for _ in 0..21 {
            task = task.halves().unwrap()[1];
        }
        assert_eq!(task.halves(), None);
    }

    #[test]
    fn sst_ids_survive_their_text_form() {
        let task = TaskId {
            job: JobId::from_parts(1_700_000_000_000, 42),
            index: 3,
        };
        for id in [
            SstId::flushed(1_700_000_000_000, 7),
            SstId::Compacted {
                task,
                token: Token(99),
                part: 2,
            },
        ] {
            assert_eq!(id.to_string().parse::<SstId>().unwrap(), id);
        }
        assert_eq!(task.to_string().parse::<TaskId>().unwrap(), task);
        for bad in ["", "x", "01-2", "a-b-c-d", "1-2-3-4-5"] {
            assert!(bad.parse::<SstId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn tokens_grow_and_sides_never_meet() {
        let mut remote = Token(0);
        let mut local = Token(0);
        for now in [5, 5, 4, 9] {
            let (r, l) = (
                Token::next_remote(remote, now),
                Token::next_local(local, now, 5),
            );
            assert!(r > remote && l > local && r < l);
            (remote, local) = (r, l);
        }
        // Two engines, one after the other, at the same moment.
        let [one, other] = [1, 2].map(|random| Token::next_local(Token(0), 7, random));
        assert_ne!(one, other);
    }
}
