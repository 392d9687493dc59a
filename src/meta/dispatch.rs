//! Who gets what: takes turns over the owners and places the most urgent task of each. Pure.
//!
//! In a lane all tasks need about the same of a node: when there is no room for the first, the whole lane is
//! out of the round, for everybody. A task that has waited beyond its patience for more memory than any node
//! has free gets a node reserved, so that smaller ones do not slip in before it for ever.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, btree_set},
    iter::Peekable,
    time::Duration,
};

use super::{
    fairness::Fairness,
    placement::{Candidate, Wanted, is_able, place},
    state::{Lane, Lanes, Now, Place, State, Task},
};
use crate::{
    compaction::remote::NodeFacts,
    types::{NodeId, OwnerId, TaskId},
};

/// How long after its due time a task may wait for memory before a node is reserved for it, in milliseconds.
const RESERVE_AFTER_MS: u64 = 30_000;

/// A task, a node, and the node's session.
pub(super) type Given = (TaskId, NodeId, u64);

/// What to hand out, and when to look again.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Dispatch {
    /// What goes where.
    pub assignments: Vec<Given>,
    /// Tasks that need more memory than any node has, with what they need and what there is.
    pub too_large: Vec<(TaskId, String)>,
    /// The moment at which a task that was passed over may be placed.
    pub next_ready: Option<Duration>,
    /// A task is kept for a node that will be back at once.
    pub held: bool,
}

/// Places ready tasks on `candidates`, one a turn. `nodes` are all that take tasks, with room or without:
/// a task is kept from those that just failed it only if there is another.
pub(super) fn dispatch(
    state: &State,
    candidates: &mut [Candidate<'_>],
    nodes: &BTreeMap<&NodeId, &NodeFacts>,
    fairness: &mut Fairness,
    now: Now,
) -> Dispatch {
    let mut dispatcher = Dispatcher {
        state,
        nodes,
        now,
        full: BTreeSet::new(),
        result: Dispatch::default(),
    };
    let settings = state.settings();
    let is_paused = |owner: &OwnerId| settings.paused_owners.contains(owner);
    let owners = state.queues().map(|(owner, _)| owner);
    let mut round = fairness.round(owners.filter(|owner| !is_paused(owner)));
    let mut queues: HashMap<&OwnerId, Vec<Queue<'_>>> = HashMap::new();
    while candidates.iter().any(|node| node.room.slots > 0)
        && let Some(turn) = round.next()
    {
        let queue = queues.entry(turn.owner).or_insert_with(|| {
            let lanes = state.lanes_of(turn.owner);
            lanes.map(Queue::new).collect()
        });
        match dispatcher.place_next(queue, candidates) {
            Some(Placed::Assigned) => round.served(turn, settings),
            Some(Placed::Held) => round.kept(turn, settings),
            None => {}
        }
    }
    dispatcher.result
}

/// What is left of a lane in this round.
struct Queue<'a> {
    lane: &'a Lane,
    places: Peekable<btree_set::Iter<'a, Place>>,
}

