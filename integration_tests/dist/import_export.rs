//! `siltstone import` and `siltstone export`: plain Parquet files go in and come out, whole or not at all.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
};

use arrow::{
    array::{
        ArrayRef, Int16Array, Int32Array, RecordBatch, StringArray, TimestampMicrosecondArray,
    },
    compute::cast,
    datatypes::{DataType, TimeUnit},
};
use parquet::{
    arrow::ArrowWriter,
    basic::{Compression, ZstdLevel},
    file::properties::WriterProperties,
};
use siltstone::{
    engine::{Engine, ScanRequest, Table},
    types::TimeRange,
};
use tempfile::{TempDir, tempdir};

use crate::{
    inspect::{contents, json, siltstone, text},
    support::{
        Reading, assert_same, eventually, flights,
        flights::{Answers, KEY, read_parquet},
        quiet_config, reading_rows, readings, scan, small_engine, url_of,
    },
};

/// 2013-07-01 and 2013-08-01, in milliseconds.
const JULY: TimeRange = TimeRange {
    start: 1_372_636_800_000,
    end: 1_375_315_200_000,
};

fn flights_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/data/flights.parquet")
}

/// The rows of a Parquet file.
pub fn rows_in(file: &Path) -> RecordBatch {
    read_parquet(text(file), fs::read(file).unwrap().into()).unwrap()
}

/// Writes a Parquet file, in pages of few rows.
fn write_file(file: &Path, rows: &RecordBatch, compression: Compression) {
    let properties = WriterProperties::builder()
        .set_compression(compression)
        .set_data_page_row_count_limit(500)
        .set_write_batch_size(500)
        .build();
    let file = fs::File::create(file).unwrap();
    let mut writer = ArrowWriter::try_new(file, rows.schema(), Some(properties)).unwrap();
    writer.write(rows).unwrap();
    writer.close().unwrap();
}

/// Writes a file of these columns, all of them nullable.
fn write_columns(file: &Path, columns: Vec<(&str, ArrayRef)>) {
    let columns = columns.into_iter();
    let rows = columns.map(|(name, column)| (name, column, true));
    let rows = RecordBatch::try_from_iter_with_nullable(rows).unwrap();
    write_file(file, &rows, Compression::SNAPPY);
}

/// Runs a command that must fail with this code, and name all of this.
#[track_caller]
pub fn refused(arguments: &[&str], code: i32, words: &[&str]) {
    let output = siltstone(arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
    for word in words {
        assert!(
            said.contains(word),
            "{arguments:?}: {word:?} is not in: {said}"
        );
    }
}

/// The SSTs under a root, of which some may be going.
pub fn ssts_in(folder: &Path) -> Vec<PathBuf> {
    let mut ssts = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            ssts.extend(ssts_in(&path));
        } else if path.extension().is_some_and(|end| end == "parquet") {
            ssts.push(path);
        }
    }
    ssts.sort();
    ssts
}

/// Opens a root that a command has left.
async fn open(root: &Path) -> Engine {
    Engine::open(quiet_config(&url_of(root))).await.unwrap()
}

pub async fn rows(table: &Table) -> Vec<Reading> {
    reading_rows(&scan(table, ScanRequest::all()).await)
}

