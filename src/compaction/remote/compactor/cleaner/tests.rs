//! Cleanup jobs against a scripted meta service, in paused time.

use std::collections::BTreeMap;

use async_trait::async_trait;

use super::*;
use crate::{
    clock::Env,
    compaction::{
        Attempt,
        cleanup::clean,
        remote::{self, JobBody, JobService, JobStatus},
    },
    config::RemoteConfig,
    node::fake::memory,
    store::{Store, layout},
    types::{SstId, Token},
};

/// What a scripted fleet does with jobs.
#[derive(Clone, Debug, Default)]
enum Fleet {
    /// Runs them.
    #[default]
    Works,
    /// It has no nodes.
    Empty,
    /// It is not there.
    Away,
    /// Its queue is full.
    Full,
    /// Its nodes are busy.
    Busy,
    /// Says that tasks have come to this.
    Says(TaskState),
}

struct Script {
    store: Store,
    fleet: Mutex<Fleet>,
    submitted: Mutex<Vec<JobSubmission>>,
    states: Mutex<BTreeMap<JobId, TaskState>>,
    released: Mutex<Vec<JobId>>,
    /// Jobs that were submitted and not released, at most.
    outstanding_max: Mutex<usize>,
    forget: Mutex<bool>,
}

#[async_trait]
impl JobService for Script {
    async fn submit(&self, job: JobSubmission) -> Result<()> {
        let fleet = self.fleet();
        self.submitted.lock().unwrap().push(job.clone());
        let state = match fleet {
            Fleet::Away => return Err(Error::unavailable("scripted")),
            Fleet::Full => return Err(Error::too_large("scripted")),
            Fleet::Empty | Fleet::Busy => TaskState::Queued,
            Fleet::Says(state) => state,
            Fleet::Works => {
                // All that are submitted together are outstanding together.
                tokio::time::sleep(Duration::from_millis(10)).await;
                let JobBody::Cleanup(cleanup) = JobBody::decode(&job.body)? else {
                    return Err(Error::invalid("not a cleanup job"));
                };
                let attempt = Attempt::new(Token(1), "n".into());
                clean(&cleanup, &attempt, &self.store).await?;
                TaskState::Done { node: "n".into() }
            }
        };
        let mut states = self.states.lock().unwrap();
        states.insert(job.job, state);
        let mut max = self.outstanding_max.lock().unwrap();
        *max = states.len().max(*max);
        Ok(())
    }

    async fn watch(&self, job: JobId, seen: u64, wait: Duration) -> Result<JobStatus> {
        if std::mem::take(&mut *self.forget.lock().unwrap()) {
            self.states.lock().unwrap().remove(&job);
        }
        if seen > 0 {
            tokio::time::sleep(wait).await;
        }
        let fleet = self.fleet();
        if matches!(fleet, Fleet::Away) {
            return Err(Error::unavailable("scripted"));
        }
        let state = self.states.lock().unwrap().get(&job).cloned();
        let state = state.ok_or_else(|| Error::not_found("scripted"))?;
        Ok(JobStatus {
            revision: 1,
            tasks: vec![(0, state)],
            jobs_window: 8,
            nodes: u32::from(!matches!(fleet, Fleet::Empty)),
        })
    }

    async fn attend(
        &self,
        _attendance: remote::Attendance,
        _wait: Duration,
    ) -> Result<remote::Orders> {
        std::future::pending().await
    }

    async fn release(&self, job: JobId) -> Result<()> {
        self.states.lock().unwrap().remove(&job);
        self.released.lock().unwrap().push(job);
        Ok(())
    }

    async fn fleet(&self, _needs: &Needs) -> Result<remote::Fleet> {
        Ok(remote::Fleet::default())
    }
}

impl Script {
    fn fleet(&self) -> Fleet {
        self.fleet.lock().unwrap().clone()
    }

    fn submitted(&self) -> Vec<JobSubmission> {
        self.submitted.lock().unwrap().clone()
    }
}

struct Fixture {
    script: Arc<Script>,
    compactor: RemoteCompactor,
}

