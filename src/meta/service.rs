//! The meta service as its callers hold it: every call is a message to the core and its answer.

use std::{
    future::Future,
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use async_trait::async_trait;
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinHandle,
};
use tokio_util::sync::CancellationToken;
use tracing::error;

use super::{
    admin::{Explanation, JobInfo, Listing, NodeInfo, OwnerInfo, QuarantineInfo, Wish},
    core::{Answer, Command, Core, Look, Watcher},
    plan_log::PlanLog,
    publish,
    state::{Limits, Request},
    stats::MetaStats,
};
use crate::{
    clock::Env,
    compaction::remote::{
        Attendance, Fleet, JobService, JobStatus, JobSubmission, Needs, NodePoll, Orders, PollReply,
    },
    config::MetaConfig,
    error::{Error, ErrorKind, Result},
    metrics::{self, Publisher},
    types::{JobId, NodeId, TaskId},
};

/// Longest wait of a watch.
const WATCH_WAIT_MAX: Duration = Duration::from_secs(60);
/// Calls that may wait for the core's next round.
const CALLS_MAX: usize = 4096;

/// A running meta service. Dropping the last handle stops it; [`close`](Self::close) also waits for it.
#[derive(Debug)]
pub struct MetaService {
    commands: mpsc::Sender<Command>,
    log_answers: watch::Receiver<bool>,
    env: Env,
    lease: Duration,
    stop: CancellationToken,
    ended: CancellationToken,
    end: Arc<OnceLock<Result<()>>>,
    core: tokio::sync::Mutex<Option<JoinHandle<()>>>,
    publisher: Mutex<Publisher>,
}

impl MetaService {
    /// Takes over `log`, replays it, and starts. Running tasks have a lease's time to come back.
    ///
    /// # Errors
    /// `Invalid` for a bad configuration; `Corrupt` names the damaged record; `Unavailable`.
    pub async fn open(config: MetaConfig, log: Box<dyn PlanLog>, env: Env) -> Result<Arc<Self>> {
        config.validate()?;
        let limits = Limits::from(&config);
        let core = Core::open(limits, log, env.clone()).await?;
        let log_answers = core.log_answers();
        let (commands, receiver) = mpsc::channel(CALLS_MAX);
        let (stop, ended) = (CancellationToken::new(), CancellationToken::new());
        let end = Arc::new(OnceLock::new());
        let task = {
            let (stop, end, ended) = (stop.clone(), end.clone(), ended.clone().drop_guard());
            async move {
                let result = core.run(receiver, stop).await;
                if let Err(error) = &result {
                    error!(%error, "meta service ends");
                }
                drop(end.set(result));
                drop(ended);
            }
        };
        Ok(Arc::new(Self {
            commands,
            log_answers,
            env,
            lease: limits.lease,
            stop,
            ended,
            end,
            core: tokio::sync::Mutex::new(Some(tokio::spawn(task))),
            publisher: Mutex::new(Publisher::new(metrics::META, ("service", "meta"))),
        }))
    }

    /// Serves until `shutdown`, then closes.
    ///
    /// # Errors
    /// `Fenced` when another meta service has taken over the log; what else made the log useless.
    pub async fn run(&self, shutdown: impl Future<Output = ()>) -> Result<()> {
        tokio::select! {
            biased;
            () = shutdown => {}
            () = self.ended.cancelled() => {}
        }
        self.close().await
    }

    /// Stops, and waits until it has. From then on every call answers `Unavailable`.
    ///
    /// # Errors
    /// As for [`Self::run`], when it had ended before.
    pub async fn close(&self) -> Result<()> {
        self.stop.cancel();
        if let Some(core) = self.core.lock().await.take() {
            core.await
                .map_err(|error| Error::internal("meta service panicked").with_source(error))?;
        }
        self.end.get().cloned().unwrap_or(Ok(()))
    }

    /// A node's long poll: answered when there is something to say, or after `wait`, which is cut to a
    /// third of a lease.
    ///
    /// # Errors
    /// `Fenced` while another process with the node's id, started since, is alive; `Conflict` when a newer poll of
    /// the node has come; `Unavailable`.
    pub async fn poll(&self, poll: NodePoll, wait: Duration) -> Result<PollReply> {
        let wait = wait.min(self.lease / 3);
        self.call(|answer| Command::Poll(poll, wait, answer)).await
    }

