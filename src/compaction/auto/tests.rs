//! Decisions carried out: with sides that only count, on a clock that is moved by hand, and one job that is really cut
//! on both.

mod sides;

use std::{collections::BTreeSet, sync::atomic::Ordering};

use self::sides::{Counting, MIB, Meta};
use super::*;
use crate::{
    clock::ManualClock,
    compaction::{
        LocalCompactor,
        cost::{DecisionReason, EXPLORE_AFTER_MS},
        proof,
        remote::Fleet,
        results,
        tests::{Bench, until},
    },
    config::{CompactionConfig, Millis, RemoteConfig},
    types::SstMeta,
};

struct Fixture {
    clock: Arc<ManualClock>,
    meta: Arc<Meta>,
    local: Arc<Counting>,
    remote: Arc<Counting>,
    auto: Arc<AutoCompactor>,
    bench: Bench,
}

impl Fixture {
    /// Two places here; on the fleet, eight slots.
    async fn new() -> Self {
        let clock = Arc::new(ManualClock::new(Duration::from_secs(1_000)));
        let env = Env::seeded(clock.clone(), 7);
        let meta = Arc::new(Meta::default());
        *meta.fleet.lock().unwrap() = Some(Fleet {
            nodes: 2,
            slots: 8,
            bytes_ahead: 0,
        });
        let (local, remote) = (Counting::new(LOCAL_NODE, 2), Counting::new("n", 8));
        let fleet = FleetView::new(meta.clone(), &RemoteConfig::default(), env.clone());
        let auto = AutoCompactor::new(
            local.clone(),
            remote.clone(),
            Arc::new(fleet),
            LocalConfig::default(),
            env,
        );
        let mut bench = Bench::new();
        bench.write((0..1_000).map(|key| (key, 1, Some(key)))).await;
        Self {
            clock,
            meta,
            local,
            remote,
            auto: Arc::new(auto),
            bench,
        }
    }

    /// A job that merges `mib` from `level` in four tasks.
    fn job(&self, number: u128, mib: u64, level: u8) -> Arc<CompactionJob> {
        let input = SstMeta {
            bytes: mib * MIB,
            level,
            ..self.bench.inputs[0].as_ref().clone()
        };
        Arc::new(CompactionJob {
            id: JobId::from_parts(2_000_000, number),
            inputs: vec![Arc::new(input)],
            ..self.bench.job(&[250, 500, 750]).as_ref().clone()
        })
    }

    fn spawn(
        &self,
        job: &Arc<CompactionJob>,
        write_pressure_percent: u32,
    ) -> tokio::task::JoinHandle<Result<CompactionOutcome>> {
        let (auto, job) = (self.auto.clone(), job.clone());
        tokio::spawn(async move {
            let context = CompactionContext {
                write_pressure_percent,
                ..CompactionContext::default()
            };
            auto.compact(job, context).await
        })
    }

    async fn run(&self, job: &Arc<CompactionJob>) -> CompactionOutcome {
        self.spawn(job, 0).await.unwrap().unwrap()
    }

    /// Jobs that ran here, and on nodes.
    fn ran(&self) -> (usize, usize) {
        (self.local.jobs(), self.remote.jobs())
    }

    fn last(&self) -> JobDecision {
        self.auto.decisions().recent.last().unwrap().clone()
    }

    fn set_fleet(&self, fleet: Option<Fleet>) {
        *self.meta.fleet.lock().unwrap() = fleet;
    }
}

#[tokio::test]
async fn work_runs_where_it_is_decided_and_the_record_says_why() {
    let f = Fixture::new().await;
    f.run(&f.job(1, 1_024, 1)).await;
    assert_eq!(f.ran(), (0, 1));
    f.run(&f.job(2, 1, 0)).await;
    assert_eq!(f.ran(), (1, 1));
    let decisions = f.auto.decisions();
    assert_eq!(decisions.counts["remote"]["cost"], 1);
    assert_eq!(decisions.counts["local"]["cost"], 1);
    let [large, small] = &decisions.recent[..] else {
        panic!("{decisions:?}");
    };
    assert_eq!(large.job, f.job(1, 1, 1).id);
    assert_eq!((large.costs.bytes, large.costs.tasks), (1_024 * MIB, 4));
    assert_eq!((large.costs.remote.slots, large.costs.local.slots), (8, 3));
    assert_eq!(large.took_ms, Some(0));
    assert!(large.why.starts_with("done in"), "{}", large.why);
    assert_eq!(small.decision.side, Side::Local);
    assert!(small.decision.remote.done_ms >= small.costs.remote.queue_ms);
    assert!(
        serde_json::to_string(&decisions)
            .unwrap()
            .contains("bytes_per_second")
    );
}

