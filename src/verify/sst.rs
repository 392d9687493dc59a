//! Reads one SST as readers do, and recomputes what the manifest says of it.
//!
//! 1. It is opened: footer, index and page index, each by its checksum, and all that the footer says is held against
//!    the manifest.
//! 2. Its row groups are read one by one, so that damage in one does not hide what the others are like. Every page is
//!    held against its checksum, and decoded.
//! 3. Over all rows: order, bounds of key, seq and time, window, counts, the hash over keys and seqs; and whether the
//!    filter lets every key through.

use std::cmp::Ordering;

use arrow::{
    array::{AsArray, RecordBatch},
    datatypes::{UInt8Type, UInt64Type},
    util::display::array_value_to_string,
};
use tokio::runtime::Handle;

use super::{Fault, Rows};
use crate::{
    error::{Error, ErrorKind, Result},
    sst::{KeyFilter, ReadRequest, SstAccess, SstReader},
    store::{Store, layout},
    threads,
    types::{Key, KeyRange, Op, RowSum, Seq, SstMeta, TableId, TableSchema, WriteMode, row_hash},
};

/// More faults of one kind are not listed.
const FAULTS_MAX: usize = 10;

/// What was found.
#[derive(Default)]
pub(super) struct Verified {
    pub(super) rows: u64,
    pub(super) faults: Vec<Fault>,
    /// There is no such object.
    pub(super) is_missing: bool,
}

/// Verifies the SST that a manifest of `table` describes as `meta`. Blocks.
///
/// # Errors
/// `Unavailable`.
pub(super) fn verify(
    store: &Store,
    handle: &Handle,
    table: TableId,
    meta: &SstMeta,
    schema: &TableSchema,
) -> Result<Verified> {
    let mut verified = Verified::default();
    let access = SstAccess::by_pages(store, std::sync::Arc::default());
    let opening = SstReader::open(&access, schema, table, std::sync::Arc::new(meta.clone()));
    let found = threads::wait(handle, opening);
    let reader = match found {
        Ok(reader) => reader,
        Err(error) => {
            let all = rows_of(
                schema,
                meta,
                (&meta.key_min, &meta.key_max),
                meta.rows,
                None,
            );
            let name = layout::sst(meta.home_in(table), meta.id);
            verified.note(&name, error, Some(all))?;
            return Ok(verified);
        }
    };
    let filter = match threads::wait(handle, reader.key_filter()) {
        Ok(filter) => filter,
        Err(error) => {
            verified.note(reader.name(), error, None)?;
            None
        }
    };
    let mut seen = Seen::new(schema, filter);
    let groups = reader.row_group_bounds();
    for (at, group) in groups.iter().enumerate() {
        let next = groups.get(at + 1).map(|next| next.first_key.clone());
        let last = next.clone().unwrap_or_else(|| meta.key_max.clone());
        let rows = || {
            rows_of(
                schema,
                meta,
                (&group.first_key, &last),
                group.rows,
                Some(at),
            )
        };
        let keys = KeyRange {
            // What is below the first key would be missed.
            start: (at > 0).then(|| group.first_key.clone()),
            end: next,
        };
        let request = ReadRequest {
            keys,
            ..ReadRequest::default()
        };
        let read = reader
            .source(&request, handle.clone())
            .and_then(|mut batches| batches.try_for_each(|batch| seen.add(&batch?)));
        if let Err(error) = read {
            seen.is_whole = false;
            verified.note(reader.name(), error, Some(rows()))?;
        }
        let disorder = std::mem::take(&mut seen.disorder);
        verified.add(reader.name(), disorder, Some(rows()));
    }
    verified.rows = seen.sum.rows;
    let differences = seen.differences(meta);
    let all = rows_of(
        schema,
        meta,
        (&meta.key_min, &meta.key_max),
        meta.rows,
        None,
    );
    verified.add(reader.name(), differences, Some(all));
    Ok(verified)
}

impl Verified {
    /// # Errors
    /// `error` itself, when it is not about the object.
    fn note(&mut self, object: &str, error: Error, rows: Option<Rows>) -> Result<()> {
        if error.is_unavailable() {
            return Err(error);
        }
        self.is_missing |= error.kind() == ErrorKind::NotFound;
        self.add(object, vec![error.to_string()], rows);
        Ok(())
    }

    fn add(&mut self, object: &str, faults: Vec<String>, rows: Option<Rows>) {
        let faults = faults.into_iter().map(|what| Fault {
            object: object.to_owned(),
            what,
            rows: rows.clone(),
        });
        self.faults.extend(faults);
    }
}

fn rows_of(
    schema: &TableSchema,
    meta: &SstMeta,
    (min, max): (&Key, &Key),
    count: u64,
    row_group: Option<usize>,
) -> Rows {
    Rows {
        count,
        row_group,
        key_min: text(schema, min),
        key_max: text(schema, max),
        times: meta.times,
    }
}

