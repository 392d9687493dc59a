//! The memtable against simple models: an ordered map of versions, and a stable sort.

use std::{cmp::Reverse, collections::BTreeMap, time::Duration};

use arrow::{
    array::{
        Array, ArrayRef, AsArray, DictionaryArray, Int64Array, StringArray, StringViewArray,
        TimestampSecondArray,
    },
    datatypes::{
        DataType, Field, Int32Type, Int64Type, Schema, TimeUnit, TimestampSecondType, UInt8Type,
        UInt64Type,
    },
};
use proptest::prelude::*;

use super::*;
use crate::types::{KeyRange, Op, TableOptions, Window, WriteMode};

const WINDOW_SECONDS: i64 = 10;

/// Key (name nullable, number, time), one value column. With windows.
fn schema(write_mode: WriteMode) -> TableSchema {
    let columns = Schema::new(vec![
        Field::new("value", DataType::Int64, false),
        Field::new("time", DataType::Timestamp(TimeUnit::Second, None), false),
        Field::new("name", DataType::Utf8, true),
        Field::new("number", DataType::Int64, true),
    ]);
    let options = TableOptions {
        write_mode,
        window: Duration::from_secs(WINDOW_SECONDS as u64).into(),
        ..TableOptions::default()
    };
    let key = ["name", "number", "time"];
    TableSchema::new(Arc::new(columns), &key, Some("time"), options).unwrap()
}

type Key = (Option<String>, Option<i64>, i64);
/// Key, seq, op, value (`None` in a tombstone).
type Row = (Key, u64, u8, Option<i64>);

fn columns(keys: &[Key]) -> [ArrayRef; 3] {
    [
        Arc::new(
            keys.iter()
                .map(|key| key.0.as_deref())
                .collect::<StringArray>(),
        ),
        Arc::new(keys.iter().map(|key| key.1).collect::<Int64Array>()),
        Arc::new(TimestampSecondArray::from_iter_values(
            keys.iter().map(|key| key.2),
        )),
    ]
}

fn puts(schema: &TableSchema, rows: &[(Key, i64)], seq: u64) -> RecordBatch {
    let keys: Vec<Key> = rows.iter().map(|(key, _)| key.clone()).collect();
    let [name, number, time] = columns(&keys);
    let value = Int64Array::from_iter_values(rows.iter().map(|(_, value)| *value));
    let columns = vec![Arc::new(value) as ArrayRef, time, name, number];
    let batch = RecordBatch::try_new(schema.columns().clone(), columns).unwrap();
    schema.puts(&batch, Seq(seq)).unwrap()
}

fn tombstones(schema: &TableSchema, keys: &[Key], seq: u64) -> RecordBatch {
    let keys = RecordBatch::try_new(schema.key_schema(), columns(keys).to_vec()).unwrap();
    schema.tombstones(&keys, Seq(seq)).unwrap()
}

fn rows_of(batch: &RecordBatch) -> Vec<Row> {
    let ints = |at: usize| batch.column(at).as_primitive::<Int64Type>();
    let times = batch.column(1).as_primitive::<TimestampSecondType>();
    let names = batch.column(2).as_string::<i32>();
    let seqs = batch.column(4).as_primitive::<UInt64Type>();
    let ops = batch.column(5).as_primitive::<UInt8Type>();
    let int = |at: usize, row: usize| ints(at).is_valid(row).then(|| ints(at).value(row));
    (0..batch.num_rows())
        .map(|row| {
            let name = names.is_valid(row).then(|| names.value(row).to_owned());
            let key = (name, int(3, row), times.value(row));
            (key, seqs.value(row), ops.value(row), int(0, row))
        })
        .collect()
}

fn encoded(schema: &TableSchema, key: &Key) -> crate::types::Key {
    let keys = columns(std::slice::from_ref(key)).to_vec();
    let keys = RecordBatch::try_new(schema.key_schema(), keys).unwrap();
    schema.key_of(&keys).unwrap()
}

/// What a k-way merge makes of the sources.
fn merged(view: &MemtableView, range: &KeyRange) -> Vec<Row> {
    let mut rows = Vec::new();
    for source in view.sources(range) {
        let source = rows_of(&source);
        assert!(!source.is_empty());
        assert!(source.is_sorted_by_key(|row| (row.0.clone(), Reverse(row.1))));
        rows.extend(source);
    }
    rows.sort_by_key(|row| (row.0.clone(), Reverse(row.1)));
    rows
}

fn window(row: &Row) -> Window {
    let start = row.0.2.div_euclid(WINDOW_SECONDS) * WINDOW_SECONDS;
    Window::new(start, start + WINDOW_SECONDS)
}

/// An insert: keys with values, or tombstones.
#[derive(Clone, Debug)]
enum Insert {
    Put(Vec<(Key, i64)>),
    Delete(Vec<Key>),
}

