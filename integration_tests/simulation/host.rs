//! A simulated process: its clock, its chance, and its ways to the stores and to meta, which can be cut. A process
//! that is cut for ever is dead: whatever it still does, nobody sees it.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use siltstone::{
    clock::{Clock, Env},
    compaction::remote::{
        Attendance, Fleet, JobService, JobStatus, JobSubmission, Needs, NodePoll, Orders, PollReply,
    },
    config::StoreConfig,
    error::{Error, Result},
    meta::MetaService,
    node::MetaLink,
    store::{
        Operation, Store,
        faulty::{Effect, Fault, Faults, Weather},
    },
    types::JobId,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

const BEGAN_MS: u64 = 1_750_000_000_000;

/// The clock of a host.
struct HostClock {
    began: Instant,
    /// How far its wall clock is ahead of the others'.
    ahead: Duration,
}

impl Clock for HostClock {
    fn unix_ms(&self) -> u64 {
        BEGAN_MS + (self.began.elapsed() + self.ahead).as_millis() as u64
    }

    fn monotonic(&self) -> Duration {
        self.began.elapsed()
    }
}

/// A simulated process.
pub struct Host {
    pub name: String,
    pub env: Env,
    state: Mutex<State>,
    faults: Mutex<Vec<Arc<Faults>>>,
    ended: CancellationToken,
}

struct State {
    weather: Weather,
    is_cut: bool,
    is_cut_from_meta: bool,
}

impl Host {
    /// A process called `name`, of a simulation that began at `began`. What it does follows from `seed`; its
    /// requests do as in `fair` weather.
    pub fn new(name: String, seed: u64, began: Instant, fair: Weather) -> Arc<Self> {
        let ahead = Duration::from_millis(seed % 2_000);
        let clock = Arc::new(HostClock { began, ahead });
        Arc::new(Self {
            name,
            env: Env::seeded(clock, seed),
            state: Mutex::new(State {
                weather: fair,
                is_cut: false,
                is_cut_from_meta: false,
            }),
            faults: Mutex::default(),
            ended: CancellationToken::new(),
        })
    }

    /// The process's way to `store`.
    pub fn store(&self, store: &Store) -> Store {
        let (store, faults) = store.clone().with_faults();
        faults.set_weather(self.weather(), &self.env);
        self.faults.lock().unwrap().push(faults);
        store.with_limits(&StoreConfig::default(), self.env.clone())
    }

    fn weather(&self) -> Weather {
        let state = self.state.lock().unwrap();
        match state.is_cut {
            true => Weather::CUT,
            false => state.weather,
        }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap());
        for faults in self.faults.lock().unwrap().iter() {
            faults.set_weather(self.weather(), &self.env);
        }
    }

    /// What happens to its requests from now on.
    pub fn set_weather(&self, weather: Weather) {
        self.change(|state| state.weather = weather);
    }

    /// Nothing of it reaches anybody, until it is healed.
    pub fn cut(&self) {
        self.change(|state| state.is_cut = true);
    }

    /// It does not reach meta, until it is healed.
    pub fn cut_from_meta(&self) {
        self.change(|state| state.is_cut_from_meta = true);
    }

    /// All its ways are free, unless it is dead.
    pub fn heal(&self) {
        let is_dead = self.is_dead();
        self.change(|state| {
            state.is_cut = is_dead;
            state.is_cut_from_meta = false;
        });
    }

    /// It is gone, for ever: what it still asks is not answered.
    pub fn kill(&self) {
        self.cut();
        self.ended.cancel();
        for faults in self.faults.lock().unwrap().iter() {
            for operation in Operation::ALL {
                faults.add(Fault::new(operation, "", Effect::Block));
            }
        }
    }

    pub fn is_dead(&self) -> bool {
        self.ended.is_cancelled()
    }

    /// Waits until it is dead.
    pub async fn death(&self) {
        self.ended.cancelled().await;
    }

    /// A message on its way to or from meta.
    async fn pass(&self) -> Result<()> {
        if self.is_dead() {
            return std::future::pending().await;
        }
        let (weather, is_cut) = {
            let state = self.state.lock().unwrap();
            (state.weather, state.is_cut || state.is_cut_from_meta)
        };
        let (takes, effect) = weather.meet(&self.env);
        tokio::time::sleep(takes).await;
        match is_cut || effect == Some(Effect::Fail) {
            true => Err(Error::unavailable("the message is lost")),
            false => Ok(()),
        }
    }
}

/// Where meta is.
pub type Exchange = Arc<Mutex<Option<Meta>>>;

/// A meta service and its process.
#[derive(Clone)]
pub struct Meta {
    pub service: Arc<MetaService>,
    pub host: Arc<Host>,
}

/// The way from a host to meta. It keeps to the one it found for as long as that answers.
pub struct Line {
    host: Arc<Host>,
    exchange: Exchange,
    found: Mutex<Option<Meta>>,
}

impl Line {
    pub fn new(host: &Arc<Host>, exchange: &Exchange) -> Self {
        Self {
            host: host.clone(),
            exchange: exchange.clone(),
            found: Mutex::default(),
        }
    }

    async fn call<T, F: Future<Output = Result<T>>>(
        &self,
        call: impl FnOnce(Arc<MetaService>) -> F,
    ) -> Result<T> {
        let meta = {
            let mut found = self.found.lock().unwrap();
            if found.is_none() {
                *found = self.exchange.lock().unwrap().clone();
            }
            found.clone()
        };
        let meta = meta.ok_or_else(|| Error::unavailable("there is no meta"));
        let answer = async {
            self.host.pass().await?;
            let meta = meta?;
            let asking = async {
                meta.host.pass().await?;
                let answer = call(meta.service.clone()).await;
                meta.host.pass().await?;
                answer
            };
            let answer = tokio::select! {
                biased;
                () = meta.host.death() => Err(Error::unavailable("meta is gone")),
                answer = asking => answer,
            };
            self.host.pass().await?;
            answer
        };
        let answer = answer.await;
        if answer.is_err() {
            *self.found.lock().unwrap() = None;
        }
        answer
    }
}

#[async_trait]
impl MetaLink for Line {
    async fn poll(&self, poll: NodePoll, wait: Duration) -> Result<PollReply> {
        self.call(|meta| async move { meta.poll(poll, wait).await })
            .await
    }

    fn address(&self) -> String {
        "meta".into()
    }
}

#[async_trait]
impl JobService for Line {
    async fn submit(&self, job: JobSubmission) -> Result<()> {
        self.call(|meta| async move { meta.submit(job).await })
            .await
    }

    async fn watch(&self, job: JobId, seen: u64, wait: Duration) -> Result<JobStatus> {
        self.call(|meta| async move { meta.watch(job, seen, wait).await })
            .await
    }

    async fn attend(&self, attendance: Attendance, wait: Duration) -> Result<Orders> {
        self.call(|meta| async move { meta.attend(attendance, wait).await })
            .await
    }

    async fn release(&self, job: JobId) -> Result<()> {
        self.call(|meta| async move { meta.release(job).await })
            .await
    }

    async fn fleet(&self, needs: &Needs) -> Result<Fleet> {
        let needs = needs.clone();
        self.call(|meta| async move { meta.fleet(&needs).await })
            .await
    }
}
