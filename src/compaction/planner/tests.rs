//! Planner decisions as text: a drawing of a version, the plans it gets.
//!
//! An SST is `L<level> <first key>-<last key> <size>[ claimed]`, keys are single letters, sizes are bytes;
//! those of level 0 are listed oldest first.

use std::{collections::HashSet, sync::Arc};

use arrow::datatypes::{DataType, Field, Schema, TimeUnit};

use super::{PlannerConfig, manual, plan};
use crate::{
    compaction::Claims,
    manifest::{Edit, Version},
    types::{Key, Seq, SstId, SstMeta, TableOptions, TableSchema, Window},
};

const CONFIG: PlannerConfig = PlannerConfig {
    l0_runs_trigger: 3,
    job_bytes_max: 100,
    window_settle_ms: 1_000,
};

/// When the SSTs of the drawings were flushed.
const FLUSHED_MS: u64 = 50_000;

fn schema() -> TableSchema {
    let time = DataType::Timestamp(TimeUnit::Second, None);
    let columns = Schema::new(vec![
        Field::new("t", time, false),
        Field::new("v", DataType::Int64, true),
    ]);
    let options = TableOptions {
        window: std::time::Duration::from_secs(10).into(),
        ..TableOptions::default()
    };
    TableSchema::new(Arc::new(columns), &["t"], Some("t"), options).unwrap()
}

/// The version that `drawing` shows: windows as `window <n>`, each followed by its SSTs.
fn version(drawing: &str) -> (Version, Claims) {
    let mut edit = Edit {
        flushed_seq: Some(Seq(1_000)),
        ..Edit::default()
    };
    let mut claimed = Vec::new();
    let mut window = Window(0);
    for (number, line) in drawing
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .enumerate()
    {
        if let Some(name) = line.strip_prefix("window ") {
            window = Window(name.parse().unwrap());
            continue;
        }
        let words: Vec<&str> = line.split(' ').collect();
        let (first, last) = words[1].split_once('-').unwrap();
        let id = SstId::flushed(FLUSHED_MS, number as u128);
        edit.added.push(Arc::new(SstMeta {
            id,
            level: words[0][1..].parse().unwrap(),
            window,
            bytes: words[2].parse().unwrap(),
            rows: 1,
            tombstones: 0,
            key_min: Key::from(first.as_bytes()),
            key_max: Key::from(last.as_bytes()),
            seq_min: Seq(number as u64),
            seq_max: Seq(number as u64),
            times: Some((window.0 * 10, window.0 * 10 + 9)),
            schema_version: 1,
            rows_hash: 0,
            applied_seq: Seq(0),
        }));
        if words.last() == Some(&"claimed") {
            claimed.push(id);
        }
    }
    let claims = Claims::default();
    std::mem::forget(claims.claim(claimed));
    (Version::new(schema()).apply(&edit).unwrap(), claims)
}

