//! What a compaction node can be told.

use serde::Deserialize;

use super::{Bytes, Faults, Millis, StoreConfig, load};
use crate::error::Result;

/// Configuration of a compaction node.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodeConfig {
    /// Addresses of meta services, tried in order. All must share one plan log, and only one of them serves
    /// at a time: metas with logs of their own split the fleet. Default: `["http://127.0.0.1:7400"]`.
    pub meta: Vec<String>,
    /// The node's name, unique in the fleet. Default: `<host name>-<process id>`.
    pub id: Option<String>,
    /// Tasks to run at once. Default: the number of cores.
    pub slots: usize,
    /// Memory for the tasks together. The node is given no more than fits, by what engines estimate for each.
    /// Default: three quarters of what the process's control group allows, or else of the machine's.
    pub memory: Option<Bytes>,
    /// The pool that the node is of, for engines that ask for one: `"large"`. Default: none.
    pub pool: String,
    /// Where the node is: among equal nodes, engines get one in their own zone. Default: nowhere.
    pub zone: String,
    /// Store URLs under which the node works; a task elsewhere is refused. A local directory must be
    /// there: a node creates no roots. Default: empty, for anywhere.
    pub roots: Vec<String>,
    /// Where `compaction-node` serves `/metrics`, `/healthz` and `/readyz` over HTTP. Port 0 picks a free one.
    /// Default: nowhere.
    pub http: String,
    /// On SIGTERM, how long running tasks may take to finish. Default: `"30s"`.
    pub drain_timeout: Millis,
    /// Requests to each object store.
    pub store: StoreConfig,
}

impl Default for NodeConfig {
    fn default() -> Self {
        Self {
            meta: vec!["http://127.0.0.1:7400".into()],
            id: None,
            slots: std::thread::available_parallelism().map_or(1, usize::from),
            memory: None,
            pool: String::new(),
            zone: String::new(),
            roots: Vec::new(),
            http: String::new(),
            drain_timeout: Millis::secs(30),
            store: StoreConfig::default(),
        }
    }
}

impl NodeConfig {
    /// Reads TOML `text`, overlaid by the process's `SILTSTONE_NODE_…` environment variables, and validates it.
    ///
    /// # Errors
    /// `Invalid`, naming origin and key.
    pub fn from_toml(origin: &str, text: &str) -> Result<Self> {
        let config: Self = load::parse(origin, text, load::NODE_ENV_PREFIX, std::env::vars())?;
        config.validate()?;
        Ok(config)
    }

    /// Checks what the types cannot.
    ///
    /// # Errors
    /// `Invalid`, listing every fault.
    pub fn validate(&self) -> Result<()> {
        let mut faults = Faults::default();
        faults.check(!self.meta.is_empty(), || "meta has no address".into());
        faults.check(self.slots > 0, || "slots is 0".into());
        if let Some(memory) = self.memory {
            faults.check(memory >= Bytes::mib(64), || {
                format!("memory {memory} is less than 64 MiB")
            });
        }
        faults.check(self.id.as_ref().is_none_or(|id| !id.is_empty()), || {
            "id is empty".into()
        });
        self.store.check(&mut faults);
        faults.into_result()
    }
}
