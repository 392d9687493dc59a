//! The local log on a disk that is full or refuses to be written to, and in a directory that is moved.

use super::*;

/// A disk that is full, and one that cannot be written to at all.
fn bad_disks(dir: &Path) -> [(&'static str, File); 2] {
    let full = File::options().write(true).open("/dev/full").unwrap();
    [
        ("No space left", full),
        ("Bad file descriptor", File::open(segment(dir, 1)).unwrap()),
    ]
}

#[tokio::test]
async fn a_disk_that_refuses_a_write_loses_nothing_that_was_confirmed() {
    for bad in 0..2 {
        let dir = tempfile::tempdir().unwrap();
        let (wal, _) = open(dir.path()).await.unwrap();
        wal.append(entry(1, 1)).await.unwrap();
        let [.., (reason, file)] = &mut bad_disks(dir.path())[..=bad] else {
            unreachable!();
        };
        wal.replace_file(file.try_clone().unwrap());
        // The successor cannot be created either, for a while.
        fs::create_dir(segment(dir.path(), 2)).unwrap();
        let error = wal.append(entry(1, 2)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("0001.wal"), "{error}");
        assert!(error.to_string().contains(*reason), "{error}");
        assert_eq!(wal.trouble(), Some(error.to_string()));
        // A crash now loses nothing either.
        assert_eq!(recover(crash_files(dir.path()).path()), [entry(1, 1)]);
        for seq in 3..5 {
            let error = wal.append(entry(1, seq)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            assert!(error.to_string().contains("0002.wal"), "{error}");
        }
        // Then it goes on by itself.
        fs::remove_dir(segment(dir.path(), 2)).unwrap();
        wal.append(entry(1, 5)).await.unwrap();
        assert_eq!(wal.trouble(), None);
        assert_eq!(
            recover(crash(dir.path()).path()),
            [entry(1, 1), entry(1, 5)]
        );
        assert!(wal.close().await.unwrap());
        let (wal, replayed) = open(dir.path()).await.unwrap();
        assert_eq!(replayed, [entry(1, 1), entry(1, 5)]);
        wal.append(entry(1, 6)).await.unwrap();
    }
}

/// As [`crash`], without directories.
fn crash_files(dir: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    for entry in entries.filter(|entry| entry.file_type().unwrap().is_file()) {
        fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    copy
}

#[tokio::test]
async fn a_segment_that_cannot_be_ended_or_followed_is_made_up_for() {
    let dir = tempfile::tempdir().unwrap();
    let (wal, _) = open_with(dir.path(), 100).await.unwrap();
    wal.append(entry(1, 1)).await.unwrap();
    // Its end mark cannot be written.
    wal.replace_file(File::options().write(true).open("/dev/full").unwrap());
    let error = wal.append(entry(1, 2)).await.unwrap_err();
    assert!(error.message().contains("0001.wal"), "{error}");
    wal.append(entry(1, 3)).await.unwrap();
    // Its successor cannot be created.
    fs::create_dir(segment(dir.path(), 3)).unwrap();
    for seq in 4..6 {
        let error = wal.append(entry(1, seq)).await.unwrap_err();
        assert!(error.message().contains("0003.wal"), "{error}");
    }
    fs::remove_dir(segment(dir.path(), 3)).unwrap();
    wal.append(entry(1, 6)).await.unwrap();
    let all = [entry(1, 1), entry(1, 3), entry(1, 6)];
    assert_eq!(recover(crash(dir.path()).path()), all);
    wal.close().await.unwrap();
    assert_eq!(open(dir.path()).await.unwrap().1, all);
}

#[tokio::test]
async fn a_directory_keeps_its_id_wherever_it_is_moved() {
    let dir = tempfile::tempdir().unwrap();
    let first = Wal::lock(&dir.path().join("a"), 1).await.unwrap();
    let id = first.id().to_owned();
    drop(first);
    fs::rename(dir.path().join("a"), dir.path().join("b")).unwrap();
    assert_eq!(Wal::lock(&dir.path().join("b"), 2).await.unwrap().id(), id);
    assert_ne!(Wal::lock(&dir.path().join("a"), 2).await.unwrap().id(), id);
}

#[tokio::test]
async fn what_a_log_held_before_it_became_the_roots_is_void() {
    let dir = tempfile::tempdir().unwrap();
    let (wal, _) = open(dir.path()).await.unwrap();
    wal.append(entry(1, 1)).await.unwrap();
    wal.close().await.unwrap();
    let open_since = async |since| {
        let replayed = Arc::<Mutex<Vec<WalEntry>>>::default();
        let all = replayed.clone();
        let replay = move |entry| {
            all.lock().unwrap().push(entry);
            Ok(())
        };
        let lock = Wal::lock(dir.path(), 7).await?;
        let lock = lock.bind("00ff", Epoch(since), Epoch(since)).await?;
        let wal = Wal::open_local(lock, &WalConfig::default(), replay).await?;
        let replayed = std::mem::take(&mut *replayed.lock().unwrap());
        Ok::<_, Error>((wal, replayed))
    };
    for (since, seqs) in [(1, 1), (5, 0), (5, 1)] {
        let (wal, replayed) = open_since(since).await.unwrap();
        assert_eq!(replayed.len(), seqs);
        if since == 5 && seqs == 0 {
            wal.append(entry(1, 2)).await.unwrap();
        }
        wal.close().await.unwrap();
    }
    fs::remove_file(dir.path().join("ROOT")).unwrap();
    let error = open_since(5).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}
