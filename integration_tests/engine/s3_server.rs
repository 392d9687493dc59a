//! An S3 server inside the test process: the crate `s3s-fs` on a free port, over a folder. It checks
//! before it acts, so that two creators of one object could both win; a lock makes the two one step. A flaky
//! one answers every seventh request by an error: in turns without having done anything, and although it
//! has. It also leaves the quotes of ETags out, as some servers do.

use std::{
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use hyper::{Method, header::ETAG, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use s3s::{
    auth::SimpleAuth,
    service::{S3Service, S3ServiceBuilder},
};
use tokio::{net::TcpListener, sync::RwLock};

/// Key and secret that the server takes.
pub const CREDENTIALS: (&str, &str) = ("siltstone", "a secret for tests");
/// The bucket that it has.
pub const BUCKET: &str = "bucket";

/// Every so many requests a flaky server fails one.
const FAILS_EVERY: u64 = 7;

/// Serves `dir` until the runtime ends.
pub async fn start(dir: &Path) -> SocketAddr {
    serve(dir, u64::MAX).await
}

/// The same, but every seventh request fails.
pub async fn start_flaky(dir: &Path) -> SocketAddr {
    serve(dir, FAILS_EVERY).await
}

async fn serve(dir: &Path, fails_every: u64) -> SocketAddr {
    std::fs::create_dir_all(dir.join(BUCKET)).unwrap();
    let mut builder = S3ServiceBuilder::new(s3s_fs::FileSystem::new(dir).unwrap());
    builder.set_auth(SimpleAuth::from_single(CREDENTIALS.0, CREDENTIALS.1));
    let service = builder.build();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(accept(listener, service, fails_every));
    address
}

async fn accept(listener: TcpListener, service: S3Service, fails_every: u64) {
    let lock = Arc::new(RwLock::new(()));
    let served = Arc::<AtomicU64>::default();
    while let Ok((socket, _)) = listener.accept().await {
        socket.set_nodelay(true).ok();
        let (service, lock, served) = (service.clone(), lock.clone(), served.clone());
        let answer = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
            let (service, lock) = (service.clone(), lock.clone());
            let number = served.fetch_add(1, Ordering::Relaxed) + 1;
            let fails = number.is_multiple_of(fails_every);
            let is_done = (number / fails_every).is_multiple_of(2);
            async move {
                if fails && !is_done {
                    return Ok(unavailable());
                }
                let reads = matches!(*request.method(), Method::GET | Method::HEAD);
                let _shared = if reads { Some(lock.read().await) } else { None };
                let _alone = if reads {
                    None
                } else {
                    Some(lock.write().await)
                };
                let mut answer = hyper::service::Service::call(&service, request).await;
                if let Ok(answer) = &mut answer
                    && fails_every < u64::MAX
                {
                    unquote(answer);
                }
                if fails { Ok(unavailable()) } else { answer }
            }
        });
        tokio::spawn(async move {
            http1::Builder::new()
                .serve_connection(TokioIo::new(socket), answer)
                .await
                .ok();
        });
    }
}

fn unquote(answer: &mut hyper::Response<s3s::Body>) {
    let headers = answer.headers_mut();
    let etag = headers.get(ETAG).and_then(|etag| etag.to_str().ok());
    let bare = etag.map(|etag| etag.trim_matches('"').parse().unwrap());
    bare.map(|bare| headers.insert(ETAG, bare));
}

fn unavailable() -> hyper::Response<s3s::Body> {
    let mut answer = hyper::Response::new(s3s::Body::empty());
    *answer.status_mut() = hyper::StatusCode::SERVICE_UNAVAILABLE;
    answer
}
