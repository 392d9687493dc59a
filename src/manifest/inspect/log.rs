//! A log read from outside, record by record: one that is missing or damaged is a fault, and the rest is read.

use std::collections::BTreeMap;

use super::RecordReport;
use crate::{
    error::{Error, ErrorKind, Result},
    store::{
        Store, layout,
        log::{Record, RecordKind},
    },
};

/// A log, read record by record.
pub(super) struct ReadLog {
    pub(super) entries: Vec<Entry>,
    /// Position of the newest snapshot that can be read, or 0.
    pub(super) first: usize,
    pub(super) faults: Vec<String>,
}

/// One record of it; `None` when it is damaged.
pub(super) struct Entry {
    number: u64,
    bytes: u64,
    modified_ms: i64,
    pub(super) record: Option<Record>,
}

impl Entry {
    /// What is told of it, when `summary` says what it does.
    pub(super) fn line(&self, summary: Option<String>) -> RecordReport {
        let kind = self.record.as_ref().map(|record| record.kind);
        RecordReport {
            number: self.number,
            bytes: self.bytes,
            modified_ms: self.modified_ms,
            kind: match kind {
                None => "damaged",
                Some(RecordKind::Edit) => "edit",
                Some(RecordKind::Snapshot) => "snapshot",
                Some(RecordKind::Claim) => "claim",
            },
            epoch: self.record.as_ref().map_or(0, |record| record.epoch.0),
            summary: summary.unwrap_or_default(),
        }
    }
}

impl ReadLog {
    /// Reads the log in `folder`.
    ///
    /// # Errors
    /// `NotFound` when there is none; `Unavailable`. Damage is no error.
    pub(super) async fn read(store: &Store, folder: &str) -> Result<Self> {
        let objects = store.list(folder).await?;
        let numbered = objects
            .into_iter()
            .filter_map(|object| Some((layout::parse_log_record(folder, &object.name)?, object)));
        let numbered: BTreeMap<u64, _> = numbered.collect();
        if numbered.is_empty() {
            let url = store.url();
            return Err(Error::not_found(format!(
                "there is no log in {folder} of {url}"
            )));
        }
        let mut log = Self {
            entries: Vec::with_capacity(numbered.len()),
            first: 0,
            faults: Vec::new(),
        };
        for (number, object) in numbered {
            let bytes = match store.get(&object.name).await {
                Ok(bytes) => bytes,
                // An engine at work has removed it since it was listed.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            let record = Record::decode(&object.name, number, &bytes);
            if let Err(error) = &record {
                log.faults.push(error.message().to_owned());
            }
            log.entries.push(Entry {
                number,
                bytes: object.bytes,
                modified_ms: object.modified_ms,
                record: record.ok(),
            });
        }
        let is_snapshot = |entry: &Entry| {
            let record = entry.record.as_ref();
            record.is_some_and(|record| record.kind == RecordKind::Snapshot)
        };
        log.first = log.entries.iter().rposition(is_snapshot).unwrap_or(0);
        log.check_start(folder);
        log.check_gaps(folder);
        Ok(log)
    }

    /// From where a reader begins none is missing.
    fn check_gaps(&mut self, folder: &str) {
        for pair in self.entries[self.first..].windows(2) {
            let (start, end) = (pair[0].number + 1, pair[1].number - 1);
            if start <= end {
                self.faults
                    .push(format!("{folder}: records {start} to {end} are missing"));
            }
        }
    }

    /// A log begins with record 1, or with a snapshot.
    fn check_start(&mut self, folder: &str) {
        let first = &self.entries[self.first];
        let is_snapshot =
            first.record.as_ref().map(|record| record.kind) == Some(RecordKind::Snapshot);
        if first.number != 1 && !is_snapshot {
            let number = first.number;
            let what = format!("{folder}: begins with record {number}, and has no snapshot");
            self.faults.push(what);
        }
    }
}
