//! Jobs in this process whose attempts fail in every way, share threads, memory and bandwidth, and are cut.

use std::{
    sync::atomic::AtomicU32,
    time::{Duration, Instant},
};

use super::*;
use crate::{
    clock::{Clock, SystemClock},
    compaction::{proof, tests::Bench},
    config::{Bytes, Millis},
    store::{
        faulty::{Effect, Fault, Faults, Operation},
        layout,
    },
    types::KeyRange,
};

fn config() -> CompactionConfig {
    CompactionConfig::default()
}

fn compactor(store: &Store, config: &CompactionConfig) -> Arc<LocalCompactor> {
    let store = store.clone();
    Arc::new(LocalCompactor::new(store, config, Env::default()))
}

async fn run(compactor: &LocalCompactor, job: &Arc<CompactionJob>) -> Result<CompactionOutcome> {
    let outcome = compactor.compact(job.clone(), CompactionContext::default());
    let outcome = outcome.await;
    assert_eq!(compactor.memory_reserved(), 0);
    assert_eq!(compactor.capacity().jobs, compactor.config.jobs_max);
    outcome
}

fn spawn(
    compactor: &Arc<LocalCompactor>,
    job: &Arc<CompactionJob>,
) -> tokio::task::JoinHandle<Result<CompactionOutcome>> {
    let (compactor, job) = (compactor.clone(), job.clone());
    tokio::spawn(async move { compactor.compact(job, CompactionContext::default()).await })
}

async fn check(bench: &Bench, job: &Arc<CompactionJob>, outcome: &CompactionOutcome) {
    proof::prove(job, outcome).unwrap();
    assert_eq!(bench.written(outcome).await, bench.merged());
}