#[tokio::test(start_paused = true)]
async fn a_fleet_that_is_away_is_not_waited_for_and_found_again() {
    let f = Fixture::new().await;
    let both = f.auto.capacity().jobs;
    assert_eq!(both, 10);
    f.set_fleet(None);
    for number in 1..4 {
        f.run(&f.job(number, 1_024, 1)).await;
        let last = f.last();
        assert_eq!(last.decision.reason, DecisionReason::Away);
        assert!(last.why.contains("scripted"), "{}", last.why);
    }
    assert_eq!(f.ran(), (3, 0));
    assert_eq!(
        f.meta.asked.load(Ordering::Relaxed),
        1,
        "once for all of them"
    );
    assert_eq!(f.auto.capacity().jobs, 2, "of this process alone");
    // Without nodes it is no better.
    f.clock.advance(Duration::from_secs(5));
    f.set_fleet(Some(Fleet::default()));
    f.run(&f.job(4, 1_024, 1)).await;
    assert_eq!(f.last().decision.reason, DecisionReason::NoNodes);
    let told = tokio::spawn({
        let auto = f.auto.clone();
        async move { auto.gains_room().await }
    });
    // A job that runs here goes on looking.
    f.local.hold();
    let running = f.spawn(&f.job(5, 1_024, 1), 0);
    until(|| f.local.running.load(Ordering::Relaxed) == 1).await;
    assert!(!told.is_finished());
    f.set_fleet(Some(Fleet {
        nodes: 1,
        slots: 8,
        bytes_ahead: 0,
    }));
    f.clock.advance(Duration::from_secs(5));
    until(|| f.auto.capacity().jobs == both - 1).await;
    // Who plans is told.
    until(|| told.is_finished()).await;
    f.run(&f.job(6, 1_024, 1)).await;
    assert_eq!(f.ran(), (5, 1));
    f.local.end_one();
    running.await.unwrap().unwrap();
    // One that does not answer at all is given a second.
    f.clock.advance(Duration::from_secs(5));
    f.meta.is_silent.store(true, Ordering::Relaxed);
    f.local.end_one();
    let asked = tokio::time::Instant::now();
    f.run(&f.job(7, 1_024, 1)).await;
    assert!(
        asked.elapsed() < Duration::from_secs(2),
        "{:?}",
        asked.elapsed()
    );
    assert_eq!(f.ran(), (6, 1));
}

#[tokio::test]
async fn there_is_room_for_what_both_sides_take_and_the_last_place_here_is_for_level_0() {
    let f = Fixture::new().await;
    f.local.hold();
    f.remote.hold();
    // It would be dear on nodes.
    f.remote.mib_per_second.store(1, Ordering::Relaxed);
    f.remote.end_one();
    f.run(&f.job(1, 1_024, 1)).await;
    let mut running = Vec::new();
    for (number, level, ran) in [
        (2, 1, (1, 1)),
        (3, 1, (1, 2)),
        (4, 0, (2, 2)),
        (5, 0, (2, 3)),
    ] {
        running.push(f.spawn(&f.job(number, 1_024, level), 0));
        until(|| f.ran() == ran).await;
        assert_eq!(f.auto.capacity().jobs, 10 - running.len());
    }
    assert_eq!(f.auto.decisions().counts["remote"]["local full"], 2);
    for _ in 0..2 {
        f.local.end_one();
        f.remote.end_one();
    }
    for job in running {
        job.await.unwrap().unwrap();
    }
    assert_eq!(f.auto.capacity().jobs, 10);
    assert_eq!(f.auto.books().local.bytes_ahead, 0);
    // One that asks for the fleet is counted before it is anywhere.
    f.clock.advance(Duration::from_secs(1));
    f.meta.is_silent.store(true, Ordering::Relaxed);
    let asks = f.spawn(&f.job(6, 1_024, 1), 0);
    until(|| f.auto.books().deciding == 1).await;
    assert_eq!(f.auto.capacity().jobs, 9);
    asks.abort();
    assert!(asks.await.unwrap_err().is_cancelled());
    assert_eq!(f.auto.capacity().jobs, 10);
}

#[tokio::test]
async fn what_is_ahead_of_a_job_counts() {
    let f = Fixture::new().await;
    f.remote.hold();
    let mut held = Vec::new();
    // Of the same moment, so that meta has not told of any yet.
    for number in 1..20 {
        held.push(f.spawn(&f.job(number, 1_024, 0), 0));
        until(|| f.local.jobs() + f.remote.jobs() >= number as usize).await;
        if f.local.jobs() > 0 {
            break;
        }
    }
    let last = f.last();
    assert_eq!(last.decision.side, Side::Local, "{last:?}");
    assert_eq!(
        last.costs.remote.bytes_ahead,
        1_024 * MIB * (held.len() as u64 - 1)
    );
    held.iter().for_each(|job| job.abort());
}

