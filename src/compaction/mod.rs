//! Compaction: what to merge, who merges it, and the proof that nothing was lost.
//!
//! A **plan** says what to merge (pure data). Recorded in the manifest under an id it is a **job**: the
//! unit of commit. A job has **tasks**, one a key range: the unit of dispatch, lease and retry. A task
//! yields a chain of **outcomes**, each kept as an object when it is done: the first valid one is final, whoever
//! wrote it.
//!
//! `planner` chooses plans, `split` cuts them into tasks, `claims` reserves their inputs, `scheduler`
//! records jobs, hands them to a [`Compactor`] and commits what `proof` accepts. [`execute()`] runs one
//! task, the same way in the engine ([`LocalCompactor`]) and on a node ([`RemoteCompactor`]). [`AutoCompactor`] has both,
//! and decides for each job by its `cost`.
//!
//! `cleanup` is the other thing that nodes do: they delete objects that the engine has found nobody to need.

mod auto;
mod bisect;
mod chain;
mod claims;
pub mod cleanup;
mod codec;
pub mod cost;
pub mod execute;
mod job;
mod local;
mod outcome;
mod plan;
pub mod planner;
mod progress;
pub mod proof;
mod quarantine;
pub mod remote;
mod report;
pub mod results;
mod scheduler;
mod share;
pub mod split;
mod stats;
#[cfg(test)]
pub(crate) mod tests;

use std::{collections::BTreeMap, convert::Infallible, sync::Arc};

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

pub use auto::{AutoCompactor, Decisions, JobDecision};
pub use chain::TaskChain;
pub use claims::{Claim, Claimed, Claims, Footprint};
pub use execute::{Attempt, Progress, execute};
pub use job::{CompactionJob, Task};
pub use local::{LOCAL_NODE, LocalCompactor};
pub use outcome::{CompactionOutcome, TaskOutcome, TaskPart, TaskSplit};
pub use plan::{Limits, Plan, PlanReason, memory_estimate};
pub use progress::JobProgress;
pub use quarantine::QuarantineView;
pub use remote::RemoteCompactor;
pub use report::CompactionReport;
pub use scheduler::Scheduler;
pub use share::Share;
pub use stats::{CompactionStats, NodeStats, QuarantinedSst};

pub use crate::types::RowSum;
use crate::{
    error::Result,
    types::{Deletion, JobId, TableId},
};

/// What a running job is given besides itself.
#[derive(Clone, Debug, Default)]
pub struct CompactionContext {
    /// Stops the job; finished tasks stay finished.
    pub cancel: CancellationToken,
    /// The tasks that are to be run; the outcome is theirs.
    pub share: Share,
    /// How near writes are to being held up by level 0, which the job makes smaller: from 0, not at all, to 100,
    /// they are. 0 for a job that does not.
    pub write_pressure_percent: u32,
}

/// How many more jobs a compactor can take now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Jobs.
    pub jobs: usize,
}

/// Runs compaction jobs: in this process, or on compaction nodes.
#[async_trait]
pub trait Compactor: Send + Sync + 'static {
    /// Runs every task of `job` that `context.share` has, resuming where the parts of its results that exist end. Cancel-safe: when the
    /// future is dropped, running tasks end and finished parts stay finished.
    ///
    /// # Errors
    /// By kind: `Closed` after a cancel; `Corrupt` names the damaged input; `TooLarge`; `Invalid` when
    /// nobody can run it; `Internal` when a task failed too often. `Unavailable` is waited out inside.
    async fn compact(
        &self,
        job: Arc<CompactionJob>,
        context: CompactionContext,
    ) -> Result<CompactionOutcome>;

    /// How many more jobs it can take now: the scheduler plans no more than that.
    fn capacity(&self) -> Capacity;

    /// Returns when it can take more jobs than before although none has ended, so that who plans would not notice.
    /// For one caller at a time. Cancel-safe: what was not told is told to the next call.
    async fn gains_room(&self) {
        std::future::pending().await
    }

    /// Nobody will ask for `job` again, whose last run was cancelled: what others hold of it may go.
    fn forget(&self, job: JobId) {
        let _ = job;
    }

    /// How many objects it takes to be deleted at once; 0 when it leaves deleting to the engine.
    fn deletes_max(&self) -> usize {
        0
    }

    /// Has objects deleted that nobody needs, `names` in the folder of `table`: at most about
    /// [`Self::deletes_max`]. Returns what became of each, in their order, when that is known of all. Cancel-safe:
    /// when the future is dropped, some may be deleted, then or later.
    async fn delete(&self, _table: TableId, names: &[String]) -> Vec<Deletion> {
        vec![Deletion::Left(self.kind()); names.len()]
    }

    /// Looks after an engine's quarantine for as long as the engine has its jobs run here: shows it to whoever looks
    /// on from elsewhere, and has what they order tried again. Dropped when that ends.
    async fn attend(&self, quarantine: &dyn QuarantineView) -> Infallible {
        let _ = quarantine;
        std::future::pending().await
    }

    /// `"local"`, `"remote"` or `"auto"`, for logs and stats.
    fn kind(&self) -> &'static str;

    /// Why its jobs wait, when they do for something outside of it.
    fn waiting(&self) -> Option<String> {
        None
    }

    /// Jobs that it had to hand to another compactor, by reason.
    fn fallbacks(&self) -> BTreeMap<String, u64> {
        BTreeMap::new()
    }

    /// Jobs that were due to be handed to another compactor, and had to wait because it has enough of them.
    fn fallbacks_held(&self) -> u64 {
        0
    }

    /// Where it had jobs run, when that was for it to decide.
    fn decisions(&self) -> Decisions {
        Decisions::default()
    }
}
