//! The bodies of the plan log's records, byte by byte; and the log on the object store over time.

use bytes::Bytes;

use crate::{
    compaction::remote::Needs,
    meta::{
        codec,
        state::{Job, Limits, Settings, State},
        update::{Assigned, Cancelled, Cause, Completed, Failed, NewJob, PlanUpdate, Requeued},
    },
    store::log::GRACE,
    types::{TableId, TaskId, Token},
};

use super::*;

fn attempt(index: u32) -> AttemptId {
    AttemptId {
        task: TaskId { job: job(1), index },
        token: Token(7),
    }
}

fn update() -> PlanUpdate {
    PlanUpdate {
        new: vec![NewJob {
            // The body is not kept.
            job: Arc::new(JobSubmission {
                body: Bytes::new(),
                needs: Arc::new(Needs {
                    capabilities: vec!["job-2".into()],
                    pool: "large".into(),
                }),
                ..submission("owner", 1, 2)
            }),
            submitted_ms: 99,
        }],
        assigned: vec![Assigned {
            attempt: attempt(0),
            node: "a".into(),
            session: 3,
            hedge: true,
            at: Duration::ZERO,
        }],
        completed: vec![Completed {
            task: attempt(0).task,
            node: "a".into(),
        }],
        failed: vec![Failed {
            task: attempt(1).task,
            token: attempt(1).token,
            attempts: 4,
            kind: ErrorKind::Corrupt,
            message: "sst is damaged".into(),
            cause: Cause::default(),
        }],
        displaced: vec![attempt(2).task],
        cancelled: vec![Cancelled {
            task: attempt(3).task,
            reason: "an operator cancelled it".into(),
        }],
        retried: vec![attempt(4).task],
        raised: vec![job(6)],
        settings: Some(Settings {
            weights: [("owner".into(), 3)].into(),
            paused_owners: ["idle".into()].into(),
            paused_tables: [TableId::from_parts(1, 1)].into(),
        }),
        requeued: vec![Requeued {
            attempt: attempt(1),
            attempts: 2,
            reason: "node is lost".into(),
            cause: Cause::default(),
            ready_at: Duration::ZERO,
            outages: 0,
            avoid: None,
        }],
        released: vec![job(5)],
        ..PlanUpdate::default()
    }
}

#[test]
fn stored_bodies_stay_readable() {
    let updates = [update()];
    let golden = crate::golden::check("plan-updates-v2.bin", &codec::encode_updates(&updates));
    assert_eq!(codec::decode_updates(golden).unwrap(), updates);
    let mut state = State::new(Limits::from(&MetaConfig::default()));
    state.apply(&PlanUpdate {
        new: update().new,
        assigned: update().assigned,
        settings: update().settings,
        ..PlanUpdate::default()
    });
    let snapshot = state.snapshot();
    let jobs: Vec<&Job> = snapshot.jobs.iter().map(|(_, job)| job).collect();
    assert_eq!(jobs.len(), 1);
    let golden = crate::golden::check("plan-snapshot-v2.bin", &codec::encode_snapshot(&snapshot));
    assert_eq!(codec::decode_snapshot(golden).unwrap(), snapshot);
}

#[tokio::test]
async fn old_records_of_the_plan_log_are_removed_after_the_grace() {
    let store = Store::open("memory:///").unwrap();
    let clock = Arc::new(ManualClock::default());
    let log = |seed| ObjectPlanLog::new(store.clone(), Env::seeded(clock.clone(), seed));
    let mut old = log(1);
    old.open().await.unwrap();
    let mut log = log(2);
    log.open().await.unwrap();
    let state = State::new(Limits::from(&MetaConfig::default()));
    for _ in 0..40 {
        log.append(&[update()]).await.unwrap();
    }
    assert!(log.is_snapshot_due());
    log.append_snapshot(&state.snapshot()).await.unwrap();
    assert!(!log.is_snapshot_due());
    assert_eq!(store.list("meta").await.unwrap().len(), 43);
    clock.advance(GRACE);
    log.append(&[update()]).await.unwrap();
    assert_eq!(store.list("meta").await.unwrap().len(), 2);
    // The one before slept meanwhile, and could create the record that fenced it.
    let error = old.append(&[update()]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    let replay = log.open().await.unwrap();
    assert!(replay.snapshot.is_some());
    assert_eq!(replay.updates.len(), 1);
}
