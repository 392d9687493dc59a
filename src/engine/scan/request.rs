//! What a scan is asked for.

use crate::types::{KeyRange, Predicate, TimeRange};

/// What to scan. The default is everything, in key order.
#[derive(Clone, Debug, Default)]
pub struct ScanRequest {
    /// Names of the columns to return, in this order; `None` for all.
    pub projection: Option<Vec<String>>,
    /// Rows to return: those for which it is true. Whatever it says of keys and times is made use of as the next
    /// two are.
    pub predicate: Option<Predicate>,
    /// Keys to return; [`TableSchema::key_of`](crate::types::TableSchema::key_of) makes bounds.
    pub keys: KeyRange,
    /// Times to return, by the time column.
    pub times: Option<TimeRange>,
    /// Rows to return at most.
    pub limit: Option<usize>,
    /// Whether to begin with the greatest key.
    pub descending: bool,
}

impl ScanRequest {
    /// Everything.
    pub fn all() -> Self {
        Self::default()
    }

    /// Only these columns, in this order.
    #[must_use]
    pub fn columns<'a>(mut self, names: impl IntoIterator<Item = &'a str>) -> Self {
        self.projection = Some(names.into_iter().map(str::to_owned).collect());
        self
    }

    /// Only rows for which `predicate` is true, and what was asked for before.
    #[must_use]
    pub fn filter(mut self, predicate: Predicate) -> Self {
        self.predicate = Some(match self.predicate {
            Some(before) => before.and(predicate),
            None => predicate,
        });
        self
    }

    /// Only keys inside `keys`.
    #[must_use]
    pub fn keys(mut self, keys: KeyRange) -> Self {
        self.keys = keys;
        self
    }

    /// Only times inside `times`.
    #[must_use]
    pub fn times(mut self, times: TimeRange) -> Self {
        self.times = Some(times);
        self
    }

    /// At most `rows` rows, the first in the order of the scan.
    #[must_use]
    pub fn limit(mut self, rows: usize) -> Self {
        self.limit = Some(rows);
        self
    }

    /// Beginning with the greatest key.
    #[must_use]
    pub fn descending(mut self) -> Self {
        self.descending = true;
        self
    }
}
