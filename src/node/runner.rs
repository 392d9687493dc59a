//! Who does a task's work, a merge or a deletion: the executor, or a fake in tests.

use std::sync::Arc;

use async_trait::async_trait;

use super::Stores;
use crate::{
    clock::Env,
    compaction::{
        Attempt, CompactionJob, Task,
        cleanup::{CleanupJob, clean},
        execute,
    },
    error::{Error, Result},
    sst::SstCache,
};

/// Runs tasks.
#[async_trait]
pub trait TaskRunner: Send + Sync + 'static {
    /// Runs one attempt at `task` of `job`. When it returns `Ok`, the task's result is complete. Ends soon, with `Closed`, when the attempt is cancelled.
    async fn run(&self, job: Arc<CompactionJob>, task: Task, attempt: Attempt) -> Result<()>;

    /// Runs one attempt at the only task of `job`. When it returns `Ok`, the task has a result. Ends soon, with `Closed`,
    /// when the attempt is cancelled. A runner that knows merges only refuses it.
    async fn clean(&self, job: Arc<CleanupJob>, attempt: Attempt) -> Result<()> {
        let (task, node) = (job.task_id(), attempt.node);
        Err(Error::invalid(format!(
            "task {task}: node {node} does not delete"
        )))
    }
}

/// Runs tasks with [`execute()`] and [`clean`].
pub(super) struct Executor {
    pub stores: Stores,
    pub env: Env,
    pub footers: SstCache,
}

#[async_trait]
impl TaskRunner for Executor {
    async fn run(&self, job: Arc<CompactionJob>, task: Task, attempt: Attempt) -> Result<()> {
        let store = self.stores.get(&job.store_url).await?;
        let attempt = Attempt {
            footers: Some(self.footers.clone()),
            ..attempt
        };
        execute(&job, &task, attempt, &store, &self.env)
            .await
            .map(drop)
    }

    async fn clean(&self, job: Arc<CleanupJob>, attempt: Attempt) -> Result<()> {
        let store = self.stores.get(&job.store_url).await?;
        clean(&job, &attempt, &store).await
    }
}
