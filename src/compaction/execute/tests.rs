//! Attempts that are killed, stopped, overtaken and limited: what is finished stays finished, and whatever
//! happens one right result comes of it.

use super::*;
use crate::{
    compaction::{
        CompactionOutcome, JobProgress, TaskPart, TaskSplit, proof, results,
        tests::{Bench, only_task},
    },
    error::ErrorKind,
    store::{
        faulty::{Effect, Fault, Faults, Operation},
        layout,
    },
    types::SstId,
};

fn attempt(token: u64) -> Attempt {
    Attempt::new(Token(token), format!("node-{token}").as_str().into())
}

async fn run_on(
    store: &Store,
    job: &Arc<CompactionJob>,
    attempt: Attempt,
) -> Result<Vec<TaskOutcome>> {
    execute(job, &only_task(job), attempt, store, &Env::default()).await
}

/// The result is right, and the store has its outputs and no others.
async fn check(bench: &Bench, job: &Arc<CompactionJob>) -> CompactionOutcome {
    let progress = results::load(&bench.store, job).await.unwrap();
    let outcome = progress.into_outcome().unwrap();
    proof::prove(job, &outcome).unwrap();
    assert_eq!(bench.written(&outcome).await, bench.merged());
    let mut named: Vec<SstId> = outcome.outputs().map(|sst| sst.id).collect();
    named.sort();
    assert_eq!(bench.outputs().await, named);
    outcome
}

