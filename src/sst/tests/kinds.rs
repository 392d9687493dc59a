//! Reads of a part of tables whose keys and values are of every type, against the oracle.

use arrow::{
    array::{BinaryArray, BooleanArray, Float32Array, UInt32Array, new_null_array},
    compute::{cast, take},
    row::Rows,
};
use rand::{Rng, SeedableRng, rngs::SmallRng};

use super::{
    oracle::{oracle, request, seeds},
    *,
};

/// Types of values; those before [`OTHERS`] can be of keys, too.
fn types() -> Vec<DataType> {
    use DataType::*;
    let of = |values: DataType| Dictionary(Box::new(Int32), Box::new(values));
    vec![
        Utf8,
        Int64,
        Float64,
        UInt64,
        Binary,
        of(Utf8),
        Utf8View,
        Boolean,
        Decimal128(30, 4),
        FixedSizeBinary(3),
        Float32,
        Timestamp(TimeUnit::Second, None),
        Date32,
        Int8,
        // Others.
        Int16,
        UInt8,
        UInt32,
        Float16,
        LargeUtf8,
        LargeBinary,
        BinaryView,
        Decimal128(7, 2),
        Decimal256(60, 5),
        Date64,
        Time32(TimeUnit::Second),
        Time32(TimeUnit::Millisecond),
        Time64(TimeUnit::Microsecond),
        Time64(TimeUnit::Nanosecond),
        Timestamp(TimeUnit::Millisecond, Some("Europe/Berlin".into())),
        Timestamp(TimeUnit::Microsecond, Some("+02:00".into())),
        Timestamp(TimeUnit::Nanosecond, None),
        Duration(TimeUnit::Millisecond),
        of(Float64),
        of(Int64),
        of(Binary),
    ]
}

const OTHERS: usize = 14;

/// `count` values, a few of them null; what they are comes in stretches of about `stretch`.
fn values(data_type: &DataType, count: usize, stretch: f64, random: &mut SmallRng) -> ArrayRef {
    let kind = random.random_range(0..8);
    if kind == 7 {
        return new_null_array(data_type, count);
    }
    let mut level: i64 = 0;
    let levels: Vec<Option<i64>> = (0..count)
        .map(|_| {
            if random.random_bool(1.0 / stretch) {
                level = random.random_range(-9..10);
            }
            random.random_bool(0.9).then_some(level)
        })
        .collect();
    let levels = levels.iter().copied();
    let text = |level: i64| {
        let common = ["", "é", "\u{10ffff}", "x"][kind % 4].repeat(70 * (kind / 4));
        format!("{common}{}", level + 10)
    };
    match data_type {
        DataType::Dictionary(_, of) => {
            cast(&values(of, count, stretch, random), data_type).unwrap()
        }
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => {
            let texts: StringArray = levels.map(|level| level.map(text)).collect();
            cast(&texts, data_type).unwrap()
        }
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => {
            let bytes: BinaryArray = levels
                .map(|level| {
                    level.map(|level| [vec![255; 20 * kind], vec![(level + 10) as u8]].concat())
                })
                .collect();
            cast(&bytes, data_type).unwrap()
        }
        DataType::FixedSizeBinary(_) => {
            let bytes: BinaryArray = levels
                .map(|level| level.map(|level| vec![(level + 120) as u8, 255, level as u8]))
                .collect();
            cast(&bytes, data_type).unwrap()
        }
        DataType::Boolean => {
            let bools: BooleanArray = levels.map(|level| level.map(|level| level > 0)).collect();
            Arc::new(bools)
        }
        DataType::UInt64 => {
            let large: UInt64Array = levels
                .map(|level| level.map(|level| (i64::MAX as u64).saturating_add_signed(level)))
                .collect();
            Arc::new(large)
        }
        data_type if data_type.is_floating() => {
            let float = |level: i64| match level {
                -9 => f32::NEG_INFINITY,
                -8 if kind % 2 == 0 => -f32::NAN,
                8 if kind % 2 == 0 => f32::NAN,
                0 if random.random_bool(0.5) => -0.0,
                _ if kind == 6 => f32::NAN,
                _ => level as f32 / 2.0,
            };
            let mut float = float;
            let floats: Float32Array = levels.map(|level| level.map(&mut float)).collect();
            cast(&floats, data_type).unwrap()
        }
        _ => {
            let scale = if kind % 2 == 0 { 1 } else { 11 };
            let ints: Int64Array = levels
                .map(|level| level.map(|level| level * scale))
                .collect();
            cast(&ints, data_type).unwrap_or_else(|_| {
                let narrow = cast(&ints, &DataType::Int32).unwrap();
                cast(&narrow, data_type).unwrap()
            })
        }
    }
}

