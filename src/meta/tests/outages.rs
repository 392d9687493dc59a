//! The plan log away, slow, or in doubt about itself.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;

use super::{WAIT, ended, holding, job, node, open, polling, submission, waiting};
use crate::{
    clock::Env,
    compaction::remote::{JobService, TaskEnd, TaskState},
    error::{Error, ErrorKind, Result},
    meta::{MemoryPlanLog, ObjectPlanLog, PlanLog, PlanSnapshot, PlanUpdate, Replay},
    store::{
        Store,
        faulty::{Effect, Fault, Operation},
        layout,
    },
};

/// A log whose appends fail, some after they were written.
struct Flaky {
    inner: MemoryPlanLog,
    failures: Failures,
    /// Snapshots that were asked for, all in vain; `None` when they succeed.
    snapshots_lost: Option<Arc<AtomicUsize>>,
}

type Failures = Arc<Mutex<Vec<(ErrorKind, bool)>>>;

#[async_trait]
impl PlanLog for Flaky {
    async fn open(&mut self) -> Result<Replay> {
        self.inner.open().await
    }

    async fn append(&mut self, updates: &[PlanUpdate]) -> Result<()> {
        let failure = self.failures.lock().unwrap().pop();
        let Some((kind, written)) = failure else {
            return self.inner.append(updates).await;
        };
        if written {
            self.inner.append(updates).await?;
        }
        Err(Error::new(kind, "scripted"))
    }

    async fn check_leads(&mut self) -> Result<()> {
        self.inner.check_leads().await
    }

    async fn append_snapshot(&mut self, snapshot: &PlanSnapshot) -> Result<()> {
        let Some(lost) = &self.snapshots_lost else {
            return self.inner.append_snapshot(snapshot).await;
        };
        lost.fetch_add(1, Ordering::Relaxed);
        Err(Error::unavailable("scripted"))
    }

    fn is_snapshot_due(&self) -> bool {
        self.inner.is_snapshot_due()
    }

