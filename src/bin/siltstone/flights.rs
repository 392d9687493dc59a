//! A year of flights out of New York as a load for the engine: the source file, the table that it fits,
//! the replay of each flight's three states in time order, and the answers that must come out.
//!
//! A flight is *scheduled* (nothing about its departure and arrival is known), *departed* (`dep_*` is
//! known) and *landed* (all is known, as far as the source knows it). A cancelled flight passes through
//! the same three states; the source just never learns more about it. So every flight is written three
//! times, and the last time equals the source.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use arrow::{
    array::{Array, AsArray, BooleanArray, Int64Array, RecordBatch, UInt32Array},
    compute::{SortColumn, concat_batches, lexsort_to_indices, nullif, take_record_batch},
    datatypes::{Int64Type, Schema, SchemaRef, TimestampMillisecondType},
};
use bytes::Bytes;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use siltstone::{
    error::{Error, Result},
    types::{TableOptions, TableSchema},
};

/// The flights' primary key; its first column is the time column.
pub const KEY: [&str; 3] = ["time_hour", "carrier", "flight"];
/// Width of the table's windows.
pub const WINDOW: Duration = Duration::from_secs(30 * 24 * 3_600);
/// States that each flight passes through.
pub const STATES: usize = 3;

const MINUTE_MS: i64 = 60_000;
/// How long before its hour of departure a flight appears as scheduled.
const SCHEDULED_AHEAD_MS: i64 = 6 * 60 * MINUTE_MS;
/// On the ground, taxiing and waiting, between departure and landing.
const TAXI_MS: i64 = 35 * MINUTE_MS;
/// Stands in for the air time of a flight that never landed, as far as the source knows.
const AIR_TIME_UNKNOWN: i64 = 180;

/// All rows of a Parquet file as one batch, in the order of the file.
///
/// # Errors
/// `Corrupt` when `file` is not Parquet.
pub fn read_parquet(name: &str, file: Bytes) -> Result<RecordBatch> {
    let corrupt = |error| Error::corrupt(format!("source {name}")).with_source(error);
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).map_err(corrupt)?;
    let reader = reader.with_batch_size(65_536).build().map_err(corrupt)?;
    let batches = reader.collect::<Result<Vec<_>, _>>()?;
    let Some(first) = batches.first() else {
        return Err(Error::corrupt(format!("source {name} has no rows")));
    };
    // The file's own metadata is no part of a table's schema.
    let columns: SchemaRef = Arc::new(Schema::new(first.schema().fields().clone()));
    let rows = concat_batches(&first.schema(), &batches)?;
    Ok(RecordBatch::try_new(columns, rows.columns().to_vec())?)
}

/// `batch` sorted by the columns called `key`, ascending, nulls first: the order of a scan.
pub fn sorted_by(batch: &RecordBatch, key: &[&str]) -> Result<RecordBatch> {
    let mut columns = Vec::new();
    for name in key {
        columns.push(SortColumn {
            values: column(batch, name)?.clone(),
            options: None,
        });
    }
    let order = lexsort_to_indices(&columns, None)?;
    Ok(take_record_batch(batch, &order)?)
}

/// The flights of the source.
#[derive(Clone, Debug)]
pub struct Flights {
    rows: RecordBatch,
}

impl Flights {
    /// The first `rows_max` flights of the Parquet file.
    ///
    /// # Errors
    /// `Corrupt` when it is not the file of flights.
    pub fn read(file: Bytes, rows_max: usize) -> Result<Self> {
        let rows = read_parquet("flights.parquet", file)?;
        let rows = rows.slice(0, rows.num_rows().min(rows_max));
        Ok(Self { rows })
    }

    /// All columns, in the order of the file.
    pub fn rows(&self) -> &RecordBatch {
        &self.rows
    }

    /// What a table must hold once all is replayed: the source in key order.
    pub fn landed(&self) -> Result<RecordBatch> {
        sorted_by(&self.rows, &KEY)
    }

    /// The schema of a table for flights.
    pub fn table_schema(&self) -> Result<TableSchema> {
        let options = TableOptions {
            window: WINDOW.into(),
            ..TableOptions::default()
        };
        TableSchema::new(self.rows.schema(), &KEY, Some(KEY[0]), options)
    }

    /// Every state of every flight, in time order, in batches of `batch_rows`.
    pub fn replay(&self, batch_rows: usize) -> Result<Replay> {
        Ok(Replay {
            events: self.events()?,
            flights: self.rows.clone(),
            batch_rows: batch_rows.max(1),
            next: 0,
        })
    }

    fn events(&self) -> Result<Vec<Event>> {
        let hours = column(&self.rows, "time_hour")?;
        let hours = hours.as_primitive_opt::<TimestampMillisecondType>();
        let hours = hours.ok_or_else(|| Error::corrupt("column \"time_hour\" is not a time"))?;
        let minutes = integers(&self.rows, "minute")?;
        let delays = integers(&self.rows, "dep_delay")?;
        let air_times = integers(&self.rows, "air_time")?;
        let known = |column: &Int64Array, row| column.is_valid(row).then(|| column.value(row));
        let mut events = Vec::with_capacity(self.rows.num_rows() * STATES);
        for row in 0..self.rows.num_rows() {
            let planned_ms = hours.value(row) + minutes.value(row) * MINUTE_MS;
            let delay = known(delays, row).unwrap_or(0);
            let air_time = known(air_times, row).unwrap_or(AIR_TIME_UNKNOWN);
            let scheduled_ms = planned_ms - SCHEDULED_AHEAD_MS;
            let departed_ms = (planned_ms + delay * MINUTE_MS).max(scheduled_ms + 1);
            let landed_ms = departed_ms + air_time * MINUTE_MS + TAXI_MS;
            for (state, at_ms) in [scheduled_ms, departed_ms, landed_ms]
                .into_iter()
                .enumerate()
            {
                events.push(Event {
                    at_ms,
                    state: state as u8,
                    row: row as u32,
                });
            }
        }
        events.sort_unstable();
        Ok(events)
    }
}