/// A table of some types, and rows of it.
fn table(random: &mut SmallRng) -> (TableSchema, RecordBatch) {
    let all = types();
    let keys = random.random_range(1..4);
    let fields = (0..keys + 6).map(|at| {
        let count = if at < keys { OTHERS } else { all.len() };
        let data_type = all[random.random_range(0..count)].clone();
        Field::new(format!("c{at}"), data_type, true)
    });
    let mut fields: Vec<Field> = fields.collect();
    fields.push(Field::new("n", DataType::Int64, false));
    let append = random.random_bool(0.3);
    let options = TableOptions {
        write_mode: if append {
            WriteMode::Append
        } else {
            WriteMode::Upsert
        },
        ..TableOptions::default()
    };
    let names: Vec<String> = (0..keys)
        .map(|at| format!("c{at}"))
        .chain(["n".into()])
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let columns = Arc::new(Schema::new(fields));
    let schema = TableSchema::new(columns.clone(), &names, None, options).unwrap();

    let count = random.random_range(1..1_500);
    let stretch = [1.5, 10.0, 100.0, 1_000.0][random.random_range(0..4)];
    let mut arrays: Vec<ArrayRef> = Vec::new();
    for field in columns.fields() {
        arrays.push(match field.name().as_str() {
            // Makes keys unique, or not.
            "n" => {
                let most = if random.random_bool(0.5) {
                    5
                } else {
                    1_000_000
                };
                Arc::new(Int64Array::from_iter_values(
                    (0..count).map(|_| random.random_range(0..most)),
                ))
            }
            _ => values(field.data_type(), count, stretch, random),
        });
    }
    let batch = RecordBatch::try_new(columns, arrays).unwrap();
    let order = order(&schema.key_encoder().encode(&batch).unwrap());
    let mut rows = Vec::new();
    let keys: Rows = schema.key_encoder().encode(&batch).unwrap();
    let mut seqs: Vec<u64> = Vec::new();
    for &row in &order {
        let again = rows
            .last()
            .is_some_and(|&last: &u32| keys.row(last as usize) == keys.row(row as usize));
        let last = seqs.last().copied().unwrap_or_default();
        seqs.push(if again {
            last - 1
        } else {
            random.random_range(2_000..3_000)
        });
        rows.push(row);
    }
    let rows = UInt32Array::from(rows);
    let mut columns: Vec<ArrayRef> = batch
        .columns()
        .iter()
        .map(|column| take(column, &rows, None).unwrap())
        .collect();
    columns.push(Arc::new(UInt64Array::from(seqs)));
    columns.push(Arc::new(UInt8Array::from_value(0, count)));
    let stored = RecordBatch::try_new(schema.stored().clone(), columns).unwrap();
    (schema, stored)
}

fn order(keys: &Rows) -> Vec<u32> {
    let mut order: Vec<u32> = (0..keys.num_rows() as u32).collect();
    order.sort_by(|&left, &right| keys.row(left as usize).cmp(&keys.row(right as usize)));
    order
}

#[test]
fn reads_of_a_part_are_right_for_every_type() {
    let (mut read, mut skipped) = (0, 0);
    for seed in 0..seeds(40) {
        let mut random = SmallRng::seed_from_u64(seed);
        let (schema, rows) = table(&mut random);
        let mut bench = Bench::new(schema.clone());
        bench.spec.window = Window::ALL;
        bench.spec.options.row_group_rows = random.random_range(1..1_500);
        let page_rows = [1, 7, 64, 100, 5_000][random.random_range(0..5)];
        bench.spec.options.page_rows = page_rows;
        let mut metas = bench.write(&rows, random.random_range(1..700)).unwrap();
        let meta = Arc::new(metas.remove(0));
        let report = inspect::file(&bench.object(&meta).into(), true);
        assert_eq!(report.faults, [""; 0], "seed {seed}");
        for case in 0..30 {
            let (request, text) = request(&schema, &mut random, &rows, false, page_rows);
            let want = oracle(&schema, &rows, &request);
            let reader = bench.open(&meta).unwrap();
            let found = bench.read(&reader, &request);
            let found = found.unwrap_or_else(|error| {
                panic!("seed {seed}, case {case}: {error:?} {request:?} {text} {schema:?}")
            });
            assert!(
                found == want,
                "seed {seed}, case {case}: {request:?} {text}\n{found:?}\n{want:?}"
            );
            read += reader.stats().pages_read();
            skipped += reader.stats().pages_skipped();
        }
    }
    assert!(skipped > read / 2, "{read}, {skipped}");
}