/// Waits until `holds`.
async fn until(holds: impl Fn() -> bool) {
    let waited = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(60), waited).await;
    waited.expect("a minute was not enough");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_away_does_not_count() {
    let bench = Bench::overlapping().await;
    let job = bench.job(&[20_000]);
    let (store, faults) = bench.store.clone().with_faults();
    for operation in [
        Operation::Get,
        Operation::Put,
        Operation::Create,
        Operation::List,
    ] {
        faults.add(Fault::new(operation, "", Effect::Fail).times(5));
    }
    let config = CompactionConfig {
        task_attempts_max: 1,
        ..config()
    };
    let outcome = run(&compactor(&store, &config), &job).await.unwrap();
    check(&bench, &job, &outcome).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_or_missing_input_is_tried_so_often_and_named() {
    for damage in [true, false] {
        let bench = Bench::overlapping().await;
        let job = bench.job(&[]);
        let name = layout::sst(job.table, bench.inputs[1].id);
        match damage {
            true => {
                let mut bytes = bench.store.get(&name).await.unwrap().to_vec();
                bytes[50] ^= 1;
                bench.store.put(&name, bytes.into()).await.unwrap();
            }
            false => bench.store.delete(&name).await.unwrap(),
        }
        let config = CompactionConfig {
            task_attempts_max: 3,
            ..config()
        };
        let error = run(&compactor(&bench.store, &config), &job).await;
        let error = error.unwrap_err();
        let kind = if damage {
            ErrorKind::Corrupt
        } else {
            ErrorKind::NotFound
        };
        assert_eq!(error.kind(), kind, "{error}");
        let text = error.to_string();
        assert!(
            text.contains(&name) && text.contains("3 attempts"),
            "{text}"
        );
        assert_eq!(bench.outputs().await, []);
    }
}

/// A clock at which some looks panic.
struct Panics {
    honest: SystemClock,
    left: AtomicU32,
}

impl Clock for Panics {
    fn unix_ms(&self) -> u64 {
        self.honest.unix_ms()
    }

    fn monotonic(&self) -> Duration {
        let left = self.left.load(Ordering::Relaxed);
        if left > 0 {
            self.left.store(left - 1, Ordering::Relaxed);
            // One look is in the attempt's future, the next on its thread.
            assert!(left.is_multiple_of(3), "scripted panic");
        }
        self.honest.monotonic()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_ends_an_attempt_and_counts() {
    let bench = Bench::overlapping().await;
    let job = bench.job(&[]);
    for (panics, ends_well) in [(2, true), (3, true), (u32::MAX, false)] {
        let clock = Panics {
            honest: SystemClock::default(),
            left: AtomicU32::new(panics),
        };
        let env = Env::seeded(Arc::new(clock), 7);
        let compactor = LocalCompactor::new(bench.store.clone(), &config(), env);
        match run(&compactor, &job).await {
            Ok(outcome) => {
                assert!(ends_well);
                check(&bench, &job, &outcome).await;
                results::delete_results(&bench.store, job.table, job.id)
                    .await
                    .unwrap();
            }
            Err(error) => {
                assert!(!ends_well, "{error}");
                assert_eq!(error.kind(), ErrorKind::Internal);
                assert!(error.to_string().contains("4 attempts"), "{error}");
            }
        }
    }
}

/// A store in which attempts stand at some outputs, until it is dropped.
struct Held {
    store: Store,
    faults: Arc<Faults>,
}

impl Held {
    fn at(bench: &Bench, output: &str) -> Self {
        let (store, faults) = bench.store.clone().with_faults();
        let held = Self { store, faults };
        held.hold(output);
        held
    }

    fn hold(&self, output: &str) {
        let fault = Fault::new(Operation::Put, output, Effect::Block);
        self.faults.add(fault);
    }

    fn standing(&self) -> usize {
        self.faults.blocked()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.faults.release();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_share_the_threads_and_each_job_has_one() {
    let bench = Bench::overlapping().await;
    let job = bench.job(&[8_000, 16_000, 24_000, 32_000]);
    let held = Held::at(&bench, ".parquet");
    let mut config = config();
    config.local.tasks_max = 4;
    let compactor = compactor(&held.store, &config);
    let first = spawn(&compactor, &job);
    // One of its own, and two that are shared.
    until(|| held.standing() == 3).await;
    let second = Arc::new(CompactionJob {
        id: crate::types::JobId::from_parts(1, 2),
        ..bench.job(&[20_000]).as_ref().clone()
    });
    let other = spawn(&compactor, &second);
    until(|| held.standing() == 4).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(held.standing(), 4);
    held.faults.release();
    check(&bench, &job, &first.await.unwrap().unwrap()).await;
    check(&bench, &second, &other.await.unwrap().unwrap()).await;
    assert_eq!(compactor.memory_reserved(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_share_the_memory_and_give_it_back() {
    let bench = Bench::overlapping().await;
    let job = bench.job(&[10_000, 20_000, 30_000]);
    let held = Held::at(&bench, ".parquet");
    let one = job.task_memory(&KeyRange::ALL).div_ceil(MEMORY_UNIT) * MEMORY_UNIT;
    let mut config = config();
    config.local.tasks_max = 8;
    config.local.memory_bytes_max = Bytes(one * 5 / 2);
    let compactor = compactor(&held.store, &config);
    let running = spawn(&compactor, &job);
    until(|| held.standing() == 2).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(held.standing(), 2, "more run than memory allows");
    // A part of what the third one waits for may be set aside.
    assert!((2 * one..=5 * one / 2).contains(&compactor.memory_reserved()));
    held.faults.release();
    check(&bench, &job, &running.await.unwrap().unwrap()).await;
    assert_eq!(compactor.memory_reserved(), 0);

    // Dropped in the middle.
    results::delete_results(&bench.store, job.table, job.id)
        .await
        .unwrap();
    held.hold(".parquet");
    let running = spawn(&compactor, &job);
    until(|| held.standing() == 2).await;
    running.abort();
    let _ = running.await;
    assert_eq!(compactor.memory_reserved(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_and_writes_keep_to_the_bandwidth() {
    let bench = Bench::overlapping().await;
    let job = bench.job(&[]);
    let rate = job.input_bytes() * 4;
    let mut config = config();
    config.local.bytes_per_second_max = Some(Bytes(rate));
    let compactor = compactor(&bench.store, &config);
    let began = Instant::now();
    let outcome = run(&compactor, &job).await.unwrap();
    // All but what came last was paid for. Reads are as many bytes as the inputs have, at the least.
    assert!(
        began.elapsed() >= Duration::from_millis(200),
        "{:?}",
        began.elapsed()
    );
    check(&bench, &job, &outcome).await;
}

/// A number that does not compress.
fn scrambled(key: i64) -> i64 {
    let mixed = key.wrapping_mul(0x1234_5678_9abc_def1);
    (mixed ^ (mixed >> 29)).wrapping_mul(0x0fed_cba9_8765_4321)
}

/// Eight inputs of level 0, each with keys of its own, and values that do not compress.
async fn apart() -> Bench {
    let mut bench = Bench::new();
    for input in 0..8 {
        let keys = input * 5_000..(input + 1) * 5_000;
        bench
            .write(keys.map(|key| (key, 1, Some(scrambled(key)))))
            .await;
    }
    bench
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_too_large_for_the_memory_is_cut_until_it_fits() {
    let bench = apart().await;
    let job = bench.job(&[]);
    let mut config = config();
    config.local.memory_bytes_max = Bytes(job.task_memory(&KeyRange::ALL) / 3);
    let outcome = run(&compactor(&bench.store, &config), &job).await.unwrap();
    assert!(outcome.splits.len() >= 2, "{}", outcome.splits.len());
    check(&bench, &job, &outcome).await;

    // One input alone is more than there is.
    let one = bench.inputs[0].bytes;
    config.local.memory_bytes_max = Bytes(one);
    let job = Arc::new(CompactionJob {
        id: crate::types::JobId::from_parts(1, 2),
        ..job.as_ref().clone()
    });
    let error = run(&compactor(&bench.store, &config), &job).await;
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    assert!(
        error.to_string().contains("cannot be cut any more"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_past_its_time_is_cut_and_keeps_what_it_has_done() {
    let bench = Bench::overlapping().await;
    let job = bench.job(&[]);
    let mut config = config();
    config.local.task_time_max = Millis(0);
    let outcome = run(&compactor(&bench.store, &config), &job).await.unwrap();
    assert!(!outcome.splits.is_empty());
    check(&bench, &job, &outcome).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_was_cut_goes_on_after_a_restart() {
    let bench = apart().await;
    let job = bench.job(&[]);
    let mut config = config();
    config.local.memory_bytes_max = Bytes(job.task_memory(&KeyRange::ALL) / 3);
    // The rest of the outputs is not written: this engine never comes to the end.
    let [left, _] = job.task_id(0).halves().unwrap();
    let [leftmost, _] = left.halves().unwrap();
    let held = Held::at(&bench, &format!("{leftmost}-"));
    let compactor = compactor(&held.store, &config);
    let running = spawn(&compactor, &job);
    until(|| held.standing() > 0).await;
    running.abort();
    let _ = running.await;
    let before = results::load(&bench.store, &job).await.unwrap();
    let outcomes: Vec<TaskOutcome> = before.outcomes().cloned().collect();
    let splits = before.missing().filter(|task| task.id.index > 0).count();
    assert!(splits > 0, "it was not cut");

    let second = self::compactor(&bench.store, &config);
    let outcome = run(&second, &job).await.unwrap();
    check(&bench, &job, &outcome).await;
    let kept = |done: &TaskOutcome| outcome.parts.contains(done);
    assert!(outcomes.iter().all(kept), "what was done is done again");
}
