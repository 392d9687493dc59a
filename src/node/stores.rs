//! The roots a node works under: opened by URL once, and only where the configuration allows.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
};

use url::Url;

use crate::{
    config::StoreConfig,
    error::{Error, Result},
    store::Store,
    threads,
};

/// Stores by the URL of their root. Clones share the opened ones.
#[derive(Clone, Debug, Default)]
pub struct Stores {
    /// Where the node may work; empty for anywhere.
    roots: Vec<Url>,
    config: StoreConfig,
    opened: Arc<Mutex<HashMap<String, Store>>>,
}

impl Stores {
    /// Stores under `roots`, or anywhere when there are none; each is asked as `config` says.
    ///
    /// # Errors
    /// `Invalid`, naming the root that is no URL.
    pub fn new(roots: &[String], config: StoreConfig) -> Result<Self> {
        Ok(Self {
            roots: roots
                .iter()
                .map(|root| parse(root))
                .collect::<Result<_>>()?,
            config,
            opened: Arc::default(),
        })
    }

    /// Uses `store` for the root at `url`.
    pub fn insert(&self, url: &str, store: Store) {
        self.opened().insert(url.to_owned(), store);
    }

    /// The store whose root is at `url`.
    ///
    /// # Errors
    /// `Invalid` when `url` names no store, lies outside of the roots, or in another process's memory.
    /// `NotFound` when it is a local directory that is missing: a node creates no roots.
    pub async fn get(&self, url: &str) -> Result<Store> {
        if let Some(store) = self.opened().get(url) {
            return Ok(store.clone());
        }
        self.check(url)?;
        let (owned, config) = (url.to_owned(), self.config.clone());
        let open = threads::run(move || Store::open_existing_with(&owned, &config));
        let store = open.await.map_err(|error| {
            Error::internal(format!("open store {url:?}: panicked")).with_source(error)
        })??;
        // Another task may have opened it meanwhile: all use one.
        let mut opened = self.opened();
        Ok(opened.entry(url.to_owned()).or_insert(store).clone())
    }

    fn opened(&self) -> MutexGuard<'_, HashMap<String, Store>> {
        self.opened.lock().expect("no panic under this lock")
    }

    /// Whether the node may open what is at `url`.
    fn check(&self, url: &str) -> Result<()> {
        let parsed = parse(url)?;
        if parsed.scheme() == "memory" {
            return Err(Error::invalid(format!(
                "store {url:?} lies in another process's memory"
            )));
        }
        if !self.roots.is_empty() && !self.roots.iter().any(|root| lies_under(&parsed, root)) {
            let roots: Vec<&str> = self.roots.iter().map(Url::as_str).collect();
            return Err(Error::invalid(format!(
                "store {url:?} lies under none of this node's roots: {}",
                roots.join(", ")
            )));
        }
        Ok(())
    }
}

fn parse(url: &str) -> Result<Url> {
    Url::parse(url).map_err(|error| Error::invalid(format!("store url {url:?}")).with_source(error))
}

/// Whether `url` is `root` or below it. Dots in the paths were resolved when they were parsed.
fn lies_under(url: &Url, root: &Url) -> bool {
    let place = |url: &Url| (url.scheme().to_owned(), url.host_str().map(str::to_owned));
    let path = |url: &Url| url.path().trim_end_matches('/').to_owned();
    let (inner, outer) = (path(url), path(root));
    place(url) == place(root)
        && inner
            .strip_prefix(&outer)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[tokio::test]
    async fn only_configured_roots_are_served() {
        for (url, root, inside) in [
            ("file:///data", "file:///data", true),
            ("file:///data/", "file:///data", true),
            ("file:///data/a", "file:///data/", true),
            ("file:///database", "file:///data", false),
            ("file:///data/../etc", "file:///data", false),
            ("file:///data/%2e%2e/etc", "file:///data", false),
            ("s3://bucket/x", "s3://bucket", true),
            ("s3://other/x", "s3://bucket", false),
            ("s3://bucket/x", "file:///", false),
        ] {
            let (url, root) = (parse(url).unwrap(), parse(root).unwrap());
            assert_eq!(lies_under(&url, &root), inside, "{url} under {root}");
        }
        let stores = Stores::new(&["file:///data".into()], StoreConfig::default()).unwrap();
        let error = stores.get("file:///etc").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.message().contains("file:///data"), "{error}");
    }

    #[tokio::test]
    async fn missing_roots_are_not_created() {
        let dir = tempfile::tempdir().unwrap();
        let (there, missing) = (dir.path().join("a"), dir.path().join("b"));
        std::fs::create_dir(&there).unwrap();
        let url = |path: &std::path::Path| Url::from_directory_path(path).unwrap().to_string();
        let stores = Stores::default();
        stores.get(&url(&there)).await.unwrap();
        let error = stores.get(&url(&missing)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(!missing.exists());
        // Once it is mounted, it serves.
        std::fs::create_dir(&missing).unwrap();
        stores.get(&url(&missing)).await.unwrap();
    }

    #[tokio::test]
    async fn memory_must_be_handed_in() {
        let stores = Stores::default();
        let error = stores.get("memory:///").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        stores.insert("memory:///", Store::open("memory:///").unwrap());
        assert!(stores.get("memory:///").await.is_ok());
    }
}
