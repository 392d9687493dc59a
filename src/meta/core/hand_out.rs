//! What each round gives out: first attempts in the order of turns, second ones where there is room left.

use std::{collections::BTreeMap, time::Duration};

use tracing::{debug, info, warn};

use super::{Core, Waiting, bytes_of};
use crate::{
    compaction::remote::NodeFacts,
    error::Result,
    meta::{
        dispatch::{Dispatch, dispatch},
        hedging::{Stragglers, stragglers},
        placement::{Candidate, Room},
        registry::Node,
        state::{Now, Request},
        update::PlanUpdate,
    },
    types::NodeId,
};

/// How often slow tasks are looked for.
const SLOW_SOUGHT_EVERY: Duration = Duration::from_millis(500);
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
        let looks_for_slow = now.monotonic >= self.slow_sought + SLOW_SOUGHT_EVERY;
        let slow = match looks_for_slow {
            true => stragglers(&self.state, &mut candidates, &self.speed, now),
            false => Stragglers {
                next: Some(self.slow_sought + SLOW_SOUGHT_EVERY),
                ..Stragglers::default()
            },
        };
        drop(candidates);
        self.fairness = fairness;
        if looks_for_slow {
            self.slow_sought = now.monotonic;
        }
        let Dispatch {
            assignments,
            too_large,
            next_ready,
            held,
        } = plan;
        let first = assignments.into_iter().map(|given| (given, false));
        let second = slow.hedges.into_iter().map(|given| (given, true));
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
        for attempt in slow.too_slow {
            info!(task = %attempt.task, "task is too slow: its engine should cut what is left of it");
            self.change(&Request::CallSlow(attempt))?;
        }
        // Right after a start not all nodes are back.
        if now.monotonic.saturating_sub(self.started) > self.limits.lease * 2 {
            for (task, message) in too_large {
                self.change(&Request::Refuse { task, message })?;
            }
        }
        let back = held.then_some(now.monotonic + RETURN_AFTER);
        let moments = [back, next_ready, slow.next, self.state.next_ready()];
        self.look_again = moments.into_iter().flatten().min();
        Ok(())
    }

    /// Jobs that `owner` should have outstanding: enough for twice its share of the slots there are, so that
    /// nothing is planned long before it can run, and no slot waits for a plan.
    /// Nodes that take tasks, with room or without.
    pub(super) fn takers(&self, now: Now) -> Vec<(&NodeId, &Node)> {
        let (now, lease) = (now.monotonic, self.limits.lease);
        let nodes = self.registry.iter();
        nodes
            .filter(|(_, node)| node.takes_tasks(now, lease))
            .collect()
    }

    /// Those of `takers` that have a slot and wait for an answer or will be back at once.
    fn candidates<'a>(&self, takers: &[(&'a NodeId, &'a Node)], now: Now) -> Vec<Candidate<'a>> {
        // All three are in the order of ids: nothing is looked up, for there may be many nodes.
        let with_polls = beside(takers.iter().copied(), self.polls.iter());
        let takers = with_polls.map(|(id, node, waiting)| (id, (node, waiting)));
        let with_tasks = beside(takers, self.state.assignments());
        let candidates = with_tasks.filter_map(|(_, (node, waiting), assigned)| {
            let assigned: Vec<_> = assigned.into_iter().flatten().collect();
            let slots_free = if let Some(Waiting { poll, .. }) = waiting {
                let is_known = |attempt| poll.running.iter().any(|known| known.attempt == attempt);
                let unknown = assigned.iter().filter(|(attempt, _)| !is_known(*attempt));
                poll.slots_free.saturating_sub(unknown.count() as u32)
            } else if node
                .answered
                .is_some_and(|at| now.monotonic < at + RETURN_AFTER)
            {
                node.facts.slots.saturating_sub(assigned.len() as u32)
            } else {
                return None;
            };
            let memory = assigned.iter().map(|(_, task)| task.memory);
            let memory = memory.fold(0, u64::saturating_add);
            let room = Room {
                slots: slots_free,
                memory: node.facts.memory_bytes.saturating_sub(memory),
                read: bytes_of(assigned.iter().map(|(_, task)| *task)),
            };
            (slots_free > 0)
                .then(|| Candidate::new(&node.facts, &node.tables, room, waiting.is_some()))
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

/// Each of `left`, and what stands beside it in `right`. Both are in the order of ids, none of which comes twice.
fn beside<'a, L, R>(
    left: impl Iterator<Item = (&'a NodeId, L)>,
    right: impl Iterator<Item = (&'a NodeId, R)>,
) -> impl Iterator<Item = (&'a NodeId, L, Option<R>)> {
    let mut right = right.peekable();
    left.map(move |(id, value)| {
        while right.next_if(|(other, _)| *other < id).is_some() {}
        let found = right.next_if(|(other, _)| *other == id);
        (id, value, found.map(|(_, found)| found))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_beside_is_found() {
        let ids = ["a", "b", "c", "d", "e"].map(NodeId::from);
        let [a, b, c, d, e] = &ids;
        let left = [(b, 1), (c, 2), (e, 3)];
        let right = [(a, "a"), (b, "b"), (d, "d"), (e, "e")];
        let both: Vec<_> = beside(left.into_iter(), right.into_iter()).collect();
        assert_eq!(both, [(b, 1, Some("b")), (c, 2, None), (e, 3, Some("e"))]);
    }
}
