//! Every column type there and back, and the file in the eyes of a plain Parquet reader.

use arrow::{
    array::{
        Array, BinaryArray, BooleanArray, Date32Array, Decimal128Array, DictionaryArray,
        FixedSizeBinaryArray, Float32Array, Int8Array, LargeStringArray, ListArray,
        StringViewArray, StructArray, TimestampMicrosecondArray, TimestampNanosecondArray,
        TimestampSecondArray, UInt32Array,
    },
    datatypes::{Int32Type, UInt64Type},
};
use parquet::{
    arrow::arrow_reader::ParquetRecordBatchReaderBuilder,
    basic::Encoding,
    file::{
        metadata::{PageIndexPolicy, ParquetMetaDataReader},
        reader::{FileReader, SerializedFileReader},
    },
};

use super::*;

const ROWS: usize = 2_500;

/// One column of each type, every third value null; `k` counts and is the key.
fn all_types() -> (TableSchema, RecordBatch) {
    let null = |row: usize| row.is_multiple_of(3);
    macro_rules! values {
        ($array:ident, $value:expr) => {
            Arc::new(
                (0..ROWS)
                    .map(|row| (!null(row)).then(|| $value(row)))
                    .collect::<$array>(),
            ) as ArrayRef
        };
    }
    let float = |row: usize| match row % 7 {
        0 => f64::NAN,
        1 => -0.0,
        2 => f64::NEG_INFINITY,
        _ => row as f64 / 3.0,
    };
    let text = |row: usize| "é".repeat(row % 9);
    let time = |row: usize| row as i64 * 1_001 - 900_000;
    let list = ListArray::from_iter_primitive::<Int32Type, _, _>(
        (0..ROWS)
            .map(|row| (!null(row)).then(|| (0..row % 4).map(|n| (n != 2).then_some(n as i32)))),
    );
    let item = Arc::new(Field::new("x.y", DataType::Int64, true));
    let nested = StructArray::from(vec![(item, values!(Int64Array, |row: usize| row as i64))]);
    let words: DictionaryArray<Int32Type> = (0..ROWS)
        .map(|row| (!null(row)).then_some(["red", "green", "blue"][row % 3]))
        .collect();
    let bytes = (0..ROWS).map(|row| (!null(row)).then_some([row as u8; 3]));
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("i8", values!(Int8Array, |row: usize| row as i8)),
        (
            "u32",
            values!(UInt32Array, |row: usize| u32::MAX - row as u32),
        ),
        (
            "u64",
            values!(UInt64Array, |row: usize| u64::MAX - row as u64),
        ),
        ("f32", values!(Float32Array, |row| float(row) as f32)),
        ("f64", values!(Float64Array, float)),
        ("text", values!(StringArray, text)),
        ("large", values!(LargeStringArray, text)),
        ("view", values!(StringViewArray, text)),
        (
            "binary",
            values!(BinaryArray, |row: usize| vec![row as u8; row % 5]),
        ),
        ("date", values!(Date32Array, |row: usize| row as i32 - 99)),
        (
            "bool",
            values!(BooleanArray, |row: usize| row.is_multiple_of(2)),
        ),
        ("seconds", values!(TimestampSecondArray, time)),
        ("millis", values!(TimestampMillisecondArray, time)),
        ("micros", values!(TimestampMicrosecondArray, time)),
        ("nanos", values!(TimestampNanosecondArray, time)),
        ("dictionary", Arc::new(words)),
        ("list", Arc::new(list)),
        ("struct", Arc::new(nested)),
        (
            "fixed",
            Arc::new(FixedSizeBinaryArray::try_from_sparse_iter_with_size(bytes, 3).unwrap()),
        ),
        (
            "berlin",
            Arc::new(
                (0..ROWS)
                    .map(|row| Some(time(row)))
                    .collect::<TimestampMillisecondArray>()
                    .with_timezone("Europe/Berlin"),
            ),
        ),
        (
            "offset",
            Arc::new(
                (0..ROWS)
                    .map(|row| Some(time(row)))
                    .collect::<TimestampSecondArray>()
                    .with_timezone("+02:00"),
            ),
        ),
        ("decimal", decimal(9, 2)),
        ("wide.decimal", decimal(38, 10)),
        (
            "nothing",
            arrow::array::new_null_array(&DataType::Utf8, ROWS),
        ),
    ];
    let fields = columns.iter().map(|(name, column)| {
        Field::new(*name, column.data_type().clone(), true)
            .with_metadata([("unit".to_owned(), "none".to_owned())].into())
    });
    let key = Field::new("k", DataType::Int64, false);
    let fields = [key].into_iter().chain(fields).collect::<Vec<_>>();
    let options = TableOptions::default();
    let schema = TableSchema::new(Arc::new(Schema::new(fields)), &["k"], None, options).unwrap();
    let key: ArrayRef = Arc::new(Int64Array::from_iter_values(0..ROWS as i64));
    let arrays = [key]
        .into_iter()
        .chain(columns.into_iter().map(|(_, column)| column));
    let table = RecordBatch::try_new(schema.columns().clone(), arrays.collect()).unwrap();
    let batch = schema.puts(&table, Seq(3)).unwrap();
    (schema, batch)
}

