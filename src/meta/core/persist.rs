//! The core and its log: appending what has changed, through outages and doubts, and snapshots.

use tracing::warn;

use super::Core;
use crate::error::{Error, ErrorKind, Result};

impl Core {
    /// Appends what is pending. Returns why it may not be in the log yet, or `None` when it is.
    ///
    /// Nodes that polled meanwhile were not heard: when it took long, every lease begins anew.
    pub(super) async fn persist(&mut self) -> Result<Option<Error>> {
        if self.pending.is_empty() {
            return Ok(None);
        }
        let began = self.now().monotonic;
        match self.append_pending().await {
            Ok(()) => {
                self.pending.clear();
                self.take_snapshot().await?;
                let now = self.now();
                let deaf = now.monotonic.saturating_sub(began);
                if self.set_away(false) || deaf > self.limits.lease / 4 {
                    self.state.restart(now);
                }
                Ok(None)
            }
            Err(error) if can_wait(&error) => {
                self.set_away(true);
                Ok(Some(error))
            }
            Err(error) => Err(error),
        }
    }

    /// Takes note of whether the log is away; returns whether it was.
    fn set_away(&mut self, is_away: bool) -> bool {
        self.log_answers.send_replace(!is_away);
        std::mem::replace(&mut self.log_away, is_away)
    }

    async fn append_pending(&mut self) -> Result<()> {
        match self.log.append(&self.pending).await {
            Err(error) if error.kind() == ErrorKind::Conflict => {}
            appended => return appended,
        }
        let replay = self.log.open().await?;
        self.replay(replay);
        let pending = self.pending.iter();
        pending.for_each(|update| self.state.apply(update));
        self.log.append(&self.pending).await
    }

    async fn take_snapshot(&mut self) -> Result<()> {
        if !self.log.is_snapshot_due() {
            return Ok(());
        }
        match self.log.append_snapshot(&self.state.snapshot()).await {
            Err(error) if can_wait(&error) => {
                warn!(%error, "snapshot of the plan not written");
                self.log.snapshot_failed();
                Ok(())
            }
            written => written,
        }
    }
}

/// Whether an append that ended so may succeed later.
fn can_wait(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Conflict)
}
