//! Versions, invariants, and the door for commits under rivals and lost answers.

mod aging;
mod checkpoints;

use std::{sync::Arc, time::Duration};

use arrow::datatypes::{DataType, Field, Schema, TimeUnit};

use super::{
    Catalog, Departure, Edit, JobRecord, Manifest, Obsolete, SstMove, SstRef, Version, WalIdentity,
    codec, invariants,
};
use crate::{
    clock::Env,
    error::ErrorKind,
    store::Store,
    types::{
        Epoch, JobId, Key, KeyRange, RangeDelete, Retention, Seq, SstId, SstMeta, TableId,
        TableOptions, TableSchema, TimeRange, Window,
    },
};

fn schema() -> TableSchema {
    let time = DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into()));
    let columns = Schema::new(vec![
        Field::new("t", time, false),
        Field::new("k", DataType::Utf8, true),
        Field::new("v", DataType::Float64, true),
    ]);
    let options = TableOptions {
        window: Duration::from_secs(10).into(),
        ..TableOptions::default()
    };
    TableSchema::new(Arc::new(columns), &["k", "t"], Some("t"), options).unwrap()
}

fn sst(number: u64, level: u8, keys: &str) -> Arc<SstMeta> {
    Arc::new(SstMeta {
        level,
        window: Window::new(0, 10_000),
        bytes: 100,
        rows: 10,
        tombstones: 1,
        seq_min: Seq(number),
        seq_max: Seq(number),
        times: Some((0, 9_999)),
        rows_hash: number,
        ..SstMeta::sample(SstId::flushed(number, 0), keys)
    })
}

fn range_delete(seq: u64) -> RangeDelete {
    RangeDelete {
        seq: Seq(seq),
        times: TimeRange { start: -9, end: 9 },
    }
}

fn job(number: u64, inputs: &[&Arc<SstMeta>]) -> JobRecord {
    JobRecord {
        id: JobId::from_parts(number, 0),
        inputs: inputs.iter().map(|sst| sst.id).collect(),
        window: Window::new(0, 10_000),
        level_target: 1,
        retention: Retention {
            read_points: vec![Seq(3)],
            drop_tombstones: true,
            expiry: Some(-4),
            range_deletes: vec![range_delete(2)],
        },
        sst_bytes_target: 1 << 20,
        tasks: vec![
            KeyRange {
                start: None,
                end: Some(Key::from(&b"m"[..])),
            },
            KeyRange::ALL,
        ],
        created_ms: 7,
    }
}

fn added(ssts: &[&Arc<SstMeta>]) -> Edit {
    Edit {
        added: ssts.iter().map(|sst| (*sst).clone()).collect(),
        flushed_seq: ssts.iter().map(|sst| sst.seq_max).max(),
        ..Edit::default()
    }
}

#[test]
fn edits_and_versions_survive_their_encoding() {
    let (a, b) = (sst(1, 0, "a-c"), sst(2, 1, "b-d"));
    let mut edit = added(&[&a, &b]);
    edit.schema = Some(schema());
    edit.jobs_started = vec![job(1, &[&a])];
    edit.at_ms = 99;
    assert_eq!(codec::decode_edit(codec::encode_edit(&edit)).unwrap(), edit);
    let mut version = Version::new(schema()).apply(&edit).unwrap();
    let gone = Edit {
        removed: vec![SstRef::from(b.as_ref())],
        at_ms: 5,
        ..Edit::default()
    };
    version = version.apply(&gone).unwrap();
    assert_eq!(version.obsolete[&b.id].since_ms, 5);
    assert_eq!(
        codec::decode_version(codec::encode_version(&version)).unwrap(),
        version
    );
}

