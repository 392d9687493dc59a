//! Long logs: what an open reads of them, and what is removed when.

use crate::{
    clock::ManualClock,
    store::{
        faulty::Operation,
        layout,
        log::{GRACE, LogSettings},
    },
};

use super::*;

struct Aging {
    store: Store,
    faults: Arc<crate::store::faulty::Faults>,
    clock: Arc<ManualClock>,
}

impl Aging {
    fn new() -> Self {
        let (store, faults) = Store::open("memory:///").unwrap().with_faults();
        Self {
            store,
            faults,
            clock: Arc::default(),
        }
    }

    fn settings(&self) -> LogSettings {
        Env::seeded(self.clock.clone(), 1).into()
    }

    async fn numbers(&self, folder: &str) -> Vec<u64> {
        let objects = self.store.list(folder).await.unwrap();
        let numbers = objects.iter().map(|object| &object.name);
        let mut numbers: Vec<u64> = numbers
            .map(|name| layout::parse_log_record(folder, name).unwrap())
            .collect();
        numbers.sort();
        numbers
    }
}

/// Ends with a snapshot, the edits after it, and everything before it still there.
async fn commit_many(manifest: &Manifest, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let (new, old) = (sst(number, 0, "a-b"), sst(number - 1, 0, "a-b"));
        let commit = manifest.commit(|version| {
            let mut edit = added(&[&new]);
            if number % 2 == 0 && version.find(old.as_ref().into()).is_some() {
                edit.removed = vec![SstRef::from(old.as_ref())];
            }
            Ok(Some(edit))
        });
        commit.await.unwrap();
    }
}

#[tokio::test]
async fn a_manifest_is_read_from_its_snapshot_whether_the_edits_before_it_are_gone_or_not() {
    let log = Aging::new();
    let table = TableId::from_parts(1, 1);
    let folder = layout::manifest(table);
    let manifest = Manifest::create(&log.store, table, Epoch(1), schema(), log.settings());
    let manifest = manifest.await.unwrap();
    commit_many(&manifest, 1..400).await;
    let before = manifest.version();
    let written = log.numbers(&folder).await;
    assert_eq!(written.len() as u64, *written.last().unwrap());
    assert!(written.len() < 420, "snapshots are few: {}", written.len());

    // The crash came before anything was removed: nothing is doubled, nothing that left is back.
    let counts = || [Operation::List, Operation::Get].map(|operation| log.faults.count(operation));
    let asked = counts();
    let reopened = Manifest::open(&log.store, table, Epoch(2), log.settings()).await;
    let reopened = reopened.unwrap();
    assert_eq!(reopened.version(), before);
    let [lists, gets] = counts();
    assert_eq!(lists - asked[0], 1);
    assert!(gets - asked[1] < 300, "{} records read", gets - asked[1]);

    // After the grace they go, with the next commit.
    log.clock.advance(GRACE);
    commit_many(&reopened, 400..401).await;
    let left = log.numbers(&folder).await;
    assert!(left[0] > 100, "{left:?}");
    assert!(left.windows(2).all(|pair| pair[0] + 1 == pair[1]));
    let before = reopened.version();
    let again = Manifest::open(&log.store, table, Epoch(3), log.settings()).await;
    assert_eq!(again.unwrap().version(), before);
}

#[tokio::test]
async fn a_table_that_is_only_opened_and_closed_stays_short() {
    let log = Aging::new();
    let table = TableId::from_parts(1, 1);
    let manifest = Manifest::create(&log.store, table, Epoch(1), schema(), log.settings());
    let version = manifest.await.unwrap().version();
    for epoch in 2..150 {
        let gets = log.faults.count(Operation::Get);
        let opened = Manifest::open(&log.store, table, Epoch(epoch), log.settings()).await;
        assert_eq!(opened.unwrap().version(), version);
        assert!(log.faults.count(Operation::Get) - gets < 70);
    }
}

#[tokio::test]
async fn a_manifest_asleep_does_not_bring_a_removed_record_back() {
    let log = Aging::new();
    let table = TableId::from_parts(1, 1);
    let manifest = Manifest::create(&log.store, table, Epoch(1), schema(), log.settings());
    let asleep = manifest.await.unwrap();
    let awake = Manifest::open(&log.store, table, Epoch(2), log.settings()).await;
    let awake = awake.unwrap();
    commit_many(&awake, 1..100).await;
    log.clock.advance(GRACE);
    commit_many(&awake, 100..101).await;
    assert!(log.numbers(&layout::manifest(table)).await[0] > 3);
    let late = sst(999, 0, "a-b");
    for _ in 0..2 {
        let error = asleep.commit(|_| Ok(Some(added(&[&late])))).await;
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Fenced);
    }
    let before = awake.version();
    let again = Manifest::open(&log.store, table, Epoch(3), log.settings()).await;
    assert_eq!(again.unwrap().version(), before);
}

#[tokio::test]
async fn the_catalog_is_kept_short_too_and_remembers_its_wal() {
    let log = Aging::new();
    let open = |id: &'static str| Catalog::open(&log.store, log.settings(), wal(id));
    let mut catalog = open("here").await.unwrap();
    for number in 0..100 {
        let id = TableId::from_parts(number, 0);
        catalog.create(&format!("{number}"), id).await.unwrap();
    }
    log.clock.advance(GRACE);
    let id = TableId::from_parts(3, 0);
    catalog.drop_table(id).await.unwrap();
    assert!(log.numbers(layout::CATALOG).await[0] > 30);
    let error = open("there").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let catalog = open("here").await.unwrap();
    assert_eq!(
        (catalog.tables().count(), catalog.wal_since()),
        (99, Epoch(1))
    );
    let mut catalog = open("here").await.unwrap();
    catalog.mark_wal_clean().await.unwrap();
    let catalog = open("there").await.unwrap();
    assert_eq!(catalog.wal_since(), catalog.epoch());
}

#[test]
fn an_edit_of_many_ssts_goes_through_its_windows_once() {
    let of = |number: u64| {
        let mut sst = sst(1, 1, "a-b").as_ref().clone();
        sst.id = SstId::flushed(number, 1);
        let key = |end: &[u8]| Key::from(&[&number.to_be_bytes()[..], end].concat()[..]);
        (sst.key_min, sst.key_max) = (key(b"a"), key(b"b"));
        Arc::new(sst)
    };
    // Quadratic work would take minutes.
    let ssts: Vec<_> = (0..30_000).map(of).collect();
    let edit = added(&ssts.iter().rev().collect::<Vec<_>>());
    let version = Version::new(schema()).apply(&edit).unwrap();
    invariants::check(&version).unwrap();
    let removed = ssts.iter().step_by(2).map(|sst| SstRef::from(sst.as_ref()));
    let edit = Edit {
        removed: removed.collect(),
        ..Edit::default()
    };
    let half = version.apply(&edit).unwrap();
    assert_eq!(half.ssts().count(), 15_000);
    invariants::check_edit(&half, &edit).unwrap();
    let again = half.apply(&edit).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Conflict);
    let decoded = codec::decode_version(codec::encode_version(&half)).unwrap();
    assert_eq!(decoded, half);
}
