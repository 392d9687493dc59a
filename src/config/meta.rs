//! What a meta service can be told.

use serde::Deserialize;

use super::{Faults, Millis, load};
use crate::error::Result;

/// Configuration of a meta service.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MetaConfig {
    /// Where to listen for engines, nodes and the operator. Port 0 picks a free one.
    /// Default: `"127.0.0.1:7400"`.
    pub listen: String,
    /// Where `compaction-meta` serves `/metrics`, `/healthz` and `/readyz` over HTTP. Port 0 picks a free one.
    /// Default: nowhere.
    pub http: String,
    /// Root whose `meta/` folder keeps the plan log, as a store URL. `memory:///` keeps it in memory: a
    /// restart then forgets queued tasks until their engines submit them again. Default: `memory:///`.
    pub plan_log: String,
    /// How long a node may be silent about a task, or about itself, before it is taken for lost.
    /// Default: `"10s"`.
    pub lease: Millis,
    /// How long a task's progress may stand still, while its node goes on reporting it, before the task
    /// is taken away. Default: `"2m"`.
    pub stall_timeout: Millis,
    /// Attempts at a task before it is reported failed to its engine. Default: 4.
    pub task_attempts_max: u32,
    /// Tasks that may be queued or running. When there is no room for a job's, queued ones of lower pressure
    /// give way, and are submitted again by their engines later; if those are too few, the job is refused
    /// until there is room. Default: 100000.
    pub queue_tasks_max: usize,
    /// Jobs that one owner may have here; further ones are refused until some have ended. Default: 1000.
    pub jobs_per_owner_max: usize,
    /// Tasks that one job may have. Default: 10000.
    pub tasks_per_job_max: usize,
}

impl Default for MetaConfig {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:7400".into(),
            http: String::new(),
            plan_log: "memory:///".into(),
            lease: Millis::secs(10),
            stall_timeout: Millis::secs(120),
            task_attempts_max: 4,
            queue_tasks_max: 100_000,
            jobs_per_owner_max: 1_000,
            tasks_per_job_max: 10_000,
        }
    }
}

impl MetaConfig {
    /// Reads TOML `text`, overlaid by the process's `SILTSTONE_META_…` environment variables, and validates it.
    ///
    /// # Errors
    /// `Invalid`, naming origin and key.
    pub fn from_toml(origin: &str, text: &str) -> Result<Self> {
        let config: Self = load::parse(origin, text, load::META_ENV_PREFIX, std::env::vars())?;
        config.validate()?;
        Ok(config)
    }

    /// Checks what the types cannot.
    ///
    /// # Errors
    /// `Invalid`, listing every fault.
    pub fn validate(&self) -> Result<()> {
        let mut faults = Faults::default();
        faults.check(self.lease.0 >= 100, || {
            format!("lease {} is shorter than 100ms", self.lease)
        });
        faults.check(self.stall_timeout >= self.lease, || {
            format!(
                "stall_timeout {} is shorter than lease {}",
                self.stall_timeout, self.lease
            )
        });
        faults.check(self.task_attempts_max > 0, || {
            "task_attempts_max is 0".into()
        });
        for (name, max) in [
            ("queue_tasks_max", self.queue_tasks_max),
            ("jobs_per_owner_max", self.jobs_per_owner_max),
            ("tasks_per_job_max", self.tasks_per_job_max),
        ] {
            faults.check(max > 0, || format!("{name} is 0"));
        }
        faults.into_result()
    }
}
