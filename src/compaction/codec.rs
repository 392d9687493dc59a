//! Jobs on the wire, parts of results as objects.
//!
//! A result object, little-endian:
//! ```text
//! 0    8  magic "SILTRES\0"
//! 8    2  format version, 2
//! 10   2  reserved, 0
//! 12   4  length of the body
//! 16   n  body (TaskPart of compaction.proto)
//! 16+n 4  CRC-32 of everything before it
//! ```
//! Version 1 held the whole result of a task.

mod cleanup;
mod remote;

use std::sync::Arc;

use bytes::Bytes;

pub(super) use cleanup::{
    decode_cleaned, decode_cleanup, encode_cleaned, encode_cleanup, is_cleanup,
};

use super::{CompactionJob, Task, TaskOutcome, TaskPart, TaskSplit};
use crate::{
    error::{Error, Result},
    proto::{self as pb, Seal, convert_required, level, required, stored_id},
    types::{NodeId, RowSum, SstMeta, TaskId, Token},
};

const RESULT: Seal = Seal {
    magic: b"SILTRES\0",
    version: 2,
};

pub(super) fn encode_job(job: &CompactionJob) -> Bytes {
    pb::encode(&pb::CompactionJob {
        id: job.id.to_string(),
        table: job.table.to_string(),
        store_url: job.store_url.clone(),
        schema: Some((&job.schema).into()),
        inputs: job.inputs.iter().map(|sst| sst.as_ref().into()).collect(),
        window: Some(job.window.into()),
        level_target: job.level_target.into(),
        retention: Some((&job.retention).into()),
        sst_bytes_target: job.sst_bytes_target,
        tasks: job.tasks.iter().map(Into::into).collect(),
    })
}

pub(super) fn decode_job(bytes: Bytes) -> Result<CompactionJob> {
    let job: pb::CompactionJob = pb::decode(bytes, "compaction job")?;
    Ok(CompactionJob {
        id: stored_id(&job.id)?,
        table: stored_id(&job.table)?,
        store_url: job.store_url,
        schema: convert_required(job.schema, "schema")?,
        inputs: job
            .inputs
            .into_iter()
            .map(|sst| sst.try_into().map(Arc::new))
            .collect::<Result<_>>()?,
        window: required(job.window, "window")?.into(),
        level_target: level(job.level_target)?,
        retention: required(job.retention, "retention")?.into(),
        sst_bytes_target: job.sst_bytes_target,
        tasks: job.tasks.into_iter().map(Into::into).collect(),
    })
}

pub(super) fn encode_part(part: &TaskPart) -> Bytes {
    let kind = match part {
        TaskPart::Outcome(outcome) => pb::task_part::Kind::Outcome(outcome.into()),
        TaskPart::Split(split) => pb::task_part::Kind::Split(split.into()),
    };
    let body = pb::encode(&pb::TaskPart { kind: Some(kind) });
    RESULT.close(&body)
}

pub(super) fn decode_part(name: &str, bytes: &Bytes) -> Result<TaskPart> {
    let what = format!("result {name}");
    let part: pb::TaskPart = pb::decode(RESULT.open(&what, bytes)?, &what)?;
    let part = match part.kind {
        Some(pb::task_part::Kind::Outcome(outcome)) => outcome.try_into().map(TaskPart::Outcome),
        Some(pb::task_part::Kind::Split(split)) => split.try_into().map(TaskPart::Split),
        None => Err(Error::corrupt("it is of a kind that is not known")),
    };
    part.map_err(|error: Error| error.context(what))
}

impl From<&TaskOutcome> for pb::TaskOutcome {
    fn from(outcome: &TaskOutcome) -> Self {
        Self {
            task: outcome.task.to_string(),
            token: outcome.token.0,
            node: outcome.node.0.clone(),
            outputs: outcome.outputs.iter().map(Into::into).collect(),
            read: Some(outcome.read.into()),
            written: Some(outcome.written.into()),
            shadowed: Some(outcome.shadowed.into()),
            deleted: Some(outcome.deleted.into()),
            bytes_read: outcome.bytes_read,
            elapsed_ms: outcome.elapsed_ms,
            combined: Some(outcome.combined.into()),
            expired: Some(outcome.expired.into()),
            range_deleted: Some(outcome.range_deleted.into()),
            part: outcome.part,
            range: Some((&outcome.range).into()),
        }
    }
}

impl TryFrom<pb::TaskOutcome> for TaskOutcome {
    type Error = Error;

    fn try_from(outcome: pb::TaskOutcome) -> Result<Self> {
        let outputs = outcome.outputs.into_iter().map(SstMeta::try_from);
        Ok(Self {
            task: stored_id(&outcome.task)?,
            part: outcome.part,
            range: required(outcome.range, "range")?.into(),
            token: Token(outcome.token),
            node: NodeId(outcome.node),
            outputs: outputs.collect::<Result<_>>()?,
            read: required(outcome.read, "read")?.into(),
            written: required(outcome.written, "written")?.into(),
            shadowed: required(outcome.shadowed, "shadowed")?.into(),
            deleted: required(outcome.deleted, "deleted")?.into(),
            bytes_read: outcome.bytes_read,
            elapsed_ms: outcome.elapsed_ms,
            combined: required(outcome.combined, "combined")?.into(),
            expired: required(outcome.expired, "expired")?.into(),
            range_deleted: required(outcome.range_deleted, "range_deleted")?.into(),
        })
    }
}

