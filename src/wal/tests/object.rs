//! The log on an object store. A crash is a log that is not closed, and another opened beside it.

use std::time::Duration;

use crate::{
    clock::{Env, ManualClock},
    config::{Millis, WalConfig},
    error::{ErrorKind, Result},
    store::{
        Store,
        faulty::{Effect, Fault, Faults, Operation},
        layout,
        log::{GRACE, Log},
    },
    types::Epoch,
};

use super::*;

struct Place {
    store: Store,
    faults: Arc<Faults>,
    clock: Arc<ManualClock>,
    epoch: u64,
}

impl Place {
    fn new() -> Self {
        let (store, faults) = Store::open("memory:///").unwrap().with_faults();
        Self {
            store,
            faults,
            clock: Arc::default(),
            epoch: 0,
        }
    }

    async fn open(&mut self) -> Result<(Wal, Vec<WalEntry>)> {
        self.epoch += 1;
        let env = Env::seeded(self.clock.clone(), self.epoch);
        let options = ObjectWalOptions {
            since: Epoch(0),
            log: Log::new(self.store.clone(), layout::wal("here"), env.clone()),
            epoch: Epoch(self.epoch),
            env,
        };
        let config = WalConfig {
            linger: Millis(0),
            ..WalConfig::default()
        };
        let replayed = Arc::<Mutex<Vec<WalEntry>>>::default();
        let replay = {
            let replayed = replayed.clone();
            move |entry| {
                replayed.lock().unwrap().push(entry);
                Ok(())
            }
        };
        let wal = Wal::open_object(options, &config, replay).await?;
        let replayed = std::mem::take(&mut *replayed.lock().unwrap());
        Ok((wal, replayed))
    }

    /// Numbers of the objects.
    async fn numbers(&self) -> Vec<u64> {
        let folder = layout::wal("here");
        let objects = self.store.list(&folder).await.unwrap();
        let numbers = objects.iter().map(|object| &object.name);
        let mut numbers: Vec<u64> = numbers
            .map(|name| layout::parse_log_record(&folder, name).unwrap())
            .collect();
        numbers.sort();
        numbers
    }

    fn name(&self, number: u64) -> String {
        layout::log_record(&layout::wal("here"), number)
    }

    fn add(&self, operation: Operation, effect: Effect, times: u32) {
        self.faults
            .add(Fault::new(operation, "wal/", effect).times(times));
    }
}

fn spawn_append(wal: &Wal, entry: WalEntry) -> tokio::task::JoinHandle<Result<()>> {
    let wal = wal.clone();
    tokio::spawn(async move { wal.append(entry).await })
}

