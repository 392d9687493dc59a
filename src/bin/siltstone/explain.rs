//! `siltstone explain`: why a table is being compacted, or is not, and why a task waits.
//!
//! A table is explained from its manifest, with the planner that its engine has: what each window lacks to a merge,
//! what is to be merged, what was rejected by which rule, and the jobs that are recorded. With `--meta` each of these
//! is asked for at the meta service. What only the engine knows, such as what is in quarantine since a job failed, is
//! not in it.

use std::{collections::HashSet, path::PathBuf, sync::Arc};

use clap::Args;
use serde_json::{Value, json};
use siltstone::{
    clock::Env,
    compaction::{
        Claims, Footprint,
        planner::{self, PlannerConfig, Situation, WindowExplanation},
        remote::TaskState,
    },
    config::{Bytes, EngineConfig},
    error::{Error, ErrorKind, Result},
    manifest::{JobRecord, Pins, Version, inspect},
    meta::{Explanation, JobInfo},
    rpc::AdminClient,
    types::{TaskId, Window},
};

use crate::{
    admin::{estimate, state_of, task_json},
    inspect::open_root,
};

/// What is to be explained.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// A root: a URL, or a directory.
    #[arg(required_unless_present = "task", requires = "table")]
    root: Option<String>,
    /// The name of a table there.
    table: Option<String>,
    /// Only windows with times from this one on, in the unit of the time column.
    #[arg(long, value_name = "TIME", allow_negative_numbers = true)]
    start: Option<i64>,
    /// Only windows with times before this one.
    #[arg(long, value_name = "TIME", allow_negative_numbers = true)]
    end: Option<i64>,
    /// The configuration of the table's engine. Without it, the defaults.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A task of a meta service instead: why it waits, or how it runs.
    #[arg(long, value_name = "ID", conflicts_with = "root")]
    task: Option<TaskId>,
    /// Addresses of meta services, tried in order. For a task: by default http://127.0.0.1:7400.
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',')]
    meta: Vec<String>,
    /// Prints JSON.
    #[arg(long)]
    json: bool,
}

/// Explains.
///
/// # Errors
/// `NotFound` when there is no such root, table or task; `Corrupt` when the manifest is damaged; `Unavailable`.
pub async fn run(options: Options) -> Result<()> {
    if let Some(task) = options.task {
        return explain_task(&options, task).await;
    }
    let (Some(root), Some(name)) = (&options.root, &options.table) else {
        return Err(Error::invalid("neither a table nor a task is named"));
    };
    let store = open_root(root)?;
    let (tables, _) = inspect::tables(&store).await?;
    let Some((_, id)) = tables.iter().find(|(known, _)| known == name) else {
        let url = store.url();
        return Err(Error::not_found(format!(
            "the catalog of {url} has no table {name:?}"
        )));
    };
    let seen = inspect::version(&store, *id).await?;
    let Some(version) = seen.version.filter(|_| seen.faults.is_empty()) else {
        let faults = seen.faults.join("; ");
        return Err(Error::corrupt(format!("table {name:?}: {faults}")));
    };
    let mut report = TableReport::new(&options, &version)?;
    report.ask_meta(&options).await?;
    match options.json {
        true => println!("{:#}", report.json()),
        false => report.print(),
    }
    Ok(())
}

async fn explain_task(options: &Options, task: TaskId) -> Result<()> {
    let client = match options.meta.is_empty() {
        true => AdminClient::new(&["http://127.0.0.1:7400".to_owned()])?,
        false => AdminClient::new(&options.meta)?,
    };
    let explanation = client.explain(task).await?;
    if options.json {
        let Explanation { task, reasons } = &explanation;
        println!(
            "{:#}",
            json!({ "task": task_json(task), "reasons": reasons })
        );
        return Ok(());
    }
    println!("task {task}: {}", state_of(&explanation.task));
    for reason in &explanation.reasons {
        println!("  {reason}");
    }
    Ok(())
}

/// A recorded job, and what the meta service says of it.
struct Job {
    record: Arc<JobRecord>,
    bytes: u64,
    /// `None` when nobody was asked.
    meta: Option<String>,
}

struct TableReport {
    windows: Vec<WindowExplanation>,
    jobs: Vec<Job>,
    now_ms: u64,
}

