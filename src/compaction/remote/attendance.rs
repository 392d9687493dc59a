//! How an engine makes itself known to the meta service, and what it hears back: one long poll, for as long as the
//! engine is open. Nothing waits for it: an engine that cannot attend goes on as it is.

use crate::{
    compaction::QuarantinedSst,
    types::{OwnerId, TableId},
};

/// SSTs in quarantine that one attendance lists at most; of the others it tells how many they are.
pub const QUARANTINE_LISTED_MAX: usize = 1_000;
/// Bytes of a reason that are told at most.
const REASON_BYTES_MAX: usize = 1 << 10;

/// What an engine says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attendance {
    /// Its name.
    pub owner: OwnerId,
    /// Tells this opening of the engine from every other.
    pub session: u64,
    /// The machine that it runs on.
    pub host: String,
    /// Its version.
    pub version: String,
    /// What it leaves alone because jobs with it failed; [`QUARANTINE_LISTED_MAX`] SSTs at most.
    pub quarantine: Vec<QuarantinedSst>,
    /// How many more it leaves alone.
    pub left_out: u64,
    /// Number of the latest order that it has carried out; 0 for none.
    pub carried_out: u64,
}

impl Attendance {
    /// The same with a list that has its bounds.
    #[must_use]
    pub fn bounded(mut self) -> Self {
        let beyond = self.quarantine.len().saturating_sub(QUARANTINE_LISTED_MAX);
        self.quarantine.truncate(QUARANTINE_LISTED_MAX);
        self.left_out = self.left_out.saturating_add(beyond as u64);
        for sst in &mut self.quarantine {
            let end = sst.reason.floor_char_boundary(REASON_BYTES_MAX);
            sst.reason.truncate(end);
        }
        self
    }

    /// SSTs that it leaves alone, listed or not.
    pub fn quarantined(&self) -> u64 {
        self.left_out.saturating_add(self.quarantine.len() as u64)
    }
}

/// What an engine hears when it attends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Orders {
    /// What it has yet to carry out, the oldest first. It may hear of one again: the number tells.
    pub retries: Vec<RetryOrder>,
    /// Hosts of other engines that attend under its name: some of them, when there are many.
    pub namesakes: Vec<String>,
}

/// Has an engine try again what it leaves alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryOrder {
    /// Later orders have greater numbers.
    pub number: u64,
    /// The table that is meant; `None` for all.
    pub table: Option<TableId>,
}

/// The name of this machine.
pub(crate) fn host_name() -> String {
    gethostname::gethostname().to_string_lossy().into_owned()
}
