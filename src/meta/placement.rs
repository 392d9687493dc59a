//! Which node gets a task: the load balancing. Pure, and replaceable.
//!
//! Of the nodes that can do the task exactly and have room for it, the one whose slots and memory are used
//! least, in tenths; among equals one that has just had tasks of the same table, whose footers it still knows;
//! then one in the engine's zone; then the one whose tasks read the fewest bytes.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, VecDeque},
};

use crate::{
    compaction::remote::{Needs, NodeFacts},
    types::{NodeId, TableId},
};

/// A node that may be given tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Candidate<'a> {
    pub facts: &'a NodeFacts,
    /// Tables of the tasks that it had last.
    pub tables: &'a VecDeque<TableId>,
    pub room: Room,
    /// Whether it waits for an answer. One that does not has just been answered and will be back at
    /// once: it keeps its place, so that the fastest poller does not get everything.
    pub waits: bool,
    /// How much of its slots or of its memory is used, whichever is more, in tenths.
    load: u64,
}

/// What a node has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Room {
    pub slots: u32,
    /// In bytes.
    pub memory: u64,
    /// About how many bytes its tasks read.
    pub read: u64,
}

/// What placement knows of a task.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    pub needs: &'a Needs,
    pub table: TableId,
    pub zone: &'a str,
    pub memory: u64,
    /// Nodes to be taken only when nobody else has room.
    pub avoid: &'a BTreeSet<&'a NodeId>,
    /// Nodes not to be taken at all.
    pub never: &'a [&'a NodeId],
}

/// Whether a node can do exactly what `needs` ask for.
pub(super) fn is_able(facts: &NodeFacts, needs: &Needs) -> bool {
    let has = |word: &String| facts.capabilities.contains(word);
    needs.capabilities.iter().all(has) && (needs.pool.is_empty() || needs.pool == facts.pool)
}

impl<'a> Candidate<'a> {
    pub(super) fn new(
        facts: &'a NodeFacts,
        tables: &'a VecDeque<TableId>,
        room: Room,
        waits: bool,
    ) -> Self {
        Self {
            facts,
            tables,
            room,
            waits,
            load: load(facts, room),
        }
    }

    /// Counts a task as given to it.
    pub(super) fn take(&mut self, bytes: u64, memory: u64) {
        let room = &mut self.room;
        room.slots = room.slots.saturating_sub(1);
        room.memory = room.memory.saturating_sub(memory);
        room.read = room.read.saturating_add(bytes);
        self.load = load(self.facts, self.room);
    }

    /// Gives it nothing more.
    pub(super) fn reserve(&mut self) {
        self.room.slots = 0;
    }

    pub(super) fn has_room(&self, wanted: &Wanted<'_>) -> bool {
        self.room.slots > 0
            && self.room.memory >= wanted.memory
            && is_able(self.facts, wanted.needs)
            && !wanted.never.contains(&&self.facts.id)
    }
}

fn load(facts: &NodeFacts, room: Room) -> u64 {
    let tenths = |used: u64, of: u64| used.saturating_mul(10) / of.max(1);
    let slots = facts.slots.saturating_sub(room.slots);
    let memory = facts.memory_bytes.saturating_sub(room.memory);
    tenths(slots.into(), facts.slots.into()).max(tenths(memory, facts.memory_bytes))
}

