//! Who does a task's work: the executor, or a fake in tests.

use std::sync::Arc;

use async_trait::async_trait;

use super::Stores;
use crate::{
    clock::Env,
    compaction::{Attempt, CompactionJob, execute},
    error::Result,
};

/// Runs tasks.
#[async_trait]
pub trait TaskRunner: Send + Sync + 'static {
    /// Runs one attempt at the task at `index` of `job`. When it returns `Ok`, the task's result object
    /// exists. Ends soon, with `Closed`, when the attempt is cancelled.
    async fn run(&self, job: Arc<CompactionJob>, index: u32, attempt: Attempt) -> Result<()>;
}

/// Runs tasks with [`execute()`].
pub(super) struct Executor {
    pub stores: Stores,
    pub env: Env,
}

#[async_trait]
impl TaskRunner for Executor {
    async fn run(&self, job: Arc<CompactionJob>, index: u32, attempt: Attempt) -> Result<()> {
        let store = self.stores.get(&job.store_url).await?;
        execute(&job, index, attempt, &store, &self.env)
            .await
            .map(drop)
    }
}