    fn snapshot_failed(&mut self) {
        self.inner.snapshot_failed();
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_told_before_the_log_has_it() {
    for failures in [
        vec![(ErrorKind::Unavailable, false)],
        vec![(ErrorKind::Unavailable, true)],
        vec![(ErrorKind::Conflict, true), (ErrorKind::Unavailable, true)],
    ] {
        let inner = MemoryPlanLog::default();
        let service = open(Flaky {
            inner: inner.clone(),
            failures: Arc::new(Mutex::new(failures)),
            snapshots_lost: None,
        })
        .await;
        let error = service.submit(submission("o", 1, 1)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        tokio::time::sleep(Duration::from_secs(2)).await;
        service.submit(submission("o", 1, 1)).await.unwrap();
        let given = service.poll(node("a", 1), WAIT).await.unwrap().attempts();
        assert_eq!(given.len(), 1);
        let jobs = service.jobs().await.unwrap();
        service.close().await.unwrap();
        let reopened = open(inner).await;
        assert_eq!(reopened.jobs().await.unwrap(), jobs);
        reopened.close().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn outage_of_the_log_costs_no_attempts() {
    let failures = Failures::default();
    let log = Flaky {
        inner: MemoryPlanLog::default(),
        failures: failures.clone(),
        snapshots_lost: None,
    };
    let service = open(log).await;
    service.submit(submission("o", 1, 1)).await.unwrap();
    // The assignment is the first that does not come through: it is told to nobody for six leases.
    *failures.lock().unwrap() = vec![(ErrorKind::Unavailable, false); 300];
    let node = polling(&service, node("a", 1), TaskEnd::Done);
    while !failures.lock().unwrap().is_empty() {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let states = ended(&service, job(1)).await;
    assert_eq!(states, [TaskState::Done { node: "a".into() }]);
    let jobs = service.jobs().await.unwrap();
    assert_eq!(jobs[0].tasks[0].attempts, 0);
    node.abort();
    service.close().await.unwrap();
}

/// Or an engine that reached it before would wait for ever, for what the new one has long had done.
#[tokio::test(start_paused = true)]
async fn whoever_was_overtaken_finds_out_although_nothing_is_to_be_written() {
    let (store, faults) = Store::open("memory:///").unwrap().with_faults();
    let log = || ObjectPlanLog::new(store.clone(), Env::default());
    let old = open(log()).await;
    old.submit(submission("o", 1, 1)).await.unwrap();
    let seen = old.watch(job(1), 0, WAIT).await.unwrap().revision;
    // An outage meanwhile is no reason to end, and is told.
    faults.add(Fault::new(Operation::Get, layout::META, Effect::Fail));
    let away = loop {
        match old.watch(job(1), seen, WAIT).await {
            Ok(status) => assert_eq!(status.revision, seen),
            Err(error) => break error,
        }
    };
    assert_eq!(away.kind(), ErrorKind::Unavailable);
    faults.clear();
    while old.watch(job(1), seen, WAIT).await.is_err() {
        tokio::time::sleep(WAIT).await;
    }

    let new = open(log()).await;
    let ended = tokio::time::timeout(Duration::from_secs(60), old.run(std::future::pending()));
    let ended = ended.await.expect("it finds out").unwrap_err();
    assert_eq!(ended.kind(), ErrorKind::Fenced);
    let lost = old.watch(job(1), seen, WAIT).await.unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::Unavailable);
    new.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn slow_append_ends_no_lease() {
    let (store, faults) = Store::open("memory:///").unwrap().with_faults();
    let service = open(ObjectPlanLog::new(store, Env::default())).await;
    service.submit(submission("o", 1, 1)).await.unwrap();
    let given = service.poll(node("a", 1), WAIT).await.unwrap().attempts();
    let held = waiting(&service, holding(node("a", 1), &given));
    tokio::time::sleep(Duration::from_millis(50)).await;
    let slow = Effect::Delay(Duration::from_secs(25));
    faults.add(Fault::new(Operation::Create, layout::META, slow).times(1));
    service.submit(submission("o", 2, 1)).await.unwrap();
    assert_eq!(held.await.unwrap().unwrap().renewed, given);
    tokio::time::sleep(Duration::from_millis(500)).await;
    let poll = holding(node("a", 1), &given);
    let reply = service.poll(poll, Duration::ZERO).await.unwrap();
    assert_eq!(reply.renewed, given);
    service.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn snapshot_that_fails_is_not_tried_with_each_append() {
    let lost = Arc::new(AtomicUsize::new(0));
    let log = Flaky {
        inner: MemoryPlanLog::default(),
        failures: Failures::default(),
        snapshots_lost: Some(lost.clone()),
    };
    let service = open(log).await;
    for number in 0..100 {
        service.submit(submission("o", number, 1)).await.unwrap();
    }
    assert_eq!(lost.load(Ordering::Relaxed), 3, "after 32, 64 and 96");
    service.close().await.unwrap();
}

fn released(number: u128) -> PlanUpdate {
    PlanUpdate {
        released: vec![job(number)],
        ..PlanUpdate::default()
    }
}

#[tokio::test(start_paused = true)]
async fn log_is_not_lost_to_its_own_claim() {
    let (store, faults) = Store::open("memory:///").unwrap().with_faults();
    let mut log = ObjectPlanLog::new(store, Env::default());
    log.open().await.unwrap();
    log.append(&[released(1)]).await.unwrap();
    // The claim gets into the log; all answers about it are lost.
    let claim = layout::log_record(layout::META, 3);
    faults.add(Fault::new(Operation::Create, &claim, Effect::LoseAnswer));
    faults.add(Fault::new(Operation::Get, &claim, Effect::Fail));
    let error = log.open().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    faults.clear();
    let error = log.append(&[released(2)]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert_eq!(log.open().await.unwrap().updates.len(), 1);
    log.append(&[released(2)]).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn log_that_was_taken_over_is_not_taken_back() {
    let store = Store::open("memory:///").unwrap();
    let object = || ObjectPlanLog::new(store.clone(), Env::default());
    let memory = MemoryPlanLog::default();
    let pairs: [[Box<dyn PlanLog>; 2]; 2] = [
        [Box::new(object()), Box::new(object())],
        [Box::new(memory.clone()), Box::new(memory)],
    ];
    for [mut old, mut new] in pairs {
        old.open().await.unwrap();
        old.open().await.unwrap();
        new.open().await.unwrap();
        let error = old.open().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
        new.append(&[released(1)]).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn log_that_is_taken_over_during_a_claim_is_not_taken_back() {
    let store = Store::open("memory:///").unwrap();
    let (faulty, faults) = store.clone().with_faults();
    let mut old = ObjectPlanLog::new(faulty, Env::default());
    old.open().await.unwrap();
    faults.add(Fault::new(Operation::Create, layout::META, Effect::Block).times(1));
    let reopened = tokio::spawn(async move { old.open().await });
    while faults.blocked() == 0 {
        tokio::task::yield_now().await;
    }
    let mut new = ObjectPlanLog::new(store, Env::default());
    new.open().await.unwrap();
    faults.release();
    let error = reopened.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    new.append(&[released(1)]).await.unwrap();
}
