//! What an engine leaves alone because jobs with it failed, as those see it who look after it from elsewhere.

use async_trait::async_trait;

use super::QuarantinedSst;
use crate::types::TableId;

/// The quarantine of an engine, over all its tables.
#[async_trait]
pub trait QuarantineView: Send + Sync {
    /// Tells this opening of the engine from every other, on whatever host.
    fn session(&self) -> u64;

    /// The SSTs that are left alone now.
    fn list(&self) -> Vec<QuarantinedSst>;

    /// Has automatic plans take up what is left alone, of one table or of all; returns how many SSTs. A table
    /// that is not here has none.
    fn retry(&self, table: Option<TableId>) -> u64;

    /// Returns as soon as others are left alone, or have failed more often, than in `known`.
    async fn changed(&self, known: &[QuarantinedSst]);
}

impl QuarantinedSst {
    /// Whether `other` is the same SST after the same failure. How long it is left alone yet does not matter.
    pub fn is_as_in(&self, other: &Self) -> bool {
        let key = |sst: &Self| (sst.table_id, sst.failures, sst.since_ms);
        key(self) == key(other) && self.sst == other.sst
    }

    /// Whether two lists are the same, as far as [`Self::is_as_in`] tells.
    pub fn are_as_in(known: &[Self], others: &[Self]) -> bool {
        let mut pairs = known.iter().zip(others);
        known.len() == others.len() && pairs.all(|(known, other)| known.is_as_in(other))
    }
}
