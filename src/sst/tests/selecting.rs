//! Reads of a part: the right rows, and no more than is needed for them.

use std::collections::BTreeSet;

use arrow::{
    array::UInt32Array,
    compute::{filter_record_batch, take_record_batch},
};
use rand::{Rng, SeedableRng, rngs::SmallRng};

use super::{
    oracle::{altered, keys, oracle, request, rows, schema, seeds},
    *,
};
use crate::types::{Filter, column};

#[test]
fn reads_of_a_part_agree_with_an_oracle() {
    let (mut read, mut skipped, mut filtered, mut two_phases) = (0, 0, 0, 0);
    for seed in 0..seeds(12) {
        let mut random = SmallRng::seed_from_u64(seed);
        let versions = random.random_bool(0.5);
        let mut bench = Bench::new(schema());
        bench.spec.options.row_group_rows = random.random_range(200..1_500);
        let page_rows = random.random_range(20..200);
        bench.spec.options.page_rows = page_rows;
        bench.spec.options.row_group_bytes = [64 << 10, 8 << 20][random.random_range(0..2)];
        let rows = rows(&bench.spec.schema, &mut random, versions);
        let meta = bench.write_one(&rows);
        let newer = altered(&bench.spec.schema);
        for schema in [&bench.spec.schema, &newer] {
            let whole = SstAccess::by_chunks(&bench.store);
            let whole = bench.open_through(&whole, schema, &meta).unwrap();
            let all = bench.read(&whole, &ReadRequest::default()).unwrap();
            assert_eq!(whole.keys_are_unique(), !versions);
            for case in 0..25 {
                let (request, text) = request(schema, &mut random, &all, versions, page_rows);
                let want = oracle(schema, &all, &request);
                let access = bench.by_pages();
                let parts = bench.open_through(&access, schema, &meta).unwrap();
                let opened = access.stats().bytes();
                for reader in [&parts, &whole] {
                    let found = bench.read(reader, &request).unwrap();
                    assert!(
                        found == want,
                        "seed {seed}, case {case}: {request:?} {text}\n{found:?}\n{want:?}"
                    );
                }
                let stats = parts.stats();
                read += stats.pages_read();
                skipped += stats.pages_skipped();
                filtered += stats.rows_filtered();
                two_phases += u64::from(opened < stats.bytes() && stats.rows_filtered() > 0);
            }
        }
    }
    // The test is worth nothing where nothing is left out.
    assert!(
        read > 3_000 && skipped > 2 * read / 3,
        "{read} and {skipped} pages"
    );
    assert!(
        filtered > 30_000 && two_phases > 60,
        "{filtered}, {two_phases}"
    );
}

/// One block of one row group: a page of each column, and its dictionary.
#[test]
fn a_key_costs_a_page_of_each_column() {
    let mut bench = Bench::metrics(WriteMode::Upsert);
    bench.spec.options.row_group_rows = 10_000;
    let batch = metrics(&bench.spec.schema, &grid(10, 1_000));
    let meta = bench.write_one(&batch);
    let access = bench.by_pages();
    let reader = bench
        .open_through(&access, &bench.spec.schema, &meta)
        .unwrap();
    let before = access.stats().bytes();
    let point = |host, time| ReadRequest {
        points: Some([bench.key(host, time)].into()),
        ..ReadRequest::default()
    };
    let read = bench.read(&reader, &point(4, 321)).unwrap();
    assert_eq!(read, batch.slice(4_321, 1));
    let stats = access.stats();
    assert_eq!(
        (stats.row_groups_read(), stats.row_groups_skipped()),
        (1, 0)
    );
    assert_eq!((stats.pages_read(), stats.pages_skipped()), (6, 6 * 99));
    let bytes = stats.bytes() - before;
    assert!(bytes < meta.bytes / 20, "{bytes} of {}", meta.bytes);

    // The filter, which came with the footer, knows that it is not there: nothing is fetched to learn that.
    let absent = (0..100).map(|time| bench.key(20, time));
    let before = stats.bytes();
    let absent = absent.filter(|key| !bench.runtime.block_on(reader.may_contain(key)).unwrap());
    assert!(absent.count() > 90);
    assert!(
        bench
            .runtime
            .block_on(reader.may_contain(&bench.key(4, 321)))
            .unwrap()
    );
    assert_eq!((stats.bytes(), stats.pages_read()), (before, 6));

    // Without points nothing but the blocks at the ends is read in vain.
    let access = bench.by_pages();
    let reader = bench
        .open_through(&access, &bench.spec.schema, &meta)
        .unwrap();
    let request = ReadRequest {
        keys: KeyRange {
            start: Some(bench.key(2, 150)),
            end: Some(bench.key(2, 400)),
        },
        projection: Some(vec!["id".into()]),
        exact: true,
        ..ReadRequest::default()
    };
    let read = bench.read(&reader, &request).unwrap();
    assert_eq!(ids(&read), (2_150..2_400).collect::<Vec<_>>());
    assert_eq!(read.num_columns(), 1);
    // `id`, and the key to cut at row 150.
    let stats = access.stats();
    assert_eq!((stats.pages_read(), stats.rows_filtered()), (9, 0));

    let blocks = reader.blocks();
    assert_eq!(blocks.len(), 100);
    assert_eq!(blocks[43].first_key, bench.key(4, 300));
    assert!(
        blocks
            .iter()
            .all(|block| block.rows == 100 && block.row_group == 0)
    );
}

