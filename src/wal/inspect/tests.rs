//! Good, torn and damaged segments.

use std::sync::Arc;

use arrow::{
    array::{Int64Array, RecordBatch},
    datatypes::{DataType, Field, Schema},
};

use super::*;
use crate::{
    types::{Epoch, Seq, TableId},
    wal::{
        WalEntry,
        record::{Payload, end_mark, segment_header},
    },
};

/// A segment of three records, each its own group, and where they begin; ended.
fn three() -> (Vec<u8>, Vec<usize>) {
    let mut bytes = segment_header(7);
    let mut offsets = Vec::new();
    let schema = Schema::new(vec![Field::new("k", DataType::Int64, false)]);
    for seq in 1..4 {
        let keys = Int64Array::from_iter_values(0..seq as i64);
        let batch = RecordBatch::try_new(Arc::new(schema.clone()), vec![Arc::new(keys)]).unwrap();
        let entry = WalEntry {
            table: TableId::from_parts(5, 6),
            seq: Seq(seq),
            kind: EntryKind::Put,
            batch,
        };
        offsets.push(bytes.len());
        let group = bytes.len() as u64;
        Payload::encode(&entry)
            .unwrap()
            .append_to(&mut bytes, 7, group);
    }
    let end = bytes.len() as u64;
    bytes.extend(end_mark(7, end));
    (bytes, offsets)
}

fn seqs(report: &SegmentReport) -> Vec<u64> {
    report.records.iter().map(|record| record.seq).collect()
}

#[test]
fn a_good_segment_is_listed() {
    let (bytes, offsets) = three();
    let report = file(&bytes);
    assert_eq!((report.number, report.ended), (Some(7), true));
    assert_eq!(report.faults, [""; 0]);
    assert_eq!(seqs(&report), [1, 2, 3]);
    assert_eq!(report.records[2].rows, 3);
    assert_eq!(report.records[1].offset, offsets[1] as u64);
    let last = &report.records[2];
    assert_eq!(last.offset + last.bytes + 24, report.bytes);
}

#[test]
fn damage_is_named_and_what_follows_is_read() {
    let (good, offsets) = three();
    let mut bytes = good.clone();
    bytes[offsets[1] + 40] ^= 1;
    let report = file(&bytes);
    assert_eq!((seqs(&report), report.ended), (vec![1, 3], true));
    let [fault] = &report.faults[..] else {
        panic!("{report:?}");
    };
    assert!(
        fault.starts_with(&format!("offset {}: ", offsets[1])),
        "{fault}"
    );
    assert!(
        fault.contains(&format!("from offset {}", offsets[2])),
        "{fault}"
    );

    // Everywhere, one bit at a time: never a panic, and at most one record lost.
    for at in 0..good.len() {
        let mut bytes = good.clone();
        bytes[at] ^= 1 << (at % 8);
        let report = file(&bytes);
        assert!(!report.faults.is_empty(), "byte {at}: {report:?}");
        if at >= SEGMENT_HEADER_BYTES {
            assert!(report.records.len() >= 2, "byte {at}: {report:?}");
        }
    }
}

#[test]
fn a_cut_segment_is_read_up_to_the_cut() {
    let (good, offsets) = three();
    for length in 0..good.len() {
        let report = file(&good[..length]);
        let whole = offsets.iter().skip(1).filter(|&&at| at <= length).count();
        let is_third = usize::from(good.len() - 24 <= length);
        assert_eq!(
            report.records.len(),
            whole + is_third,
            "{length}: {report:?}"
        );
        assert!(!report.ended);
    }
}

#[test]
fn objects_are_listed_entry_by_entry() {
    let (file, offsets) = three();
    let entry = |at: usize| {
        let payload = &file[offsets[at] + RECORD_HEADER_BYTES..offsets[at + 1]];
        [&(payload.len() as u32).to_le_bytes(), payload].concat()
    };
    let mut record = Record {
        number: 7,
        kind: RecordKind::Edit,
        epoch: Epoch(3),
        attempt: 0,
        base: 1,
        body: [entry(0), entry(1)].concat().into(),
    };
    let name = "wal/siltstone/00000000000000000007.wal";
    let report = segment(name, &record.encode());
    assert_eq!((report.number, report.epoch), (Some(7), Some(3)));
    assert_eq!((seqs(&report), report.faults.len()), (vec![1, 2], 0));
    assert_eq!(report.records[1].offset, entry(0).len() as u64);

    let mut cut = entry(1);
    cut.truncate(20);
    record.body = [entry(0), cut].concat().into();
    let report = segment(name, &record.encode());
    assert_eq!((seqs(&report), report.faults.len()), (vec![1], 1));
    let torn = record.encode().slice(..50);
    let report = segment(name, &torn);
    assert_eq!((report.records.len(), report.faults.len()), (0, 1));
}
