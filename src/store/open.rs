//! Opening a store by URL: which kind it is, and what it needs to know.

use std::sync::Arc;
#[cfg(any(feature = "s3", feature = "gs", feature = "az"))]
use std::time::Duration;

#[cfg(any(feature = "s3", feature = "gs", feature = "az"))]
use object_store::{ClientConfigKey, RetryConfig};
use object_store::{memory::InMemory, path::Path};
use url::Url;

use super::{Backend, Store, limits::Limits, local};
#[cfg(any(feature = "s3", feature = "gs", feature = "az"))]
use super::{Parts, limits::time_allowed};
use crate::{
    clock::Env,
    config::StoreConfig,
    error::{Error, Result},
};

/// Schemes that this build knows.
const SCHEMES: &[&str] = &[
    "file",
    "memory",
    #[cfg(feature = "s3")]
    "s3",
    #[cfg(feature = "gs")]
    "gs",
    #[cfg(feature = "az")]
    "az",
];

impl Store {
    /// Opens the root that `url` names: `file:///dir`, `memory:///` (a store of its own), and with the
    /// features of these names `s3://bucket/prefix`, `gs://bucket/prefix` and `az://container/prefix`.
    /// Credentials and endpoints come from the `AWS_…`, `GOOGLE_…` and `AZURE_…` environment variables. A
    /// local directory is created when it is missing.
    ///
    /// # Errors
    /// `Invalid` for a URL that does not parse or a scheme that is not known.
    pub fn open(url: &str) -> Result<Self> {
        Self::open_with(url, &StoreConfig::default(), Env::default())
    }

    /// The same, with other limits than the default ones, and with the clock and the randomness of `env`.
    ///
    /// # Errors
    /// As for [`Self::open`].
    pub fn open_with(url: &str, config: &StoreConfig, env: Env) -> Result<Self> {
        let parsed = Url::parse(url).map_err(|error| unusable(url, error))?;
        let (backend, is_local) = match parsed.scheme() {
            "file" => (local::open(&parsed)?, true),
            "memory" => (memory(url), true),
            #[cfg(feature = "s3")]
            "s3" => (open_s3(&parsed, config)?, false),
            #[cfg(feature = "gs")]
            "gs" => (open_gs(&parsed, config)?, false),
            #[cfg(feature = "az")]
            "az" => (open_az(&parsed, config)?, false),
            scheme => {
                return Err(Error::invalid(format!(
                    "store url {url:?}: scheme {scheme:?} is not one of {}",
                    SCHEMES.join(", ")
                )));
            }
        };
        let limits = if is_local {
            Limits::local(config, env)
        } else {
            Limits::remote(config, env)
        };
        Ok(Self::new(backend, limits))
    }

    /// The same for a root that is there already: a local directory is not created. For those who work
    /// under other people's roots, whose disks may not be mounted.
    ///
    /// # Errors
    /// As for [`Self::open`]; `NotFound` for a local directory that is missing.
    pub fn open_existing(url: &str) -> Result<Self> {
        Self::open_existing_with(url, &StoreConfig::default())
    }

    /// The same, with other limits than the default ones.
    ///
    /// # Errors
    /// As for [`Self::open_existing`].
    pub fn open_existing_with(url: &str, config: &StoreConfig) -> Result<Self> {
        let parsed = Url::parse(url).ok().filter(|url| url.scheme() == "file");
        if let Some(root) = parsed.and_then(|url| url.to_file_path().ok())
            && !root.is_dir()
        {
            return Err(Error::not_found(format!(
                "store url {url:?}: there is no such directory on this machine"
            )));
        }
        Self::open_with(url, config, Env::default())
    }
}

fn unusable(url: &str, error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::invalid(format!("store url {url:?}")).with_source(error)
}

fn memory(url: &str) -> Backend {
    Backend {
        objects: Arc::new(InMemory::new()),
        parts: None,
        root: Path::default(),
        url: url.to_owned(),
    }
}

/// No retries below ours: see [`super::limits`].
#[cfg(any(feature = "s3", feature = "gs", feature = "az"))]
fn no_retries() -> RetryConfig {
    RetryConfig {
        max_retries: 0,
        ..RetryConfig::default()
    }
}

/// The client's own time-out, a little above ours for the largest request: ours decides, and is counted.
#[cfg(any(feature = "s3", feature = "gs", feature = "az"))]
fn client_timeout(config: &StoreConfig) -> String {
    // Nothing larger is written at once: see `store::log`.
    let longest = time_allowed(config.request_timeout.duration(), u32::MAX.into());
    let timeout = longest.saturating_add(Duration::from_secs(5));
    format!("{}ms", timeout.as_millis())
}

#[cfg(any(feature = "s3", feature = "gs", feature = "az"))]
fn remote<S>(objects: S, url: &Url) -> Result<Backend>
where
    S: object_store::ObjectStore + object_store::multipart::MultipartStore,
{
    let objects = Arc::new(objects);
    let root = Path::from_url_path(url.path()).map_err(|error| unusable(url.as_str(), error))?;
    Ok(Backend {
        parts: Some(Parts(objects.clone())),
        objects,
        root,
        url: url.as_str().to_owned(),
    })
}

#[cfg(feature = "s3")]
fn open_s3(url: &Url, config: &StoreConfig) -> Result<Backend> {
    let timeout = object_store::aws::AmazonS3ConfigKey::Client(ClientConfigKey::Timeout);
    let builder = object_store::aws::AmazonS3Builder::from_env()
        .with_url(url.as_str())
        .with_config(timeout, client_timeout(config))
        .with_retry(no_retries());
    let objects = builder.build();
    remote(objects.map_err(|error| unusable(url.as_str(), error))?, url)
}

#[cfg(feature = "gs")]
fn open_gs(url: &Url, config: &StoreConfig) -> Result<Backend> {
    let timeout = object_store::gcp::GoogleConfigKey::Client(ClientConfigKey::Timeout);
    let builder = object_store::gcp::GoogleCloudStorageBuilder::from_env()
        .with_url(url.as_str())
        .with_config(timeout, client_timeout(config))
        .with_retry(no_retries());
    let objects = builder.build();
    remote(objects.map_err(|error| unusable(url.as_str(), error))?, url)
}

#[cfg(feature = "az")]
fn open_az(url: &Url, config: &StoreConfig) -> Result<Backend> {
    let timeout = object_store::azure::AzureConfigKey::Client(ClientConfigKey::Timeout);
    let builder = object_store::azure::MicrosoftAzureBuilder::from_env()
        .with_url(url.as_str())
        .with_config(timeout, client_timeout(config))
        .with_retry(no_retries());
    let objects = builder.build();
    remote(objects.map_err(|error| unusable(url.as_str(), error))?, url)
}
