//! Conversions of the shared vocabulary to and from generated messages.

use std::{sync::Arc, time::Duration};

use arrow::ipc::{
    convert::try_schema_from_flatbuffer_bytes,
    writer::{DictionaryTracker, IpcDataGenerator, IpcWriteOptions},
};

use super::{generated as pb, required};
use crate::{
    error::{Error, Result},
    types::{Key, KeyRange, Retention, Seq, SstMeta, TableOptions, TableSchema, Window, WriteMode},
};

impl From<&KeyRange> for pb::KeyRange {
    fn from(range: &KeyRange) -> Self {
        let bytes = |key: &Option<Key>| key.as_ref().map(|key| key.0.clone());
        Self {
            start: bytes(&range.start),
            end: bytes(&range.end),
        }
    }
}

impl From<pb::KeyRange> for KeyRange {
    fn from(range: pb::KeyRange) -> Self {
        Self {
            start: range.start.map(Key),
            end: range.end.map(Key),
        }
    }
}

impl From<&SstMeta> for pb::SstMeta {
    fn from(sst: &SstMeta) -> Self {
        Self {
            id: sst.id.to_string(),
            level: sst.level.into(),
            window: sst.window.0,
            bytes: sst.bytes,
            rows: sst.rows,
            tombstones: sst.tombstones,
            key_min: sst.key_min.0.clone(),
            key_max: sst.key_max.0.clone(),
            seq_min: sst.seq_min.0,
            seq_max: sst.seq_max.0,
            times: sst.times.map(|(min, max)| pb::TimeBounds { min, max }),
            schema_version: sst.schema_version,
            rows_hash: sst.rows_hash,
        }
    }
}

impl TryFrom<pb::SstMeta> for SstMeta {
    type Error = Error;

    fn try_from(sst: pb::SstMeta) -> Result<Self> {
        Ok(Self {
            id: stored_id(&sst.id)?,
            level: level(sst.level)?,
            window: Window(sst.window),
            bytes: sst.bytes,
            rows: sst.rows,
            tombstones: sst.tombstones,
            key_min: Key(sst.key_min),
            key_max: Key(sst.key_max),
            seq_min: Seq(sst.seq_min),
            seq_max: Seq(sst.seq_max),
            times: sst.times.map(|times| (times.min, times.max)),
            schema_version: sst.schema_version,
            rows_hash: sst.rows_hash,
        })
    }
}

impl From<&Retention> for pb::Retention {
    fn from(retention: &Retention) -> Self {
        Self {
            read_points: retention.read_points.iter().map(|seq| seq.0).collect(),
            drop_tombstones: retention.drop_tombstones,
        }
    }
}

impl From<pb::Retention> for Retention {
    fn from(retention: pb::Retention) -> Self {
        Self {
            read_points: retention.read_points.into_iter().map(Seq).collect(),
            drop_tombstones: retention.drop_tombstones,
        }
    }
}

impl From<&TableSchema> for pb::TableSchema {
    fn from(schema: &TableSchema) -> Self {
        let columns = IpcDataGenerator::default().schema_to_bytes_with_dictionary_tracker(
            schema.columns(),
            &mut DictionaryTracker::new(false),
            &IpcWriteOptions::default(),
        );
        let write_mode = match schema.write_mode() {
            WriteMode::Upsert => pb::WriteMode::Upsert,
            WriteMode::Append => pb::WriteMode::Append,
        };
        let time = schema
            .time()
            .map(|at| schema.columns().field(at).name().clone());
        Self {
            columns: columns.ipc_message.into(),
            key: schema.key_names().into_iter().map(str::to_owned).collect(),
            time,
            write_mode: write_mode.into(),
            window_ns: schema.options().window.map(|width| width.as_nanos() as u64),
            version: schema.version(),
        }
    }
}

impl TryFrom<pb::TableSchema> for TableSchema {
    type Error = Error;

    fn try_from(schema: pb::TableSchema) -> Result<Self> {
        let columns = try_schema_from_flatbuffer_bytes(&schema.columns)
            .map_err(|error| Error::corrupt("arrow schema does not decode").with_source(error))?;
        let write_mode = match schema.write_mode() {
            pb::WriteMode::Upsert => WriteMode::Upsert,
            pb::WriteMode::Append => WriteMode::Append,
            pb::WriteMode::Unspecified => {
                let number = schema.write_mode;
                return Err(Error::corrupt(format!("write mode {number} is not known")));
            }
        };
        let options = TableOptions {
            write_mode,
            window: schema.window_ns.map(Duration::from_nanos),
        };
        let key: Vec<&str> = schema.key.iter().map(String::as_str).collect();
        Self::with_version(
            Arc::new(columns),
            &key,
            schema.time.as_deref(),
            options,
            schema.version,
        )
        .map_err(|error| Error::corrupt("table schema is not valid").with_source(error))
    }
}

/// An id in its text form, from stored bytes.
pub(crate) fn stored_id<T: std::str::FromStr<Err = Error>>(text: &str) -> Result<T> {
    text.parse()
        .map_err(|error: Error| Error::corrupt(error.message()))
}

/// A level, from stored bytes.
pub(crate) fn level(level: u32) -> Result<u8> {
    u8::try_from(level).map_err(|_| Error::corrupt(format!("level {level} is not known")))
}

/// A message that must be there, converted.
pub(crate) fn convert_required<M, T: TryFrom<M, Error = Error>>(
    field: Option<M>,
    name: &str,
) -> Result<T> {
    required(field, name)?.try_into()
}
