//! Filters against a plain interpreter of SQL's logic, row by row: random predicates over random rows, as rows, as
//! parts of a file by their bounds, and as hints about the key.

use arrow::{
    array::{
        ArrayRef, BooleanArray, DictionaryArray, Float64Array, Int32Array, StringArray,
        TimestampMillisecondArray,
    },
    compute::cast,
    datatypes::{Field, Int32Type, Schema, TimeUnit},
};
use proptest::prelude::*;

use super::*;
use crate::{
    error::ErrorKind,
    types::{KeyRange, Literal, TableOptions, TimeRange, column},
};

mod interpreter;

use interpreter::interpret;

/// A row: text, number, time, float, boolean, dictionary.
type Row = (
    Option<String>,
    Option<i32>,
    i64,
    Option<f64>,
    Option<bool>,
    Option<String>,
);

const NAMES: [&str; 6] = ["text", "number", "time", "float", "flag", "dictionary"];

fn schema() -> TableSchema {
    let dictionary = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
    let time = DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into()));
    let types = [
        DataType::Utf8,
        DataType::Int32,
        time,
        DataType::Float64,
        DataType::Boolean,
        dictionary,
    ];
    let fields = NAMES.iter().zip(types);
    let fields = fields.map(|(name, data_type)| Field::new(*name, data_type, *name != "time"));
    let columns = Schema::new(fields.collect::<Vec<_>>());
    let key = ["text", "number", "time"];
    TableSchema::new(
        Arc::new(columns),
        &key,
        Some("time"),
        TableOptions::default(),
    )
    .unwrap()
}

fn batch(schema: &TableSchema, rows: &[Row]) -> RecordBatch {
    let times = rows.iter().map(|row| row.2);
    let columns: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from_iter(rows.iter().map(|row| row.0.clone()))),
        Arc::new(Int32Array::from_iter(rows.iter().map(|row| row.1))),
        Arc::new(TimestampMillisecondArray::from_iter_values(times).with_timezone("UTC")),
        Arc::new(Float64Array::from_iter(rows.iter().map(|row| row.3))),
        Arc::new(BooleanArray::from_iter(rows.iter().map(|row| row.4))),
        Arc::new(
            rows.iter()
                .map(|row| row.5.as_deref())
                .collect::<DictionaryArray<Int32Type>>(),
        ),
    ];
    RecordBatch::try_new(schema.columns().clone(), columns).unwrap()
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), "[ab]{1,2}", "[a-c]{30,40}"]
}

fn float() -> impl Strategy<Value = f64> {
    prop_oneof![
        (-3..3i32).prop_map(f64::from),
        Just(f64::NAN),
        Just(-f64::NAN),
        Just(-0.0),
        Just(f64::INFINITY),
        Just(f64::NEG_INFINITY),
    ]
}

fn row() -> impl Strategy<Value = Row> {
    let some = proptest::option::of::<BoxedStrategy<String>>;
    (
        some(text().boxed()),
        proptest::option::of(-3..4i32),
        prop_oneof![-4..4i64, Just(i64::MIN), Just(i64::MAX)],
        proptest::option::of(float()),
        proptest::option::of(any::<bool>()),
        some(text().boxed()),
    )
}

fn literal(name: &'static str) -> BoxedStrategy<Literal> {
    let value = match name {
        "text" | "dictionary" => text().prop_map(Literal::from).boxed(),
        "number" => (-3..4i32).prop_map(Literal::from).boxed(),
        "time" => prop_oneof![-4..4i64, Just(i64::MIN), Just(i64::MAX)]
            .prop_map(Literal::from)
            .boxed(),
        "float" => float().prop_map(Literal::from).boxed(),
        _ => any::<bool>().prop_map(Literal::from).boxed(),
    };
    prop_oneof![9 => value, 1 => Just(Literal::null())].boxed()
}

