//! Connections to a list of meta services: tried in order, opened when first needed, staying with the one
//! that answered last.

use std::{
    error::Error as _,
    future::Future,
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tonic::{
    Response, Status,
    transport::{Channel, Endpoint},
};

use super::{KEEP_ALIVE, status::from_status};
use crate::error::{Error, Result};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long an answer may take beyond the wait that was asked for.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Connections to meta services.
#[derive(Debug)]
pub(super) struct Channels {
    metas: Vec<Meta>,
    current: AtomicUsize,
}

#[derive(Debug)]
struct Meta {
    address: String,
    endpoint: Endpoint,
    /// Opened inside the runtime that first calls.
    channel: OnceLock<Channel>,
}

impl Channels {
    /// Connections to `addresses`, each `http://host:port`. Nothing is connected yet.
    ///
    /// # Errors
    /// `Invalid`, naming the address that does not parse.
    pub(super) fn new(addresses: &[String]) -> Result<Self> {
        if addresses.is_empty() {
            return Err(Error::invalid("no address of a meta service"));
        }
        let metas = addresses.iter().map(|address| Meta::new(address));
        Ok(Self {
            metas: metas.collect::<Result<_>>()?,
            current: AtomicUsize::new(0),
        })
    }

    /// The address that answered last, or would be asked first.
    pub(super) fn address(&self) -> String {
        let current = self.current.load(Ordering::Relaxed);
        self.metas[current].address.clone()
    }

    /// Calls the current meta, and when it is unavailable the others in turn. `wait` is how long the call
    /// itself may wait.
    ///
    /// # Errors
    /// What the service answered; `Unavailable`, naming every address, when none did.
    pub(super) async fn call<T, F>(&self, wait: Duration, call: impl Fn(Channel) -> F) -> Result<T>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let first = self.current.load(Ordering::Relaxed);
        let mut silent = Vec::new();
        for offset in 0..self.metas.len() {
            let index = (first + offset) % self.metas.len();
            let meta = &self.metas[index];
            match meta.call(wait, &call).await {
                Err(error) if error.is_unavailable() => silent.push(error.message().to_owned()),
                answer => {
                    self.current.store(index, Ordering::Relaxed);
                    return answer;
                }
            }
        }
        Err(Error::unavailable(silent.join("; ")))
    }
}

impl Meta {
    fn new(address: &str) -> Result<Self> {
        let invalid =
            || Error::invalid(format!("meta address {address:?} is not http://host:port"));
        let endpoint = Endpoint::from_shared(address.to_owned()).map_err(|_| invalid())?;
        let uri = endpoint.uri();
        if uri.scheme_str() != Some("http") || uri.authority().is_none() {
            return Err(invalid());
        }
        Ok(Self {
            address: address.to_owned(),
            endpoint: endpoint
                .connect_timeout(CONNECT_TIMEOUT)
                .http2_keep_alive_interval(KEEP_ALIVE)
                .keep_alive_timeout(KEEP_ALIVE)
                .keep_alive_while_idle(true)
                .tcp_nodelay(true),
            channel: OnceLock::new(),
        })
    }

    async fn call<T, F>(&self, wait: Duration, call: impl Fn(Channel) -> F) -> Result<T>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let address = &self.address;
        let channel = self.channel.get_or_init(|| self.endpoint.connect_lazy());
        let limit = wait + CALL_TIMEOUT;
        match tokio::time::timeout(limit, call(channel.clone())).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(from_status(&format!("{address}{}", cause(&status)), status)),
            Err(_) => Err(Error::unavailable(format!(
                "meta {address}: no answer within {limit:?}"
            ))),
        }
    }
}

/// The innermost source of a status made by the transport: what really happened.
fn cause(status: &Status) -> String {
    let mut innermost = None;
    let mut source = status.source();
    while let Some(error) = source {
        innermost = Some(error.to_string());
        source = error.source();
    }
    innermost.map_or_else(String::new, |cause| format!(" ({cause})"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn bad_addresses_are_named() {
        for address in [
            "",
            "nonsense with spaces",
            "localhost:7400",
            "https://m:1",
            "http://",
        ] {
            let error = Channels::new(&[address.to_owned()]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{address}");
            assert!(error.message().contains(address), "{error}");
        }
        assert!(Channels::new(&[]).is_err());
        assert!(Channels::new(&["http://127.0.0.1:7400".to_owned()]).is_ok());
    }
}
