//! Who is the least loaded: the load balancing. Pure, and replaceable.

use std::{cmp::Ordering, collections::BTreeSet};

use crate::types::NodeId;

/// A node that may be given tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub id: NodeId,
    pub session: u64,
    pub slots: u32,
    pub slots_free: u32,
    /// About how many bytes its tasks read.
    pub bytes: u64,
    /// Whether it waits for an answer. One that does not has just been answered and will be back at
    /// once: it keeps its place, so that the fastest poller does not get everything.
    pub waits: bool,
}

impl Candidate {
    /// Counts a task of `bytes` as given to it.
    pub(super) fn take(&mut self, bytes: u64) {
        self.slots_free = self.slots_free.saturating_sub(1);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    fn compare_load(&self, other: &Self) -> Ordering {
        let used = |node: &Self| u64::from(node.slots.saturating_sub(node.slots_free));
        // used/slots against used/slots, without a division.
        let (ours, theirs) = (
            used(self) * u64::from(other.slots),
            used(other) * u64::from(self.slots),
        );
        ours.cmp(&theirs)
            .then(self.bytes.cmp(&other.bytes))
            .then_with(|| self.id.cmp(&other.id))
    }
}

/// The candidate with a free slot that is least loaded by share of its slots, then by bytes; ties by id.
/// Those in `avoid` are taken only when nobody else has room.
pub(super) fn place<'a>(
    candidates: &'a mut [Candidate],
    avoid: &BTreeSet<&NodeId>,
) -> Option<&'a mut Candidate> {
    candidates
        .iter_mut()
        .filter(|node| node.slots_free > 0)
        .min_by(|a, b| {
            let avoided = |node: &Candidate| avoid.contains(&node.id);
            avoided(a).cmp(&avoided(b)).then_with(|| a.compare_load(b))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(id: &str, slots: u32, slots_free: u32, bytes: u64) -> Candidate {
        Candidate {
            id: id.into(),
            session: 1,
            slots,
            slots_free,
            bytes,
            waits: true,
        }
    }

    #[test]
    fn least_share_then_bytes_then_id() {
        for (nodes, wanted) in [
            (vec![node("a", 2, 1, 0), node("b", 8, 5, 9)], Some("b")),
            (vec![node("a", 2, 1, 7), node("b", 4, 2, 6)], Some("b")),
            (vec![node("b", 2, 2, 0), node("a", 4, 4, 0)], Some("a")),
            (vec![node("a", 2, 0, 0), node("b", 2, 1, 99)], Some("b")),
            (vec![node("a", 2, 0, 0)], None),
            (vec![], None),
        ] {
            let mut nodes = nodes;
            let chosen = place(&mut nodes, &BTreeSet::new()).map(|node| node.id.0.clone());
            assert_eq!(chosen.as_deref(), wanted);
        }
    }

    #[test]
    fn who_just_failed_comes_last() {
        let mut nodes = vec![node("a", 4, 4, 0), node("b", 4, 1, 50)];
        let a = NodeId::from("a");
        let avoid = BTreeSet::from([&a]);
        assert_eq!(place(&mut nodes, &avoid).unwrap().id, "b".into());
        nodes[1].slots_free = 0;
        assert_eq!(place(&mut nodes, &avoid).unwrap().id, a);
    }

    #[test]
    fn tasks_spread_over_all_nodes() {
        let mut nodes = vec![node("a", 2, 2, 0), node("b", 4, 4, 0), node("c", 2, 2, 0)];
        for _ in 0..8 {
            place(&mut nodes, &BTreeSet::new()).unwrap().take(10);
            let shares: Vec<u32> = nodes
                .iter()
                .map(|node| 100 * (node.slots - node.slots_free) / node.slots)
                .collect();
            assert!(
                shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 50,
                "{shares:?}"
            );
        }
        assert!(place(&mut nodes, &BTreeSet::new()).is_none());
    }
}
