//! Configuration: TOML, overlaid by `SILTSTONE_…` environment variables. Unknown keys are refused, and
//! `validate` reports every fault at once. `docs` of each field are the reference that the README links.

mod cache;
mod compaction;
mod engine;
mod load;
mod meta;
mod node;
mod reader;
mod store;
mod units;

pub use cache::CacheConfig;
pub use compaction::{
    CompactionConfig, CompactionMode, Fallback, LocalConfig, PlanningConfig, RemoteConfig,
};
pub use engine::{EngineConfig, GcConfig, MemoryConfig, WalConfig, WalMode};
pub use load::{ENV_PREFIX, META_ENV_PREFIX, NODE_ENV_PREFIX};
pub use meta::MetaConfig;
pub use node::NodeConfig;
pub use reader::ReaderConfig;
pub use store::StoreConfig;
pub use units::{Bytes, Millis};

pub(crate) use load::Faults;
