//! `compaction-node`, which is also `siltstone node`.

use std::{path::PathBuf, sync::Arc};

use async_trait::async_trait;
use clap::Args;

use tokio_util::sync::CancellationToken;

use super::{
    asked_to_end,
    http::{self, Looked},
    read_config,
};
use crate::{
    clock::Env,
    config::NodeConfig,
    error::Result,
    node::{MetaLink, Node, NodeView},
    rpc::NodesClient,
};

/// Runs compaction tasks that a meta service gives it. SIGTERM drains: running tasks may finish.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Configuration file, TOML. Environment variables SILTSTONE_NODE_… override it, flags override both.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address of a meta service, http://HOST:PORT. Repeat it for more, tried in order.
    #[arg(long, value_name = "ADDRESS")]
    meta: Vec<String>,
    /// Name of the node, unique in the fleet. By default host name and process id.
    #[arg(long)]
    id: Option<String>,
    /// Tasks to run at once. By default the number of cores.
    #[arg(long, value_name = "NUMBER")]
    slots: Option<usize>,
    /// Where to serve /metrics, /healthz and /readyz: HOST:PORT. Without it, nowhere.
    #[arg(long, value_name = "ADDRESS")]
    http: Option<String>,
    /// Store URL under which to work. Repeat it for more; without any the node works anywhere.
    #[arg(long, value_name = "URL")]
    root: Vec<String>,
}

impl Options {
    fn config(self) -> Result<NodeConfig> {
        let (origin, text) = read_config(self.config.as_deref())?;
        let mut config = NodeConfig::from_toml(&origin, &text)?;
        if !self.meta.is_empty() {
            config.meta = self.meta;
        }
        if self.id.is_some() {
            config.id = self.id;
        }
        if let Some(http) = self.http {
            config.http = http;
        }
        if let Some(slots) = self.slots {
            config.slots = slots;
        }
        if !self.root.is_empty() {
            config.roots = self.root;
        }
        config.validate()?;
        Ok(config)
    }
}

/// Works until asked to end. Says on stdout that it is ready, once a meta service has answered.
///
/// # Errors
/// `Invalid` for the configuration; as for [`Node::run`].
pub async fn run(options: Options) -> Result<()> {
    let config = options.config()?;
    let end = asked_to_end()?;
    let link = Arc::new(NodesClient::new(&config.meta)?);
    let http = config.http.clone();
    let node = Node::new(config, link.clone(), Env::default())?;
    let looked = Arc::new(Looker(node.view()));
    // It is of interest until the node has drained.
    let drained = CancellationToken::new();
    http::serve(&http, looked, drained.clone().cancelled_owned()).await?;
    let (id, mut ready) = (node.id().clone(), node.ready());
    let announce = async {
        if ready.wait_for(|ready| *ready).await.is_ok() {
            println!("node {id} ready, meta {}", link.address());
        }
    };
    let (ended, ()) = tokio::join!(node.run(end.cancelled_owned()), announce);
    drained.cancel();
    ended
}

struct Looker(NodeView);

#[async_trait]
impl Looked for Looker {
    async fn publish(&self) -> Result<()> {
        self.0.publish_metrics();
        Ok(())
    }

    async fn check_ready(&self) -> Result<()> {
        self.0.check_ready()
    }
}
