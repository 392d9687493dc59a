//! Cleanup jobs through a meta service in the same process: who gets them, and after whom.

use std::{sync::Arc, time::Duration};

use super::{meta, node, until};
use crate::{
    clock::Env,
    compaction::{
        CompactionContext, Compactor, RemoteCompactor,
        remote::{CAPABILITY, CLEANUP_CAPABILITY, NodeFacts, NodePoll, PollReply},
    },
    config::RemoteConfig,
    meta::{MemoryPlanLog, MetaService},
    node::fake::{CLEANED, Writer, job, memory},
    rpc::InProcess,
    store::{Store, layout},
    types::{Deletion, SstId, TableId},
};

struct Fixture {
    service: Arc<MetaService>,
    store: Store,
    compactor: Arc<RemoteCompactor>,
}

async fn fixture() -> Fixture {
    let (service, store) = (meta(MemoryPlanLog::default()).await, memory());
    let (config, env) = (RemoteConfig::default(), Env::default());
    let compactor = RemoteCompactor::new(service.clone(), store.clone(), "o".into(), config, env);
    Fixture {
        compactor: Arc::new(compactor),
        service,
        store,
    }
}

fn table() -> TableId {
    TableId::from_parts(1, 1)
}

impl Fixture {
    fn name(&self) -> String {
        layout::sst(table(), SstId::flushed(1, 1))
    }

    /// Has one object deleted.
    fn delete(&self) -> tokio::task::JoinHandle<Vec<Deletion>> {
        let (compactor, name) = (self.compactor.clone(), self.name());
        tokio::spawn(async move { compactor.delete(table(), &[name]).await })
    }

    async fn jobs_are(&self, jobs: usize) {
        until("so many jobs", async || {
            self.service.jobs().await.unwrap().len() == jobs
        })
        .await;
    }

    async fn poll(&self, capabilities: &[&str]) -> PollReply {
        let capabilities = capabilities.iter().map(|&word| word.to_owned());
        let poll = NodePoll {
            facts: NodeFacts {
                capabilities: capabilities.collect(),
                ..NodeFacts::sample("old", 1)
            },
            slots_free: 1,
            draining: false,
            running: vec![],
            finished: vec![],
        };
        self.service.poll(poll, Duration::ZERO).await.unwrap()
    }
}

#[tokio::test]
async fn compaction_goes_before_cleanup() {
    let f = fixture().await;
    f.store.put(&f.name(), "x".into()).await.unwrap();
    // The one slot is taken until both wait.
    let writer = Writer::new(&f.store, &[0]);
    let link = Arc::new(InProcess(f.service.clone()));
    let _node = node("a", 1, link, &writer);
    let compact = |number, tasks| {
        let compactor = f.compactor.clone();
        let job = job(number, tasks);
        tokio::spawn(async move { compactor.compact(job, CompactionContext::default()).await })
    };
    let first = compact(1, 1);
    until("it runs", async || writer.ran().len() == 1).await;
    let deleted = f.delete();
    f.jobs_are(2).await;
    let shown = f.service.jobs().await.unwrap();
    let mut shown = shown
        .iter()
        .map(|job| (job.pressure.class.as_str(), &*job.label));
    let cleanup = format!("table {}, delete 1 object", table());
    assert_eq!(shown.next_back(), Some(("cleanup", &*cleanup)));
    let second = compact(2, 3);
    f.jobs_are(3).await;
    writer.hold.cancel();
    let deleted = deleted.await.unwrap();
    assert!(matches!(deleted[..], [Deletion::Confirmed]), "{deleted:?}");
    first.await.unwrap().unwrap();
    second.await.unwrap().unwrap();
    let ran: Vec<u32> = writer.ran().into_iter().map(|(index, _)| index).collect();
    assert_eq!(ran, [0, 0, 1, 2, CLEANED]);
    assert_eq!(f.store.size(&f.name()).await.unwrap(), None);
    f.jobs_are(0).await;
}

#[tokio::test]
async fn a_node_that_does_not_know_cleanup_is_never_given_any() {
    let f = fixture().await;
    let polls = async {
        loop {
            assert_eq!(f.poll(&[CAPABILITY]).await.assignments, []);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let deleted = async {
        until("the node is known", async || {
            !f.service.nodes().await.unwrap().is_empty()
        })
        .await;
        f.delete().await.unwrap()
    };
    let deleted = tokio::select! {
        deleted = deleted => deleted,
        () = polls => unreachable!("it polls for ever"),
    };
    assert!(
        matches!(deleted[..], [Deletion::Left("no nodes")]),
        "{deleted:?}"
    );
    // The same node after an upgrade.
    f.poll(&[CAPABILITY, CLEANUP_CAPABILITY]).await;
    let waits = f.delete();
    f.jobs_are(1).await;
    let given = f.poll(&[CAPABILITY, CLEANUP_CAPABILITY]).await;
    assert_eq!(given.assignments.len(), 1);
    waits.abort();
}
