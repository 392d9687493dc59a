//! Random files and requests, and what these ask for: everything decoded, then filtered row by row.

use std::collections::BTreeSet;

use arrow::{
    array::{BinaryArray, BooleanArray, DictionaryArray, Int32Array, ListArray},
    compute::{cast, filter_record_batch},
    datatypes::{Int32Type, UInt8Type},
};
use rand::{Rng, rngs::SmallRng};

use super::*;
use crate::types::{Alteration, Filter, Literal, MergeOperator, OP_COLUMN, Op, Predicate, column};

/// How many seeds a test tries; `SST_SEEDS` in the environment says otherwise.
pub(super) fn seeds(few: u64) -> u64 {
    let asked = std::env::var("SST_SEEDS").ok();
    asked.and_then(|seeds| seeds.parse().ok()).unwrap_or(few)
}

const TIMES: i64 = 600;

/// Key columns of many sorts, values of many sorts; `blob` is so wide that it has several pages a block and is
/// fetched in a phase of its own.
pub(super) fn schema() -> TableSchema {
    let time = DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into()));
    let word = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
    let item = Arc::new(Field::new_list_field(DataType::Int32, true));
    let columns = Schema::new(vec![
        Field::new("host", DataType::Utf8, true),
        Field::new("at", time, false),
        Field::new("small", DataType::Int32, true),
        Field::new("float", DataType::Float64, true),
        Field::new("word", word, true),
        Field::new("blob", DataType::Binary, true),
        Field::new("list", DataType::List(item), true),
        Field::new("flag", DataType::Boolean, true),
    ]);
    let options = TableOptions {
        window: std::time::Duration::from_secs(3_600).into(),
        ..TableOptions::default()
    };
    TableSchema::new(Arc::new(columns), &["host", "at"], Some("at"), options).unwrap()
}

/// The schema as it has become since: widened, renamed, with a column more and one less.
pub(super) fn altered(schema: &TableSchema) -> TableSchema {
    let changes = [
        Alteration::WidenColumn {
            name: "small".into(),
            data_type: DataType::Int64,
        },
        Alteration::RenameColumn {
            from: "float".into(),
            to: "measure".into(),
        },
        Alteration::RenameColumn {
            from: "host".into(),
            to: "name".into(),
        },
        Alteration::AddColumn {
            field: Field::new("added", DataType::Int64, true),
            operator: MergeOperator::LastValue,
        },
        Alteration::DropColumn {
            name: "flag".into(),
        },
    ];
    schema.altered(&changes, 0).unwrap()
}