/// A root with a small table of three flushed rows, and a folder for files.
pub async fn small_root() -> (TempDir, TempDir, Engine, Table) {
    let (root, files) = (tempdir().unwrap(), tempdir().unwrap());
    let (engine, table) = small_engine(quiet_config(&url_of(root.path()))).await;
    let three = [
        (0, Some(0), Some(0)),
        (0, Some(1), Some(1)),
        (2_000, None, Some(2)),
    ];
    table.write(readings(&three)).await.unwrap();
    table.flush().await.unwrap();
    (root, files, engine, table)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_year_of_flights_goes_in_and_comes_out_again() {
    let dir = tempdir().unwrap();
    let (root, out) = (dir.path().join("a/root"), dir.path().join("out.parquet"));
    let (root, file, out) = (text(&root), flights_file(), text(&out));
    let key = KEY.join(",");
    let create = [
        "--create", "--key", &key, "--time", KEY[0], "--window", "30days",
    ];
    let import = [&["import", root, "flights", text(&file)], &create[..]].concat();
    // Less memory than the rows need.
    let (report, good) = json(&[&import[..], &["--memory", "8MiB"]].concat());
    assert!(good, "{report:#}");
    let published = Answers::published();
    assert_eq!(report["rows"], published.rows);
    assert!(report["rows_spilled"].as_u64() > Some(0), "{report:#}");

    let (report, good) = json(&["export", root, "flights", out]);
    assert!(good, "{report:#}");
    assert_eq!(report["rows"], published.rows);
    let exported = rows_in(Path::new(out));
    let flights = flights(usize::MAX);
    assert_same(&flights.landed().unwrap(), &exported);
    let answers = Answers::of(&exported).unwrap();
    assert_eq!(answers.distance, published.distance);
    assert_eq!(answers.origins, published.origins);
    assert_eq!(answers.dep_delay_nulls, published.dep_delay_nulls);

    // Some columns of some times.
    let july = dir.path().join("july.parquet");
    let times = ["--start", "2013-07-01", "--end", "1375315200000"];
    let columns = ["--columns", "time_hour,flight"];
    let some = [
        &["export", root, "flights", text(&july)],
        &times[..],
        &columns,
    ]
    .concat();
    assert!(json(&some).1);

    // What came out goes in, as it is in order.
    let copy = dir.path().join("copy");
    let import = [
        &["import", text(&copy), "flights", out, "--sorted"],
        &create[..],
    ]
    .concat();
    let (report, good) = json(&import);
    assert!(good, "{report:#}");
    let engine = open(&copy).await;
    let table = engine.table("flights").unwrap();
    assert_same(&exported, &scan(&table, ScanRequest::all()).await);
    let request = ScanRequest::all()
        .columns(["time_hour", "flight"])
        .times(JULY);
    let wanted = scan(&table, request).await;
    assert!(wanted.num_rows() > 20_000, "{}", wanted.num_rows());
    assert_same(&wanted, &rows_in(&july));
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_other_types_are_imported_and_newer_rows_win() {
    let (root, files, engine, table) = small_root().await;
    engine.close().await.unwrap();
    drop(table);
    let (first, second) = (
        files.path().join("1.parquet"),
        files.path().join("2.parquet"),
    );
    // Other units, narrower numbers, another order.
    let micros =
        |micros: Vec<i64>| -> ArrayRef { Arc::new(TimestampMicrosecondArray::from(micros)) };
    write_columns(
        &first,
        vec![
            ("value", Arc::new(Int16Array::from(vec![10, 11, 12]))),
            ("id", Arc::new(Int32Array::from(vec![1, 2, 3]))),
            ("at", micros(vec![0, 2_000_000, -1_000])),
        ],
    );
    // Two columns are missing, one of the key.
    write_columns(&second, vec![("at", micros(vec![2_000_000]))]);
    let (first, second) = (text(&first), text(&second));
    let (report, good) = json(&["import", text(root.path()), "readings", first, second]);
    assert!(good, "{report:#}");
    assert_eq!((&report["rows"], &report["files"]), (&4.into(), &2.into()));

    let engine = open(root.path()).await;
    let table = engine.table("readings").unwrap();
    let wanted = [
        (-1, Some(3), Some(12)),
        (0, Some(0), Some(0)),
        (0, Some(1), Some(10)),
        (2_000, None, None),
        (2_000, Some(2), Some(11)),
    ];
    assert_eq!(rows(&table).await, wanted);
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_is_created_like_the_first_file() {
    let dir = tempdir().unwrap();
    let file = dir.path().join("a.parquet");
    let names: ArrayRef = Arc::new(StringArray::from(vec!["b", "a", "b"]));
    let names = cast(
        &names,
        &DataType::Dictionary(DataType::Int32.into(), DataType::Utf8.into()),
    );
    let times: ArrayRef = Arc::new(TimestampMicrosecondArray::from(vec![1, 1, 1]));
    let numbers: ArrayRef = Arc::new(Int32Array::from(vec![1, 2, 3]));
    let columns = vec![("name", names.unwrap()), ("at", times), ("number", numbers)];
    write_columns(&file, columns);
    let root = dir.path().join("root");
    let (root, file) = (text(&root), text(&file));
    let import = [
        "import", root, "names", file, "--create", "--key", "at,name",
    ];
    let timed = [&import[..], &["--time", "at"]].concat();
    assert!(json(&timed).1);

    let engine = open(Path::new(root)).await;
    let table = engine.table("names").unwrap();
    let schema = table.schema();
    assert_eq!(schema.key_names(), ["at", "name"]);
    assert_eq!(schema.time_unit(), Some(TimeUnit::Microsecond));
    let nullable = schema.columns().fields().iter();
    let nullable: Vec<bool> = nullable.map(|field| field.is_nullable()).collect();
    assert_eq!(nullable, [true, false, true]);
    let found = scan(&table, ScanRequest::all().columns(["number"])).await;
    let numbers = found.column(0).as_any().downcast_ref::<Int32Array>();
    assert_eq!(numbers, Some(&Int32Array::from(vec![2, 3])));
    engine.close().await.unwrap();
    refused(&timed, 2, &["\"names\" exists already", "--create"]);
    refused(&[&import[..], &["--window", "1h"]].concat(), 2, &["--time"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_imported_is_refused_before_the_root_is_opened() {
    let (root, files, engine, table) = small_root().await;
    let before = contents(root.path());
    let rows = readings(&[(0, Some(0), Some(7))]);
    let file = |name: &str| files.path().join(name);
    let good = file("good.parquet");
    write_file(&good, &rows, Compression::SNAPPY);
    let at = || rows.column(0).clone();
    let id: ArrayRef = Arc::new(Int32Array::from(vec![1]));
    let (unknown, missing, lossy) = (file("unknown"), file("missing"), file("lossy"));
    write_columns(
        &unknown,
        vec![("at", at()), ("x", id.clone()), ("y", id.clone())],
    );
    write_columns(&missing, vec![("id", id.clone())]);
    let wide = cast(&id, &DataType::Int64).unwrap();
    write_columns(&lossy, vec![("at", at()), ("id", wide)]);
    let (cut, other) = (file("cut"), file("other"));
    let bytes = fs::read(&good).unwrap();
    fs::write(&cut, &bytes[..bytes.len() - 9]).unwrap();
    fs::write(&other, "at,id,value").unwrap();

    let root_text = text(root.path());
    let import = |table: &str, files: &[&Path], code: i32, words: &[&str]| {
        let files: Vec<&str> = files.iter().map(|file| text(file)).collect();
        refused(
            &[&["import", root_text, table], &files[..]].concat(),
            code,
            words,
        );
    };
    // The second file, too.
    import(
        "readings",
        &[&good, &unknown],
        2,
        &["unknown", "\"x\", \"y\""],
    );
    import(
        "readings",
        &[&missing],
        2,
        &["missing", "\"at\"", "Timestamp(ms)"],
    );
    import(
        "readings",
        &[&lossy],
        2,
        &["lossy", "\"id\"", "Int64", "Int32"],
    );
    import("readings", &[&cut], 1, &["corrupt", "cut"]);
    import("readings", &[&other], 1, &["corrupt", "other"]);
    import("readings", &[&file("none")], 1, &["not found", "none"]);
    import(
        "writings",
        &[&good],
        1,
        &["\"writings\"", "\"readings\"", "--create"],
    );
    let nowhere = file("nowhere");
    let arguments = ["import", text(&nowhere), "readings", text(&good)];
    refused(&arguments, 1, &["nowhere"]);
    let create = ["--create", "--key", "at", "--time", "id"];
    let arguments = [&["import", text(&nowhere), "new", text(&good)], &create[..]].concat();
    refused(&arguments, 2, &["good.parquet", "\"id\""]);
    assert!(!nowhere.exists());
    // The engine keeps the root by its write-ahead log.
    import("readings", &[&good], 1, &["unavailable", "wal"]);

    assert_eq!(
        contents(root.path()).keys().collect::<Vec<_>>(),
        before.keys().collect::<Vec<_>>()
    );
    table.write(rows).await.unwrap();
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_that_fails_half_way_leaves_nothing() {
    let (root, files, engine, table) = small_root().await;
    let before = rows(&table).await;
    engine.close().await.unwrap();
    let many: Vec<Reading> = (0..40_000).map(|at| (at, Some(1), Some(at * at))).collect();
    let file = |name: &str| files.path().join(name);
    let (good, torn, late) = (
        file("good.parquet"),
        file("torn.parquet"),
        file("late.parquet"),
    );
    write_file(
        &good,
        &readings(&many),
        Compression::ZSTD(ZstdLevel::default()),
    );
    // Its footer is whole, its pages are not.
    let mut bytes = fs::read(&good).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 4_000].fill(0xff);
    fs::write(&torn, bytes).unwrap();
    // Only the last value has no place in the table.
    let micros = |at: i64| if at == 39_999 { 1 } else { at * 1_000 };
    let micros = TimestampMicrosecondArray::from_iter_values((0..40_000).map(micros));
    write_columns(&late, vec![("at", Arc::new(micros))]);

    let ssts_before = ssts_in(root.path());
    let root_text = text(root.path());
    let small = ["--memory", "64KiB"];
    for (second, code, words) in [
        (&torn, 1, ["corrupt", "torn.parquet", "decoded"]),
        (&late, 2, ["late.parquet", "\"at\"", "row 39999"]),
    ] {
        let import = ["import", root_text, "readings", text(&good), text(second)];
        refused(&[&import[..], &small].concat(), code, &words);
        let create = [
            "import",
            root_text,
            "new",
            text(&good),
            text(second),
            "--create",
        ];
        let key = ["--key", "at,id", "--time", "at"];
        refused(&[&create[..], &key, &small].concat(), code, &words);
    }
    let twice = [
        "import",
        root_text,
        "readings",
        text(&good),
        text(&good),
        "--sorted",
    ];
    refused(&twice, 2, &["row 40000", "not sorted"]);

    let engine = open(root.path()).await;
    assert_eq!(engine.tables(), ["readings"]);
    assert_eq!(rows(&engine.table("readings").unwrap()).await, before);
    engine.close().await.unwrap();
    assert_eq!(ssts_in(root.path()), ssts_before);
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_import_leaves_nothing() {
    let (root, _files, engine, table) = small_root().await;
    let before = rows(&table).await;
    engine.close().await.unwrap();
    let ssts_before = ssts_in(root.path());
    let import = Command::new(env!("CARGO_BIN_EXE_siltstone"))
        .args([
            "import",
            text(root.path()),
            "flights",
            text(&flights_file()),
        ])
        .args([
            "--create",
            "--key",
            &KEY.join(","),
            "--time",
            KEY[0],
            "--memory",
            "1MiB",
        ])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    eventually("parts are written to be sorted", || async {
        ssts_in(root.path()).len() > 5
    })
    .await;
    let kill = Command::new("kill")
        .args(["-INT", &import.id().to_string()])
        .status();
    assert!(kill.unwrap().success());
    let output = import.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("interrupted"), "{said}");

    assert_eq!(ssts_in(root.path()), ssts_before);
    let engine = open(root.path()).await;
    assert_eq!(engine.tables(), ["readings"]);
    assert_eq!(rows(&engine.table("readings").unwrap()).await, before);
    engine.close().await.unwrap();
}