/// Columns that the filter does not look at are fetched only where rows passed it.
#[test]
fn wide_columns_wait_for_the_filter() {
    let mut bench = Bench::new(schema());
    bench.spec.options.row_group_rows = 100_000;
    bench.spec.options.page_rows = 100;
    let files = (7..).map(|seed| {
        let mut random = SmallRng::seed_from_u64(seed);
        rows(&bench.spec.schema, &mut random, false)
    });
    let blob_bytes = |rows: &RecordBatch| rows.column(5).as_binary::<i32>().value(0).len();
    let mut wide = files.filter(|rows| blob_bytes(rows) == 15_000);
    let rows = wide.next().unwrap();
    let count = rows.num_rows();
    let meta = bench.write_one(&rows);
    let filters = (-50..50).map(|level| {
        let filter = Filter::new(&column("small").eq(level), &bench.spec.schema).unwrap();
        let holds = filter.evaluate(&rows).unwrap();
        (filter, holds)
    });
    let some = filters.filter(|(_, holds)| holds.true_count() > 0);
    let (filter, holds) = some.min_by_key(|(_, holds)| holds.true_count()).unwrap();
    assert!(holds.true_count() < count / 10, "{}", holds.true_count());
    let access = bench.by_pages();
    let reader = bench
        .open_through(&access, &bench.spec.schema, &meta)
        .unwrap();
    let before = access.stats().bytes();
    let request = ReadRequest {
        filter: Some(filter),
        ..ReadRequest::default()
    };
    let read = bench.read(&reader, &request).unwrap();
    assert_eq!(read, filter_record_batch(&rows, &holds).unwrap());
    let stats = access.stats();
    assert!(stats.pages_skipped() > stats.pages_read(), "{stats:?}");
    let bytes = stats.bytes() - before;
    assert!(
        bytes > 15_000 * holds.true_count() as u64,
        "{bytes} of {}",
        meta.bytes
    );
    assert!(bytes < meta.bytes / 3, "{bytes} of {}", meta.bytes);
}

/// A page that is read and is damaged is noticed; one that is not read does no harm.
#[test]
fn damaged_pages_are_named() {
    let mut bench = Bench::metrics(WriteMode::Upsert);
    bench.spec.options.row_group_rows = 10_000;
    let batch = metrics(&bench.spec.schema, &grid(10, 1_000));
    let meta = bench.write_one(&batch);
    let object = bench.object(&meta);
    let request = ReadRequest {
        keys: KeyRange::closed(&bench.key(5, 0), &bench.key(5, 99)),
        ..ReadRequest::default()
    };
    let reader = bench.open(&meta).unwrap();
    let chunks = (0..6).map(|leaf| reader.file.opened.chunk(0, leaf).0);
    let (mut damages, mut harmless) = (0, 0);
    for chunk in chunks {
        for at in chunk.step_by(101) {
            let mut damaged = object.clone();
            damaged[at as usize] ^= 0x10;
            bench.put(&meta, damaged);
            match bench.read(&reader, &request) {
                Ok(read) => {
                    assert_eq!(read, batch.slice(5_000, 100), "byte {at}");
                    harmless += 1;
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Corrupt, "byte {at}: {error}");
                    let message = error.to_string();
                    assert!(message.contains(reader.name()), "{message}");
                    let names_it = ["page 50 of column", "the dictionary of column"];
                    assert!(
                        names_it.iter().any(|name| message.contains(name)),
                        "{message}"
                    );
                    damages += 1;
                }
            }
        }
    }
    assert!(
        damages > 3 && harmless > 10 * damages,
        "{damages}, {harmless}"
    );
}

#[test]
fn rows_taken_from_the_batch_are_those_of_the_file() {
    let bench = Bench::new(schema());
    let mut random = SmallRng::seed_from_u64(3);
    let rows = rows(&bench.spec.schema, &mut random, true);
    let meta = bench.write_one(&rows);
    let keys = keys(&bench.spec.schema, &rows);
    let reader = bench.open(&meta).unwrap();
    let some: BTreeSet<Key> = (0..30)
        .map(|_| keys[random.random_range(0..keys.len())].clone())
        .collect();
    let wanted = (0..keys.len()).filter(|&row| some.contains(&keys[row]));
    let wanted = UInt32Array::from_iter_values(wanted.map(|row| row as u32));
    let request = ReadRequest {
        points: Some(some.iter().cloned().collect()),
        ..ReadRequest::default()
    };
    let read = bench.read(&reader, &request).unwrap();
    assert_eq!(read, take_record_batch(&rows, &wanted).unwrap());
}