fn tokens(outcomes: &[TaskOutcome]) -> Vec<u64> {
    outcomes.iter().map(|outcome| outcome.token.0).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_output_is_a_part_and_the_parts_are_the_whole() {
    let bench = Bench::overlapping().await;
    let job = bench.job(&[]);
    let attempt = attempt(1);
    let rows = attempt.progress.clone();
    let outcomes = run_on(&bench.store, &job, attempt).await.unwrap();
    assert!(outcomes.len() >= 4, "{}", outcomes.len());
    assert_eq!(
        rows.rows(),
        job.inputs.iter().map(|sst| sst.rows).sum::<u64>()
    );
    let outcome = check(&bench, &job).await;
    assert_eq!(outcome.parts, outcomes);
    assert_eq!(outcome.parts_reused(), 0);
    // Another attempt finds it done, and reads no row.
    let again = self::attempt(2);
    let rows = again.progress.clone();
    let found = run_on(&bench.store, &job, again).await.unwrap();
    assert_eq!((found, rows.rows()), (outcomes, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_goes_on_after_what_another_has_finished() {
    for finished in 0..4 {
        let bench = Bench::overlapping().await;
        let job = bench.job(&[]);
        let (store, faults) = bench.store.clone().with_faults();
        // The next output is not to be written.
        let output = format!("-1-{finished}.parquet");
        faults.add(Fault::new(Operation::Put, output, Effect::Fail));
        let error = run_on(&store, &job, attempt(1)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        let kept = bench.outputs().await;
        assert_eq!(kept.len(), finished);

        let second = attempt(2);
        let rows = second.progress.clone();
        let outcomes = run_on(&bench.store, &job, second).await.unwrap();
        let (before, after) = outcomes.split_at(finished);
        assert!(before.iter().all(|outcome| outcome.token == Token(1)));
        assert!(after.iter().all(|outcome| outcome.token == Token(2)));
        let outputs = before.iter().flat_map(|outcome| &outcome.outputs);
        assert_eq!(outputs.map(|sst| sst.id).collect::<Vec<_>>(), kept);
        let read = |outcomes: &[TaskOutcome]| outcomes.iter().map(|part| part.read.rows).sum();
        let (done, left): (u64, u64) = (read(before), read(after));
        assert_eq!(rows.rows(), left, "rows of finished parts are read again");
        assert!(finished == 0 || done > 0);
        let reused = check(&bench, &job).await.parts_reused();
        assert_eq!(reused, u64::from(finished > 0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_to_a_part_costs_nothing() {
    let bench = Bench::overlapping().await;
    let job = bench.job(&[]);
    let (store, faults) = bench.store.clone().with_faults();
    faults.add(Fault::new(Operation::Create, "/0-1", Effect::LoseAnswer).times(1));
    let outcomes = run_on(&store, &job, attempt(1)).await.unwrap();
    check(&bench, &job).await;
    assert!(tokens(&outcomes).iter().all(|&token| token == 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_attempt_ends_although_the_store_does_not_answer() {
    let bench = Bench::overlapping().await;
    let job = bench.job(&[]);
    let (store, faults) = bench.store.clone().with_faults();
    faults.add(Fault::new(Operation::Create, "/0-2", Effect::Block));
    let first = attempt(1);
    let cancel = first.cancel.clone();
    let running = tokio::spawn({
        let job = job.clone();
        async move { run_on(&store, &job, first).await }
    });
    blocked(&faults).await;
    cancel.cancel();
    let error = running.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    // What it was about to name may have been named.
    assert_eq!(bench.outputs().await.len(), 3);
    let outcomes = run_on(&bench.store, &job, attempt(2)).await.unwrap();
    assert_eq!(tokens(&outcomes)[..3], [1, 1, 2]);
    let progress = results::load(&bench.store, &job).await.unwrap();
    let outcome = progress.into_outcome().unwrap();
    proof::prove(&job, &outcome).unwrap();
    assert_eq!(bench.written(&outcome).await, bench.merged());
    assert_eq!(bench.outputs().await.len(), outcome.outputs().count() + 1);
}

async fn blocked(faults: &Faults) {
    while faults.blocked() == 0 {
        tokio::task::yield_now().await;
    }
}

/// A first attempt stands before it writes a part, while a second one writes that part and some more.
#[tokio::test(flavor = "multi_thread")]
async fn an_overtaken_attempt_goes_on_after_the_other_and_leaves_nothing() {
    for (stands_at, other_ends_at) in [(0, 1), (0, 3), (1, 2), (1, 9), (2, 4), (3, 9)] {
        let bench = Bench::overlapping().await;
        let job = bench.job(&[]);
        let (store, faults) = bench.store.clone().with_faults();
        let part = format!("/0-{stands_at}");
        faults.add(Fault::new(Operation::Create, part, Effect::Block));
        let running = tokio::spawn({
            let job = job.clone();
            async move { run_on(&store, &job, attempt(1)).await }
        });
        blocked(&faults).await;
        let (other, other_faults) = bench.store.clone().with_faults();
        // Its own outputs are numbered from 0.
        let output = format!("-2-{}.parquet", other_ends_at - stands_at);
        other_faults.add(Fault::new(Operation::Put, output, Effect::Fail));
        let _ = run_on(&other, &job, attempt(2)).await;
        faults.release();
        let outcomes = running.await.unwrap().unwrap();
        let parts = outcomes.len();
        let expected = (0..parts).map(|part| match part {
            _ if part < stands_at || part >= other_ends_at => 1,
            _ => 2,
        });
        assert_eq!(tokens(&outcomes), expected.collect::<Vec<u64>>());
        assert_eq!(check(&bench, &job).await.parts, outcomes);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn racing_attempts_come_to_one_result() {
    for _ in 0..8 {
        let bench = Bench::overlapping().await;
        let job = bench.job(&[]);
        let [first, second, third] =
            [1, 2, 3].map(|token| run_on(&bench.store, &job, attempt(token)));
        let (first, second, third) = tokio::join!(first, second, third);
        let (first, second, third) = (first.unwrap(), second.unwrap(), third.unwrap());
        assert!(first == second && second == third);
        assert_eq!(check(&bench, &job).await.parts, first);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_past_its_time_finishes_its_part_and_is_too_large() {
    let bench = Bench::overlapping().await;
    let job = bench.job(&[]);
    let mut parts = 0;
    for token in 1.. {
        let attempt = Attempt {
            time_max: Some(Duration::ZERO),
            ..attempt(token)
        };
        match run_on(&bench.store, &job, attempt).await {
            Ok(outcomes) => {
                assert_eq!(outcomes.len() as u64, token);
                break;
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
                assert!(error.to_string().contains("came to key"), "{error}");
                parts += 1;
                let progress = results::load(&bench.store, &job).await.unwrap();
                assert_eq!(progress.outcomes().count(), parts);
            }
        }
    }
    assert!(parts >= 3);
    check(&bench, &job).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_without_enough_memory_begins_nothing() {
    let bench = Bench::overlapping().await;
    let job = bench.job(&[]);
    let estimate = job.task_memory(&KeyRange::ALL);
    let small = |bytes| Attempt {
        memory_bytes: Some(bytes),
        ..attempt(1)
    };
    let error = run_on(&bench.store, &job, small(10_000)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TooLarge);
    let text = error.to_string();
    assert!(
        text.contains("3 inputs") && text.contains("10000"),
        "{text}"
    );
    assert_eq!(bench.outputs().await, []);
    // What is known before the inputs are opened is enough.
    run_on(&bench.store, &job, small(estimate)).await.unwrap();
    check(&bench, &job).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_at_a_task_whose_rest_was_split_ends() {
    let bench = Bench::overlapping().await;
    let job = bench.job(&[]);
    let (store, faults) = bench.store.clone().with_faults();
    faults.add(Fault::new(Operation::Create, "/0-1", Effect::Block));
    let running = tokio::spawn({
        let job = job.clone();
        async move { run_on(&store, &job, attempt(1)).await }
    });
    blocked(&faults).await;
    let mut progress = results::load(&bench.store, &job).await.unwrap();
    let split = progress.split(0, bench.key(30_000)).unwrap();
    let split = results::write_part(&bench.store, job.table, TaskPart::Split(split)).await;
    progress.add(split.unwrap()).unwrap();
    faults.release();
    let error = running.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
    assert!(
        error.to_string().contains("was split into 2 tasks"),
        "{error}"
    );
    assert_eq!(bench.outputs().await.len(), 1);
    let tasks: Vec<Task> = progress.missing().cloned().collect();
    let ids: Vec<_> = tasks.iter().map(|task| task.id).collect();
    assert_eq!(ids, job.task_id(0).halves().unwrap());
    for task in tasks {
        let env = Env::default();
        let ended = execute(&job, &task, attempt(2), &bench.store, &env).await;
        ended.unwrap();
    }
    let outcome = check(&bench, &job).await;
    assert_eq!(outcome.splits.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_the_job_does_not_have_is_refused() {
    let bench = Bench::overlapping().await;
    let job = bench.job(&[20_000]);
    let mut task = job.task(1).unwrap();
    task.range = KeyRange::ALL;
    let env = Env::default();
    let ended = execute(&job, &task, attempt(1), &bench.store, &env).await;
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::Invalid);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_part_that_does_not_fit_is_named() {
    let bench = Bench::overlapping().await;
    let job = bench.job(&[]);
    // Of a task with another range.
    let split = TaskSplit {
        task: job.task_id(0),
        part: 0,
        range: KeyRange {
            start: Some(bench.key(1)),
            end: None,
        },
        children: Vec::new(),
    };
    let name = layout::result(job.table, job.task_id(0), 0);
    let body = TaskPart::Split(split).encode();
    bench.store.put(&name, body).await.unwrap();
    let error = run_on(&bench.store, &job, attempt(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains(&name), "{error}");
    let loaded: Result<JobProgress> = results::load(&bench.store, &job).await;
    assert!(loaded.unwrap_err().to_string().contains(&name));
}

#[tokio::test(flavor = "multi_thread")]
async fn footers_that_an_attempt_has_read_are_not_read_again() {
    let bench = Bench::overlapping().await;
    let job = bench.job(&[10_000, 20_000]);
    let cache = SstCache::of_opened(1 << 20);
    for index in 0..3 {
        let attempt = Attempt {
            footers: Some(cache.clone()),
            ..attempt(1)
        };
        let task = job.task(index).unwrap();
        let ran = execute(&job, &task, attempt, &bench.store, &Env::default()).await;
        ran.unwrap();
    }
    let stats = cache.stats();
    assert_eq!((stats.metadata_misses, stats.metadata_hits), (3, 6));
    assert_eq!(stats.data_misses, 0, "pages are read past it");
    check(&bench, &job).await;
}
