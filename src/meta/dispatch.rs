//! Who gets what: walks the queues in the order of turns and places each task. Pure.

use std::{collections::BTreeSet, time::Duration};

use super::{
    fairness::Turn,
    placement::{Candidate, place},
    state::{Now, Phase, State, Task},
};
use crate::types::{NodeId, OwnerId, TaskId};

/// What to hand out, and when to look again.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Dispatch {
    /// Task, node, and the node's session.
    pub assignments: Vec<(TaskId, NodeId, u64)>,
    /// The moment at which a task that was passed over becomes ready.
    pub next_ready: Option<Duration>,
    /// A task is kept for a node that will be back at once.
    pub held: bool,
}

/// Places queued tasks on `candidates`, one a turn. `nodes` are all that take tasks, with room or without:
/// a task is kept from those that just failed it only if there is another.
pub(super) fn dispatch(
    state: &State,
    candidates: &mut [Candidate],
    nodes: &BTreeSet<NodeId>,
    turn: &mut Turn,
    now: Now,
) -> Dispatch {
    let mut result = Dispatch::default();
    let owners = turn.order(state.waiting_owners().cloned());
    let queues = owners.iter().map(|owner| (owner, state.queue_of(owner)));
    let mut queues: Vec<_> = queues.collect();
    while !queues.is_empty() && has_room(candidates) {
        queues.retain_mut(|(owner, queue)| {
            has_room(candidates)
                && place_next(queue, candidates, nodes, now, &mut result)
                    .inspect(|placed| served(turn, owner, *placed))
                    .is_some()
        });
    }
    result
}

/// Owners are served by what really goes out, not by what is kept.
fn served(turn: &mut Turn, owner: &OwnerId, placed: Placed) {
    if placed == Placed::Assigned {
        turn.served(owner);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Placed {
    Assigned,
    Held,
}

/// Places the next task of `queue` that can be; `None` when there is none.
fn place_next<'a>(
    queue: &mut impl Iterator<Item = (TaskId, &'a Task)>,
    candidates: &mut [Candidate],
    nodes: &BTreeSet<NodeId>,
    now: Now,
    result: &mut Dispatch,
) -> Option<Placed> {
    for (id, task) in queue {
        let Phase::Queued { ready_at } = &task.phase else {
            continue;
        };
        if *ready_at > now.monotonic {
            wake_at(result, *ready_at);
            continue;
        }
        let avoid = avoided(task, nodes, now);
        let node = place(candidates, &avoid)?;
        if avoid.contains(&node.id) {
            // It need not wait longer than for the first of them; others may have room before.
            if let Some(until) = avoid.iter().map(|&id| task.avoid[id]).min() {
                wake_at(result, until);
            }
            continue;
        }
        node.take(task.bytes);
        if !node.waits {
            result.held = true;
            return Some(Placed::Held);
        }
        let assignment = (id, node.id.clone(), node.session);
        result.assignments.push(assignment);
        return Some(Placed::Assigned);
    }
    None
}

/// The `nodes` that `task` is to be kept from: those that failed it of late. When that is all of them, it is
/// the last that did; when there is no other, none.
fn avoided<'a>(task: &'a Task, nodes: &BTreeSet<NodeId>, now: Now) -> BTreeSet<&'a NodeId> {
    let late = task.avoid.iter();
    let late = late.filter(|&(node, until)| *until > now.monotonic && nodes.contains(node));
    let late: Vec<_> = late.collect();
    if late.len() < nodes.len() {
        return late.into_iter().map(|(node, _)| node).collect();
    }
    let last = late.into_iter().max_by_key(|(_, until)| **until);
    let last = last.filter(|_| nodes.len() > 1);
    last.into_iter().map(|(node, _)| node).collect()
}

fn wake_at(result: &mut Dispatch, at: Duration) {
    result.next_ready = Some(result.next_ready.map_or(at, |next| next.min(at)));
}

fn has_room(candidates: &[Candidate]) -> bool {
    candidates.iter().any(|node| node.slots_free > 0)
}
