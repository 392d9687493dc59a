//! What an engine keeps of SSTs in memory, and on a local disk.

use std::path::PathBuf;

use serde::Deserialize;

use super::{Bytes, Faults};

/// What an engine keeps of the SSTs that it reads.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CacheConfig {
    /// Memory for what is known of opened SSTs: footers, page indexes, key filters. An SST whose entry is gone is
    /// opened again, with one or two requests. Default: `"64MiB"`.
    pub metadata_bytes: Bytes,
    /// Memory for data pages, as they are stored: compressed. Compaction neither reads nor fills it. `0` for none.
    /// Default: `"128MiB"`.
    pub data_bytes: Bytes,
    /// A folder on a local disk that takes the pages which memory has no room for; it survives a restart, and may be
    /// deleted while no engine runs. Not to be shared by two engines. Default: none.
    pub disk_dir: Option<PathBuf>,
    /// Size of that folder. Default: `"8GiB"`.
    pub disk_bytes: Bytes,
}

impl Default for CacheConfig {
    fn default() -> Self {
        Self {
            metadata_bytes: Bytes::mib(64),
            data_bytes: Bytes::mib(128),
            disk_dir: None,
            disk_bytes: Bytes::mib(8 << 10),
        }
    }
}

impl CacheConfig {
    /// The least size of a disk cache: a few of the blocks that it is written in.
    const DISK_BYTES_MIN: Bytes = Bytes::mib(64);

    pub(super) fn check(&self, faults: &mut Faults) {
        let has_disk = self.disk_dir.is_some();
        faults.check(!has_disk || self.disk_bytes >= Self::DISK_BYTES_MIN, || {
            let (bytes, min) = (self.disk_bytes, Self::DISK_BYTES_MIN);
            format!("cache.disk_bytes {bytes} is less than {min}")
        });
        faults.check(!has_disk || self.data_bytes.0 > 0, || {
            "cache.disk_dir is of no use while cache.data_bytes is 0: the disk takes what leaves the memory".into()
        });
    }
}