#[test]
fn an_sst_of_another_table_leaves_without_becoming_obsolete() {
    let other = Some(TableId::from_parts(7, 7));
    let shared = Arc::new(SstMeta {
        home: other,
        ..sst(1, 0, "a-c").as_ref().clone()
    });
    let own = sst(2, 0, "b-d");
    let edit = added(&[&shared, &own]);
    assert_eq!(codec::decode_edit(codec::encode_edit(&edit)).unwrap(), edit);
    let version = Version::new(schema()).apply(&edit).unwrap();
    let moved = Edit {
        moved: vec![SstMove {
            sst: SstRef::from(shared.as_ref()),
            level: 2,
        }],
        ..Edit::default()
    };
    let version = version.apply(&moved).unwrap();
    let at_level_2 = version.find(SstRef::from(shared.as_ref())).unwrap();
    assert_eq!((at_level_2.level, at_level_2.home), (2, other));
    let gone = Edit {
        removed: [&shared, &own].map(|sst| SstRef::from(sst.as_ref())).into(),
        ..Edit::default()
    };
    let empty = version.apply(&gone).unwrap();
    assert_eq!(empty.obsolete.into_keys().collect::<Vec<_>>(), [own.id]);
}

#[test]
fn an_edit_that_does_not_fit_changes_nothing() {
    let (a, b) = (sst(1, 0, "a-c"), sst(2, 0, "b-d"));
    let version = Version::new(schema()).apply(&added(&[&a])).unwrap();
    let remove = |sst: &Arc<SstMeta>| Edit {
        removed: vec![SstRef::from(sst.as_ref())],
        ..Edit::default()
    };
    let end = Edit {
        jobs_ended: vec![JobId::from_parts(1, 1)],
        ..Edit::default()
    };
    for edit in [remove(&b), added(&[&a]), end] {
        assert_eq!(
            version.apply(&edit).unwrap_err().kind(),
            ErrorKind::Conflict
        );
    }
    // An SST that left never comes back: its object may be gone.
    let without = version.apply(&remove(&a)).unwrap();
    assert!(without.windows.is_empty());
    assert_eq!(
        without.apply(&added(&[&a])).unwrap_err().kind(),
        ErrorKind::Conflict
    );
}

#[test]
fn each_invariant_refuses_what_breaks_it() {
    let broken = |edit: Edit| {
        let error = invariants::check(&Version::new(schema()).apply(&edit).unwrap()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Internal);
        error.message().split(' ').nth(1).unwrap().to_owned()
    };
    assert_eq!(
        broken(added(&[&sst(1, 1, "a-c"), &sst(2, 1, "c-d")])),
        "runs_are_sorted_and_disjoint"
    );
    let mut crossing = sst(1, 0, "a-b").as_ref().clone();
    crossing.times = Some((0, 10_000));
    assert_eq!(
        broken(added(&[&Arc::new(crossing)])),
        "no_sst_crosses_a_window"
    );
    let mut early = added(&[&sst(5, 0, "a-b")]);
    early.flushed_seq = Some(Seq(4));
    assert_eq!(broken(early), "live_ssts_are_flushed");
    let a = sst(1, 0, "a-b");
    let mut twice = added(&[&a]);
    twice.jobs_started = vec![job(1, &[&a]), job(2, &[&a])];
    assert_eq!(broken(twice), "job_inputs_are_live_and_claimed_once");
    let mut hasty = added(&[&a, &sst(2, 0, "b-c")]);
    hasty.jobs_started = vec![job(1, &[&sst(2, 0, "b-c")])];
    assert_eq!(broken(hasty), "tombstones_go_only_from_the_bottom");
    let mut ahead = a.as_ref().clone();
    ahead.applied_seq = Seq(77);
    assert_eq!(
        broken(added(&[&Arc::new(ahead)])),
        "seqs_of_range_deletes_are_known"
    );
    let overlapping_level_0 = added(&[&sst(1, 0, "a-c"), &sst(2, 0, "b-d")]);
    let version = Version::new(schema()).apply(&overlapping_level_0).unwrap();
    invariants::check(&version).unwrap();
    assert_eq!(version.l0_runs_max(), 2);
    let mut doomed = version;
    let left = Obsolete {
        since_ms: 1,
        departure: Departure::Replaced,
    };
    doomed.obsolete.insert(a.id, left);
    let error = invariants::check(&doomed).unwrap_err().to_string();
    assert!(error.contains("live_ssts_are_not_obsolete"), "{error}");
}

fn wal(id: &str) -> WalIdentity {
    WalIdentity {
        mode: "local".into(),
        id: id.into(),
        place: "/a/folder".into(),
        root: None,
    }
}

