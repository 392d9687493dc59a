//! The decision against an oracle of sets, and its corners one by one.

use std::collections::{BTreeMap, BTreeSet};

use arrow::datatypes::{DataType, Field, Schema};
use proptest::{collection, prelude::*};

use super::*;
use crate::{
    manifest::{
        Checkpoint, Departure, JobRecord, Obsolete, Purpose, WindowVersion, checkpoints::Listed,
    },
    types::{
        CheckpointId, KeyRange, Retention, Seq, SstMeta, TableOptions, TableSchema, TaskId, Token,
        Window,
    },
};

const TABLE_MS: u64 = 1;

fn table() -> TableId {
    TableId::from_parts(TABLE_MS, 0)
}

fn job(number: u8) -> JobId {
    JobId::from_parts(number.into(), 7)
}

fn flushed(number: u8) -> SstId {
    SstId::flushed(number.into(), 0)
}

fn compacted(of: u8, token: u8) -> SstId {
    let task = TaskId {
        job: job(of),
        index: 0,
    };
    SstId::Compacted {
        task,
        token: Token(token.into()),
        part: 0,
    }
}

/// A version with these SSTs, jobs with their inputs, and SSTs that left, with the time.
fn version(
    live: &BTreeSet<SstId>,
    jobs: &BTreeMap<u8, Vec<SstId>>,
    left: &BTreeMap<SstId, Obsolete>,
) -> Arc<Version> {
    let columns = Schema::new(vec![Field::new("k", DataType::Int64, false)]);
    let schema = TableSchema::new(Arc::new(columns), &["k"], None, TableOptions::default());
    let mut version = Version::new(schema.unwrap());
    let window = WindowVersion {
        l0: live
            .iter()
            .map(|&id| Arc::new(SstMeta::sample(id, "-")))
            .collect(),
        ..WindowVersion::default()
    };
    version.windows.insert(Window::ALL, Arc::new(window));
    version.obsolete = left.clone();
    for (number, inputs) in jobs {
        let record = JobRecord {
            id: job(*number),
            inputs: inputs.clone(),
            window: Window::ALL,
            level_target: 1,
            retention: Retention::default(),
            sst_bytes_target: 1,
            tasks: vec![KeyRange::ALL],
            created_ms: 0,
        };
        version.jobs.insert(job(*number), Arc::new(record));
    }
    Arc::new(version)
}

/// A checkpoint that holds these.
fn held(ssts: &BTreeSet<SstId>) -> Held {
    let none = BTreeMap::new();
    let checkpoint = Checkpoint {
        id: CheckpointId::from_parts(1, 1),
        purpose: Purpose::Named("backup".into()),
        created_ms: 1,
        expires_ms: None,
        version: version(ssts, &BTreeMap::new(), &none),
        seq: Seq(1),
        expiry: None,
    };
    Held::by(&[Listed {
        object: String::new(),
        checkpoint: Ok(Arc::new(checkpoint)),
    }])
}

fn object(name: impl Into<String>) -> ObjectInfo {
    ObjectInfo {
        name: name.into(),
        bytes: 1,
        modified_ms: 0,
    }
}

fn objects(ssts: impl IntoIterator<Item = SstId>) -> Vec<ObjectInfo> {
    let names = ssts.into_iter().map(|sst| layout::sst(table(), sst));
    names.map(object).collect()
}

/// Everything that can be known of a table, as plain sets.
#[derive(Clone, Debug)]
struct Scene {
    listed: BTreeSet<SstId>,
    live: BTreeSet<SstId>,
    left: BTreeMap<SstId, Obsolete>,
    pinned: Vec<BTreeSet<SstId>>,
    held: BTreeSet<SstId>,
    pending: HashSet<SstId>,
    jobs: BTreeMap<u8, Vec<SstId>>,
    grace_ms: u64,
    now_ms: u64,
}

