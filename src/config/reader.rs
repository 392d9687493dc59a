//! What a reader of another process's root can be told.

use serde::Deserialize;

use super::{Faults, Millis};

/// Reading a root that another process's engine has open: [`Engine::open_reader`](crate::Engine::open_reader).
/// Of the other settings, a reader goes by `root`, `store`, `cache` and `gc.log_grace`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReaderConfig {
    /// How often the reader looks for what was flushed. At least 1 ms. Default: `"1s"`.
    pub refresh: Millis,
    /// How long what the reader reads is kept for it when it is not heard of any more. It renews its
    /// checkpoints when a third of that is over, and reads nothing when two thirds are: the last third is for
    /// clocks that differ. At least ten times `refresh`. Default: `"10m"`.
    pub checkpoint_lifetime: Millis,
}

impl Default for ReaderConfig {
    fn default() -> Self {
        Self {
            refresh: Millis::secs(1),
            checkpoint_lifetime: Millis::secs(600),
        }
    }
}

impl ReaderConfig {
    pub(super) fn check(&self, faults: &mut Faults) {
        let Self {
            refresh,
            checkpoint_lifetime: lifetime,
        } = *self;
        faults.check(refresh.0 > 0, || "reader.refresh is 0".into());
        faults.check(lifetime.0 / 10 >= refresh.0, || {
            format!("reader.checkpoint_lifetime {lifetime} is less than ten times reader.refresh {refresh}")
        });
    }
}