async fn created() -> (Store, TableId, Manifest) {
    let store = Store::open("memory:///").unwrap();
    let table = TableId::from_parts(1, 1);
    let manifest = Manifest::create(&store, table, Epoch(1), schema(), Env::default())
        .await
        .unwrap();
    (store, table, manifest)
}

#[tokio::test]
async fn reopening_gives_the_same_version_across_snapshots() {
    let (store, table, mut manifest) = created().await;
    let mut number = 0;
    for round in 0..3 {
        for _ in 0..70 {
            number += 1;
            manifest
                .commit(|_| Ok(Some(added(&[&sst(number, 0, "a-b")]))))
                .await
                .unwrap();
        }
        let before = manifest.version();
        manifest = Manifest::open(&store, table, Epoch(2 + round), Env::default())
            .await
            .unwrap();
        assert_eq!(manifest.version(), before);
    }
    assert_eq!(manifest.version().l0_runs_max(), 210);
}

#[tokio::test]
async fn the_newer_engine_fences_the_older_for_good() {
    let (store, table, old) = created().await;
    let new = Manifest::open(&store, table, Epoch(2), Env::default())
        .await
        .unwrap();
    let flush = |manifest: &'static str| added(&[&sst(manifest.len() as u64, 0, "a-b")]);
    for _ in 0..2 {
        let error = old.commit(|_| Ok(Some(flush("old")))).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Fenced);
        new.commit(|version| Ok(version.windows.is_empty().then(|| flush("newer"))))
            .await
            .unwrap();
    }
    assert_eq!(new.version().ssts().count(), 1);
    for stale in [Epoch(1), Epoch(2)] {
        let error = Manifest::open(&store, table, stale, Env::default())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Fenced);
    }
    let again = Manifest::open(&store, table, Epoch(3), Env::default())
        .await
        .unwrap();
    assert_eq!(again.version(), new.version());
}

#[tokio::test]
async fn a_job_is_committed_once() {
    let (store, table, manifest) = created().await;
    let (input, output) = (sst(1, 0, "a-b"), sst(0, 1, "a-b"));
    let job = job(1, &[&input]);
    manifest
        .commit(|_| Ok(Some(added(&[&input]))))
        .await
        .unwrap();
    let start = Edit {
        jobs_started: vec![job.clone()],
        ..Edit::default()
    };
    manifest.commit(|_| Ok(Some(start.clone()))).await.unwrap();
    let manifest = Manifest::open(&store, table, Epoch(2), Env::default())
        .await
        .unwrap();
    assert_eq!(manifest.version().jobs[&job.id].as_ref(), &job);
    let swap = Edit {
        removed: vec![SstRef::from(input.as_ref())],
        added: vec![output.clone()],
        jobs_ended: vec![job.id],
        ..Edit::default()
    };
    for _ in 0..2 {
        let commit =
            manifest.commit(|version| Ok(version.jobs.contains_key(&job.id).then(|| swap.clone())));
        let version = commit.await.unwrap();
        assert_eq!(
            version.ssts().map(|sst| sst.id).collect::<Vec<_>>(),
            [output.id]
        );
    }
}

#[tokio::test]
async fn a_move_changes_the_level_and_leaves_nothing_to_delete() {
    let (store, table, manifest) = created().await;
    let (upper, lower) = (sst(2, 1, "a-b"), sst(1, 2, "a-b"));
    manifest
        .commit(|_| Ok(Some(added(&[&upper, &lower]))))
        .await
        .unwrap();
    let moved = |sst: &Arc<SstMeta>, level| SstMove {
        sst: SstRef::from(sst.as_ref()),
        level,
    };
    // The second makes place for the first.
    let edit = Edit {
        moved: vec![moved(&upper, 2), moved(&lower, 3)],
        ..Edit::default()
    };
    assert_eq!(codec::decode_edit(codec::encode_edit(&edit)).unwrap(), edit);
    manifest.commit(|_| Ok(Some(edit.clone()))).await.unwrap();
    let reopened = Manifest::open(&store, table, Epoch(2), Env::default())
        .await
        .unwrap();
    for version in [manifest.version(), reopened.version()] {
        let levels: Vec<_> = version.ssts().map(|sst| (sst.id, sst.level)).collect();
        assert_eq!(levels, [(upper.id, 2), (lower.id, 3)]);
        assert!(version.obsolete.is_empty());
    }
    let onto = Edit {
        moved: vec![moved(&upper, 3)],
        ..Edit::default()
    };
    let next = reopened.version().apply(&onto).unwrap();
    assert!(
        invariants::check(&next).is_err(),
        "two share a key at level 3"
    );
}

