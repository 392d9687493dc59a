//! Local directories, made to survive a power cut. `object_store`'s `LocalFileSystem` reads, lists and
//! deletes; writing is ours, because it does not fsync.
//!
//! Every object, put whole or in parts, is written in the same steps:
//! 1. create the directories that are missing, and fsync the parent of each;
//! 2. write a staging file `<name>#<digits>` beside the object: names that listings skip and that no
//!    object can have;
//! 3. fsync it;
//! 4. give it its final name: `hard_link`, which fails when there is one (create), or `rename`
//!    (overwrite);
//! 5. fsync the directory.
//!
//! So under a final name there is never a torn object, and an object whose writing was confirmed stays.
//! A crash can leave a staging file behind; it disturbs nobody, and `staged` finds it.
//!
//! When step 5 fails, the object is there, but may not survive. It is not taken back, for others may have
//! seen it, and built on it. But this store answers no read of that directory before it has been fsynced:
//! whoever looks whether his object was written must not believe in one that can vanish.

use std::{
    collections::HashSet,
    fmt,
    fs::{self, File, OpenOptions},
    io::{self, Seek, SeekFrom, Write},
    ops::Range,
    path::{Path as FilePath, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use async_trait::async_trait;
use bytes::Bytes;
use futures::{FutureExt, stream::BoxStream};
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result as StoreResult,
    UploadPart, local::LocalFileSystem, path::Path,
};
use url::Url;

mod staged;

use super::Backend;
use crate::error::{Error, Result};
pub(super) use staged::{delete_staged, list_staged};

/// Opens the directory that a `file://` URL names; creates it when it is missing.
///
/// # Errors
/// `Invalid` when the URL names no local directory; `Unavailable` when it cannot be created.
pub(super) fn open(url: &Url) -> Result<Backend> {
    let root = url.to_file_path().map_err(|()| {
        Error::invalid(format!(
            "store url {:?} does not name a directory of this machine",
            url.as_str()
        ))
    })?;
    let unavailable = |error: object_store::Error| {
        Error::unavailable(format!("open store {:?}", url.as_str())).with_source(error)
    };
    create_dirs(&root).map_err(unavailable)?;
    let files = LocalFileSystem::new_with_prefix(&root).map_err(unavailable)?;
    let objects = DurableLocal {
        files,
        durable_dirs: Arc::default(),
    };
    Ok(Backend {
        objects: Arc::new(objects),
        parts: None,
        root: Path::default(),
        url: url.as_str().to_owned(),
    })
}

/// `LocalFileSystem` with writes that are durable when they return.
#[derive(Debug)]
struct DurableLocal {
    files: LocalFileSystem,
    durable_dirs: Arc<DurableDirs>,
}

impl fmt::Display for DurableLocal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DurableLocal({})", self.files)
    }
}

impl DurableLocal {
    fn refuse<T>(&self, operation: &str) -> StoreResult<T> {
        Err(object_store::Error::NotImplemented {
            operation: operation.into(),
            implementer: self.to_string(),
        })
    }

    /// Makes sure that what is in the object's directory survives, if that is in doubt.
    async fn settle(&self, location: &Path) -> StoreResult<()> {
        let durable_dirs = &self.durable_dirs;
        if !durable_dirs.has_doubts.load(Ordering::Acquire) {
            return Ok(());
        }
        let path = self.files.path_to_filesystem(location)?;
        let durable_dirs = durable_dirs.clone();
        blocking(move || durable_dirs.settle(parent(&path)?)).await
    }

    fn place(&self, location: &Path) -> StoreResult<Place> {
        Ok(Place {
            path: self.files.path_to_filesystem(location)?,
            depth: location.parts().count(),
            durable_dirs: self.durable_dirs.clone(),
        })
    }
}

