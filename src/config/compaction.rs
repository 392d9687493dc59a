//! What an engine can be told about compaction.

use std::str::FromStr;

use serde::Deserialize;

use super::{Bytes, Faults, Millis};
use crate::error::{Error, Result};

/// Compaction: when, and by whom.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CompactionConfig {
    /// `"local"`: in this process. `"remote"`: on compaction nodes. `"auto"`: either or both, decided for each job by
    /// what it would cost. `"off"`: not at all, unless `compact` is called. Default: `"local"`.
    pub mode: CompactionMode,
    /// Level-0 runs in a window that make a job. At least 2. Default: 4.
    pub l0_runs_trigger: usize,
    /// Level-0 runs in a window from which on writes are slowed down, the more the nearer the stop and the
    /// longer compaction needs. At least the trigger. Default: 16.
    pub l0_runs_slowdown: usize,
    /// Level-0 runs in a window at which writes wait for compaction. Above the slowdown. Default: 32.
    pub l0_runs_stop: usize,
    /// Size at which a compacted SST ends and the next begins. Default: `"128MiB"`.
    pub sst_bytes_target: Bytes,
    /// Input bytes of one task, about. Default: `"256MiB"`.
    pub task_bytes_target: Bytes,
    /// Attempts at a task before its inputs are left alone. Default: 4.
    pub task_attempts_max: u32,
    /// What planners go by.
    pub planning: PlanningConfig,
    /// Jobs in this process, for `mode = "local"` and `"auto"`, and for falling back to it.
    pub local: LocalConfig,
    /// The meta service, for `mode = "remote"` and `"auto"`.
    pub remote: RemoteConfig,
}

/// What planners go by.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PlanningConfig {
    /// Input bytes of one job at most, where there is a smaller one that helps; and, divided by
    /// `task_bytes_target`, its number of tasks. At least as much as the runs that trigger a job can hold.
    /// Default: `"4GiB"`.
    pub job_bytes_max: Bytes,
    /// Age of a window's end, and of its newest flush, at which it is merged to a single run without another
    /// write; and age at which an SST full of tombstones is merged to drop them. Default: `"1h"`.
    pub settle: Millis,
    /// Leveled tables: size of the topmost level, at the least. Default: `"256MiB"`.
    pub level_bytes_min: Bytes,
    /// Leveled tables: how many times as large as the level above a level is. At least 2. Default: 10.
    pub level_ratio: u64,
    /// Tiered tables: runs of similar size that are merged, at the least. At least 2. Default: 4.
    pub tier_runs: usize,
    /// Tiered tables: a run is similar to the newer ones beside it while it is no larger than so many
    /// hundredths of their sum. At least 1. Default: 100.
    pub tier_ratio_percent: u64,
}

/// Compaction jobs in this process.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LocalConfig {
    /// Jobs that run at once. Of two or more, one is kept for level 0. Default: 2.
    pub jobs_max: usize,
    /// Tasks that run at once, over all jobs; each running job has one at least. At least `jobs_max`. Default: 3.
    pub tasks_max: usize,
    /// Memory for merging, over all tasks that run at once; also bounds how many runs one job merges, wherever
    /// it runs. A task that needs more is cut in two. At least `"192MiB"`. Default: `"512MiB"`.
    pub memory_bytes_max: Bytes,
    /// How long a task may run: then what is left of it is cut in two. At least `"1s"`. Default: `"10m"`.
    pub task_time_max: Millis,
    /// Bytes of objects, read and written together, that compaction in this process may use in a second, on average.
    /// At least `"64KiB"`. Default: no limit.
    pub bytes_per_second_max: Option<Bytes>,
}

/// Who runs compaction jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompactionMode {
    /// This process.
    #[default]
    Local,
    /// Compaction nodes, found and fed by the meta service.
    Remote,
    /// For each job whoever costs less: this process, nodes, or both.
    Auto,
    /// Nobody.
    Off,
}

