//! Round trips of the metrics table: what is in the meta, ranges, projections, runs, disorder.

use super::*;
use crate::types::{Alteration, MergeOperator};

#[test]
fn the_meta_says_what_is_in_the_file() {
    let bench = Bench::metrics(WriteMode::Upsert);
    let rows = [(0, 5, 9, 0), (0, 5, 3, 1), (1, 2, 4, 0), (2, 8, 4, 1)];
    let batch = metrics(&bench.spec.schema, &rows);
    let meta = bench.write_one(&batch);

    let sum = rows
        .iter()
        .map(|row| RowSum::new(1, row_hash(&bench.key(row.0, row.1).0, Seq(row.2))));
    let want = SstMeta {
        id: flushed(0),
        level: 0,
        window: bench.spec.window,
        bytes: bench.object(&meta).len() as u64,
        rows: 4,
        tombstones: 2,
        key_min: bench.key(0, 5),
        key_max: bench.key(2, 8),
        seq_min: Seq(3),
        seq_max: Seq(9),
        times: Some((2, 8)),
        schema_version: 1,
        rows_hash: sum.sum::<RowSum>().hash,
        applied_seq: Seq(0),
        home: None,
    };
    assert_eq!(*meta, want);
    assert_eq!(bench.read_all(&meta).unwrap(), batch);
}

#[test]
fn row_groups_are_cut_and_read_by_key_and_time() {
    let bench = Bench::metrics(WriteMode::Upsert);
    let batch = metrics(&bench.spec.schema, &grid(10, 500));
    let meta = bench.write_one(&batch);
    let reader = bench.open(&meta).unwrap();
    let bounds = reader.row_group_bounds();
    assert_eq!(
        bounds.iter().map(|b| b.rows).collect::<Vec<_>>(),
        [1_000; 5]
    );
    assert_eq!(bounds[1].first_key, bench.key(2, 0));

    let range = |start: (usize, i64), end: (usize, i64)| KeyRange {
        start: Some(bench.key(start.0, start.1)),
        end: Some(bench.key(end.0, end.1)),
    };
    let cases = [
        (range((3, 100), (3, 110)), 1_600..1_610, 1),
        (range((1, 490), (2, 5)), 990..1_005, 2),
        (range((0, 0), (2, 0)), 0..1_000, 1),
        (range((9, 499), (99, 0)), 4_999..5_000, 1),
        (range((4, 500), (5, 0)), 0..0, 1),
        (range((99, 0), (100, 0)), 0..0, 0),
        (KeyRange::ALL, 0..5_000, 5),
        (
            KeyRange::closed(&bench.key(5, 0), &bench.key(5, 0)),
            2_500..2_501,
            1,
        ),
    ];
    for (keys, want, groups) in cases {
        let reader = bench.open(&meta).unwrap();
        let request = ReadRequest {
            keys,
            batch_rows: 64,
            ..ReadRequest::default()
        };
        let read = bench.read(&reader, &request).unwrap();
        assert_eq!(ids(&read), want.collect::<Vec<i64>>(), "{:?}", request.keys);
        let stats = reader.stats();
        assert_eq!(stats.row_groups_read(), groups, "{:?}", request.keys);
        assert_eq!(stats.row_groups_skipped(), 5 - groups);
    }

    let times = Some(TimeRange { start: 20, end: 22 });
    let request = ReadRequest {
        times,
        ..ReadRequest::default()
    };
    let read = bench.read(&reader, &request).unwrap();
    let want = (0..10).flat_map(|host| [host * 500 + 20, host * 500 + 21]);
    assert_eq!(ids(&read), want.collect::<Vec<i64>>());
    let times = Some(TimeRange {
        start: 500,
        end: 600,
    });
    let request = ReadRequest {
        times,
        ..ReadRequest::default()
    };
    let reader = bench.open(&meta).unwrap();
    assert_eq!(bench.read(&reader, &request).unwrap().num_rows(), 0);
    assert_eq!(reader.stats().row_groups_skipped(), 5);
}

#[test]
fn the_key_filter_knows_whole_keys() {
    let mut bench = Bench::metrics(WriteMode::Upsert);
    let rows = (0..20).flat_map(|host| {
        [
            (host, 10 * host as i64, 5, 0),
            (host, 10 * host as i64, 4, 0),
        ]
    });
    let batch = metrics(&bench.spec.schema, &rows.collect::<Vec<_>>());
    let reader = bench.open(&bench.write_one(&batch)).unwrap();
    let filter = bench
        .runtime
        .block_on(reader.key_filter())
        .unwrap()
        .unwrap();
    assert!((0..20).all(|host| filter.may_contain(&bench.key(host, 10 * host as i64).0)));
    // Every host and every time occurs, but not together.
    let absent =
        (0..20).filter(|&host| filter.may_contain(&bench.key(host, 190 - 10 * host as i64).0));
    assert!(absent.count() < 5);
    assert_eq!(filter.bytes(), 32);

    bench.spec.options.filter_bits_per_key = 0;
    let reader = bench.open(&bench.write_one(&batch)).unwrap();
    assert!(
        bench
            .runtime
            .block_on(reader.key_filter())
            .unwrap()
            .is_none()
    );
}

