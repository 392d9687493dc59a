//! The control plane over gRPC: the only place that knows tonic and generated messages.
//!
//! `server` serves a [`MetaService`]; `client` is what engines, nodes and
//! operators hold; `convert` turns messages into domain types, `status` errors into status codes, both
//! ways.

mod channel;
mod client;
mod convert;
mod server;
mod status;
#[cfg(test)]
mod tests;

pub use client::{AdminClient, JobsClient, NodesClient};
pub use server::{Embedded, embed, serve};

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;

use crate::{
    compaction::remote::{NodePoll, PollReply},
    error::Result,
    meta::MetaService,
    node::MetaLink,
};

/// Limit of a message's size, both ways.
const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// How often an idle connection is probed, and how long the answer may take: or a connection across a
/// healed partition might never recover.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// A node's link to a meta service in its own process.
#[derive(Clone, Debug)]
pub struct InProcess(pub Arc<MetaService>);

#[async_trait]
impl MetaLink for InProcess {
    async fn poll(&self, poll: NodePoll, wait: Duration) -> Result<PollReply> {
        self.0.poll(poll, wait).await
    }

    fn address(&self) -> String {
        "in process".into()
    }
}
