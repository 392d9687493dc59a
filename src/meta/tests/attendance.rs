//! Engines that attend: what they have in quarantine, what they are ordered, who shares a name.

use std::{sync::Arc, time::Duration};

use tokio::task::JoinHandle;

use super::{WAIT, job, open};
use crate::{
    compaction::{
        QuarantinedSst,
        remote::{Attendance, JobService, Orders},
    },
    error::{ErrorKind, Result},
    meta::{MemoryPlanLog, MetaService, OwnerInfo, Wish},
    types::{OwnerId, SstId, TableId},
};

/// As long as a lease: a call is not cut short.
const LEASE: Duration = Duration::from_secs(10);

fn table(number: u128) -> TableId {
    TableId::from_parts(1, number)
}

fn sst(table: TableId, failures: u32) -> QuarantinedSst {
    QuarantinedSst {
        table: "events".into(),
        table_id: table,
        sst: SstId::flushed(1, 0).to_string(),
        reason: "it is torn".into(),
        failures,
        since_ms: 1_000,
        retry_in_ms: 60_000,
    }
}

/// Engine `session` of owner "o", on a host of its own, which has `quarantine`.
fn engine(session: u64, quarantine: &[QuarantinedSst]) -> Attendance {
    Attendance {
        owner: "o".into(),
        session,
        host: format!("host-{session}"),
        version: "1".into(),
        quarantine: quarantine.to_vec(),
        left_out: 0,
        carried_out: 0,
    }
}

fn attending(service: &Arc<MetaService>, engine: &Attendance) -> JoinHandle<Result<Orders>> {
    let (service, engine) = (service.clone(), engine.clone());
    tokio::spawn(async move { service.attend(engine, LEASE).await })
}

/// An engine that attends on and on, and carries nothing out.
fn stays(service: &Arc<MetaService>, engine: Attendance) -> JoinHandle<()> {
    let service = service.clone();
    tokio::spawn(async move { while service.attend(engine.clone(), LEASE).await.is_ok() {} })
}

fn retry(
    service: &Arc<MetaService>,
    owner: &str,
    table: Option<TableId>,
) -> JoinHandle<Result<()>> {
    let (service, owner) = (service.clone(), OwnerId::from(owner));
    let wish = Wish::RetryQuarantined { owner, table };
    tokio::spawn(async move { service.steer(wish).await })
}

async fn soon() {
    tokio::time::sleep(Duration::from_millis(50)).await;
}

async fn owner(service: &MetaService) -> OwnerInfo {
    let owners = service.owners().await.unwrap();
    assert_eq!(owners.len(), 1, "{owners:?}");
    owners.into_iter().next().unwrap()
}

