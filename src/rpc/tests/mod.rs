//! The control plane as a whole, over loopback and in one process, with tasks that only write their
//! result objects.

mod cleanup;
mod cluster;
mod outage;
mod remote;
mod stragglers;
#[cfg(feature = "cli")]
mod surface;

use std::{sync::Arc, time::Duration};

use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    clock::Env,
    config::{MetaConfig, Millis, NodeConfig},
    error::Result,
    meta::{MetaService, PlanLog},
    node::{MetaLink, Node, TaskRunner},
};

const SOON: Duration = Duration::from_secs(20);

fn meta_config() -> MetaConfig {
    MetaConfig {
        lease: Millis(600),
        ..MetaConfig::default()
    }
}

async fn meta(log: impl PlanLog) -> Arc<MetaService> {
    let service = MetaService::open(meta_config(), Box::new(log), Env::default());
    service.await.unwrap()
}

/// A running node; dropping it shuts it down.
struct RunningNode {
    run: JoinHandle<Result<()>>,
    _stop: DropGuard,
}

fn node<R: TaskRunner>(
    id: &str,
    slots: usize,
    link: Arc<dyn MetaLink>,
    runner: &Arc<R>,
) -> RunningNode {
    let config = NodeConfig {
        id: Some(id.into()),
        slots,
        ..NodeConfig::default()
    };
    let node = Node::new(config, link, Env::default()).unwrap();
    let node = node.with_runner(runner.clone());
    let stop = CancellationToken::new();
    RunningNode {
        run: tokio::spawn(node.run(stop.clone().cancelled_owned())),
        _stop: stop.drop_guard(),
    }
}

/// Waits until `holds`.
async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = tokio::time::timeout(SOON, wait).await;
    assert!(waited.is_ok(), "never: {what}");
}
