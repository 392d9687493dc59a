//! Jobs on the wire, outcomes as result objects.
//!
//! A result object, little-endian:
//! ```text
//! 0    8  magic "SILTRES\0"
//! 8    2  format version, 1
//! 10   2  reserved, 0
//! 12   4  length of the body
//! 16   n  body (TaskOutcome of compaction.proto)
//! 16+n 4  CRC-32 of everything before it
//! ```

mod remote;

use std::sync::Arc;

use bytes::Bytes;

use super::{CompactionJob, TaskOutcome};
use crate::{
    error::Result,
    proto::{self as pb, Seal, convert_required, level, required, stored_id},
    types::{NodeId, RowSum, SstMeta, Token},
};

const RESULT: Seal = Seal {
    magic: b"SILTRES\0",
    version: 1,
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

pub(super) fn encode_outcome(outcome: &TaskOutcome) -> Bytes {
    let body = pb::encode(&pb::TaskOutcome {
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
    });
    RESULT.close(&body)
}

pub(super) fn decode_outcome(name: &str, bytes: &Bytes) -> Result<TaskOutcome> {
    let what = format!("result {name}");
    let outcome: pb::TaskOutcome = pb::decode(RESULT.open(&what, bytes)?, &what)?;
    parse_outcome(outcome).map_err(|error| error.context(what))
}

fn parse_outcome(outcome: pb::TaskOutcome) -> Result<TaskOutcome> {
    Ok(TaskOutcome {
        task: stored_id(&outcome.task)?,
        token: Token(outcome.token),
        node: NodeId(outcome.node),
        outputs: outcome
            .outputs
            .into_iter()
            .map(SstMeta::try_from)
            .collect::<Result<_>>()?,
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
        types::{JobId, Key, Seq, SstId, TaskId, Window},
    };

    fn outcome() -> TaskOutcome {
        let task = TaskId {
            job: JobId::from_parts(1, 2),
            index: 3,
        };
        let token = Token(4);
        let output = SstMeta {
            id: SstId::Compacted {
                task,
                token,
                part: 0,
            },
            level: 1,
            window: Window::new(-20, 20),
            bytes: 6,
            rows: 7,
            tombstones: 1,
            key_min: Key::from(&b"a"[..]),
            key_max: Key::from(&b"b"[..]),
            seq_min: Seq(8),
            seq_max: Seq(9),
            times: Some((-10, 11)),
            schema_version: 1,
            rows_hash: 12,
            applied_seq: Seq(2),
            home: None,
        };
        TaskOutcome {
            task,
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
        }
    }

    #[test]
    fn version_1_of_a_result_stays_readable() {
        let golden = crate::golden::check("task-result-v1.bin", &outcome().encode());
        assert_eq!(TaskOutcome::decode("golden", &golden).unwrap(), outcome());
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
            let error = TaskOutcome::decode("results/x/0", &bytes.into()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            assert!(error.to_string().contains("results/x/0"), "{error}");
        }
    }
}
