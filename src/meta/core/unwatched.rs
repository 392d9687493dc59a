//! Jobs that nobody waits for any more: their engine has died, or lost their table, and will not release
//! them. Soft: after a restart every job counts as just watched.

use std::{collections::BTreeMap, time::Duration};

use tracing::info;

use super::Core;
use crate::{error::Result, meta::state::Request, types::JobId};

/// How long a job may go unwatched. An engine that lives watches its jobs without a break.
const UNWATCHED_MAX: Duration = Duration::from_secs(3600);
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// When each job was last submitted or watched, on the monotonic clock.
#[derive(Debug, Default)]
pub(super) struct Watched {
    at: BTreeMap<JobId, Duration>,
    swept: Duration,
}

impl Watched {
    /// Somebody wants `job`.
    pub(super) fn touch(&mut self, job: JobId, now: Duration) {
        self.at.insert(job, now);
    }

    /// Counts those among `jobs` that have not been heard of as watched now.
    pub(super) fn add(&mut self, jobs: impl Iterator<Item = JobId>, now: Duration) {
        for job in jobs {
            self.at.entry(job).or_insert(now);
        }
    }

    /// Jobs to be dropped; none between two sweeps. Forgets those that are not `known`.
    fn sweep(&mut self, now: Duration, known: impl Fn(JobId) -> bool) -> Vec<JobId> {
        if now < self.swept + SWEEP_INTERVAL {
            return Vec::new();
        }
        self.swept = now;
        self.at.retain(|&job, _| known(job));
        let unwatched = self.at.iter();
        let unwatched = unwatched.filter(|(_, at)| now.saturating_sub(**at) > UNWATCHED_MAX);
        unwatched.map(|(&job, _)| job).collect()
    }
}

impl Core {
    /// Releases jobs that nobody watches; their running tasks are stopped.
    pub(super) fn drop_unwatched(&mut self) -> Result<()> {
        let now = self.now().monotonic;
        let known = |job| self.state.job(job).is_some();
        for job in self.watched.sweep(now, known) {
            info!(%job, "job dropped: nobody has watched it for {UNWATCHED_MAX:?}");
            self.change(&Request::Release(job))?;
        }
        Ok(())
    }
}
