//! Puts engine and control plane together, as the configuration says. The only module, besides the
//! binaries, that knows both.

use std::sync::Arc;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{
    clock::Env,
    compaction::{
        AutoCompactor, Compactor, LocalCompactor, RemoteCompactor,
        remote::{FleetView, JobService},
    },
    config::{CompactionConfig, CompactionMode, EngineConfig, Fallback, MetaConfig, RemoteConfig},
    engine::Engine,
    error::{Error, Result},
    meta::{MetaService, open_plan_log},
    rpc,
    store::Store,
    types::OwnerId,
};

impl Engine {
    /// Opens the root that `config` names, creating it when it is empty; takes it over from an earlier
    /// engine, which is fenced; recovers everything acknowledged; resumes recorded compaction jobs. With
    /// `compaction.mode = "remote"` jobs go to the meta service that `compaction.remote` names, or to one
    /// that runs inside this process and listens for nodes; with `"auto"` those that cost less there do.
    ///
    /// A meta service that does not answer does not keep the engine from opening: jobs wait for it.
    ///
    /// # Errors
    /// As for [`EngineBuilder::open`](crate::engine::EngineBuilder::open); also `Invalid` for an address
    /// that does not parse or cannot be listened on.
    pub async fn open(config: EngineConfig) -> Result<Self> {
        config.validate()?;
        let env = Env::default();
        let store = Store::open_with(&config.root, &config.store, env.clone())?;
        let mut builder = Engine::builder(config.clone())
            .store(store.clone())
            .env(env.clone());
        if config.compaction.mode.uses_nodes() {
            let parts = Parts {
                store,
                env,
                owner: OwnerId(config.name.clone()),
            };
            let (service, server) = job_service(&config.compaction, &parts).await?;
            builder = builder.compactor(parts.compactor(service, &config.compaction));
            if let Some(server) = server {
                builder = builder.companion(|stop| Box::pin(server.run(stop)));
            }
        }
        builder.open().await
    }

    /// Has jobs that start from now on run as `config.mode` says: changes who compacts while the engine
    /// runs. Jobs under way end where they are.
    ///
    /// # Errors
    /// `Invalid` for a configuration that cannot work, an address that does not parse, and for a meta service inside this process, which
    /// only [`Engine::open`] can start.
    pub async fn set_compaction(&self, config: &CompactionConfig) -> Result<()> {
        config.validate()?;
        let parts = Parts {
            store: self.store().clone(),
            env: self.env().clone(),
            owner: OwnerId(self.config().name.clone()),
        };
        match config.mode {
            CompactionMode::Off => self.set_compactor(None),
            CompactionMode::Local => self.set_compactor(Some(parts.local_compactor(config))),
            CompactionMode::Remote | CompactionMode::Auto if config.remote.serve.is_some() => {
                return Err(Error::invalid(
                    "compaction.remote.serve is for opening an engine only",
                ));
            }
            CompactionMode::Remote | CompactionMode::Auto => {
                let (service, _) = job_service(config, &parts).await?;
                self.set_compactor(Some(parts.compactor(service, config)));
            }
        }
        Ok(())
    }
}

/// What compactors are made of.
struct Parts {
    store: Store,
    env: Env,
    owner: OwnerId,
}

impl Parts {
    fn local_compactor(&self, config: &CompactionConfig) -> Arc<dyn Compactor> {
        Arc::new(LocalCompactor::new(
            self.store.clone(),
            config,
            self.env.clone(),
        ))
    }

    /// The compactor that has nodes behind `service` run jobs: all of them, or those for which they cost less.
    fn compactor(
        &self,
        service: Arc<dyn JobService>,
        config: &CompactionConfig,
    ) -> Arc<dyn Compactor> {
        let local = self.local_compactor(config);
        if config.mode != CompactionMode::Auto {
            return self.remote_compactor(service, config.remote.clone(), local);
        }
        let env = self.env.clone();
        let fleet = Arc::new(FleetView::new(service, &config.remote, env.clone()));
        let remote = RemoteConfig {
            fallback: Fallback::Local,
            ..config.remote.clone()
        };
        let remote = self.remote_compactor(fleet.clone(), remote, local.clone());
        let local_config = config.local.clone();
        Arc::new(AutoCompactor::new(local, remote, fleet, local_config, env))
    }

    fn remote_compactor(
        &self,
        service: Arc<dyn JobService>,
        config: RemoteConfig,
        fallback: Arc<dyn Compactor>,
    ) -> Arc<dyn Compactor> {
        let (store, owner, env) = (self.store.clone(), self.owner.clone(), self.env.clone());
        let remote = RemoteCompactor::new(service, store, owner, config, env);
        Arc::new(remote.with_fallback(fallback))
    }
}

/// A meta service inside the engine's process, and where it listens for nodes.
struct EmbeddedMeta {
    listener: TcpListener,
    service: Arc<MetaService>,
}

impl EmbeddedMeta {
    async fn run(self, stop: CancellationToken) {
        let served = rpc::serve(self.listener, self.service, stop.cancelled_owned()).await;
        if let Err(error) = served {
            tracing::error!(%error, "the embedded meta service ended");
        }
    }
}

/// The meta service that `config` names: a client of it, or the service itself.
async fn job_service(
    config: &CompactionConfig,
    parts: &Parts,
) -> Result<(Arc<dyn JobService>, Option<EmbeddedMeta>)> {
    let Some(listen) = &config.remote.serve else {
        return Ok((Arc::new(rpc::JobsClient::new(&config.remote.meta)?), None));
    };
    let cannot = |error| {
        Error::invalid(format!(
            "compaction.remote.serve: cannot listen on {listen:?}"
        ))
        .with_source(error)
    };
    let listener = TcpListener::bind(listen).await.map_err(cannot)?;
    let meta = MetaConfig {
        listen: listen.clone(),
        task_attempts_max: config.task_attempts_max,
        ..MetaConfig::default()
    };
    // What it forgets at a restart the engine, restarting with it, submits again.
    let plan_log = open_plan_log(&meta.plan_log, parts.env.clone())?;
    let service = MetaService::open(meta, plan_log, parts.env.clone()).await?;
    let embedded = EmbeddedMeta {
        listener,
        service: service.clone(),
    };
    Ok((service, Some(embedded)))
}
