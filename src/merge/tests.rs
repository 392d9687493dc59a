//! The merge against a model that applies the definitions of [`Keep`] row by row.

use std::{collections::BTreeMap, sync::Arc};

use arrow::{
    array::{
        ArrayRef, AsArray, Float64Array, Int64Array, RecordBatch, StringArray,
        TimestampMicrosecondArray, UInt8Array, UInt64Array,
    },
    datatypes::{DataType, Field, Int64Type, Schema, TimeUnit},
};
use proptest::prelude::*;

use super::*;
use crate::types::{Key, KeyRange, TableOptions};

mod combining;
mod large;

/// Key types that the model is run with.
#[derive(Clone, Copy, Debug)]
enum KeyKind {
    Int,
    NullableText,
    Float,
    TextAndTime,
}

#[derive(Clone, Debug)]
struct Row {
    key: u8,
    seq: u64,
    delete: bool,
    id: i64,
}

fn schema(kind: KeyKind, mode: WriteMode) -> TableSchema {
    let time = DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()));
    let key = match kind {
        KeyKind::Int => vec![Field::new("k", DataType::Int64, false)],
        KeyKind::NullableText => vec![Field::new("k", DataType::Utf8, true)],
        KeyKind::Float => vec![Field::new("k", DataType::Float64, false)],
        KeyKind::TextAndTime => vec![
            Field::new("k", DataType::Utf8, false),
            Field::new("t", time, false),
        ],
    };
    let names: Vec<String> = key.iter().map(|field| field.name().clone()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let value = Field::new("id", DataType::Int64, true);
    let columns = Schema::new(key.into_iter().chain([value]).collect::<Vec<_>>());
    let options = TableOptions {
        write_mode: mode,
        ..TableOptions::default()
    };
    TableSchema::new(Arc::new(columns), &names, None, options).unwrap()
}

fn batch(schema: &TableSchema, kind: KeyKind, rows: &[Row]) -> RecordBatch {
    let keys = || rows.iter().map(|row| row.key);
    let mut columns: Vec<ArrayRef> = match kind {
        KeyKind::Int => vec![Arc::new(Int64Array::from_iter_values(
            keys().map(|key| i64::from(key) - 5),
        ))],
        KeyKind::NullableText => {
            vec![Arc::new(StringArray::from_iter(keys().map(|key| {
                (key > 0).then(|| "x".repeat(usize::from(key) - 1))
            })))]
        }
        KeyKind::Float => vec![Arc::new(Float64Array::from_iter_values(keys().map(
            |key| match key {
                0 => f64::NAN,
                1 => -0.0,
                2 => 0.0,
                key => f64::from(key) - 6.5,
            },
        )))],
        KeyKind::TextAndTime => vec![
            Arc::new(StringArray::from_iter_values(
                keys().map(|key| format!("host{}", key / 4)),
            )),
            Arc::new(
                TimestampMicrosecondArray::from_iter_values(keys().map(|key| i64::from(key % 4)))
                    .with_timezone("UTC"),
            ),
        ],
    };
    columns.push(Arc::new(Int64Array::from_iter_values(
        rows.iter().map(|row| row.id),
    )));
    columns.push(Arc::new(UInt64Array::from_iter_values(
        rows.iter().map(|row| row.seq),
    )));
    columns.push(Arc::new(UInt8Array::from_iter_values(
        rows.iter().map(|row| u8::from(row.delete)),
    )));
    RecordBatch::try_new(schema.stored().clone(), columns).unwrap()
}

fn source(batches: Vec<RecordBatch>) -> SortedSource {
    Box::new(batches.into_iter().map(Ok))
}

fn merge(schema: &TableSchema, sources: Vec<SortedSource>, options: MergeOptions) -> Merge {
    let columns = MergeColumns::find(schema, schema.stored()).unwrap();
    Merge::new(sources, columns, options)
}

fn at(seq: Seq) -> View {
    View {
        seq,
        ..View::default()
    }
}

fn ids(batches: &[RecordBatch]) -> Vec<i64> {
    let ids = batches.iter().flat_map(|batch| {
        let column = batch.column_by_name("id").unwrap();
        column.as_primitive::<Int64Type>().values().to_vec()
    });
    ids.collect()
}

/// A table's rows, spread over sources, and how they are cut into batches.
#[derive(Clone, Debug)]
struct Case {
    kind: KeyKind,
    mode: WriteMode,
    sources: Vec<Vec<Row>>,
    cuts: Vec<usize>,
    batch_rows: usize,
    read_points: Vec<Seq>,
    drop_tombstones: bool,
}

