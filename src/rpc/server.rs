//! Serves a meta service over gRPC.

use std::{future::Future, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{net::TcpListener, task::JoinHandle};
use tokio_util::sync::CancellationToken;
use tonic::{
    Request, Response, Status, async_trait,
    transport::{Server, server::TcpIncoming},
};
use tracing::warn;

use super::{KEEP_ALIVE, MESSAGE_BYTES_MAX, status::to_status};
use crate::{
    compaction::remote::JobService,
    error::{Error, Result},
    meta::MetaService,
    proto::{
        self as pb,
        admin_server::{Admin, AdminServer},
        jobs_server::{Jobs, JobsServer},
        nodes_server::{Nodes, NodesServer},
    },
    types::NodeId,
};

/// How long connections may take to end once the service is closed.
const GOODBYE: Duration = Duration::from_secs(3);

/// Serves `service` on `listener` until `shutdown`, then closes it.
///
/// # Errors
/// `Fenced` when another meta service has taken over the plan log; `Unavailable` when the listener fails.
pub async fn serve(
    listener: TcpListener,
    service: Arc<MetaService>,
    shutdown: impl Future<Output = ()>,
) -> Result<()> {
    let closed = CancellationToken::new();
    let surface = Surface {
        service: service.clone(),
    };
    let router = Server::builder()
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_keepalive_timeout(Some(KEEP_ALIVE))
        .add_service(
            JobsServer::new(surface.clone())
                .max_decoding_message_size(MESSAGE_BYTES_MAX)
                .max_encoding_message_size(MESSAGE_BYTES_MAX),
        )
        .add_service(
            NodesServer::new(surface.clone())
                .max_decoding_message_size(MESSAGE_BYTES_MAX)
                .max_encoding_message_size(MESSAGE_BYTES_MAX),
        )
        .add_service(AdminServer::new(surface).max_encoding_message_size(MESSAGE_BYTES_MAX));
    #[cfg(feature = "cli")]
    let router = {
        let (health, health_server) = tonic_health::server::health_reporter();
        health.set_serving::<JobsServer<Surface>>().await;
        health.set_serving::<NodesServer<Surface>>().await;
        let reflection = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(pb::FILE_DESCRIPTORS)
            .build_v1();
        let reflection =
            reflection.map_err(|error| Error::internal("grpc reflection").with_source(error))?;
        watched(health, service.clone(), closed.clone());
        router.add_service(health_server).add_service(reflection)
    };
    // Of a listener of our own the server would not know: each answer would wait for the last one's ACK.
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let closing = closed.clone().cancelled_owned();
    let served = router.serve_with_incoming_shutdown(incoming, closing);
    let served = async {
        tokio::select! {
            served = served => served
                .map_err(|error| Error::unavailable("grpc server failed").with_source(error)),
            () = overdue(&closed) => {
                warn!("connections did not end in time");
                Ok(())
            }
        }
    };
    // The service closes first: that answers the long polls, and lets the server end at once.
    let run = async {
        let result = service.run(shutdown).await;
        closed.cancel();
        result
    };
    let (run, served) = tokio::join!(run, served);
    run.and(served)
}

/// Has the services' health follow the plan log: while it does not answer, nothing is given out.
#[cfg(feature = "cli")]
fn watched(
    health: tonic_health::server::HealthReporter,
    service: Arc<MetaService>,
    closed: CancellationToken,
) {
    let watch = async move {
        let mut answers = service.log_answers();
        drop(service);
        while answers.changed().await.is_ok() {
            let is_well = *answers.borrow_and_update();
            match is_well {
                true => {
                    health.set_serving::<JobsServer<Surface>>().await;
                    health.set_serving::<NodesServer<Surface>>().await;
                }
                false => {
                    health.set_not_serving::<JobsServer<Surface>>().await;
                    health.set_not_serving::<NodesServer<Surface>>().await;
                }
            }
        }
        health.set_not_serving::<JobsServer<Surface>>().await;
        health.set_not_serving::<NodesServer<Surface>>().await;
    };
    tokio::spawn(closed.run_until_cancelled_owned(watch));
}

async fn overdue(closed: &CancellationToken) {
    closed.cancelled().await;
    tokio::time::sleep(GOODBYE).await;
}

/// A meta service that is served from inside another process.
#[derive(Debug)]
pub struct Embedded {
    address: SocketAddr,
    server: JoinHandle<Result<()>>,
}

impl Embedded {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until it has ended, which its `shutdown` brings about.
    ///
    /// # Errors
    /// As for [`serve`].
    pub async fn wait(self) -> Result<()> {
        let served = self.server.await;
        served.map_err(|error| Error::internal("grpc server panicked").with_source(error))?
    }
}

/// Serves `service` at `listen`, `host:port`, in the background until `shutdown`. Port 0 takes a free one.
///
/// # Errors
/// `Invalid`, naming the address, when it cannot be listened on.
pub async fn embed(
    listen: &str,
    service: Arc<MetaService>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<Embedded> {
    let cannot = |error| Error::invalid(format!("cannot listen on {listen:?}")).with_source(error);
    let listener = TcpListener::bind(listen).await.map_err(cannot)?;
    let address = listener.local_addr().map_err(cannot)?;
    Ok(Embedded {
        address,
        server: tokio::spawn(serve(listener, service, shutdown)),
    })
}

/// The three services over one meta service.
#[derive(Clone)]
struct Surface {
    service: Arc<MetaService>,
}

fn answer<T, M: From<T>>(result: Result<T>) -> Result<Response<M>, Status> {
    match result {
        Ok(value) => Ok(Response::new(value.into())),
        Err(error) => Err(to_status(&error)),
    }
}

fn checked<M, T: TryFrom<M, Error = Error>>(request: Request<M>) -> Result<T, Status> {
    let checked = request.into_inner().try_into();
    checked.map_err(|error: Error| to_status(&error))
}

fn id<T: std::str::FromStr<Err = Error>>(text: &str) -> Result<T, Status> {
    text.parse().map_err(|error: Error| to_status(&error))
}

#[async_trait]
impl Jobs for Surface {
    async fn submit(
        &self,
        request: Request<pb::SubmitRequest>,
    ) -> Result<Response<pb::SubmitReply>, Status> {
        let submitted = self.service.submit(checked(request)?).await;
        answer(submitted.map(|()| pb::SubmitReply {}))
    }

    async fn watch(
        &self,
        request: Request<pb::WatchRequest>,
    ) -> Result<Response<pb::WatchReply>, Status> {
        let request = request.into_inner();
        let wait = Duration::from_millis(request.wait_ms);
        let job = id(&request.job)?;
        answer(self.service.watch(job, request.seen, wait).await)
    }

    async fn attend(
        &self,
        request: Request<pb::AttendRequest>,
    ) -> Result<Response<pb::AttendReply>, Status> {
        let wait = Duration::from_millis(request.get_ref().wait_ms);
        answer(self.service.attend(checked(request)?, wait).await)
    }

    async fn release(
        &self,
        request: Request<pb::ReleaseRequest>,
    ) -> Result<Response<pb::ReleaseReply>, Status> {
        let released = self.service.release(id(&request.into_inner().job)?).await;
        answer(released.map(|()| pb::ReleaseReply {}))
    }

    async fn fleet(
        &self,
        request: Request<pb::FleetRequest>,
    ) -> Result<Response<pb::FleetReply>, Status> {
        let needs = request.into_inner().needs.unwrap_or_default();
        answer(self.service.fleet(&needs.into()).await)
    }
}

#[async_trait]
impl Nodes for Surface {
    async fn poll(
        &self,
        request: Request<pb::PollRequest>,
    ) -> Result<Response<pb::PollResponse>, Status> {
        let wait = Duration::from_millis(request.get_ref().wait_ms);
        answer(self.service.poll(checked(request)?, wait).await)
    }
}

#[async_trait]
impl Admin for Surface {
    async fn list_nodes(
        &self,
        request: Request<pb::ListNodesRequest>,
    ) -> Result<Response<pb::ListNodesReply>, Status> {
        let request = request.into_inner();
        let wait = Duration::from_millis(request.wait_ms);
        let listed = self.service.watch_nodes(request.seen, wait).await;
        answer(listed.map(|listed| pb::ListNodesReply {
            nodes: listed.items.into_iter().map(Into::into).collect(),
            revision: listed.revision,
        }))
    }

    async fn list_jobs(
        &self,
        request: Request<pb::ListJobsRequest>,
    ) -> Result<Response<pb::ListJobsReply>, Status> {
        let request = request.into_inner();
        let wait = Duration::from_millis(request.wait_ms);
        let listed = self.service.watch_jobs(request.seen, wait).await;
        answer(listed.map(|listed| pb::ListJobsReply {
            jobs: listed.items.into_iter().map(Into::into).collect(),
            revision: listed.revision,
        }))
    }

    async fn list_owners(
        &self,
        request: Request<pb::ListOwnersRequest>,
    ) -> Result<Response<pb::ListOwnersReply>, Status> {
        let request = request.into_inner();
        let wait = Duration::from_millis(request.wait_ms);
        let listed = self.service.watch_owners(request.seen, wait).await;
        answer(listed.map(|listed| pb::ListOwnersReply {
            owners: listed.items.into_iter().map(Into::into).collect(),
            revision: listed.revision,
        }))
    }

    async fn list_quarantine(
        &self,
        request: Request<pb::ListQuarantineRequest>,
    ) -> Result<Response<pb::ListQuarantineReply>, Status> {
        let request = request.into_inner();
        let wait = Duration::from_millis(request.wait_ms);
        let listed = self.service.watch_quarantine(request.seen, wait).await;
        answer(listed.map(|listed| pb::ListQuarantineReply {
            engines: listed.items.into_iter().map(Into::into).collect(),
            revision: listed.revision,
        }))
    }

    async fn explain_task(
        &self,
        request: Request<pb::ExplainTaskRequest>,
    ) -> Result<Response<pb::ExplainTaskReply>, Status> {
        let task = id(&request.into_inner().task)?;
        answer(self.service.explain(task).await)
    }

    async fn steer(
        &self,
        request: Request<pb::SteerRequest>,
    ) -> Result<Response<pb::SteerReply>, Status> {
        let steered = self.service.steer(checked(request)?).await;
        answer(steered.map(|()| pb::SteerReply {}))
    }

    async fn drain_node(
        &self,
        request: Request<pb::DrainNodeRequest>,
    ) -> Result<Response<pb::DrainNodeReply>, Status> {
        let node = NodeId(request.into_inner().node);
        let drained = self.service.drain(node).await;
        answer(drained.map(|()| pb::DrainNodeReply {}))
    }
}
