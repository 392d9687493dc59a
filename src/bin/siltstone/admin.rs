//! `siltstone nodes`, `jobs` and `owners`: what a meta service knows, as a table or as JSON, once or with every
//! change.

use std::time::Duration;

use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Value, json};
use siltstone::{
    compaction::remote::TaskState,
    config::Bytes,
    error::Result,
    meta::{EngineInfo, JobInfo, Listing, NodeInfo, OwnerInfo, TaskInfo},
    rpc::AdminClient,
};

/// How long to wait for a change before asking again.
const WATCH_WAIT: Duration = Duration::from_secs(20);
/// How long to rest after each list.
const WATCH_REST: Duration = Duration::from_secs(1);

/// Which meta service to ask, and how to print its answer.
#[derive(Args, Clone, Debug)]
pub struct Options {
    #[command(flatten)]
    service: Service,
    /// Prints JSON, with all there is to know.
    #[arg(long)]
    pub json: bool,
}

/// Which meta service to ask.
#[derive(Args, Clone, Debug)]
pub struct Service {
    /// Addresses of meta services, tried in order.
    #[arg(
        long,
        value_name = "ADDRESS",
        value_delimiter = ',',
        default_value = "http://127.0.0.1:7400"
    )]
    meta: Vec<String>,
}

impl Service {
    /// A client of it.
    pub fn client(&self) -> Result<AdminClient> {
        AdminClient::new(&self.meta)
    }
}

impl Options {
    /// A client of the meta service.
    pub fn client(&self) -> Result<AdminClient> {
        self.service.client()
    }
}

/// How to list what a meta service knows.
#[derive(Args, Clone, Debug)]
pub struct Listed {
    #[command(flatten)]
    options: Options,
    /// Lists again whenever something has changed, at most once a second, until it is stopped. With `--json`, one
    /// line each.
    #[arg(long)]
    watch: bool,
}

impl Listed {
    /// A client of the meta service.
    pub fn client(&self) -> Result<AdminClient> {
        self.options.client()
    }

    /// Shows what `list` answers, which takes the revision last seen and how long to wait for another.
    pub async fn show<T, F>(
        &self,
        list: impl Fn(u64, Duration) -> F,
        json: impl Fn(&T) -> Value,
        table: impl Fn(&[T]) -> Table,
    ) -> Result<()>
    where
        F: Future<Output = Result<Listing<T>>>,
    {
        let mut seen = 0;
        loop {
            let listed = list(seen, WATCH_WAIT).await?;
            let has_news = listed.revision != seen;
            seen = listed.revision;
            match (self.options.json, self.watch) {
                _ if !has_news => {}
                (true, false) => println!("{:#}", values(&listed, &json)),
                (true, true) => println!("{}", values(&listed, &json)),
                (false, _) => println!("{}", table(&listed.items)),
            }
            if !self.watch {
                return Ok(());
            }
            tokio::time::sleep(WATCH_REST).await;
        }
    }
}

fn values<T>(listed: &Listing<T>, json: impl Fn(&T) -> Value) -> Value {
    Value::Array(listed.items.iter().map(json).collect())
}

/// Lists the nodes.
///
/// # Errors
/// `Unavailable`, naming the address.
pub async fn nodes(options: Listed) -> Result<()> {
    let client = &options.options.client()?;
    let list = |seen, wait| client.watch_nodes(seen, wait);
    options.show(list, node_json, nodes_table).await
}

fn nodes_table(nodes: &[NodeInfo]) -> Table {
    let mut table = new_table([
        "node",
        "state",
        "slots free",
        "tasks",
        "bytes",
        "memory",
        "pool",
        "zone",
        "host",
        "version",
        "last poll",
    ]);
    for node in nodes {
        let facts = &node.facts;
        table.add_row([
            facts.id.to_string(),
            node.state.as_str().to_owned(),
            format!("{} of {}", node.slots_free, facts.slots),
            node.tasks.to_string(),
            Bytes(node.bytes).to_string(),
            Bytes(facts.memory_bytes).to_string(),
            facts.pool.clone(),
            facts.zone.clone(),
            facts.host.clone(),
            facts.version.clone(),
            format!("{:.1} s ago", node.silent.as_secs_f64()),
        ]);
    }
    table
}

/// Lists the jobs.
///
/// # Errors
/// `Unavailable`, naming the address.
pub async fn jobs(options: Listed) -> Result<()> {
    let client = &options.options.client()?;
    let list = |seen, wait| client.watch_jobs(seen, wait);
    options.show(list, job_json, jobs_table).await
}

fn jobs_table(jobs: &[JobInfo]) -> Table {
    let mut table = new_table([
        "job", "owner", "what", "class", "queued", "running", "done", "failed", "done in", "nodes",
    ]);
    for job in jobs {
        let count = |name: &str| {
            let states = job.tasks.iter().map(|task| state(&task.state).0);
            states.filter(|state| *state == name).count().to_string()
        };
        let running = job.tasks.iter().flat_map(|task| &task.nodes);
        let mut nodes: Vec<&str> = running.map(|node| node.0.as_str()).collect();
        nodes.sort_unstable();
        nodes.dedup();
        table.add_row([
            job.job.to_string(),
            job.owner.to_string(),
            job.label.clone(),
            job.pressure.class.as_str().to_owned(),
            count("queued"),
            count("running"),
            count("done"),
            count("failed"),
            estimate(job).unwrap_or_default(),
            nodes.join(" "),
        ]);
    }
    table
}

/// Lists the owners.
///
/// # Errors
/// `Unavailable`, naming the address.
pub async fn owners(options: Listed) -> Result<()> {
    let client = &options.options.client()?;
    let list = |seen, wait| client.watch_owners(seen, wait);
    options.show(list, owner_json, owners_table).await
}

