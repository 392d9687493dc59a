//! The log as a whole. A crash is a copy of the directory, taken while the log is open.

use std::{
    fs::{self, File},
    path::Path,
    sync::{Arc, Mutex},
};

use arrow::array::{ArrayRef, Int64Array, StringArray};

mod disk;
mod object;

use super::{
    record::{RECORD_HEADER_BYTES, SEGMENT_HEADER_BYTES},
    *,
};
use crate::{
    config::{Bytes, WalConfig},
    error::{Error, ErrorKind, Result},
    types::Epoch,
};

const SEGMENT_BYTES: u64 = 64 << 10;

fn table(number: u128) -> TableId {
    TableId::from_parts(1, number)
}

pub(super) fn entry(table_number: u128, seq: u64) -> WalEntry {
    entry_of(table_number, seq, 3)
}

fn entry_of(table_number: u128, seq: u64, rows: i64) -> WalEntry {
    let ints: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
    let texts = (0..rows).map(|row| format!("{seq}/{row}"));
    let texts: ArrayRef = Arc::new(StringArray::from_iter_values(texts));
    WalEntry {
        table: table(table_number),
        seq: Seq(seq),
        kind: if seq.is_multiple_of(3) {
            EntryKind::Delete
        } else {
            EntryKind::Put
        },
        batch: RecordBatch::try_from_iter([("ints", ints), ("texts", texts)]).unwrap(),
    }
}

async fn open_with(dir: &Path, segment_bytes: u64) -> Result<(Wal, Vec<WalEntry>)> {
    let replayed = Arc::<Mutex<Vec<WalEntry>>>::default();
    let replay = {
        let replayed = replayed.clone();
        move |entry| {
            replayed.lock().unwrap().push(entry);
            Ok(())
        }
    };
    let config = WalConfig {
        segment_bytes: Bytes(segment_bytes),
        ..WalConfig::default()
    };
    // Some tests make a directory of segments alone.
    fs::create_dir_all(dir).unwrap();
    if !dir.join("ROOT").exists() {
        fs::write(dir.join("ROOT"), "00ff 1").unwrap();
    }
    let lock = Wal::lock(dir, 7).await?;
    let lock = lock.bind("00ff", Epoch(1), Epoch(1)).await?;
    let wal = Wal::open_local(lock, &config, replay).await?;
    let replayed = std::mem::take(&mut *replayed.lock().unwrap());
    Ok((wal, replayed))
}

async fn open(dir: &Path) -> Result<(Wal, Vec<WalEntry>)> {
    open_with(dir, SEGMENT_BYTES).await
}

/// Replays `dir` without opening it.
fn recover(dir: &Path) -> Vec<WalEntry> {
    let mut replayed = Vec::new();
    let recovered = replay::recover(dir, &mut |entry| {
        replayed.push(entry);
        Ok(())
    });
    recovered.unwrap();
    replayed
}

/// Names of the files in `dir` but the lock, sorted and without leading zeros.
fn files(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !["LOCK", "ID", "ROOT"].contains(&name.as_str()))
        .map(|name| name.trim_start_matches('0').to_owned())
        .collect();
    names.sort();
    names
}

fn segment(dir: &Path, number: u64) -> std::path::PathBuf {
    dir.join(format!("{number:020}.wal"))
}

/// A copy of `dir` as a crash would leave it.
fn crash(dir: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    copy
}

/// Waits until the thread has done what was queued before, and something was queued after.
async fn settle(wal: &Wal, seq: u64) {
    wal.append(entry(99, seq)).await.unwrap();
    wal.append(entry(99, seq + 1)).await.unwrap();
}

#[tokio::test]
async fn entries_come_back_in_order_after_close_and_after_a_crash() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("deep/wal");
    let mut all = Vec::new();
    for round in 0..3 {
        let (wal, replayed) = open(&dir).await.unwrap();
        assert_eq!(replayed, all);
        for seq in 1..=4 {
            let entry = entry(round, seq);
            wal.append(entry.clone()).await.unwrap();
            all.push(entry);
        }
        let crashed = crash(&dir);
        let (recovered, replayed) = open(crashed.path()).await.unwrap();
        assert_eq!(replayed, all);
        recovered.append(entry(9, 1)).await.unwrap();
        recovered.close().await.unwrap();
        let (_, replayed) = open(crashed.path()).await.unwrap();
        assert_eq!(replayed.len(), all.len() + 1);

        wal.close().await.unwrap();
        wal.close().await.unwrap();
        let error = wal.append(entry(1, 9)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    }
    assert_eq!(files(&dir), ["1.wal", "2.wal", "3.wal"]);
}

