//! What an engine can be told.

use std::path::PathBuf;

use serde::Deserialize;

use super::{
    Bytes, CacheConfig, CompactionConfig, Faults, Millis, ReaderConfig, StoreConfig, load,
};
use crate::error::Result;

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
    /// What is kept of SSTs that are read.
    #[serde(default)]
    pub cache: CacheConfig,
    /// Compaction: when, and by whom.
    #[serde(default)]
    pub compaction: CompactionConfig,
    /// Deletion of what nobody needs any more.
    #[serde(default)]
    pub gc: GcConfig,
    /// Requests to the object store.
    #[serde(default)]
    pub store: StoreConfig,
    /// Reading a root that another process's engine has open.
    #[serde(default)]
    pub reader: ReaderConfig,
}

/// Deletion of what nobody needs any more.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GcConfig {
    /// How long an SST that a compaction replaced is kept, at the least; for as long as a scan reads it, it
    /// is kept in any case. Default: `"5m"`.
    pub grace: Millis,
    /// How often all that is stored is listed, to find and delete what lost attempts and killed engines left
    /// behind. The first time soon after open. Default: `"10m"`.
    pub orphans_interval: Millis,
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
    /// Memory for batches under way and the memtables of all tables. From half of it on the largest memtable
    /// is flushed ahead of need, from three quarters on writes are slowed down, and at all of it they wait.
    /// Default: `"256MiB"`.
    pub write_bytes_max: Bytes,
    /// Size at which one table's memtable is frozen and flushed. Default: `"64MiB"`.
    pub memtable_bytes: Bytes,
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

impl Default for GcConfig {
    fn default() -> Self {
        Self {
            grace: Millis::secs(300),
            orphans_interval: Millis::secs(600),
            log_grace: Millis::secs(600),
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
            cache: CacheConfig::default(),
            compaction: CompactionConfig::default(),
            gc: GcConfig::default(),
            store: StoreConfig::default(),
            reader: ReaderConfig::default(),
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
        self.check_reading(&mut faults);
        let memory = &self.memory;
        faults.check(memory.memtable_bytes.0 > 0, || {
            "memory.memtable_bytes is 0".into()
        });
        faults.check(memory.memtable_bytes <= memory.write_bytes_max, || {
            let (table, all) = (memory.memtable_bytes, memory.write_bytes_max);
            format!("memory.memtable_bytes {table} is above memory.write_bytes_max {all}: writes would wait for ever")
        });
        self.compaction.check(&mut faults);
        let (job, trigger) = (
            self.compaction.planning.job_bytes_max,
            self.compaction.l0_runs_trigger,
        );
        let runs_bytes = memory.memtable_bytes.0.saturating_mul(trigger as u64);
        faults.check(job.0 >= runs_bytes, || {
            let memtable = memory.memtable_bytes;
            format!("compaction.planning.job_bytes_max {job} is less than the {trigger} runs of memory.memtable_bytes {memtable} that make a job")
        });
        faults.into_result()
    }

    /// As [`Self::validate`], as far as a reader goes by it.
    ///
    /// # Errors
    /// `Invalid`, listing every fault.
    pub fn validate_reader(&self) -> Result<()> {
        let mut faults = Faults::default();
        self.check_reading(&mut faults);
        faults.into_result()
    }

    fn check_reading(&self, faults: &mut Faults) {
        faults.check(self.gc.log_grace >= Millis::secs(10), || {
            format!("gc.log_grace {} is less than 10 s", self.gc.log_grace)
        });
        self.reader.check(faults);
        self.cache.check(faults);
        self.store.check(faults);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config::CompactionMode, error::ErrorKind};

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
                "root = 'file:///d'\ncompaction.planning.settle = 'soon'",
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

    #[test]
    fn what_must_deadlock_is_refused_all_at_once() {
        let faults = [
            ("memory.write_bytes_max = '1MiB'", "memtable_bytes 64"),
            ("compaction.l0_runs_trigger = 1", "l0_runs_trigger 1"),
            (
                "compaction.l0_runs_slowdown = 3\ncompaction.l0_runs_trigger = 8",
                "l0_runs_slowdown 3",
            ),
            ("compaction.l0_runs_stop = 16", "l0_runs_stop 16"),
            (
                "compaction.local.memory_bytes_max = '191MiB'",
                "memory_bytes_max",
            ),
            ("compaction.local.jobs_max = 0", "local.jobs_max is 0"),
            (
                "compaction.planning.job_bytes_max = '63MiB'",
                "job_bytes_max",
            ),
            ("compaction.planning.level_ratio = 1", "level_ratio 1"),
            ("compaction.planning.tier_runs = 1", "tier_runs 1"),
            (
                "compaction.planning.tier_ratio_percent = 0",
                "tier_ratio_percent is 0",
            ),
            ("reader.refresh = '61s'", "checkpoint_lifetime 10m"),
        ];
        for (line, wanted) in faults {
            let message = parse(&format!("root = 'file:///d'\n{line}"), &[]).unwrap_err();
            assert!(message.to_string().contains(wanted), "{line}: {message}");
        }
        let lines = faults
            .iter()
            .filter(|(line, _)| !line.contains("trigger = 8"));
        let text: String = lines.clone().map(|(line, _)| format!("{line}\n")).collect();
        let message = parse(&format!("root = 'file:///d'\n{text}"), &[]).unwrap_err();
        for (line, wanted) in lines {
            assert!(message.to_string().contains(wanted), "{line}: {message}");
        }
    }
}
