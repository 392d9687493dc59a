//! Reading a log that another process writes, while it grows and what is old is removed.

use super::*;
use crate::clock::ManualClock;

fn log(store: &Store, clock: &Arc<ManualClock>) -> Log {
    Log::new(store.clone(), "catalog", Env::seeded(clock.clone(), 1))
}

async fn append(writer: &mut LogWriter, kind: RecordKind, text: &str) {
    let attempt = u128::from(writer.last()) + 100;
    writer.append(kind, body(text), attempt).await.unwrap();
}

#[tokio::test]
async fn a_follower_asks_for_the_next_record_only() {
    let (store, faults) = Store::open("memory:///").unwrap().with_faults();
    let clock = Arc::<ManualClock>::default();
    let mut follower = LogFollower::new(log(&store, &clock));
    let empty = follower.follow().await.unwrap();
    assert_eq!((empty, follower.last()), (Followed::Anew(Vec::new()), 0));
    let (mut writer, _) = LogWriter::open(log(&store, &clock), || 1).await.unwrap();
    append(&mut writer, RecordKind::Edit, "a").await;
    let Followed::Anew(records) = follower.follow().await.unwrap() else {
        panic!("nothing was known");
    };
    assert_eq!(bodies(&records), ["", "a"]);
    append(&mut writer, RecordKind::Edit, "b").await;
    append(&mut writer, RecordKind::Snapshot, "ab").await;
    let Followed::More(records) = follower.follow().await.unwrap() else {
        panic!("the tail was known");
    };
    assert_eq!(bodies(&records), ["b", "ab"]);
    assert_eq!(follower.last(), 4);
    let counts = || [Operation::List, Operation::Get].map(|operation| faults.count(operation));
    let before = counts();
    let nothing = follower.follow().await.unwrap();
    assert_eq!(nothing, Followed::More(Vec::new()));
    let after = counts();
    assert_eq!((after[0] - before[0], after[1] - before[1]), (0, 1));
}

/// Who has slept cannot tell a record that was removed from one that was not written.
#[tokio::test]
async fn a_follower_that_slept_begins_anew() {
    let store = Store::open("memory:///").unwrap();
    let clock = Arc::<ManualClock>::default();
    let (mut writer, _) = LogWriter::open(log(&store, &clock), || 1).await.unwrap();
    let mut follower = LogFollower::new(log(&store, &clock));
    follower.follow().await.unwrap();
    append(&mut writer, RecordKind::Edit, "a").await;
    append(&mut writer, RecordKind::Snapshot, "a").await;
    clock.advance(GRACE);
    writer.trim().await;
    append(&mut writer, RecordKind::Edit, "b").await;
    assert_eq!(follower.last(), 1);
    let Followed::Anew(records) = follower.follow().await.unwrap() else {
        panic!("record 2 is gone, and looks as if it had not come");
    };
    assert_eq!(bodies(&records), ["a", "b"]);
    assert_eq!(follower.last(), 4);
    follower.reset();
    let again = follower.follow().await.unwrap();
    assert_eq!(again, Followed::Anew(records));
}
