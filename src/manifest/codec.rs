//! Bodies of manifest records, as protobuf (`manifest.proto`); `catalog` has those of the catalog, `checkpoint`
//! the objects of checkpoints.

mod catalog;
mod checkpoint;

use std::sync::Arc;

use bytes::Bytes;

use super::{
    Obsolete, Version,
    edit::{Departure, Edit, JobRecord, SstMove, SstRef},
};
use crate::{
    error::{Error, Result},
    proto::{self as pb, convert_required, level, required, stored_id},
    types::{JobId, Seq, SstId, SstMeta, TableSchema},
};

pub(super) use catalog::{
    CatalogClaim, CatalogEdit, CatalogState, decode_catalog, decode_catalog_claim,
    decode_catalog_edit, encode_catalog, encode_catalog_claim, encode_catalog_edit,
};
pub(super) use checkpoint::{decode_checkpoint, encode_checkpoint};

pub(super) fn encode_edit(edit: &Edit) -> Bytes {
    pb::encode(&pb::ManifestEdit {
        schema: edit.schema.as_ref().map(Into::into),
        added: edit.added.iter().map(|sst| sst.as_ref().into()).collect(),
        removed: edit.removed.iter().map(Into::into).collect(),
        departure: pb::Departure::from(edit.departure).into(),
        moved: edit
            .moved
            .iter()
            .map(|moved| pb::SstMove {
                sst: Some((&moved.sst).into()),
                level: moved.level.into(),
            })
            .collect(),
        flushed_seq: edit.flushed_seq.map(|seq| seq.0),
        jobs_started: edit.jobs_started.iter().map(Into::into).collect(),
        jobs_ended: edit.jobs_ended.iter().map(JobId::to_string).collect(),
        at_ms: edit.at_ms,
        deleted: edit.deleted.iter().map(SstId::to_string).collect(),
        range_deletes: edit.range_deletes.iter().map(Into::into).collect(),
        range_deletes_ended: edit.range_deletes_ended.iter().map(|seq| seq.0).collect(),
    })
}

pub(super) fn decode_edit(body: Bytes) -> Result<Edit> {
    let edit: pb::ManifestEdit = pb::decode(body, "manifest edit")?;
    Ok(Edit {
        schema: edit.schema.map(TableSchema::try_from).transpose()?,
        added: ssts(edit.added)?,
        removed: edit
            .removed
            .into_iter()
            .map(SstRef::try_from)
            .collect::<Result<_>>()?,
        departure: departure(edit.departure)?,
        moved: edit
            .moved
            .into_iter()
            .map(SstMove::try_from)
            .collect::<Result<_>>()?,
        flushed_seq: edit.flushed_seq.map(Seq),
        jobs_started: edit
            .jobs_started
            .into_iter()
            .map(JobRecord::try_from)
            .collect::<Result<_>>()?,
        jobs_ended: ids(&edit.jobs_ended)?,
        at_ms: edit.at_ms,
        deleted: ids(&edit.deleted)?,
        range_deletes: edit.range_deletes.iter().map(Into::into).collect(),
        range_deletes_ended: edit.range_deletes_ended.into_iter().map(Seq).collect(),
    })
}

pub(super) fn encode_version(version: &Version) -> Bytes {
    pb::encode(&pb::ManifestSnapshot::from(version))
}

pub(super) fn decode_version(body: Bytes) -> Result<Version> {
    let snapshot: pb::ManifestSnapshot = pb::decode(body, "manifest snapshot")?;
    snapshot.try_into()
}

impl From<&Version> for pb::ManifestSnapshot {
    fn from(version: &Version) -> Self {
        let jobs = version.jobs.values();
        let obsolete = version.obsolete.iter();
        Self {
            schema: Some((&version.schema).into()),
            ssts: version.ssts().map(|sst| sst.as_ref().into()).collect(),
            flushed_seq: version.flushed_seq.0,
            jobs: jobs.map(|job| job.as_ref().into()).collect(),
            obsolete: obsolete
                .map(|(sst, obsolete)| pb::Obsolete {
                    sst: sst.to_string(),
                    since_ms: obsolete.since_ms,
                    departure: pb::Departure::from(obsolete.departure).into(),
                })
                .collect(),
            range_deletes: version.range_deletes.iter().map(Into::into).collect(),
        }
    }
}