#[tokio::test]
async fn a_slow_side_is_left_and_tried_again_later() {
    let f = Fixture::new().await;
    f.remote.mib_per_second.store(1, Ordering::Relaxed);
    f.run(&f.job(1, 1_024, 1)).await;
    f.run(&f.job(2, 1_024, 1)).await;
    assert_eq!(f.ran(), (1, 1));
    let rate = f.last().costs.remote.bytes_per_second;
    assert_eq!(rate / MIB, 5, "half way from 32 to 1");
    // Meanwhile it has become fast.
    f.remote.mib_per_second.store(200, Ordering::Relaxed);
    f.clock
        .advance(Duration::from_millis(EXPLORE_AFTER_MS - 1_000));
    f.run(&f.job(3, 1_024, 1)).await;
    assert_eq!(f.ran(), (2, 1));
    f.clock.advance(Duration::from_millis(1_000));
    f.run(&f.job(4, 1_024, 1)).await;
    assert_eq!(f.last().decision.reason, DecisionReason::Explores);
    f.run(&f.job(5, 1_024, 1)).await;
    let last = f.last();
    assert_eq!(last.decision.reason, DecisionReason::Cost, "{last:?}");
    assert_eq!(f.ran(), (2, 3));
}

/// A fleet of one slot, and a job that both sides do sooner together.
async fn splitting() -> (Fixture, Arc<CompactionJob>) {
    let f = Fixture::new().await;
    f.set_fleet(Some(Fleet {
        nodes: 1,
        slots: 1,
        bytes_ahead: 0,
    }));
    let job = f.job(1, 1_024, 0);
    (f, job)
}

#[tokio::test]
async fn a_split_job_runs_on_both_sides_and_comes_together() {
    let (f, job) = splitting().await;
    let outcome = f.spawn(&job, 100).await.unwrap().unwrap();
    assert_eq!(f.ran(), (1, 1));
    let last = f.last();
    assert_eq!(
        (last.decision.side, last.decision.tasks_local),
        (Side::Split, 3)
    );
    let who = outcome
        .parts
        .iter()
        .map(|part| (part.task.index, part.node.0.as_str()));
    let wanted = [(0, LOCAL_NODE), (1, LOCAL_NODE), (2, LOCAL_NODE), (3, "n")];
    assert_eq!(who.collect::<Vec<_>>(), wanted);
    assert_eq!(
        *f.meta.released.lock().unwrap(),
        [],
        "its compactor does that"
    );
}

#[tokio::test]
async fn a_half_that_fails_ends_the_job_and_one_that_is_cancelled_does_not() {
    let (f, job) = splitting().await;
    f.remote.hold();
    *f.local.fails.lock().unwrap() = Some(Error::corrupt("x.parquet is damaged"));
    let error = f.spawn(&job, 100).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert_eq!(*f.meta.released.lock().unwrap(), [job.id]);
    assert!(f.last().error.unwrap().contains("damaged"));
    assert_eq!(f.auto.capacity().jobs, 10);

    f.meta.released.lock().unwrap().clear();
    *f.local.fails.lock().unwrap() = Some(Error::closed("the engine ends"));
    let error = f.spawn(&job, 100).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
    assert_eq!(
        *f.meta.released.lock().unwrap(),
        [],
        "the next engine resumes it"
    );
    assert_eq!(f.last().error, None);
}

#[tokio::test]
async fn a_job_of_an_engine_before_that_runs_here_is_taken_from_the_nodes() {
    let f = Fixture::new().await;
    let old = Arc::new(CompactionJob {
        id: JobId::from_parts(1, 1),
        ..f.job(1, 1, 0).as_ref().clone()
    });
    f.run(&f.job(2, 1, 0)).await;
    assert_eq!(*f.meta.released.lock().unwrap(), []);
    f.run(&old).await;
    assert_eq!(f.ran(), (2, 0));
    assert_eq!(*f.meta.released.lock().unwrap(), [old.id]);
}

/// Both halves cut their tasks again and again without seeing each other's cuts.
#[tokio::test(flavor = "multi_thread")]
async fn halves_that_are_cut_on_both_sides_come_to_one_result() {
    let bench = Bench::overlapping().await;
    let job = bench.job(&[20_000]);
    let mut config = CompactionConfig::default();
    config.local.task_time_max = Millis(0);
    let side = || LocalCompactor::new(bench.store.clone(), &config, Env::default());
    let (one, other) = (side(), side());
    let (first, second) = Share::halves(&job.tasks, 1).unwrap();
    let context = |share| CompactionContext {
        share,
        ..CompactionContext::default()
    };
    let (here, there) = tokio::try_join!(
        one.compact(job.clone(), context(first)),
        other.compact(job.clone(), context(second)),
    )
    .unwrap();
    let children = |outcome: &CompactionOutcome| {
        let children = outcome.splits.iter().flat_map(|split| &split.children);
        children
            .map(|child| child.id.index)
            .collect::<BTreeSet<_>>()
    };
    assert!(children(&here).len() > 1 && children(&there).len() > 1);
    let outcome = joined(here, there);
    proof::prove(&job, &outcome).unwrap();
    assert_eq!(bench.written(&outcome).await, bench.merged());
    // Whoever resumes the job finds the same.
    let found = results::load(&bench.store, &job).await.unwrap();
    assert_eq!(found.into_outcome().unwrap(), outcome);
}
