//! Why a task is where it is: what it waits for, in sentences that a person can act on.

use std::time::Duration;

use super::{Core, listing::info};
use crate::{
    error::{Error, Result},
    meta::{
        admin::Explanation,
        dispatch::ahead_of,
        placement::is_able,
        state::{Job, Lane, Phase, Task},
    },
    types::TaskId,
};

impl Core {
    /// Why `task` is where it is.
    ///
    /// # Errors
    /// `NotFound` when it is not known.
    pub(in crate::meta) fn explain(&self, id: TaskId) -> Result<Explanation> {
        let found = self.state.job(id.job).zip(self.state.task(id));
        let Some((job, task)) = found else {
            return Err(Error::not_found(format!("task {id} is not known")));
        };
        let mut reasons = match &task.phase {
            Phase::Queued { ready_at } => self.why_queued(id, job, task, *ready_at),
            Phase::Assigned { .. } => self.how_it_runs(task),
            Phase::Done { node } => vec![format!("node {node} has reported its result")],
            Phase::Failed { kind, message } => vec![format!("given up: {kind}: {message}")],
            Phase::Displaced => {
                let max = self.limits.queue_tasks_max;
                vec![format!(
                    "the queue was full (queue_tasks_max {max}): it gave way to a task of higher pressure, and its \
                     engine will submit it again"
                )]
            }
            Phase::Cancelled { reason } => vec![reason.clone()],
        };
        if let Some(failure) = &task.last_failure {
            let (attempts, max) = (task.attempts, self.limits.task_attempts_max);
            let counted = format!("{attempts} of {max} attempts have failed");
            reasons.push(format!(
                "{counted}; the last to end without a result: {failure}"
            ));
        }
        Ok(Explanation {
            task: info(id.index, task),
            reasons,
        })
    }

    fn how_it_runs(&self, task: &Task) -> Vec<String> {
        let now = self.now().monotonic;
        let secs = |time: Duration| format!("{:.1} s", time.as_secs_f64());
        let holders = task.holders().iter();
        let mut reasons: Vec<String> = holders
            .map(|holder| {
                let lease = &holder.lease;
                let (since, moved) = (
                    secs(now.saturating_sub(lease.began)),
                    secs(now.saturating_sub(lease.moved)),
                );
                let what = if holder.hedge {
                    "a second attempt runs"
                } else {
                    "runs"
                };
                let (node, progress) = (&holder.node, lease.progress);
                format!(
                    "{what} on node {node} for {since}; its counter, {progress}, moved {moved} ago"
                )
            })
            .collect();
        if let Some(expected) = self.speed.expected(task.bytes) {
            reasons.push(format!("tasks of its size take about {}", secs(expected)));
        }
        reasons
    }

    fn why_queued(&self, id: TaskId, job: &Job, task: &Task, ready_at: Duration) -> Vec<String> {
        let now = self.now();
        let (submission, settings) = (&job.submission, self.state.settings());
        let mut reasons = Vec::new();
        if settings.paused_owners.contains(&submission.owner) {
            reasons.push(format!("owner {} is paused", submission.owner));
        }
        if settings.paused_tables.contains(&submission.table) {
            reasons.push(format!("table {} is paused", submission.table));
        }
        if self.log_away {
            reasons.push("the plan log does not answer: nothing is given out".into());
        }
        if submission.body.is_empty() {
            reasons.push(
                "this meta service has just started: the engine has yet to submit the job again"
                    .into(),
            );
        }
        if ready_at > now.monotonic {
            let wait = (ready_at - now.monotonic).as_secs_f64();
            reasons.push(format!("it is tried again in {wait:.1} s"));
        }
        reasons.extend(self.why_no_node(job, task));
        let queues = self.state.queues();
        let lanes = queues.filter(|(owner, _)| **owner == submission.owner);
        let ahead = lanes.map(|(_, lanes)| ahead_of(lanes, (job.due_ms(), job.sequence, id)));
        let ahead: usize = ahead.sum();
        let owners = self.state.queues().count();
        reasons.push(format!(
            "{ahead} ready tasks of its owner, whose weight is {}, go before it; {owners} owners take turns",
            settings.weight(&submission.owner)
        ));
        reasons
    }

    /// What the nodes lack that could run it.
    fn why_no_node(&self, job: &Job, task: &Task) -> Option<String> {
        let now = self.now();
        let takers = self.takers(now);
        if takers.is_empty() {
            return Some("there are no nodes that take tasks".into());
        }
        let lane = Lane::of(job, task);
        let able = takers
            .iter()
            .filter(|(_, node)| is_able(&node.facts, &lane.needs));
        let able: Vec<_> = able.collect();
        if able.is_empty() {
            let (words, pool) = (lane.needs.capabilities.join(", "), &lane.needs.pool);
            let of_pool = match pool.is_empty() {
                true => String::new(),
                false => format!(" in pool {pool:?}"),
            };
            let all = takers.len();
            return Some(format!(
                "none of {all} nodes can do it: it needs {words}{of_pool}"
            ));
        }
        let memory_used = |id| {
            let used = self.state.assigned_to(id).map(|(_, task)| task.memory);
            used.fold(0, u64::saturating_add)
        };
        let slots = able
            .iter()
            .filter(|(id, node)| self.state.assigned_to(id).count() < node.facts.slots as usize);
        let slots: Vec<_> = slots.collect();
        if slots.is_empty() {
            return Some(format!("all slots of {} nodes are in use", able.len()));
        }
        let has_room = slots.iter().any(|(id, node)| {
            node.facts.memory_bytes.saturating_sub(memory_used(*id)) >= task.memory
        });
        (!has_room).then(|| {
            let memory = task.memory;
            format!("no node has {memory} bytes of memory free beside what runs there")
        })
    }
}
