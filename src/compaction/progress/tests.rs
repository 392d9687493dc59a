//! Random jobs whose tasks are written, split, and found again in any order.

use proptest::prelude::*;

use super::*;
use crate::{
    error::ErrorKind,
    node::fake,
    types::{NodeId, RowSum, Token},
};

fn key(key: u8) -> Key {
    Key::from(&[key][..])
}

fn job(cuts: &[u8]) -> Arc<CompactionJob> {
    let starts = std::iter::once(None).chain(cuts.iter().map(|&cut| Some(key(cut))));
    let ends = cuts.iter().map(|&cut| Some(key(cut))).chain([None]);
    let tasks = starts.zip(ends).map(|(start, end)| KeyRange { start, end });
    Arc::new(CompactionJob {
        tasks: tasks.collect(),
        ..fake::job(1, 1).as_ref().clone()
    })
}

/// The next part of the task at `index`: the keys up to `end`, or all that are left.
fn outcome(progress: &JobProgress, index: u32, end: Option<Key>) -> TaskOutcome {
    let chain = progress.chain(index).unwrap();
    let rest = chain.rest().unwrap();
    let inside = end.filter(|end| rest.contains(&end.0) && rest.start.as_ref() != Some(end));
    let none = RowSum::default();
    TaskOutcome {
        task: chain.task().id,
        part: chain.next_part(),
        range: KeyRange {
            start: rest.start,
            end: inside.or(rest.end),
        },
        token: Token(1),
        node: NodeId::from("n"),
        outputs: vec![],
        read: none,
        written: none,
        shadowed: none,
        deleted: none,
        combined: none,
        expired: none,
        range_deleted: none,
        bytes_read: 0,
        elapsed_ms: 0,
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// A part up to this key, of one of the tasks that are missing.
    Write(usize, u8),
    /// A task that is missing is split at this key, if it lies inside.
    Split(usize, u8),
}

prop_compose! {
    fn step()(task in 0..8usize, write in any::<bool>(), at in 0..40u8) -> Step {
        if write { Step::Write(task, at) } else { Step::Split(task, at) }
    }
}

proptest! {
    #[test]
    fn a_job_ends_with_every_key_covered_once(
        cuts in prop::collection::btree_set(1..40u8, 0..4),
        steps in prop::collection::vec(step(), 0..30),
        order in any::<prop::sample::Index>(),
    ) {
        let job = job(&cuts.into_iter().collect::<Vec<_>>());
        let mut progress = JobProgress::new(job.clone());
        let mut parts: Vec<TaskPart> = Vec::new();
        for step in steps {
            let missing: Vec<Task> = progress.missing().cloned().collect();
            let (Step::Write(at, _) | Step::Split(at, _)) = step;
            if missing.is_empty() {
                break;
            }
            let task = &missing[at % missing.len()];
            let index = task.id.index;
            let rest = progress.chain(index).unwrap().rest().unwrap();
            let part = match step {
                Step::Write(_, end) => TaskPart::Outcome(outcome(&progress, index, Some(key(end)))),
                Step::Split(_, cut) => {
                    let cut = key(cut);
                    if !rest.contains(&cut.0) || rest.start.as_ref() == Some(&cut) {
                        continue;
                    }
                    let split = progress.split(index, cut);
                    // 22 cuts of one line of tasks are more than there are numbers for.
                    let Some(split) = split else { continue };
                    TaskPart::Split(split)
                }
            };
            prop_assert!(progress.add(part.clone()).unwrap());
            // What is known already changes nothing.
            prop_assert!(!progress.add(part.clone()).unwrap());
            parts.push(part);
        }
        prop_assert_eq!(progress.is_complete(), progress.clone().into_outcome().is_ok());
        // Found again as the store lists them: by task and part.
        parts.sort_by_key(|part| (part.task(), part.part()));
        let mut found = JobProgress::new(job.clone());
        for part in &parts {
            prop_assert!(found.add(part.clone()).unwrap());
        }
        prop_assert_eq!(&found.chains, &progress.chains);
        // Found in another order: what comes too early is not taken in, and nothing is taken in wrongly.
        let mut shuffled = JobProgress::new(job);
        if !parts.is_empty() {
            let middle = order.index(parts.len());
            parts.rotate_left(middle);
        }
        while parts.iter().any(|part| shuffled.add(part.clone()).unwrap()) {}
        prop_assert_eq!(&shuffled.chains, &progress.chains);
        // All that is missing gets done.
        let missing: Vec<u32> = progress.missing().map(|task| task.id.index).collect();
        for index in missing {
            let part = outcome(&progress, index, None);
            prop_assert!(progress.add(TaskPart::Outcome(part)).unwrap());
        }
        let outcome = progress.into_outcome().unwrap();
        let mut start = None;
        for (at, part) in outcome.parts.iter().enumerate() {
            prop_assert_eq!(&part.range.start, &start);
            prop_assert!(!part.range.is_empty());
            start = part.range.end.clone();
            prop_assert_eq!(start.is_none(), at + 1 == outcome.parts.len());
        }
    }
}

/// Everything that a part at its position cannot be.
#[test]
fn parts_that_do_not_fit_are_refused() {
    let job = job(&[10]);
    let progress = JobProgress::new(job.clone());
    let good = outcome(&progress, 0, Some(key(5)));
    let range = |start: Option<u8>, end: Option<u8>| KeyRange {
        start: start.map(key),
        end: end.map(key),
    };
    let refused = |part: TaskPart, what: &str| {
        let error = progress.clone().add(part).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains(what), "{error}");
    };
    for bad in [
        range(Some(1), Some(5)),
        range(None, Some(11)),
        range(None, None),
    ] {
        let part = TaskOutcome {
            range: bad,
            ..good.clone()
        };
        refused(TaskPart::Outcome(part), "covers");
    }
    let split = progress.split(0, key(4)).unwrap();
    let children = |ranges: [(u32, KeyRange); 2]| TaskSplit {
        children: ranges
            .map(|(index, range)| Task {
                id: job.task_id(index),
                range,
            })
            .into(),
        ..split.clone()
    };
    for (bad, what) in [
        (
            children([(2, range(None, Some(4))), (3, range(Some(5), Some(10)))]),
            "out of place",
        ),
        (
            children([(2, range(None, Some(4))), (3, range(Some(4), Some(9)))]),
            "do not cover",
        ),
        (
            children([(3, range(None, Some(4))), (2, range(Some(4), Some(10)))]),
            "out of place",
        ),
        (
            children([(1, range(None, Some(4))), (2, range(Some(4), Some(10)))]),
            "another task",
        ),
        (
            TaskSplit {
                children: vec![],
                ..split.clone()
            },
            "do not cover",
        ),
        (
            TaskSplit {
                range: range(None, Some(9)),
                ..split.clone()
            },
            "where",
        ),
    ] {
        refused(TaskPart::Split(bad), what);
    }
    assert!(progress.clone().add(TaskPart::Split(split)).unwrap());
    // Not the next one, or of nobody that is known.
    for (part, task) in [(1, job.task_id(0)), (0, job.task_id(7))] {
        let part = TaskOutcome {
            part,
            task,
            ..good.clone()
        };
        let mut progress = progress.clone();
        assert!(!progress.add(TaskPart::Outcome(part)).unwrap());
    }
}