fn decimal(precision: u8, scale: i8) -> ArrayRef {
    let values = (0..ROWS).map(|row| (row % 3 != 0).then_some(row as i128 * 7 - 5_000));
    let values = values.collect::<Decimal128Array>();
    Arc::new(values.with_precision_and_scale(precision, scale).unwrap())
}

/// NaN is not equal to itself: compare the bits.
fn assert_same(left: &RecordBatch, right: &RecordBatch) {
    assert_eq!(left.schema(), right.schema());
    for (at, field) in left.schema().fields().iter().enumerate() {
        let data = |batch: &RecordBatch| format!("{:?}", batch.column(at));
        let same = left.column(at) == right.column(at) || data(left) == data(right);
        assert!(same, "column {}", field.name());
    }
}

#[test]
fn all_types_come_back() {
    let (schema, batch) = all_types();
    let bench = Bench::new(schema);
    let meta = bench.write_one(&batch);
    assert_same(&bench.read_all(&meta).unwrap(), &batch);
    let tombstones = bench
        .spec
        .schema
        .tombstones(&batch.project(&[0]).unwrap(), Seq(4))
        .unwrap();
    let meta = bench.write_one(&tombstones);
    assert_eq!(meta.tombstones, ROWS as u64);
    assert_same(&bench.read_all(&meta).unwrap(), &tombstones);
}

#[test]
fn float_bits_survive() {
    let (schema, batch) = all_types();
    let bench = Bench::new(schema);
    let read = bench.read_all(&bench.write_one(&batch)).unwrap();
    let bits = |batch: &RecordBatch| {
        let floats = batch
            .column_by_name("f64")
            .unwrap()
            .as_primitive::<arrow::datatypes::Float64Type>();
        floats
            .iter()
            .map(|float| float.map(f64::to_bits))
            .collect::<Vec<_>>()
    };
    assert_eq!(bits(&read), bits(&batch));
}