#[tokio::test(start_paused = true)]
async fn quarantine_is_listed_and_watched() {
    let service = open(MemoryPlanLog::default()).await;
    let empty = service.watch_quarantine(0, WAIT).await.unwrap();
    assert!(empty.items.is_empty());
    let watching = {
        let service = service.clone();
        tokio::spawn(async move { service.watch_quarantine(empty.revision, LEASE).await })
    };
    soon().await;
    let mut attendance = engine(1, &[sst(table(1), 1)]);
    let first = attending(&service, &attendance);
    let listed = watching.await.unwrap().unwrap();
    let held = &listed.items[0];
    assert_eq!((&held.owner.0[..], held.left_out), ("o", 0));
    assert_eq!(held.ssts, attendance.quarantine);
    assert_eq!(
        (&held.engine.host[..], held.engine.attends),
        ("host-1", true)
    );
    tokio::time::sleep(Duration::from_secs(5)).await;
    // Nobody is told that time has passed, but who asks is.
    let same = service.watch_quarantine(0, WAIT).await.unwrap();
    assert_eq!(same.revision, listed.revision);
    let left_ms = same.items[0].ssts[0].retry_in_ms;
    assert!((54_000..=55_000).contains(&left_ms), "{left_ms}");
    assert_eq!(first.await.unwrap().unwrap(), Orders::default());
    // The same again is no news; another failure is, and so is more than can be listed.
    let again = attending(&service, &attendance);
    soon().await;
    let same = service.watch_quarantine(0, WAIT).await.unwrap();
    assert_eq!(same.revision, listed.revision);
    attendance.quarantine = vec![sst(table(1), 2); 1_003];
    attendance.quarantine[0].reason = "ü".repeat(1_000);
    let changed = attending(&service, &attendance);
    let conflict = again.await.unwrap().unwrap_err();
    assert_eq!(conflict.kind(), ErrorKind::Conflict);
    let more = service.watch_quarantine(same.revision, WAIT).await.unwrap();
    let held = &more.items[0];
    assert_ne!(more.revision, same.revision);
    assert_eq!((held.ssts.len(), held.left_out), (1_000, 3));
    assert_eq!(held.ssts[0].reason.len(), 1_024);
    let stats = service.stats().await.unwrap();
    assert_eq!((stats.engines, stats.ssts_quarantined), (1, 1_003));
    changed.abort();
    service.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_order_is_given_again_until_it_was_carried_out() {
    let service = open(MemoryPlanLog::default()).await;
    let mut attendance = engine(1, &[sst(table(1), 1)]);
    let waiting = attending(&service, &attendance);
    soon().await;
    let operator = retry(&service, "o", Some(table(1)));
    let first = waiting.await.unwrap().unwrap();
    let [order] = first.retries[..] else {
        panic!("{first:?}");
    };
    assert_eq!(order.table, Some(table(1)));
    // That answer was lost.
    let again = service.attend(attendance.clone(), LEASE).await.unwrap();
    assert_eq!(again, first);
    soon().await;
    assert!(!operator.is_finished());
    attendance.carried_out = order.number;
    attendance.quarantine.clear();
    let waiting = attending(&service, &attendance);
    operator.await.unwrap().unwrap();
    assert_eq!(waiting.await.unwrap().unwrap(), Orders::default());
    service.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_order_that_concerns_nothing_is_refused_and_one_that_is_not_heard_stands() {
    let service = open(MemoryPlanLog::default()).await;
    let refused = async |owner: &str, table| {
        let error = retry(&service, owner, table).await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        error.message().to_owned()
    };
    assert_eq!(refused("o", None).await, "no engine of owner o attends");
    let well = attending(&service, &engine(1, &[]));
    soon().await;
    assert_eq!(
        refused("o", None).await,
        "owner o has nothing in quarantine"
    );
    drop(well);
    let ill = attending(&service, &engine(1, &[sst(table(1), 1)]));
    soon().await;
    assert_eq!(
        refused("o", Some(table(2))).await,
        format!("owner o has nothing of table {} in quarantine", table(2))
    );
    assert_eq!(refused("p", None).await, "no engine of owner p attends");
    let operator = retry(&service, "o", None);
    let heard = ill.await.unwrap().unwrap();
    // It does not say that it has.
    let error = operator.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.message().contains("owner o"), "{error}");
    let again = service.attend(engine(1, &[sst(table(1), 1)]), LEASE).await;
    assert_eq!(again.unwrap().retries, heard.retries);
    service.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_of_meta_engines_are_back_with_their_next_call() {
    let log = MemoryPlanLog::default();
    let service = open(log.clone()).await;
    let mut attendance = engine(1, &[sst(table(1), 1)]);
    let waiting = attending(&service, &attendance);
    soon().await;
    service.close().await.unwrap();
    let error = waiting.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let service = open(log).await;
    let listed = service.watch_quarantine(0, WAIT).await.unwrap();
    assert!(listed.items.is_empty());
    // It has carried out orders of others before.
    attendance.carried_out = u64::MAX >> 1;
    let waiting = attending(&service, &attendance);
    soon().await;
    let listed = service.watch_quarantine(0, WAIT).await.unwrap();
    let held = &listed.items[0].ssts;
    assert!(QuarantinedSst::are_as_in(held, &attendance.quarantine));
    let operator = retry(&service, "o", None);
    let orders = waiting.await.unwrap().unwrap();
    assert!(orders.retries[0].number > attendance.carried_out);
    assert!(!operator.is_finished(), "it was not carried out");
    service.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn two_engines_of_one_name_are_told_and_an_engine_opened_again_is_not() {
    let service = open(MemoryPlanLog::default()).await;
    let old = attending(&service, &engine(1, &[]));
    soon().await;
    // It was opened again on another host: the call before is dropped, or as good as that.
    let new = attending(&service, &engine(2, &[]));
    assert_eq!(old.await.unwrap().unwrap(), Orders::default());
    assert_eq!(new.await.unwrap().unwrap(), Orders::default());
    let opened_again = stays(&service, engine(2, &[]));
    tokio::time::sleep(LEASE * 3).await;
    let [known] = &owner(&service).await.engines[..] else {
        panic!("the first is forgotten");
    };
    assert_eq!((&known.host[..], known.has_namesakes), ("host-2", false));
    opened_again.abort();
    // A third takes the same name, and both are there.
    let second = attending(&service, &engine(2, &[]));
    soon().await;
    let third = attending(&service, &engine(3, &[]));
    assert_eq!(second.await.unwrap().unwrap(), Orders::default());
    let second = service.attend(engine(2, &[]), LEASE).await.unwrap();
    assert_eq!(second.namesakes, ["host-3"]);
    assert_eq!(third.await.unwrap().unwrap().namesakes, ["host-2"]);
    assert!(
        owner(&service)
            .await
            .engines
            .iter()
            .all(|engine| engine.has_namesakes)
    );
    // Told once, they go on, and their jobs are accepted.
    let stay = [2, 3].map(|session| stays(&service, engine(session, &[])));
    service.submit(super::submission("o", 1, 1)).await.unwrap();
    assert_eq!(service.jobs().await.unwrap()[0].job, job(1));
    tokio::time::sleep(LEASE * 4).await;
    assert_eq!(owner(&service).await.engines.len(), 2);
    let [second, _] = stay;
    second.abort();
    tokio::time::sleep(LEASE * 4).await;
    let [left] = &owner(&service).await.engines[..] else {
        panic!("one of them has ended");
    };
    assert_eq!((&left.host[..], left.has_namesakes), ("host-3", false));
    service.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_does_not_attend_is_seen_and_then_forgotten() {
    let service = open(MemoryPlanLog::default()).await;
    let attendance = engine(1, &[sst(table(1), 1)]);
    service.attend(attendance, Duration::ZERO).await.unwrap();
    let seen = service.watch_quarantine(0, WAIT).await.unwrap();
    assert!(seen.items[0].engine.attends);
    // Nothing else happens that would wake meta.
    let silent = service.watch_quarantine(seen.revision, LEASE * 3).await;
    let silent = silent.unwrap();
    assert_ne!(silent.revision, seen.revision);
    let engine = &silent.items[0].engine;
    let told = LEASE * 2..LEASE * 2 + Duration::from_secs(1);
    assert!(
        !engine.attends && told.contains(&engine.silent),
        "{engine:?}"
    );
    let error = retry(&service, "o", None).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert_eq!(service.stats().await.unwrap().ssts_quarantined, 0);
    tokio::time::sleep(LEASE * 29).await;
    let left = service.watch_quarantine(0, WAIT).await.unwrap();
    assert!(left.items.is_empty());
    assert!(service.owners().await.unwrap().is_empty());
    service.close().await.unwrap();
}
