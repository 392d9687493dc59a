//! Merge operators, range deletes and the time to live against their definitions: whatever neighbouring runs are
//! compacted in whatever order, every read point sees the same.

use arrow::array::TimestampMillisecondArray;

use super::*;
use crate::types::TimeRange;

/// A key is its time.
type Time = i64;

#[derive(Clone, Debug)]
struct Write {
    time: Time,
    seq: u64,
    /// `None` deletes.
    put: Option<Option<i64>>,
}

#[derive(Clone, Debug)]
struct History {
    mode: WriteMode,
    combines: bool,
    /// At most one for a time and seq.
    writes: Vec<Write>,
    deletes: Vec<RangeDelete>,
    expiry: Option<Time>,
    read_points: Vec<Seq>,
    /// Seqs at which a new run begins.
    cuts: Vec<u64>,
    /// Which neighbouring runs are merged, one merge after the other.
    merges: Vec<(usize, usize)>,
    batch_rows: usize,
}

const SEQ_END: u64 = 24;

prop_compose! {
    fn history()(
        mode in prop_oneof![3 => Just(WriteMode::Upsert), 1 => Just(WriteMode::Append)],
        combines in prop::bool::weighted(0.8),
        writes in prop::collection::btree_map(
            (0..8i64, 1..SEQ_END),
            prop::option::weighted(0.8, prop::option::weighted(0.8, -9..9i64)),
            0..60,
        ),
        deletes in prop::collection::btree_map(1..SEQ_END, (-1..8i64, 0..5i64), 0..4),
        expiry in prop::option::weighted(0.3, 0..5i64),
        read_points in prop::collection::btree_set(0..SEQ_END, 0..4),
        cuts in prop::collection::btree_set(1..SEQ_END, 0..6),
        merges in prop::collection::vec((0..6usize, 1..4usize), 0..5),
        batch_rows in 1..9usize,
    ) -> History {
        let deletes: Vec<RangeDelete> = deletes
            .into_iter()
            .map(|(seq, (start, length))| RangeDelete {
                seq: Seq(seq),
                times: TimeRange { start, end: start + length },
            })
            .collect();
        let is_free = |seq: u64| deletes.iter().all(|delete| delete.seq.0 != seq);
        let writes = writes.into_iter().filter(|((_, seq), _)| is_free(*seq));
        History {
            mode,
            combines: combines && mode == WriteMode::Upsert,
            writes: writes.map(|((time, seq), put)| Write { time, seq, put }).collect(),
            deletes,
            expiry,
            read_points: read_points.into_iter().map(Seq).collect(),
            cuts: cuts.into_iter().collect(),
            merges,
            batch_rows,
        }
    }
}

const OPERATORS: [MergeOperator; 6] = MergeOperator::ALL;

impl History {
    fn schema(&self) -> TableSchema {
        let time = DataType::Timestamp(TimeUnit::Millisecond, None);
        let mut fields = vec![Field::new("t", time, false)];
        let mut operators = std::collections::BTreeMap::new();
        for operator in OPERATORS {
            let data_type = match operator {
                MergeOperator::BytesAppend => DataType::Utf8,
                _ => DataType::Int64,
            };
            fields.push(Field::new(operator.as_str(), data_type, true));
            if self.combines {
                operators.insert(operator.to_string(), operator);
            }
        }
        let options = TableOptions {
            write_mode: self.mode,
            operators,
            ..TableOptions::default()
        };
        let columns = Arc::new(Schema::new(fields));
        TableSchema::new(columns, &["t"], Some("t"), options).unwrap()
    }

    /// A run of the writes with seqs from `start` to `end`.
    fn run(&self, schema: &TableSchema, start: u64, end: u64) -> Vec<RecordBatch> {
        let mut writes: Vec<&Write> = self.writes.iter().collect();
        writes.retain(|write| (start..end).contains(&write.seq));
        writes.sort_by_key(|write| (write.time, std::cmp::Reverse(write.seq)));
        let pieces = writes.chunks(self.batch_rows);
        pieces.map(|piece| stored(schema, piece)).collect()
    }

