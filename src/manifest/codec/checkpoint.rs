//! A checkpoint as an object, little-endian:
//! ```text
//! 0    8  magic "SILTCHK\0"
//! 8    2  format version, 1
//! 10   2  reserved, 0
//! 12   4  length of the body
//! 16   n  body (Checkpoint of manifest.proto)
//! 16+n 4  CRC-32 of everything before it
//! ```
//! Its id and its end are in the object's name; the end is in the body, too, and must be the same.

use std::sync::Arc;

use bytes::Bytes;

use crate::{
    error::{Error, Result},
    manifest::{Checkpoint, Purpose},
    proto::{
        self as pb, Seal, checkpoint::Purpose as PbPurpose, convert_required, required, stored_id,
    },
    types::{CheckpointId, Seq},
};

const CHECKPOINT: Seal = Seal {
    magic: b"SILTCHK\0",
    version: 1,
};

pub(in crate::manifest) fn encode_checkpoint(checkpoint: &Checkpoint) -> Bytes {
    let purpose = match &checkpoint.purpose {
        Purpose::Named(name) => PbPurpose::Named(name.clone()),
        Purpose::Reader(name) => PbPurpose::Reader(name.clone()),
        Purpose::Clone(table) => PbPurpose::Clone(table.to_string()),
    };
    CHECKPOINT.close(&pb::encode(&pb::Checkpoint {
        purpose: Some(purpose),
        created_ms: checkpoint.created_ms,
        expires_ms: checkpoint.expires_ms,
        version: Some(checkpoint.version.as_ref().into()),
        seq: checkpoint.seq.0,
        expiry: checkpoint.expiry,
    }))
}

/// The checkpoint in `bytes`, the object `name`, which says its id and when it ends.
///
/// # Errors
/// `Corrupt`, naming the object.
pub(in crate::manifest) fn decode_checkpoint(
    name: &str,
    (id, expires_ms): (CheckpointId, Option<u64>),
    bytes: &Bytes,
) -> Result<Checkpoint> {
    let what = format!("checkpoint {name}");
    let decoded: pb::Checkpoint = pb::decode(CHECKPOINT.open(&what, bytes)?, &what)?;
    if decoded.expires_ms != expires_ms {
        let own = decoded.expires_ms;
        return Err(Error::corrupt(format!("{what}: it ends at {own:?}")));
    }
    parse(id, decoded).map_err(|error| error.context(what))
}

fn parse(id: CheckpointId, decoded: pb::Checkpoint) -> Result<Checkpoint> {
    Ok(Checkpoint {
        id,
        purpose: match required(decoded.purpose, "purpose")? {
            PbPurpose::Named(name) => Purpose::Named(name),
            PbPurpose::Reader(name) => Purpose::Reader(name),
            PbPurpose::Clone(table) => Purpose::Clone(stored_id(&table)?),
        },
        created_ms: decoded.created_ms,
        expires_ms: decoded.expires_ms,
        version: Arc::new(convert_required(decoded.version, "version")?),
        seq: Seq(decoded.seq),
        expiry: decoded.expiry,
    })
}
