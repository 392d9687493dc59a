//! For tests: two sides that only count, and a meta service that says what it is told to.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use tokio::sync::Semaphore;

use crate::{
    compaction::{
        Capacity, CompactionContext, CompactionJob, CompactionOutcome, Compactor, Share,
        TaskOutcome,
        remote::{Attendance, Fleet, JobService, JobStatus, JobSubmission, Needs, Orders},
    },
    error::{Error, Result},
    types::{JobId, NodeId, RowSum, Token},
};

pub(super) const MIB: u64 = 1 << 20;

/// A side that counts jobs, and ends each when it is told to.
pub(super) struct Counting {
    node: &'static str,
    jobs_max: usize,
    pub(super) running: AtomicUsize,
    shares: Mutex<Vec<Share>>,
    /// Each job takes one.
    endings: Semaphore,
    /// How fast its tasks say that they were, in MiB a second.
    pub(super) mib_per_second: AtomicUsize,
    pub(super) fails: Mutex<Option<Error>>,
}

impl Counting {
    pub(super) fn new(node: &'static str, jobs_max: usize) -> Arc<Self> {
        Arc::new(Self {
            node,
            jobs_max,
            running: AtomicUsize::new(0),
            shares: Mutex::default(),
            endings: Semaphore::new(Semaphore::MAX_PERMITS),
            mib_per_second: AtomicUsize::new(32),
            fails: Mutex::default(),
        })
    }

    /// Jobs stay from now on, until [`Counting::end_one`].
    pub(super) fn hold(&self) {
        self.endings.forget_permits(usize::MAX);
    }

    pub(super) fn end_one(&self) {
        self.endings.add_permits(1);
    }

    pub(super) fn jobs(&self) -> usize {
        self.shares.lock().unwrap().len()
    }
}

struct Running<'a>(&'a AtomicUsize);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[async_trait]
impl Compactor for Counting {
    async fn compact(
        &self,
        job: Arc<CompactionJob>,
        context: CompactionContext,
    ) -> Result<CompactionOutcome> {
        self.running.fetch_add(1, Ordering::Relaxed);
        let _running = Running(&self.running);
        self.shares.lock().unwrap().push(context.share.clone());
        self.endings.acquire().await.unwrap().forget();
        if let Some(error) = self.fails.lock().unwrap().clone() {
            return Err(error);
        }
        let tasks = job.planned_tasks();
        let tasks: Vec<_> = tasks.filter(|task| context.share.has(task)).collect();
        let bytes = job.input_bytes() / job.tasks.len() as u64;
        let per_second = self.mib_per_second.load(Ordering::Relaxed) as u64 * MIB;
        let none = RowSum::default();
        let parts = tasks.into_iter().map(|task| TaskOutcome {
            task: task.id,
            part: 0,
            range: task.range,
            token: Token(1),
            node: NodeId::from(self.node),
            outputs: vec![],
            read: none,
            written: none,
            shadowed: none,
            deleted: none,
            combined: none,
            expired: none,
            range_deleted: none,
            bytes_read: bytes,
            elapsed_ms: bytes * 1000 / per_second,
        });
        Ok(CompactionOutcome {
            parts: parts.collect(),
            splits: vec![],
        })
    }

    fn capacity(&self) -> Capacity {
        let running = self.running.load(Ordering::Relaxed);
        Capacity {
            jobs: self.jobs_max.saturating_sub(running),
        }
    }

    fn kind(&self) -> &'static str {
        "counting"
    }
}

/// A meta service that says what there is, or nothing at all.
#[derive(Default)]
pub(super) struct Meta {
    /// `None`: it cannot be reached.
    pub(super) fleet: Mutex<Option<Fleet>>,
    pub(super) asked: AtomicUsize,
    pub(super) is_silent: AtomicBool,
    pub(super) released: Mutex<Vec<JobId>>,
}

#[async_trait]
impl JobService for Meta {
    async fn submit(&self, _job: JobSubmission) -> Result<()> {
        Ok(())
    }

    async fn watch(&self, job: JobId, _seen: u64, _wait: Duration) -> Result<JobStatus> {
        Err(Error::not_found(job.to_string()))
    }

    async fn attend(&self, _attendance: Attendance, _wait: Duration) -> Result<Orders> {
        std::future::pending().await
    }

    async fn release(&self, job: JobId) -> Result<()> {
        self.released.lock().unwrap().push(job);
        Ok(())
    }

    async fn fleet(&self, _needs: &Needs) -> Result<Fleet> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        if self.is_silent.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        let fleet = *self.fleet.lock().unwrap();
        fleet.ok_or_else(|| Error::unavailable("scripted"))
    }
}
