//! Histories of flushes and jobs over versions whose SSTs hold real rows, for every planner: whatever
//! happens in whatever order, nothing is lost, no plan breaks a rule, and once writes stop the table comes to
//! rest after a bounded number of jobs.
//!
//! Rows of an upsert table replace each other. Those of an append table stand for an operator that joins
//! them: a merge that took rows that are no neighbours would show in the order of what it joined.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use proptest::prelude::*;

use super::{
    CompactRange, LEVEL_BOTTOM, LeveledConfig, Planned, PlannerConfig, Situation, TieredConfig,
    leveled::Ladder, manual, order, plan,
};
use crate::{
    compaction::{Claim, Claims, Limits, Plan},
    manifest::{Edit, Pins, SstMove, SstRef, Version, invariants},
    types::{
        JobId, Key, PlannerKind, Seq, SstId, SstMeta, TableOptions, TableSchema, TaskId, Token,
        Window, WriteMode,
    },
};

/// Keys are times in seconds.
const KEYS: u16 = 64;
const WINDOW_SECONDS: u16 = 16;
const SST_ROWS: usize = 6;
const ROW_BYTES: u64 = 10;
const JOBS_MAX: usize = 3;

const CONFIG: PlannerConfig = PlannerConfig {
    l0_runs_trigger: 3,
    settle_ms: 1_000,
    limits: Limits {
        input_bytes_max: 400,
        ssts_max: 60,
        memory_bytes_max: u64::MAX,
        sst_bytes_target: SST_ROWS as u64 * ROW_BYTES,
    },
    leveled: LeveledConfig {
        level_bytes_min: 60,
        level_ratio: 3,
    },
    tiered: TieredConfig {
        tier_runs: 3,
        tier_ratio: 1.0,
    },
};

/// What a row of a key holds: the seqs that were joined, oldest first; none for a tombstone.
type Row = (u64, Vec<u64>);

#[derive(Clone, Debug)]
enum Step {
    /// A flush of keys, each put or deleted.
    Flush(Vec<(u16, bool)>),
    /// Starts the plan at this place, if there is room.
    Start(usize),
    /// Commits the running job at this place.
    Finish(usize),
    /// An SST is left alone from now on.
    Hold(usize),
    /// Nothing is any more.
    Release,
    /// Time passes, in milliseconds.
    Wait(u64),
    /// The table gets another planner.
    Alter(PlannerKind),
}

