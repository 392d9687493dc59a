//! What any gRPC client finds: the services, by reflection, and their health.

use tonic::transport::Endpoint;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use tonic_reflection::pb::v1::{
    ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
    server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
};

use super::*;
use crate::{
    compaction::remote::{JobService, JobSubmission},
    error::ErrorKind,
    meta::ObjectPlanLog,
    rpc::embed,
    store::{
        Store,
        faulty::{Effect, Fault, Operation},
        layout,
    },
    types::JobId,
};

#[tokio::test]
async fn services_are_listed_and_their_health_follows_the_plan_log() {
    let (store, faults) = Store::open("memory:///").unwrap().with_faults();
    let log = Box::new(ObjectPlanLog::new(store, Env::default()));
    let service = MetaService::open(MetaConfig::default(), log, Env::default()).await;
    let service = service.unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let stopped = async { drop(stopped.await) };
    let served = embed("127.0.0.1:0", service.clone(), stopped)
        .await
        .unwrap();
    let endpoint = Endpoint::from_shared(format!("http://{}", served.address())).unwrap();
    let channel = endpoint.connect().await.unwrap();

    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut reflection = ServerReflectionClient::new(channel.clone());
    let asked = futures::stream::iter([request]);
    let mut answers = reflection
        .server_reflection_info(asked)
        .await
        .unwrap()
        .into_inner();
    let answer = answers.message().await.unwrap().unwrap();
    let Some(MessageResponse::ListServicesResponse(listed)) = answer.message_response else {
        panic!("another answer");
    };
    let names: Vec<String> = listed
        .service
        .into_iter()
        .map(|service| service.name)
        .collect();
    for name in ["Jobs", "Nodes", "Admin"] {
        assert!(names.contains(&format!("siltstone.v1.{name}")), "{names:?}");
    }

    let mut health = HealthClient::new(channel);
    let mut status = async || {
        let service = "siltstone.v1.Nodes".to_owned();
        let checked = health.check(HealthCheckRequest { service }).await;
        checked.unwrap().into_inner().status()
    };
    assert_eq!(status().await, ServingStatus::Serving);
    let down = Effect::Fail;
    faults.add(Fault::new(Operation::Create, layout::META, down));
    let job = JobSubmission::sample("o", JobId::from_parts(1, 1), 1, 1);
    let error = service.submit(job).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let told = async {
        while status().await != ServingStatus::NotServing {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let told = tokio::time::timeout(SOON, told).await;
    assert!(told.is_ok(), "an outage of the plan log is never told");
    drop(stop);
    served.wait().await.unwrap();
}