    /// What is read at `point`, by definition.
    fn seen(&self, point: Seq) -> Vec<(Time, [Option<String>; 6])> {
        let mut times: Vec<Time> = self.writes.iter().map(|write| write.time).collect();
        times.sort_unstable();
        times.dedup();
        times.retain(|&time| self.expiry.is_none_or(|expiry| time >= expiry));
        let rows = times.into_iter().flat_map(|time| {
            let puts = self.puts(time, point);
            let values: Vec<[Option<String>; 6]> = match (self.mode, self.combines) {
                (WriteMode::Append, _) => puts
                    .iter()
                    .map(|&value| [(); 6].map(|()| text(value)))
                    .enumerate()
                    .map(|(at, row)| with_text(row, puts[at]))
                    .collect(),
                (_, false) => puts
                    .iter()
                    .take(1)
                    .map(|&value| with_text([(); 6].map(|()| text(value)), value))
                    .collect(),
                (_, true) if puts.is_empty() => Vec::new(),
                (_, true) => vec![combined(&puts)],
            };
            values.into_iter().map(move |row| (time, row))
        });
        rows.collect()
    }

    /// The puts at `time` that `point` sees, from the newest to the oldest.
    fn puts(&self, time: Time, point: Seq) -> Vec<Option<i64>> {
        let mut writes: Vec<&Write> = self.writes.iter().collect();
        writes.retain(|write| write.time == time && write.seq <= point.0);
        writes.sort_by_key(|write| std::cmp::Reverse(write.seq));
        let floor = self
            .deletes
            .iter()
            .filter(|delete| delete.seq <= point && delete.times.contains(time));
        let floor = floor.map(|delete| delete.seq.0).max().unwrap_or(0);
        let live = writes.into_iter().take_while(|write| write.seq > floor);
        live.map_while(|write| write.put).collect()
    }

    fn retention(&self, is_bottom: bool) -> Retention {
        Retention {
            read_points: self.read_points.clone(),
            drop_tombstones: is_bottom,
            expiry: self.expiry,
            range_deletes: self.deletes.clone(),
        }
    }
}

/// The values of one row, by operator, of these puts from the newest to the oldest.
fn combined(puts: &[Option<i64>]) -> [Option<String>; 6] {
    let known = || puts.iter().flatten().copied();
    let appended = known().map(|value| format!("{value},")).collect::<Vec<_>>();
    let appended = appended.into_iter().rev().collect::<String>();
    [
        text(puts[0]),
        text(known().next()),
        text(known().reduce(|sum, value| sum + value)),
        text(known().min()),
        text(known().max()),
        known().next().map(|_| appended),
    ]
}

fn text(value: Option<i64>) -> Option<String> {
    value.map(|value| value.to_string())
}

fn with_text(mut row: [Option<String>; 6], value: Option<i64>) -> [Option<String>; 6] {
    row[5] = value.map(|value| format!("{value},"));
    row
}

fn stored(schema: &TableSchema, writes: &[&Write]) -> RecordBatch {
    let times = writes.iter().map(|write| write.time);
    let mut columns: Vec<ArrayRef> =
        vec![Arc::new(TimestampMillisecondArray::from_iter_values(times))];
    let values = || writes.iter().map(|write| write.put.flatten());
    for operator in OPERATORS {
        columns.push(match operator {
            MergeOperator::BytesAppend => Arc::new(StringArray::from_iter(
                values().map(|value| value.map(|value| format!("{value},"))),
            )),
            _ => Arc::new(values().collect::<Int64Array>()),
        });
    }
    let seqs = writes.iter().map(|write| write.seq);
    columns.push(Arc::new(UInt64Array::from_iter_values(seqs)));
    let ops = writes.iter().map(|write| u8::from(write.put.is_none()));
    columns.push(Arc::new(UInt8Array::from_iter_values(ops)));
    RecordBatch::try_new(schema.stored().clone(), columns).unwrap()
}