async fn until(mut holds: impl FnMut() -> bool) {
    while !holds() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Waits until the task has done what was queued before.
async fn settled(wal: &Wal, seq: u64) {
    wal.append(entry(99, seq)).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn entries_come_back_and_the_engine_before_is_fenced() {
    let mut place = Place::new();
    let (old, replayed) = place.open().await.unwrap();
    assert_eq!(replayed, []);
    let all = [entry(1, 1), entry(2, 1), entry(1, 2)];
    for entry in &all {
        old.append(entry.clone()).await.unwrap();
    }
    // One is on its way, others wait behind it.
    place.add(Operation::Create, Effect::Block, 1);
    let waiting: Vec<_> = (3..6)
        .map(|seq| spawn_append(&old, entry(1, seq)))
        .collect();
    until(|| place.faults.blocked() == 1).await;
    let (new, replayed) = place.open().await.unwrap();
    assert_eq!(replayed, all);
    place.faults.release();
    for append in waiting {
        let error = append.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
        assert!(error.message().contains("epoch 2; ours is 1"), "{error}");
    }
    let error = old.append(entry(1, 9)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    assert_eq!(old.close().await.unwrap_err().kind(), ErrorKind::Fenced);

    new.append(entry(1, 3)).await.unwrap();
    assert!(new.close().await.unwrap());
    let error = new.append(entry(1, 4)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    let (_, replayed) = place.open().await.unwrap();
    assert_eq!(replayed, [&all[..], &[entry(1, 3)]].concat());
}

#[tokio::test(start_paused = true)]
async fn what_is_queued_during_an_append_is_the_next_object() {
    let mut place = Place::new();
    let (wal, _) = place.open().await.unwrap();
    place.add(Operation::Create, Effect::Block, 1);
    let first = spawn_append(&wal, entry(1, 1));
    until(|| place.faults.blocked() == 1).await;
    let others: Vec<_> = (2..12)
        .map(|seq| spawn_append(&wal, entry(1, seq)))
        .collect();
    tokio::time::sleep(Duration::from_millis(1)).await;
    place.faults.release();
    first.await.unwrap().unwrap();
    for append in others {
        append.await.unwrap().unwrap();
    }
    assert_eq!((wal.stats().appends, wal.stats().syncs), (11, 2));
    assert_eq!(place.numbers().await, [1, 2, 3]);

    // But an object has a size.
    let rows = 400_000;
    let large: Vec<_> = (12..15)
        .map(|seq| spawn_append(&wal, entry_of(1, seq, rows)))
        .collect();
    for append in large {
        append.await.unwrap().unwrap();
    }
    assert!(place.numbers().await.len() > 4);
    let (_, replayed) = place.open().await.unwrap();
    assert_eq!(replayed.len(), 14);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_delays_appends_and_poisons_nothing() {
    for effect in [Effect::Fail, Effect::LoseAnswer] {
        let mut place = Place::new();
        let (wal, _) = place.open().await.unwrap();
        for operation in [Operation::Create, Operation::Get] {
            place.add(operation, effect, u32::MAX);
        }
        let appends: Vec<_> = (1..4)
            .map(|seq| spawn_append(&wal, entry(1, seq)))
            .collect();
        until(|| wal.trouble().is_some()).await;
        tokio::time::sleep(Duration::from_secs(3_600)).await;
        assert!(appends.iter().all(|append| !append.is_finished()));
        assert!(wal.trouble().unwrap().contains("00000000000000000002.wal"));
        // No more than so much waits.
        let large = entry_of(1, 4, 2_200_000);
        let (fits, waits) = (wal.queue(large.clone()).await.unwrap(), wal.queue(large));
        tokio::pin!(waits);
        assert!(futures::poll!(waits.as_mut()).is_pending());
        place.faults.clear();
        for append in appends {
            append.await.unwrap().unwrap();
        }
        fits.durable().await.unwrap();
        waits.await.unwrap().durable().await.unwrap();
        assert_eq!(wal.trouble(), None);
        let (_, replayed) = place.open().await.unwrap();
        let seqs: Vec<_> = replayed.iter().map(|entry| entry.seq.0).collect();
        assert_eq!(seqs, [1, 2, 3, 4, 4], "each once, whatever was answered");
    }
}

#[tokio::test(start_paused = true)]
async fn segments_are_deleted_once_a_reader_does_not_begin_at_them() {
    let mut place = Place::new();
    let (wal, _) = place.open().await.unwrap();
    for (table, seq) in [(1, 1), (2, 1), (1, 2)] {
        wal.append(entry(table, seq)).await.unwrap();
    }
    // The oldest is needed.
    wal.release(table(2), Seq(1));
    settled(&wal, 1).await;
    assert_eq!(place.numbers().await, [1, 2, 3, 4, 5]);
    // Now none of the first two is: one record says so, then they go. The claim stays.
    wal.release(table(1), Seq(1));
    wal.release(table(99), Seq(1));
    settled(&wal, 2).await;
    assert_eq!(place.numbers().await, [1, 4, 5, 6, 7]);
    assert_eq!(wal.stats().segments, 3);
    let (wal, replayed) = place.open().await.unwrap();
    let seqs: Vec<_> = replayed.iter().map(|entry| entry.seq.0).collect();
    assert_eq!(seqs, [2, 1, 2]);

    // Everything released: a clean end, although nothing else is ever written.
    wal.release(table(1), Seq(2));
    wal.release(table(99), Seq(2));
    assert!(!wal.close().await.unwrap());
    let (wal, replayed) = place.open().await.unwrap();
    assert_eq!(replayed, []);
    // A dropped table's late entry does not count.
    wal.release(table(7), Seq(u64::MAX));
    wal.append(entry(7, 3)).await.unwrap();
    // After the grace the claims and markers go, too.
    place.clock.advance(GRACE);
    settled(&wal, 3).await;
    wal.release(table(99), Seq(3));
    settled(&wal, 4).await;
    place.clock.advance(GRACE);
    settled(&wal, 5).await;
    let numbers = place.numbers().await;
    assert!(numbers.len() < 4, "{numbers:?}");
    assert!(wal.close().await.unwrap());
    assert_eq!(place.open().await.unwrap().1.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_crash_before_the_deletion_changes_nothing() {
    let mut place = Place::new();
    let (wal, _) = place.open().await.unwrap();
    for seq in 1..4 {
        wal.append(entry(1, seq)).await.unwrap();
    }
    place.add(Operation::Delete, Effect::Fail, u32::MAX);
    wal.release(table(1), Seq(2));
    settled(&wal, 1).await;
    let numbers = place.numbers().await;
    assert_eq!(numbers[..3], [1, 2, 3]);
    place.faults.clear();
    let (wal, replayed) = place.open().await.unwrap();
    assert_eq!(replayed, [entry(1, 3), entry(99, 1)]);
    place.clock.advance(GRACE);
    settled(&wal, 2).await;
    assert_eq!(place.numbers().await[0], 4);
}

#[tokio::test(start_paused = true)]
async fn a_damaged_or_missing_segment_is_corrupt_and_named() {
    let mut place = Place::new();
    let (wal, _) = place.open().await.unwrap();
    for seq in 1..4 {
        wal.append(entry(1, seq)).await.unwrap();
    }
    for number in [2, 3, 4] {
        let name = place.name(number);
        let whole = place.store.get(&name).await.unwrap();
        let mut bad = vec![None, Some(whole.slice(..whole.len() - 1))];
        for at in [0, 9, 20, 50, whole.len() - 1] {
            let mut bytes = whole.to_vec();
            bytes[at] ^= 1;
            bad.push(Some(bytes.into()));
        }
        for bytes in bad {
            match bytes {
                None => place.store.delete(&name).await.unwrap(),
                Some(bytes) => place.store.put(&name, bytes).await.unwrap(),
            }
            // The newest segment that is missing was never written, as far as anybody can tell.
            if number == 4 && place.store.size(&name).await.unwrap().is_none() {
                continue;
            }
            let error = place.open().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            assert!(error.to_string().contains(&name), "{error}");
        }
        place.store.put(&name, whole).await.unwrap();
    }
    assert_eq!(place.open().await.unwrap().1.len(), 3);
}
