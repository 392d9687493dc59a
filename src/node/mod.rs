//! A compaction node: runs tasks that the meta service gives it. It keeps nothing that matters: results
//! are objects, and what it loses meta gives to another.
//!
//! [`Node`] polls through a [`MetaLink`] and runs tasks with a [`TaskRunner`]; `held` is what it holds,
//! `stores` which roots it works under.

#[cfg(test)]
pub(crate) mod fake;
mod held;
mod memory;
mod run;
mod runner;
mod stats;
mod stores;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio::{runtime::Handle, sync::watch};

pub use runner::TaskRunner;
pub use stats::{NodeStats, NodeView};
pub use stores::Stores;

use stats::Counters;

use crate::{
    clock::Env,
    compaction::remote::{
        CAPABILITY, CLEANUP_CAPABILITY, KEEPS_JOBS, NodeFacts, NodePoll, PollReply, host_name,
    },
    config::NodeConfig,
    error::Result,
    sst::SstCache,
    store::Store,
    types::NodeId,
};

/// Footers that a node keeps, beside the memory for its tasks: this share of that, and no more than so many bytes.
const FOOTERS_SHARE: u64 = 32;
const FOOTERS_BYTES_MAX: u64 = 128 << 20;

/// The meta service as a node sees it.
#[async_trait]
pub trait MetaLink: Send + Sync + 'static {
    /// One poll: answered when there is something to say, or after about `wait`. May be dropped at any
    /// time; what its answer would have said is said again.
    ///
    /// # Errors
    /// `Fenced` while another process with the node's id, started since, is alive; `Unavailable`.
    async fn poll(&self, poll: NodePoll, wait: Duration) -> Result<PollReply>;

    /// Where the last answer came from, for logs.
    fn address(&self) -> String;
}

/// A compaction node, to be [`run`](Node::run).
pub struct Node {
    config: NodeConfig,
    facts: NodeFacts,
    link: Arc<dyn MetaLink>,
    stores: Stores,
    runner: Option<Arc<dyn TaskRunner>>,
    runtime: Option<Handle>,
    env: Env,
    ready: watch::Sender<bool>,
    counters: Arc<Counters>,
    /// Of what its tasks merge: those that follow often read the same.
    footers: SstCache,
}

impl Node {
    /// A node as `config` describes it. Its id is by default `<host name>-<process id>`.
    ///
    /// # Errors
    /// `Invalid`, listing the faults of the configuration.
    pub fn new(config: NodeConfig, link: Arc<dyn MetaLink>, env: Env) -> Result<Self> {
        config.validate()?;
        let stores = Stores::new(&config.roots, config.store.clone())?;
        let host = host_name();
        let id = match &config.id {
            Some(id) => id.clone(),
            None => format!("{host}-{}", std::process::id()),
        };
        let facts = NodeFacts {
            id: NodeId(id),
            // Led by the time, so that a later process has a greater one.
            session: (env.unix_ms() << 16) | (env.random() & 0xffff) as u64,
            host,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            capabilities: [CAPABILITY, CLEANUP_CAPABILITY, KEEPS_JOBS]
                .map(str::to_owned)
                .into(),
            slots: u32::try_from(config.slots).unwrap_or(u32::MAX),
            memory_bytes: config.memory.unwrap_or_else(memory::found).0,
            pool: config.pool.clone(),
            zone: config.zone.clone(),
        };
        let footers =
            SstCache::of_opened((facts.memory_bytes / FOOTERS_SHARE).min(FOOTERS_BYTES_MAX));
        Ok(Self {
            footers,
            config,
            facts,
            link,
            stores,
            runner: None,
            runtime: None,
            env,
            ready: watch::Sender::new(false),
            counters: Arc::default(),
        })
    }

    /// The same with a store for the root at `url`, for a node in the process that holds the store: the
    /// only way to work under `memory:///`.
    #[must_use]
    pub fn with_store(self, url: &str, store: Store) -> Self {
        self.stores.insert(url, store);
        self
    }

    /// The same with tasks run by `runner`, for tests.
    #[must_use]
    pub fn with_runner(mut self, runner: Arc<dyn TaskRunner>) -> Self {
        self.runner = Some(runner);
        self
    }

    /// The same with tasks on `runtime`, instead of on one of the node's own.
    #[must_use]
    pub fn with_runtime(mut self, runtime: Handle) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// Its id.
    pub fn id(&self) -> &NodeId {
        &self.facts.id
    }

    /// The node in numbers, for whoever looks while it runs.
    pub fn view(&self) -> NodeView {
        let facts = &self.facts;
        let room = (facts.slots.into(), facts.memory_bytes);
        let (counters, footers) = (self.counters.clone(), self.footers.clone());
        NodeView::new(&facts.id.0, room, (counters, footers), self.env.clone())
    }

    /// Becomes true once meta has answered for the first time.
    pub fn ready(&self) -> watch::Receiver<bool> {
        self.ready.subscribe()
    }
}