/// An environment whose clock goes with tokio's.
fn env() -> Env {
    Env::following_tokio(Duration::from_millis(10))
}

fn fixture(fleet: Fleet) -> Fixture {
    let store = memory();
    let script = Arc::new(Script {
        store: store.clone(),
        fleet: Mutex::new(fleet),
        submitted: Mutex::default(),
        states: Mutex::default(),
        released: Mutex::default(),
        outstanding_max: Mutex::default(),
        forget: Mutex::default(),
    });
    let config = RemoteConfig::default();
    let compactor = RemoteCompactor::new(script.clone(), store, "o".into(), config, env());
    Fixture { script, compactor }
}

fn names(objects: u128) -> Vec<String> {
    let sst = |number| layout::sst(table(), SstId::flushed(1, number));
    (0..objects).map(sst).collect()
}

fn table() -> TableId {
    TableId::from_parts(1, 1)
}

impl Fixture {
    async fn delete(&self, names: &[String]) -> Vec<Deletion> {
        self.compactor.delete_by_nodes(table(), names).await
    }

    /// Why three objects are left to the engine, if they are, and after what time.
    async fn left(&self) -> (Option<&'static str>, Duration) {
        let began = tokio::time::Instant::now();
        let deletions = self.delete(&names(3)).await;
        assert_eq!(deletions.len(), 3);
        let reasons: Vec<_> = deletions
            .iter()
            .map(|deletion| match deletion {
                Deletion::Left(reason) => Some(*reason),
                _ => None,
            })
            .collect();
        assert!(reasons.iter().all(|reason| *reason == reasons[0]));
        (reasons[0], began.elapsed())
    }

    async fn all_released(&self) {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let submitted = self.script.submitted();
        let mut jobs: Vec<JobId> = submitted.iter().map(|job| job.job).collect();
        jobs.sort();
        jobs.dedup();
        let mut released = self.script.released.lock().unwrap().clone();
        released.sort();
        assert_eq!(released, jobs);
    }
}

#[tokio::test(start_paused = true)]
async fn nodes_delete_in_bounded_jobs_and_nothing_is_left_of_them() {
    let f = fixture(Fleet::Works);
    let names = names(10 * NAMES_MAX as u128 + 1);
    for name in &names {
        f.script.store.put(name, "x".into()).await.unwrap();
    }
    let deletions = f.delete(&names).await;
    assert_eq!(deletions.len(), names.len());
    let is_confirmed = |deletion: &Deletion| matches!(deletion, Deletion::Confirmed);
    assert!(deletions.iter().all(is_confirmed));
    assert_eq!(f.script.store.list("").await.unwrap(), []);
    f.all_released().await;
    assert!(*f.script.outstanding_max.lock().unwrap() <= JOBS_MAX);
    let mut asked = Vec::new();
    for job in f.script.submitted() {
        assert_eq!(job.pressure.class, JobClass::Cleanup);
        assert_eq!(job.needs.capabilities, [CLEANUP_CAPABILITY]);
        assert_eq!((job.tasks.len(), job.table), (1, table()));
        let JobBody::Cleanup(body) = JobBody::decode(&job.body).unwrap() else {
            panic!("not a cleanup job");
        };
        let objects = body.names.len();
        assert!(objects <= NAMES_MAX && job.label.contains(&format!("delete {objects} object")));
        asked.extend(body.names.clone());
    }
    asked.sort();
    let mut names = names;
    names.sort();
    assert_eq!(asked, names, "each is asked for once");
}