fn comparison() -> impl Strategy<Value = Comparison> {
    use Comparison::{Eq, Gt, GtEq, Lt, LtEq, NotEq};
    proptest::sample::select(vec![Eq, NotEq, Lt, LtEq, Gt, GtEq])
}

fn leaf() -> impl Strategy<Value = Predicate> {
    let named = proptest::sample::select(NAMES.to_vec());
    named.prop_flat_map(|name| {
        let compare = (literal(name), comparison(), any::<bool>());
        let compare = compare.prop_map(move |(literal, comparison, turned)| {
            let (column, literal) = (Operand::Column(name.into()), Operand::Literal(literal));
            let (left, right) = match turned {
                true => (literal, column),
                false => (column, literal),
            };
            Predicate::Compare {
                left,
                comparison,
                right,
            }
        });
        let columns = comparison().prop_map(|comparison| Predicate::Compare {
            left: Operand::Column("text".into()),
            comparison,
            right: Operand::Column("dictionary".into()),
        });
        let values = proptest::collection::vec(literal(name), 0..14);
        let is_in = values.prop_map(move |values| column(name).is_in(values));
        prop_oneof![
            6 => compare,
            1 => columns,
            3 => is_in,
            1 => Just(column(name).is_null()),
        ]
    })
}

fn predicate() -> impl Strategy<Value = Predicate> {
    leaf().prop_recursive(3, 12, 4, |inner| {
        let parts = proptest::collection::vec(inner.clone(), 0..4);
        prop_oneof![
            3 => parts.clone().prop_map(Predicate::And),
            2 => parts.prop_map(Predicate::Or),
            2 => inner.prop_map(|inner| !inner),
        ]
    })
}

/// What Parquet's statistics would say of the column in each of `parts`.
fn bounds(batch: &RecordBatch, name: &str, parts: &[(usize, usize)]) -> ColumnBounds {
    let column = batch.column_by_name(name).unwrap();
    let column = match column.data_type() {
        DataType::Dictionary(_, values) => cast(column, values).unwrap(),
        _ => column.clone(),
    };
    let (mut mins, mut maxs, mut nulls) = (Vec::new(), Vec::new(), Vec::new());
    for &(start, rows) in parts {
        let part = column.slice(start, rows);
        nulls.push(part.null_count() as u64);
        let mut order: Vec<usize> = (0..rows).filter(|&row| part.is_valid(row)).collect();
        if let Some(floats) = part.as_any().downcast_ref::<Float64Array>() {
            order.retain(|&row| !floats.value(row).is_nan());
        }
        let compare = arrow::array::make_comparator(&part, &part, Default::default()).unwrap();
        order.sort_by(|&left, &right| compare(left, right));
        let bound = |row: Option<&usize>| match row {
            Some(&row) => part.slice(row, 1),
            None => arrow::array::new_null_array(part.data_type(), 1),
        };
        mins.push(bound(order.first()));
        maxs.push(bound(order.last()));
    }
    let concat = |bounds: &[ArrayRef]| {
        let bounds: Vec<_> = bounds.iter().map(AsRef::as_ref).collect();
        arrow::compute::concat(&bounds).unwrap()
    };
    ColumnBounds {
        min: concat(&mins),
        max: concat(&maxs),
        nulls: Some(nulls),
        rows: parts.iter().map(|(_, rows)| *rows as u64).collect(),
        may_have_nan: name == "float",
    }
}

