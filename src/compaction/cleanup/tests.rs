//! What is deleted, what is refused, and what is told of it.

use std::{collections::BTreeSet, time::Duration};

use super::*;
use crate::{
    store::faulty::{Effect, Fault, Faults, Operation},
    types::{CheckpointId, SstId},
};

const TABLE: u128 = 1;

fn table(number: u128) -> TableId {
    TableId::from_parts(1, number)
}

fn sst(number: u128) -> String {
    layout::sst(table(TABLE), SstId::flushed(1, number))
}

fn job(names: &[String]) -> CleanupJob {
    CleanupJob {
        id: JobId::from_parts(1, 7),
        table: table(TABLE),
        store_url: "memory:///".into(),
        names: names.to_vec(),
    }
}

fn attempt(token: u64) -> Attempt {
    Attempt::new(Token(token), "n".into())
}

async fn bench(names: &[String]) -> (Store, std::sync::Arc<Faults>) {
    let (store, faults) = Store::open("memory:///").unwrap().with_faults();
    for name in names {
        let body = Bytes::from_static(b"x");
        store.put(name, body).await.unwrap();
    }
    (store, faults)
}

async fn there(store: &Store) -> BTreeSet<String> {
    let objects = store.list("").await.unwrap();
    objects.into_iter().map(|object| object.name).collect()
}

/// What became of the objects of `job`, by what its result says.
async fn told(store: &Store, job: &CleanupJob) -> Vec<Option<Error>> {
    let deletions = read_result(store, job).await.unwrap().expect("a result");
    let errors = deletions.into_iter().map(|deletion| match deletion {
        Deletion::Confirmed => None,
        Deletion::Failed(error) => Some(error),
        Deletion::Left(reason) => panic!("left: {reason}"),
    });
    errors.collect()
}

#[tokio::test]
async fn everything_of_a_table_is_deleted_and_what_is_not_there_counts() {
    let id = table(TABLE);
    let task = TaskId {
        job: JobId::from_parts(2, 2),
        index: 3,
    };
    let names = [
        sst(1),
        layout::result(id, task, 4),
        layout::checkpoint(id, CheckpointId::from_parts(1, 1), Some(5)),
        layout::log_record(&layout::manifest(id), 6),
    ];
    let (store, _) = bench(&names).await;
    let mut job = job(&names);
    job.names.push(sst(2));
    let attempt = attempt(1);
    clean(&job, &attempt, &store).await.unwrap();
    assert_eq!(there(&store).await, [job.result()].into());
    assert!(told(&store, &job).await.iter().all(Option::is_none));
    assert_eq!(attempt.progress.objects_deleted(), 5);
    assert_eq!(attempt.progress.steps(), 5);
    delete_result(&store, &job).await.unwrap();
    assert!(there(&store).await.is_empty());
    assert!(read_result(&store, &job).await.unwrap().is_none());
}

#[tokio::test]
async fn what_is_not_of_the_table_is_refused_by_name() {
    let id = table(TABLE);
    let refused = [
        layout::sst(table(2), SstId::flushed(1, 1)),
        layout::log_record(layout::CATALOG, 1),
        layout::log_record(layout::META, 1),
        layout::log_record(&layout::wal("siltstone"), 1),
        layout::probe(1, 1),
        format!("{}/notes", layout::table(id)),
        format!("{}#12", sst(1)),
        format!("/{}", sst(1)),
        format!("x/../{}", sst(1)),
        format!("{}/../../../catalog/x", layout::ssts(id)),
        "../outside".to_owned(),
        "..".to_owned(),
        String::new(),
    ];
    let mut names = refused.to_vec();
    names.push(sst(1));
    // Those that a store takes as they are.
    let plain = refused[..6].to_vec();
    let (store, faults) = bench(&plain).await;
    let before = faults.count(Operation::Delete);
    let (job, attempt) = (job(&names), attempt(1));
    clean(&job, &attempt, &store).await.unwrap();
    // The one that is of the table, which was not there.
    assert_eq!(faults.count(Operation::Delete) - before, 1);
    let mut left: BTreeSet<String> = plain.into_iter().collect();
    left.insert(job.result());
    assert_eq!(there(&store).await, left);
    let told = told(&store, &job).await;
    for (name, error) in refused.iter().zip(&told) {
        let error = error.as_ref().expect("refused");
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.message().contains(&format!("{name:?}")), "{error}");
    }
    assert!(told.last().unwrap().is_none());
    assert_eq!(attempt.progress.objects_kept(), refused.len() as u64);
}