#[tokio::test(start_paused = true)]
async fn without_nodes_the_engine_deletes_at_once() {
    let f = fixture(Fleet::Empty);
    let (reason, waited) = f.left().await;
    assert_eq!(reason, Some("no nodes"));
    assert!(waited < Duration::from_secs(1), "{waited:?}");
    f.all_released().await;
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_waited_for_once_and_not_by_each_job() {
    for (fleet, reason) in [(Fleet::Away, "unavailable"), (Fleet::Full, "too large")] {
        let f = fixture(fleet.clone());
        let after = f.compactor.config.fallback_after.duration();
        let (left, waited) = f.left().await;
        assert_eq!(left, Some(reason));
        assert!(waited >= after && waited < after * 2, "{waited:?}");
        let (left, waited) = f.left().await;
        assert_eq!(left, Some(reason));
        assert!(waited < Duration::from_secs(1), "{waited:?}");
        // It is back; the next outage is another one.
        *f.script.fleet.lock().unwrap() = Fleet::Works;
        assert_eq!(f.left().await.0, None);
        *f.script.fleet.lock().unwrap() = fleet;
        assert!(f.left().await.1 >= after);
        f.all_released().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_short_outage_is_waited_out() {
    let f = fixture(Fleet::Away);
    let (left, ()) = tokio::join!(f.left(), async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        *f.script.fleet.lock().unwrap() = Fleet::Works;
    });
    assert_eq!(left.0, None);
    // While it ran, meta forgot it: it is submitted again.
    *f.script.forget.lock().unwrap() = true;
    assert_eq!(f.left().await.0, None);
    f.all_released().await;
}

#[tokio::test(start_paused = true)]
async fn what_nodes_cannot_or_do_not_come_to_is_left() {
    let failed = TaskState::Failed {
        kind: ErrorKind::Invalid,
        message: "store \"x\" lies under none of this node's roots".into(),
    };
    let f = fixture(Fleet::Says(failed));
    assert_eq!(f.left().await.0, Some("failed"));
    *f.script.fleet.lock().unwrap() = Fleet::Busy;
    let (reason, waited) = f.left().await;
    assert_eq!(reason, Some("overdue"));
    let patience = Pressure {
        class: JobClass::Cleanup,
        score: 0,
    };
    // By then it had its turn, if there were any.
    assert!(waited.as_millis() > patience.patience_ms().into());
    assert!(waited < OVERDUE + Duration::from_secs(10), "{waited:?}");
    // The next does not wait as long, until a node has room.
    let (reason, waited) = f.left().await;
    assert_eq!(reason, Some("overdue"));
    assert!(waited < SOON * 2, "{waited:?}");
    *f.script.fleet.lock().unwrap() = Fleet::Works;
    assert_eq!(f.left().await.0, None);
    *f.script.fleet.lock().unwrap() = Fleet::Busy;
    assert!(f.left().await.1 > OVERDUE / 2);
    f.all_released().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_not_confirmed_is_not_deleted() {
    let cancelled = TaskState::Cancelled {
        reason: "an operator cancelled it".into(),
    };
    let done = TaskState::Done { node: "n".into() };
    for (state, kind) in [
        (cancelled, ErrorKind::Conflict),
        // Nobody has written a result.
        (done, ErrorKind::Internal),
    ] {
        let f = fixture(Fleet::Says(state));
        for deletion in f.delete(&names(3)).await {
            let Deletion::Failed(error) = deletion else {
                panic!("{deletion:?}");
            };
            assert_eq!(error.kind(), kind);
        }
        f.all_released().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_damaged_result_is_no_confirmation_and_does_not_stay() {
    let f = fixture(Fleet::Busy);
    let names = names(2);
    let (deletions, ()) = tokio::join!(f.delete(&names), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let job = f.script.submitted()[0].job;
        let task = crate::types::TaskId { job, index: 0 };
        let name = layout::result(table(), task, 0);
        f.script.store.put(&name, "nonsense".into()).await.unwrap();
        let done = TaskState::Done { node: "n".into() };
        f.script.states.lock().unwrap().insert(job, done);
    });
    for deletion in deletions {
        let Deletion::Failed(error) = deletion else {
            panic!("{deletion:?}");
        };
        assert_eq!(error.kind(), ErrorKind::Corrupt);
    }
    assert_eq!(f.script.store.list("").await.unwrap(), []);
}

#[tokio::test(start_paused = true)]
async fn who_stops_waiting_releases_the_jobs() {
    let f = fixture(Fleet::Busy);
    let names = names(3);
    let waited = tokio::time::timeout(Duration::from_secs(60), f.delete(&names)).await;
    assert!(waited.is_err());
    f.all_released().await;
}
