//! How long meta holds on to nodes and jobs that say nothing.

use std::time::Duration;

use super::{WAIT, finished, job, node, open, submission};
use crate::{compaction::remote::JobService, meta::MemoryPlanLog};

#[tokio::test(start_paused = true)]
async fn dead_process_does_not_lock_its_node_out() {
    let service = open(MemoryPlanLog::default()).await;
    let mut ahead = node("a", 1);
    ahead.facts.session = 2;
    service.poll(ahead, WAIT).await.unwrap();
    service.submit(submission("o", 1, 1)).await.unwrap();
    // It has ended, and its successor's clock is behind.
    tokio::time::sleep(Duration::from_secs(11)).await;
    let reply = service.poll(node("a", 1), WAIT).await.unwrap();
    assert_eq!(reply.assignments.len(), 1);
    service.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn job_that_nobody_watches_is_dropped_after_an_hour() {
    let service = open(MemoryPlanLog::default()).await;
    for number in 1..=3 {
        service.submit(submission("o", number, 1)).await.unwrap();
    }
    let reply = service.poll(node("a", 1), WAIT).await.unwrap();
    let poll = finished(node("a", 1), &reply.attempts());
    service.poll(poll, WAIT).await.unwrap();
    let minutes = |minutes: u64| tokio::time::sleep(Duration::from_secs(60 * minutes));
    for _ in 0..5 {
        minutes(10).await;
        service.watch(job(2), 0, WAIT).await.unwrap();
    }
    assert_eq!(service.jobs().await.unwrap().len(), 3);
    minutes(15).await;
    let left = service.jobs().await.unwrap();
    let left: Vec<_> = left.iter().map(|known| known.job).collect();
    assert_eq!(left, [job(2)], "one was done, one was queued");
    service.close().await.unwrap();
}