prop_compose! {
    fn case()(
        kind in prop_oneof![
            Just(KeyKind::Int), Just(KeyKind::NullableText),
            Just(KeyKind::Float), Just(KeyKind::TextAndTime)
        ],
        mode in prop_oneof![Just(WriteMode::Upsert), Just(WriteMode::Append)],
        sources in prop::collection::vec(
            prop::collection::vec((0..14u8, 1..25u64, prop::bool::weighted(0.3)), 0..40), 0..6),
        cuts in prop::collection::vec(0..9usize, 1..6),
        batch_rows in 1..20usize,
        read_points in prop::collection::btree_set(0..26u64, 0..4),
        drop_tombstones in any::<bool>(),
    ) -> Case {
        let mut seen = std::collections::HashSet::new();
        let mut id = 0;
        let sources = sources.into_iter().map(|rows| {
            let rows = rows.into_iter().filter(|&(key, seq, _)| {
                // One seq is one batch, and an upsert batch has a key once; it puts or it deletes.
                mode == WriteMode::Append || seen.insert((key, seq))
            });
            let rows = rows.map(|(key, seq, delete)| {
                id += 1;
                Row { key, seq, delete, id }
            });
            rows.collect()
        });
        Case {
            sources: sources.collect(),
            read_points: read_points.into_iter().map(Seq).collect(),
            kind, mode, cuts, batch_rows, drop_tombstones,
        }
    }
}

impl Case {
    fn schema(&self) -> TableSchema {
        schema(self.kind, self.mode)
    }

    fn encoded(&self, row: &Row) -> Vec<u8> {
        let schema = self.schema();
        let batch = batch(&schema, self.kind, std::slice::from_ref(row));
        let keys = schema.key_encoder().encode(&batch).unwrap();
        keys.row(0).data().to_vec()
    }

    fn sorted(&self, rows: &[Row]) -> Vec<Row> {
        let mut rows = rows.to_vec();
        rows.sort_by_cached_key(|row| (self.encoded(row), std::cmp::Reverse(row.seq)));
        rows
    }

    fn sources(&self) -> Vec<SortedSource> {
        let mut cuts = self.cuts.iter().cycle();
        let sources = self.sources.iter().map(|rows| {
            let rows = self.sorted(rows);
            let mut batches = Vec::new();
            let mut rest = &rows[..];
            while !rest.is_empty() {
                let cut = (*cuts.next().unwrap()).min(rest.len());
                batches.push(batch(&self.schema(), self.kind, &rest[..cut]));
                rest = &rest[cut..];
                if self.cuts.iter().all(|&cut| cut == 0) {
                    batches.push(batch(&self.schema(), self.kind, rest));
                    break;
                }
            }
            source(batches)
        });
        sources.collect()
    }

    /// All rows of each key, newest first.
    fn keys(&self) -> BTreeMap<Vec<u8>, Vec<Row>> {
        let mut keys: BTreeMap<Vec<u8>, Vec<Row>> = BTreeMap::new();
        for row in self.sources.iter().flat_map(|rows| self.sorted(rows)) {
            keys.entry(self.encoded(&row)).or_default().push(row);
        }
        for rows in keys.values_mut() {
            rows.sort_by_key(|row| std::cmp::Reverse(row.seq));
        }
        keys
    }

