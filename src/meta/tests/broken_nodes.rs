//! Nodes at which everything fails, beside one that is sound.

use std::time::Duration;

use tokio::task::JoinHandle;

use super::{ended, job, node, open, polling, submission};
use crate::{
    compaction::remote::{JobService, TaskEnd, TaskState},
    error::ErrorKind,
    meta::MemoryPlanLog,
};

fn failure(kind: ErrorKind) -> TaskEnd {
    TaskEnd::Failed {
        kind,
        message: "it broke".into(),
    }
}

#[tokio::test(start_paused = true)]
async fn broken_nodes_do_not_keep_tasks_from_a_sound_one() {
    for kind in [
        ErrorKind::Unavailable,
        ErrorKind::Invalid,
        ErrorKind::NotFound,
        ErrorKind::Corrupt,
        ErrorKind::Internal,
    ] {
        let service = open(MemoryPlanLog::default()).await;
        // The broken ones have nothing to do, and so are always the least loaded.
        let nodes = [
            polling(&service, node("a", 8), failure(kind)),
            polling(&service, node("b", 8), failure(kind)),
            polling(&service, node("c", 1), TaskEnd::Done),
        ];
        tokio::time::sleep(Duration::from_secs(1)).await;
        service.submit(submission("o", 1, 4)).await.unwrap();
        let ended = tokio::time::timeout(Duration::from_secs(120), ended(&service, job(1))).await;
        let done = TaskState::Done { node: "c".into() };
        assert_eq!(ended.unwrap(), vec![done; 4], "{kind}");
        nodes.iter().for_each(JoinHandle::abort);
        service.close().await.unwrap();
    }
}
