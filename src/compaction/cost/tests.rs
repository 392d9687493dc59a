//! What is decided, as a table; and that it never turns against what has got better.

use proptest::prelude::*;

use super::*;

const MIB: u64 = 1 << 20;

fn side(slots: u64, mib_per_second: u64) -> SideCosts {
    SideCosts {
        state: SideState::Open,
        slots,
        bytes_per_second: mib_per_second * MIB,
        bytes_ahead: 0,
        queue_ms: 0,
        idle_ms: 0,
    }
}

/// A job of 1 GiB in four tasks; three slots here, eight on nodes that a job reaches within 0.1 s.
fn costs() -> Costs {
    Costs {
        bytes: 1024 * MIB,
        tasks: 4,
        write_pressure_percent: 0,
        local: side(3, 32),
        remote: SideCosts {
            queue_ms: 100,
            ..side(8, 32)
        },
    }
}

/// What is decided for [`costs`], changed by `change`: side, tasks here, reason.
fn decided(change: impl FnOnce(&mut Costs)) -> (Side, u32, DecisionReason) {
    let mut costs = costs();
    change(&mut costs);
    let decision = decide(&costs);
    (decision.side, decision.tasks_local, decision.reason)
}

#[test]
fn jobs_go_where_they_cost_least() {
    use DecisionReason::*;
    use Side::*;
    use SideState as State;
    type Case = (&'static str, fn(&mut Costs), (Side, u32, DecisionReason));
    let cases: &[Case] = &[
        ("a free fleet", |_| {}, (Remote, 0, Cost)),
        (
            "a tiny job: it is done here before a node has it",
            |costs| (costs.bytes, costs.tasks) = (MIB, 1),
            (Local, 1, Cost),
        ),
        (
            "slow nodes",
            |costs| costs.remote.bytes_per_second = 4 * MIB,
            (Local, 4, Cost),
        ),
        (
            "a fleet that is busy for a minute",
            |costs| costs.remote.bytes_ahead = 60 * 8 * 32 * MIB,
            (Local, 4, Cost),
        ),
        (
            "a fleet on which jobs waited for 20 s",
            |costs| costs.remote.queue_ms = 20_000,
            (Local, 4, Cost),
        ),
        (
            "one slot there, and one here",
            |costs| (costs.local.slots, costs.remote.slots) = (1, 1),
            (Split, 2, Cost),
        ),
        (
            "one here that is slow: what a split would gain is not worth a thread",
            |costs| {
                (costs.local.slots, costs.remote.slots) = (1, 1);
                costs.local.bytes_per_second = 16 * MIB;
            },
            (Remote, 0, Cost),
        ),
        (
            "the same while writes are slowed down",
            |costs| {
                (costs.local.slots, costs.remote.slots) = (1, 1);
                costs.local.bytes_per_second = 16 * MIB;
                costs.write_pressure_percent = 100;
            },
            (Split, 1, Cost),
        ),
        (
            "as good here: at rest nodes do it",
            |costs| (costs.tasks, costs.remote.queue_ms) = (1, 8_000),
            (Remote, 0, Cost),
        ),
        (
            "and here under pressure",
            |costs| {
                (costs.tasks, costs.remote.queue_ms) = (1, 8_000);
                costs.write_pressure_percent = 100;
            },
            (Local, 1, Cost),
        ),
        (
            "this process is busy",
            |costs| {
                costs.remote.bytes_per_second = 8 * MIB;
                costs.local.bytes_ahead = 8192 * MIB;
            },
            (Remote, 0, Cost),
        ),
        (
            "this process is full",
            |costs| {
                costs.remote.bytes_per_second = MIB;
                costs.local.state = State::Full;
            },
            (Remote, 0, LocalFull),
        ),
        (
            "the fleet takes no more",
            |costs| costs.remote.state = State::Full,
            (Local, 4, RemoteFull),
        ),
        (
            "both are full: a job that was found at open",
            |costs| {
                costs.local.state = State::Full;
                costs.remote.state = State::Full;
            },
            (Remote, 0, Cost),
        ),
        (
            "no meta",
            |costs| costs.remote.state = State::Away,
            (Local, 4, Away),
        ),
        (
            "no meta, and no room: it waits here",
            |costs| {
                costs.local.state = State::Full;
                costs.remote.state = State::Away;
            },
            (Local, 4, Away),
        ),
        (
            "no nodes",
            |costs| costs.remote.state = State::NoNodes,
            (Local, 4, NoNodes),
        ),
        (
            "nodes that were slow long ago",
            |costs| {
                costs.remote.bytes_per_second = 4 * MIB;
                costs.remote.idle_ms = EXPLORE_AFTER_MS;
            },
            (Remote, 0, Explores),
        ),
        (
            "nodes that were slow long ago, and a job that they could not do sooner if they were fast",
            |costs| {
                (costs.bytes, costs.tasks) = (MIB, 1);
                costs.remote.idle_ms = EXPLORE_AFTER_MS;
            },
            (Local, 1, Cost),
        ),
        (
            "nodes that are away are not explored",
            |costs| {
                costs.remote.idle_ms = EXPLORE_AFTER_MS;
                costs.remote.state = State::Away;
            },
            (Local, 4, Away),
        ),
    ];
    for (name, change, wanted) in cases {
        assert_eq!(decided(change), *wanted, "{name}");
    }
}

#[test]
fn estimates_are_what_the_formula_says() {
    let decision = decide(&costs());
    // 1 GiB by three threads; a thread is busy for 32 s, each worth half a second.
    assert_eq!(decision.local.done_ms, 10_667);
    assert_eq!(decision.local.cost_ms, 26_667);
    // Four tasks on eight slots.
    assert_eq!(decision.remote.done_ms, 8_100);
    assert_eq!(decision.remote.cost_ms, 8_100);
    let words = decision.words();
    assert!(
        words.starts_with("done in 10.7 s here, 8.1 s on nodes"),
        "{words}"
    );
}

prop_compose! {
    fn any_side()(
        slots in 1..20u64,
        mib_per_second in 1..200u64,
        mib_ahead in prop_oneof![Just(0), 0..50_000u64],
        queue_ms in prop_oneof![Just(0), 0..60_000u64],
    ) -> SideCosts {
        SideCosts {
            bytes_ahead: mib_ahead * MIB,
            queue_ms,
            ..side(slots, mib_per_second)
        }
    }
}

prop_compose! {
    fn any_costs()(
        mib in 1..5_000u64,
        tasks in 1..20u32,
        write_pressure_percent in 0..=100u32,
        local in any_side(),
        remote in any_side(),
    ) -> Costs {
        Costs { bytes: mib * MIB, tasks, write_pressure_percent, local, remote }
    }
}

/// What the chosen way comes to.
fn chosen(decision: &Decision) -> Estimate {
    match decision.side {
        Side::Local => decision.local,
        Side::Remote => decision.remote,
        Side::Split => decision.split.unwrap(),
    }
}

proptest! {
    /// Whatever makes nodes better keeps no more work here, and the other way round.
    #[test]
    fn work_follows_what_gets_better(costs in any_costs(), factor in 2..10u64, more in 1..50_000u64) {
        let before = decide(&costs);
        let better = |remote: SideCosts| decide(&Costs { remote, ..costs });
        for (what, after) in [
            ("rate", better(SideCosts {
                bytes_per_second: costs.remote.bytes_per_second * factor,
                ..costs.remote
            })),
            ("slots", better(SideCosts { slots: costs.remote.slots * factor, ..costs.remote })),
            ("queue", better(SideCosts { queue_ms: costs.remote.queue_ms / factor, ..costs.remote })),
            ("ahead", better(SideCosts { bytes_ahead: costs.remote.bytes_ahead / factor, ..costs.remote })),
        ] {
            if before.side != Side::Local {
                prop_assert_ne!(after.side, Side::Local, "{} of nodes: {:?} {:?}", what, before, after);
            }
        }
        let busier = decide(&Costs {
            local: SideCosts { bytes_ahead: costs.local.bytes_ahead + more * MIB, ..costs.local },
            ..costs
        });
        if before.side != Side::Local {
            prop_assert_ne!(busier.side, Side::Local, "{:?} {:?}", before, busier);
        }
        let slower = decide(&Costs {
            local: SideCosts {
                bytes_per_second: costs.local.bytes_per_second / factor,
                ..costs.local
            },
            ..costs
        });
        if before.side == Side::Remote {
            prop_assert_eq!(slower.side, Side::Remote, "{:?} {:?}", before, slower);
        }
    }

    /// Under full pressure nothing that is possible is done sooner, by more than a split must gain.
    #[test]
    fn under_pressure_the_soonest_wins(costs in any_costs()) {
        let decision = decide(&Costs { write_pressure_percent: 100, ..costs });
        let taken = chosen(&decision).done_ms as f64;
        prop_assert!(taken <= decision.local.done_ms as f64);
        prop_assert!(taken <= decision.remote.done_ms as f64);
        if let Some(split) = decision.split {
            prop_assert!(taken * (1.0 - SPLIT_GAIN) <= split.done_ms as f64 + 1.0);
        }
        let at_rest = decide(&Costs { write_pressure_percent: 0, ..costs });
        prop_assert!(taken * (1.0 - SPLIT_GAIN) <= chosen(&at_rest).done_ms as f64 + 1.0);
    }

    /// Each task runs once, and an estimate is never below what the slots can do.
    #[test]
    fn decisions_are_sane(costs in any_costs()) {
        let decision = decide(&costs);
        let here = match decision.side {
            Side::Local => decision.tasks_local == costs.tasks,
            Side::Remote => decision.tasks_local == 0,
            Side::Split => (1..costs.tasks).contains(&decision.tasks_local),
        };
        prop_assert!(here, "{decision:?}");
        let slots = costs.local.slots * costs.local.bytes_per_second
            + costs.remote.slots * costs.remote.bytes_per_second;
        let least_ms = costs.bytes * 1000 / slots;
        prop_assert!(chosen(&decision).done_ms + 1 >= least_ms);
    }
}