    /// Rows of one key that are seen from `read_point`, tombstones included.
    fn seen<'a>(&self, rows: &'a [Row], read_point: Seq) -> Vec<&'a Row> {
        let old: Vec<&Row> = rows.iter().filter(|row| row.seq <= read_point.0).collect();
        match self.mode {
            WriteMode::Upsert => old.into_iter().take(1).collect(),
            WriteMode::Append => {
                let deleted = old.iter().filter(|row| row.delete).map(|row| row.seq).max();
                let seen = |row: &&Row| deleted.is_none_or(|deleted| row.seq >= deleted);
                old.into_iter().filter(seen).collect()
            }
        }
    }

    fn retained(&self) -> Vec<i64> {
        let mut ids = Vec::new();
        for rows in self.keys().values() {
            let points = self.read_points.iter().copied().chain([Seq(u64::MAX)]);
            let needed: Vec<i64> = points
                .flat_map(|point| self.seen(rows, point))
                .map(|row| row.id)
                .collect();
            let mut rows: Vec<&Row> = rows.iter().filter(|row| needed.contains(&row.id)).collect();
            while self.drop_tombstones && rows.last().is_some_and(|row| row.delete) {
                rows.pop();
            }
            ids.extend(rows.iter().map(|row| row.id));
        }
        ids
    }

    fn visible(&self, read_point: Seq) -> Vec<i64> {
        let keys = self.keys();
        let seen = keys.values().flat_map(|rows| self.seen(rows, read_point));
        seen.filter(|row| !row.delete).map(|row| row.id).collect()
    }

    fn merge(&self, keep: Keep) -> Merge {
        let options = MergeOptions {
            mode: self.mode,
            keep,
            batch_rows: self.batch_rows,
            hash_rows: true,
        };
        merge(&self.schema(), self.sources(), options)
    }

    fn run(&self, keep: Keep) -> (Vec<RecordBatch>, MergeStats) {
        let mut merge = self.merge(keep);
        let batches = merge.by_ref().collect::<Result<Vec<_>>>().unwrap();
        (batches, merge.stats())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn keeps_what_the_model_keeps(case in case()) {
        let (batches, stats) = case.run(Keep::Retained(Retention {
            read_points: case.read_points.clone(),
            drop_tombstones: case.drop_tombstones,
            ..Retention::default()
        }));
        prop_assert_eq!(ids(&batches), case.retained());
        let full = |batch: &RecordBatch| (1..=case.batch_rows).contains(&batch.num_rows());
        prop_assert!(batches.iter().all(full));

        let dropped = [stats.written, stats.shadowed, stats.deleted];
        prop_assert_eq!(stats.read, dropped.into_iter().sum::<RowSum>());
        let rows = case.sources.iter().flatten();
        let input = rows.map(|row| RowSum::new(1, crate::types::row_hash(&case.encoded(row), Seq(row.seq))));
        prop_assert_eq!(stats.read, input.sum::<RowSum>());
        prop_assert_eq!(stats.written.rows as usize, ids(&batches).len());
        prop_assert!(case.drop_tombstones || stats.deleted.rows == 0);
    }

    /// However often it is cut: the same comes out, no key is on both sides, and each part balances.
    #[test]
    fn a_cut_parts_the_rows_between_keys(case in case(), every in 1..4usize) {
        let keep = Keep::Retained(Retention {
            read_points: case.read_points.clone(),
            drop_tombstones: case.drop_tombstones,
            ..Retention::default()
        });
        let (whole, total) = case.run(keep.clone());
        let mut merge = case.merge(keep);
        let (mut parts, mut before) = (Vec::new(), MergeStats::default());
        let mut start: Option<Key> = None;
        loop {
            let mut part = Vec::new();
            while let Some(batch) = merge.next() {
                part.push(batch.unwrap());
                if part.len() == every {
                    merge.cut();
                }
            }
            let stats = merge.stats().since(&before);
            before = merge.stats();
            let accounted = [stats.written, stats.shadowed, stats.deleted];
            prop_assert_eq!(stats.read, accounted.into_iter().sum::<RowSum>());
            prop_assert_eq!(stats.written.rows as usize, ids(&part).len());
            let range = KeyRange { start: start.take(), end: merge.rest() };
            for batch in &part {
                let keys = case.schema().key_encoder().encode(batch).unwrap();
                prop_assert!(keys.iter().all(|key| range.contains(key.data())));
            }
            parts.extend(part);
            start = range.end;
            if start.is_none() {
                break;
            }
        }
        prop_assert_eq!(ids(&parts), ids(&whole));
        prop_assert_eq!(merge.stats(), total);
    }

    #[test]
    fn shows_what_the_model_shows(case in case(), read_seq in 0..26u64) {
        let (batches, stats) = case.run(Keep::Visible(at(Seq(read_seq))));
        prop_assert_eq!(ids(&batches), case.visible(Seq(read_seq)));
        let dropped = [stats.written, stats.shadowed, stats.deleted];
        prop_assert_eq!(stats.read, dropped.into_iter().sum::<RowSum>());
    }

    /// Merging twice, as compactions do, shows every read point what merging once shows it.
    #[test]
    fn retained_rows_show_the_same(case in case()) {
        let (batches, _) = case.run(Keep::Retained(Retention {
            read_points: case.read_points.clone(),
            drop_tombstones: case.drop_tombstones,
            ..Retention::default()
        }));
        for &point in case.read_points.iter().chain([&Seq(u64::MAX)]) {
            let options = MergeOptions::visible(case.mode, at(point));
            let again = merge(&case.schema(), vec![source(batches.clone())], options);
            let again = again.collect::<Result<Vec<_>>>().unwrap();
            prop_assert_eq!(ids(&again), case.visible(point), "at {}", point);
        }
    }
}