impl TableReport {
    fn new(options: &Options, version: &Version) -> Result<Self> {
        let config = match &options.config {
            Some(file) => {
                let (origin, text) = siltstone::cli::read_config(Some(file))?;
                EngineConfig::from_toml(&origin, &text)?
            }
            None => EngineConfig::new("memory:///"),
        };
        let is_meant = |window: &Window| {
            let times = window.times();
            options.start.is_none_or(|start| start < times.end)
                && options.end.is_none_or(|end| times.start < end)
        };
        let claims = Claims::default();
        let (mut held, mut jobs) = (Vec::new(), Vec::new());
        for record in version.jobs.values() {
            let inputs = version.inputs_of(record)?;
            held.extend(claims.claim(Footprint::new(record.window, &inputs, record.level_target)));
            if is_meant(&record.window) {
                jobs.push(Job {
                    record: record.clone(),
                    bytes: inputs.iter().map(|sst| sst.bytes).sum(),
                    meta: None,
                });
            }
        }
        let now_ms = Env::default().unix_ms();
        let situation = Situation {
            version,
            claimed: &claims.claimed(),
            held: &HashSet::new(),
            pins: &Pins {
                read_points: Vec::new(),
                expiry: None,
            },
            now_ms,
        };
        let mut windows = planner::explain(&situation, &PlannerConfig::from(&config.compaction));
        windows.retain(|window| is_meant(&window.window));
        Ok(Self {
            windows,
            jobs,
            now_ms,
        })
    }

    async fn ask_meta(&mut self, options: &Options) -> Result<()> {
        if options.meta.is_empty() || self.jobs.is_empty() {
            return Ok(());
        }
        let client = AdminClient::new(&options.meta)?;
        let known = client.jobs().await?;
        for job in &mut self.jobs {
            let found = known.iter().find(|known| known.job == job.record.id);
            job.meta = Some(match found {
                Some(found) => says(&client, found).await?,
                None => "the meta service does not know it".into(),
            });
        }
        Ok(())
    }

    fn print(&self) {
        if self.windows.is_empty() {
            println!("there are no SSTs");
        }
        for window in &self.windows {
            println!("window {}", window.window);
            for line in &window.triggers {
                println!("  {line}");
            }
            for line in &window.plans {
                println!("  next: {line}");
            }
            if window.plans.is_empty() {
                println!("  next: nothing");
            }
            for line in &window.rejected {
                println!("  rejected: {line}");
            }
        }
        for Job {
            record,
            bytes,
            meta,
        } in &self.jobs
        {
            let (id, inputs, bytes) = (record.id, record.inputs.len(), Bytes(*bytes));
            let age = self.now_ms.saturating_sub(record.created_ms) / 1000;
            println!(
                "job {id}, window {}: {inputs} SSTs, {bytes} into level {}, in {} tasks, recorded {age} s ago",
                record.window,
                record.level_target,
                record.tasks.len()
            );
            if let Some(meta) = meta {
                println!("  {meta}");
            }
        }
    }

    fn json(&self) -> Value {
        let windows = self.windows.iter().map(|window| {
            json!({
                "window": window.window.to_string(),
                "triggers": window.triggers,
                "plans": window.plans,
                "rejected": window.rejected,
                "due_ms": window.due_ms,
            })
        });
        let jobs = self.jobs.iter().map(|job| {
            let record = &job.record;
            json!({
                "job": record.id.to_string(),
                "window": record.window.to_string(),
                "inputs": record.inputs.iter().map(ToString::to_string).collect::<Vec<_>>(),
                "bytes": job.bytes,
                "level_target": record.level_target,
                "tasks": record.tasks.len(),
                "created_ms": record.created_ms,
                "meta": job.meta,
            })
        });
        json!({
            "windows": windows.collect::<Vec<_>>(),
            "jobs": jobs.collect::<Vec<_>>(),
        })
    }
}

/// What the meta service says of a job: how its tasks stand, and why the first that waits does.
async fn says(client: &AdminClient, job: &JobInfo) -> Result<String> {
    let running = job.count(|state| matches!(state, TaskState::Running { .. }));
    let done = job.count(|state| matches!(state, TaskState::Done { .. }));
    let all = job.tasks.len();
    let mut said = format!("{done} of {all} tasks done, {running} running");
    if let Some(estimate) = estimate(job) {
        said += &format!("; done in about {estimate}, if the nodes have nothing else to do");
    }
    let waiting = job.tasks.iter();
    let mut waiting = waiting.filter(|task| task.state == TaskState::Queued);
    if let Some(first) = waiting.next() {
        let task = TaskId {
            job: job.job,
            index: first.index,
        };
        match client.explain(task).await {
            Ok(explanation) => {
                let reasons = explanation.reasons.join("; ");
                said += &format!("; {} waiting, task {task}: {reasons}", waiting.count() + 1);
            }
            // It has ended meanwhile.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(said)
}
