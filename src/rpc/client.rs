//! What engines, nodes and operators hold of a meta service elsewhere.

use std::time::Duration;

use async_trait::async_trait;
use tonic::transport::Channel;

use super::{
    MESSAGE_BYTES_MAX,
    channel::Channels,
    convert::{millis, poll_to_proto},
};
use crate::{
    compaction::remote::{JobService, JobStatus, JobSubmission, NodePoll, PollReply},
    error::Result,
    meta::{JobInfo, NodeInfo},
    node::MetaLink,
    proto::{
        self as pb, admin_client::AdminClient as AdminStub, jobs_client::JobsClient as JobsStub,
        nodes_client::NodesClient as NodesStub,
    },
    types::JobId,
};

macro_rules! clients {
    ($($(#[$doc:meta])* $name:ident => $generated:ident;)*) => {
        $($(#[$doc])*
        ///
        /// Takes a list of addresses, `http://host:port`, tried in order; connects when first used, and
        /// again whenever needed.
        #[derive(Debug)]
        pub struct $name {
            channels: Channels,
        }

        impl $name {
            /// A client of the meta services at `addresses`.
            ///
            /// # Errors
            /// `Invalid`, naming the address that does not parse.
            pub fn new(addresses: &[String]) -> Result<Self> {
                Ok(Self { channels: Channels::new(addresses)? })
            }

            fn client(channel: Channel) -> $generated<Channel> {
                $generated::new(channel)
                    .max_decoding_message_size(MESSAGE_BYTES_MAX)
                    .max_encoding_message_size(MESSAGE_BYTES_MAX)
            }
        })*
    };
}

clients! {
    /// The meta service as an engine sees it.
    JobsClient => JobsStub;
    /// The meta service as a node sees it.
    NodesClient => NodesStub;
    /// The meta service as an operator sees it.
    AdminClient => AdminStub;
}

#[async_trait]
impl JobService for JobsClient {
    async fn submit(&self, job: JobSubmission) -> Result<()> {
        let request = pb::SubmitRequest::from(job);
        let submit = |channel| {
            let request = request.clone();
            async move { Self::client(channel).submit(request).await }
        };
        self.channels.call(Duration::ZERO, submit).await.map(drop)
    }

    async fn watch(&self, job: JobId, seen: u64, wait: Duration) -> Result<JobStatus> {
        let watch = |channel| async move {
            let request = pb::WatchRequest {
                job: job.to_string(),
                seen,
                wait_ms: millis(wait),
            };
            Self::client(channel).watch(request).await
        };
        self.channels.call(wait, watch).await?.try_into()
    }

    async fn release(&self, job: JobId) -> Result<()> {
        let release = |channel| async move {
            let request = pb::ReleaseRequest {
                job: job.to_string(),
            };
            Self::client(channel).release(request).await
        };
        self.channels.call(Duration::ZERO, release).await.map(drop)
    }
}

#[async_trait]
impl MetaLink for NodesClient {
    async fn poll(&self, poll: NodePoll, wait: Duration) -> Result<PollReply> {
        let request = poll_to_proto(poll, wait);
        let poll = |channel| {
            let request = request.clone();
            async move { Self::client(channel).poll(request).await }
        };
        self.channels.call(wait, poll).await?.try_into()
    }

    fn address(&self) -> String {
        self.channels.address()
    }
}

impl AdminClient {
    /// The nodes that have polled, by id.
    ///
    /// # Errors
    /// `Unavailable`, naming the addresses.
    pub async fn nodes(&self) -> Result<Vec<NodeInfo>> {
        let list = |channel| async move {
            let request = pb::ListNodesRequest {};
            Self::client(channel).list_nodes(request).await
        };
        let reply = self.channels.call(Duration::ZERO, list).await?;
        reply.nodes.into_iter().map(TryInto::try_into).collect()
    }

    /// The jobs, in the order of submission.
    ///
    /// # Errors
    /// `Unavailable`, naming the addresses.
    pub async fn jobs(&self) -> Result<Vec<JobInfo>> {
        let list = |channel| async move {
            let request = pb::ListJobsRequest {};
            Self::client(channel).list_jobs(request).await
        };
        let reply = self.channels.call(Duration::ZERO, list).await?;
        reply.jobs.into_iter().map(TryInto::try_into).collect()
    }
}