fn any_key() -> impl Strategy<Value = Key> {
    let name = prop::option::of(prop::sample::select(vec!["", "a", "aa", "b\0", "ü"]));
    (
        name.prop_map(|name| name.map(str::to_owned)),
        prop::option::of(-2..3i64),
        -15..25i64,
    )
}

fn any_insert() -> impl Strategy<Value = Insert> {
    let puts = prop::collection::vec((any_key(), any::<i64>()), 0..12);
    prop_oneof![
        4 => puts.prop_map(Insert::Put),
        1 => prop::collection::vec(any_key(), 1..4).prop_map(Insert::Delete),
    ]
}

fn inserted(schema: &TableSchema, inserts: &[(Insert, u64)]) -> (Memtable, Vec<Row>) {
    let memtable = Memtable::new(schema.clone());
    let mut all = Vec::new();
    for (insert, seq) in inserts {
        let batch = match insert {
            Insert::Put(rows) => puts(schema, rows, *seq),
            Insert::Delete(keys) => tombstones(schema, keys, *seq),
        };
        memtable.insert(&batch).unwrap();
        all.extend(rows_of(&batch));
    }
    (memtable, all)
}

/// Checks every way of reading `memtable` against `expected`, the rows in order.
fn check(memtable: &Memtable, expected: &[Row], bounds: (&Key, &Key)) {
    let schema = memtable.schema();
    let view = memtable.view();
    assert_eq!(merged(&view, &KeyRange::ALL), expected);
    assert_eq!(memtable.rows(), expected.len() as u64);
    assert_eq!(memtable.is_empty(), expected.is_empty());
    let seqs = expected.iter().map(|row| Seq(row.1));
    assert_eq!(memtable.seq_range(), seqs.clone().min().zip(seqs.max()));
    let chunk_bytes: u64 = view.chunks().iter().map(|chunk| chunk.bytes()).sum();
    assert_eq!(memtable.bytes(), chunk_bytes);

    let range = KeyRange {
        start: Some(encoded(schema, bounds.0)),
        end: Some(encoded(schema, bounds.1)),
    };
    let inside = |row: &&Row| row.0 >= *bounds.0 && row.0 < *bounds.1;
    let within: Vec<Row> = expected.iter().filter(inside).cloned().collect();
    assert_eq!(merged(&view, &range), within);

    for batch_rows in [1, 3, 8192] {
        let mut windows = BTreeMap::<Window, Vec<Row>>::new();
        for row in expected {
            windows.entry(window(row)).or_default().push(row.clone());
        }
        let flushed = view
            .by_window(view.schema().window_width(), batch_rows)
            .unwrap();
        let flushed: Vec<(Window, Vec<Row>)> = flushed
            .into_iter()
            .map(|(window, batches)| {
                assert!(
                    batches
                        .iter()
                        .all(|batch| (1..=batch_rows).contains(&batch.num_rows()))
                );
                (window, batches.iter().flat_map(rows_of).collect())
            })
            .collect();
        assert_eq!(flushed, windows.into_iter().collect::<Vec<_>>());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn an_upsert_table_keeps_the_last_row_of_a_key_in_each_batch(
        inserts in prop::collection::vec(any_insert(), 0..80),
        shuffle in any::<u64>(),
        bounds in (any_key(), any_key()),
    ) {
        let schema = schema(WriteMode::Upsert);
        // Seqs are unique, but need not grow.
        let seqs = (1u64..).map(|seq| if shuffle & 1 == 0 { seq } else { seq ^ 3 });
        let inserts: Vec<_> = inserts.into_iter().zip(seqs).collect();
        let (memtable, rows) = inserted(&schema, &inserts);
        let mut model = BTreeMap::new();
        for row in rows {
            model.insert((row.0.clone(), Reverse(row.1)), row);
        }
        let expected: Vec<Row> = model.into_values().collect();
        check(&memtable, &expected, (&bounds.0, &bounds.1));
    }

    #[test]
    fn an_append_table_keeps_every_row_in_order(
        inserts in prop::collection::vec(any_insert(), 0..80),
        bounds in (any_key(), any_key()),
    ) {
        let schema = schema(WriteMode::Append);
        // Two inserts may share a seq: then the order of insertion counts.
        let inserts: Vec<_> = inserts.into_iter().zip((2u64..).map(|n| n / 2)).collect();
        let (memtable, mut expected) = inserted(&schema, &inserts);
        expected.sort_by_key(|row| (row.0.clone(), Reverse(row.1)));
        check(&memtable, &expected, (&bounds.0, &bounds.1));
    }
}

#[test]
fn chunks_stay_few_and_views_stay_as_they_were() {
    let schema = schema(WriteMode::Upsert);
    let memtable = Memtable::new(schema.clone());
    let mut views = Vec::new();
    for seq in 1..=2000 {
        let key = |n: u64| (Some("k".to_owned()), Some((n * 7919 % 1000) as i64), 0);
        let rows = [(key(seq), 1), (key(seq + 1), 2)];
        memtable.insert(&puts(&schema, &rows, seq)).unwrap();
        if seq % 500 == 0 {
            views.push((memtable.view(), seq * 2));
        }
        let chunks = memtable.view().sources(&KeyRange::ALL).len();
        assert!(chunks <= 4 * MERGE_CHUNKS, "{chunks} chunks after {seq}");
    }
    for (view, rows) in views {
        assert_eq!(merged(&view, &KeyRange::ALL).len() as u64, rows);
    }
    assert_eq!(memtable.seq_range(), Some((Seq(1), Seq(2000))));
}

#[test]
fn inserts_from_many_threads_are_all_seen() {
    let schema = schema(WriteMode::Append);
    let memtable = Memtable::new(schema.clone());
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (schema, memtable) = (&schema, &memtable);
            scope.spawn(move || {
                for at in 0..200 {
                    let seq = at * 4 + thread + 1;
                    let key = (None, Some(seq as i64 % 17), 0);
                    memtable.insert(&puts(schema, &[(key, 1)], seq)).unwrap();
                }
            });
        }
    });
    let rows = merged(&memtable.view(), &KeyRange::ALL);
    assert_eq!(rows.len(), 800);
    assert!(rows.is_sorted_by_key(|row| (row.0.clone(), Reverse(row.1))));
}

