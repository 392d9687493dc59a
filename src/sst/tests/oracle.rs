//! Random files and requests, and what these ask for: everything decoded, then filtered row by row.

use std::collections::BTreeSet;

use arrow::{
    array::{BinaryArray, BooleanArray, DictionaryArray, Int32Array, ListArray},
    compute::filter_record_batch,
    datatypes::{Int32Type, UInt8Type},
};
use rand::{Rng, rngs::SmallRng};

use super::*;
use crate::types::{Alteration, Filter, MergeOperator, OP_COLUMN, Op, Predicate, column};

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
    let mut keys = BTreeSet::new();
    for _ in 0..random.random_range(500..3_000) {
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
    let blobs = (0..count)
        .map(|row| is_put[row].then(|| (0..700).map(|_| random.random()).collect::<Vec<u8>>()));
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

pub(super) fn predicate(schema: &TableSchema, random: &mut SmallRng, depth: u32) -> Predicate {
    if depth > 0 && random.random_bool(0.6) {
        let mut part = || predicate(schema, random, depth - 1);
        let (one, other) = (part(), part());
        return match random.random_range(0..3) {
            0 => one & other,
            1 => one | other,
            _ => !one,
        };
    }
    let names: Vec<&str> = [
        "name", "host", "small", "float", "measure", "word", "added", "flag",
    ]
    .into_iter()
    .filter(|name| schema.columns().index_of(name).is_ok())
    .chain(["at", "small"])
    .collect();
    let name = names[random.random_range(0..names.len())];
    let number = random.random_range(-55..55);
    let operand = |name: &str, number: i32| -> crate::types::Operand {
        match name {
            "name" | "host" => format!("host{}", number.rem_euclid(6)).into(),
            "word" => ["red", "green", "blue", "grey"][number.rem_euclid(4) as usize].into(),
            "flag" => (number > 0).into(),
            "at" => (i64::from(number) * 11).into(),
            "float" | "measure" => (f64::from(number) / 2.0).into(),
            _ => number.into(),
        }
    };
    let other = operand(name, number);
    match random.random_range(0..8) {
        0 => column(name).eq(other),
        1 => column(name).not_eq(other),
        2 => column(name).lt(other),
        3 => column(name).lt_eq(other),
        4 => column(name).gt(other),
        5 => column(name).gt_eq(other),
        6 => column("small").is_in([number, number + 1, number + 20]),
        _ => column(name).is_null(),
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
    all: &[Key],
    has_older: bool,
    page_rows: usize,
) -> (ReadRequest, String) {
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
    let times = random.random_bool(0.4).then(|| {
        let start = random.random_range(-10..TIMES);
        TimeRange {
            start,
            end: start + random.random_range(0..TIMES / 2),
        }
    });
    let predicate = random
        .random_bool(0.7)
        .then(|| predicate(schema, random, 2));
    let filter = predicate
        .as_ref()
        .map(|predicate| Filter::new(predicate, schema).unwrap());
    let projection = random.random_bool(0.6).then(|| {
        let names = schema
            .stored()
            .fields()
            .iter()
            .map(|field| field.name().clone());
        let names: Vec<String> = names.filter(|_| random.random_bool(0.4)).collect();
        names
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
        batch_rows: random.random_range(1..500),
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
    let times = TableSchema::times(all, schema.time().unwrap()).unwrap();
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
            && request
                .times
                .is_none_or(|range| range.contains(times.value(row)))
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
