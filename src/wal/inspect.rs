//! Describes a segment for people, a file or an object, damaged or not: every entry that can be read, and
//! what lies between. Pure; reads bytes that somebody else fetched.

use bytes::Bytes;
use serde::Serialize;

use super::{
    EntryKind, group,
    record::{
        Found, RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES, SegmentHead, check_segment_header,
        decode, look, segment_number,
    },
};
use crate::{
    error::Result,
    store::log::{Record, RecordKind},
};

/// A segment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SegmentReport {
    /// Length of the file.
    pub bytes: u64,
    /// Its number, as its header says, or the name of its object.
    pub number: Option<u64>,
    /// Epoch of the engine that wrote it; of objects only.
    pub epoch: Option<u64>,
    /// Whether it is whole: a file that ends with an end mark, so that its log went on or was closed; an
    /// object in any case.
    pub ended: bool,
    /// The records that can be read, in order.
    pub records: Vec<RecordReport>,
    /// What is wrong, and where.
    pub faults: Vec<String>,
}

/// One record of a segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RecordReport {
    /// Where it begins, in the file, or in the body of the object.
    pub offset: u64,
    /// Its length, its header included.
    pub bytes: u64,
    /// Id of the table.
    pub table: String,
    /// Seq of the batch.
    pub seq: u64,
    /// `"put"` or `"delete"`.
    pub kind: &'static str,
    /// Rows of the batch.
    pub rows: u64,
}

/// Describes the segment called `name`, of which only the file's own name counts, whose content is `bytes`.
pub fn segment(name: &str, bytes: &Bytes) -> SegmentReport {
    if bytes.starts_with(b"SILTLOG") {
        object(name, bytes)
    } else {
        file(bytes)
    }
}

/// Describes a record of an object WAL.
fn object(name: &str, bytes: &Bytes) -> SegmentReport {
    let file_name = name.rsplit('/').next().unwrap_or(name);
    let number = file_name
        .split('.')
        .next()
        .and_then(|stem| stem.parse().ok());
    let mut report = SegmentReport {
        bytes: bytes.len() as u64,
        number,
        ..SegmentReport::default()
    };
    // Copied under another name, it is any number.
    let record = match Record::decode(file_name, number.unwrap_or(u64::MAX), bytes) {
        Ok(record) => record,
        Err(error) => {
            report.faults.push(format!("offset 0: {}", error.message()));
            return report;
        }
    };
    report.epoch = Some(record.epoch.0);
    report.ended = true;
    let body = &record.body;
    let mut offset = 0;
    while offset < body.len() && record.kind == RecordKind::Edit {
        let Some(payload) = group::payload_at(body, offset) else {
            let left = body.len() - offset;
            let what = format!("body offset {offset}: the last {left} bytes are no entry");
            report.faults.push(what);
            break;
        };
        let bytes = group::LENGTH_BYTES + payload.len();
        match self::payload(payload) {
            Ok(record) => report.records.push(RecordReport {
                offset: offset as u64,
                bytes: bytes as u64,
                ..record
            }),
            Err(error) => report.faults.push(format!("body offset {offset}: {error}")),
        }
        offset += bytes;
    }
    report
}

/// Describes the segment file whose content is `bytes`.
fn file(bytes: &[u8]) -> SegmentReport {
    let mut report = SegmentReport {
        bytes: bytes.len() as u64,
        number: segment_number(bytes),
        ..SegmentReport::default()
    };
    let Some(number) = report.number else {
        let what = format!(
            "offset 0: {} bytes do not begin with a segment header",
            bytes.len()
        );
        report.faults.push(what);
        return report;
    };
    match check_segment_header(bytes, number) {
        Ok(SegmentHead::Good) => {}
        Ok(SegmentHead::Bad) => {
            let what = "offset 0: the segment header does not match its checksum";
            report.faults.push(what.into());
        }
        Err(error) => {
            report.faults.push(format!("offset 8: {}", error.message()));
            return report;
        }
    }
    let mut offset = SEGMENT_HEADER_BYTES.min(bytes.len());
    while let Some(next) = record_at(bytes, number, offset, &mut report) {
        offset = next;
    }
    report
}

/// Describes the payload of a record; where it lies is left open.
///
/// # Errors
/// `Corrupt` when it does not decode.
pub fn payload(bytes: &[u8]) -> Result<RecordReport> {
    let entry = decode(bytes)?;
    Ok(RecordReport {
        offset: 0,
        bytes: bytes.len() as u64,
        table: entry.table.to_string(),
        seq: entry.seq.0,
        kind: match entry.kind {
            EntryKind::Put => "put",
            EntryKind::Delete => "delete",
        },
        rows: entry.batch.num_rows() as u64,
    })
}

/// Describes what stands at `offset`; returns where to look next.
fn record_at(
    bytes: &[u8],
    number: u64,
    offset: usize,
    report: &mut SegmentReport,
) -> Option<usize> {
    match look(bytes, number, offset) {
        Found::Nothing => None,
        Found::EndMark => {
            report.ended = true;
            let end = offset + RECORD_HEADER_BYTES;
            if end < bytes.len() {
                let left = bytes.len() - end;
                let what = format!("offset {end}: {left} bytes follow the end mark");
                report.faults.push(what);
            }
            None
        }
        Found::Record(payload) => {
            let end = payload.end;
            match self::payload(&bytes[payload]) {
                Ok(record) => report.records.push(RecordReport {
                    offset: offset as u64,
                    bytes: (end - offset) as u64,
                    ..record
                }),
                Err(error) => report.faults.push(format!("offset {offset}: {error}")),
            }
            Some(end)
        }
        Found::Bad(what) => {
            let later = offset + 1..bytes.len();
            let next = later.into_iter().find(|&at| {
                let found = look(bytes, number, at);
                matches!(found, Found::Record(_) | Found::EndMark)
            });
            let skipped = next.unwrap_or(bytes.len()) - offset;
            let rest = match next {
                Some(next) => format!("{skipped} bytes skipped, readable again from offset {next}"),
                None => format!("nothing can be read in the last {skipped} bytes"),
            };
            report
                .faults
                .push(format!("offset {offset}: {what}; {rest}"));
            next
        }
    }
}

#[cfg(test)]
mod tests;