#[test]
fn what_is_counted_is_what_is_kept() {
    let columns = Schema::new(vec![
        Field::new("key", DataType::Int64, false),
        Field::new("view", DataType::Utf8View, true),
        Field::new(
            "code",
            DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8)),
            true,
        ),
        Field::new("text", DataType::Utf8, true),
    ]);
    let options = TableOptions::default();
    let schema = TableSchema::new(Arc::new(columns), &["key"], None, options).unwrap();
    let rows = 20_000;
    let texts: Vec<String> = (0..rows)
        .map(|row| format!("a text of some length {row}"))
        .collect();
    let codes: DictionaryArray<Int32Type> = texts.iter().map(|text| Some(text.as_str())).collect();
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from_iter_values(0..rows)),
        Arc::new(StringViewArray::from_iter_values(&texts)),
        Arc::new(codes),
        Arc::new(StringArray::from_iter_values(&texts)),
    ];
    let large = RecordBatch::try_new(schema.columns().clone(), columns).unwrap();
    let memtable = Memtable::new(schema.clone());
    for seq in 1..=20 {
        let slice = large.slice(seq as usize * 900, 10);
        memtable
            .insert(&schema.puts(&slice, Seq(seq)).unwrap())
            .unwrap();
    }
    // 200 rows of about 120 bytes in three copies, and what arrays and buffers cost themselves.
    let bytes = memtable.bytes();
    assert!((20_000..200_000).contains(&bytes), "{bytes} bytes");
    let view = memtable.view();
    let (window, batches) = view.by_window(None, 1000).unwrap().remove(0);
    assert_eq!((window, batches.len()), (Window::ALL, 1));
    let expected: Vec<RecordBatch> = (1..=20)
        .map(|seq| {
            schema
                .puts(&large.slice(seq as usize * 900, 10), Seq(seq))
                .unwrap()
        })
        .collect();
    let expected = arrow::compute::concat_batches(schema.stored(), &expected).unwrap();
    assert_eq!(batches[0], expected);
}

#[test]
fn batches_of_another_kind_are_refused() {
    let schema = schema(WriteMode::Upsert);
    let memtable = Memtable::new(schema.clone());
    let key = (None, None, 0);
    let one = puts(&schema, &[(key.clone(), 1)], 1);
    let two = puts(&schema, &[(key, 1)], 2);
    let mixed = arrow::compute::concat_batches(schema.stored(), [&one, &two]).unwrap();
    assert!(memtable.insert(&mixed).is_err());
    assert!(memtable.insert(&one.project(&[0, 1]).unwrap()).is_err());
    memtable.insert(&one.slice(0, 0)).unwrap();
    assert!(memtable.is_empty() && memtable.seq_range().is_none());
    assert_eq!(memtable.view().by_window(None, 10).unwrap().len(), 0);
    assert!(memtable.view().by_window(None, 0).is_err());
    memtable
        .insert(&tombstones(&schema, &[(None, Some(1), 5)], 3))
        .unwrap();
    let rows = merged(&memtable.view(), &KeyRange::ALL);
    assert_eq!(rows, [((None, Some(1), 5), 3, Op::Delete as u8, None)]);
}