impl Scene {
    fn facts<R>(&self, with: impl FnOnce(&Facts<'_>) -> R) -> R {
        let none = BTreeMap::new();
        let pinned: Vec<_> = self
            .pinned
            .iter()
            .map(|ssts| version(ssts, &BTreeMap::new(), &none))
            .collect();
        with(&Facts {
            pending: &self.pending,
            version: &version(&self.live, &self.jobs, &self.left),
            pinned: &pinned,
            held: &held(&self.held),
            grace_ms: self.grace_ms,
            now_ms: self.now_ms,
        })
    }

    /// Those whom somebody names.
    fn named(&self) -> HashSet<SstId> {
        let of_live_job = |sst: &&SstId| match sst {
            SstId::Compacted { task, .. } => {
                self.jobs.keys().any(|number| job(*number) == task.job)
            }
            SstId::Flushed(_) => false,
        };
        let mut named: HashSet<SstId> = self.live.iter().copied().collect();
        named.extend(self.pinned.iter().flatten());
        named.extend(&self.held);
        named.extend(&self.pending);
        named.extend(self.jobs.values().flatten());
        named.extend(self.listed.iter().filter(of_live_job));
        named
    }

    /// Of those whom nobody names, the ones whose grace is over.
    fn deleted(&self) -> BTreeSet<SstId> {
        let named = self.named();
        let is_over = |since_ms: u64| since_ms + self.grace_ms <= self.now_ms;
        let is_old = |sst: &SstId| match (self.left.get(sst), sst) {
            (Some(left), _) => is_over(left.since_ms),
            (None, SstId::Compacted { .. }) => true,
            (None, SstId::Flushed(_)) => is_over(sst.written_ms()),
        };
        let listed = self.listed.iter().copied();
        listed
            .filter(|sst| !named.contains(sst) && is_old(sst))
            .collect()
    }
}

fn sst() -> impl Strategy<Value = SstId> {
    prop_oneof![
        (0..8u8).prop_map(flushed),
        (0..3u8, 0..3u8).prop_map(|(job, token)| compacted(job, token)),
    ]
}

fn left() -> impl Strategy<Value = Obsolete> {
    let departure = prop_oneof![
        Just(Departure::Replaced),
        Just(Departure::Expired),
        Just(Departure::RangeDeleted),
    ];
    (0..10u64, departure).prop_map(|(since_ms, departure)| Obsolete {
        since_ms,
        departure,
    })
}

fn scene() -> impl Strategy<Value = Scene> {
    let few = || collection::btree_set(sst(), 0..3);
    let parts = (
        collection::btree_set(sst(), 0..17),
        few(),
        collection::btree_map(sst(), left(), 0..5),
        collection::vec(few(), 0..3),
        few(),
        collection::hash_set(sst(), 0..3),
        collection::btree_map(
            0..3u8,
            collection::vec((0..8u8).prop_map(flushed), 0..2),
            0..2,
        ),
        (0..5u64, 0..12u64),
    );
    parts.prop_map(
        |(listed, mut live, mut left, pinned, held, pending, jobs, times)| {
            // What no version breaks: inputs are live, what has left is not.
            live.extend(jobs.values().flatten());
            left.retain(|sst, _| !live.contains(sst));
            let (grace_ms, now_ms) = times;
            Scene {
                listed,
                live,
                left,
                pinned,
                held,
                pending,
                jobs,
                grace_ms,
                now_ms,
            }
        },
    )
}

proptest! {
    #[test]
    fn exactly_what_nobody_names_and_is_old_enough_goes(scene in scene()) {
        scene.facts(|facts| {
            let listed: Vec<SstId> = scene.listed.iter().copied().collect();
            let verdicts = judge(table(), &objects(listed.iter().copied()), facts);
            let wanted = scene.deleted();
            for (sst, verdict) in listed.iter().zip(&verdicts) {
                let reason = verdict.deleted();
                assert_eq!(reason.is_some(), wanted.contains(sst), "{sst}: {verdict}");
                if let (Some(reason), Some(left)) = (reason, scene.left.get(sst)) {
                    assert_eq!(reason, Deleted::from(left.departure));
                }
            }
            let named = |ssts: &[SstId]| {
                let names: Vec<_> = ssts.iter().map(|&sst| ObjectName::Sst(table(), sst)).collect();
                is_named_by_nobody(&names, facts)
            };
            named(&wanted.into_iter().collect::<Vec<_>>()).unwrap();
            for sst in scene.named() {
                assert!(named(&[sst]).is_err(), "{sst}");
            }
        });
    }
}

/// A quiet table at `now_ms`.
fn quiet(grace_ms: u64, now_ms: u64) -> Scene {
    Scene {
        listed: BTreeSet::new(),
        live: BTreeSet::new(),
        left: BTreeMap::new(),
        pinned: Vec::new(),
        held: BTreeSet::new(),
        pending: HashSet::new(),
        jobs: BTreeMap::new(),
        grace_ms,
        now_ms,
    }
}

#[test]
fn reasons_are_told() {
    let task = |number, index| TaskId {
        job: job(number),
        index,
    };
    let left = |departure, since_ms| Obsolete {
        since_ms,
        departure,
    };
    let scene = Scene {
        live: BTreeSet::from([flushed(1)]),
        left: BTreeMap::from([
            (flushed(2), left(Departure::Replaced, 40)),
            (flushed(3), left(Departure::Replaced, 60)),
            (flushed(13), left(Departure::Expired, 40)),
            (flushed(14), left(Departure::RangeDeleted, 40)),
        ]),
        pinned: vec![BTreeSet::from([flushed(4)])],
        held: BTreeSet::from([flushed(5)]),
        pending: HashSet::from([flushed(6)]),
        jobs: BTreeMap::from([(1, vec![flushed(1)])]),
        ..quiet(50, 100)
    };
    let cases = [
        (layout::sst(table(), flushed(1)), "live"),
        (layout::sst(table(), flushed(2)), "replaced by compaction"),
        (layout::sst(table(), flushed(13)), "all rows expired"),
        (layout::sst(table(), flushed(14)), "all rows range-deleted"),
        (layout::sst(table(), flushed(3)), "within the grace"),
        (
            layout::sst(table(), flushed(4)),
            "read by a scan or snapshot",
        ),
        (
            layout::sst(table(), flushed(5)),
            "held by checkpoint \"backup\"",
        ),
        (layout::sst(table(), flushed(6)), "being written"),
        (
            layout::sst(table(), flushed(50)),
            "output of a killed flush or import",
        ),
        (layout::sst(table(), flushed(51)), "within the grace"),
        (
            layout::sst(table(), compacted(1, 1)),
            &format!("input or possible output of job {}", job(1)),
        ),
        (
            layout::sst(table(), compacted(2, 1)),
            "output of a lost attempt at a finished job",
        ),
        (
            layout::result(table(), task(1, 3), 0),
            &format!("input or possible output of job {}", job(1)),
        ),
        (
            layout::result(table(), task(2, 3), 1),
            "result of a finished job",
        ),
        (
            layout::log_record(&layout::manifest(table()), 4),
            "record of a log",
        ),
        (
            format!("tables/{}/sst/mine.parquet", table()),
            "unknown: not ours",
        ),
        (format!("tables/{}/notes", table()), "unknown: not ours"),
        (
            layout::sst(TableId::from_parts(2, 0), flushed(50)),
            "unknown: not ours",
        ),
    ];
    scene.facts(|facts| {
        for (name, wanted) in &cases {
            let verdicts = judge(table(), &[object(name)], facts);
            assert_eq!(verdicts[0].to_string(), **wanted, "{name}");
        }
    });
}

#[test]
fn no_grace_is_too_long_and_no_clock_too_far_back() {
    for (scene, goes) in [
        (quiet(u64::MAX, u64::MAX - 1), false),
        (quiet(0, 0), false),
        (quiet(0, 9), true),
    ] {
        scene.facts(|facts| {
            let verdicts = judge(table(), &objects([flushed(9)]), facts);
            assert_eq!(verdicts[0].deleted().is_some(), goes, "{scene:?}");
        });
    }
}

#[test]
fn a_dropped_table_goes_but_for_what_is_held_or_not_ours() {
    let checkpoint = CheckpointId::from_parts(1, 1);
    let mut listed = objects([flushed(1), flushed(2), compacted(1, 1)]);
    listed.extend([
        object(layout::log_record(&layout::manifest(table()), 1)),
        object(layout::checkpoint(table(), checkpoint, Some(100))),
        object(format!("tables/{}/notes", table())),
    ]);
    let held = held(&BTreeSet::from([flushed(2)]));
    let words = |held, now_ms| -> Vec<String> {
        let verdicts = judge_dropped(table(), &listed, held, now_ms);
        verdicts.iter().map(Verdict::to_string).collect()
    };
    let (gone, unknown) = ("dropped table", "unknown: not ours");
    let kept = "held by checkpoint \"backup\"";
    assert_eq!(
        words(&held, 99),
        [gone, kept, gone, gone, "checkpoint", unknown]
    );
    assert_eq!(
        words(&Held::default(), 100),
        [gone, gone, gone, gone, "expired checkpoint", unknown]
    );
}

#[test]
fn leftovers_are_left_alone_for_an_hour() {
    let staged = ObjectInfo {
        modified_ms: 1_000,
        ..object(format!("{}#12", layout::sst(table(), flushed(1))))
    };
    let listed = [
        object(layout::probe(1_000, 1)),
        staged,
        object("probe/mine"),
    ];
    let words = |now_ms| -> Vec<String> {
        let verdicts = judge_leftovers(&listed, now_ms);
        verdicts.iter().map(Verdict::to_string).collect()
    };
    let unknown = "unknown: not ours";
    assert_eq!(
        words(1_000 + LEFTOVER_MS),
        [
            "leftover probe",
            "leftover of a write that did not end",
            unknown
        ]
    );
    let young = "within the grace";
    assert_eq!(words(999 + LEFTOVER_MS), [young, young, unknown]);
}

#[test]
fn only_folders_of_tables_count() {
    let [known, unknown] = [1, 2].map(|number| TableId::from_parts(number, 0));
    let folders = [known.to_string(), unknown.to_string(), "notes".into()];
    assert_eq!(unknown_tables(&folders, &HashSet::from([known])), [unknown]);
}
