//! A whole cluster in one process: a meta service, two compaction nodes, and an engine that has its
//! compaction done by them. In real life each is a process of its own; the parts are the same.
//!
//! `cargo run --example remote` runs it.

use std::{error::Error, sync::Arc, time::Duration};

use arrow::array::{ArrayRef, Int64Array, RecordBatch, TimestampSecondArray};
use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use siltstone::clock::Env;
use siltstone::compaction::LOCAL_NODE;
use siltstone::config::{CompactionMode, EngineConfig, MetaConfig, NodeConfig};
use siltstone::engine::{CompactionStats, Engine, ScanRequest};
use siltstone::meta::{MetaService, open_plan_log};
use siltstone::node::Node;
use siltstone::rpc::{self, NodesClient};
use siltstone::types::{TableOptions, TableSchema};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

#[tokio::main]
pub async fn main() -> Result<(), Box<dyn Error>> {
    let (stop, services) = (CancellationToken::new(), TaskTracker::new());
    let meta = start_meta(&stop).await?;
    for id in ["node-1", "node-2"] {
        start_node(&meta, id, &stop, &services)?;
    }
    let compaction = write_and_compact(&meta).await?;
    if compaction.nodes.is_empty() || compaction.nodes.keys().any(|node| node.0 == LOCAL_NODE) {
        return Err("the compaction did not run on the nodes".into());
    }
    for (node, did) in &compaction.nodes {
        println!("{node}: {} tasks, {} rows", did.tasks, did.rows_read);
    }
    stop.cancel();
    services.close();
    services.wait().await;
    Ok(())
}

/// A meta service on a free port, as `compaction-meta` runs it; returns its address.
async fn start_meta(stop: &CancellationToken) -> Result<String, Box<dyn Error>> {
    let config = MetaConfig::default();
    let log = open_plan_log(&config.plan_log, Env::default())?;
    let service = MetaService::open(config, log, Env::default()).await?;
    let server = rpc::embed("127.0.0.1:0", service, stop.clone().cancelled_owned()).await?;
    Ok(format!("http://{}", server.address()))
}

/// A node with one slot, as `compaction-node` runs it.
fn start_node(
    meta: &str,
    id: &str,
    stop: &CancellationToken,
    services: &TaskTracker,
) -> Result<(), Box<dyn Error>> {
    let config = NodeConfig {
        meta: vec![meta.to_owned()],
        id: Some(id.to_owned()),
        slots: 1,
        ..NodeConfig::default()
    };
    let link = Arc::new(NodesClient::new(&config.meta)?);
    let node = Node::new(config, link, Env::default())?;
    services.spawn(node.run(stop.clone().cancelled_owned()));
    Ok(())
}

/// Writes the same keys again and again, so that there is something to merge.
async fn write_and_compact(meta: &str) -> Result<CompactionStats, Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let mut config = EngineConfig::new(format!("file://{}", dir.path().display()));
    config.compaction.mode = CompactionMode::Remote; // These two lines are the switch.
    config.compaction.remote.meta = vec![meta.to_owned()];
    let engine = Engine::open(config).await?;
    let columns = Arc::new(Schema::new(vec![
        Field::new("time", DataType::Timestamp(TimeUnit::Second, None), false),
        Field::new("value", DataType::Int64, false),
    ]));
    let options = TableOptions {
        window: Duration::from_secs(2_000).into(), // Ten windows: as many jobs.
        ..TableOptions::default()
    };
    let schema = TableSchema::new(columns.clone(), &["time"], Some("time"), options)?;
    let table = engine.create_table("values", schema).await?;
    for round in 1..=8_i64 {
        let times: ArrayRef = Arc::new(TimestampSecondArray::from_iter_values(0..20_000));
        let values: ArrayRef =
            Arc::new(Int64Array::from_iter_values((0..20_000).map(|n| n * round)));
        let batch = RecordBatch::try_new(columns.clone(), vec![times, values])?;
        table.write(batch).await?;
        table.flush().await?;
    }
    table.compact().await?;
    let rows = table.scan(ScanRequest::all()).await?.collect().await?;
    let rows: usize = rows.iter().map(RecordBatch::num_rows).sum();
    println!(
        "{rows} rows of 160000 are left in {} SSTs",
        table.stats().ssts
    );
    engine.close().await?;
    Ok(engine.stats().compaction)
}