impl CompactionMode {
    /// Whether jobs may go to compaction nodes.
    pub fn uses_nodes(self) -> bool {
        matches!(self, Self::Remote | Self::Auto)
    }

    /// The mode as it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Remote => "remote",
            Self::Auto => "auto",
            Self::Off => "off",
        }
    }
}

impl FromStr for CompactionMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "local" => Ok(Self::Local),
            "remote" => Ok(Self::Remote),
            "auto" => Ok(Self::Auto),
            "off" => Ok(Self::Off),
            _ => Err(Error::invalid(format!(
                "compaction mode {text:?} is not one of local, remote, auto, off"
            ))),
        }
    }
}

/// The meta service, as an engine sees it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RemoteConfig {
    /// Addresses of meta services, tried in order: `["http://10.0.0.1:7400"]`. All must share one plan log,
    /// and only one of them serves at a time: metas with logs of their own split the fleet.
    pub meta: Vec<String>,
    /// Runs a meta service inside this process, listening here for nodes: `"0.0.0.0:7400"`.
    /// Instead of `meta`.
    pub serve: Option<String>,
    /// What to do when the meta service, or every node that could run a job, is away for longer than
    /// `fallback_after`: `"wait"` on, or run the job in this process (`"local"`), within the bounds of `local`. Deletions are no
    /// jobs in this sense: the engine then deletes by itself.
    /// With `mode = "auto"` it is always `"local"`. Default: `"wait"`.
    pub fallback: Fallback,
    /// See `fallback`. Default: `"30s"`.
    pub fallback_after: Millis,
    /// Jobs that run in this process at once by `fallback`; others go on waiting for the fleet. Of two or more, one is
    /// kept for level 0. Default: 2.
    pub fallback_jobs_max: usize,
    /// Jobs of this engine outstanding at the meta service at most. Fewer while the nodes have less room than
    /// that. Default: 8.
    pub jobs_max: usize,
    /// Only nodes of this pool get its jobs: `"large"`. Default: any.
    pub pool: String,
    /// Where the engine is: among equal nodes, one in the same zone gets a task. Default: nowhere.
    pub zone: String,
}

/// What to do when no remote compaction is to be had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fallback {
    /// Wait until it is.
    #[default]
    Wait,
    /// Compact in this process.
    Local,
}

impl Default for CompactionConfig {
    fn default() -> Self {
        Self {
            mode: CompactionMode::Local,
            l0_runs_trigger: 4,
            l0_runs_slowdown: 16,
            l0_runs_stop: 32,
            sst_bytes_target: Bytes::mib(128),
            task_bytes_target: Bytes::mib(256),
            task_attempts_max: 4,
            planning: PlanningConfig::default(),
            local: LocalConfig::default(),
            remote: RemoteConfig::default(),
        }
    }
}

impl Default for PlanningConfig {
    fn default() -> Self {
        Self {
            job_bytes_max: Bytes::mib(4096),
            settle: Millis::secs(3600),
            level_bytes_min: Bytes::mib(256),
            level_ratio: 10,
            tier_runs: 4,
            tier_ratio_percent: 100,
        }
    }
}

impl Default for LocalConfig {
    fn default() -> Self {
        Self {
            jobs_max: 2,
            tasks_max: 3,
            memory_bytes_max: Bytes::mib(512),
            task_time_max: Millis::secs(600),
            bytes_per_second_max: None,
        }
    }
}

impl Default for RemoteConfig {
    fn default() -> Self {
        Self {
            meta: Vec::new(),
            serve: None,
            fallback: Fallback::Wait,
            fallback_after: Millis::secs(30),
            fallback_jobs_max: 2,
            jobs_max: 8,
            pool: String::new(),
            zone: String::new(),
        }
    }
}

impl CompactionConfig {
    /// Checks what the types cannot.
    ///
    /// # Errors
    /// `Invalid`, listing every fault.
    pub fn validate(&self) -> Result<()> {
        let mut faults = Faults::default();
        self.check(&mut faults);
        faults.into_result()
    }

