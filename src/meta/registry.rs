//! Which nodes there are. Soft: a node makes itself known by polling, and after a restart of meta all
//! that live are back within a poll.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use super::admin::NodeState;
use crate::{
    compaction::remote::{NodeFacts, NodePoll},
    error::{Error, Result},
    types::{NodeId, TableId},
};

/// Leases after which a silent node counts as gone.
const GONE_AFTER_LEASES: u32 = 10;
/// Leases after which a node that is gone is forgotten.
const FORGOTTEN_AFTER_LEASES: u32 = 360;
/// Tables that a node is remembered to have had tasks of.
const TABLES_REMEMBERED: usize = 16;

/// A node that has polled.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub facts: NodeFacts,
    pub slots_free: u32,
    pub draining: bool,
    /// When it last polled, on the monotonic clock.
    pub polled: Duration,
    /// When it was last answered.
    pub answered: Option<Duration>,
    /// An operator wants it to end.
    pub drain: bool,
    /// Tables of the tasks that it had last, the latest at the end.
    pub tables: VecDeque<TableId>,
}

impl Node {
    /// What to think of it, `lease` being how long a node may be silent.
    pub(super) fn state(&self, now: Duration, lease: Duration) -> NodeState {
        let silent = now.saturating_sub(self.polled);
        match (silent > lease, self.draining || self.drain) {
            (false, false) => NodeState::Active,
            (false, true) => NodeState::Draining,
            // It said that it would end.
            (true, true) => NodeState::Gone,
            (true, false) if silent > lease * GONE_AFTER_LEASES => NodeState::Gone,
            (true, false) => NodeState::Silent,
        }
    }

    /// Whether it may be given tasks.
    pub(super) fn takes_tasks(&self, now: Duration, lease: Duration) -> bool {
        self.state(now, lease) == NodeState::Active
    }
}

/// What a poll has told of its node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Polled {
    /// It is a new one, or another process.
    pub is_new: bool,
    /// Operators see another node than before.
    pub is_changed: bool,
}

/// The nodes that have polled, by id.
#[derive(Clone, Debug, Default)]
pub(super) struct Registry {
    nodes: BTreeMap<NodeId, Node>,
    /// When those that are to be forgotten were last looked for.
    swept: Duration,
}

impl Registry {
    /// Takes note of a poll.
    ///
    /// Of two processes with one id the one with the greater session is the node, for as long as it is
    /// heard of within `lease`: the clock that leads sessions may have been set back between two starts.
    ///
    /// # Errors
    /// `Fenced` when a newer process, which is alive, has that node's id.
    pub(super) fn polled(
        &mut self,
        poll: &NodePoll,
        now: Duration,
        lease: Duration,
    ) -> Result<Polled> {
        let facts = &poll.facts;
        let known = self.nodes.get(&facts.id);
        let is_alive = |node: &&Node| now.saturating_sub(node.polled) <= lease;
        let newer = known.filter(|node| node.facts.session > facts.session);
        if let Some(newer) = newer.filter(is_alive) {
            return Err(Error::fenced(format!(
                "node id {} is in use by a process that started later, on host {}",
                facts.id, newer.facts.host
            )));
        }
        let slots_free = if poll.draining { 0 } else { poll.slots_free };
        let known = self.nodes.get_mut(&facts.id);
        if let Some(node) = known.filter(|node| node.facts.session == facts.session) {
            if node.facts != *facts {
                node.facts = facts.clone();
            }
            let was = node.state(now, lease);
            let is_changed = (node.slots_free, node.draining) != (slots_free, poll.draining);
            node.slots_free = slots_free;
            node.draining = poll.draining;
            node.polled = now;
            return Ok(Polled {
                is_new: false,
                is_changed: is_changed || was != node.state(now, lease),
            });
        }
        let node = Node {
            facts: facts.clone(),
            slots_free,
            draining: poll.draining,
            polled: now,
            answered: None,
            drain: false,
            tables: VecDeque::new(),
        };
        self.nodes.insert(facts.id.clone(), node);
        Ok(Polled {
            is_new: true,
            is_changed: true,
        })
    }

    /// Takes note of an answer to a poll.
    pub(super) fn answered(&mut self, node: &NodeId, now: Duration) {
        if let Some(node) = self.nodes.get_mut(node) {
            node.answered = Some(now);
        }
    }

    /// Takes note of a task of `table` that `node` gets.
    pub(super) fn gave(&mut self, node: &NodeId, table: TableId) {
        if let Some(node) = self.nodes.get_mut(node) {
            node.tables.retain(|known| *known != table);
            node.tables.push_back(table);
            if node.tables.len() > TABLES_REMEMBERED {
                node.tables.pop_front();
            }
        }
    }

    /// Has `node` end as soon as its tasks have.
    ///
    /// # Errors
    /// `NotFound` when no such node polls.
    pub(super) fn drain(&mut self, id: &NodeId) -> Result<()> {
        let Some(node) = self.nodes.get_mut(id) else {
            return Err(Error::not_found(format!("node {id} is not known")));
        };
        node.drain = true;
        Ok(())
    }

    /// A node that is remembered.
    pub(super) fn get(&self, node: &NodeId) -> Option<&Node> {
        self.nodes.get(node)
    }

    /// Every node that is remembered, by id.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&NodeId, &Node)> {
        self.nodes.iter()
    }

    /// Forgets nodes that have been gone for long. Looks for them once in a lease.
    pub(super) fn forget(&mut self, now: Duration, lease: Duration) {
        if now < self.swept + lease {
            return;
        }
        self.swept = now;
        let age = lease * FORGOTTEN_AFTER_LEASES;
        self.nodes
            .retain(|_, node| now.saturating_sub(node.polled) <= age);
    }
}