#[test]
fn projections_keep_what_a_merge_needs() {
    let bench = Bench::metrics(WriteMode::Upsert);
    let batch = metrics(&bench.spec.schema, &grid(2, 700));
    let reader = bench.open(&bench.write_one(&batch)).unwrap();
    let names = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect());
    for (projection, columns) in [
        (names(&["id"]), vec![0, 1, 3, 4, 5]),
        (names(&[]), vec![0, 1, 4, 5]),
        (names(&["value", "host"]), vec![0, 1, 2, 4, 5]),
        (None, vec![0, 1, 2, 3, 4, 5]),
    ] {
        let request = ReadRequest {
            projection,
            ..ReadRequest::default()
        };
        let read = bench.read(&reader, &request).unwrap();
        assert_eq!(read, batch.project(&columns).unwrap());
    }
    let request = ReadRequest {
        projection: names(&["nope"]),
        ..ReadRequest::default()
    };
    assert_eq!(kind(bench.read(&reader, &request)).0, ErrorKind::Invalid);
}

/// A run rolls over at its target size, but never between versions of a key.
#[test]
fn runs_roll_at_key_changes() {
    let mut bench = Bench::metrics(WriteMode::Upsert);
    bench.spec.options.sst_bytes_target = 1;
    let keys = (0..40usize).flat_map(|host| (0..25).map(move |seq| (host, 0, 30 - seq, 0)));
    let batch = metrics(&bench.spec.schema, &keys.collect::<Vec<_>>());
    let metas = bench.write(&batch, 10).unwrap();
    assert!(metas.len() > 10);
    assert_eq!(metas.iter().map(|meta| meta.rows).sum::<u64>(), 1_000);
    for pair in metas.windows(2) {
        assert!(pair[0].key_max < pair[1].key_min);
    }
    let read = metas
        .iter()
        .map(|meta| bench.read_all(&Arc::new(meta.clone())).unwrap());
    let read = concat_batches(&batch.schema(), &read.collect::<Vec<_>>()).unwrap();
    assert_eq!(read, batch);
    assert!(bench.write(&batch.slice(0, 0), 10).unwrap().is_empty());
}

#[test]
fn a_cancelled_run_leaves_no_unfinished_object() {
    let bench = Bench::metrics(WriteMode::Upsert);
    let batch = metrics(&bench.spec.schema, &grid(1, 500));
    let asked = std::cell::Cell::new(0);
    let mut rows = 0;
    let written = write_run(
        &bench.store,
        &bench.handle(),
        &bench.spec,
        (0..5).map(|n| Ok(batch.slice(n * 100, 100))),
        RunHooks {
            id_of: &mut flushed,
            progress: &mut |count| rows += count,
            finished: &mut |_| {},
            cancelled: &|| asked.replace(asked.get() + 1) == 3,
        },
    );
    assert_eq!(kind(written).0, ErrorKind::Closed);
    assert_eq!(rows, 300);
    let objects = bench
        .runtime
        .block_on(bench.store.list(&layout::ssts(bench.table)));
    assert!(objects.unwrap().is_empty());
}

#[test]
fn disorder_is_refused() {
    let refused = |mode, rows: &[Metric]| {
        let bench = Bench::metrics(mode);
        let batch = metrics(&bench.spec.schema, rows);
        for rows in [1, 10] {
            let (kind, message) = kind(bench.write(&batch, rows));
            assert_eq!(kind, ErrorKind::Internal, "{message}");
        }
    };
    for mode in [WriteMode::Upsert, WriteMode::Append] {
        refused(mode, &[(1, 0, 1, 0), (0, 0, 1, 0)]);
        refused(mode, &[(0, 1, 1, 0), (0, 0, 1, 0)]);
        refused(mode, &[(0, 0, 1, 0), (0, 0, 2, 0)]);
        refused(mode, &[(0, 0, 1, 0), (0, 3_600_000, 1, 0)]);
        refused(mode, &[(0, -1, 1, 0)]);
    }
    refused(WriteMode::Upsert, &[(0, 0, 1, 0), (0, 0, 1, 0)]);
    let bench = Bench::metrics(WriteMode::Append);
    let twins = metrics(&bench.spec.schema, &[(0, 0, 1, 0), (0, 0, 1, 0)]);
    assert_eq!(bench.read_all(&bench.write_one(&twins)).unwrap(), twins);
    let other = Bench::new(metrics_schema(WriteMode::Upsert));
    let narrow = twins.project(&[0, 1, 3, 4, 5]).unwrap();
    assert_eq!(kind(other.write(&narrow, 10)).0, ErrorKind::Internal);
}