impl From<&TaskSplit> for pb::TaskSplit {
    fn from(split: &TaskSplit) -> Self {
        let children = split.children.iter().map(|child| pb::ChildTask {
            index: child.id.index,
            range: Some((&child.range).into()),
        });
        Self {
            task: split.task.to_string(),
            part: split.part,
            range: Some((&split.range).into()),
            children: children.collect(),
        }
    }
}

impl TryFrom<pb::TaskSplit> for TaskSplit {
    type Error = Error;

    fn try_from(split: pb::TaskSplit) -> Result<Self> {
        let task: TaskId = stored_id(&split.task)?;
        let children = split.children.into_iter().map(|child| {
            Ok(Task {
                id: TaskId {
                    job: task.job,
                    index: child.index,
                },
                range: required(child.range, "range of a child")?.into(),
            })
        });
        Ok(Self {
            task,
            part: split.part,
            range: required(split.range, "range")?.into(),
            children: children.collect::<Result<_>>()?,
        })
    }
}

impl From<RowSum> for pb::RowSum {
    fn from(sum: RowSum) -> Self {
        Self {
            rows: sum.rows,
            hash: sum.hash,
        }
    }
}

impl From<pb::RowSum> for RowSum {
    fn from(sum: pb::RowSum) -> Self {
        Self::new(sum.rows, sum.hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        error::ErrorKind,
        node::fake::job,
        types::{JobId, Key, KeyRange, Seq, SstId, Window},
    };

    fn range(start: &[u8], end: &[u8]) -> KeyRange {
        KeyRange {
            start: Some(Key::from(start)),
            end: Some(Key::from(end)),
        }
    }

    fn outcome() -> TaskPart {
        let task = TaskId {
            job: JobId::from_parts(1, 2),
            index: 3,
        };
        let token = Token(4);
        let id = SstId::Compacted {
            task,
            token,
            part: 0,
        };
        let output = SstMeta {
            level: 1,
            window: Window::new(-20, 20),
            bytes: 6,
            rows: 7,
            tombstones: 1,
            seq_min: Seq(8),
            seq_max: Seq(9),
            times: Some((-10, 11)),
            rows_hash: 12,
            applied_seq: Seq(2),
            ..SstMeta::sample(id, "a-b")
        };
        TaskPart::Outcome(TaskOutcome {
            task,
            part: 2,
            range: range(b"a", b"c"),
            token,
            node: NodeId::from("node-1"),
            outputs: vec![output],
            read: RowSum::new(10, 20),
            written: RowSum::new(7, 12),
            shadowed: RowSum::new(2, 5),
            deleted: RowSum::new(1, 3),
            combined: RowSum::new(3, 6),
            expired: RowSum::new(4, 7),
            range_deleted: RowSum::new(5, 8),
            bytes_read: 100,
            elapsed_ms: 13,
        })
    }

    fn split() -> TaskPart {
        let task = |index| TaskId {
            job: JobId::from_parts(1, 2),
            index,
        };
        let child = |index, range| Task {
            id: task(index),
            range,
        };
        TaskPart::Split(TaskSplit {
            task: task(3),
            part: 1,
            range: range(b"b", b"d"),
            children: vec![child(4, range(b"b", b"c")), child(5, range(b"c", b"d"))],
        })
    }

    #[test]
    fn version_2_of_a_result_stays_readable() {
        for (name, part) in [
            ("task-outcome-v2.bin", outcome()),
            ("task-split-v2.bin", split()),
        ] {
            let golden = crate::golden::check(name, &part.encode());
            assert_eq!(TaskPart::decode("golden", &golden).unwrap(), part);
        }
    }

    #[test]
    fn fields_that_are_not_known_are_refused() {
        let job = job(1, 2);
        let known = encode_job(&job);
        assert_eq!(decode_job(known.clone()).unwrap(), *job);
        // Field 1,000, of length 3; and the same deep inside, in the schema, as a newer version would write it.
        let unknown = [0xc2, 0x3e, 3, 1, 2, 3];
        let outside: Bytes = [&known[..], &unknown].concat().into();
        let mut message: pb::CompactionJob = pb::decode(known, "job").unwrap();
        message.schema = None;
        let schema = [
            pb::encode(&pb::TableSchema::from(&job.schema)),
            unknown.to_vec().into(),
        ]
        .concat();
        let rest = pb::encode(&message);
        let inside = [&rest[..], &[0x22], &length(schema.len()), &schema]
            .concat()
            .into();
        for newer in [outside, inside] {
            let error = decode_job(newer).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            assert!(
                error.message().contains("a newer one has written it"),
                "{error}"
            );
        }
    }

    fn length(bytes: usize) -> Vec<u8> {
        let mut encoded = Vec::new();
        prost::encoding::encode_varint(bytes as u64, &mut encoded);
        encoded
    }

    #[test]
    fn version_1_of_a_result_is_refused_by_name() {
        let old = include_bytes!("../../integration_tests/testdata/golden/task-result-v1.bin");
        let error = TaskPart::decode("results/x/0", &Bytes::from_static(old)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "corrupt: result results/x/0: format version 1; this siltstone reads version 2"
        );
    }

    #[test]
    fn a_damaged_result_is_named() {
        let whole = outcome().encode();
        let mut damaged: Vec<Vec<u8>> = (0..whole.len())
            .map(|length| whole[..length].to_vec())
            .collect();
        damaged.extend((0..whole.len()).map(|at| {
            let mut flipped = whole.to_vec();
            flipped[at] ^= 0x10;
            flipped
        }));
        for bytes in damaged {
            let error = TaskPart::decode("results/x/0-2", &bytes.into()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            assert!(error.to_string().contains("results/x/0-2"), "{error}");
        }
    }
}
