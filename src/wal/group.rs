//! The format of an object WAL's segment: the body of one record of a numbered log (`store::log`), whose
//! checksum covers it. Little-endian.
//!
//! ```text
//! for each entry of the group, in the order they were queued:
//! 0   4  length n of the payload
//! 4   n  payload, as in the segments of a local WAL (`record`)
//! ```
//!
//! A record with an empty body says no more than at which record a reader begins.

use bytes::{BufMut, Bytes, BytesMut};

use super::{WalEntry, handle::Append, record};
use crate::error::{Error, Result};

/// Length of what stands before each payload.
pub(super) const LENGTH_BYTES: usize = 4;

/// The body of a segment with these entries.
pub(super) fn encode(appends: &[Append]) -> Bytes {
    let payloads = appends.iter().map(|append| append.payload.bytes());
    encode_payloads(payloads)
}

fn encode_payloads<'a>(payloads: impl Iterator<Item = &'a [u8]> + Clone) -> Bytes {
    let bytes: usize = payloads
        .clone()
        .map(|bytes| LENGTH_BYTES + bytes.len())
        .sum();
    let mut body = BytesMut::with_capacity(bytes);
    for payload in payloads {
        body.put_u32_le(payload.len() as u32);
        body.put_slice(payload);
    }
    body.freeze()
}

/// Passes the entries in `body` to `each`, in order.
///
/// # Errors
/// `Corrupt`, with the offset in the body; the caller names the object. The first error of `each`.
pub(super) fn decode(body: &Bytes, mut each: impl FnMut(WalEntry) -> Result<()>) -> Result<()> {
    let mut offset = 0;
    while offset < body.len() {
        let corrupt = |what: &str| Error::corrupt(format!("body offset {offset}: {what}"));
        let payload = payload_at(body, offset);
        let payload = payload.ok_or_else(|| corrupt("entry is cut short"))?;
        let entry = record::decode(payload).map_err(|error| {
            let what = corrupt("entry");
            error.context(what.message())
        })?;
        each(entry)?;
        offset += LENGTH_BYTES + payload.len();
    }
    Ok(())
}

/// The payload of the entry at `offset` of a body; `None` when it is cut short.
pub(super) fn payload_at(body: &[u8], offset: usize) -> Option<&[u8]> {
    let start = offset.checked_add(LENGTH_BYTES)?;
    let length = u32::from_le_bytes(body.get(offset..start)?.try_into().ok()?);
    body.get(start..start.checked_add(length as usize)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        error::ErrorKind,
        wal::{record::Payload, tests::entry},
    };

    fn decoded(body: &Bytes) -> Result<Vec<WalEntry>> {
        let mut entries = Vec::new();
        decode(body, |entry| {
            entries.push(entry);
            Ok(())
        })?;
        Ok(entries)
    }

    #[test]
    fn version_1_stays_readable() {
        let entries = [entry(1, 1), entry(2, 3)];
        let payloads = entries
            .each_ref()
            .map(|entry| Payload::encode(entry).unwrap());
        let body = encode_payloads(payloads.iter().map(Payload::bytes));
        let golden = crate::golden::check("wal-group-v1.bin", &body);
        assert_eq!(decoded(&golden).unwrap(), entries);
        assert_eq!(decoded(&Bytes::new()).unwrap(), []);
        for length in 1..golden.len() {
            match decoded(&golden.slice(..length)) {
                Ok(entries) => assert_eq!(entries.len(), 1, "cut between the entries"),
                Err(error) => assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}"),
            }
        }
    }
}