impl<'a> Queue<'a> {
    fn new((lane, places): (&'a Lane, &'a BTreeSet<Place>)) -> Self {
        Self {
            lane,
            places: places.iter().peekable(),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Placed {
    Assigned,
    Held,
}

struct Dispatcher<'a> {
    state: &'a State,
    nodes: &'a BTreeMap<&'a NodeId, &'a NodeFacts>,
    now: Now,
    /// Lanes for which there is no room.
    full: BTreeSet<&'a Lane>,
    result: Dispatch,
}

impl<'a> Dispatcher<'a> {
    /// Places the most urgent task of an owner's `queues` that can be; `None` when there is none.
    fn place_next(
        &mut self,
        queues: &mut [Queue<'a>],
        candidates: &mut [Candidate<'_>],
    ) -> Option<Placed> {
        loop {
            let open = queues
                .iter_mut()
                .filter(|queue| !self.full.contains(queue.lane));
            let heads = open.filter_map(|queue| Some((*queue.places.peek()?, queue)));
            let (&(due_ms, _, id), queue) = heads.min_by_key(|(place, _)| *place)?;
            let task = self.state.task(id).filter(|_| !self.is_barred(id));
            let placed = match task {
                Some(task) => self.place(id, task, candidates),
                None => Err(NoPlace::Barred),
            };
            match (placed, task) {
                (Ok(placed), _) => {
                    queue.places.next();
                    return Some(placed);
                }
                (Err(NoPlace::Room), Some(task)) if self.is_too_large(queue.lane, id, task) => {
                    queue.places.next();
                }
                (Err(NoPlace::Room), Some(task)) => {
                    self.full.insert(queue.lane);
                    if self.now.unix_ms.saturating_sub(due_ms) > RESERVE_AFTER_MS {
                        reserve(queue.lane, task, candidates);
                    }
                }
                _ => drop(queue.places.next()),
            }
        }
    }

    /// Whether no node has the memory that `task` takes, while there are some that could run it otherwise.
    fn is_too_large(&mut self, lane: &Lane, id: TaskId, task: &Task) -> bool {
        let able = self.nodes.values();
        let able = able.filter(|facts| is_able(facts, &lane.needs));
        let Some(largest) = able.map(|facts| facts.memory_bytes).max() else {
            return false;
        };
        if task.memory <= largest {
            return false;
        }
        let what = format!(
            "task {id} takes {} bytes of memory; the largest node has {largest}",
            task.memory
        );
        self.result.too_large.push((id, what));
        true
    }

    /// Whether nobody may have it now: its table is paused, or its engine has yet to submit the job again.
    fn is_barred(&self, task: TaskId) -> bool {
        let paused = &self.state.settings().paused_tables;
        let job = self.state.job(task.job).map(|job| &job.submission);
        job.is_none_or(|job| job.body.is_empty() || paused.contains(&job.table))
    }

    fn place(
        &mut self,
        id: TaskId,
        task: &Task,
        candidates: &mut [Candidate<'_>],
    ) -> Result<Placed, NoPlace> {
        let job = self.state.job(id.job).ok_or(NoPlace::Barred)?;
        let avoid = avoided(task, self.nodes, self.now);
        let wanted = Wanted {
            needs: &job.submission.needs,
            table: job.submission.table,
            zone: &job.submission.zone,
            memory: task.memory,
            avoid: &avoid,
            never: &[],
        };
        let node = place(candidates, &wanted).ok_or(NoPlace::Room)?;
        if avoid.contains(&node.facts.id) {
            // It need not wait longer than for the first of them; others may have room before.
            if let Some(until) = avoid.iter().map(|&id| task.avoid[id]).min() {
                let next = self.result.next_ready;
                self.result.next_ready = Some(next.map_or(until, |next| next.min(until)));
            }
            return Err(NoPlace::Barred);
        }
        node.take(task.bytes, task.memory);
        if !node.waits {
            self.result.held = true;
            return Ok(Placed::Held);
        }
        let facts = node.facts;
        let given = (id, facts.id.clone(), facts.session);
        self.result.assignments.push(given);
        Ok(Placed::Assigned)
    }
}

enum NoPlace {
    /// No node that can do it has room.
    Room,
    /// It may go to nobody now, or those that have room have just failed it.
    Barred,
}

/// Keeps the node that can do `task`, and has the most memory free, from all others.
fn reserve(lane: &Lane, task: &Task, candidates: &mut [Candidate<'_>]) {
    let able = candidates
        .iter_mut()
        .filter(|node| is_able(node.facts, &lane.needs) && node.facts.memory_bytes >= task.memory);
    if let Some(node) = able.max_by_key(|node| node.room.memory) {
        node.reserve();
    }
}

/// The `nodes` that `task` is to be kept from: those that failed it of late. When that is all of them, it is
/// the last that did; when there is no other, none.
fn avoided<'a>(
    task: &'a Task,
    nodes: &BTreeMap<&NodeId, &NodeFacts>,
    now: Now,
) -> BTreeSet<&'a NodeId> {
    let late = task.avoid.iter();
    let late = late.filter(|&(node, until)| *until > now.monotonic && nodes.contains_key(node));
    let late: Vec<_> = late.collect();
    if late.len() < nodes.len() {
        return late.into_iter().map(|(node, _)| node).collect();
    }
    let last = late.into_iter().max_by_key(|(_, until)| **until);
    let last = last.filter(|_| nodes.len() > 1);
    last.into_iter().map(|(node, _)| node).collect()
}

/// Where in its owner's queue a task stands: how many ready ones go before it.
pub(super) fn ahead_of(lanes: &Lanes, place: Place) -> usize {
    lanes
        .values()
        .map(|places| places.range(..place).count())
        .sum()
}
