//! The nodes that take tasks, counted once a round for everybody who asks; and what engines are told of them.

use std::{cell::RefCell, collections::BTreeMap, sync::Arc, time::Duration};

use super::Core;
use crate::{
    compaction::remote::{self, Needs, NodeFacts},
    meta::{placement::is_able, state::Job},
    types::OwnerId,
};

/// See the head of this file.
pub(super) struct Fleet<'a> {
    core: &'a Core,
    nodes: Vec<&'a NodeFacts>,
    slots: u64,
    /// The weights of all owners together.
    weights: u64,
    able: RefCell<BTreeMap<Arc<Needs>, u32>>,
}

impl Core {
    /// The nodes as they are now.
    pub(super) fn fleet(&self) -> Fleet<'_> {
        let takers = self.takers(self.now()).into_iter();
        let nodes: Vec<&NodeFacts> = takers.map(|(_, node)| &node.facts).collect();
        let settings = self.state.settings();
        let weights = self.state.owners().map(|(owner, _)| settings.weight(owner));
        Fleet {
            core: self,
            slots: nodes.iter().map(|facts| u64::from(facts.slots)).sum(),
            weights: weights.map(u64::from).sum(),
            nodes,
            able: RefCell::default(),
        }
    }

    /// What there is for tasks with these needs, and what is ahead of them.
    pub(in crate::meta) fn fleet_for(&self, needs: &Needs) -> remote::Fleet {
        let nodes = self.fleet().nodes.into_iter();
        let able: Vec<&NodeFacts> = nodes.filter(|facts| is_able(facts, needs)).collect();
        let slots = able.iter().map(|facts| facts.slots);
        remote::Fleet {
            nodes: u32::try_from(able.len()).unwrap_or(u32::MAX),
            slots: slots.fold(0, u32::saturating_add),
            bytes_ahead: self.state.open_bytes(),
        }
    }
}

impl Fleet<'_> {
    /// Jobs that `owner` should have outstanding: enough for twice its share of the slots there are, so that
    /// nothing is planned long before it can run, and no slot waits for a plan.
    pub(super) fn window(&self, owner: &OwnerId) -> u32 {
        let weight = u64::from(self.core.state.settings().weight(owner));
        let share = self.slots * weight * 2 / self.weights.max(1);
        u32::try_from(share.max(1)).unwrap_or(u32::MAX)
    }

    /// Nodes that could run a task with these needs.
    pub(super) fn able(&self, needs: &Arc<Needs>) -> u32 {
        let mut known = self.able.borrow_mut();
        *known.entry(needs.clone()).or_insert_with(|| {
            let able = self.nodes.iter().filter(|facts| is_able(facts, needs));
            u32::try_from(able.count()).unwrap_or(u32::MAX)
        })
    }

    /// How long `job` takes, if the nodes that can run it have nothing else to do. `None` when nothing of it is
    /// open, when there are no such nodes, and before enough tasks have been completed.
    pub(super) fn done_estimate(&self, job: &Job) -> Option<Duration> {
        let able = self.nodes.iter();
        let able = able.filter(|facts| is_able(facts, &job.submission.needs));
        let slots: u64 = able.map(|facts| u64::from(facts.slots)).sum();
        let now = self.core.now().monotonic;
        let (mut open, mut work) = (0, Duration::ZERO);
        for task in job.tasks.values().filter(|task| task.phase.is_open()) {
            let began = task.holders().iter().map(|holder| holder.lease.began).min();
            let ran = began.map_or(Duration::ZERO, |began| now.saturating_sub(began));
            let left = self.core.speed.expected(task.bytes)?.saturating_sub(ran);
            work = work.saturating_add(left);
            open += 1;
        }
        let at_once = u32::try_from(slots.min(open)).unwrap_or(u32::MAX);
        work.checked_div(at_once)
    }
}