fn owners_table(owners: &[OwnerInfo]) -> Table {
    let mut table = new_table([
        "owner",
        "weight",
        "jobs",
        "jobs window",
        "queued",
        "running",
        "oldest wait",
        "paused",
        "host",
        "version",
        "attends",
    ]);
    for owner in owners {
        let tables = owner.paused_tables.iter();
        let tables: Vec<String> = tables.map(|table| format!("table {table}")).collect();
        table.add_row([
            owner.owner.to_string(),
            owner.weight.to_string(),
            owner.jobs.to_string(),
            owner.jobs_window.to_string(),
            owner.queued.to_string(),
            owner.running.to_string(),
            format!("{:.1} s", owner.oldest_wait.as_secs_f64()),
            match owner.paused {
                true => "all of it".to_owned(),
                false => tables.join(" "),
            },
            of_engines(owner, |engine| &engine.host),
            of_engines(owner, |engine| &engine.version),
            attends(owner),
        ]);
    }
    table
}

/// How long it takes, if its nodes have nothing else to do.
pub fn estimate(job: &JobInfo) -> Option<String> {
    let estimate = job.done_estimate?;
    Some(format!("{:.0} s", estimate.as_secs_f64().ceil()))
}

fn of_engines(owner: &OwnerInfo, word: impl Fn(&EngineInfo) -> &String) -> String {
    let words: Vec<&str> = owner
        .engines
        .iter()
        .map(|engine| word(engine).as_str())
        .collect();
    words.join(", ")
}

/// Whether an owner's engine attends; of several that they should not have one name.
fn attends(owner: &OwnerInfo) -> String {
    let namesakes = owner.engines.iter().filter(|engine| engine.has_namesakes);
    let silent = owner.engines.iter().map(|engine| engine.silent).min();
    let attends = owner.engines.iter().any(|engine| engine.attends);
    match (namesakes.count(), attends, silent) {
        (0, true, _) => "yes".to_owned(),
        (0, false, Some(silent)) => format!("not for {:.0} s", silent.as_secs_f64()),
        (0, false, None) => "no".to_owned(),
        (engines, ..) => format!("{engines} engines use this name"),
    }
}

/// A task's state in one word, and the node that it names.
fn state(state: &TaskState) -> (&'static str, Option<&str>) {
    match state {
        TaskState::Queued => ("queued", None),
        TaskState::Running { node, .. } => ("running", Some(&node.0)),
        TaskState::Done { node } => ("done", Some(&node.0)),
        TaskState::Failed { .. } => ("failed", None),
        TaskState::Displaced => ("displaced", None),
        TaskState::Cancelled { .. } => ("cancelled", None),
    }
}

/// A task's state in one word.
pub fn state_of(task: &TaskInfo) -> &'static str {
    state(&task.state).0
}

fn node_json(node: &NodeInfo) -> Value {
    let facts = &node.facts;
    json!({
        "node": facts.id.0,
        "state": node.state.as_str(),
        "slots": facts.slots,
        "slots_free": node.slots_free,
        "tasks": node.tasks,
        "bytes": node.bytes,
        "memory_bytes": facts.memory_bytes,
        "pool": facts.pool,
        "zone": facts.zone,
        "host": facts.host,
        "version": facts.version,
        "capabilities": facts.capabilities,
        "silent_ms": millis(node.silent),
    })
}

fn job_json(job: &JobInfo) -> Value {
    json!({
        "job": job.job.to_string(),
        "owner": job.owner.0,
        "label": job.label,
        "table": job.table.to_string(),
        "class": job.pressure.class.as_str(),
        "score": job.pressure.score,
        "submitted_ms": job.submitted_ms,
        "done_estimate_ms": job.done_estimate.map(millis),
        "tasks": job.tasks.iter().map(task_json).collect::<Vec<_>>(),
    })
}

fn owner_json(owner: &OwnerInfo) -> Value {
    let tables = owner.paused_tables.iter();
    json!({
        "owner": owner.owner.0,
        "weight": owner.weight,
        "paused": owner.paused,
        "paused_tables": tables.map(ToString::to_string).collect::<Vec<_>>(),
        "jobs": owner.jobs,
        "jobs_window": owner.jobs_window,
        "queued": owner.queued,
        "running": owner.running,
        "oldest_wait_ms": millis(owner.oldest_wait),
        "engines": owner.engines.iter().map(engine_json).collect::<Vec<_>>(),
    })
}

/// An engine, with all there is to know.
pub fn engine_json(engine: &EngineInfo) -> Value {
    json!({
        "session": engine.session,
        "host": engine.host,
        "version": engine.version,
        "attends": engine.attends,
        "silent_ms": millis(engine.silent),
        "has_namesakes": engine.has_namesakes,
        "quarantined": engine.quarantined,
    })
}

/// A task, with all there is to know.
pub fn task_json(task: &TaskInfo) -> Value {
    let (state, node) = state(&task.state);
    json!({
        "index": task.index,
        "bytes": task.bytes,
        "state": state,
        "node": node,
        "nodes": task.nodes.iter().map(|node| &node.0).collect::<Vec<_>>(),
        "attempts": task.attempts,
        "last_failure": task.last_failure,
        "progress": task.progress,
    })
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// An empty table with `headings`, in the style that all commands share.
pub fn new_table<const N: usize>(headings: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_BORDERS_ONLY);
    table.set_header(headings);
    table
}

/// Has the numbers in these columns end below one another.
pub fn align_right(table: &mut Table, columns: impl IntoIterator<Item = usize>) {
    for column in columns {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
}
