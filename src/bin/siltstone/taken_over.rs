//! Roots that a command takes over for a while, as an engine of its own: an engine that has the root open is fenced,
//! and stops. Rows that are in a write-ahead log only are safe: a root is not opened with another one.

use std::path::{Path, PathBuf};

use siltstone::{
    cli,
    config::{CompactionMode, EngineConfig},
    engine::Engine,
    error::{Error, Result},
};
use url::Url;

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

/// As [`open`]; but where there is no root, there is one afterwards.
///
/// # Errors
/// As for [`open`].
pub async fn open_or_create(root: &str, file: Option<&Path>) -> Result<Engine> {
    let path = match Url::parse(root) {
        Ok(url) if root.contains("://") => (url.scheme() == "file")
            .then(|| url.to_file_path().ok())
            .flatten(),
        _ => Some(PathBuf::from(root)),
    };
    if let Some(path) = path {
        std::fs::create_dir_all(&path).map_err(|error| {
            let path = path.display();
            Error::invalid(format!("folder {path} cannot be created")).with_source(error)
        })?;
    }
    open(root, file).await
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