#[tokio::test]
async fn a_second_engine_is_kept_out() {
    let dir = tempfile::tempdir().unwrap();
    let (wal, _) = open(dir.path()).await.unwrap();
    let error = open(dir.path()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(
        error.message().contains(dir.path().to_str().unwrap()),
        "{error}"
    );
    wal.close().await.unwrap();
    open(dir.path()).await.unwrap();
}

#[tokio::test]
async fn an_error_of_the_replay_ends_the_open() {
    let dir = tempfile::tempdir().unwrap();
    let (wal, _) = open(dir.path()).await.unwrap();
    wal.append(entry(1, 1)).await.unwrap();
    wal.close().await.unwrap();
    let replay = |_| Err(Error::not_found("no such table"));
    let lock = Wal::lock(dir.path(), 7).await.unwrap();
    let error = Wal::open_local(lock, &WalConfig::default(), replay).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(open(dir.path()).await.unwrap().1.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_appends_share_fsyncs() {
    let dir = tempfile::tempdir().unwrap();
    let (wal, _) = open(dir.path()).await.unwrap();
    let appends: Vec<_> = (1..=400)
        .map(|seq| {
            let wal = wal.clone();
            tokio::spawn(async move { wal.append(entry(1, seq)).await })
        })
        .collect();
    for append in appends {
        append.await.unwrap().unwrap();
    }
    let stats = wal.stats();
    assert_eq!(stats.appends, 400);
    assert!(stats.syncs < 200, "{stats:?}");
    assert!(stats.segments > 1, "{stats:?}");
    wal.close().await.unwrap();
    let (wal, replayed) = open(dir.path()).await.unwrap();
    let mut seqs: Vec<u64> = replayed.iter().map(|entry| entry.seq.0).collect();
    seqs.sort();
    assert_eq!(seqs, (1..=400).collect::<Vec<_>>());
    let on_disk = fs::read_dir(dir.path()).unwrap();
    let on_disk: u64 = on_disk.map(|e| e.unwrap().metadata().unwrap().len()).sum();
    let others = ["ID", "ROOT"].map(|name| fs::metadata(dir.path().join(name)).unwrap().len());
    let on_disk = on_disk - others.iter().sum::<u64>();
    assert_eq!(wal.stats().bytes, on_disk);
}

#[tokio::test]
async fn an_append_whose_caller_gave_up_takes_effect() {
    let dir = tempfile::tempdir().unwrap();
    let (wal, _) = open(dir.path()).await.unwrap();
    {
        let append = wal.append(entry(1, 1));
        tokio::pin!(append);
        // Queued; on a fast disk it may even be done.
        let _ = futures::poll!(append.as_mut());
    }
    wal.close().await.unwrap();
    assert_eq!(open(dir.path()).await.unwrap().1, [entry(1, 1)]);
}

#[tokio::test]
async fn a_tail_torn_at_any_byte_is_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let (wal, _) = open(dir.path()).await.unwrap();
    let mut ends = vec![SEGMENT_HEADER_BYTES];
    for seq in 1..=3 {
        wal.append(entry(1, seq)).await.unwrap();
        ends.push(fs::metadata(segment(dir.path(), 1)).unwrap().len() as usize);
    }
    let whole = fs::read(segment(dir.path(), 1)).unwrap();
    let crashed = tempfile::tempdir().unwrap();
    fs::write(crashed.path().join("ROOT"), "00ff 1\n").unwrap();
    let mut tails: Vec<Vec<u8>> = (ends[2]..ends[3]).map(|at| whole[..at].to_vec()).collect();
    // Pages that were never written read as zeros; a page may also be old.
    tails.extend([1, 30, 200].map(|at| {
        let mut bytes = whole.clone();
        bytes[ends[2] + at..].fill(0);
        bytes
    }));
    tails.push([&whole[..ends[2]], &[0; 100]].concat());
    tails.push([&whole[..ends[2]], &whole[..60]].concat());
    for tail in tails {
        fs::write(segment(crashed.path(), 1), &tail).unwrap();
        // The second time the tail has gone for good.
        for _ in 0..2 {
            assert_eq!(recover(crashed.path()), [entry(1, 1), entry(1, 2)]);
        }
    }
    let (wal, replayed) = open(crashed.path()).await.unwrap();
    assert_eq!(replayed.len(), 2);
    wal.close().await.unwrap();
    // The segment was only being created.
    for length in 0..=SEGMENT_HEADER_BYTES {
        fs::write(segment(crashed.path(), 3), segment_header_cut(length)).unwrap();
        let (wal, replayed) = open(crashed.path()).await.unwrap();
        assert_eq!(replayed.len(), 2);
        wal.close().await.unwrap();
        for number in 3..5 {
            drop(fs::remove_file(segment(crashed.path(), number)));
        }
    }
}

fn segment_header_cut(length: usize) -> Vec<u8> {
    record::segment_header(3)[..length].to_vec()
}

#[tokio::test]
async fn records_of_the_last_group_may_be_lost_in_any_order() {
    let dir = tempfile::tempdir().unwrap();
    let (wal, _) = open(dir.path()).await.unwrap();
    wal.append(entry(1, 1)).await.unwrap();
    let synced = fs::metadata(segment(dir.path(), 1)).unwrap().len();
    // One group: the entries are queued before the thread can have written the first.
    let entries = [2, 3, 4].map(|seq| record::Payload::encode(&entry(1, seq)).unwrap());
    let mut group = Vec::new();
    for payload in &entries {
        payload.append_to(&mut group, 1, synced);
    }
    let crashed = crash(dir.path());
    let path = segment(crashed.path(), 1);
    let mut bytes = fs::read(&path).unwrap();
    bytes.extend_from_slice(&group);
    bytes[synced as usize + 40] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let (_, replayed) = open(crashed.path()).await.unwrap();
    assert_eq!(replayed, [entry(1, 1)]);
}

#[tokio::test]
async fn damage_before_the_tail_is_corrupt_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let (wal, _) = open(dir.path()).await.unwrap();
    let mut starts = Vec::new();
    for seq in 1..=3 {
        starts.push(fs::metadata(segment(dir.path(), 1)).unwrap().len() as usize);
        wal.append(entry(1, seq)).await.unwrap();
    }
    let open_damaged = async |files: &Path, number: u64, damage: &dyn Fn(&mut Vec<u8>)| {
        let crashed = crash(files);
        let path = segment(crashed.path(), number);
        let mut bytes = fs::read(&path).unwrap();
        damage(&mut bytes);
        fs::write(&path, &bytes).unwrap();
        let error = open(crashed.path()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.message().contains(path.to_str().unwrap()), "{error}");
        error.message().to_owned()
    };
    for at in [
        0,
        5,
        9,
        17,
        22,
        RECORD_HEADER_BYTES + 3,
        RECORD_HEADER_BYTES + 300,
    ] {
        let at = starts[1] + at;
        let message = open_damaged(dir.path(), 1, &|bytes| bytes[at] ^= 4).await;
        let wanted = format!("offset {}", starts[1]);
        assert!(message.contains(&wanted), "{message}");
    }
    open_damaged(dir.path(), 1, &|bytes| bytes[3] ^= 4).await;
    let message = open_damaged(dir.path(), 1, &|bytes| bytes[8] = 2).await;
    assert!(message.contains("format version 2"), "{message}");

    // Closed: now the last record, too, is known to have been synced.
    wal.close().await.unwrap();
    let last = starts[2];
    open_damaged(dir.path(), 1, &|bytes| bytes[last + 50] ^= 4).await;
    open_damaged(dir.path(), 1, &|bytes| bytes.push(0)).await;

    // Not the last segment: its tail cannot be torn, wherever it is cut off.
    let (wal, _) = open(dir.path()).await.unwrap();
    for cut in [1, RECORD_HEADER_BYTES, RECORD_HEADER_BYTES + 7] {
        open_damaged(dir.path(), 1, &|bytes| bytes.truncate(bytes.len() - cut)).await;
    }
    open_damaged(dir.path(), 1, &Vec::clear).await;
    open_damaged(dir.path(), 1, &|bytes| bytes[last + 50] ^= 4).await;
    wal.close().await.unwrap();
}

#[tokio::test]
async fn release_deletes_exactly_what_nobody_needs() {
    let dir = tempfile::tempdir().unwrap();
    // Segments so small that each holds one entry.
    let (wal, _) = open_with(dir.path(), 100).await.unwrap();
    for (table, seq) in [(1, 1), (2, 1), (1, 2), (2, 2), (3, 1)] {
        wal.append(entry(table, seq)).await.unwrap();
    }
    let all = ["1.wal", "2.wal", "3.wal", "4.wal", "5.wal"];
    assert_eq!(files(dir.path()), all);
    assert_eq!(wal.stats().segments, 5);

    wal.release(table(2), Seq(1));
    settle(&wal, 1).await;
    let left = [
        "1.wal",
        "2.released",
        "3.wal",
        "4.wal",
        "5.wal",
        "6.wal",
        "7.wal",
    ];
    assert_eq!(files(dir.path()), left);

    // What a crash during the deletion can leave.
    let crashed = crash(dir.path());
    fs::write(segment(crashed.path(), 2), "half deleted").unwrap();
    let (_, replayed) = open(crashed.path()).await.unwrap();
    assert_eq!(replayed.len(), 6);
    assert_eq!(files(crashed.path()).last().unwrap(), "8.wal");
    assert!(!segment(crashed.path(), 2).exists());

    // A gap that no marker explains.
    let crashed = crash(dir.path());
    fs::remove_file(segment(crashed.path(), 4)).unwrap();
    let error = open(crashed.path()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.message().contains("0004.wal is missing"), "{error}");

    // Older seqs release nothing more; a dropped table needs nothing.
    wal.release(table(1), Seq(1));
    wal.release(table(2), Seq(0));
    wal.release(table(3), Seq(u64::MAX));
    settle(&wal, 3).await;
    let left = [
        "3.wal",
        "4.wal",
        "5.released",
        "6.wal",
        "7.wal",
        "8.wal",
        "9.wal",
    ];
    assert_eq!(files(dir.path()), left);
    wal.close().await.unwrap();

    // Recovered segments are released alike; the numbers go on.
    let (wal, replayed) = open_with(dir.path(), 100).await.unwrap();
    let tables: Vec<_> = replayed.iter().map(|entry| entry.table).collect();
    assert_eq!(tables[..2], [table(1), table(2)]);
    assert_eq!(replayed.len(), 6);
    for number in [1, 2, 99] {
        wal.release(table(number), Seq(1000));
    }
    wal.append(entry(4, 1)).await.unwrap();
    wal.append(entry(4, 2)).await.unwrap();
    assert_eq!(files(dir.path()), ["10.wal", "11.wal"]);
    assert_eq!(wal.stats().segments, 2);
}

#[tokio::test]
async fn a_segment_shared_by_tables_waits_for_all_of_them() {
    let dir = tempfile::tempdir().unwrap();
    let (wal, _) = open(dir.path()).await.unwrap();
    for (table, seq) in [(1, 1), (2, 1), (1, 2)] {
        wal.append(entry(table, seq)).await.unwrap();
    }
    wal.close().await.unwrap();
    let (wal, _) = open(dir.path()).await.unwrap();
    for (number, seq, left) in [(1, 1, 2), (2, 9, 2), (1, 2, 1)] {
        wal.release(table(number), Seq(seq));
        settle(&wal, seq).await;
        assert_eq!(files(dir.path()).len(), left, "{number} {seq}");
    }
}

#[tokio::test]
async fn entries_larger_than_a_segment_fit() {
    let dir = tempfile::tempdir().unwrap();
    let (wal, _) = open(dir.path()).await.unwrap();
    let large = entry_of(1, 1, 200_000);
    let small = entry(1, 2);
    wal.append(large.clone()).await.unwrap();
    wal.append(small.clone()).await.unwrap();
    assert_eq!(files(dir.path()), ["1.wal", "2.wal"]);
    wal.close().await.unwrap();
    assert_eq!(open(dir.path()).await.unwrap().1, [large, small]);
}
