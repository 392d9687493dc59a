//! Cleanup jobs on the wire, and their results as objects. Both are sealed (see `proto`): a job so that no damaged
//! name is ever deleted, and so that it cannot be taken for a compaction job, which no magic leads.
//!
//! | magic | version | body, a message of compaction.proto |
//! |---|---|---|
//! | `SILTDEL\0` | 1 | CleanupJob |
//! | `SILTGON\0` | 1 | CleanupOutcome |

use bytes::Bytes;

use crate::{
    compaction::cleanup::{CleanupJob, CleanupOutcome, Unconfirmed},
    error::{Error, Result},
    proto::{self as pb, Seal, stored_id},
    types::{NodeId, Token},
};

const JOB: Seal = Seal {
    magic: b"SILTDEL\0",
    version: 1,
};
const OUTCOME: Seal = Seal {
    magic: b"SILTGON\0",
    version: 1,
};

pub(in crate::compaction) fn is_cleanup(bytes: &Bytes) -> bool {
    bytes.starts_with(JOB.magic)
}

pub(in crate::compaction) fn encode_cleanup(job: &CleanupJob) -> Bytes {
    let body = pb::encode(&pb::CleanupJob {
        id: job.id.to_string(),
        table: job.table.to_string(),
        store_url: job.store_url.clone(),
        names: job.names.clone(),
    });
    JOB.close(&body)
}

pub(in crate::compaction) fn decode_cleanup(bytes: &Bytes) -> Result<CleanupJob> {
    let what = "cleanup job";
    let job: pb::CleanupJob = pb::decode(JOB.open(what, bytes)?, what)?;
    Ok(CleanupJob {
        id: stored_id(&job.id)?,
        table: stored_id(&job.table)?,
        store_url: job.store_url,
        names: job.names,
    })
}

pub(in crate::compaction) fn encode_cleaned(outcome: &CleanupOutcome) -> Bytes {
    let unconfirmed = outcome.unconfirmed.iter().map(|object| pb::Unconfirmed {
        index: object.index,
        kind: pb::ErrorKind::from(object.kind).into(),
        message: object.message.clone(),
    });
    let body = pb::encode(&pb::CleanupOutcome {
        task: outcome.task.to_string(),
        token: outcome.token.0,
        node: outcome.node.0.clone(),
        objects: outcome.objects,
        unconfirmed: unconfirmed.collect(),
    });
    OUTCOME.close(&body)
}

pub(in crate::compaction) fn decode_cleaned(name: &str, bytes: &Bytes) -> Result<CleanupOutcome> {
    let what = format!("result {name}");
    let outcome: pb::CleanupOutcome = pb::decode(OUTCOME.open(&what, bytes)?, &what)?;
    let unconfirmed = outcome.unconfirmed.into_iter().map(|object| Unconfirmed {
        index: object.index,
        kind: object.kind().into(),
        message: object.message,
    });
    Ok(CleanupOutcome {
        unconfirmed: unconfirmed.collect(),
        task: stored_id(&outcome.task).map_err(|error: Error| error.context(what))?,
        token: Token(outcome.token),
        node: NodeId(outcome.node),
        objects: outcome.objects,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        error::ErrorKind,
        types::{JobId, TableId},
    };

    fn job() -> CleanupJob {
        CleanupJob {
            id: JobId::from_parts(1, 2),
            table: TableId::from_parts(3, 4),
            store_url: "s3://bucket/root".into(),
            names: vec!["tables/x/sst/a.parquet".into(), "tables/x/sst/b".into()],
        }
    }

    fn outcome() -> CleanupOutcome {
        CleanupOutcome {
            task: job().task_id(),
            token: Token(5),
            node: NodeId::from("node-1"),
            objects: 2,
            unconfirmed: vec![Unconfirmed {
                index: 1,
                kind: ErrorKind::Unavailable,
                message: "delete tables/x/sst/b: no answer".into(),
            }],
        }
    }

    #[test]
    fn version_1_stays_readable() {
        let golden = crate::golden::check("cleanup-job-v1.bin", &job().encode());
        assert!(CleanupJob::is_in(&golden));
        assert_eq!(CleanupJob::decode(&golden).unwrap(), job());
        let golden = crate::golden::check("cleanup-outcome-v1.bin", &outcome().encode());
        assert_eq!(
            CleanupOutcome::decode("golden", &golden).unwrap(),
            outcome()
        );
    }

    #[test]
    fn not_one_changed_byte_is_believed() {
        let (job, outcome) = (job().encode(), outcome().encode());
        let changed = |whole: &Bytes| -> Vec<Bytes> {
            let cut = (0..whole.len()).map(|length| whole.slice(..length));
            let flipped = (0..whole.len()).map(|at| {
                let mut bytes = whole.to_vec();
                bytes[at] ^= 0x10;
                bytes.into()
            });
            // The two reserved bytes are under the checksum, too.
            cut.chain(flipped).collect()
        };
        for bytes in changed(&job) {
            let error = CleanupJob::decode(&bytes).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
        }
        for bytes in changed(&outcome) {
            let error = CleanupOutcome::decode("results/x/0-0", &bytes).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            assert!(error.to_string().contains("results/x/0-0"), "{error}");
        }
    }

    #[test]
    fn neither_kind_of_job_is_taken_for_the_other() {
        let merge = crate::node::fake::job(1, 2);
        assert!(!CleanupJob::is_in(&merge.encode()));
        CleanupJob::decode(&merge.encode()).unwrap_err();
        crate::compaction::CompactionJob::decode(job().encode()).unwrap_err();
    }
}
