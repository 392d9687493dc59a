//! What an engine can be told.

use std::{path::PathBuf, str::FromStr};

use serde::Deserialize;

use super::{Bytes, Faults, Millis, StoreConfig, load};
use crate::error::{Error, Result};

/// Configuration of an engine.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineConfig {
    /// Where the data is: `file:///dir`, `memory:///`, `s3://bucket/prefix`, or, with the features of these names,
    /// `gs://bucket/prefix` and `az://container/prefix`. Required.
    pub root: String,
    /// Name of this database: its WAL folder, and its name as an owner of jobs at the meta service. Keep it,
    /// and `wal.dir`: rows that are in the WAL only are found again there and nowhere else. A root whose rows
    /// may be in another WAL is not opened. Default: `"siltstone"`.
    #[serde(default = "default_name")]
    pub name: String,
    /// The write-ahead log.
    #[serde(default)]
    pub wal: WalConfig,
    /// Memtables.
    #[serde(default)]
    pub memory: MemoryConfig,
    /// Compaction: when, and by whom.
    #[serde(default)]
    pub compaction: CompactionConfig,
    /// Deletion of what compaction replaced.
    #[serde(default)]
    pub gc: GcConfig,
    /// Requests to the object store.
    #[serde(default)]
    pub store: StoreConfig,
}

/// Deletion of what compaction replaced.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GcConfig {
    /// How long an SST that a compaction replaced is kept, at the least; for as long as a scan reads it, it
    /// is kept in any case. Default: `"5m"`.
    pub grace: Millis,
    /// How long records of catalog and manifests are kept after a snapshot made them needless. An engine
    /// that was suspended for longer, and overtaken, finds out by a listing. The same for all engines of a
    /// root: change it only while none runs. Default: `"10m"`.
    pub log_grace: Millis,
}

/// The write-ahead log.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WalConfig {
    /// `"local"`: on a local disk, fsynced in groups. `"object_store"`: under the root, so that rows survive
    /// the loss of this machine. `"none"`: a write is durable once flushed. Can be changed once the engine
    /// was closed with everything flushed. Default: `"local"`.
    pub mode: WalMode,
    /// Folder of the local WAL. Default: `<root>/wal/<name>/local` under a `file://` root; required under
    /// other roots.
    pub dir: Option<PathBuf>,
    /// Size at which a segment of the local WAL is closed and the next one begun. Default: `"64MiB"`.
    pub segment_bytes: Bytes,
    /// How long a write to the object WAL waits for others to share its request. Default: `"2ms"`.
    pub linger: Millis,
    /// Size of the WAL at which the tables whose rows keep it so long are flushed. Default: `"1GiB"`.
    pub bytes_max: Bytes,
}

/// Where the WAL is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WalMode {
    /// Appended files on a local disk.
    #[default]
    Local,
    /// A numbered log under the root.
    ObjectStore,
    /// Nowhere.
    None,
}

/// Memtables.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MemoryConfig {
    /// Memory for the memtables of all tables; writes wait while it is exceeded. Default: `"256MiB"`.
    pub write_bytes_max: Bytes,
    /// Size at which one table's memtable is frozen and flushed. Default: `"64MiB"`.
    pub memtable_bytes: Bytes,
}

/// Compaction: when, and by whom.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CompactionConfig {
    /// `"local"`: in this process. `"remote"`: on compaction nodes. `"off"`: not at all, unless
    /// `compact` is called. Default: `"local"`.
    pub mode: CompactionMode,
    /// Level-0 runs in a window that make a job. At least 2. Default: 4.
    pub l0_runs_trigger: usize,
    /// Level-0 runs in a window at which writes wait for compaction. Default: 32.
    pub l0_runs_stop: usize,
    /// Size at which a compacted SST ends and the next begins. Default: `"128MiB"`.
    pub sst_bytes_target: Bytes,
    /// Input bytes of one job at most; and, divided by it, its number of tasks. Default: `"4GiB"`.
    pub job_bytes_max: Bytes,
    /// Input bytes of one task, about. Default: `"256MiB"`.
    pub task_bytes_target: Bytes,
    /// Jobs that run at once in this process. Default: 1.
    pub local_jobs_max: usize,
    /// Attempts at a task before its inputs are left alone. Default: 4.
    pub task_attempts_max: u32,
    /// Age of a window's end at which it is merged to a single run without another write.
    /// Default: `"1h"`.
    pub window_settle: Millis,
    /// The meta service, for `mode = "remote"`.
    pub remote: RemoteConfig,
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
    /// Nobody.
    Off,
}