#[async_trait]
impl ObjectStore for DurableLocal {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> StoreResult<PutResult> {
        let exclusive = match options.mode {
            PutMode::Overwrite => false,
            PutMode::Create => true,
            PutMode::Update(_) => return self.refuse("a put in mode `Update`"),
        };
        if !options.attributes.is_empty() {
            return self.refuse("a put with attributes");
        }
        let place = self.place(location)?;
        blocking(move || {
            let (mut file, staged) = place.stage()?;
            let written = payload.iter().try_for_each(|part| file.write_all(part));
            written.map_err(|error| failed("write", &staged.path, error))?;
            place.publish(&file, staged, exclusive)
        })
        .await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> StoreResult<Box<dyn MultipartUpload>> {
        if !options.attributes.is_empty() {
            return self.refuse("an upload with attributes");
        }
        let place = self.place(location)?;
        let upload = blocking(move || {
            let (file, staged) = place.stage()?;
            Ok(DurableUpload {
                place,
                file: Arc::new(Mutex::new(file)),
                staged: Some(staged),
                offset: 0,
            })
        });
        Ok(Box::new(upload.await?))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> StoreResult<GetResult> {
        self.settle(location).await?;
        self.files.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> StoreResult<Vec<Bytes>> {
        self.files.get_ranges(location, ranges).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, StoreResult<Path>>,
    ) -> BoxStream<'static, StoreResult<Path>> {
        self.files.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, StoreResult<ObjectMeta>> {
        self.files.list(prefix)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, StoreResult<ObjectMeta>> {
        self.files.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> StoreResult<ListResult> {
        self.files.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> StoreResult<()> {
        self.refuse("a copy")
    }
}

/// Where an object lies.
#[derive(Clone, Debug)]
struct Place {
    path: PathBuf,
    /// Number of path components below the root.
    depth: usize,
    durable_dirs: Arc<DurableDirs>,
}

impl Place {
    /// A new, empty staging file in the object's directory, which is made durable first.
    fn stage(&self) -> StoreResult<(File, Staged)> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let process = u64::from(std::process::id()) << 32;
        self.durable_dirs.ensure(&self.path, self.depth)?;
        loop {
            let number = process | (NEXT.fetch_add(1, Ordering::Relaxed) & u64::from(u32::MAX));
            let mut path = self.path.clone().into_os_string();
            path.push(format!("#{number}"));
            let path = PathBuf::from(path);
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => return Ok((file, Staged { path })),
                // Left by a crashed process that had our process id, or on a file system that several
                // machines share.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed("create", &path, error)),
            }
        }
    }

    /// Makes `file`, staged under `staged`, the object.
    fn publish(&self, file: &File, staged: Staged, exclusive: bool) -> StoreResult<PutResult> {
        file.sync_all()
            .map_err(|error| failed("fsync", &staged.path, error))?;
        let named = if exclusive {
            fs::hard_link(&staged.path, &self.path)
        } else {
            fs::rename(&staged.path, &self.path)
        };
        drop(staged);
        let exists = match named {
            Ok(()) => None,
            Err(error) if exclusive && error.kind() == io::ErrorKind::AlreadyExists => Some(error),
            Err(error) => return Err(failed("name", &self.path, error)),
        };
        // Also when somebody else's object is in the way: the caller acts on its being there, so it must
        // not vanish.
        self.durable_dirs.sync(parent(&self.path)?)?;
        match exists {
            None => Ok(PutResult {
                e_tag: None,
                version: None,
            }),
            Some(error) => Err(object_store::Error::AlreadyExists {
                path: self.path.display().to_string(),
                source: error.into(),
            }),
        }
    }
}

/// A staging file; dropping it removes the name.
#[derive(Debug)]
struct Staged {
    path: PathBuf,
}

impl Drop for Staged {
    fn drop(&mut self) {
        // Gone already after a rename; otherwise a leftover is harmless.
        drop(fs::remove_file(&self.path));
    }
}

/// An object written in parts. The caller completes it only when every part has been written.
#[derive(Debug)]
struct DurableUpload {
    place: Place,
    file: Arc<Mutex<File>>,
    staged: Option<Staged>,
    offset: u64,
}

impl DurableUpload {
    fn take_staged(&mut self) -> StoreResult<Staged> {
        let path = &self.place.path;
        self.staged.take().ok_or_else(|| {
            let ended = io::Error::other("the upload has ended");
            failed("upload", path, ended)
        })
    }
}

#[async_trait]
impl MultipartUpload for DurableUpload {
    fn put_part(&mut self, payload: PutPayload) -> UploadPart {
        let (file, offset) = (self.file.clone(), self.offset);
        let path = self.place.path.clone();
        self.offset += payload.content_length() as u64;
        blocking(move || {
            let mut file = file.lock().expect("no panic under this lock");
            file.seek(SeekFrom::Start(offset))
                .and_then(|_| payload.iter().try_for_each(|part| file.write_all(part)))
                .map_err(|error| failed("write a part of", &path, error))
        })
        .boxed()
    }

    async fn complete(&mut self) -> StoreResult<PutResult> {
        let staged = self.take_staged()?;
        let file = self.file.clone();
        let place = self.place.clone();
        blocking(move || {
            let file = file.lock().expect("no panic under this lock");
            place.publish(&file, staged, false)
        })
        .await
    }

    async fn abort(&mut self) -> StoreResult<()> {
        let staged = self.take_staged()?;
        blocking(move || {
            drop(staged);
            Ok(())
        })
        .await
    }
}

/// Directories under the root that are known to survive a power cut, their parents included. One that
/// merely exists may have been created a moment ago by another writer, who has not fsynced it yet.
#[derive(Debug, Default)]
struct DurableDirs {
    known: Mutex<HashSet<PathBuf>>,
    /// Directories whose last fsync failed: names in them may not survive a power cut.
    doubtful: Mutex<HashSet<PathBuf>>,
    /// There are some.
    has_doubts: AtomicBool,
    /// Whether fsyncs fail, for tests of what follows.
    #[cfg(test)]
    fails: AtomicBool,
}

impl DurableDirs {
    /// Directories remembered at most; each forgotten one costs an fsync.
    const KNOWN_MAX: usize = 4096;

    /// Creates the directories between the root and `path`, which lies `depth` components below it, and
    /// makes them durable.
    fn ensure(&self, path: &FilePath, depth: usize) -> StoreResult<()> {
        let dir = parent(path)?;
        let known = {
            let known = self.known.lock().expect("no panic under this lock");
            known.contains(dir)
        };
        if known && dir.is_dir() {
            return Ok(());
        }
        let mut dirs: Vec<&FilePath> = path.ancestors().skip(1).take(depth - 1).collect();
        dirs.reverse();
        for &dir in &dirs {
            create_dir(dir)?;
            sync_dir(parent(dir)?)?;
        }
        let mut known = self.known.lock().expect("no panic under this lock");
        if known.len() + dirs.len() > Self::KNOWN_MAX {
            known.clear();
        }
        known.extend(dirs.into_iter().map(FilePath::to_path_buf));
        Ok(())
    }
}

impl DurableDirs {
    /// Makes the names in `dir` durable; remembers when that failed.
    fn sync(&self, dir: &FilePath) -> StoreResult<()> {
        let synced = self.try_sync(dir);
        if synced.is_err() {
            let mut doubtful = self.doubtful.lock().expect("no panic under this lock");
            doubtful.insert(dir.to_path_buf());
            self.has_doubts.store(true, Ordering::Release);
        }
        synced
    }

    /// Makes the names in `dir` durable if that has failed before. Under the lock, so that no failure that comes
    /// meanwhile is forgotten.
    fn settle(&self, dir: &FilePath) -> StoreResult<()> {
        let mut doubtful = self.doubtful.lock().expect("no panic under this lock");
        if doubtful.contains(dir) {
            self.try_sync(dir)?;
            doubtful.remove(dir);
            self.has_doubts
                .store(!doubtful.is_empty(), Ordering::Release);
        }
        Ok(())
    }

    fn try_sync(&self, dir: &FilePath) -> StoreResult<()> {
        #[cfg(test)]
        if self.fails.load(Ordering::Relaxed) {
            return Err(failed("fsync directory", dir, io::Error::other("test")));
        }
        sync_dir(dir)
    }
}

/// Creates `dir` and the parents it lacks, and fsyncs the parent of each.
fn create_dirs(dir: &FilePath) -> StoreResult<()> {
    let mut missing: Vec<&FilePath> = dir.ancestors().take_while(|dir| !dir.exists()).collect();
    missing.reverse();
    for dir in missing {
        create_dir(dir)?;
        sync_dir(parent(dir)?)?;
    }
    Ok(())
}

fn create_dir(dir: &FilePath) -> StoreResult<()> {
    match fs::create_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && dir.is_dir() => Ok(()),
        created => created.map_err(|error| failed("create directory", dir, error)),
    }
}

fn sync_dir(dir: &FilePath) -> StoreResult<()> {
    let synced = File::open(dir).and_then(|dir| dir.sync_all());
    synced.map_err(|error| failed("fsync directory", dir, error))
}

fn parent(path: &FilePath) -> StoreResult<&FilePath> {
    path.parent().ok_or_else(|| {
        let top = io::Error::other("it has no parent directory");
        failed("write", path, top)
    })
}

/// What failed, where, and why.
#[derive(Debug, thiserror::Error)]
#[error("{doing} {}: {source}", path.display())]
struct FileError {
    doing: &'static str,
    path: PathBuf,
    source: io::Error,
}

fn failed(doing: &'static str, path: &FilePath, source: io::Error) -> object_store::Error {
    let denied = source.kind() == io::ErrorKind::PermissionDenied;
    let error = FileError {
        doing,
        path: path.to_path_buf(),
        source,
    };
    if denied {
        object_store::Error::PermissionDenied {
            path: path.display().to_string(),
            source: error.into(),
        }
    } else {
        object_store::Error::Generic {
            store: "DurableLocal",
            source: error.into(),
        }
    }
}

/// Runs `work` where blocking is allowed. It runs to its end even when the caller gives up.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> StoreResult<T> + Send + 'static,
) -> StoreResult<T> {
    tokio::task::spawn_blocking(work).await?
}

#[cfg(test)]
mod tests;
