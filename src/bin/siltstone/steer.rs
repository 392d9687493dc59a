//! `siltstone drain`, `cancel`, `retry`, `raise`, `pause`, `resume` and `weight`: an operator steers what a meta
//! service has planned.

use clap::{ArgGroup, Args};
use siltstone::{
    error::{Error, Result},
    meta::{
        Wish,
        state::{Setting, Target},
    },
    types::{JobId, NodeId, OwnerId, TableId, TaskId},
};

use crate::admin::Service;

/// Which tasks are meant.
#[derive(Args, Clone, Debug)]
#[command(group = ArgGroup::new("target").required(true))]
pub struct Tasks {
    #[command(flatten)]
    service: Service,
    /// One task.
    #[arg(long, value_name = "ID", group = "target")]
    task: Option<TaskId>,
    /// All tasks of a job.
    #[arg(long, value_name = "ID", group = "target")]
    job: Option<JobId>,
    /// All tasks of a table, by its id.
    #[arg(long, value_name = "ID", group = "target")]
    table: Option<TableId>,
    /// All tasks of an owner.
    #[arg(long, value_name = "NAME", group = "target")]
    owner: Option<OwnerId>,
}

/// What is to be tried again.
#[derive(Args, Clone, Debug)]
#[command(group = ArgGroup::new("target").required(true).multiple(true))]
pub struct Retry {
    #[command(flatten)]
    service: Service,
    /// SSTs that engines leave alone because jobs with them failed, instead of tasks: all of an owner, or those of
    /// one of its tables.
    #[arg(long, requires = "owner", conflicts_with_all = ["task", "job"])]
    quarantine: bool,
    /// One task.
    #[arg(long, value_name = "ID", group = "target", conflicts_with_all = ["job", "table", "owner"])]
    task: Option<TaskId>,
    /// All tasks of a job.
    #[arg(long, value_name = "ID", group = "target", conflicts_with_all = ["table", "owner"])]
    job: Option<JobId>,
    /// All tasks of a table, by its id.
    #[arg(long, value_name = "ID", group = "target")]
    table: Option<TableId>,
    /// All tasks of an owner.
    #[arg(long, value_name = "NAME", group = "target")]
    owner: Option<OwnerId>,
}

/// Whose tasks are meant.
#[derive(Args, Clone, Debug)]
#[command(group = ArgGroup::new("target").required(true))]
pub struct Pausable {
    #[command(flatten)]
    service: Service,
    /// A table, by its id.
    #[arg(long, value_name = "ID", group = "target")]
    table: Option<TableId>,
    /// An owner, with all its tables.
    #[arg(long, value_name = "NAME", group = "target")]
    owner: Option<OwnerId>,
}

/// An owner, and its share of the fleet.
#[derive(Args, Clone, Debug)]
pub struct Weight {
    #[command(flatten)]
    service: Service,
    /// The owner.
    owner: OwnerId,
    /// From 1, which all have at first, to 1000: in proportion to those of the others.
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    weight: u32,
}

/// A node.
#[derive(Args, Clone, Debug)]
pub struct Drain {
    #[command(flatten)]
    service: Service,
    /// The node.
    node: NodeId,
}

impl Tasks {
    fn target(self) -> Target {
        let task = self.task.map(Target::Task);
        task.or(self.job.map(Target::Job))
            .or(self.table.map(Target::Table))
            .or(self.owner.map(Target::Owner))
            .expect("clap requires one of the group")
    }

    async fn steer(self, wish: impl FnOnce(Target) -> Wish) -> Result<()> {
        let client = self.service.client()?;
        client.steer(wish(self.target())).await
    }
}

/// Cancels tasks.
///
/// # Errors
/// `NotFound` when there are none; `Unavailable`, naming the address.
pub async fn cancel(tasks: Tasks) -> Result<()> {
    tasks.steer(Wish::Cancel).await
}

/// Has tasks that were given up or cancelled tried again, or what is in quarantine.
///
/// # Errors
/// As for [`cancel`]; `Unavailable` also when an engine does not answer.
pub async fn retry(retry: Retry) -> Result<()> {
    let client = retry.service.client()?;
    if let (true, Some(owner)) = (retry.quarantine, retry.owner.clone()) {
        let table = retry.table;
        return client.steer(Wish::RetryQuarantined { owner, table }).await;
    }
    if retry.table.is_some() && retry.owner.is_some() {
        return Err(Error::invalid(
            "--table and --owner go together with --quarantine only",
        ));
    }
    let tasks = Tasks {
        service: retry.service,
        task: retry.task,
        job: retry.job,
        table: retry.table,
        owner: retry.owner,
    };
    client.steer(Wish::Retry(tasks.target())).await
}

/// Has the jobs of tasks go before all others.
///
/// # Errors
/// As for [`cancel`].
pub async fn raise(tasks: Tasks) -> Result<()> {
    tasks.steer(Wish::Raise).await
}

/// Keeps tasks back, or no longer.
///
/// # Errors
/// `Unavailable`, naming the address.
pub async fn pause(pausable: Pausable, paused: bool) -> Result<()> {
    let client = pausable.service.client()?;
    let owner = pausable
        .owner
        .map(|owner| Setting::PauseOwner(owner, paused));
    let table = pausable
        .table
        .map(|table| Setting::PauseTable(table, paused));
    let setting = owner.or(table).expect("clap requires one of the group");
    client.steer(Wish::Set(setting)).await
}

/// Sets an owner's weight.
///
/// # Errors
/// `Unavailable`, naming the address.
pub async fn weight(weight: Weight) -> Result<()> {
    let client = weight.service.client()?;
    let setting = Setting::Weight(weight.owner, weight.weight);
    client.steer(Wish::Set(setting)).await
}

/// Has a node end as soon as its tasks have.
///
/// # Errors
/// `NotFound` when no such node polls; `Unavailable`, naming the address.
pub async fn drain(drain: Drain) -> Result<()> {
    drain.service.client()?.drain(&drain.node).await?;
    println!(
        "node {} takes no more tasks, and ends when those it has have ended",
        drain.node
    );
    Ok(())
}
