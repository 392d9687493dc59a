//! Real data there and back, with compaction in this process.

use arrow::compute::concat_batches;
use siltstone::{
    engine::{Engine, ScanRequest},
    types::TableOptions,
};
use tempfile::tempdir;

use crate::support::{
    WEATHER_KEY, assert_same, flights,
    flights::{Answers, sorted_by},
    last_of_each_key, newest_wins, quiet_config, reading_keys, readings, readings_schema, scan,
    small_config, sst_files, url_of, weather, weather_schema,
};

#[test]
fn the_replay_ends_in_the_source() {
    let flights = flights(usize::MAX);
    let batches: Vec<_> = flights.replay(5_000).unwrap().map(Result::unwrap).collect();
    assert_eq!(
        batches.iter().map(|batch| batch.num_rows()).sum::<usize>(),
        1_010_328
    );
    let landed = flights.landed().unwrap();
    let schema = flights.table_schema().unwrap();
    assert_same(&landed, &last_of_each_key(&schema, &batches));
    let mut answers = Answers::of(&landed).unwrap();
    let published = Answers::published();
    answers
        .carriers
        .retain(|name, _| published.carriers.contains_key(name));
    assert_eq!(answers, published);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_year_of_flights_comes_back_row_by_row() {
    let dir = tempdir().unwrap();
    let mut config = small_config(&url_of(dir.path()));
    config.memory.memtable_bytes = siltstone::config::Bytes::mib(8);
    let engine = Engine::open(config.clone()).await.unwrap();
    let flights = flights(usize::MAX);
    let schema = flights.table_schema().unwrap();
    let table = engine.create_table("flights", schema).await.unwrap();
    let mut written = 0;
    for batch in flights.replay(10_000).unwrap() {
        let batch = batch.unwrap();
        written += batch.num_rows();
        table.write(batch).await.unwrap();
    }
    assert_eq!(written, 1_010_328);
    table.compact().await.unwrap();

    let all = scan(&table, ScanRequest::all()).await;
    assert_same(&flights.landed().unwrap(), &all);
    let mut answers = Answers::of(&all).unwrap();
    let published = Answers::published();
    answers
        .carriers
        .retain(|name, _| published.carriers.contains_key(name));
    assert_eq!(answers, published);

    let stats = table.stats();
    assert_eq!(
        stats.sst_rows, 336_776,
        "shadowed versions are gone: {stats:?}"
    );
    assert_eq!(
        stats.ssts_by_level.get(&0).copied().unwrap_or(0),
        0,
        "{stats:?}"
    );
    engine.close().await.unwrap();

    let engine = Engine::open(config).await.unwrap();
    let again = scan(&engine.table("flights").unwrap(), ScanRequest::all()).await;
    assert_same(&all, &again);
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_weather_comes_back_row_by_row() {
    let dir = tempdir().unwrap();
    let engine = Engine::open(small_config(&url_of(dir.path())))
        .await
        .unwrap();
    let weather = weather();
    let table = engine
        .create_table("weather", weather_schema())
        .await
        .unwrap();
    // Twice, in opposite orders: every row is replaced by itself.
    let starts: Vec<usize> = (0..weather.num_rows()).step_by(700).collect();
    for &start in starts.iter().chain(starts.iter().rev()) {
        let rows = (weather.num_rows() - start).min(700);
        table.write(weather.slice(start, rows)).await.unwrap();
    }
    let wanted = sorted_by(&weather, &WEATHER_KEY).unwrap();
    assert_same(&wanted, &scan(&table, ScanRequest::all()).await);
    table.compact().await.unwrap();
    assert_same(&wanted, &scan(&table, ScanRequest::all()).await);
    assert_eq!(table.stats().sst_rows, 26_115);
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn flushed_and_compacted_ssts_are_plain_parquet() {
    let dir = tempdir().unwrap();
    let mut config = quiet_config(&url_of(dir.path()));
    config.memory.memtable_bytes = siltstone::config::Bytes(1 << 20);
    let engine = Engine::open(config).await.unwrap();
    let flights = flights(20_000);
    let table = engine
        .create_table("flights", flights.table_schema().unwrap())
        .await
        .unwrap();
    for batch in flights.replay(500).unwrap() {
        table.write(batch.unwrap()).await.unwrap();
    }
    table.flush().await.unwrap();
    let files = sst_files(dir.path(), &table);
    assert!(files.len() >= 4, "flushed {} SSTs only", files.len());
    let landed = flights.landed().unwrap();
    assert_same(&landed, &newest_wins(&files, &table.schema()));

    table.compact().await.unwrap();
    let mut compacted = sst_files(dir.path(), &table);
    compacted.retain(|file| !files.contains(file));
    assert_same(&landed, &newest_wins(&compacted, &table.schema()));
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn ssts_with_deletes_merge_as_the_scan_does() {
    let dir = tempdir().unwrap();
    let engine = Engine::open(quiet_config(&url_of(dir.path())))
        .await
        .unwrap();
    let schema = readings_schema(TableOptions::default());
    let table = engine.create_table("readings", schema).await.unwrap();
    for round in 0..6_i64 {
        let rows: Vec<_> = (0..200)
            .map(|at| (at * 7 % 90, Some((at % 5) as i32), Some(round)))
            .collect();
        table.write(readings(&rows)).await.unwrap();
        let gone: Vec<_> = (0..20)
            .map(|at| (at * (round + 1) % 90, Some((at % 5) as i32)))
            .collect();
        table.delete(reading_keys(&gone)).await.unwrap();
        table.flush().await.unwrap();
    }
    let scanned = scan(&table, ScanRequest::all()).await;
    assert!(scanned.num_rows() > 50, "{} rows only", scanned.num_rows());
    assert_same(
        &newest_wins(&sst_files(dir.path(), &table), &table.schema()),
        &scanned,
    );
    table.compact().await.unwrap();
    assert_same(&scanned, &scan(&table, ScanRequest::all()).await);
    assert_eq!(
        table.stats().sst_rows,
        scanned.num_rows() as u64,
        "tombstones are gone"
    );
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn scans_prune_but_never_lie() {
    let dir = tempdir().unwrap();
    let engine = Engine::open(small_config(&url_of(dir.path())))
        .await
        .unwrap();
    let flights = flights(30_000);
    let table = engine
        .create_table("flights", flights.table_schema().unwrap())
        .await
        .unwrap();
    for batch in flights.replay(2_000).unwrap() {
        table.write(batch.unwrap()).await.unwrap();
    }
    let landed = flights.landed().unwrap();
    let rows = landed.num_rows();
    let key_at = |row: usize| {
        let schema = table.schema();
        let key = landed.project(schema.key()).unwrap().slice(row, 1);
        schema.key_of(&key).unwrap()
    };
    for (from, to) in [
        (0, rows - 1),
        (rows / 3, rows / 2),
        (77, 77),
        (rows - 1, rows - 1),
    ] {
        let keys = siltstone::types::KeyRange::closed(&key_at(from), &key_at(to));
        let request = ScanRequest::all().keys(keys);
        assert_same(
            &landed.slice(from, to - from + 1),
            &scan(&table, request.clone()).await,
        );
        let limit = (to - from + 1).min(10);
        assert_same(
            &landed.slice(from, limit),
            &scan(&table, request.limit(10)).await,
        );
    }
    let columns = ["dest", "distance", "carrier"];
    let projected = scan(&table, ScanRequest::all().columns(columns)).await;
    let wanted: Vec<usize> = columns
        .iter()
        .map(|name| landed.schema().index_of(name).unwrap())
        .collect();
    assert_same(&landed.project(&wanted).unwrap(), &projected);
    let keys = landed.project(table.schema().key()).unwrap();
    let (some, more) = (keys.slice(100, 50), keys.slice(20_000, 50));
    let asked = concat_batches(&table.schema().key_schema(), [&more, &some]).unwrap();
    let got = table.get(asked).await.unwrap();
    let wanted = [landed.slice(100, 50), landed.slice(20_000, 50)];
    assert_same(&concat_batches(&landed.schema(), &wanted).unwrap(), &got);
    engine.close().await.unwrap();
}