fn show(plans: &[crate::compaction::Plan]) -> String {
    let lines = plans.iter().map(|plan| {
        let inputs: Vec<String> = plan
            .inputs
            .iter()
            .map(|sst| {
                let text = |key: &Key| String::from_utf8(key.0.to_vec()).unwrap();
                format!(
                    "L{} {}-{}",
                    sst.level,
                    text(&sst.key_min),
                    text(&sst.key_max)
                )
            })
            .collect();
        let (window, reason) = (plan.window.0, plan.reason);
        format!(
            "window {window}: {} -> L{} ({reason}, {:.1})",
            inputs.join(", "),
            plan.level_target,
            plan.score
        )
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Plans right after the flushes, while every window is young and busy.
fn plans(drawing: &str) -> String {
    let (version, claims) = version(drawing);
    show(&plan(
        &version,
        &claims,
        &HashSet::new(),
        &CONFIG,
        FLUSHED_MS,
    ))
}

#[test]
fn below_the_trigger_nothing_happens() {
    assert_eq!(plans("L0 a-m 10\n L0 b-z 10\n L1 a-z 10"), "");
}

#[test]
fn at_the_trigger_level_0_goes_into_what_it_overlaps() {
    let drawing =
        "L0 c-d 10\n L0 d-e 10\n L0 c-c 10\n L1 a-b 10\n L1 c-d 10\n L1 e-f 10\n L1 g-z 10";
    assert_eq!(
        plans(drawing),
        "window 0: L0 c-d, L0 d-e, L0 c-c, L1 c-d, L1 e-f -> L1 (level-0 runs, 1.0)"
    );
}

#[test]
fn a_gap_inside_the_span_of_the_inputs_is_filled() {
    // L1 d-e overlaps no single input, but an output could reach across it.
    let drawing = "L0 a-b 10\n L0 y-z 10\n L0 a-b 10\n L1 d-e 10";
    assert_eq!(
        plans(drawing),
        "window 0: L0 a-b, L0 y-z, L0 a-b, L1 d-e -> L1 (level-0 runs, 1.0)"
    );
}

#[test]
fn a_job_stays_inside_its_limit_oldest_first() {
    let drawing = "L0 a-b 40\n L0 b-c 40\n L0 c-d 40\n L0 d-e 40";
    assert_eq!(
        plans(drawing),
        "window 0: L0 a-b, L0 b-c -> L1 (level-0 runs, 1.3)"
    );
}

#[test]
fn one_run_larger_than_the_limit_can_still_be_merged() {
    let drawing = "L0 a-b 400\n L0 b-c 40\n L0 c-d 40";
    assert_eq!(plans(drawing), "window 0: L0 a-b -> L1 (level-0 runs, 1.0)");
}

#[test]
fn a_window_with_a_running_job_is_left_alone() {
    assert_eq!(
        plans("L0 a-b 1 claimed\n L0 a-b 1\n L0 a-b 1\n L0 a-b 1\n L0 a-b 1"),
        ""
    );
}

#[test]
fn the_window_with_more_runs_goes_first() {
    let three = "L0 a-b 1\n L0 a-b 1\n L0 a-b 1\n";
    let drawing = format!("window -1\n{three}window 5\n{three}L0 a-b 1\n");
    assert_eq!(
        plans(&drawing),
        "window 5: L0 a-b, L0 a-b, L0 a-b, L0 a-b -> L1 (level-0 runs, 1.3)\n\
         window -1: L0 a-b, L0 a-b, L0 a-b -> L1 (level-0 runs, 1.0)"
    );
}

#[test]
fn a_past_and_quiet_window_settles_without_another_write() {
    let (version, claims) = version("window 1\n L0 a-b 1\n L1 a-c 1\n window 9\n L0 a-b 1");
    let at = |now_ms| show(&plan(&version, &claims, &HashSet::new(), &CONFIG, now_ms));
    // Window 1 ended at 20 s, but was flushed to at 50 s; window 9 ends at 100 s.
    assert_eq!(at(50_999), "");
    assert_eq!(at(51_000), "window 1: L0 a-b, L1 a-c -> L1 (settle, 0.3)");
    assert!(at(101_000).contains("window 9"));
}

#[test]
fn manual_plans_leave_only_level_1() {
    let (version, claims) = version("L0 a-b 1\n L1 a-c 1\n window 2\n L1 a-b 1");
    assert_eq!(
        show(&manual(&version, &claims, &CONFIG)),
        "window 0: L0 a-b, L1 a-c -> L1 (manual, 0.3)"
    );
}

#[test]
fn tombstones_go_only_when_nothing_older_stays_behind() {
    let drawing = "L1 a-a 1\n L1 q-z 1\n L0 a-b 40\n L0 b-c 40\n L0 c-d 40";
    let (version, claims) = version(drawing);
    let plans = plan(&version, &claims, &HashSet::new(), &CONFIG, FLUSHED_MS);
    // The newest level-0 run overlaps, but is newer; level 1's q-z is elsewhere.
    assert!(plans[0].retention(&version, no_pins()).drop_tombstones);
    let mut partial = plans[0].clone();
    partial.inputs.retain(|sst| sst.level == 0);
    partial.inputs.remove(0);
    assert!(!partial.retention(&version, no_pins()).drop_tombstones);
}

#[test]
fn what_is_held_does_not_stop_the_rest_of_its_window() {
    let drawing = "L0 a-b 1\n L0 a-b 2\n L0 a-b 3\n L0 a-b 4\n L1 a-c 5";
    let (version, claims) = version(drawing);
    let held = |bytes: u64| {
        version
            .ssts()
            .filter(|sst| sst.bytes == bytes)
            .map(|sst| sst.id)
            .collect()
    };
    let plans = |held: &HashSet<SstId>| plan(&version, &claims, held, &CONFIG, FLUSHED_MS);
    let sizes = |plans: &[crate::compaction::Plan]| -> Vec<u64> {
        plans
            .iter()
            .flat_map(|plan| plan.inputs.iter().map(|sst| sst.bytes))
            .collect()
    };
    let without_the_second = plans(&held(2));
    assert_eq!(sizes(&without_the_second), [1, 3, 4, 5]);
    // An older version of a key may stay behind in what is held.
    assert!(
        !without_the_second[0]
            .retention(&version, no_pins())
            .drop_tombstones
    );
    assert!(sizes(&plans(&held(5))).is_empty());
}

fn no_pins() -> crate::manifest::Pins {
    crate::manifest::Pins {
        read_points: vec![],
        expiry: None,
    }
}