/// Some rows, sorted; with `versions` keys have up to three, and some are tombstones.
pub(super) fn rows(schema: &TableSchema, random: &mut SmallRng, versions: bool) -> RecordBatch {
    // The widest are cut into several pages a block.
    let (blob_bytes, count_max) =
        [(10, 3_000), (700, 3_000), (15_000, 800)][random.random_range(0..3)];
    let mut keys = BTreeSet::new();
    for _ in 0..random.random_range(500..count_max) {
        let host = random.random_range(0..6);
        keys.insert((
            (host > 0).then(|| format!("host{host}")),
            random.random_range(0..TIMES),
        ));
    }
    let mut rows = Vec::new();
    for key in keys {
        let count = if versions {
            random.random_range(1..4)
        } else {
            1
        };
        let newest = random.random_range(3..100u64);
        for version in 0..count {
            let op = u8::from(versions && random.random_bool(0.1));
            rows.push((key.clone(), newest - version, op));
        }
    }
    let count = rows.len();
    let is_put: Vec<bool> = rows.iter().map(|row| row.2 == 0).collect();
    // Values come in stretches, so that pages differ.
    let mut level = 0;
    let levels: Vec<i32> = (0..count)
        .map(|_| {
            if random.random_bool(0.01) {
                level = random.random_range(-50..50);
            }
            level
        })
        .collect();
    let nan_from = random.random_range(0..2 * count);
    let mut value = |row: usize| is_put[row] && random.random_bool(0.9);
    let smalls: Int32Array = (0..count)
        .map(|row| value(row).then_some(levels[row]))
        .collect();
    let floats: Float64Array = (0..count)
        .map(|row| {
            let is_nan = row > nan_from && row % 97 == 0;
            let float = if is_nan {
                f64::NAN
            } else {
                f64::from(levels[row]) / 2.0
            };
            value(row).then_some(float)
        })
        .collect();
    let words: DictionaryArray<Int32Type> = (0..count)
        .map(|row| {
            value(row).then_some(["red", "green", "blue"][levels[row].unsigned_abs() as usize % 3])
        })
        .collect();
    let lists = (0..count).map(|row| value(row).then(|| (0..levels[row].rem_euclid(4)).map(Some)));
    let lists = ListArray::from_iter_primitive::<Int32Type, _, _>(lists);
    let flags: BooleanArray = (0..count)
        .map(|row| value(row).then_some(levels[row] > 0))
        .collect();
    let blobs = (0..count).map(|row| {
        is_put[row].then(|| {
            let mut blob = vec![0; blob_bytes];
            random.fill(&mut blob[..]);
            blob
        })
    });
    let blobs: BinaryArray = blobs.collect();
    let columns: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from_iter(
            rows.iter().map(|row| row.0.0.clone()),
        )),
        Arc::new(
            TimestampMillisecondArray::from_iter_values(rows.iter().map(|row| row.0.1))
                .with_timezone("UTC"),
        ),
        Arc::new(smalls),
        Arc::new(floats),
        Arc::new(words),
        Arc::new(blobs),
        Arc::new(lists),
        Arc::new(flags),
        Arc::new(UInt64Array::from_iter_values(rows.iter().map(|row| row.1))),
        Arc::new(UInt8Array::from_iter_values(rows.iter().map(|row| row.2))),
    ];
    RecordBatch::try_new(schema.stored().clone(), columns).unwrap()
}

/// A condition on some of the columns of `all`, which has all rows. Literals are values that occur.
pub(super) fn predicate(
    schema: &TableSchema,
    all: &RecordBatch,
    random: &mut SmallRng,
    depth: u32,
) -> Predicate {
    if depth > 0 && random.random_bool(0.6) {
        let mut part = || predicate(schema, all, random, depth - 1);
        let (one, other) = (part(), part());
        return match random.random_range(0..3) {
            0 => one & other,
            1 => one | other,
            _ => !one,
        };
    }
    let fields = schema.columns().fields();
    let field = &fields[random.random_range(0..fields.len())];
    let name = field.name().as_str();
    if random.random_bool(0.1) || field.data_type().is_nested() {
        let is_null = column(name).is_null();
        return if random.random_bool(0.5) {
            is_null
        } else {
            !is_null
        };
    }
    if random.random_bool(0.1) {
        let same = fields
            .iter()
            .filter(|other| other.data_type() == field.data_type());
        let same: Vec<_> = same.collect();
        let other = column(same[random.random_range(0..same.len())].name());
        return if random.random_bool(0.5) {
            column(name).lt_eq(other)
        } else {
            column(name).eq(other)
        };
    }
    let values = all.column_by_name(name).unwrap();
    let values = match field.data_type() {
        DataType::Dictionary(_, data_type) => cast(values, data_type).unwrap(),
        _ => values.clone(),
    };
    let mut value = || {
        let row = random.random_range(0..values.len());
        Literal::from_array(values.slice(row, 1)).unwrap()
    };
    let (one, two, three) = (value(), value(), value());
    match random.random_range(0..8) {
        0 => column(name).eq(one),
        1 => column(name).not_eq(one),
        2 => column(name).lt(one),
        3 => column(name).lt_eq(one),
        4 => column(name).gt(one),
        5 => column(name).gt_eq(one),
        6 => column(name).gt_eq(one) & column(name).lt_eq(two),
        _ => column(name).is_in([one, two, three]),
    }
}

/// The keys of `batch`, which has all stored columns.
pub(super) fn keys(schema: &TableSchema, batch: &RecordBatch) -> Vec<Key> {
    let rows = schema.key_encoder().encode(batch).unwrap();
    rows.iter().map(|row| Key::from(row.data())).collect()
}