/// The candidate that is to get the task, of several alike the first. Those in `avoid` are taken only when nobody
/// else has room.
pub(super) fn place<'a, 'b>(
    candidates: &'a mut [Candidate<'b>],
    wanted: &Wanted<'_>,
) -> Option<&'a mut Candidate<'b>> {
    let rank = |node: &Candidate<'_>| {
        let is_near = !wanted.zone.is_empty() && node.facts.zone == wanted.zone;
        (
            wanted.avoid.contains(&node.facts.id),
            node.load,
            Reverse(node.tables.contains(&wanted.table)),
            Reverse(is_near),
            node.room.read,
        )
    };
    let mut best = None;
    for (at, node) in candidates.iter().enumerate() {
        let rank = rank(node);
        // What words it has is asked of few: of those that would be better.
        if best.is_none_or(|(best, _)| rank < best) && node.has_room(wanted) {
            best = Some((rank, at));
        }
    }
    best.map(|(_, at)| &mut candidates[at])
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use crate::compaction::remote::CAPABILITY;

    struct Node {
        facts: NodeFacts,
        tables: VecDeque<TableId>,
        slots_free: u32,
        memory_free: u64,
        bytes: u64,
    }

    fn table(number: u128) -> TableId {
        TableId::from_parts(1, number)
    }

    fn node(id: &str, slots: u32, slots_free: u32) -> Node {
        Node {
            facts: NodeFacts {
                id: id.into(),
                session: 1,
                host: String::new(),
                version: String::new(),
                capabilities: vec![CAPABILITY.into()],
                slots,
                memory_bytes: 1000,
                pool: String::new(),
                zone: String::new(),
            },
            tables: VecDeque::new(),
            slots_free,
            memory_free: 1000,
            bytes: 0,
        }
    }

    fn candidates(nodes: &[Node]) -> Vec<Candidate<'_>> {
        let candidates = nodes.iter().map(|node| {
            let room = Room {
                slots: node.slots_free,
                memory: node.memory_free,
                read: node.bytes,
            };
            Candidate::new(&node.facts, &node.tables, room, true)
        });
        candidates.collect()
    }

    static NEEDS: LazyLock<Needs> = LazyLock::new(Needs::default);
    static NOBODY: BTreeSet<&'static NodeId> = BTreeSet::new();

    fn wanted(memory: u64) -> Wanted<'static> {
        Wanted {
            needs: &NEEDS,
            table: table(1),
            zone: "",
            memory,
            avoid: &NOBODY,
            never: &[],
        }
    }

    fn chosen<'a>(nodes: Vec<Node>, change: impl FnOnce(&mut Wanted<'a>)) -> Option<String> {
        let mut wanted = wanted(100);
        change(&mut wanted);
        let mut candidates = candidates(&nodes);
        place(&mut candidates, &wanted).map(|node| node.facts.id.0.clone())
    }

    #[test]
    fn table_of_placements() {
        let with = |mut node: Node, change: fn(&mut Node)| {
            change(&mut node);
            node
        };
        let cases: Vec<(&str, Vec<Node>, Option<&str>)> = vec![
            ("nobody", vec![], None),
            ("no slot", vec![node("a", 2, 0)], None),
            (
                "least share of slots",
                vec![node("a", 2, 1), node("b", 8, 5)],
                Some("b"),
            ),
            (
                "least share of memory",
                vec![
                    with(node("a", 4, 4), |node| node.memory_free = 500),
                    node("b", 4, 3),
                ],
                Some("b"),
            ),
            (
                "memory is room",
                vec![
                    with(node("a", 4, 4), |node| node.memory_free = 99),
                    node("b", 100, 1),
                ],
                Some("b"),
            ),
            (
                "the table's footers",
                vec![
                    node("a", 4, 4),
                    with(node("b", 4, 4), |node| node.tables = [table(1)].into()),
                ],
                Some("b"),
            ),
            (
                "load before footers",
                vec![
                    node("a", 4, 4),
                    with(node("b", 4, 3), |node| node.tables = [table(1)].into()),
                ],
                Some("a"),
            ),
            (
                "fewest bytes",
                vec![
                    with(node("a", 2, 1), |node| node.bytes = 7),
                    node("b", 2, 1),
                ],
                Some("b"),
            ),
            (
                "then the first",
                vec![node("a", 4, 4), node("b", 2, 2)],
                Some("a"),
            ),
            (
                "capabilities",
                vec![
                    with(node("a", 4, 4), |node| node.facts.capabilities.clear()),
                    node("b", 4, 1),
                ],
                Some("b"),
            ),
        ];
        for (name, nodes, wanted) in cases {
            assert_eq!(chosen(nodes, |_| {}).as_deref(), wanted, "{name}");
        }
    }

    #[test]
    fn zone_is_asked_after_footers_and_before_bytes() {
        let near = |id: &str, bytes| {
            let mut node = node(id, 4, 4);
            node.facts.zone = "z1".into();
            node.bytes = bytes;
            node
        };
        let nodes = || vec![node("a", 4, 4), near("b", 50)];
        assert_eq!(chosen(nodes(), |_| {}).as_deref(), Some("a"));
        assert_eq!(
            chosen(nodes(), |wanted| wanted.zone = "z1").as_deref(),
            Some("b")
        );
        let mut known = node("c", 4, 4);
        known.tables.push_back(table(1));
        let nodes = vec![near("b", 0), known];
        assert_eq!(
            chosen(nodes, |wanted| wanted.zone = "z1").as_deref(),
            Some("c")
        );
    }

    #[test]
    fn who_lacks_something_never_gets_it() {
        let needs = Needs {
            capabilities: vec![CAPABILITY.into(), "splice-9".into()],
            pool: "large".into(),
        };
        let of = |pool: &str, capability: &str| {
            let mut node = node("n", 4, 4);
            node.facts.pool = pool.into();
            node.facts.capabilities.push(capability.into());
            node
        };
        for (pool, capability, wanted) in [
            ("large", "splice-9", Some("n")),
            ("", "splice-9", None),
            ("small", "splice-9", None),
            ("large", "splice-8", None),
        ] {
            let chosen = chosen(vec![of(pool, capability)], |wanted| {
                wanted.needs = &needs;
            });
            assert_eq!(chosen.as_deref(), wanted, "{pool} {capability}");
        }
        // Who asks for no pool gets any.
        assert!(chosen(vec![of("large", "x")], |_| {}).is_some());
    }

    #[test]
    fn who_just_failed_comes_last() {
        let a = NodeId::from("a");
        let avoid = BTreeSet::from([&a]);
        let nodes = || vec![node("a", 4, 4), node("b", 4, 1)];
        assert_eq!(
            chosen(nodes(), |wanted| wanted.avoid = &avoid).as_deref(),
            Some("b")
        );
        let only = vec![node("a", 4, 4), node("b", 4, 0)];
        assert_eq!(
            chosen(only, |wanted| wanted.avoid = &avoid).as_deref(),
            Some("a")
        );
        let holder = [&a];
        assert_eq!(
            chosen(nodes(), |wanted| wanted.never = &holder).as_deref(),
            Some("b")
        );
    }

    #[test]
    fn tasks_spread_over_all_nodes() {
        let nodes = vec![node("a", 2, 2), node("b", 4, 4), node("c", 2, 2)];
        let mut candidates = candidates(&nodes);
        let wanted = wanted(10);
        for _ in 0..8 {
            place(&mut candidates, &wanted).unwrap().take(10, 10);
            let shares: Vec<u32> = candidates
                .iter()
                .map(|node| 100 * (node.facts.slots - node.room.slots) / node.facts.slots)
                .collect();
            assert!(
                shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 50,
                "{shares:?}"
            );
        }
        assert!(place(&mut candidates, &wanted).is_none());
    }
}
