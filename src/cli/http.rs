//! What a service tells over HTTP: `/metrics` for Prometheus, `/healthz` while the process is alive, `/readyz`
//! while it is of use, with the reason when it is not.

use std::{future::Future, sync::Arc};

use async_trait::async_trait;
use axum::{Router, extract::State, http::StatusCode, routing::get};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::net::TcpListener;
use tracing::warn;

use crate::error::{Error, Result};

/// A service that is looked at.
#[async_trait]
pub trait Looked: Send + Sync + 'static {
    /// Tells the metrics recorder what has changed.
    async fn publish(&self) -> Result<()>;

    /// Whether it is of use.
    ///
    /// # Errors
    /// Why it is not.
    async fn check_ready(&self) -> Result<()>;
}

struct Surface {
    looked: Arc<dyn Looked>,
    metrics: PrometheusHandle,
}

/// Serves what there is to know of `looked` at `listen`, `host:port`, in the background until `end`, and says on
/// stdout where. Does nothing when `listen` is empty.
///
/// # Errors
/// `Invalid`, naming the address, when it cannot be listened on; `Internal` when metrics are recorded already.
pub async fn serve(
    listen: &str,
    looked: Arc<dyn Looked>,
    end: impl Future<Output = ()> + Send + 'static,
) -> Result<()> {
    if listen.is_empty() {
        return Ok(());
    }
    let cannot = |error| Error::invalid(format!("cannot listen on {listen:?}")).with_source(error);
    let listener = TcpListener::bind(listen).await.map_err(cannot)?;
    let address = listener.local_addr().map_err(cannot)?;
    let recorder = PrometheusBuilder::new().install_recorder();
    let metrics =
        recorder.map_err(|error| Error::internal("metrics recorder").with_source(error))?;
    let router = Router::new()
        .route("/metrics", get(metrics_page))
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready_page))
        .with_state(Arc::new(Surface { looked, metrics }));
    let served = axum::serve(listener, router).with_graceful_shutdown(end);
    println!("metrics on http://{address}/metrics");
    tokio::spawn(async move {
        if let Err(error) = served.await {
            warn!(%error, "http server failed");
        }
    });
    Ok(())
}

async fn metrics_page(State(surface): State<Arc<Surface>>) -> (StatusCode, String) {
    match surface.looked.publish().await {
        Ok(()) => (StatusCode::OK, surface.metrics.render()),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
    }
}

async fn ready_page(State(surface): State<Arc<Surface>>) -> (StatusCode, String) {
    match surface.looked.check_ready().await {
        Ok(()) => (StatusCode::OK, "ready\n".into()),
        Err(error) => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("{}\n", error.message()),
        ),
    }
}
