//! `siltstone quarantine`: what the engines of a fleet leave alone because jobs with it failed.

use std::time::Duration;

use comfy_table::Table;
use humantime::format_duration;
use serde_json::{Value, json};
use siltstone::{clock::Env, error::Result, meta::QuarantineInfo};

use crate::admin::{Listed, engine_json, new_table};

/// Lists the SSTs in quarantine.
///
/// # Errors
/// `Unavailable`, naming the address.
pub async fn run(options: Listed) -> Result<()> {
    let client = &options.client()?;
    let list = |seen, wait| client.watch_quarantine(seen, wait);
    options.show(list, json, table).await
}

fn table(engines: &[QuarantineInfo]) -> Table {
    let mut table = new_table([
        "owner", "table", "id", "sst", "reason", "failures", "since", "next try",
    ]);
    let now_ms = Env::default().unix_ms();
    for info in engines {
        let owner = match info.engine.attends {
            true => info.owner.to_string(),
            false => format!("{}, which does not attend", info.owner),
        };
        for sst in &info.ssts {
            table.add_row([
                owner.clone(),
                sst.table.clone(),
                sst.table_id.to_string(),
                sst.sst.clone(),
                sst.reason.clone(),
                sst.failures.to_string(),
                format!("{} ago", seconds(now_ms.saturating_sub(sst.since_ms))),
                format!("in {}", seconds(sst.retry_in_ms)),
            ]);
        }
        if info.left_out > 0 {
            table.add_row([owner, format!("and {} SSTs more", info.left_out)]);
        }
    }
    table
}

fn seconds(millis: u64) -> String {
    format_duration(Duration::from_secs(millis.div_ceil(1000))).to_string()
}

fn json(info: &QuarantineInfo) -> Value {
    json!({
        "owner": info.owner.0,
        "engine": engine_json(&info.engine),
        "ssts": info.ssts,
        "left_out": info.left_out,
    })
}