/// Other tools see an ordinary Parquet file with the encodings, order and indexes we promise.
#[test]
fn any_parquet_reader_reads_it() {
    let bench = Bench::metrics(WriteMode::Upsert);
    let batch = metrics(&bench.spec.schema, &grid(3, 1_000));
    let object = bytes::Bytes::from(bench.object(&bench.write_one(&batch)));
    let reader = ParquetRecordBatchReaderBuilder::try_new(object.clone()).unwrap();
    let batches: Vec<_> = reader.build().unwrap().collect::<Result<_, _>>().unwrap();
    let read = concat_batches(&batches[0].schema(), &batches).unwrap();
    assert_eq!(read.columns(), batch.columns());

    let file = SerializedFileReader::new(object).unwrap();
    let metadata = file.metadata();
    assert_eq!(metadata.num_row_groups(), 3);
    let group = metadata.row_group(1);
    let sorting: Vec<_> = group
        .sorting_columns()
        .unwrap()
        .iter()
        .map(|s| (s.column_idx, s.descending))
        .collect();
    assert_eq!(sorting, [(0, false), (1, false), (4, true)]);
    let has = |column: usize, encoding| group.column(column).encodings().any(|e| e == encoding);
    for column in [1, 3, 4] {
        assert!(
            has(column, Encoding::DELTA_BINARY_PACKED),
            "column {column}"
        );
        assert!(group.column(column).dictionary_page_offset().is_none());
    }
    for column in [0, 2, 5] {
        assert!(has(column, Encoding::RLE_DICTIONARY), "column {column}");
    }
    for column in group.columns() {
        assert!(column.column_index_offset().is_some() && column.offset_index_offset().is_some());
        assert!(column.statistics().is_some());
    }
    let pairs = metadata.file_metadata().key_value_metadata().unwrap();
    assert!(
        pairs
            .iter()
            .any(|pair| pair.key == "siltstone.rows" && pair.value.as_deref() == Some("3000"))
    );
}

/// Whatever the size of the batches, pages of all columns end at the same rows.
#[test]
fn pages_end_where_blocks_do() {
    let bench = Bench::metrics(WriteMode::Upsert);
    let batch = metrics(&bench.spec.schema, &grid(3, 1_050));
    for rows in [1, 70, 100, 130, 4_000] {
        let meta = bench.write(&batch, rows).unwrap().remove(0);
        let policy = PageIndexPolicy::Required;
        let mut reader = ParquetMetaDataReader::new().with_page_index_policy(policy);
        let object = bytes::Bytes::from(bench.object(&meta));
        reader.try_parse(&object).unwrap();
        let metadata = reader.finish().unwrap();
        let groups = metadata.offset_index().unwrap();
        assert_eq!(groups.len(), 4);
        for column in groups.iter().flatten() {
            let pages = column.page_locations().iter();
            let starts: Vec<i64> = pages.map(|page| page.first_row_index).collect();
            let want = (0..10).map(|page| 100 * page);
            assert!(
                want.take(starts.len()).eq(starts.iter().copied()),
                "{starts:?}"
            );
            assert!([2, 10].contains(&starts.len()), "{rows}: {starts:?}");
        }
    }
}

#[test]
fn nested_keys_are_sorted_columns_up_to_them() {
    let item = Field::new("a", DataType::UInt64, false);
    let nested = DataType::Struct(vec![item.clone()].into());
    let columns = Schema::new(vec![
        Field::new("first", DataType::Int64, false),
        Field::new("nested", nested, false),
    ]);
    let options = TableOptions::default();
    let schema = TableSchema::new(Arc::new(columns), &["first", "nested"], None, options).unwrap();
    let bench = Bench::new(schema);
    let inner: ArrayRef = Arc::new(UInt64Array::from(vec![1, 2]));
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from(vec![1, 1])),
        Arc::new(StructArray::from(vec![(Arc::new(item), inner)])),
    ];
    let table = RecordBatch::try_new(bench.spec.schema.columns().clone(), columns).unwrap();
    let batch = bench.spec.schema.puts(&table, Seq(1)).unwrap();
    let meta = bench.write_one(&batch);
    assert_eq!(bench.read_all(&meta).unwrap(), batch);
    let file = SerializedFileReader::new(bytes::Bytes::from(bench.object(&meta))).unwrap();
    assert_eq!(
        file.metadata()
            .row_group(0)
            .sorting_columns()
            .unwrap()
            .len(),
        1
    );
    let seqs = batch.column(2).as_primitive::<UInt64Type>();
    assert_eq!(seqs.value(0), 1);
}