fn may_match(node: &Node, batch: &RecordBatch, parts: &[(usize, usize)]) -> Vec<bool> {
    let fold = |nodes: &[Node], start: bool| {
        nodes.iter().fold(vec![start; parts.len()], |so_far, node| {
            let may = may_match(node, batch, parts);
            let pairs = so_far.into_iter().zip(may);
            pairs
                .map(|(left, right)| if start { left && right } else { left || right })
                .collect()
        })
    };
    match node {
        Node::And(nodes) => fold(nodes, true),
        Node::Or(nodes) => fold(nodes, false),
        Node::Leaf(leaf) => match leaf.column() {
            Some(name) => leaf.may_match(&bounds(batch, name, parts)).unwrap(),
            None => vec![true; parts.len()],
        },
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn filters_agree_with_the_interpreter(
        predicate in predicate(),
        rows in proptest::collection::vec(row(), 1..40),
    ) {
        let schema = schema();
        let batch = batch(&schema, &rows);
        let filter = Filter::new(&predicate, &schema).unwrap();
        let holds = filter.evaluate(&batch).unwrap();
        prop_assert_eq!(holds.null_count(), 0);
        let wanted: Vec<bool> = rows
            .iter()
            .map(|row| interpret(&predicate, row) == Some(true))
            .collect();
        let found: Vec<bool> = holds.values().iter().collect();
        prop_assert_eq!(&found, &wanted, "{}", predicate);

        // Taken apart, the parts together are the whole.
        let (first, rest) = filter.split(|name| name == "text" || name == "time");
        for (at, &wanted) in wanted.iter().enumerate() {
            let one = batch.slice(at, 1);
            let holds = |filter: &Option<Filter>| {
                filter.as_ref().is_none_or(|filter| filter.evaluate(&one).unwrap().value(0))
            };
            prop_assert_eq!(holds(&first) && holds(&rest), wanted);
        }
        if let Some(first) = &first {
            prop_assert!(first.columns().iter().all(|name| name == "text" || name == "time"));
        }

        // No part of a file that holds a wanted row is left out.
        let parts: Vec<(usize, usize)> =
            (0..rows.len()).step_by(5).map(|start| (start, 5.min(rows.len() - start))).collect();
        let may = may_match(filter.root(), &batch, &parts);
        for (&(start, rows), may) in parts.iter().zip(may) {
            prop_assert!(may || !wanted[start..start + rows].contains(&true), "{} {start}", predicate);
        }

        // Nor is a key.
        let hints = filter.key_hints(&schema).unwrap();
        let keys = schema.key_encoder().encode(&batch).unwrap();
        for (at, _) in wanted.iter().enumerate().filter(|(_, wanted)| **wanted) {
            let key = keys.row(at);
            prop_assert!(hints.keys.contains(key.data()), "{} {:?}", predicate, rows[at]);
            prop_assert!(hints.times.is_none_or(|times| times.contains(rows[at].2)));
            let is_point = |points: &Vec<crate::types::Key>| points.iter().any(|point| point.0 == key.data());
            prop_assert!(hints.points.as_ref().is_none_or(is_point), "{}", predicate);
        }
    }
}

fn hints(predicate: Predicate) -> KeyHints {
    let schema = schema();
    let filter = Filter::new(&predicate, &schema).unwrap();
    filter.key_hints(&schema).unwrap()
}

fn key(text: &str, number: i32, time: i64) -> crate::types::Key {
    let schema = schema();
    let row = (Some(text.to_owned()), Some(number), time, None, None, None);
    let keys = batch(&schema, &[row]).project(schema.key()).unwrap();
    schema.key_of(&keys).unwrap()
}

#[test]
fn the_key_is_found_in_the_predicate() {
    let all = hints(column("float").gt(1.0));
    assert_eq!(all, KeyHints::default());

    let one = column("text").eq("a") & column("number").eq(1) & column("time").eq(5i64);
    let found = hints(one);
    assert_eq!(found.points, Some(vec![key("a", 1, 5)]));
    assert!(found.keys.contains(&key("a", 1, 5).0) && !found.keys.contains(&key("a", 1, 6).0));
    assert_eq!(found.times, Some(TimeRange { start: 5, end: 6 }));

    let some =
        column("text").is_in(["b", "a"]) & column("number").eq(1) & column("time").is_in([7i64, 5]);
    let points = hints(some).points.unwrap();
    let wanted = [("a", 5), ("a", 7), ("b", 5), ("b", 7)];
    assert_eq!(points, wanted.map(|(text, time)| key(text, 1, time)));

    let range = hints(column("text").eq("b") & column("number").gt(1) & column("number").lt_eq(3));
    for (text, number, is_inside) in [
        ("b", 1, false),
        ("b", 2, true),
        ("b", 3, true),
        ("b", 4, false),
        ("a", 2, false),
        ("bb", 2, false),
    ] {
        assert_eq!(
            range.keys.contains(&key(text, number, 0).0),
            is_inside,
            "{text} {number}"
        );
    }
    let open = hints(column("text").gt("b"));
    assert!(open.keys.end.is_none() && !open.keys.contains(&key("b", 9, 9).0));
    assert!(hints(column("time").lt(3i64)).keys == KeyRange::ALL);
    assert_eq!(hints(column("time").lt(3i64)).times.unwrap().end, 3);
}

#[test]
fn what_does_not_fit_is_refused_and_named() {
    let schema = schema();
    let cases = [
        (column("nothing").eq(1), "\"nothing\" is not in the table"),
        (
            column("nothing").is_null(),
            "\"nothing\" is not in the table",
        ),
        (
            column("number").eq("1"),
            "does not fit column \"number\", which is Int32",
        ),
        (column("number").eq(1.5), "1.5"),
        (column("number").eq(1i64 << 40), "1099511627776"),
        (column("text").eq(1), "\"text\""),
        (column("time").eq("yesterday"), "yesterday"),
        (
            column("number").eq(column("float")),
            "compared with column \"float\"",
        ),
        (column("flag").is_in([1]), "\"flag\""),
    ];
    for (predicate, wanted) in cases {
        let error = Filter::new(&predicate, &schema).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(wanted), "{predicate}: {error}");
    }
    for fits in [
        column("number").eq(1.0),
        column("float").eq(1),
        column("time").gt("2013-07-01T00:00:00Z"),
        column("dictionary").eq("a"),
    ] {
        Filter::new(&fits, &schema).unwrap();
    }
    let july = hints(column("time").gt_eq("2013-07-01T00:00:00Z"));
    assert_eq!(july.times.unwrap().start, 1_372_636_800_000);
}