/// A flight enters a state. Ordered by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Event {
    at_ms: i64,
    /// 0 scheduled, 1 departed, 2 landed.
    state: u8,
    row: u32,
}

/// The batches of a replay.
#[derive(Debug)]
pub struct Replay {
    flights: RecordBatch,
    events: Vec<Event>,
    batch_rows: usize,
    next: usize,
}

impl Replay {
    /// Rows in all batches together.
    pub fn rows(&self) -> usize {
        self.events.len()
    }

    fn batch(&self, events: &[Event]) -> Result<RecordBatch> {
        let rows = UInt32Array::from_iter_values(events.iter().map(|event| event.row));
        let flights = take_record_batch(&self.flights, &rows)?;
        let before = |state: u8| -> BooleanArray {
            events
                .iter()
                .map(|event| Some(event.state < state))
                .collect()
        };
        let (not_departed, not_landed) = (before(1), before(2));
        let mut columns = flights.columns().to_vec();
        for (hidden, names) in [
            (&not_departed, &["dep_time", "dep_delay"][..]),
            (&not_landed, &["arr_time", "arr_delay", "air_time"][..]),
        ] {
            for name in names {
                let at = flights.schema().index_of(name)?;
                columns[at] = nullif(&columns[at], hidden)?;
            }
        }
        Ok(RecordBatch::try_new(flights.schema(), columns)?)
    }
}

impl Iterator for Replay {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let end = (self.next + self.batch_rows).min(self.events.len());
        let events = &self.events[self.next..end];
        self.next = end;
        (!events.is_empty()).then(|| self.batch(events))
    }
}

/// What can be asked of a table of flights, and the answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    /// Flights.
    pub rows: u64,
    /// Sum of `distance`.
    pub distance: i64,
    /// Flights whose `dep_delay` is null: cancelled.
    pub dep_delay_nulls: u64,
    /// Flights whose `tailnum` is null.
    pub tailnum_nulls: u64,
    /// Flights and sum of `distance` by `origin`.
    pub origins: BTreeMap<String, (u64, i64)>,
    /// Flights by `carrier`.
    pub carriers: BTreeMap<String, u64>,
}

impl Answers {
    /// The answers published with the data, for the whole year. Of the carriers, those with the most
    /// flights.
    pub fn published() -> Self {
        let origins = [
            ("EWR", 120_835, 127_691_515),
            ("JFK", 111_279, 140_906_931),
            ("LGA", 104_662, 81_619_161),
        ];
        let carriers = [("UA", 58_665), ("B6", 54_635), ("EV", 54_173)];
        Self {
            rows: 336_776,
            distance: 350_217_607,
            dep_delay_nulls: 8_255,
            tailnum_nulls: 2_512,
            origins: origins
                .map(|(name, rows, distance)| (name.to_owned(), (rows, distance)))
                .into(),
            carriers: carriers.map(|(name, rows)| (name.to_owned(), rows)).into(),
        }
    }

    /// The answers that `flights` give.
    pub fn of(flights: &RecordBatch) -> Result<Self> {
        let mut answers = Self::default();
        answers.add(flights)?;
        Ok(answers)
    }

    /// Adds the flights of `batch`.
    pub fn add(&mut self, batch: &RecordBatch) -> Result<()> {
        let distances = integers(batch, "distance")?;
        let origins = column(batch, "origin")?.as_string::<i32>();
        let carriers = column(batch, "carrier")?.as_string::<i32>();
        self.rows += batch.num_rows() as u64;
        self.dep_delay_nulls += column(batch, "dep_delay")?.null_count() as u64;
        self.tailnum_nulls += column(batch, "tailnum")?.null_count() as u64;
        for row in 0..batch.num_rows() {
            let distance = distances.value(row);
            self.distance += distance;
            let origin = origins.value(row);
            if !self.origins.contains_key(origin) {
                self.origins.insert(origin.to_owned(), (0, 0));
            }
            if let Some((rows, sum)) = self.origins.get_mut(origin) {
                *rows += 1;
                *sum += distance;
            }
            let carrier = carriers.value(row);
            match self.carriers.get_mut(carrier) {
                Some(rows) => *rows += 1,
                None => drop(self.carriers.insert(carrier.to_owned(), 1)),
            }
        }
        Ok(())
    }
}

fn column<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a arrow::array::ArrayRef> {
    batch
        .column_by_name(name)
        .ok_or_else(|| Error::corrupt(format!("column {name:?} is missing")))
}

fn integers<'a>(batch: &'a RecordBatch, name: &str) -> Result<&'a Int64Array> {
    column(batch, name)?
        .as_primitive_opt::<Int64Type>()
        .ok_or_else(|| Error::corrupt(format!("column {name:?} is not Int64")))
}
