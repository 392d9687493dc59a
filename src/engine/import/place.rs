//! Where SSTs that are newer than everything in a window may enter it: pure functions.
//!
//! A level holds what is older than the levels above it, where they share keys. So new SSTs may enter a level if they
//! share no key with it and those above; the deeper, the less there is to be merged later. A recorded job whose
//! keys they share may put outputs anywhere: then they enter level 0, as flushed ones do.

use std::sync::Arc;

use crate::{
    compaction::{Footprint, planner::LEVEL_BOTTOM},
    manifest::Version,
    types::{Key, PlannerKind, SstMeta, Window},
};

/// The level at which `ssts` of `window`, sorted and disjoint by key, may enter `version`.
pub(super) fn level_for(version: &Version, window: Window, ssts: &[Arc<SstMeta>]) -> u8 {
    let bottom = match version.schema.planner() {
        PlannerKind::TimeWindow => 1,
        PlannerKind::Leveled | PlannerKind::Tiered => LEVEL_BOTTOM,
    };
    let meets = |other: &Arc<SstMeta>| meets(other, ssts);
    let Some(there) = version.windows.get(&window) else {
        return bottom;
    };
    if there.l0.iter().any(meets) || is_claimed(version, window, ssts) {
        return 0;
    }
    let mut deepest = None;
    for (&level, run) in &there.levels {
        if run.iter().any(meets) {
            // A run of their own, just above, where the planner leaves room for it.
            return deepest.unwrap_or(level - 1);
        }
        deepest = Some(level);
    }
    deepest.unwrap_or(bottom)
}

/// What keeps jobs away from the place where `ssts` enter `level`; nothing needs to for level 0.
pub(super) fn footprint(window: Window, ssts: &[Arc<SstMeta>], level: u8) -> Option<Footprint> {
    (level > 0).then(|| Footprint {
        window,
        inputs: Vec::new(),
        keys: span(ssts),
        // Nothing may come to lie in between either.
        level_min: 0,
        level_target: level,
    })
}

fn meets(other: &SstMeta, ssts: &[Arc<SstMeta>]) -> bool {
    let after = ssts.partition_point(|sst| sst.key_max < other.key_min);
    ssts.get(after)
        .is_some_and(|sst| sst.key_min <= other.key_max)
}

fn span(ssts: &[Arc<SstMeta>]) -> Option<(Key, Key)> {
    let (first, last) = (ssts.first()?, ssts.last()?);
    Some((first.key_min.clone(), last.key_max.clone()))
}

/// Whether a recorded job may write where `ssts` are.
fn is_claimed(version: &Version, window: Window, ssts: &[Arc<SstMeta>]) -> bool {
    let Some((min, max)) = span(ssts) else {
        return false;
    };
    let mut jobs = version.jobs.values().filter(|job| job.window == window);
    jobs.any(|job| {
        let inputs = version.inputs_of(job).unwrap_or_default();
        let keys = Footprint::new(window, &inputs, job.level_target).keys;
        keys.is_none_or(|(job_min, job_max)| job_min <= max && min <= job_max)
    })
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::{DataType, Field, Schema};

    use super::*;
    use crate::{
        manifest::{Edit, JobRecord},
        types::{JobId, KeyRange, Retention, SstId, TableOptions, TableSchema},
    };

    /// An SST as in `"0 c-f"`: its level, its least and its greatest key.
    fn sst(drawn: &str, number: u64) -> Arc<SstMeta> {
        let (level, keys) = drawn.split_once(' ').unwrap();
        Arc::new(SstMeta {
            level: level.parse().unwrap(),
            ..SstMeta::sample(SstId::flushed(number, 0), keys)
        })
    }

    fn version(planner: PlannerKind, drawn: &[&str]) -> Version {
        let columns = Schema::new(vec![Field::new("k", DataType::Int64, false)]);
        let options = TableOptions {
            planner: Some(planner),
            ..TableOptions::default()
        };
        let schema = TableSchema::new(Arc::new(columns), &["k"], None, options).unwrap();
        let numbered = drawn.iter().zip(1..);
        let edit = Edit {
            added: numbered.map(|(drawn, number)| sst(drawn, number)).collect(),
            ..Edit::default()
        };
        Version::new(schema).apply(&edit).unwrap()
    }

    fn level(version: &Version, keys: &[&str]) -> u8 {
        let ssts: Vec<_> = keys
            .iter()
            .map(|keys| sst(&format!("0 {keys}"), 100))
            .collect();
        level_for(version, Window::ALL, &ssts)
    }

    #[test]
    fn imports_go_as_deep_as_they_meet_nothing() {
        use PlannerKind::{Leveled, Tiered, TimeWindow};
        for (planner, there, keys, wanted) in [
            // An empty window.
            (TimeWindow, &[][..], &["a-c"][..], 1),
            (Leveled, &[], &["a-c"], 15),
            (Tiered, &[], &["a-c"], 15),
            // Level 0 is above all others.
            (TimeWindow, &["0 b-d"], &["a-c"], 0),
            (TimeWindow, &["0 d-e"], &["a-c"], 1),
            // Beside, and in between.
            (TimeWindow, &["1 a-c", "1 g-h"], &["d-f", "i-k"], 1),
            (TimeWindow, &["1 a-c", "1 g-h"], &["d-f", "h-k"], 0),
            (Leveled, &["14 a-c", "15 a-z"], &["d-f"], 14),
            (Leveled, &["13 a-c", "15 g-z"], &["d-f"], 15),
            // A run of its own above what it meets.
            (Leveled, &["15 a-z"], &["d-f"], 14),
            (Leveled, &["1 a-z"], &["d-f"], 0),
            (Tiered, &["0 a-b", "3 a-z"], &["d-f"], 2),
            (Tiered, &["0 a-d", "3 a-z"], &["d-f"], 0),
        ] {
            let version = version(planner, there);
            assert_eq!(
                level(&version, keys),
                wanted,
                "{planner} {there:?} {keys:?}"
            );
        }
    }

    #[test]
    fn where_a_job_may_write_imports_go_to_level_0() {
        let version = version(PlannerKind::TimeWindow, &["0 d-f", "0 e-g"]);
        let record = JobRecord {
            id: JobId::from_parts(1, 1),
            inputs: version.ssts().map(|sst| sst.id).collect(),
            window: Window::ALL,
            level_target: 1,
            retention: Retention::default(),
            sst_bytes_target: 1,
            tasks: vec![KeyRange::ALL],
            created_ms: 0,
        };
        let edit = Edit {
            jobs_started: vec![record],
            ..Edit::default()
        };
        let busy = version.apply(&edit).unwrap();
        // Around it, so that an output could come to lie inside.
        assert_eq!(level(&version, &["a-b", "x-z"]), 1);
        assert_eq!(level(&busy, &["a-b", "x-z"]), 0);
        assert_eq!(level(&busy, &["x-z"]), 1);
    }
}
