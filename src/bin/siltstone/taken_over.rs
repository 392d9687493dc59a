//! Roots that a command takes over for a while, as an engine of its own: an engine that has the root open is fenced,
//! and stops. Rows that are in a write-ahead log only are safe: a root is not opened with another one.

use std::path::Path;

use siltstone::{
    cli,
    config::{CompactionMode, EngineConfig},
    engine::Engine,
    error::Result,
};

use crate::inspect::open_root;

/// The configuration in `file`, or else the defaults, for the root at `root`, which must be there.
///
/// # Errors
/// `NotFound`; `Invalid`, naming file and key.
pub fn config(root: &str, file: Option<&Path>) -> Result<EngineConfig> {
    let root = open_root(root)?.url().to_owned();
    let (origin, mut text) = cli::read_config(file)?;
    if file.is_none() {
        text = format!("root = {root:?}");
    }
    let mut config = EngineConfig::from_toml(&origin, &text)?;
    config.root = root;
    config.validate()?;
    Ok(config)
}

/// Opens the root at `root`, without compaction.
///
/// # Errors
/// As for [`config`], and for [`Engine::open`].
pub async fn open(root: &str, file: Option<&Path>) -> Result<Engine> {
    let mut config = config(root, file)?;
    config.compaction.mode = CompactionMode::Off;
    Engine::open(config).await
}