    pub(super) fn check(&self, faults: &mut Faults) {
        let trigger = self.l0_runs_trigger;
        faults.check(trigger >= 2, || {
            format!("compaction.l0_runs_trigger {trigger} is less than 2")
        });
        let (slowdown, stop) = (self.l0_runs_slowdown, self.l0_runs_stop);
        faults.check(slowdown >= trigger, || {
            format!("compaction.l0_runs_slowdown {slowdown} is below l0_runs_trigger {trigger}: writes would be slowed down for ever")
        });
        faults.check(stop > slowdown && stop > trigger, || {
            format!("compaction.l0_runs_stop {stop} is not above l0_runs_slowdown {slowdown} and l0_runs_trigger {trigger}: writes would wait for ever")
        });
        for (name, is_positive) in [
            ("sst_bytes_target", self.sst_bytes_target.0 > 0),
            ("task_bytes_target", self.task_bytes_target.0 > 0),
            ("task_attempts_max", self.task_attempts_max > 0),
            ("local.jobs_max", self.local.jobs_max > 0),
            ("remote.jobs_max", self.remote.jobs_max > 0),
            (
                "remote.fallback_jobs_max",
                self.remote.fallback_jobs_max > 0,
            ),
            (
                "planning.level_bytes_min",
                self.planning.level_bytes_min.0 > 0,
            ),
            (
                "planning.tier_ratio_percent",
                self.planning.tier_ratio_percent > 0,
            ),
        ] {
            faults.check(is_positive, || format!("compaction.{name} is 0"));
        }
        self.planning.check(faults);
        self.local.check(faults);
        self.remote.check(self.mode, faults);
    }
}

impl PlanningConfig {
    fn check(&self, faults: &mut Faults) {
        let (ratio, runs) = (self.level_ratio, self.tier_runs);
        faults.check(ratio >= 2, || {
            format!("compaction.planning.level_ratio {ratio} is less than 2: levels would be merged for ever")
        });
        faults.check(runs >= 2, || {
            format!(
                "compaction.planning.tier_runs {runs} is less than 2: runs would be merged for ever"
            )
        });
        faults.check(self.job_bytes_max.0 > 0, || {
            "compaction.planning.job_bytes_max is 0".into()
        });
    }
}

impl LocalConfig {
    /// What merging two runs can need.
    pub const MEMORY_BYTES_MIN: u64 = 192 << 20;

    fn check(&self, faults: &mut Faults) {
        let (memory, min) = (self.memory_bytes_max, Bytes(Self::MEMORY_BYTES_MIN));
        faults.check(memory >= min, || {
            format!("compaction.local.memory_bytes_max {memory} is below {min}, which merging two runs can need: jobs would wait for ever")
        });
        let (tasks, jobs) = (self.tasks_max, self.jobs_max);
        faults.check(tasks >= jobs, || {
            format!("compaction.local.tasks_max {tasks} is below jobs_max {jobs}")
        });
        let time = self.task_time_max;
        faults.check(time >= Millis::secs(1), || {
            format!("compaction.local.task_time_max {time} is below 1s")
        });
        let rate = self.bytes_per_second_max;
        let is_enough = rate.is_none_or(|rate| rate.0 >= 64 << 10);
        faults.check(is_enough, || {
            let rate = rate.unwrap_or_default();
            format!("compaction.local.bytes_per_second_max {rate} is below 64KiB")
        });
    }
}

impl RemoteConfig {
    fn check(&self, mode: CompactionMode, faults: &mut Faults) {
        let (some_meta, serves) = (!self.meta.is_empty(), self.serve.is_some());
        faults.check(!mode.uses_nodes() || some_meta || serves, || {
            let mode = mode.as_str();
            format!(
                "compaction.mode is {mode:?}, but neither compaction.remote.meta nor .serve is set"
            )
        });
        faults.check(!(some_meta && serves), || {
            "compaction.remote.meta and .serve are both set".into()
        });
    }
}