#[test]
fn bounds_leave_out_what_they_can() {
    let schema = schema();
    let rows: Vec<Row> = (0..20)
        .map(|n| (None, Some(n), 0, Some(f64::from(n)), None, None))
        .collect();
    let batch = batch(&schema, &rows);
    let parts = [(0, 5), (5, 5), (10, 5), (15, 5)];
    let left = |predicate: Predicate| {
        let filter = Filter::new(&predicate, &schema).unwrap();
        let may = may_match(filter.root(), &batch, &parts);
        may.iter()
            .map(|may| if *may { '#' } else { '.' })
            .collect::<String>()
    };
    assert_eq!(left(column("number").lt(5)), "#...");
    assert_eq!(left(column("number").gt(14)), "...#");
    assert_eq!(left(column("number").eq(7)), ".#..");
    assert_eq!(left(column("number").is_in([1, 12])), "#.#.");
    assert_eq!(left(column("number").is_in(10..50)), "..##");
    assert_eq!(left(!column("number").lt(10)), "..##");
    assert_eq!(left(column("text").is_null()), "####");
    assert_eq!(left(!column("text").is_null()), "....");
    assert_eq!(left(column("text").eq("a")), "....");
    assert_eq!(
        left(column("number").lt(5) | column("number").gt(14)),
        "#..#"
    );
    // A NaN, which statistics do not count, would be above.
    assert_eq!(left(column("float").gt(14.0)), "####");
    assert_eq!(left(column("float").lt(5.0)), "#...");
    let known = ColumnBounds {
        may_have_nan: false,
        ..bounds(&batch, "float", &parts)
    };
    let Node::Leaf(leaf) = Filter::new(&column("float").gt(14.0), &schema)
        .unwrap()
        .root()
        .clone()
    else {
        panic!("one comparison is one leaf");
    };
    assert_eq!(leaf.may_match(&known).unwrap(), [false, false, false, true]);
}
