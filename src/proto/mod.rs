//! The generated code of `proto/`, and the conversions of the shared vocabulary. Nothing outside the
//! codecs (`manifest::codec`, `compaction::codec`, `meta::codec`) and `rpc` sees generated types.

#[expect(
    clippy::all,
    reason = "generated code; the .proto files carry the documentation"
)]
mod generated {
    tonic::include_proto!("siltstone.v1");
}

/// The protocol, for reflection.
#[cfg(feature = "cli")]
pub(crate) const FILE_DESCRIPTORS: &[u8] =
    include_bytes!(concat!(env!("OUT_DIR"), "/siltstone.v1.bin"));
mod errors;
mod sealed;
mod types;

pub(crate) use generated::*;
pub(crate) use sealed::Seal;
pub(crate) use types::{convert_required, level, stored_id};

use bytes::Bytes;
use prost::Message;

use crate::error::{Error, Result};

/// `message` as bytes.
pub(crate) fn encode(message: &impl Message) -> Bytes {
    message.encode_to_vec().into()
}

/// The message in `bytes`, which [`encode`] has made; `what` names them in the error. What a newer version has put
/// there must not be dropped: with fields that are not known, the bytes are more than the message takes.
///
/// # Errors
/// `Corrupt`, naming `what`: damaged, or with fields that are not known.
pub(crate) fn decode<M: Message + Default>(bytes: Bytes, what: &str) -> Result<M> {
    let length = bytes.len();
    let decoded = M::decode(bytes);
    let message = decoded
        .map_err(|error| Error::corrupt(format!("{what} does not decode")).with_source(error))?;
    let known = message.encoded_len();
    if known != length {
        return Err(Error::corrupt(format!(
            "{what} has {length} bytes, of which this siltstone knows {known}: a newer one has written it"
        )));
    }
    Ok(message)
}

/// A field that must be there.
pub(crate) fn required<T>(field: Option<T>, name: &str) -> Result<T> {
    field.ok_or_else(|| Error::corrupt(format!("field {name} is missing")))
}
