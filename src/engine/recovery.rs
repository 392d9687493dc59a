//! Finding the engine's WAL, and bringing what it holds back into the memtables.

use std::{
    collections::{HashMap, HashSet},
    path::PathBuf,
    sync::{Arc, Mutex},
};

use super::{
    open::Opened,
    table::{TableInner, lock},
    write,
};
use crate::{
    clock::Env,
    config::{EngineConfig, WalMode},
    error::{Error, Result},
    manifest::{Catalog, WalIdentity},
    store::{Store, layout, log::Log},
    types::{Seq, TableId},
    wal::{ObjectWalOptions, Wal, WalEntry, WalLock},
};

/// The configured WAL, not opened yet.
pub(super) enum WalSource {
    None,
    /// Taken, so that no other engine of this machine has it.
    Local(WalLock),
    Object {
        folder: String,
        env: Env,
    },
}

impl WalSource {
    /// The WAL that `config` names.
    ///
    /// # Errors
    /// `Unavailable` when another engine has it.
    pub(super) async fn find(config: &EngineConfig, store: &Store, env: &Env) -> Result<Self> {
        Ok(match config.wal.mode {
            WalMode::None => Self::None,
            WalMode::Local => {
                let dir = local_dir(config, store)?;
                Self::Local(Wal::lock(&dir, env.random()).await?)
            }
            WalMode::ObjectStore => Self::Object {
                folder: layout::wal(&config.name),
                env: env.clone(),
            },
        })
    }

    /// What tells it from other WALs.
    pub(super) fn identity(&self) -> WalIdentity {
        let (mode, id, place) = match self {
            Self::None => (WalIdentity::NONE, "", String::new()),
            Self::Local(lock) => ("local", lock.id(), lock.dir().display().to_string()),
            Self::Object { folder, .. } => ("object_store", folder.as_str(), folder.clone()),
        };
        WalIdentity {
            mode: mode.to_owned(),
            id: id.to_owned(),
            place,
            root: match self {
                Self::Local(lock) => lock.root().map(str::to_owned),
                Self::None | Self::Object { .. } => None,
            },
        }
    }

    /// Opens it for the engine that has claimed `catalog`, on `log` if it is on the object store, and replays
    /// it into the memtables. Entries of a damaged table are kept.
    pub(super) async fn open(
        self,
        config: &EngineConfig,
        log: Log,
        catalog: &Catalog,
        opened: &Opened,
    ) -> Result<Option<Wal>> {
        let (epoch, since) = (catalog.epoch(), catalog.wal_since());
        let recovery = Recovery::of(opened);
        let dropped = recovery.dropped.clone();
        let replay = move |entry: WalEntry| recovery.replay(&entry);
        let wal = match self {
            Self::None => return Ok(None),
            Self::Local(lock) => {
                let lock = lock.bind(catalog.root(), epoch, since).await?;
                Wal::open_local(lock, &config.wal, replay).await?
            }
            Self::Object { env, .. } => {
                let options = ObjectWalOptions {
                    log,
                    epoch,
                    since,
                    env,
                };
                Wal::open_object(options, &config.wal, replay).await?
            }
        };
        for table in &opened.tables {
            table.memory.recovered();
            wal.release(table.id(), table.manifest.version().flushed_seq);
        }
        for &table in lock(&dropped).iter() {
            wal.release(table, Seq(u64::MAX));
        }
        Ok(Some(wal))
    }
}

/// Where entries go.
struct Recovery {
    tables: HashMap<TableId, Arc<TableInner>>,
    damaged: HashSet<TableId>,
    /// Tables met that are not there any more.
    dropped: Arc<Mutex<HashSet<TableId>>>,
}

impl Recovery {
    fn of(opened: &Opened) -> Self {
        let tables = opened.tables.iter();
        Self {
            tables: tables.map(|table| (table.id(), table.clone())).collect(),
            damaged: opened.damaged.values().map(|table| table.id).collect(),
            dropped: Arc::default(),
        }
    }

    fn replay(&self, entry: &WalEntry) -> Result<()> {
        let Some(table) = self.tables.get(&entry.table) else {
            if !self.damaged.contains(&entry.table) {
                lock(&self.dropped).insert(entry.table);
            }
            return Ok(());
        };
        if entry.seq <= table.manifest.version().flushed_seq {
            return Ok(());
        }
        let ticket = table.memory.recover(entry.seq);
        write::insert(&ticket, entry.kind, &entry.batch)
    }
}

fn local_dir(config: &EngineConfig, store: &Store) -> Result<PathBuf> {
    if let Some(dir) = &config.wal.dir {
        return Ok(dir.clone());
    }
    let root = store.local_root();
    let root = root
        .ok_or_else(|| Error::invalid(format!("wal.dir is needed under root {:?}", store.url())))?;
    // Inside the folder of an object WAL of that name, which takes no notice of it.
    Ok(root.join(layout::wal(&config.name)).join("local"))
}