impl TryFrom<pb::ManifestSnapshot> for Version {
    type Error = Error;

    fn try_from(snapshot: pb::ManifestSnapshot) -> Result<Self> {
        let schema = convert_required(snapshot.schema, "schema")?;
        let jobs = snapshot.jobs.into_iter();
        let edit = Edit {
            added: ssts(snapshot.ssts)?,
            flushed_seq: Some(Seq(snapshot.flushed_seq)),
            jobs_started: jobs.map(JobRecord::try_from).collect::<Result<_>>()?,
            range_deletes: snapshot.range_deletes.iter().map(Into::into).collect(),
            ..Edit::default()
        };
        let mut version = Self::new(schema).apply(&edit)?;
        for obsolete in snapshot.obsolete {
            let sst = stored_id(&obsolete.sst)?;
            let obsolete = Obsolete {
                since_ms: obsolete.since_ms,
                departure: departure(obsolete.departure)?,
            };
            version.obsolete.insert(sst, obsolete);
        }
        Ok(version)
    }
}

impl From<Departure> for pb::Departure {
    fn from(departure: Departure) -> Self {
        match departure {
            Departure::Replaced => Self::Replaced,
            Departure::Expired => Self::Expired,
            Departure::RangeDeleted => Self::RangeDeleted,
        }
    }
}

fn departure(number: i32) -> Result<Departure> {
    match pb::Departure::try_from(number) {
        Ok(pb::Departure::Replaced) => Ok(Departure::Replaced),
        Ok(pb::Departure::Expired) => Ok(Departure::Expired),
        Ok(pb::Departure::RangeDeleted) => Ok(Departure::RangeDeleted),
        Err(_) => Err(Error::corrupt(format!("departure {number} is not known"))),
    }
}

impl From<&SstRef> for pb::SstRef {
    fn from(sst: &SstRef) -> Self {
        Self {
            window: Some(sst.window.into()),
            sst: sst.id.to_string(),
        }
    }
}

impl TryFrom<pb::SstRef> for SstRef {
    type Error = Error;

    fn try_from(sst: pb::SstRef) -> Result<Self> {
        Ok(Self {
            window: required(sst.window, "window")?.into(),
            id: stored_id(&sst.sst)?,
        })
    }
}

impl TryFrom<pb::SstMove> for SstMove {
    type Error = Error;

    fn try_from(moved: pb::SstMove) -> Result<Self> {
        Ok(Self {
            sst: convert_required(moved.sst, "sst")?,
            level: level(moved.level)?,
        })
    }
}

impl From<&JobRecord> for pb::JobRecord {
    fn from(job: &JobRecord) -> Self {
        Self {
            id: job.id.to_string(),
            inputs: job.inputs.iter().map(SstId::to_string).collect(),
            window: Some(job.window.into()),
            level_target: job.level_target.into(),
            retention: Some((&job.retention).into()),
            sst_bytes_target: job.sst_bytes_target,
            tasks: job.tasks.iter().map(Into::into).collect(),
            created_ms: job.created_ms,
        }
    }
}

impl TryFrom<pb::JobRecord> for JobRecord {
    type Error = Error;

    fn try_from(job: pb::JobRecord) -> Result<Self> {
        Ok(Self {
            id: stored_id(&job.id)?,
            inputs: ids(&job.inputs)?,
            window: required(job.window, "window")?.into(),
            level_target: level(job.level_target)?,
            retention: required(job.retention, "retention")?.into(),
            sst_bytes_target: job.sst_bytes_target,
            tasks: job.tasks.into_iter().map(Into::into).collect(),
            created_ms: job.created_ms,
        })
    }
}

fn ssts(ssts: Vec<pb::SstMeta>) -> Result<Vec<Arc<SstMeta>>> {
    ssts.into_iter()
        .map(|sst| SstMeta::try_from(sst).map(Arc::new))
        .collect()
}

fn ids<T: std::str::FromStr<Err = Error>>(texts: &[String]) -> Result<Vec<T>> {
    texts.iter().map(|text| stored_id(text)).collect()
}