impl FromStr for CompactionMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "local" => Ok(Self::Local),
            "remote" => Ok(Self::Remote),
            "off" => Ok(Self::Off),
            _ => Err(Error::invalid(format!(
                "compaction mode {text:?} is not one of local, remote, off"
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
    /// What to do when the meta service is away for longer than `fallback_after`: `"wait"` on, or run
    /// the job in this process (`"local"`). Default: `"wait"`.
    pub fallback: Fallback,
    /// See `fallback`. Default: `"30s"`.
    pub fallback_after: Millis,
    /// Jobs of this engine outstanding at the meta service at most. Default: 8.
    pub jobs_max: usize,
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

fn default_name() -> String {
    "siltstone".into()
}

impl Default for WalConfig {
    fn default() -> Self {
        Self {
            mode: WalMode::Local,
            dir: None,
            segment_bytes: Bytes::mib(64),
            linger: Millis(2),
            bytes_max: Bytes::mib(1024),
        }
    }
}

impl Default for MemoryConfig {
    fn default() -> Self {
        Self {
            write_bytes_max: Bytes::mib(256),
            memtable_bytes: Bytes::mib(64),
        }
    }
}

impl Default for CompactionConfig {
    fn default() -> Self {
        Self {
            mode: CompactionMode::Local,
            l0_runs_trigger: 4,
            l0_runs_stop: 32,
            sst_bytes_target: Bytes::mib(128),
            job_bytes_max: Bytes::mib(4096),
            task_bytes_target: Bytes::mib(256),
            local_jobs_max: 1,
            task_attempts_max: 4,
            window_settle: Millis::secs(3600),
            remote: RemoteConfig::default(),
        }
    }
}

impl Default for GcConfig {
    fn default() -> Self {
        Self {
            grace: Millis::secs(300),
            log_grace: Millis::secs(600),
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
            jobs_max: 8,
        }
    }
}

impl EngineConfig {
    /// The defaults, for the data at `root`.
    pub fn new(root: impl Into<String>) -> Self {
        Self {
            root: root.into(),
            name: default_name(),
            wal: WalConfig::default(),
            memory: MemoryConfig::default(),
            compaction: CompactionConfig::default(),
            gc: GcConfig::default(),
            store: StoreConfig::default(),
        }
    }

    /// Reads TOML `text`, overlaid by the process's `SILTSTONE_…` environment variables, and validates
    /// it. `origin` names the text in messages.
    ///
    /// # Errors
    /// `Invalid`, naming origin and key.
    pub fn from_toml(origin: &str, text: &str) -> Result<Self> {
        Self::from_toml_and_env(origin, text, std::env::vars())
    }

    /// As [`Self::from_toml`], with other variables than the process's.
    pub fn from_toml_and_env(
        origin: &str,
        text: &str,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self> {
        let config: Self = load::parse(origin, text, load::ENV_PREFIX, environment)?;
        config.validate()?;
        Ok(config)
    }

    /// Checks what the types cannot.
    ///
    /// # Errors
    /// `Invalid`, listing every fault.
    pub fn validate(&self) -> Result<()> {
        let mut faults = Faults::default();
        let name_is_plain = !self.name.is_empty()
            && self
                .name
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
        faults.check(name_is_plain && !self.name.starts_with('.'), || {
            format!(
                "name {:?} must be letters, digits, '-', '_' and '.'",
                self.name
            )
        });
        let is_file = self.root.starts_with("file:");
        faults.check(
            self.wal.mode != WalMode::Local || self.wal.dir.is_some() || is_file,
            || {
                format!(
                    "wal.dir is needed for a local wal under root {:?}",
                    self.root
                )
            },
        );
        faults.check(self.wal.segment_bytes.0 >= 64 << 10, || {
            format!(
                "wal.segment_bytes {} is less than 64 KiB",
                self.wal.segment_bytes
            )
        });
        faults.check(self.wal.bytes_max >= Bytes::mib(1), || {
            format!("wal.bytes_max {} is less than 1 MiB", self.wal.bytes_max)
        });
        faults.check(self.gc.log_grace >= Millis::secs(10), || {
            format!("gc.log_grace {} is less than 10 s", self.gc.log_grace)
        });
        let memory = &self.memory;
        faults.check(memory.memtable_bytes.0 > 0, || {
            "memory.memtable_bytes is 0".into()
        });
        faults.check(memory.memtable_bytes <= memory.write_bytes_max, || {
            let (table, all) = (memory.memtable_bytes, memory.write_bytes_max);
            format!("memory.memtable_bytes {table} is above memory.write_bytes_max {all}: writes would wait for ever")
        });
        self.compaction.check(&mut faults);
        self.store.check(&mut faults);
        faults.into_result()
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

    fn check(&self, faults: &mut Faults) {
        let trigger = self.l0_runs_trigger;
        faults.check(trigger >= 2, || {
            format!("compaction.l0_runs_trigger {trigger} is less than 2")
        });
        faults.check(self.l0_runs_stop > trigger, || {
            let stop = self.l0_runs_stop;
            format!("compaction.l0_runs_stop {stop} is not above l0_runs_trigger {trigger}: writes would wait for ever")
        });
        faults.check(self.sst_bytes_target.0 > 0, || {
            "compaction.sst_bytes_target is 0".into()
        });
        faults.check(self.task_bytes_target.0 > 0, || {
            "compaction.task_bytes_target is 0".into()
        });
        faults.check(self.local_jobs_max > 0, || {
            "compaction.local_jobs_max is 0".into()
        });
        faults.check(self.task_attempts_max > 0, || {
            "compaction.task_attempts_max is 0".into()
        });
        let remote = &self.remote;
        faults.check(remote.jobs_max > 0, || {
            "compaction.remote.jobs_max is 0".into()
        });
        let (some_meta, serves) = (!remote.meta.is_empty(), remote.serve.is_some());
        faults.check(self.mode != CompactionMode::Remote || some_meta || serves, || {
            "compaction.mode is \"remote\", but neither compaction.remote.meta nor .serve is set".into()
        });
        faults.check(!(some_meta && serves), || {
            "compaction.remote.meta and .serve are both set".into()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn parse(text: &str, environment: &[(&str, &str)]) -> Result<EngineConfig> {
        let environment = environment
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_string()));
        EngineConfig::from_toml_and_env("test.toml", text, environment)
    }

    #[test]
    fn defaults_are_valid_and_one_line_switches() {
        let config = parse("root = 'file:///data'", &[]).unwrap();
        assert_eq!(config, EngineConfig::new("file:///data"));
        let text = "root = 'file:///data'\n[compaction]\nmode = 'remote'\nremote.meta = ['http://m:1']\nsst_bytes_target = '8MiB'";
        let config = parse(text, &[]).unwrap();
        assert_eq!(config.compaction.mode, CompactionMode::Remote);
        assert_eq!(config.compaction.sst_bytes_target, Bytes::mib(8));
    }

    #[test]
    fn variables_override_the_file() {
        let variables = [
            ("SILTSTONE_COMPACTION__L0_RUNS_TRIGGER", "7"),
            ("SILTSTONE_MEMORY__MEMTABLE_BYTES", "2MiB"),
            ("SILTSTONE_COMPACTION__REMOTE__META", "['http://a:1']"),
            ("SILTSTONE_META_LISTEN", "127.0.0.1:0"),
            ("SILTSTONE_NODE_SLOTS", "3"),
            ("OTHER", "x"),
        ];
        let config = parse("root = 'memory:///'\nwal.mode = 'none'", &variables).unwrap();
        assert_eq!(config.compaction.l0_runs_trigger, 7);
        assert_eq!(config.memory.memtable_bytes, Bytes::mib(2));
        assert_eq!(config.compaction.remote.meta, ["http://a:1"]);
    }

    #[test]
    fn faults_name_the_key_and_come_all_at_once() {
        for (text, wanted) in [
            (
                "root = 'file:///d'\ncompactoin.mode = 'local'",
                "compactoin",
            ),
            (
                "root = 'file:///d'\nmemory.memtable_bytes = '64 parsecs'",
                "64 parsecs",
            ),
            (
                "root = 'file:///d'\ncompaction.window_settle = 'soon'",
                "soon",
            ),
            ("root = 'file:///d'\ncompaction.mode = 'maybe'", "maybe"),
            ("name = 'x'", "root"),
            ("root = ", "test.toml"),
        ] {
            let error = parse(text, &[]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains(wanted), "{error}");
        }
        let text = "root = 's3://b'\nname = 'a/b'\n[compaction]\nl0_runs_stop = 3\nmode = 'remote'";
        let message = parse(text, &[]).unwrap_err().to_string();
        for wanted in ["a/b", "wal.dir", "l0_runs_stop 3", "remote.meta"] {
            assert!(message.contains(wanted), "{wanted} missing from: {message}");
        }
    }
}
