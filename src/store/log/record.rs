//! One record of a numbered log, as an object. Little-endian:
//! ```text
//! 0    8  magic "SILTLOG\0"
//! 8    2  format version, 1
//! 10   1  kind: 0 edit, 1 snapshot, 2 epoch claim
//! 11   1  reserved, 0
//! 12   8  epoch of the writer
//! 20  16  attempt id: random, tells our own record after a lost answer
//! 36   8  base: number of the record at which a reader of this one begins
//! 44   4  length of the body
//! 48   n  body (protobuf; of an object WAL, entries)
//! 48+n 4  CRC-32 of everything before it
//! ```

use bytes::{BufMut, Bytes, BytesMut};

use crate::{
    error::{Error, Result},
    types::Epoch,
};

const MAGIC: &[u8; 8] = b"SILTLOG\0";
const VERSION: u16 = 1;
const HEADER_BYTES: usize = 48;
const CRC_BYTES: usize = 4;

/// What a record's body holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// A change to what the records before it add up to.
    Edit,
    /// All that the records before it add up to.
    Snapshot,
    /// Nothing: a writer took over with the record's epoch.
    Claim,
}

/// One record of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its place in the log, from 1.
    pub number: u64,
    /// What the body holds.
    pub kind: RecordKind,
    /// Epoch of the writer.
    pub epoch: Epoch,
    /// Random id of the append.
    pub attempt: u128,
    /// Number of the record at which a reader of this one begins: the newest snapshot up to here, or 1.
    pub base: u64,
    /// An encoded edit or snapshot.
    pub body: Bytes,
}

impl Record {
    /// Size of the record's object.
    pub fn bytes(&self) -> usize {
        HEADER_BYTES + self.body.len() + CRC_BYTES
    }

    /// The record's object.
    pub fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(self.bytes());
        bytes.put_slice(MAGIC);
        bytes.put_u16_le(VERSION);
        bytes.put_u8(match self.kind {
            RecordKind::Edit => 0,
            RecordKind::Snapshot => 1,
            RecordKind::Claim => 2,
        });
        bytes.put_u8(0);
        bytes.put_u64_le(self.epoch.0);
        bytes.put_u128_le(self.attempt);
        bytes.put_u64_le(self.base);
        bytes.put_u32_le(self.body.len() as u32);
        bytes.put_slice(&self.body);
        let crc = crc32fast::hash(&bytes);
        bytes.put_u32_le(crc);
        bytes.freeze()
    }

    /// The record in `bytes`, the object `name` of number `number`.
    ///
    /// # Errors
    /// `Corrupt`, naming the object: not a record, truncated, damaged, or from a newer version.
    pub fn decode(name: &str, number: u64, bytes: &Bytes) -> Result<Self> {
        let corrupt = |what: String| Error::corrupt(format!("log record {name}: {what}"));
        let length = bytes.len();
        if length < HEADER_BYTES + CRC_BYTES {
            return Err(corrupt(format!("{length} bytes are too few for a record")));
        }
        if &bytes[..8] != MAGIC {
            return Err(corrupt("does not begin with SILTLOG".into()));
        }
        let version = u16::from_le_bytes(bytes[8..10].try_into().expect("2 bytes"));
        if version != VERSION {
            return Err(corrupt(format!(
                "format version {version}; this siltstone reads version {VERSION}"
            )));
        }
        let body_bytes = u32::from_le_bytes(bytes[44..48].try_into().expect("4 bytes")) as usize;
        if length != HEADER_BYTES + body_bytes + CRC_BYTES {
            return Err(corrupt(format!(
                "{length} bytes, but its body has {body_bytes}"
            )));
        }
        let (content, crc) = bytes.split_at(length - CRC_BYTES);
        let crc = u32::from_le_bytes(crc.try_into().expect("4 bytes"));
        if crc32fast::hash(content) != crc {
            return Err(corrupt("checksum does not match".into()));
        }
        let kind = match bytes[10] {
            0 => RecordKind::Edit,
            1 => RecordKind::Snapshot,
            2 => RecordKind::Claim,
            kind => return Err(corrupt(format!("kind {kind} is not known"))),
        };
        let base = u64::from_le_bytes(bytes[36..44].try_into().expect("8 bytes"));
        if !(1..=number).contains(&base) {
            return Err(corrupt(format!("begins at record {base}")));
        }
        Ok(Self {
            number,
            kind,
            base,
            epoch: Epoch(u64::from_le_bytes(
                bytes[12..20].try_into().expect("8 bytes"),
            )),
            attempt: u128::from_le_bytes(bytes[20..36].try_into().expect("16 bytes")),
            body: bytes.slice(HEADER_BYTES..HEADER_BYTES + body_bytes),
        })
    }
}
