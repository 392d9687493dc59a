//! Small objects of one protobuf message, under a magic and a checksum. Little-endian; the codec of each
//! kind of object draws it with its own magic and version:
//! ```text
//! 0    8  magic
//! 8    2  format version
//! 10   2  reserved, 0
//! 12   4  length of the body
//! 16   n  body
//! 16+n 4  CRC-32 of everything before it
//! ```

use bytes::{BufMut, Bytes, BytesMut};

use crate::error::{Error, Result};

const HEADER_BYTES: usize = 16;
const CRC_BYTES: usize = 4;

/// A kind of object.
pub(crate) struct Seal {
    /// Its first eight bytes; the last of them is 0.
    pub(crate) magic: &'static [u8; 8],
    /// The version that is written, and the only one that is read.
    pub(crate) version: u16,
}

impl Seal {
    /// The object with this body.
    pub(crate) fn close(&self, body: &Bytes) -> Bytes {
        let mut bytes = BytesMut::with_capacity(HEADER_BYTES + body.len() + CRC_BYTES);
        bytes.put_slice(self.magic);
        bytes.put_u16_le(self.version);
        bytes.put_u16_le(0);
        bytes.put_u32_le(body.len() as u32);
        bytes.put_slice(body);
        let crc = crc32fast::hash(&bytes);
        bytes.put_u32_le(crc);
        bytes.freeze()
    }

    /// The body of the object in `bytes`; `what` names it in errors.
    ///
    /// # Errors
    /// `Corrupt`, naming it: of another kind, truncated, damaged, or from a newer version.
    pub(crate) fn open(&self, what: &str, bytes: &Bytes) -> Result<Bytes> {
        let corrupt = |fault: String| Error::corrupt(format!("{what}: {fault}"));
        let length = bytes.len();
        if length < HEADER_BYTES + CRC_BYTES {
            return Err(corrupt(format!("{length} bytes are too few")));
        }
        if &bytes[..8] != self.magic {
            let magic = String::from_utf8_lossy(&self.magic[..7]);
            return Err(corrupt(format!("does not begin with {magic}")));
        }
        let version = u16::from_le_bytes(bytes[8..10].try_into().expect("2 bytes"));
        if version != self.version {
            let known = self.version;
            return Err(corrupt(format!(
                "format version {version}; this siltstone reads version {known}"
            )));
        }
        let body_bytes = u32::from_le_bytes(bytes[12..16].try_into().expect("4 bytes")) as usize;
        if length != HEADER_BYTES + body_bytes + CRC_BYTES {
            return Err(corrupt(format!(
                "{length} bytes, but its body has {body_bytes}"
            )));
        }
        let (content, crc) = bytes.split_at(length - CRC_BYTES);
        if crc32fast::hash(content) != u32::from_le_bytes(crc.try_into().expect("4 bytes")) {
            return Err(corrupt("checksum does not match".into()));
        }
        Ok(bytes.slice(HEADER_BYTES..HEADER_BYTES + body_bytes))
    }
}
