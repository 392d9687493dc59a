//! The object store under a root: opened by URL, its errors mapped once, its names built in one place.
//! Nothing outside this module sees `object_store`.
//!
//! Every request passes the one gate of `limits`: time-outs, retries, limits, counters ([`StoreStats`]).
//! [`layout`] builds and parses every object name, [`log`] is the numbered log that catalog, manifest
//! and plan log share, `local` makes local files survive a power cut, `faulty` breaks a store by
//! script for tests.

#[cfg(any(test, feature = "testing"))]
pub mod faulty;
pub mod layout;
mod limited;
mod limits;
mod local;
pub mod log;
mod open;
mod stats;
mod upload;

use std::{fmt, ops::Range, path::PathBuf, sync::Arc};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, path::Path};
use url::Url;

use limited::{Limited, Parts};
use limits::Limits;
pub use stats::{Operation, RequestStats, StoreStats};
pub use upload::Upload;

use crate::clock::{Backoff, Env};
use crate::error::{Error, Result};

/// What an object listing says of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectInfo {
    /// Its name, relative to the root.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// When it was last written, in milliseconds since the Unix epoch.
    pub modified_ms: i64,
}

/// How often a store that does not answer is probed.
const PROBES_MAX: usize = 4;

/// How a put-if-absent ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Created {
    /// The object is ours and durable.
    New,
    /// There was one already; nothing was changed.
    Exists,
}

/// A root in an object store. Cheap to clone. Names are relative to the root and use `/`.
#[derive(Clone)]
pub struct Store {
    objects: Arc<dyn ObjectStore>,
    root: Path,
    url: Arc<str>,
    limits: Arc<Limits>,
}

/// An object store as it was opened, without limits.
struct Backend {
    objects: Arc<dyn ObjectStore>,
    /// The same, where the parts of an upload can be sent twice.
    parts: Option<Parts>,
    root: Path,
    url: String,
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Store({})", self.url)
    }
}

impl Store {
    /// A store over `backend`, whose requests pass `limits`.
    fn new(backend: Backend, limits: Limits) -> Self {
        let limits = Arc::new(limits);
        let objects = Limited {
            objects: backend.objects,
            parts: backend.parts,
            limits: limits.clone(),
        };
        Self {
            objects: Arc::new(objects),
            root: backend.root,
            url: backend.url.into(),
            limits,
        }
    }

    /// The same store, but as if it were behind a network: with time-outs, retries and limits of its own.
    #[cfg(any(test, feature = "testing"))]
    pub fn with_limits(self, config: &crate::config::StoreConfig, env: Env) -> Self {
        let backend = Backend {
            objects: self.objects,
            parts: None,
            root: self.root,
            url: self.url.to_string(),
        };
        Self::new(backend, Limits::remote(config, env))
    }

    /// The same store for somebody who may use so many bytes a second of it, read and written together, on average.
    /// All clones of it share them.
    #[must_use]
    pub fn throttled(self, bytes_per_second: u64, env: Env) -> Self {
        let objects = Limited {
            objects: self.objects,
            parts: None,
            limits: Arc::new(Limits::throttle(bytes_per_second, env)),
        };
        Self {
            objects: Arc::new(objects),
            ..self
        }
    }

    /// What it was asked for since it was opened, by all its clones.
    pub fn stats(&self) -> StoreStats {
        self.limits.stats()
    }

    /// The URL it was opened with.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Checks that the store keeps the promise everything rests on: that of two creators of one object
    /// one is refused.
    ///
    /// # Errors
    /// `Invalid` when the second create succeeds; `Unavailable` when the store does not answer.
    pub async fn probe(&self, env: &Env) -> Result<()> {
        let mut backoff = Backoff::for_outage();
        let mut names = Vec::new();
        loop {
            let name = layout::probe(env.unix_ms(), env.random());
            names.push(name.clone());
            match self.create_twice(&name).await {
                // A create is sent once. Whether it was done matters to others, not here: the next has
                // another name.
                Err(error) if error.is_unavailable() && names.len() < PROBES_MAX => {
                    backoff.pause().await;
                }
                Err(error) => return Err(error),
                Ok(second) => {
                    let deleted: Result<()> = self.delete_all(&names).await.into_iter().collect();
                    return match second {
                        Created::Exists => deleted,
                        Created::New => Err(Error::invalid(format!(
                            "store {} lets two writers create one object; it cannot hold a siltstone root",
                            self.url
                        ))),
                    };
                }
            }
        }
    }

