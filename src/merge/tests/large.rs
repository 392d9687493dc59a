//! The cases that the model is too small for: long stretches, many versions of one key, disorder, failing sources.

use super::*;
use crate::error::ErrorKind;

/// Rows `keys`, one batch for each `rows`, all at `seq`.
fn ints(
    schema: &TableSchema,
    keys: impl Iterator<Item = i64>,
    seq: u64,
    rows: usize,
) -> Vec<RecordBatch> {
    let keys: Vec<i64> = keys.collect();
    let batches = keys.chunks(rows).map(|keys| {
        let count = keys.len();
        let key = Arc::new(Int64Array::from(keys.to_vec()));
        let columns: Vec<ArrayRef> = vec![
            key.clone(),
            key,
            Arc::new(UInt64Array::from_value(seq, count)),
            Arc::new(UInt8Array::from_value(0, count)),
        ];
        RecordBatch::try_new(schema.stored().clone(), columns).unwrap()
    });
    batches.collect()
}

#[test]
fn long_stretches_are_not_copied() {
    let schema = schema(KeyKind::Int, WriteMode::Upsert);
    let left = ints(&schema, 0..8_000, 1, 4_000);
    let right = ints(&schema, 4_000..12_000, 2, 4_000);
    let address = |batch: &RecordBatch| {
        let ids = batch.column(1).as_primitive::<Int64Type>().values();
        ids.as_ptr() as usize
    };
    let (first, last) = (address(&left[0]), address(&right[1]));
    let options = MergeOptions::retained(WriteMode::Upsert, Retention::default());
    let mut merge = merge(&schema, vec![source(left), source(right)], options);
    let batches = merge.by_ref().collect::<Result<Vec<_>>>().unwrap();

    assert_eq!(ids(&batches), (0..12_000).collect::<Vec<_>>());
    assert_eq!(address(&batches[0]), first);
    let rows = batches.last().unwrap().num_rows();
    assert_eq!(address(batches.last().unwrap()), last + (4_000 - rows) * 8);
    assert_eq!(merge.stats().shadowed.rows, 4_000);
}

#[test]
fn interleaved_and_clustered_rows_come_out_whole() {
    let schema = schema(KeyKind::Int, WriteMode::Upsert);
    for cluster in [1, 50, 700, 1_500] {
        let keys = |side: i64| (0..20_000i64).filter(move |key| key / cluster % 2 == side);
        let sources = vec![
            source(ints(&schema, keys(0), 1, 3_000)),
            source(ints(&schema, keys(1), 2, 5_000)),
        ];
        let options = MergeOptions::retained(WriteMode::Upsert, Retention::default());
        let batches = merge(&schema, sources, options)
            .collect::<Result<Vec<_>>>()
            .unwrap();
        assert_eq!(
            ids(&batches),
            (0..20_000).collect::<Vec<_>>(),
            "cluster {cluster}"
        );
        let small = batches.iter().filter(|batch| batch.num_rows() < 1_024);
        assert!(small.count() <= 1, "cluster {cluster}");
    }
}

/// Of a hundred thousand versions of one key the newest stays, and none of their batches is held.
#[test]
fn a_key_may_span_many_batches() {
    let schema = schema(KeyKind::Int, WriteMode::Upsert);
    let rows: Vec<Row> = (0..10_000u64)
        .map(|n| Row {
            key: 1,
            seq: 10_000 - n,
            delete: n == 0,
            id: n as i64,
        })
        .collect();
    let batches = rows
        .chunks(100)
        .map(|rows| batch(&schema, KeyKind::Int, rows));
    let batches: Vec<_> = batches.collect();
    for (drop_tombstones, want) in [(false, vec![0]), (true, vec![])] {
        let retention = Retention {
            drop_tombstones,
            ..Retention::default()
        };
        let options = MergeOptions::retained(WriteMode::Upsert, retention);
        let merge = merge(&schema, vec![source(batches.clone())], options);
        assert_eq!(ids(&merge.collect::<Result<Vec<_>>>().unwrap()), want);
    }
}

#[test]
fn disorder_is_corrupt_and_ends_the_merge() {
    let schema = schema(KeyKind::Int, WriteMode::Upsert);
    let row = |key: u8, seq: u64| Row {
        key,
        seq,
        delete: false,
        id: 0,
    };
    let cases = [
        vec![vec![row(2, 1), row(1, 1)]],
        vec![vec![row(2, 1)], vec![row(1, 1)]],
        vec![vec![row(1, 1), row(1, 2)]],
        vec![vec![row(1, 1)], vec![], vec![row(1, 2)]],
    ];
    for case in cases {
        let good = source(ints(&schema, 0..10, 5, 10));
        let bad = case.iter().map(|rows| batch(&schema, KeyKind::Int, rows));
        let sources = vec![good, source(bad.collect())];
        let options = MergeOptions::retained(WriteMode::Upsert, Retention::default());
        let mut merge = merge(&schema, sources, options);
        let error = merge.find_map(Result::err).unwrap();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{case:?}");
        assert!(error.message().starts_with("source 1: "), "{error}");
        assert!(merge.next().is_none());
    }
}

#[test]
fn a_failing_source_fails_the_merge() {
    let schema = schema(KeyKind::Int, WriteMode::Upsert);
    let good = ints(&schema, 0..10, 5, 10).into_iter().map(Ok);
    let failing = good.chain([Err(Error::not_found("sst x"))]);
    let options = MergeOptions::visible(WriteMode::Upsert, at(Seq(9)));
    let merge = merge(&schema, vec![Box::new(failing)], options);
    let kinds: Vec<_> = merge
        .map(|batch| batch.map(|b| b.num_rows()).map_err(|e| e.kind()))
        .collect();
    assert_eq!(kinds.last(), Some(&Err(ErrorKind::NotFound)));
}

#[test]
fn projections_need_the_merge_columns() {
    let schema = schema(KeyKind::Int, WriteMode::Upsert);
    let stored = schema.stored();
    assert!(MergeColumns::find(&schema, &stored.project(&[0, 2, 3]).unwrap()).is_ok());
    let error = MergeColumns::find(&schema, &stored.project(&[0, 1, 3]).unwrap()).unwrap_err();
    assert!(error.message().contains("__seq"), "{error}");
}
