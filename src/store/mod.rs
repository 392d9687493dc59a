//! The object store under a root: opened by URL, its errors mapped once, its names built in one place.
//! Nothing outside this module sees `object_store`.
//!
//! [`layout`] builds and parses every object name, [`log`] is the numbered log that catalog, manifest
//! and plan log share, `local` makes local files survive a power cut, `faulty` breaks a store by
//! script for tests.

#[cfg(any(test, feature = "testing"))]
pub mod faulty;
pub mod layout;
mod local;
pub mod log;

use std::{fmt, ops::Range, path::PathBuf, sync::Arc};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use object_store::{
    ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, buffered::BufWriter,
    memory::InMemory, path::Path,
};
use tokio::io::AsyncWriteExt;
use url::Url;

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
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Store({})", self.url)
    }
}

impl Store {
    /// Opens the root that `url` names: `file:///dir`, `memory:///` (a store of its own) or
    /// `s3://bucket/prefix` (credentials and endpoint from the `AWS_…` environment variables).
    /// A local directory is created when it is missing.
    ///
    /// # Errors
    /// `Invalid` for a URL that does not parse or a scheme that is not known.
    pub fn open(url: &str) -> Result<Self> {
        let parsed = Url::parse(url)
            .map_err(|error| Error::invalid(format!("store url {url:?}")).with_source(error))?;
        match parsed.scheme() {
            "file" => local::open(&parsed),
            "memory" => Ok(Self::new(Arc::new(InMemory::new()), Path::default(), url)),
            #[cfg(feature = "s3")]
            "s3" => open_s3(&parsed),
            scheme => Err(Error::invalid(format!(
                "store url {url:?}: scheme {scheme:?} is not one of file, memory, s3"
            ))),
        }
    }

    /// The same for a root that is there already: a local directory is not created. For those who work
    /// under other people's roots, whose disks may not be mounted.
    ///
    /// # Errors
    /// As for [`Self::open`]; `NotFound` for a local directory that is missing.
    pub fn open_existing(url: &str) -> Result<Self> {
        let parsed = Url::parse(url).ok().filter(|url| url.scheme() == "file");
        if let Some(root) = parsed.and_then(|url| url.to_file_path().ok())
            && !root.is_dir()
        {
            return Err(Error::not_found(format!(
                "store url {url:?}: there is no such directory on this machine"
            )));
        }
        Self::open(url)
    }

    /// A store over `objects`, for wrappers and tests.
    fn new(objects: Arc<dyn ObjectStore>, root: Path, url: &str) -> Self {
        Self {
            objects,
            root,
            url: url.into(),
        }
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
    pub async fn probe(&self, random: u128) -> Result<()> {
        let name = format!("probe/{random:032x}");
        let body = Bytes::from_static(b"siltstone probe");
        self.create(&name, body.clone()).await?;
        let second = self.create(&name, body).await;
        self.delete(&name).await?;
        match second? {
            Created::Exists => Ok(()),
            Created::New => Err(Error::invalid(format!(
                "store {} lets two writers create one object; it cannot hold a siltstone root",
                self.url
            ))),
        }
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

    /// Starts an object of unknown size, written in pieces. It appears, durable, when finished.
    pub fn upload(&self, name: &str) -> Upload {
        let writer =
            BufWriter::with_capacity(self.objects.clone(), self.path(name), Upload::PART_BYTES);
        Upload {
            name: name.to_owned(),
            writer: writer.with_max_concurrency(Upload::PARTS_MAX),
            bytes: 0,
            broken: false,
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

    /// Deletes an object; one that is not there counts as deleted.
    pub async fn delete(&self, name: &str) -> Result<()> {
        match self.objects.delete(&self.path(name)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(store_error("delete", name, error)),
        }
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

/// An object being written in pieces; small ones go up in one request, large ones in parts.
/// Dropping it unfinished leaves no object.
pub struct Upload {
    name: String,
    writer: BufWriter,
    bytes: u64,
    /// A piece was lost: a write failed or was given up, and the writer no longer knows what it has.
    broken: bool,
}

impl Upload {
    /// Size of a part.
    pub const PART_BYTES: usize = 8 << 20;
    /// Parts in flight at once.
    pub const PARTS_MAX: usize = 2;

    /// Adds `piece` to the end; waits while too many parts are in flight. An upload that failed to take
    /// a piece, or whose future was dropped meanwhile, can no longer be finished.
    ///
    /// # Errors
    /// `Unavailable` when the store does not take the part.
    pub async fn write(&mut self, piece: Bytes) -> Result<()> {
        self.check_whole()?;
        let bytes = piece.len() as u64;
        self.broken = true;
        let put = self.writer.put(piece).await;
        put.map_err(|error| store_error("upload", &self.name, error))?;
        self.broken = false;
        self.bytes += bytes;
        Ok(())
    }

    fn check_whole(&self) -> Result<()> {
        if self.broken {
            let name = &self.name;
            return Err(Error::unavailable(format!(
                "upload {name}: an earlier piece was lost"
            )));
        }
        Ok(())
    }

    /// Bytes added so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Completes the object. Durable when it returns.
    ///
    /// # Errors
    /// `Unavailable` when an earlier piece was lost, or when the store does not answer: then it is open
    /// whether the object exists.
    pub async fn finish(mut self) -> Result<()> {
        self.check_whole()?;
        let finished = self.writer.shutdown().await;
        finished.map_err(|error| match error.downcast() {
            Ok(error) => store_error("upload", &self.name, error),
            Err(error) => Error::unavailable(format!("upload {}", self.name)).with_source(error),
        })
    }

    /// Gives up, and frees the parts that were sent.
    pub async fn abort(mut self) -> Result<()> {
        let abort = self.writer.abort().await;
        abort.map_err(|error| store_error("abort upload of", &self.name, error))
    }
}

#[cfg(feature = "s3")]
fn open_s3(url: &Url) -> Result<Store> {
    use std::time::Duration;

    use object_store::{RetryConfig, aws::AmazonS3Builder};

    // Short: whoever calls the store waits out an outage, and wants to hear of it.
    let retry = RetryConfig {
        max_retries: 4,
        retry_timeout: Duration::from_secs(20),
        ..RetryConfig::default()
    };
    let objects = AmazonS3Builder::from_env()
        .with_url(url.as_str())
        .with_retry(retry)
        .build()
        .map_err(|error| {
            Error::invalid(format!("store url {:?}", url.as_str())).with_source(error)
        })?;
    let root = Path::from_url_path(url.path()).map_err(|error| {
        Error::invalid(format!("store url {:?}", url.as_str())).with_source(error)
    })?;
    Ok(Store::new(Arc::new(objects), root, url.as_str()))
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
