//! The format of a segment file: a header, then records, then perhaps an end mark. Little-endian.
//!
//! ```text
//! segment header                              record
//! 0   8  magic "SILTWAL\0"                    0   4  marker "SREC"
//! 8   2  format version, 1                    4   4  length n of the payload; 0 is the end mark
//! 10  2  reserved, 0                          8   8  group: offset in the segment of the first record
//! 12  8  number of the segment                       that was fsynced together with this one
//! 20  4  CRC-32 of everything before it       16  4  CRC-32 of the payload
//!                                             20  4  CRC-32 of the number of the segment (8 bytes)
//!                                                    and the 20 bytes before it
//! payload                                     24  n  payload
//! 0   16 table id
//! 16  8  seq
//! 24  1  kind: 0 put, 1 delete
//! 25  .. one Arrow IPC stream: schema, dictionaries, one batch, end of stream
//! ```
//!
//! Each payload carries its schema, so that it can be read without any other record or file, and every
//! Arrow type survives.
//!
//! **Torn tail or damage?** A crash may lose or tear any part of what had not been fsynced yet: the last
//! group, and because pages reach the disk in any order, a bad record may even be followed by good ones
//! of its group. Nobody was told that these entries were safe, so they are dropped. Everything before
//! the last group had been fsynced. So a bad record at offset *o* is damage exactly when the segment
//! holds evidence that something was written after *o* had been fsynced: the header of a record whose
//! `group` is greater than *o*. (The segment's number goes into the checksum of each header, so that an
//! old file's blocks, or a copy of a log inside a payload, are no evidence.) A segment with a successor ends with an end mark, itself a group of its
//! own, and is damaged when anything in it is bad, or the mark is missing. What cannot be told from a
//! torn tail is damage in the last group of a log that was not closed.

use std::ops::Range;

use arrow::{
    array::RecordBatch,
    buffer::Buffer,
    ipc::{reader::StreamDecoder, writer::StreamWriter},
};
use ulid::Ulid;

use super::{EntryKind, WalEntry};
use crate::{
    error::{Error, Result, guarded},
    types::{Seq, TableId},
};

const MAGIC: &[u8; 8] = b"SILTWAL\0";
const VERSION: u16 = 1;
const MARKER: &[u8; 4] = b"SREC";

/// Length of a segment's header.
pub(super) const SEGMENT_HEADER_BYTES: usize = 24;
/// Length of a record's header.
pub(super) const RECORD_HEADER_BYTES: usize = 24;
const PAYLOAD_HEADER_BYTES: usize = 25;

/// The header of segment `number`.
pub(super) fn segment_header(number: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(SEGMENT_HEADER_BYTES);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&[0; 2]);
    bytes.extend_from_slice(&number.to_le_bytes());
    let crc = crc32fast::hash(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes
}

/// What the head of a segment file turned out to be.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SegmentHead {
    /// As it should be.
    Good,
    /// Cut short or damaged.
    Bad,
}

/// Checks the head of segment `number`.
///
/// # Errors
/// `Corrupt` when it was written by a newer version; the caller names the file.
pub(super) fn check_segment_header(bytes: &[u8], number: u64) -> Result<SegmentHead> {
    let version = bytes
        .get(8..10)
        .map(|version| u16::from_le_bytes([version[0], version[1]]));
    if bytes.starts_with(MAGIC) && version.is_some_and(|version| version > VERSION) {
        let version = version.unwrap_or_default();
        return Err(Error::corrupt(format!(
            "format version {version}; this siltstone reads version {VERSION}"
        )));
    }
    let good = bytes.starts_with(&segment_header(number));
    Ok(if good {
        SegmentHead::Good
    } else {
        SegmentHead::Bad
    })
}

/// The number in a segment's header; `None` when `bytes` do not begin with one.
pub(super) fn segment_number(bytes: &[u8]) -> Option<u64> {
    let number = bytes.strip_prefix(MAGIC)?.get(4..12)?;
    Some(u64::from_le_bytes(number.try_into().ok()?))
}

/// An entry, encoded; what only the writer knows is still to come.
#[derive(Debug)]
pub(super) struct Payload {
    bytes: Vec<u8>,
    crc: u32,
}

impl Payload {
    /// Encodes `entry`.
    ///
    /// # Errors
    /// `TooLarge` when it takes 4 GiB or more.
    pub(super) fn encode(entry: &WalEntry) -> Result<Self> {
        let batch = &entry.batch;
        let mut bytes = Vec::with_capacity(PAYLOAD_HEADER_BYTES + 1024);
        bytes.extend_from_slice(&table_bits(entry.table).to_le_bytes());
        bytes.extend_from_slice(&entry.seq.0.to_le_bytes());
        bytes.push(match entry.kind {
            EntryKind::Put => 0,
            EntryKind::Delete => 1,
        });
        let mut writer = StreamWriter::try_new(&mut bytes, &batch.schema())?;
        writer.write(batch)?;
        writer.finish()?;
        drop(writer);
        if u32::try_from(bytes.len()).is_err() {
            let (table, length) = (entry.table, bytes.len());
            return Err(Error::too_large(format!(
                "wal entry of table {table} takes {length} bytes; 4 GiB is the limit"
            )));
        }
        let crc = crc32fast::hash(&bytes);
        Ok(Self { bytes, crc })
    }

    /// The encoded entry.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Length of the record that it makes.
    pub(super) fn record_bytes(&self) -> usize {
        RECORD_HEADER_BYTES + self.bytes.len()
    }