fn read(
    schema: &TableSchema,
    runs: &[Vec<RecordBatch>],
    history: &History,
    point: Seq,
) -> Vec<(Time, [Option<String>; 6])> {
    let view = View {
        seq: point,
        expiry: history.expiry,
        range_deletes: history.deletes.clone(),
    };
    let options = MergeOptions {
        batch_rows: history.batch_rows,
        ..MergeOptions::visible(history.mode, view)
    };
    let sources = runs.iter().cloned().map(source).collect();
    let mut rows = Vec::new();
    for batch in merge(schema, sources, options) {
        let batch = batch.unwrap();
        let times = TableSchema::times(&batch, 0).unwrap();
        for row in 0..batch.num_rows() {
            let value = |column: usize| {
                let column = batch.column(column);
                let text = arrow::util::display::array_value_to_string(column, row).unwrap();
                column.is_valid(row).then_some(text)
            };
            rows.push((times.value(row), [1, 2, 3, 4, 5, 6].map(value)));
        }
    }
    rows
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_order_of_compactions_gives_every_read_point_the_same(history in history()) {
        let schema = history.schema();
        let mut bounds = vec![0];
        bounds.extend(history.cuts.iter().copied());
        bounds.push(SEQ_END);
        let pairs = bounds.windows(2);
        // Oldest first.
        let mut runs: Vec<Vec<RecordBatch>> =
            pairs.map(|pair| history.run(&schema, pair[0], pair[1])).collect();
        let mut points = history.read_points.clone();
        points.push(Seq(SEQ_END));
        for &(first, count) in &history.merges {
            for &point in &points {
                prop_assert_eq!(read(&schema, &runs, &history, point), history.seen(point));
            }
            let first = first.min(runs.len() - 1);
            let last = (first + count).min(runs.len());
            let options = MergeOptions {
                batch_rows: history.batch_rows,
                ..MergeOptions::retained(history.mode, history.retention(first == 0))
            };
            let inputs = runs[first..last].iter().cloned().map(source).collect();
            let mut merging = merge(&schema, inputs, options);
            let merged: Vec<RecordBatch> = merging.by_ref().map(|batch| batch.unwrap()).collect();
            let stats = merging.stats();
            let dropped = [
                stats.shadowed, stats.deleted, stats.combined, stats.expired, stats.range_deleted,
            ];
            let accounted: RowSum = dropped.into_iter().chain([stats.written]).sum();
            prop_assert_eq!(stats.read, accounted);
            let rows: usize = merged.iter().map(RecordBatch::num_rows).sum();
            prop_assert_eq!(stats.written.rows, rows as u64);
            runs.splice(first..last, [merged]);
        }
        for &point in &points {
            prop_assert_eq!(read(&schema, &runs, &history, point), history.seen(point));
        }
    }
}

#[test]
fn a_key_of_many_rows_takes_no_more_memory_than_a_few() {
    let history = History {
        mode: WriteMode::Upsert,
        combines: true,
        writes: (1..50_000)
            .map(|seq| Write {
                time: 0,
                seq,
                put: Some(Some(1)),
            })
            .collect(),
        deletes: vec![],
        expiry: None,
        read_points: vec![],
        cuts: vec![],
        merges: vec![],
        batch_rows: 100,
    };
    let schema = history.schema();
    let runs = [
        history.run(&schema, 0, 25_000),
        history.run(&schema, 25_000, u64::MAX),
    ];
    let rows = read(&schema, &runs, &history, Seq(u64::MAX));
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].1[2], Some("49999".into()));
    assert_eq!(rows[0].1[5].as_ref().map(String::len), Some(2 * 49_999));
}

#[test]
fn sums_wrap_and_floats_order_nan_last() {
    let wrapped = crate::merge::combine::combine(
        &RecordBatch::try_from_iter([
            (
                "a",
                Arc::new(Int64Array::from(vec![i64::MAX, 1])) as ArrayRef,
            ),
            ("b", Arc::new(Float64Array::from(vec![f64::NAN, 1.0]))),
            ("c", Arc::new(Float64Array::from(vec![f64::NAN, 1.0]))),
        ])
        .unwrap(),
        &[1],
        &[MergeOperator::Sum, MergeOperator::Min, MergeOperator::Max],
    )
    .unwrap();
    assert_eq!(
        wrapped.column(0).as_primitive::<Int64Type>().value(0),
        i64::MIN
    );
    let float = |column: usize| {
        wrapped
            .column(column)
            .as_primitive::<arrow::datatypes::Float64Type>()
            .value(0)
    };
    assert_eq!(float(1), 1.0);
    assert!(float(2).is_nan());
}