fn planner() -> impl Strategy<Value = PlannerKind> {
    prop_oneof![
        Just(PlannerKind::TimeWindow),
        Just(PlannerKind::Leveled),
        Just(PlannerKind::Tiered),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let row = (0..KEYS, proptest::bool::weighted(0.2));
    prop_oneof![
        6 => proptest::collection::vec(row, 1..10).prop_map(Step::Flush),
        6 => (0..4_usize).prop_map(Step::Start),
        5 => (0..JOBS_MAX).prop_map(Step::Finish),
        1 => (0..20_usize).prop_map(Step::Hold),
        1 => Just(Step::Release),
        1 => (0..2_000_u64).prop_map(Step::Wait),
        1 => planner().prop_map(Step::Alter),
    ]
}

/// A job under way.
struct Running {
    plan: Plan,
    drop_tombstones: bool,
    _claim: Claim,
}

struct World {
    version: Version,
    claims: Claims,
    held: HashSet<SstId>,
    rows: HashMap<SstId, BTreeMap<u16, Row>>,
    running: Vec<Running>,
    /// What must be read of each key.
    model: BTreeMap<u16, Vec<u64>>,
    now_ms: u64,
    seq: u64,
    written: u32,
    jobs: usize,
}

fn schema(kind: PlannerKind, mode: WriteMode, windows: bool) -> TableSchema {
    let time = DataType::Timestamp(TimeUnit::Second, None);
    let columns = Arc::new(Schema::new(vec![Field::new("t", time, false)]));
    let width = std::time::Duration::from_secs(WINDOW_SECONDS.into());
    let options = TableOptions {
        write_mode: mode,
        window: windows
            .then_some(width)
            .map_or_else(Default::default, Into::into),
        planner: Some(kind),
        ..TableOptions::default()
    };
    TableSchema::new(columns, &["t"], Some("t"), options).unwrap()
}

impl World {
    fn new(schema: TableSchema) -> Self {
        Self {
            version: Version::new(schema),
            claims: Claims::default(),
            held: HashSet::new(),
            rows: HashMap::new(),
            running: Vec::new(),
            model: BTreeMap::new(),
            now_ms: 1_000_000,
            seq: 0,
            written: 0,
            jobs: 0,
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Flush(rows) => self.flush(rows),
            Step::Start(at) => {
                let plans = self.planned().plans;
                if let Some(plan) = plans.get(*at % plans.len().max(1))
                    && self.running.len() < JOBS_MAX
                {
                    self.start(plan.clone());
                }
            }
            Step::Finish(at) => {
                if *at < self.running.len() {
                    self.finish(*at);
                }
            }
            Step::Hold(at) => {
                let sst = self.version.ssts().nth(*at).map(|sst| sst.id);
                self.held.extend(sst);
            }
            Step::Release => self.held.clear(),
            Step::Wait(ms) => self.now_ms += ms,
            Step::Alter(kind) => {
                let old = &self.version.schema;
                let windows = old.window_width().is_some();
                let next = schema(*kind, old.write_mode(), windows);
                self.apply(Edit {
                    schema: Some(next),
                    ..Edit::default()
                });
            }
        }
    }

    fn apply(&mut self, edit: Edit) {
        self.version = self.version.apply(&edit).unwrap();
        invariants::check(&self.version).unwrap();
    }

    fn situation<T>(&self, ask: impl FnOnce(&Situation<'_>) -> T) -> T {
        let (claimed, pins) = (self.claims.claimed(), self.pins());
        ask(&Situation {
            version: &self.version,
            claimed: &claimed,
            held: &self.held,
            pins: &pins,
            now_ms: self.now_ms,
        })
    }

    fn pins(&self) -> Pins {
        Pins {
            read_points: Vec::new(),
            expiry: None,
        }
    }

    fn planned(&self) -> Planned {
        self.situation(|situation| plan(situation, &CONFIG))
    }

    fn joins(&self) -> bool {
        self.version.schema.order_matters()
    }

    fn flush(&mut self, rows: &[(u16, bool)]) {
        self.seq += 1;
        self.now_ms += 10;
        let mut windows: BTreeMap<Window, BTreeMap<u16, Row>> = BTreeMap::new();
        for &(key, deletes) in rows {
            let deletes = deletes && !self.joins();
            let window = self.version.schema.window_width();
            let window = window.map_or(Window::ALL, |width| width.window_of(key.into()));
            let joined = if deletes { vec![] } else { vec![self.seq] };
            let rows = windows.entry(window).or_default();
            rows.insert(key, (self.seq, joined.clone()));
            match (self.joins(), deletes) {
                // Once a batch.
                (true, _) => {
                    let joined = self.model.entry(key).or_default();
                    if joined.last() != Some(&self.seq) {
                        joined.push(self.seq);
                    }
                }
                (false, true) => drop(self.model.remove(&key)),
                (false, false) => drop(self.model.insert(key, joined)),
            }
        }
        let added = windows.into_iter().map(|(window, rows)| {
            self.written += 1;
            let id = SstId::flushed(self.now_ms, self.written.into());
            self.add(id, 0, window, rows)
        });
        let edit = Edit {
            added: added.collect(),
            flushed_seq: Some(Seq(self.seq)),
            ..Edit::default()
        };
        self.apply(edit);
    }

    fn add(
        &mut self,
        id: SstId,
        level: u8,
        window: Window,
        rows: BTreeMap<u16, Row>,
    ) -> Arc<SstMeta> {
        let key = |key: &u16| Key::from(&key.to_be_bytes()[..]);
        let (first, last) = (rows.keys().next().unwrap(), rows.keys().last().unwrap());
        let seqs = || {
            rows.values()
                .flat_map(|(seq, joined)| joined.iter().chain([seq]))
        };
        let sst = SstMeta {
            level,
            window,
            bytes: rows.len() as u64 * ROW_BYTES,
            rows: rows.len() as u64,
            tombstones: rows.values().filter(|row| row.1.is_empty()).count() as u64,
            key_min: key(first),
            key_max: key(last),
            seq_min: Seq(*seqs().min().unwrap()),
            seq_max: Seq(*seqs().max().unwrap()),
            times: Some(((*first).into(), (*last).into())),
            ..SstMeta::sample(id, "-")
        };
        self.rows.insert(id, rows);
        Arc::new(sst)
    }

    fn start(&mut self, plan: Plan) {
        let ssts = &self.version.windows[&plan.window];
        let limits = &CONFIG.limits;
        assert!(limits.allow_smallest(&plan.inputs), "too much: {plan:?}");
        // Only held SSTs of level 0 may be jumped over, and only where the order of versions is no matter.
        if self.held.is_empty() || self.joins() {
            let keeps = order::keeps_order(ssts, &plan.inputs, plan.level_target);
            assert!(keeps, "out of order: {plan:?}");
        }
        assert!(
            plan.inputs.iter().all(|sst| !self.held.contains(&sst.id)),
            "held: {plan:?}"
        );
        let claim = self.claims.claim(plan.footprint());
        let claim = claim.unwrap_or_else(|| panic!("in the way of a running job: {plan:?}"));
        self.jobs += 1;
        if plan.moves {
            let moved = plan.inputs.iter().map(|sst| SstMove {
                sst: SstRef::from(sst.as_ref()),
                level: plan.level_target,
            });
            let edit = Edit {
                moved: moved.collect(),
                ..Edit::default()
            };
            return self.apply(edit);
        }
        let retention = plan.retention(&self.version, self.pins());
        self.running.push(Running {
            plan,
            drop_tombstones: retention.drop_tombstones,
            _claim: claim,
        });
    }

    fn finish(&mut self, at: usize) {
        let job = self.running.remove(at);
        let inputs = job.plan.inputs.iter();
        let removed: Vec<SstRef> = inputs.clone().map(|sst| sst.as_ref().into()).collect();
        let mut merged: BTreeMap<u16, Vec<Row>> = BTreeMap::new();
        for (&key, row) in inputs.flat_map(|sst| &self.rows[&sst.id]) {
            merged.entry(key).or_default().push(row.clone());
        }
        let joins = self.joins();
        let rows = merged.into_iter().filter_map(|(key, mut rows)| {
            rows.sort();
            let newest = rows.last().unwrap().clone();
            let row = match joins {
                true => (newest.0, rows.into_iter().flat_map(|row| row.1).collect()),
                false => newest,
            };
            (!row.1.is_empty() || !job.drop_tombstones).then_some((key, row))
        });
        let rows: Vec<(u16, Row)> = rows.collect();
        self.written += 1;
        let task = TaskId {
            job: JobId::from_parts(self.now_ms, self.written.into()),
            index: 0,
        };
        let outputs = rows.chunks(SST_ROWS).enumerate().map(|(part, rows)| {
            let id = SstId::Compacted {
                task,
                token: Token(1),
                part: part as u32,
            };
            let rows = rows.iter().cloned().collect();
            self.add(id, job.plan.level_target, job.plan.window, rows)
        });
        let edit = Edit {
            added: outputs.collect(),
            removed,
            ..Edit::default()
        };
        self.apply(edit);
    }

    /// Lets everything that is due happen, one job after another; returns how many jobs that took.
    fn come_to_rest(&mut self) -> usize {
        self.held.clear();
        while !self.running.is_empty() {
            self.finish(0);
        }
        let before = self.jobs;
        let bound = 50 + 20 * self.version.ssts().count();
        loop {
            // Nothing that has just been written is young for ever.
            self.now_ms += 10 * CONFIG.settle_ms;
            let Some(plan) = self.planned().plans.into_iter().next() else {
                break;
            };
            self.start(plan);
            while !self.running.is_empty() {
                self.finish(0);
            }
            assert!(self.jobs - before <= bound, "more than {bound} jobs");
        }
        assert_eq!(self.planned(), Planned::default(), "at rest for good");
        self.jobs - before
    }

    /// What is read of each key.
    fn read(&self) -> BTreeMap<u16, Vec<u64>> {
        let mut read: BTreeMap<u16, Vec<Row>> = BTreeMap::new();
        for (&key, row) in self.version.ssts().flat_map(|sst| &self.rows[&sst.id]) {
            read.entry(key).or_default().push(row.clone());
        }
        let joins = self.joins();
        let read = read.into_iter().map(|(key, mut rows)| {
            rows.sort();
            match joins {
                true => (key, rows.into_iter().flat_map(|row| row.1).collect()),
                false => (key, rows.pop().unwrap().1),
            }
        });
        read.filter(|(_, joined): &(u16, Vec<u64>)| !joined.is_empty())
            .collect()
    }

    /// Fails unless every window has the shape in which its planner leaves it alone.
    fn check_rest(&self) {
        for ssts in self.version.windows.values() {
            assert!(ssts.ssts().all(|sst| sst.tombstones * 4 < sst.rows));
            if self.version.schema.window_width().is_some() {
                assert!(ssts.l0.is_empty() && ssts.levels.len() == 1, "{ssts:?}");
                continue;
            }
            assert!(ssts.l0.len() < CONFIG.l0_runs_trigger);
            let bytes = |run: &Vec<Arc<SstMeta>>| run.iter().map(|sst| sst.bytes).sum::<u64>();
            let total: u64 = ssts.levels.values().map(bytes).sum();
            match self.version.schema.planner() {
                PlannerKind::TimeWindow => {}
                PlannerKind::Leveled => {
                    let base = Ladder::new(ssts, &CONFIG.leveled).base;
                    assert!(ssts.levels.keys().all(|&level| level >= base));
                    let above = ssts.levels.range(..LEVEL_BOTTOM);
                    let above: u64 = above.map(|(_, run)| bytes(run)).sum();
                    assert!(above <= total / 2, "{above} of {total} above the bottom");
                }
                PlannerKind::Tiered => {
                    let few = (total / ROW_BYTES + 1).ilog2() as usize + 2;
                    assert!(ssts.levels.len() <= few * CONFIG.tiered.tier_runs);
                }
            }
        }
    }
}

fn run(kind: PlannerKind, mode: WriteMode, windows: bool, steps: &[Step]) {
    let mut world = World::new(schema(kind, mode, windows));
    for step in steps {
        world.step(step);
        assert_eq!(world.read(), world.model);
    }
    world.come_to_rest();
    assert_eq!(world.read(), world.model);
    world.check_rest();
    // On request, a single run in each window; and that is at rest, too.
    let range = CompactRange::default();
    for round in 0.. {
        let goal = Seq(world.seq);
        let plans = world.situation(|situation| manual(situation, &CONFIG, &range, goal));
        let Some(plan) = plans.into_iter().next() else {
            break;
        };
        world.start(plan);
        world.step(&Step::Finish(0));
        assert!(round < 1_000, "a manual compaction without end");
    }
    assert_eq!(world.read(), world.model);
    for ssts in world.version.windows.values() {
        assert!(ssts.l0.is_empty() && ssts.levels.len() == 1, "{ssts:?}");
        assert!(ssts.ssts().all(|sst| sst.tombstones == 0));
    }
    world.come_to_rest();
    assert_eq!(world.read(), world.model);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(200),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_table_comes_to_rest_and_loses_nothing(
        kind in planner(),
        joins in any::<bool>(),
        windows in any::<bool>(),
        steps in proptest::collection::vec(step(), 1..120),
    ) {
        let mode = if joins { WriteMode::Append } else { WriteMode::Upsert };
        run(kind, mode, windows, &steps);
    }
}
