//! An S3 server inside the test process: the crate `s3s-fs` on a free port, over a folder. It checks
//! before it acts, so that two creators of one object could both win; a lock makes the two one step.

use std::{net::SocketAddr, path::Path, sync::Arc};

use hyper::{Method, server::conn::http1, service::service_fn};
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

/// Serves `dir` until the runtime ends.
pub async fn start(dir: &Path) -> SocketAddr {
    std::fs::create_dir_all(dir.join(BUCKET)).unwrap();
    let mut builder = S3ServiceBuilder::new(s3s_fs::FileSystem::new(dir).unwrap());
    builder.set_auth(SimpleAuth::from_single(CREDENTIALS.0, CREDENTIALS.1));
    let service = builder.build();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(accept(listener, service));
    address
}

async fn accept(listener: TcpListener, service: S3Service) {
    let lock = Arc::new(RwLock::new(()));
    while let Ok((socket, _)) = listener.accept().await {
        socket.set_nodelay(true).ok();
        let (service, lock) = (service.clone(), lock.clone());
        let answer = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
            let (service, lock) = (service.clone(), lock.clone());
            async move {
                let reads = matches!(*request.method(), Method::GET | Method::HEAD);
                let _shared = if reads { Some(lock.read().await) } else { None };
                let _alone = if reads {
                    None
                } else {
                    Some(lock.write().await)
                };
                hyper::service::Service::call(&service, request).await
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
