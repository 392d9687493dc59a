//! A store that is away for an hour, for the engine and all nodes, in paused time: nothing is given up.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;

use super::{node, until};
use crate::{
    clock::Env,
    compaction::{CompactionContext, Compactor, RemoteCompactor},
    config::{MetaConfig, RemoteConfig},
    meta::{MemoryPlanLog, MetaService},
    node::fake::{Writer, job, memory},
    rpc::InProcess,
    store::faulty::{Effect, Fault, Operation},
};

const HOUR: Duration = Duration::from_secs(3600);
const TICK: Duration = Duration::from_millis(500);

#[tokio::test(start_paused = true)]
async fn an_hour_without_the_store_excludes_no_job() {
    for nodes in [1, 4] {
        without_the_store(nodes).await;
    }
}

async fn without_the_store(nodes: usize) {
    let env = Env::following_tokio(TICK);
    let log = Box::new(MemoryPlanLog::default());
    let service = MetaService::open(MetaConfig::default(), log, env.clone()).await;
    let service = service.unwrap();
    let (store, faults) = memory().with_faults();
    let writer = Writer::new(&store, &[0, 1, 2]);
    let names: Vec<String> = (0..nodes).map(|node| format!("n{node}")).collect();
    let _nodes: Vec<_> = names
        .iter()
        .map(|id| node(id, 2, Arc::new(InProcess(service.clone())), &writer))
        .collect();
    let config = RemoteConfig::default();
    let compactor = RemoteCompactor::new(service.clone(), store, "o".into(), config, env);
    let jobs: Vec<_> = (0..8).map(|number| job(number, 3)).collect();
    let compact = |job: &Arc<_>| compactor.compact(Arc::clone(job), CompactionContext::default());
    let all = join_all(jobs.iter().map(compact));
    let outage = async {
        until("some tasks run", async || writer.ran().len() >= 2 * nodes).await;
        for operation in [Operation::Get, Operation::Create, Operation::List] {
            faults.add(Fault::new(operation, "", Effect::Fail));
        }
        writer.hold.cancel();
        tokio::time::sleep(HOUR).await;
        let stats = service.stats().await.unwrap();
        let unavailable = stats.events.attempts_ended["unavailable"];
        assert!(unavailable > 24 * 50, "{unavailable} attempts in an hour");
        assert_eq!(stats.tasks.get("failed"), None, "{stats:?}");
        faults.clear();
    };
    let (ended, ()) = tokio::join!(all, outage);
    for outcome in ended {
        assert_eq!(outcome.unwrap().parts.len(), 3);
    }
    let events = service.stats().await.unwrap().events;
    assert!(events.tasks_failed.is_empty(), "{events:?}");
    service.close().await.unwrap();
}