/// The key's columns as text, or its bytes where it does not decode.
fn text(schema: &TableSchema, key: &Key) -> Vec<String> {
    let decode = || schema.key_encoder().decode(std::slice::from_ref(key));
    // The parser asserts some of what damage can break.
    let Ok(columns) = crate::error::guarded(decode) else {
        return vec![format!("{key:?}")];
    };
    let columns = columns.iter();
    columns
        .map(|column| match column.is_null(0) {
            true => "null".to_owned(),
            false => array_value_to_string(column, 0).unwrap_or_default(),
        })
        .collect()
}

/// What the rows so far add up to.
struct Seen<'a> {
    schema: &'a TableSchema,
    filter: Option<KeyFilter>,
    /// Nothing is missing so far.
    is_whole: bool,
    sum: RowSum,
    tombstones: u64,
    seqs: Option<(u64, u64)>,
    times: Option<(i64, i64)>,
    first: Option<Key>,
    last: Option<(Key, u64)>,
    /// What is out of order, or not in the filter.
    disorder: Vec<String>,
}

impl<'a> Seen<'a> {
    fn new(schema: &'a TableSchema, filter: Option<KeyFilter>) -> Self {
        Self {
            schema,
            filter,
            is_whole: true,
            sum: RowSum::default(),
            tombstones: 0,
            seqs: None,
            times: None,
            first: None,
            last: None,
            disorder: Vec::new(),
        }
    }

    fn add(&mut self, batch: &RecordBatch) -> Result<()> {
        if batch.num_rows() == 0 {
            return Ok(());
        }
        let stored = self.schema.stored().fields().len();
        let keys = self.schema.key_encoder().encode(batch)?;
        let seqs = batch.column(stored - 2).as_primitive::<UInt64Type>();
        let ops = batch.column(stored - 1).as_primitive::<UInt8Type>();
        if let Some(column) = self.schema.time() {
            let times = TableSchema::times(batch, column)?;
            for &time in times.values() {
                let (min, max) = self.times.unwrap_or((time, time));
                self.times = Some((min.min(time), max.max(time)));
            }
        }
        for row in 0..batch.num_rows() {
            let (key, seq) = (keys.row(row).data(), seqs.value(row));
            self.check_order(key, seq);
            let lets = |filter: &KeyFilter| filter.may_contain(key);
            if !self.filter.as_ref().is_none_or(lets) {
                self.complain(|| format!("its filter does not know key {:?}", Key::from(key)));
            }
            self.sum.add_row(row_hash(key, Seq(seq)));
            self.tombstones += u64::from(ops.value(row) != Op::Put as u8);
            let (min, max) = self.seqs.unwrap_or((seq, seq));
            self.seqs = Some((min.min(seq), max.max(seq)));
            if self.first.is_none() {
                self.first = Some(Key::from(key));
            }
            if row + 1 == batch.num_rows() {
                self.last = Some((Key::from(key), seq));
            } else if let Some((last, last_seq)) = &mut self.last {
                *last_seq = seq;
                if last.0 != key {
                    *last = Key::from(key);
                }
            } else {
                self.last = Some((Key::from(key), seq));
            }
        }
        Ok(())
    }

    fn check_order(&mut self, key: &[u8], seq: u64) {
        let Some((last, last_seq)) = &self.last else {
            return;
        };
        let twins = self.schema.write_mode() == WriteMode::Append;
        let in_order = match last.0[..].cmp(key) {
            Ordering::Less => true,
            Ordering::Equal => *last_seq > seq || twins && *last_seq == seq,
            Ordering::Greater => false,
        };
        if !in_order {
            let last = last.clone();
            self.complain(|| {
                let key = Key::from(key);
                format!("key {key:?} at seq {seq} is out of order after {last:?}")
            });
        }
    }

    fn complain(&mut self, what: impl FnOnce() -> String) {
        if self.disorder.len() < FAULTS_MAX {
            self.disorder.push(what());
        }
    }

    /// What the manifest says otherwise.
    fn differences(&self, meta: &SstMeta) -> Vec<String> {
        let mut faults = Vec::new();
        if let Some((min, max)) = self.times
            && !meta.window.times().covers(min, max)
        {
            let window = meta.window;
            faults.push(format!(
                "times {min} to {max} are not all in window {window}"
            ));
        }
        if !self.is_whole {
            // The rest cannot be told.
            return faults;
        }
        let last = self.last.as_ref().map(|(key, _)| key);
        let seqs = (meta.seq_min.0, meta.seq_max.0);
        for (what, is_so) in [
            ("rows", self.sum.rows == meta.rows),
            ("hash over keys and seqs", self.sum.hash == meta.rows_hash),
            ("tombstones", self.tombstones == meta.tombstones),
            ("least key", self.first.as_ref() == Some(&meta.key_min)),
            ("greatest key", last == Some(&meta.key_max)),
            ("seqs", self.seqs == Some(seqs)),
            ("times", self.times == meta.times),
        ] {
            if !is_so {
                faults.push(format!("its {what} are not what the manifest says"));
            }
        }
        faults
    }
}