pub(super) fn request(
    schema: &TableSchema,
    random: &mut SmallRng,
    rows: &RecordBatch,
    has_older: bool,
    page_rows: usize,
) -> (ReadRequest, String) {
    let all = keys(schema, rows);
    let mut key = || {
        let mut row = random.random_range(0..all.len());
        // Where blocks meet, there is most to be done wrong.
        if random.random_bool(0.5) {
            row -= row % page_rows;
        }
        let mut key = all[row].clone();
        if random.random_bool(0.2) {
            key = key.successor();
        }
        random.random_bool(0.7).then_some(key)
    };
    let (start, end) = (key(), key());
    let points = random.random_bool(0.25).then(|| {
        let count = random.random_range(0..20);
        let point = |_| {
            let key = all[random.random_range(0..all.len())].clone();
            if random.random_bool(0.1) {
                key.successor()
            } else {
                key
            }
        };
        let points: BTreeSet<Key> = (0..count).map(point).collect();
        points.into_iter().collect::<Vec<_>>().into()
    });
    let times = schema.time().filter(|_| random.random_bool(0.4)).map(|_| {
        let start = random.random_range(-10..TIMES);
        TimeRange {
            start,
            end: start + random.random_range(0..TIMES / 2),
        }
    });
    let predicate = random
        .random_bool(0.7)
        .then(|| predicate(schema, rows, random, 2));
    let filter = predicate
        .as_ref()
        .map(|predicate| Filter::new(predicate, schema).unwrap());
    let projection = random.random_bool(0.6).then(|| {
        let names = schema
            .stored()
            .fields()
            .iter()
            .map(|field| field.name().clone());
        let share = [0.0, 0.1, 0.4, 0.9][random.random_range(0..4)];
        names.filter(|_| random.random_bool(share)).collect()
    });
    let request = ReadRequest {
        projection,
        exact: random.random_bool(0.5),
        keys: match random.random_bool(0.5) {
            true => KeyRange { start, end },
            false => KeyRange::ALL,
        },
        points,
        times,
        filter,
        keep_tombstones: has_older && random.random_bool(0.5),
        batch_rows: [0, 1, 13, 13, 100, 100, 100, 8_192, 8_192][random.random_range(0..9)],
    };
    let text = predicate.map(|predicate| predicate.to_string());
    (request, text.unwrap_or_default())
}

/// What `request` asks for of `all`, which is everything in the file.
pub(super) fn oracle(
    schema: &TableSchema,
    all: &RecordBatch,
    request: &ReadRequest,
) -> RecordBatch {
    let holds = request
        .filter
        .as_ref()
        .map(|filter| filter.evaluate(all).unwrap());
    let ops = all
        .column_by_name(OP_COLUMN)
        .unwrap()
        .as_primitive::<UInt8Type>();
    let times = schema
        .time()
        .map(|time| TableSchema::times(all, time).unwrap());
    let keys = keys(schema, all);
    let wanted = (0..all.num_rows()).map(|row| {
        let key = &keys[row];
        let passes = holds.as_ref().is_none_or(|holds| holds.value(row));
        let is_kept = request.keep_tombstones && ops.value(row) == Op::Delete as u8;
        request.keys.contains(&key.0)
            && request
                .points
                .as_ref()
                .is_none_or(|points| points.contains(key))
            && request.times.is_none_or(|range| {
                let times = times.as_ref().unwrap();
                range.contains(times.value(row))
            })
            && (passes || is_kept)
    });
    let wanted: BooleanArray = wanted.map(Some).collect();
    let all = filter_record_batch(all, &wanted).unwrap();
    let names = &request.projection;
    let columns = schema
        .stored()
        .fields()
        .iter()
        .enumerate()
        .filter(|(_, field)| {
            let name = field.name().as_str();
            let is_needed = schema.key_names().contains(&name) || name.starts_with("__");
            names.as_ref().is_none_or(|names| {
                names.iter().any(|other| other == name) || is_needed && !request.exact
            })
        });
    let columns: Vec<usize> = columns.map(|(at, _)| at).collect();
    all.project(&columns).unwrap()
}
