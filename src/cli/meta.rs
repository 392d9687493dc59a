//! `compaction-meta`, which is also `siltstone meta`.

use std::{path::PathBuf, sync::Arc, time::Duration};

use async_trait::async_trait;

use clap::Args;
use tokio::net::TcpListener;

use super::{
    asked_to_end,
    http::{self, Looked},
    read_config,
};
use crate::{
    clock::Env,
    config::{MetaConfig, Millis},
    error::{Error, Result},
    meta::{MetaService, open_plan_log},
    rpc,
};

/// Takes compaction jobs from databases and shares their tasks out among compaction nodes.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Configuration file, TOML. Environment variables SILTSTONE_META_… override it, flags override both.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where to listen: HOST:PORT. Port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Where to serve /metrics, /healthz and /readyz: HOST:PORT. Without it, nowhere.
    #[arg(long, value_name = "ADDRESS")]
    http: Option<String>,
    /// Root that keeps the plan log, or memory:/// to keep it in memory.
    #[arg(long, value_name = "URL")]
    plan_log: Option<String>,
    /// How long a node may be silent before its tasks go to others, such as 10s.
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    lease: Option<Duration>,
}

impl Options {
    fn config(self) -> Result<MetaConfig> {
        let (origin, text) = read_config(self.config.as_deref())?;
        let mut config = MetaConfig::from_toml(&origin, &text)?;
        if let Some(listen) = self.listen {
            config.listen = listen;
        }
        if let Some(http) = self.http {
            config.http = http;
        }
        if let Some(plan_log) = self.plan_log {
            config.plan_log = plan_log;
        }
        if let Some(lease) = self.lease {
            config.lease = Millis(lease.as_millis() as u64);
            config.stall_timeout = config.stall_timeout.max(config.lease);
        }
        config.validate()?;
        Ok(config)
    }
}

/// Serves until asked to end. Says on stdout where it listens, once it does.
///
/// # Errors
/// `Invalid` for the configuration; as for [`rpc::serve`].
pub async fn run(options: Options) -> Result<()> {
    let config = options.config()?;
    let end = asked_to_end()?;
    let cannot =
        |error| Error::invalid(format!("cannot listen on {:?}", config.listen)).with_source(error);
    let listener = TcpListener::bind(&config.listen).await.map_err(cannot)?;
    let address = listener.local_addr().map_err(cannot)?;
    let env = Env::default();
    let log = open_plan_log(&config.plan_log, env.clone())?;
    let http = config.http.clone();
    let service = MetaService::open(config, log, env).await?;
    println!("listening on http://{address}");
    let looked = Arc::new(Meta(service.clone()));
    http::serve(&http, looked, end.clone().cancelled_owned()).await?;
    rpc::serve(listener, service, end.cancelled_owned()).await
}

struct Meta(Arc<MetaService>);

#[async_trait]
impl Looked for Meta {
    async fn publish(&self) -> Result<()> {
        self.0.publish_metrics().await
    }

    async fn check_ready(&self) -> Result<()> {
        let answers = self.0.log_answers();
        if answers.has_changed().is_err() {
            return Err(Error::unavailable("the meta service has ended"));
        }
        match *answers.borrow() {
            true => Ok(()),
            false => Err(Error::unavailable("the plan log does not answer")),
        }
    }
}