#[test]
fn a_missing_object_is_named() {
    let bench = Bench::metrics(WriteMode::Upsert);
    let batch = metrics(&bench.spec.schema, &grid(3, 700));
    let meta = bench.write_one(&batch);
    let name = layout::sst(bench.table, meta.id);
    let reader = bench.open(&meta).unwrap();
    bench.runtime.block_on(bench.store.delete(&name)).unwrap();
    for result in [
        bench.open(&meta).map(drop),
        bench.read(&reader, &ReadRequest::default()).map(drop),
    ] {
        let (kind, message) = kind(result);
        assert_eq!(kind, ErrorKind::NotFound);
        assert!(message.contains(&name), "{message}");
    }
}

/// What a later schema added is null, what it dropped is gone, what it widened is wide.
#[test]
fn an_old_file_is_read_with_a_new_schema() {
    let bench = Bench::new({
        let columns = Schema::new(vec![
            Field::new("k", DataType::Int64, false),
            Field::new("narrow", DataType::Int32, true),
            Field::new("dropped", DataType::Utf8, true),
        ]);
        TableSchema::new(Arc::new(columns), &["k"], None, TableOptions::default()).unwrap()
    });
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from(vec![1, 2])),
        Arc::new(arrow::array::Int32Array::from(vec![Some(5), None])),
        Arc::new(StringArray::from(vec!["a", "b"])),
        Arc::new(UInt64Array::from(vec![1, 1])),
        Arc::new(UInt8Array::from(vec![0, 0])),
    ];
    let batch = RecordBatch::try_new(bench.spec.schema.stored().clone(), columns).unwrap();
    let meta = bench.write_one(&batch);

    let rename = |from: &str, to: &str| Alteration::RenameColumn {
        from: from.into(),
        to: to.into(),
    };
    let dropped = bench.spec.schema.columns().field(2).name().clone();
    let changes = [
        Alteration::AddColumn {
            field: Field::new("added", DataType::Float32, true),
            operator: MergeOperator::LastValue,
        },
        Alteration::WidenColumn {
            name: "narrow".into(),
            data_type: DataType::Int64,
        },
        rename("narrow", "wide"),
        rename("k", "key"),
        Alteration::DropColumn { name: dropped },
    ];
    let new = bench.spec.schema.altered(&changes, 0).unwrap();
    let reader = bench.open_as(&new, &meta).unwrap();
    let read = bench.read(&reader, &ReadRequest::default()).unwrap();
    assert_eq!(&read.schema(), new.stored());
    assert_eq!(read.column(2).null_count(), 2);
    let wide: ArrayRef = Arc::new(Int64Array::from(vec![Some(5), None]));
    assert_eq!(read.column(1), &wide);
    // A column that was dropped does not come back with one of its name.
    let readded = Alteration::AddColumn {
        field: Field::new("narrow", DataType::Int64, true),
        operator: MergeOperator::LastValue,
    };
    let again = new.altered(&[readded], 0).unwrap();
    let reader = bench.open_as(&again, &meta).unwrap();
    let read = bench.read(&reader, &ReadRequest::default()).unwrap();
    assert_eq!(read.column_by_name("narrow").unwrap().null_count(), 2);
}

/// The rows of the golden file.
fn golden() -> (Bench, RecordBatch) {
    let mut bench = Bench::metrics(WriteMode::Upsert);
    bench.spec.options.row_group_rows = 3;
    let rows = [
        (0, 5, 9, 0),
        (0, 5, 3, 1),
        (0, 6, 9, 0),
        (1, 2, 4, 0),
        (2, 8, 4, 1),
    ];
    let batch = metrics(&bench.spec.schema, &rows);
    (bench, batch)
}

/// A file of format version 2 stays readable, and is what its meta says, in every later version.
#[test]
fn version_2_stays_readable() {
    let (bench, batch) = golden();
    let written = bench.write_one(&batch);
    let object = crate::golden::kept("sst-v2.parquet", &bench.object(&written));
    let meta = Arc::new(SstMeta {
        bytes: object.len() as u64,
        ..written.as_ref().clone()
    });
    bench.put(&meta, object.to_vec());
    let reader = bench.open(&meta).unwrap();
    let read = bench.read(&reader, &ReadRequest::default()).unwrap();
    assert_eq!(read, batch);
    let filter = bench
        .runtime
        .block_on(reader.key_filter())
        .unwrap()
        .unwrap();
    assert!(filter.may_contain(&bench.key(1, 2).0));
    assert_eq!(meta.rows_hash, 0xb7bd_4434_800e_d610);
}