    /// How the second of two creates of an object ends.
    async fn create_twice(&self, name: &str) -> Result<Created> {
        let body = Bytes::from_static(b"siltstone probe");
        self.create(name, body.clone()).await?;
        self.create(name, body).await
    }

    /// The whole object.
    ///
    /// # Errors
    /// `NotFound`; `Unavailable`.
    pub async fn get(&self, name: &str) -> Result<Bytes> {
        let result = self.objects.get(&self.path(name)).await;
        let bytes = match result {
            Ok(result) => result.bytes().await,
            Err(error) => Err(error),
        };
        bytes.map_err(|error| store_error("read", name, error))
    }

    /// Several byte ranges of one object, in the order asked for; neighbours are fetched together.
    pub async fn get_ranges(&self, name: &str, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let parts = self.objects.get_ranges(&self.path(name), ranges).await;
        parts.map_err(|error| store_error("read", name, error))
    }

    /// Size of the object in bytes, or `None` when there is none.
    pub async fn size(&self, name: &str) -> Result<Option<u64>> {
        match self.objects.head(&self.path(name)).await {
            Ok(meta) => Ok(Some(meta.size)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(store_error("stat", name, error)),
        }
    }

    /// Writes an object, replacing one of that name. Durable when it returns.
    pub async fn put(&self, name: &str, body: Bytes) -> Result<()> {
        let path = self.path(name);
        let put = self.objects.put(&path, PutPayload::from(body)).await;
        put.map(drop)
            .map_err(|error| store_error("write", name, error))
    }

    /// Writes an object unless there is one of that name. Durable when it returns.
    ///
    /// # Errors
    /// `Unavailable` leaves open whether the object was written.
    pub async fn create(&self, name: &str, body: Bytes) -> Result<Created> {
        let options = PutOptions::from(PutMode::Create);
        let path = self.path(name);
        match self
            .objects
            .put_opts(&path, PutPayload::from(body), options)
            .await
        {
            Ok(_) => Ok(Created::New),
            Err(
                object_store::Error::AlreadyExists { .. }
                | object_store::Error::Precondition { .. },
            ) => Ok(Created::Exists),
            Err(error) => Err(store_error("create", name, error)),
        }
    }

    /// Every object under `prefix` (a folder name without the last `/`), in no order.
    pub async fn list(&self, prefix: &str) -> Result<Vec<ObjectInfo>> {
        let listing = self.objects.list(Some(&self.path(prefix)));
        listing
            .map(|meta| {
                let meta = meta.map_err(|error| store_error("list", prefix, error))?;
                Ok(self.info(&meta))
            })
            .try_collect()
            .await
    }

    /// Names of the folders directly under `prefix`.
    pub async fn list_folders(&self, prefix: &str) -> Result<Vec<String>> {
        let prefix_path = self.path(prefix);
        let listing = self.objects.list_with_delimiter(Some(&prefix_path)).await;
        let listing = listing.map_err(|error| store_error("list", prefix, error))?;
        let folders = listing.common_prefixes.iter();
        Ok(folders
            .filter_map(|path| path.filename().map(str::to_owned))
            .collect())
    }

    /// Names of the objects and folders directly under the root.
    pub async fn list_top(&self) -> Result<Vec<String>> {
        let root = (!self.root.as_ref().is_empty()).then_some(&self.root);
        let listing = self.objects.list_with_delimiter(root).await;
        let listing = listing.map_err(|error| store_error("list", "the root", error))?;
        let objects = listing.objects.iter().map(|object| &object.location);
        let names = objects.chain(&listing.common_prefixes);
        Ok(names
            .filter_map(|path| path.filename().map(str::to_owned))
            .collect())
    }

    /// The local directory that the root is, when it is one.
    pub fn local_root(&self) -> Option<PathBuf> {
        let url = Url::parse(&self.url).ok()?;
        (url.scheme() == "file").then(|| url.to_file_path().ok())?
    }

    /// Deletes objects, with few requests; how each of them ended, in the order given. One that is not there
    /// counts as deleted.
    pub async fn delete_all(&self, names: &[String]) -> Vec<Result<()>> {
        let paths: Vec<_> = names.iter().map(|name| Ok(self.path(name))).collect();
        let answers = self.objects.delete_stream(stream::iter(paths).boxed());
        let answers: Vec<_> = answers.collect().await;
        let mut answers = answers.into_iter();
        let ended = names.iter().map(|name| match answers.next() {
            Some(Ok(_) | Err(object_store::Error::NotFound { .. })) => Ok(()),
            Some(Err(error)) => Err(store_error("delete", name, error)),
            None => Err(Error::unavailable(format!("delete {name}: no answer"))),
        });
        ended.collect()
    }

    /// Deletes an object; one that is not there counts as deleted.
    pub async fn delete(&self, name: &str) -> Result<()> {
        match self.objects.delete(&self.path(name)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(store_error("delete", name, error)),
        }
    }

    /// What a crash left of objects that were being written to a local directory, and what is being written to it
    /// now: listings do not show them. None elsewhere.
    ///
    /// # Errors
    /// `Unavailable` when a directory cannot be read.
    pub async fn list_staged(&self) -> Result<Vec<ObjectInfo>> {
        match self.local_root() {
            None => Ok(Vec::new()),
            Some(root) => {
                let listed = tokio::task::spawn_blocking(move || local::list_staged(&root)).await;
                listed.map_err(|error| Error::internal("listing panicked").with_source(error))?
            }
        }
    }

    /// Deletes one of [`Self::list_staged`]; whoever is still writing it meets an error. One that is not there counts
    /// as deleted.
    ///
    /// # Errors
    /// `Invalid` when `name` is not the name of one; `Unavailable`.
    pub async fn delete_staged(&self, name: &str) -> Result<()> {
        let (Some(root), Some(_)) = (self.local_root(), layout::staged(name)) else {
            let what = format!("{name} is not being written to a local directory");
            return Err(Error::invalid(what));
        };
        let path = root.join(name);
        let deleted = tokio::task::spawn_blocking(move || local::delete_staged(&path)).await;
        deleted.map_err(|error| Error::internal("deleting panicked").with_source(error))?
    }

    fn path(&self, name: &str) -> Path {
        Path::from_iter(self.root.parts().chain(Path::from(name).parts()))
    }

    fn info(&self, meta: &object_store::ObjectMeta) -> ObjectInfo {
        let name = match meta.location.prefix_match(&self.root) {
            Some(parts) => Path::from_iter(parts).to_string(),
            None => meta.location.to_string(),
        };
        ObjectInfo {
            name,
            bytes: meta.size,
            modified_ms: meta.last_modified.timestamp_millis(),
        }
    }
}

/// The one place where the store's errors become ours.
fn store_error(doing: &str, name: &str, error: object_store::Error) -> Error {
    use object_store::Error as E;
    let message = format!("{doing} {name}");
    let mapped = match &error {
        E::NotFound { .. } => Error::not_found(message),
        E::AlreadyExists { .. } | E::Precondition { .. } => Error::conflict(message),
        E::InvalidPath { .. }
        | E::NotSupported { .. }
        | E::NotImplemented { .. }
        | E::UnknownConfigurationKey { .. } => Error::invalid(message),
        _ => Error::unavailable(message),
    };
    mapped.with_source(error)
}

#[cfg(test)]
mod tests;
