//! The core and its log: appending what has changed, through outages and doubts, snapshots, and looking whether the
//! log is still ours.

use tracing::warn;

use super::Core;
use crate::error::{Error, ErrorKind, Result};

impl Core {
    /// Appends what is pending; looks who has the log when there has been nothing for a lease. Returns why it may not be
    /// in the log yet, or `None` when it is.
    ///
    /// Nodes that polled meanwhile were not heard: when it took long, every lease begins anew.
    pub(super) async fn persist(&mut self) -> Result<Option<Error>> {
        let began = self.now().monotonic;
        let told = match self.pending.is_empty() {
            // Whoever has lost the log and has nothing to write would never find out, and those who ask it would wait
            // for ever.
            true if !self.log_away && began < self.leads_until => return Ok(None),
            true => self.check_leads().await,
            false => self.append_pending().await,
        };
        match told {
            Ok(()) => {
                self.leads_until = began + self.limits.lease;
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
        self.open_again().await?;
        let pending = self.pending.iter();
        pending.for_each(|update| self.state.apply(update));
        self.log.append(&self.pending).await
    }

    async fn check_leads(&mut self) -> Result<()> {
        match self.log.check_leads().await {
            Err(error) if error.kind() == ErrorKind::Conflict => self.open_again().await,
            checked => checked,
        }
    }

    async fn open_again(&mut self) -> Result<()> {
        let replay = self.log.open().await?;
        self.replay(replay);
        Ok(())
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
