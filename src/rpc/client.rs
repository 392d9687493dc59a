//! What engines, nodes and operators hold of a meta service elsewhere.

use std::time::Duration;

use async_trait::async_trait;
use tonic::transport::Channel;

use super::{
    MESSAGE_BYTES_MAX,
    channel::Channels,
    convert::{attendance_to_proto, millis, poll_to_proto},
};
use crate::{
    compaction::remote::{
        Attendance, Fleet, JobService, JobStatus, JobSubmission, Needs, NodePoll, Orders, PollReply,
    },
    error::Result,
    meta::{Explanation, JobInfo, Listing, NodeInfo, OwnerInfo, QuarantineInfo, Wish},
    node::MetaLink,
    proto::{
        self as pb, admin_client::AdminClient as AdminStub, jobs_client::JobsClient as JobsStub,
        nodes_client::NodesClient as NodesStub,
    },
    types::{JobId, NodeId, TaskId},
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
        let request = pb::SubmitRequest::from(&job);
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

    async fn attend(&self, attendance: Attendance, wait: Duration) -> Result<Orders> {
        let request = attendance_to_proto(attendance, wait);
        let attend = |channel| {
            let request = request.clone();
            async move { Self::client(channel).attend(request).await }
        };
        self.channels.call(wait, attend).await?.try_into()
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

    async fn fleet(&self, needs: &Needs) -> Result<Fleet> {
        let request = pb::FleetRequest {
            needs: Some(needs.into()),
        };
        let fleet = |channel| {
            let request = request.clone();
            async move { Self::client(channel).fleet(request).await }
        };
        let reply = self.channels.call(Duration::ZERO, fleet).await?;
        Ok(reply.into())
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
        let listed = self.watch_nodes(0, Duration::ZERO).await?;
        Ok(listed.items)
    }

    /// The same, as soon as the revision is another than `seen`, or after `wait`, at most 60 s, as it then is.
    ///
    /// # Errors
    /// `Unavailable`, naming the addresses.
    pub async fn watch_nodes(&self, seen: u64, wait: Duration) -> Result<Listing<NodeInfo>> {
        let wait_ms = millis(wait);
        let list = |channel| async move {
            let request = pb::ListNodesRequest { seen, wait_ms };
            Self::client(channel).list_nodes(request).await
        };
        let reply = self.channels.call(wait, list).await?;
        let items = reply.nodes.into_iter().map(TryInto::try_into);
        Ok(Listing {
            revision: reply.revision,
            items: items.collect::<Result<_>>()?,
        })
    }

    /// The jobs, in the order of submission.
    ///
    /// # Errors
    /// `Unavailable`, naming the addresses.
    pub async fn jobs(&self) -> Result<Vec<JobInfo>> {
        let listed = self.watch_jobs(0, Duration::ZERO).await?;
        Ok(listed.items)
    }

    /// The same, as soon as the revision is another than `seen`, or after `wait`, at most 60 s, as it then is.
    ///
    /// # Errors
    /// `Unavailable`, naming the addresses.
    pub async fn watch_jobs(&self, seen: u64, wait: Duration) -> Result<Listing<JobInfo>> {
        let wait_ms = millis(wait);
        let list = |channel| async move {
            let request = pb::ListJobsRequest { seen, wait_ms };
            Self::client(channel).list_jobs(request).await
        };
        let reply = self.channels.call(wait, list).await?;
        let items = reply.jobs.into_iter().map(TryInto::try_into);
        Ok(Listing {
            revision: reply.revision,
            items: items.collect::<Result<_>>()?,
        })
    }

    /// The owners that have jobs or an engine, or for which something is set, by name.
    ///
    /// # Errors
    /// `Unavailable`, naming the addresses.
    pub async fn owners(&self) -> Result<Vec<OwnerInfo>> {
        let listed = self.watch_owners(0, Duration::ZERO).await?;
        Ok(listed.items)
    }

    /// The same, as soon as the revision is another than `seen`, or after `wait`, at most 60 s, as it then is.
    ///
    /// # Errors
    /// `Unavailable`, naming the addresses.
    pub async fn watch_owners(&self, seen: u64, wait: Duration) -> Result<Listing<OwnerInfo>> {
        let wait_ms = millis(wait);
        let list = |channel| async move {
            let request = pb::ListOwnersRequest { seen, wait_ms };
            Self::client(channel).list_owners(request).await
        };
        let reply = self.channels.call(wait, list).await?;
        let items = reply.owners.into_iter().map(TryInto::try_into);
        Ok(Listing {
            revision: reply.revision,
            items: items.collect::<Result<_>>()?,
        })
    }

    /// The engines that leave SSTs alone because jobs with them failed, and these SSTs, by owner. As soon as the revision
    /// is another than `seen`, or after `wait`, at most 60 s, as it then is.
    ///
    /// # Errors
    /// `Unavailable`, naming the addresses.
    pub async fn watch_quarantine(
        &self,
        seen: u64,
        wait: Duration,
    ) -> Result<Listing<QuarantineInfo>> {
        let wait_ms = millis(wait);
        let list = |channel| async move {
            let request = pb::ListQuarantineRequest { seen, wait_ms };
            Self::client(channel).list_quarantine(request).await
        };
        let reply = self.channels.call(wait, list).await?;
        let items = reply.engines.into_iter().map(TryInto::try_into);
        Ok(Listing {
            revision: reply.revision,
            items: items.collect::<Result<_>>()?,
        })
    }

    /// Why a task is where it is.
    ///
    /// # Errors
    /// `NotFound` when it is not known; `Unavailable`, naming the addresses.
    pub async fn explain(&self, task: TaskId) -> Result<Explanation> {
        let explain = |channel| async move {
            let task = task.to_string();
            let request = pb::ExplainTaskRequest { task };
            Self::client(channel).explain_task(request).await
        };
        self.channels
            .call(Duration::ZERO, explain)
            .await?
            .try_into()
    }

    /// Carries out what an operator wishes.
    ///
    /// # Errors
    /// `NotFound` when there is nothing that it concerns; `Invalid`; `Unavailable`, naming the addresses, also when an
    /// engine has not done yet what it is to do.
    pub async fn steer(&self, wish: Wish) -> Result<()> {
        let request = pb::SteerRequest::from(wish);
        let steer = |channel| {
            let request = request.clone();
            async move { Self::client(channel).steer(request).await }
        };
        self.channels.call(Duration::ZERO, steer).await.map(drop)
    }

    /// Has a node end as soon as its tasks have.
    ///
    /// # Errors
    /// `NotFound` when no such node polls; `Unavailable`, naming the addresses.
    pub async fn drain(&self, node: &NodeId) -> Result<()> {
        let drain = |channel| {
            let node = node.0.clone();
            async move {
                let request = pb::DrainNodeRequest { node };
                Self::client(channel).drain_node(request).await
            }
        };
        self.channels.call(Duration::ZERO, drain).await.map(drop)
    }
}