    /// Adds the record to `buffer`: one of segment `segment`, and of the group that begins at offset
    /// `group`.
    pub(super) fn append_to(&self, buffer: &mut Vec<u8>, segment: u64, group: u64) {
        append_header(buffer, segment, self.bytes.len() as u32, group, self.crc);
        buffer.extend_from_slice(&self.bytes);
    }
}

/// The end mark of segment `segment`, to be written at offset `group`.
pub(super) fn end_mark(segment: u64, group: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(RECORD_HEADER_BYTES);
    append_header(&mut bytes, segment, 0, group, crc32fast::hash(&[]));
    bytes
}

fn append_header(buffer: &mut Vec<u8>, segment: u64, length: u32, group: u64, payload_crc: u32) {
    let start = buffer.len();
    buffer.extend_from_slice(MARKER);
    buffer.extend_from_slice(&length.to_le_bytes());
    buffer.extend_from_slice(&group.to_le_bytes());
    buffer.extend_from_slice(&payload_crc.to_le_bytes());
    let crc = header_crc(segment, &buffer[start..]);
    buffer.extend_from_slice(&crc.to_le_bytes());
}

fn header_crc(segment: u64, header: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&segment.to_le_bytes());
    crc.update(header);
    crc.finalize()
}

/// What stands at some offset of a segment.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// A record, whose payload lies in this range.
    Record(Range<usize>),
    /// The end mark; nothing may follow.
    EndMark,
    /// Nothing: the segment ends here.
    Nothing,
    /// Something that is no record, for this reason.
    Bad(&'static str),
}

/// Looks at offset `offset` of segment `segment`, whose content is `bytes`.
pub(super) fn look(bytes: &[u8], segment: u64, offset: usize) -> Found {
    if offset == bytes.len() {
        return Found::Nothing;
    }
    let Some(header) = RecordHeader::parse(bytes, segment, offset) else {
        return Found::Bad("no record header");
    };
    let start = offset + RECORD_HEADER_BYTES;
    let Some(payload) = bytes.get(start..start + header.length) else {
        return Found::Bad("record is cut short");
    };
    if crc32fast::hash(payload) != header.payload_crc {
        return Found::Bad("payload does not match its checksum");
    }
    if header.length == 0 {
        return Found::EndMark;
    }
    Found::Record(start..start + header.length)
}

/// Offset of a record that was written only after everything up to and including `offset` had been
/// fsynced; `None` when there is none, so that what is bad at `offset` is a torn tail.
pub(super) fn written_after_sync_of(bytes: &[u8], segment: u64, offset: usize) -> Option<usize> {
    (offset + 1..bytes.len()).find(|&at| {
        let header = bytes[at..]
            .starts_with(MARKER)
            .then(|| RecordHeader::parse(bytes, segment, at));
        header
            .flatten()
            .is_some_and(|header| header.group > offset as u64)
    })
}

struct RecordHeader {
    length: usize,
    group: u64,
    payload_crc: u32,
}

impl RecordHeader {
    fn parse(bytes: &[u8], segment: u64, offset: usize) -> Option<Self> {
        let header = bytes.get(offset..offset + RECORD_HEADER_BYTES)?;
        let crc = u32::from_le_bytes(header[20..24].try_into().ok()?);
        if !header.starts_with(MARKER) || crc != header_crc(segment, &header[..20]) {
            return None;
        }
        Some(Self {
            length: u32::from_le_bytes(header[4..8].try_into().ok()?) as usize,
            group: u64::from_le_bytes(header[8..16].try_into().ok()?),
            payload_crc: u32::from_le_bytes(header[16..20].try_into().ok()?),
        })
    }
}

/// The entry in a payload whose checksum is right.
///
/// # Errors
/// `Corrupt`; the caller names the place.
pub(super) fn decode(payload: &[u8]) -> Result<WalEntry> {
    let Some((header, body)) = payload.split_at_checked(PAYLOAD_HEADER_BYTES) else {
        return Err(Error::corrupt("payload is too short for an entry"));
    };
    let kind = match header[24] {
        0 => EntryKind::Put,
        1 => EntryKind::Delete,
        kind => return Err(Error::corrupt(format!("entry kind {kind} is not known"))),
    };
    let table = u128::from_le_bytes(header[..16].try_into().expect("16 bytes"));
    let seq = u64::from_le_bytes(header[16..24].try_into().expect("8 bytes"));
    Ok(WalEntry {
        table: TableId::from_parts((table >> 80) as u64, table & ((1 << 80) - 1)),
        seq: Seq(seq),
        kind,
        batch: decode_batch(body)?,
    })
}

fn decode_batch(body: &[u8]) -> Result<RecordBatch> {
    let undecodable =
        |error| Error::corrupt("arrow stream of an entry does not decode").with_source(error);
    // A `StreamReader` would take memory for whatever length it reads.
    let (mut decoder, mut bytes) = (StreamDecoder::new(), Buffer::from(body));
    let batch = guarded(|| decoder.decode(&mut bytes).map_err(undecodable))?;
    batch.ok_or_else(|| Error::corrupt("entry holds no batch"))
}

/// The 128 bits of a table's id.
fn table_bits(table: TableId) -> u128 {
    let ulid = Ulid::from_string(&table.to_string());
    ulid.expect("a table id's text form is a ulid").0
}

#[cfg(test)]
mod tests;
