//! Staging files from the outside: what a crash left of objects that were being written. One that is deleted under
//! its writer costs him an error and another attempt, never an object: naming it fails.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::UNIX_EPOCH,
};

use super::failed;
use crate::{
    error::Result,
    store::{ObjectInfo, layout, store_error},
};

/// Every staging file below `root` of an object that a root can have. Blocks.
pub(in crate::store) fn list_staged(root: &Path) -> Result<Vec<ObjectInfo>> {
    let mut found = Vec::new();
    let mut dirs = vec![root.to_path_buf()];
    while let Some(dir) = dirs.pop() {
        let listed = list_dir(root, &dir, &mut dirs, &mut found);
        // It may have been deleted meanwhile.
        if let Err(error) = listed
            && error.kind() != io::ErrorKind::NotFound
        {
            let name = dir.display().to_string();
            return Err(store_error("list", &name, failed("list", &dir, error)));
        }
    }
    Ok(found)
}

fn list_dir(
    root: &Path,
    dir: &Path,
    dirs: &mut Vec<PathBuf>,
    found: &mut Vec<ObjectInfo>,
) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            dirs.push(entry.path());
            continue;
        }
        let path = entry.path();
        let name = path.strip_prefix(root).ok().and_then(Path::to_str);
        let Some(name) = name.filter(|name| layout::staged(name).is_some()) else {
            continue;
        };
        let file = match entry.metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            file => file?,
        };
        let since = file.modified()?.duration_since(UNIX_EPOCH);
        found.push(ObjectInfo {
            name: name.to_owned(),
            bytes: file.len(),
            modified_ms: since.map_or(0, |since| since.as_millis() as i64),
        });
    }
    Ok(())
}

/// Deletes the staging file at `path`, if it is there. Blocks.
pub(in crate::store) fn delete_staged(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            let name = path.display().to_string();
            Err(store_error("delete", &name, failed("delete", path, error)))
        }
        _ => Ok(()),
    }
}
