//! Siltstone inside another program: a table of readings, written, compacted and read back.
//!
//! `cargo run --example embed` runs it; the README shows it, and a test keeps the two equal.

use std::{error::Error, sync::Arc};

use arrow::array::{ArrayRef, Float64Array, RecordBatch, StringArray, TimestampSecondArray};
use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use siltstone::config::EngineConfig;
use siltstone::engine::{Engine, ScanRequest};
use siltstone::types::{TableOptions, TableSchema};

#[tokio::main]
pub async fn main() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let root = format!("file://{}", dir.path().display()); // Or s3://bucket/prefix.
    let engine = Engine::open(EngineConfig::new(root)).await?;
    let columns = Arc::new(Schema::new(vec![
        Field::new("time", DataType::Timestamp(TimeUnit::Second, None), false),
        Field::new("sensor", DataType::Utf8, false),
        Field::new("celsius", DataType::Float64, true),
    ]));
    let (key, options) = (["time", "sensor"], TableOptions::default());
    let schema = TableSchema::new(columns.clone(), &key, Some("time"), options)?;
    let table = engine.create_table("readings", schema).await?;
    let times: ArrayRef = Arc::new(TimestampSecondArray::from(vec![60, 60, 120]));
    let sensors: ArrayRef = Arc::new(StringArray::from(vec!["north", "south", "north"]));
    let celsius: ArrayRef = Arc::new(Float64Array::from(vec![Some(8.5), None, Some(9.0)]));
    let batch = RecordBatch::try_new(columns, vec![times, sensors, celsius])?;
    table.write(batch).await?; // Durable: it is in the write-ahead log.
    table.compact().await?; // The engine does so by itself, too.
    let request = ScanRequest::all().columns(["sensor", "celsius"]).limit(2);
    println!("{:?}", table.scan(request).await?.collect().await?);
    Ok(engine.close().await?)
}
