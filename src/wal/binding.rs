//! What ties the log in a directory to a root: its id, which the root's catalog names; and in return the root's id, with
//! the epoch of the last engine of that root that took the log.
//!
//! Two files of one line each, replaced whole: `ID` and `ROOT`. Without them, a log whose rows were given up, or which
//! is another root's, would be replayed into tables that went on without it, or be deleted as nobody's.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
};

use super::replay::{failed, list, segment_path, sync_dir};
use crate::{
    error::{Error, Result},
    types::Epoch,
};

/// The root that a log belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Binding {
    /// The root's id.
    pub root: String,
    /// Of the last engine that took the log.
    pub epoch: Epoch,
}

/// The id of the log in `dir`; made of `random` when it has none.
pub(super) fn identify(dir: &Path, random: u128) -> Result<String> {
    if let Some(id) = read(dir, "ID")? {
        return Ok(id);
    }
    let id = format!("{random:032x}");
    write(dir, "ID", &id)?;
    Ok(id)
}

/// What the log in `dir` is bound to, if it ever was.
pub(super) fn binding(dir: &Path) -> Result<Option<Binding>> {
    let Some(line) = read(dir, "ROOT")? else {
        return Ok(None);
    };
    let damaged = || {
        let path = dir.join("ROOT");
        Error::corrupt(format!("{} holds {line:?}", path.display()))
    };
    let (root, epoch) = line.split_once(' ').ok_or_else(damaged)?;
    Ok(Some(Binding {
        root: root.to_owned(),
        epoch: Epoch(epoch.parse().map_err(|_| damaged())?),
    }))
}

/// Binds the log in `dir`. If its last engine was one before `since`, when the root began to use this log,
/// what is in it was given up: it is removed.
///
/// # Errors
/// `Corrupt` when there are segments and nothing tells whose they are; `Unavailable`.
pub(super) fn bind(dir: &Path, binding: &Binding, since: Epoch) -> Result<()> {
    let (segments, _) = list(dir)?;
    let last = self::binding(dir)?;
    if last.is_none() && !segments.is_empty() {
        let path = dir.join("ROOT");
        return Err(Error::corrupt(format!(
            "{} is missing beside wal segments",
            path.display()
        )));
    }
    if last.is_some_and(|last| last.epoch < since) {
        for number in segments {
            let path = segment_path(dir, number);
            tracing::warn!(path = %path.display(), "wal segment was given up, and is removed");
            fs::remove_file(&path).map_err(|error| failed("remove", &path, error))?;
        }
        sync_dir(dir)?;
    }
    write(dir, "ROOT", &format!("{} {}", binding.root, binding.epoch))
}

fn read(dir: &Path, name: &str) -> Result<Option<String>> {
    let path = dir.join(name);
    match fs::read_to_string(&path) {
        Ok(line) => Ok(Some(line.trim().to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("read", &path, error)),
    }
}

fn write(dir: &Path, name: &str, line: &str) -> Result<()> {
    let path = dir.join(name);
    let staged = path.with_extension("tmp");
    let written = (|| {
        let mut file = File::create(&staged)?;
        writeln!(file, "{line}")?;
        file.sync_all()?;
        fs::rename(&staged, &path)
    })();
    written.map_err(|error| failed("write", &path, error))?;
    sync_dir(dir)
}