/// An engine that has not noticed yet that another took over cuts one task, while the other cuts another.
#[test]
fn engines_that_do_not_see_each_others_cuts_never_give_two_tasks_one_number() {
    let job = job(&[10, 20]);
    let (mut fenced, mut successor) =
        (JobProgress::new(job.clone()), JobProgress::new(job.clone()));
    let mut parts = Vec::new();
    for (progress, cuts) in [(&mut fenced, [5, 3]), (&mut successor, [15, 17])] {
        for cut in cuts {
            let holds = |task: &&Task| task.range.contains(&[cut]);
            let index = progress.missing().find(holds).unwrap().id.index;
            let split = TaskPart::Split(progress.split(index, key(cut)).unwrap());
            progress.add(split.clone()).unwrap();
            parts.push(split);
        }
    }
    parts.sort_by_key(|part| (part.task(), part.part()));
    let mut found = JobProgress::new(job);
    for part in parts {
        assert!(found.add(part).unwrap());
    }
    let mut ranges: Vec<KeyRange> = found.missing().map(|task| task.range.clone()).collect();
    ranges.sort_by(|left, right| left.start.cmp(&right.start));
    let starts = [3, 5, 10, 15, 17, 20].map(|start| Some(key(start)));
    let ends: Vec<Option<Key>> = ranges.iter().map(|range| range.end.clone()).collect();
    assert_eq!(ends[..6], starts);
    assert_eq!((ranges.len(), &ends[6]), (7, &None));
}