#[tokio::test]
async fn the_catalog_remembers_and_fences() {
    let store = Store::open("memory:///").unwrap();
    assert!(!Catalog::exists(&store).await.unwrap());
    let mut old = Catalog::open(&store, Env::default(), wal("here"))
        .await
        .unwrap();
    let id = |number| TableId::from_parts(number, 0);
    for number in 0..150 {
        old.create(&format!("table {number}"), id(number))
            .await
            .unwrap();
    }
    assert_eq!(
        old.create("table 7", id(999)).await.unwrap_err().kind(),
        ErrorKind::Conflict
    );
    old.drop_table(id(7)).await.unwrap();
    old.drop_table(id(7)).await.unwrap();
    let new = Catalog::open(&store, Env::default(), wal("here"))
        .await
        .unwrap();
    assert_eq!(new.tables().count(), 149);
    assert!(new.epoch() > old.epoch());
    assert_eq!(
        old.create("late", id(500)).await.unwrap_err().kind(),
        ErrorKind::Fenced
    );
    assert!(Catalog::exists(&store).await.unwrap());
}

#[test]
fn stored_bodies_stay_readable() {
    let (a, b) = (sst(1, 0, "a-c"), sst(2, 1, "b-d"));
    let mut edit = added(&[&a, &b]);
    edit.schema = Some(schema());
    edit.jobs_started = vec![job(1, &[&a])];
    edit.at_ms = 99;
    let golden = crate::golden::check("manifest-edit-v1.bin", &codec::encode_edit(&edit));
    assert_eq!(codec::decode_edit(golden).unwrap(), edit);
    let gone = Edit {
        removed: vec![SstRef::from(b.as_ref())],
        at_ms: 5,
        ..Edit::default()
    };
    let whole = Version::new(schema()).apply(&edit).unwrap();
    let version = whole.apply(&gone).unwrap();
    let golden = crate::golden::check("manifest-snapshot-v1.bin", &codec::encode_version(&version));
    assert_eq!(codec::decode_version(golden).unwrap(), version);
    for (departure, name) in [
        (Departure::Expired, "expired"),
        (Departure::RangeDeleted, "range-deleted"),
    ] {
        let edit = Edit {
            departure,
            ..gone.clone()
        };
        let golden = crate::golden::check(
            &format!("manifest-edit-{name}-v1.bin"),
            &codec::encode_edit(&edit),
        );
        assert_eq!(codec::decode_edit(golden).unwrap(), edit);
        let version = whole.apply(&edit).unwrap();
        assert_eq!(version.obsolete[&b.id].departure, departure);
        let golden = crate::golden::check(
            &format!("manifest-snapshot-{name}-v1.bin"),
            &codec::encode_version(&version),
        );
        assert_eq!(codec::decode_version(golden).unwrap(), version);
    }
    let edit = codec::CatalogEdit {
        created: vec![("flights".into(), TableId::from_parts(1, 2))],
        dropped: vec![TableId::from_parts(3, 4)],
        is_wal_clean: true,
    };
    let golden = crate::golden::check("catalog-edit-v1.bin", &codec::encode_catalog_edit(&edit));
    assert_eq!(codec::decode_catalog_edit(golden).unwrap(), edit);
    let claim = codec::CatalogClaim {
        wal: wal("here"),
        root: "00ff".into(),
    };
    let golden = crate::golden::check("catalog-claim-v1.bin", &codec::encode_catalog_claim(&claim));
    assert_eq!(codec::decode_catalog_claim(golden).unwrap(), claim);
    let state = codec::CatalogState {
        tables: [("weather".into(), TableId::from_parts(5, 6))].into(),
        wal: Some(wal("here")),
        wal_since: Epoch(3),
        root: "00ff".into(),
        is_wal_clean: true,
    };
    let golden = crate::golden::check("catalog-snapshot-v1.bin", &codec::encode_catalog(&state));
    assert_eq!(codec::decode_catalog(golden).unwrap(), state);
}
