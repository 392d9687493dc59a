//! What each round gives out: first attempts in the order of turns, second ones where there is room left.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use tracing::{debug, info, warn};

use super::{Core, bytes_of, running};
use crate::{
    compaction::remote::{AttemptId, Needs, NodeFacts},
    error::Result,
    meta::{
        dispatch::{Dispatch, dispatch},
        hedging::hedge,
        placement::{Candidate, is_able},
        registry::Node,
        state::{Now, Request, Task},
        update::PlanUpdate,
    },
    types::{NodeId, OwnerId},
};

/// How soon a node that was just answered is expected to poll again.
const RETURN_AFTER: Duration = Duration::from_millis(100);

impl Core {
    /// Gives out what can be.
    pub(super) fn hand_out(&mut self) -> Result<()> {
        let now = self.now();
        self.state.wake(now);
        if self.state.open_tasks() == 0 {
            self.look_again = None;
            return Ok(());
        }
        let mut fairness = std::mem::take(&mut self.fairness);
        let takers = self.takers(now);
        let mut candidates = self.candidates(&takers, now);
        let nodes: BTreeMap<&NodeId, &NodeFacts> =
            takers.iter().map(|(id, node)| (*id, &node.facts)).collect();
        let plan = dispatch(&self.state, &mut candidates, &nodes, &mut fairness, now);
        let hedges = hedge(&self.state, &mut candidates, &self.speed, now);
        drop(candidates);
        self.fairness = fairness;
        let Dispatch {
            assignments,
            too_large,
            next_ready,
            held,
        } = plan;
        let (hedges, next_slow) = hedges;
        let first = assignments.into_iter().map(|given| (given, false));
        let second = hedges.into_iter().map(|given| (given, true));
        for ((task, node, session), hedge) in first.chain(second) {
            debug!(%task, %node, hedge, "task assigned");
            if let Some(job) = self.state.job(task.job) {
                self.registry.gave(&node, job.submission.table);
            }
            self.change(&Request::Assign {
                task,
                node,
                session,
                hedge,
            })?;
        }
        // Right after a start not all nodes are back.
        if now.monotonic.saturating_sub(self.started) > self.limits.lease * 2 {
            for (task, message) in too_large {
                self.change(&Request::Refuse { task, message })?;
            }
        }
        let back = held.then_some(now.monotonic + RETURN_AFTER);
        let moments = [back, next_ready, next_slow, self.state.next_ready()];
        self.look_again = moments.into_iter().flatten().min();
        Ok(())
    }

    /// Jobs that `owner` should have outstanding: enough for twice its share of the slots there are, so that
    /// nothing is planned long before it can run, and no slot waits for a plan.
    pub(super) fn window(&self, owner: &OwnerId) -> u32 {
        let takers = self.takers(self.now());
        let slots = takers.iter().map(|(_, node)| u64::from(node.facts.slots));
        let slots: u64 = slots.sum();
        let settings = self.state.settings();
        let weights = self.state.owners().map(|(owner, _)| settings.weight(owner));
        let all: u64 = weights.map(u64::from).sum();
        let share = slots * u64::from(settings.weight(owner)) * 2 / all.max(1);
        u32::try_from(share.max(1)).unwrap_or(u32::MAX)
    }

    /// Nodes that could run a task with these needs.
    pub(super) fn nodes_for(&self, needs: &Needs) -> u32 {
        let takers = self.takers(self.now());
        let able = takers
            .iter()
            .filter(|(_, node)| is_able(&node.facts, needs));
        u32::try_from(able.count()).unwrap_or(u32::MAX)
    }

    /// Nodes that take tasks, with room or without.
    pub(super) fn takers(&self, now: Now) -> Vec<(&NodeId, &Node)> {
        let (now, lease) = (now.monotonic, self.limits.lease);
        let nodes = self.registry.iter();
        nodes
            .filter(|(_, node)| node.takes_tasks(now, lease))
            .collect()
    }

    /// Those of `takers` that wait for an answer or will be back at once.
    fn candidates<'a>(&self, takers: &[(&'a NodeId, &'a Node)], now: Now) -> Vec<Candidate<'a>> {
        let candidates = takers.iter().filter_map(|(id, node)| {
            let assigned: Vec<(AttemptId, &Task)> = self.state.assigned_to(id).collect();
            let slots = node.facts.slots;
            let slots_free = if let Some(waiting) = self.polls.get(*id) {
                let known = running(&waiting.poll);
                let is_news = |(attempt, _): &&(AttemptId, _)| !known.contains(attempt);
                let unknown = assigned.iter().filter(is_news).count() as u32;
                waiting.poll.slots_free.saturating_sub(unknown)
            } else if node
                .answered
                .is_some_and(|at| now.monotonic < at + RETURN_AFTER)
            {
                slots.saturating_sub(assigned.len() as u32)
            } else {
                return None;
            };
            let memory = assigned.iter().map(|(_, task)| task.memory);
            let memory = memory.fold(0, u64::saturating_add);
            let tables: &VecDeque<_> = &node.tables;
            Some(Candidate {
                facts: &node.facts,
                tables,
                slots_free,
                memory_free: node.facts.memory_bytes.saturating_sub(memory),
                bytes: bytes_of(assigned.iter().map(|(_, task)| *task)),
                waits: self.polls.contains_key(*id),
            })
        });
        candidates.collect()
    }

    /// Logs and counts what `update`, which is about to be applied, says; learns from what it completes.
    pub(super) fn note(&mut self, update: &PlanUpdate) {
        let now = self.now().monotonic;
        for entry in &update.requeued {
            info!(task = %entry.attempt.task, attempts = entry.attempts, reason = %entry.reason, "task requeued");
        }
        for entry in &update.failed {
            warn!(task = %entry.task, kind = %entry.kind, message = %entry.message, "task failed");
        }
        for entry in &update.completed {
            let Some(task) = self.state.task(entry.task) else {
                continue;
            };
            let mut holders = task.holders().iter();
            let by = holders.find(|holder| holder.node == entry.node);
            if let Some(by) = by {
                let elapsed = now.saturating_sub(by.lease.began);
                self.speed.learn(task.bytes, elapsed);
            }
        }
        self.events.add(&self.state, update);
    }
}
