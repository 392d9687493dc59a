//! `siltstone checkpoints`: what keeps the SSTs of a table from being deleted, and until when. Reads only.

use clap::Args;
use serde_json::{Value, json};
use siltstone::{
    clock::Env,
    config::{Bytes, Millis},
    error::{Error, Result},
    manifest::{
        CheckpointKind,
        checkpoints::{self, Listed},
    },
};

use crate::{
    admin::{align_right, new_table},
    inspect::{find_table, open_root},
};

/// Which table of which root.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// A root: a URL, or a directory.
    root: String,
    /// Name of the table; or its id, as for one that was dropped.
    #[arg(long, value_name = "NAME")]
    table: String,
    /// Prints JSON, with all there is to know.
    #[arg(long)]
    json: bool,
}

/// Lists the checkpoints.
///
/// # Errors
/// `NotFound` when there is no such root or table; `Unavailable`; `Corrupt` at the end, when one cannot be read.
pub async fn run(options: Options) -> Result<()> {
    let store = open_root(&options.root)?;
    let table = find_table(&store, &options.table).await?;
    let listed = checkpoints::list(&store, table).await?;
    let now_ms = Env::default().unix_ms();
    let ended = checkpoints::ended(&listed, now_ms);
    let has_ended = |one: &Listed| ended.iter().any(|ended| ended.object == one.object);
    if options.json {
        let all: Vec<Value> = listed
            .iter()
            .map(|one| json_of(one, has_ended(one)))
            .collect();
        println!("{:#}", Value::Array(all));
    } else {
        print(&listed, now_ms, has_ended);
    }
    let mut damaged = listed
        .iter()
        .filter_map(|one| one.checkpoint.as_ref().err());
    damaged.next().cloned().map_or(Ok(()), Err::<(), Error>)
}

fn json_of(listed: &Listed, has_ended: bool) -> Value {
    let object = &listed.object;
    match &listed.checkpoint {
        Ok(checkpoint) => {
            json!({"object": object, "has_ended": has_ended, "checkpoint": checkpoint.info()})
        }
        Err(error) => {
            json!({"object": object, "has_ended": has_ended, "fault": error.to_string()})
        }
    }
}

fn print(listed: &[Listed], now_ms: u64, has_ended: impl Fn(&Listed) -> bool) {
    let mut printed = new_table([
        "checkpoint",
        "of",
        "name",
        "made",
        "ends",
        "SSTs",
        "rows",
        "bytes",
    ]);
    for one in listed {
        let Ok(checkpoint) = &one.checkpoint else {
            printed.add_row([&one.object, "damaged: it holds everything"]);
            continue;
        };
        let info = checkpoint.info();
        let kind = match info.kind {
            CheckpointKind::Named => "a user",
            CheckpointKind::Reader => "a reader",
            CheckpointKind::Clone => "a clone",
        };
        let ends = match info.expires_ms {
            _ if has_ended(one) => "has ended".to_owned(),
            None => "never".to_owned(),
            Some(at_ms) => format!("in {}", seconds(at_ms.saturating_sub(now_ms))),
        };
        printed.add_row([
            info.id.to_string(),
            kind.to_owned(),
            info.name,
            format!("{} ago", seconds(now_ms.saturating_sub(info.created_ms))),
            ends,
            info.ssts.to_string(),
            info.rows.to_string(),
            Bytes(info.bytes).to_string(),
        ]);
    }
    align_right(&mut printed, 5..8);
    println!("{printed}");
}

/// A duration in whole seconds, as people write it.
fn seconds(ms: u64) -> Millis {
    Millis::secs(ms / 1_000)
}
