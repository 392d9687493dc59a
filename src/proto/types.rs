//! Conversions of the shared vocabulary to and from generated messages.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use arrow::{
    datatypes::Schema,
    ipc::{
        convert::try_schema_from_flatbuffer_bytes,
        writer::{DictionaryTracker, IpcDataGenerator, IpcWriteOptions},
    },
};

use super::{generated as pb, required};
use crate::{
    error::{Error, Result, guarded},
    types::{
        Key, KeyRange, MergeOperator, PlannerKind, RangeDelete, Retention, SchemaColumns,
        SchemaParts, Seq, SstMeta, TableOptions, TableSchema, TimeRange, Window, Windowing,
        WriteMode,
    },
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
            window: Some(sst.window.into()),
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
            applied_seq: sst.applied_seq.0,
            home: sst.home.map(|home| home.to_string()),
        }
    }
}

impl TryFrom<pb::SstMeta> for SstMeta {
    type Error = Error;

    fn try_from(sst: pb::SstMeta) -> Result<Self> {
        Ok(Self {
            id: stored_id(&sst.id)?,
            level: level(sst.level)?,
            window: required(sst.window, "window")?.into(),
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
            applied_seq: Seq(sst.applied_seq),
            home: sst.home.as_deref().map(stored_id).transpose()?,
        })
    }
}

impl From<Window> for pb::Window {
    fn from(window: Window) -> Self {
        let TimeRange { start, end } = window.times();
        Self { start, end }
    }
}

impl From<pb::Window> for Window {
    fn from(window: pb::Window) -> Self {
        Self::new(window.start, window.end)
    }
}

impl From<&Retention> for pb::Retention {
    fn from(retention: &Retention) -> Self {
        Self {
            read_points: retention.read_points.iter().map(|seq| seq.0).collect(),
            drop_tombstones: retention.drop_tombstones,
            expiry: retention.expiry,
            range_deletes: retention.range_deletes.iter().map(Into::into).collect(),
        }
    }
}

impl From<pb::Retention> for Retention {
    fn from(retention: pb::Retention) -> Self {
        Self {
            read_points: retention.read_points.into_iter().map(Seq).collect(),
            drop_tombstones: retention.drop_tombstones,
            expiry: retention.expiry,
            range_deletes: retention.range_deletes.iter().map(Into::into).collect(),
        }
    }
}

impl From<&RangeDelete> for pb::RangeDelete {
    fn from(delete: &RangeDelete) -> Self {
        Self {
            seq: delete.seq.0,
            start: delete.times.start,
            end: delete.times.end,
        }
    }
}

impl From<&pb::RangeDelete> for RangeDelete {
    fn from(delete: &pb::RangeDelete) -> Self {
        Self {
            seq: Seq(delete.seq),
            times: TimeRange {
                start: delete.start,
                end: delete.end,
            },
        }
    }
}

impl From<&TableSchema> for pb::TableSchema {
    fn from(schema: &TableSchema) -> Self {
        let parts = schema.to_parts();
        let columns = IpcDataGenerator::default().schema_to_bytes_with_dictionary_tracker(
            &parts.columns.schema,
            &mut DictionaryTracker::new(false),
            &IpcWriteOptions::default(),
        );
        let write_mode = match schema.write_mode() {
            WriteMode::Upsert => pb::WriteMode::Upsert,
            WriteMode::Append => pb::WriteMode::Append,
        };
        let nanos = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let operators = schema.operators().iter();
        Self {
            columns: columns.ipc_message.into(),
            key: parts.key,
            time: parts.time,
            write_mode: write_mode.into(),
            window_ns: match parts.options.window {
                Windowing::None => None,
                Windowing::Fixed(width) => Some(nanos(width)),
                Windowing::Auto => Some(0),
            },
            version: parts.version,
            column_ids: parts.columns.ids,
            column_id_next: parts.columns.next_id,
            expiry_floor: parts.expiry_floor,
            ttl_ns: parts.options.ttl.map(nanos),
            operators: operators
                .map(|&operator| pb::MergeOperator::from(operator).into())
                .collect(),
            planner: schema
                .options()
                .planner
                .map(|planner| pb::Planner::from(planner).into()),
        }
    }
}

impl TryFrom<pb::TableSchema> for TableSchema {
    type Error = Error;

    fn try_from(schema: pb::TableSchema) -> Result<Self> {
        let columns = guarded(|| {
            try_schema_from_flatbuffer_bytes(&schema.columns)
                .map_err(|error| Error::corrupt("arrow schema does not decode").with_source(error))
        })?;
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
            window: match schema.window_ns {
                None => Windowing::None,
                Some(0) => Windowing::Auto,
                Some(width) => Windowing::Fixed(Duration::from_nanos(width)),
            },
            ttl: schema.ttl_ns.map(Duration::from_nanos),
            operators: operators(&columns, &schema.operators)?,
            planner: schema.planner.map(planner).transpose()?,
        };
        Self::from_parts(SchemaParts {
            columns: SchemaColumns {
                schema: Arc::new(columns),
                ids: schema.column_ids,
                next_id: schema.column_id_next,
            },
            key: schema.key,
            time: schema.time,
            options,
            expiry_floor: schema.expiry_floor,
            version: schema.version,
        })
        .map_err(|error| Error::corrupt("table schema is not valid").with_source(error))
    }
}

fn operators(columns: &Schema, numbers: &[i32]) -> Result<BTreeMap<String, MergeOperator>> {
    let mut operators = BTreeMap::new();
    for (field, &number) in columns.fields().iter().zip(numbers) {
        let operator = pb::MergeOperator::try_from(number)
            .map_err(|_| Error::corrupt(format!("merge operator {number} is not known")))?;
        if operator != pb::MergeOperator::LastValue {
            operators.insert(field.name().clone(), operator.into());
        }
    }
    Ok(operators)
}

macro_rules! same_names {
    ($($name:ident)*) => {
        impl From<MergeOperator> for pb::MergeOperator {
            fn from(operator: MergeOperator) -> Self {
                match operator { $(MergeOperator::$name => Self::$name,)* }
            }
        }

        impl From<pb::MergeOperator> for MergeOperator {
            fn from(operator: pb::MergeOperator) -> Self {
                match operator { $(pb::MergeOperator::$name => Self::$name,)* }
            }
        }
    };
}

same_names! { LastValue LastNonNull Sum Min Max BytesAppend }

impl From<PlannerKind> for pb::Planner {
    fn from(kind: PlannerKind) -> Self {
        match kind {
            PlannerKind::TimeWindow => Self::TimeWindow,
            PlannerKind::Leveled => Self::Leveled,
            PlannerKind::Tiered => Self::Tiered,
        }
    }
}

fn planner(number: i32) -> Result<PlannerKind> {
    match pb::Planner::try_from(number) {
        Ok(pb::Planner::TimeWindow) => Ok(PlannerKind::TimeWindow),
        Ok(pb::Planner::Leveled) => Ok(PlannerKind::Leveled),
        Ok(pb::Planner::Tiered) => Ok(PlannerKind::Tiered),
        Ok(pb::Planner::Unspecified) | Err(_) => {
            Err(Error::corrupt(format!("planner {number} is not known")))
        }
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