#[tokio::test]
async fn one_that_fails_is_told_of_and_the_others_go() {
    let names: Vec<String> = (0..250).map(sst).collect();
    let (store, faults) = bench(&names).await;
    faults.add(Fault::new(Operation::Delete, &names[120], Effect::Fail));
    let (job, attempt) = (job(&names), attempt(1));
    clean(&job, &attempt, &store).await.unwrap();
    let left = [names[120].clone(), job.result()];
    assert_eq!(there(&store).await, left.into());
    for (at, error) in told(&store, &job).await.iter().enumerate() {
        assert_eq!(error.is_some(), at == 120, "{at}");
        if let Some(error) = error {
            assert!(error.is_unavailable(), "{error}");
            assert!(error.message().contains("node n"), "{error}");
            assert!(error.message().contains(&names[120]), "{error}");
        }
    }
    assert_eq!(attempt.progress.objects_deleted(), 249);
    assert_eq!(attempt.progress.objects_kept(), 1);
}

#[tokio::test]
async fn the_first_result_counts() {
    let names = [sst(1), sst(2)];
    let (store, faults) = bench(&names).await;
    let job = job(&names);
    faults.add(Fault::new(Operation::Delete, &names[1], Effect::Fail));
    clean(&job, &attempt(1), &store).await.unwrap();
    faults.clear();
    // One that comes late deletes the rest, and changes no word of it.
    clean(&job, &attempt(2), &store).await.unwrap();
    let told = told(&store, &job).await;
    assert!(told[0].is_none() && told[1].is_some());
    assert_eq!(there(&store).await, [job.result()].into());
}

#[tokio::test]
async fn a_result_whose_answer_was_lost_is_a_result() {
    let names = [sst(1)];
    let (store, faults) = bench(&names).await;
    faults.add(Fault::new(Operation::Create, "results", Effect::LoseAnswer).times(1));
    clean(&job(&names), &attempt(1), &store).await.unwrap();
    assert!(told(&store, &job(&names)).await[0].is_none());
}

#[tokio::test]
async fn without_a_result_the_task_has_failed() {
    let names = [sst(1)];
    let (store, faults) = bench(&names).await;
    faults.add(Fault::new(Operation::Create, "results", Effect::Fail));
    let error = clean(&job(&names), &attempt(1), &store).await.unwrap_err();
    assert!(error.is_unavailable(), "{error}");
}

#[tokio::test]
async fn a_cancelled_attempt_ends_and_its_counter_has_moved() {
    let names: Vec<String> = (0..1_000).map(sst).collect();
    let (store, faults) = bench(&names).await;
    faults.add(Fault::new(Operation::Delete, &names[999], Effect::Block));
    let (job, attempt) = (job(&names), attempt(1));
    let cancel = attempt.cancel.clone();
    let (ended, ()) = tokio::join!(clean(&job, &attempt, &store), async {
        while faults.blocked() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        cancel.cancel();
    });
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::Closed);
    assert!(
        attempt.progress.steps() >= 600,
        "requests that have ended count"
    );
    assert!(!there(&store).await.contains(&job.result()));
}

#[tokio::test]
async fn an_outcome_of_another_job_is_refused() {
    let (one, mut other) = (job(&[sst(1), sst(2)]), job(&[sst(1)]));
    let outcome = |job: &CleanupJob, index| CleanupOutcome {
        task: job.task_id(),
        token: Token(1),
        node: "n".into(),
        objects: job.names.len() as u64,
        unconfirmed: vec![Unconfirmed {
            index,
            kind: ErrorKind::Unavailable,
            message: "no answer".into(),
        }],
    };
    assert_eq!(outcome(&one, 1).deletions(&one).unwrap().len(), 2);
    outcome(&one, 1).deletions(&other).unwrap_err();
    other.names.push(sst(2));
    other.id = JobId::from_parts(1, 8);
    outcome(&one, 1).deletions(&other).unwrap_err();
    let error = outcome(&one, 2).deletions(&one).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.message().contains(&one.result()), "{error}");
}
