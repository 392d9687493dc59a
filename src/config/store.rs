//! How a store is to be asked.

use serde::Deserialize;

use super::{Bytes, Faults, Millis};

/// Requests to the object store: how long, how often, how many at once. Time-out and attempts concern stores
/// behind a network only.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StoreConfig {
    /// How long one request may take, to the last byte of its answer; a second longer for each MiB of an object
    /// that it sends or receives. Default: `"30s"`.
    pub request_timeout: Millis,
    /// Attempts at one request before its error is answered; pauses grow from 100 ms to 5 s. A create is
    /// always sent once. Default: 4.
    pub attempts_max: u32,
    /// Requests in flight at once; others wait. Default: 64.
    pub requests_max: usize,
    /// Bytes of objects, read and written together, in a second, on average. Default: as many as there can
    /// be.
    pub bytes_per_second_max: Option<Bytes>,
}

impl Default for StoreConfig {
    fn default() -> Self {
        Self {
            request_timeout: Millis::secs(30),
            attempts_max: 4,
            requests_max: 64,
            bytes_per_second_max: None,
        }
    }
}

impl StoreConfig {
    /// Checks what the types cannot.
    pub(super) fn check(&self, faults: &mut Faults) {
        faults.check(self.request_timeout >= Millis(10), || {
            let timeout = self.request_timeout;
            format!("store.request_timeout {timeout} is shorter than 10ms")
        });
        faults.check(self.attempts_max > 0, || "store.attempts_max is 0".into());
        faults.check(self.requests_max > 0, || "store.requests_max is 0".into());
        // Less, and a single part of an upload would keep all others waiting for minutes.
        faults.check(
            self.bytes_per_second_max
                .is_none_or(|rate| rate >= Bytes(64 << 10)),
            || {
                let rate = self.bytes_per_second_max.unwrap_or_default();
                format!("store.bytes_per_second_max {rate} is less than 64 KiB")
            },
        );
    }
}
