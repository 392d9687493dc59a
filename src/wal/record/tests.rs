//! The format, byte by byte.

use std::sync::Arc;

use arrow::{
    array::{
        ArrayRef, BinaryViewBuilder, Decimal128Array, DictionaryArray, Int32Array, Int64Array,
        ListArray, NullArray, StringArray, StringViewArray, StructArray, TimestampNanosecondArray,
    },
    datatypes::{DataType, Field, Int8Type, Int32Type, Schema},
};

use super::*;

fn entry(batch: RecordBatch) -> WalEntry {
    WalEntry {
        table: TableId::from_parts((1 << 48) - 2, (1 << 80) - 3),
        seq: Seq(u64::MAX - 1),
        kind: EntryKind::Delete,
        batch,
    }
}

#[test]
fn entries_of_every_type_survive() {
    let mut views = BinaryViewBuilder::new();
    views.append_value(b"longer than twelve bytes");
    views.append_null();
    views.append_value(b"");
    let lists: ListArray = ListArray::from_iter_primitive::<Int32Type, _, _>([
        Some(vec![Some(1), None]),
        None,
        Some(vec![]),
    ]);
    let field = Arc::new(Field::new("x", DataType::Int32, true));
    let ints: ArrayRef = Arc::new(Int32Array::from(vec![Some(7), None, Some(9)]));
    let columns: Vec<(&str, ArrayRef)> = vec![
        (
            "dictionary",
            Arc::new(DictionaryArray::<Int8Type>::from_iter([
                Some("a"),
                None,
                Some("a"),
            ])),
        ),
        ("views", Arc::new(views.finish())),
        (
            "strings",
            Arc::new(StringViewArray::from(vec![Some("x"), None, Some("yy")])),
        ),
        ("lists", Arc::new(lists)),
        (
            "struct",
            Arc::new(StructArray::from(vec![(field, ints.clone())])),
        ),
        (
            "time",
            Arc::new(TimestampNanosecondArray::from(vec![1, -1, i64::MAX]).with_timezone("UTC")),
        ),
        ("decimal", Arc::new(Decimal128Array::from(vec![1, 2, -3]))),
        ("nothing", Arc::new(NullArray::new(3))),
    ];
    let whole = entry(RecordBatch::try_from_iter(columns).unwrap());
    let mut slice = whole.clone();
    slice.batch = whole.batch.slice(1, 2);
    let mut empty = whole.clone();
    empty.batch = whole.batch.slice(0, 0);
    for entry in [whole, slice, empty] {
        let mut bytes = segment_header(1);
        let payload = Payload::encode(&entry).unwrap();
        payload.append_to(&mut bytes, 1, SEGMENT_HEADER_BYTES as u64);
        assert_eq!(bytes.len(), SEGMENT_HEADER_BYTES + payload.record_bytes());
        let Found::Record(payload) = look(&bytes, 1, SEGMENT_HEADER_BYTES) else {
            panic!("no record");
        };
        assert_eq!(decode(&bytes[payload]).unwrap(), entry);
    }
}

#[test]
fn headers_are_checked() {
    let header = segment_header(7);
    assert_eq!(header.len(), SEGMENT_HEADER_BYTES);
    assert_eq!(check_segment_header(&header, 7).unwrap(), SegmentHead::Good);
    assert_eq!(check_segment_header(&header, 8).unwrap(), SegmentHead::Bad);
    for length in 0..header.len() {
        let head = check_segment_header(&header[..length], 7).unwrap();
        assert_eq!(head, SegmentHead::Bad);
    }
    let mut newer = header;
    newer[8] = 9;
    let error = check_segment_header(&newer, 7).unwrap_err();
    assert!(error.message().contains("version 9"), "{error}");
}

#[test]
fn only_a_later_group_proves_that_an_offset_was_synced() {
    let strings: ArrayRef = Arc::new(StringArray::from(vec!["SREC SREC SREC"]));
    let batch = RecordBatch::try_from_iter([("a", strings)]).unwrap();
    let payload = Payload::encode(&entry(batch)).unwrap();
    let mut bytes = segment_header(1);
    let group = bytes.len() as u64;
    for _ in 0..3 {
        payload.append_to(&mut bytes, 1, group);
    }
    let last = bytes.len();
    assert_eq!(written_after_sync_of(&bytes, 1, group as usize), None);
    bytes.extend_from_slice(&end_mark(1, last as u64));
    assert_eq!(look(&bytes, 1, last), Found::EndMark);
    assert_eq!(written_after_sync_of(&bytes, 1, group as usize), Some(last));
    assert_eq!(written_after_sync_of(&bytes, 1, last), None);
    assert_eq!(written_after_sync_of(&bytes, 2, group as usize), None);
    assert!(matches!(look(&bytes, 2, last), Found::Bad(_)));
}

#[test]
fn version_1_stays_readable() {
    let entries = [
        crate::wal::tests::entry(1, 2),
        crate::wal::tests::entry(2, 3),
    ];
    let mut bytes = segment_header(7);
    for entry in &entries {
        let group = bytes.len() as u64;
        Payload::encode(entry)
            .unwrap()
            .append_to(&mut bytes, 7, group);
    }
    bytes.extend(end_mark(7, bytes.len() as u64));
    let golden = crate::golden::check("wal-segment-v1.bin", &bytes);
    assert_eq!(check_segment_header(&golden, 7).unwrap(), SegmentHead::Good);
    let mut offset = SEGMENT_HEADER_BYTES;
    for entry in &entries {
        let Found::Record(payload) = look(&golden, 7, offset) else {
            panic!("no record at offset {offset}");
        };
        offset = payload.end;
        assert_eq!(decode(&golden[payload]).unwrap(), *entry);
    }
    assert_eq!(look(&golden, 7, offset), Found::EndMark);
    assert_eq!(offset + RECORD_HEADER_BYTES, golden.len());
}

#[test]
fn lengths_in_a_payload_are_not_believed() {
    let column = Field::new("k", DataType::Int64, false);
    let keys: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
    let batch = RecordBatch::try_new(Arc::new(Schema::new(vec![column])), vec![keys]).unwrap();
    let good = Payload::encode(&entry(batch)).unwrap().bytes;
    assert_eq!(decode(&good).unwrap().batch.num_rows(), 2);
    // The length of the schema's message, which follows the continuation marker: two GiB of nothing.
    let mut bytes = good.clone();
    bytes[PAYLOAD_HEADER_BYTES + 4..PAYLOAD_HEADER_BYTES + 8]
        .copy_from_slice(&i32::MAX.to_le_bytes());
    let error = decode(&bytes).unwrap_err();
    assert!(error.message().contains("holds no batch"), "{error}");
    // Whatever else is damaged behind a checksum that is right, it is an error.
    for at in PAYLOAD_HEADER_BYTES..good.len() {
        for bit in 0..8 {
            let mut bytes = good.clone();
            bytes[at] ^= 1 << bit;
            drop(decode(&bytes));
        }
    }
}