    /// The nodes that have polled, by id.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn nodes(&self) -> Result<Vec<NodeInfo>> {
        self.read(Core::nodes).await
    }

    /// The same, as soon as the revision is another than `seen`, or after `wait` as it then is.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn watch_nodes(&self, seen: u64, wait: Duration) -> Result<Listing<NodeInfo>> {
        self.list(seen, wait, Core::nodes).await
    }

    /// The jobs, in the order of submission. Those of an engine that has vanished are dropped once nobody
    /// has watched them for an hour.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn jobs(&self) -> Result<Vec<JobInfo>> {
        self.read(Core::jobs).await
    }

    /// The same, as soon as the revision is another than `seen`, or after `wait` as it then is.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn watch_jobs(&self, seen: u64, wait: Duration) -> Result<Listing<JobInfo>> {
        self.list(seen, wait, Core::jobs).await
    }

    /// The owners that have jobs or an engine, or for which something is set, by name.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn owners(&self) -> Result<Vec<OwnerInfo>> {
        self.read(Core::owners).await
    }

    /// The same, as soon as the revision is another than `seen`, or after `wait` as it then is.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn watch_owners(&self, seen: u64, wait: Duration) -> Result<Listing<OwnerInfo>> {
        self.list(seen, wait, Core::owners).await
    }

    /// The engines that leave SSTs alone because jobs with them failed, and these SSTs, by owner. As soon as the revision
    /// is another than `seen`, or after `wait` as it then is.
    ///
    /// # Errors
    /// `Unavailable`.
    pub async fn watch_quarantine(
        &self,
        seen: u64,
        wait: Duration,
    ) -> Result<Listing<QuarantineInfo>> {
        self.list(seen, wait, Core::quarantine).await
    }

    /// What it has now, and what has happened since it was opened, in numbers.
    ///
    /// # Errors
    /// `Unavailable` once it has ended.
    pub async fn stats(&self) -> Result<MetaStats> {
        self.call(Command::Stats).await
    }

    /// Tells the recorder of the `metrics` facade that is installed what has changed since the last call.
    ///
    /// # Errors
    /// As for [`Self::stats`]; then it is told nothing.
    pub async fn publish_metrics(&self) -> Result<()> {
        let samples = publish::samples(&self.stats().await?);
        let publisher = self.publisher.lock();
        publisher
            .expect("no panic under this lock")
            .publish(samples);
        Ok(())
    }

    /// Whether the plan log answers: while it does not, nothing is given out. Ends with the service.
    pub fn log_answers(&self) -> watch::Receiver<bool> {
        self.log_answers.clone()
    }

    /// Why a task is where it is.
    ///
    /// # Errors
    /// `NotFound` when it is not known; `Unavailable`.
    pub async fn explain(&self, task: TaskId) -> Result<Explanation> {
        self.read(move |core: &Core| core.explain(task)).await?
    }

    /// Carries out what an operator wishes.
    ///
    /// # Errors
    /// `NotFound` when there is nothing that it concerns; `Unavailable`, also when an engine has not done yet what it is
    /// to do.
    pub async fn steer(&self, wish: Wish) -> Result<()> {
        self.change(match wish {
            Wish::RetryQuarantined { owner, table } => {
                let order = |answer| Command::RetryQuarantined(owner, table, answer);
                return self.call(order).await;
            }
            Wish::Cancel(target) => Request::Cancel(target),
            Wish::Retry(target) => Request::Retry(target),
            Wish::Raise(target) => Request::Raise(target),
            Wish::Set(setting) => Request::Set(setting),
        })
        .await
    }

    /// Has a node end as soon as its tasks have.
    ///
    /// # Errors
    /// `NotFound` when no such node polls; `Unavailable`.
    pub async fn drain(&self, node: NodeId) -> Result<()> {
        self.call(|answer| Command::Drain(node, answer)).await
    }

    async fn read<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Core) -> T + Send + 'static,
    ) -> Result<T> {
        self.look(0, Duration::ZERO, look).await
    }

    async fn list<T: Send + 'static>(
        &self,
        seen: u64,
        wait: Duration,
        list: impl FnOnce(&Core) -> Vec<T> + Send + 'static,
    ) -> Result<Listing<T>> {
        let look = |core: &Core| Listing {
            revision: core.revision(),
            items: list(core),
        };
        self.look(seen, wait, look).await
    }

    async fn look<T: Send + 'static>(
        &self,
        seen: u64,
        wait: Duration,
        look: impl FnOnce(&Core) -> T + Send + 'static,
    ) -> Result<T> {
        let until = self.env.monotonic() + wait.min(WATCH_WAIT_MAX);
        self.call(|answer: Answer<T>| {
            Command::Look(Look {
                seen,
                until,
                read: Box::new(move |core| drop(answer.send(core.map(look)))),
            })
        })
        .await
    }

    async fn change(&self, request: Request) -> Result<()> {
        self.call(|answer| Command::Change(request, answer)).await
    }

    async fn call<T>(&self, command: impl FnOnce(Answer<T>) -> Command) -> Result<T> {
        let (answer, answered) = oneshot::channel();
        if self.commands.send(command(answer)).await.is_err() {
            return Err(self.ended_error());
        }
        answered.await.unwrap_or_else(|_| Err(self.ended_error()))
    }

    fn ended_error(&self) -> Error {
        match self.end.get() {
            Some(Err(error)) if error.kind() == ErrorKind::Fenced => {
                Error::unavailable("another meta service has taken over").with_source(error.clone())
            }
            Some(Err(error)) => {
                Error::unavailable("meta service has failed").with_source(error.clone())
            }
            _ => Error::unavailable("meta service is shut down"),
        }
    }
}

#[async_trait]
impl JobService for MetaService {
    async fn submit(&self, job: JobSubmission) -> Result<()> {
        self.change(Request::Submit(Arc::new(job))).await
    }

    async fn watch(&self, job: JobId, seen: u64, wait: Duration) -> Result<JobStatus> {
        let until = self.env.monotonic() + wait.min(WATCH_WAIT_MAX);
        self.call(|answer| {
            Command::Watch(Watcher {
                job,
                seen,
                until,
                answer,
            })
        })
        .await
    }

    async fn attend(&self, attendance: Attendance, wait: Duration) -> Result<Orders> {
        self.call(|answer| Command::Attend(attendance, wait, answer))
            .await
    }

    async fn release(&self, job: JobId) -> Result<()> {
        self.change(Request::Release(job)).await
    }

    async fn fleet(&self, needs: &Needs) -> Result<Fleet> {
        let needs = needs.clone();
        self.read(move |core: &Core| core.fleet_for(&needs)).await
    }
}
