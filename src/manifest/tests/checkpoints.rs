//! Checkpoints: their format, when they are over, and what a listing holds while they come and go.

use super::*;
use crate::{
    manifest::{
        Checkpoint, Purpose,
        checkpoints::{self, Held, Listed},
    },
    store::{
        faulty::{Effect, Fault, Operation},
        layout,
    },
    types::CheckpointId,
};

fn table() -> TableId {
    TableId::from_parts(1, 2)
}

fn checkpoint(number: u64, purpose: Purpose, expires_ms: Option<u64>) -> Checkpoint {
    let ssts = [sst(number, 0, "a-c"), sst(number + 1, 1, "b-d")];
    let mut edit = added(&ssts.each_ref());
    edit.range_deletes = vec![range_delete(9)];
    let version = Version::new(schema()).apply(&edit).unwrap();
    Checkpoint {
        id: CheckpointId::from_parts(number, 0),
        purpose,
        created_ms: 11,
        expires_ms,
        seq: version.flushed_seq,
        version: Arc::new(version),
        expiry: Some(-3),
    }
}

fn named(number: u64, name: &str, expires_ms: Option<u64>) -> Checkpoint {
    checkpoint(number, Purpose::Named(name.into()), expires_ms)
}

fn listed(checkpoint: Checkpoint) -> Listed {
    Listed {
        object: layout::checkpoint(table(), checkpoint.id, checkpoint.expires_ms),
        checkpoint: Ok(Arc::new(checkpoint)),
    }
}

#[test]
fn version_1_of_a_checkpoint_stays_readable() {
    let purposes = [
        ("named", Purpose::Named("monday".into())),
        ("reader", Purpose::Reader("host-7".into())),
        ("clone", Purpose::Clone(TableId::from_parts(3, 4))),
    ];
    for (kind, purpose) in purposes {
        let want = checkpoint(5, purpose, Some(99));
        let object = codec::encode_checkpoint(&want);
        let golden = crate::golden::check(&format!("checkpoint-{kind}-v1.bin"), &object);
        let found = codec::decode_checkpoint("golden", (want.id, Some(99)), &golden);
        assert_eq!(found.unwrap(), want);
    }
}

#[test]
fn a_damaged_checkpoint_is_named() {
    let whole = codec::encode_checkpoint(&named(5, "x", None));
    let mut damaged: Vec<Vec<u8>> = (0..whole.len())
        .map(|length| whole[..length].to_vec())
        .collect();
    damaged.extend((0..whole.len()).map(|at| {
        let mut flipped = whole.to_vec();
        flipped[at] ^= 0x10;
        flipped
    }));
    let id = CheckpointId::from_parts(5, 0);
    for bytes in damaged {
        let error = codec::decode_checkpoint("the object", (id, None), &bytes.into()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains("the object"), "{error}");
    }
    // Under a name that promises another end.
    let error = codec::decode_checkpoint("the object", (id, Some(7)), &whole).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

#[test]
fn the_newest_of_a_name_counts_and_the_name_says_when_it_ends() {
    let mut damaged = listed(named(40, "d", Some(100)));
    damaged.checkpoint = Err(crate::error::Error::corrupt("damaged"));
    let all = [
        listed(named(10, "a", None)),
        listed(checkpoint(20, Purpose::Reader("r".into()), Some(100))),
        listed(named(30, "a", Some(200))),
        damaged,
        listed(named(50, "b", None)),
    ];
    let over = |now_ms| -> Vec<usize> {
        let ended = checkpoints::ended(&all, now_ms);
        let at = |ended: &Listed| all.iter().position(|one| one.object == ended.object);
        ended.into_iter().map(|ended| at(ended).unwrap()).collect()
    };
    assert_eq!(over(99), [0]);
    assert_eq!(over(100), [0, 1, 3]);
    assert_eq!(over(200), [0, 1, 2, 3]);
    let ids = |numbers: &[u64]| numbers.iter().map(|&n| SstId::flushed(n, 0)).collect();
    let held = Held::by([&all[1], &all[4]]);
    let (inside, outside): (Vec<SstId>, Vec<SstId>) = (ids(&[20, 21, 50, 51]), ids(&[10, 22, 30]));
    assert!(inside.iter().all(|sst| held.contains(*sst)));
    assert!(!outside.iter().any(|sst| held.contains(*sst)));
    assert!(Held::by(&all).contains(outside[1]), "one cannot be read");
    assert!(Held::default().is_empty() && !held.is_empty());
}

#[tokio::test]
async fn what_has_expired_is_deleted_before_it_lets_go() {
    let (store, faults) = Store::open("memory:///").unwrap().with_faults();
    let (short, long) = (named(10, "short", Some(100)), named(20, "long", None));
    for checkpoint in [&short, &long] {
        checkpoints::put(&store, table(), checkpoint).await.unwrap();
        checkpoints::put(&store, table(), checkpoint).await.unwrap();
    }
    let holds = async |now_ms: u64| {
        let held = checkpoints::held(&store, table(), now_ms).await.unwrap();
        [10, 20].map(|number| held.contains(SstId::flushed(number, 0)))
    };
    assert_eq!(holds(99).await, [true, true]);
    faults.add(Fault::new(Operation::Delete, "/checkpoints/", Effect::Fail).times(1));
    assert_eq!(holds(100).await, [true, true], "its object is still there");
    assert!(checkpoints::exists(&store, table(), &short).await.unwrap());
    assert_eq!(holds(100).await, [false, true]);
    assert!(!checkpoints::exists(&store, table(), &short).await.unwrap());
    checkpoints::delete(&store, table(), &long).await.unwrap();
    assert_eq!(holds(100).await, [false, false]);
    // What nobody can read may hold anything, under whatever name it is.
    let object = layout::checkpoint(table(), long.id, None);
    for name in [&object, &format!("{object}.tmp")] {
        store.put(name, "?".into()).await.unwrap();
        assert_eq!(holds(100).await, [true, true], "{name}");
        store.delete(name).await.unwrap();
    }
    faults.add(Fault::new(Operation::List, "/checkpoints", Effect::Fail).times(1));
    let failed = checkpoints::held(&store, table(), 100).await.unwrap_err();
    assert!(failed.is_unavailable());
}

/// The new object is put after the listing, and the old one goes before it is read.
#[tokio::test]
async fn a_checkpoint_that_is_replaced_while_it_is_listed_goes_on_holding() {
    let (store, faults) = Store::open("memory:///").unwrap().with_faults();
    let old = checkpoint(10, Purpose::Reader("r".into()), Some(100));
    checkpoints::put(&store, table(), &old).await.unwrap();
    faults.add(Fault::new(Operation::Get, "/checkpoints/", Effect::Block).times(1));
    let sweep = checkpoints::held(&store, table(), 50);
    let replace = async {
        while faults.blocked() == 0 {
            tokio::task::yield_now().await;
        }
        let new = old.renewed(Some(200), 5, 7);
        assert!(new.id > old.id, "although the clock was set back");
        checkpoints::put(&store, table(), &new).await.unwrap();
        assert!(checkpoints::exists(&store, table(), &old).await.unwrap());
        checkpoints::delete(&store, table(), &old).await.unwrap();
        faults.release();
    };
    let (held, ()) = tokio::join!(sweep, replace);
    assert!(held.unwrap().contains(SstId::flushed(10, 0)));
}
