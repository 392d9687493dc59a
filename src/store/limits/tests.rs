//! Retries, time-outs and limits, over scripted faults and a clock that is moved by the test.

use std::sync::Arc;

use bytes::Bytes;

use super::*;
use crate::{
    clock::ManualClock,
    config::{Bytes as Size, Millis},
    error::ErrorKind,
    store::{
        Created, Store,
        faulty::{Effect, Fault, Faults},
    },
};

fn config() -> StoreConfig {
    StoreConfig {
        request_timeout: Millis(1_000),
        ..StoreConfig::default()
    }
}

/// A store whose faults the limits meet.
fn limited(config: &StoreConfig) -> (Store, Arc<Faults>) {
    let (store, faults) = Store::open("memory:///").unwrap().with_faults();
    (store.with_limits(config, Env::default()), faults)
}

fn body(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

#[tokio::test(start_paused = true)]
async fn errors_pass_within_the_attempts_and_are_counted() {
    let (store, faults) = limited(&config());
    store.put("a", body("1")).await.unwrap();
    for operation in [Operation::Get, Operation::Put, Operation::List] {
        faults.add(Fault::new(operation, "", Effect::Fail).times(3));
    }
    assert_eq!(store.get("a").await.unwrap(), "1");
    store.put("a", body("2")).await.unwrap();
    assert_eq!(store.list("").await.unwrap().len(), 1);
    faults.add(Fault::new(Operation::Delete, "", Effect::LoseAnswer).times(1));
    store.delete("a").await.unwrap();
    assert_eq!(store.list("").await.unwrap(), []);

    let stats = store.stats();
    let get = stats.of(Operation::Get);
    assert_eq!((get.done, get.failed, get.retries), (1, 3, 3));
    let put = stats.of(Operation::Put);
    assert_eq!((put.done, put.failed, put.retries), (2, 3, 3));
    let delete = stats.of(Operation::Delete);
    assert_eq!((delete.sent(), delete.failed, delete.retries), (2, 1, 1));
    assert_eq!((stats.bytes_read, stats.bytes_written), (1, 5));
}

#[tokio::test(start_paused = true)]
async fn attempts_are_bounded_and_answers_are_not_asked_for_again() {
    let (store, faults) = limited(&config());
    faults.add(Fault::new(Operation::Get, "away", Effect::Fail));
    let began = tokio::time::Instant::now();
    assert!(store.get("away").await.unwrap_err().is_unavailable());
    let paused = began.elapsed();
    // 100, 200 and 400 ms, of each between half and all.
    assert!(paused >= Duration::from_millis(350), "{paused:?}");
    assert!(paused <= Duration::from_millis(710), "{paused:?}");
    assert_eq!(faults.count(Operation::Get), 4);
    let missing = store.get("missing").await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    assert_eq!(faults.count(Operation::Get), 5);
    let get = store.stats().of(Operation::Get);
    assert_eq!((get.failed, get.refused, get.retries), (4, 1, 3));
}

#[tokio::test(start_paused = true)]
async fn a_create_is_sent_once() {
    let (store, faults) = limited(&config());
    // The first attempt takes effect. A second would find it there: somebody else's, for all it knows.
    faults.add(Fault::new(Operation::Create, "", Effect::LoseAnswer).times(1));
    let error = store.create("a", body("x")).await.unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    assert_eq!(faults.count(Operation::Create), 1);
    assert_eq!(store.create("a", body("y")).await.unwrap(), Created::Exists);
    assert_eq!(store.get("a").await.unwrap(), "x");
    let create = store.stats().of(Operation::Create);
    assert_eq!((create.failed, create.refused, create.retries), (1, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn what_does_not_answer_is_timed_out() {
    let (store, faults) = limited(&config());
    store.put("a", body("1")).await.unwrap();
    faults.add(Fault::new(Operation::Get, "", Effect::Block).times(2));
    assert_eq!(store.get("a").await.unwrap(), "1");
    faults.add(Fault::new(Operation::List, "", Effect::Block));
    faults.add(Fault::new(Operation::Create, "", Effect::Block));
    let error = store.list("").await.unwrap_err();
    assert!(error.to_string().contains("no answer within 1s"), "{error}");
    assert!(store.list_folders("").await.unwrap_err().is_unavailable());
    let error = store.create("b", body("x")).await.unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    let stats = store.stats();
    let (get, list) = (stats.of(Operation::Get), stats.of(Operation::List));
    assert_eq!((get.timed_out, get.done, get.retries), (2, 1, 2));
    assert_eq!((list.timed_out, list.retries), (8, 6));
    assert_eq!(stats.of(Operation::Create).timed_out, 1);
    assert_eq!(faults.blocked(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_time_out_grows_with_what_is_sent() {
    let (store, faults) = limited(&config());
    faults.add(Fault::new(
        Operation::Create,
        "",
        Effect::Delay(Duration::from_millis(3_900)),
    ));
    let large = vec![7; (3 << 20) + 1];
    let created = store.create("large", large.clone().into()).await.unwrap();
    assert_eq!(created, Created::New);
    assert_eq!(store.get("large").await.unwrap(), large);
    let error = store.create("small", body("x")).await.unwrap_err();
    assert!(error.to_string().contains("no answer within 1s"), "{error}");
}

#[tokio::test]
async fn requests_in_flight_are_limited() {
    let (store, faults) = limited(&StoreConfig {
        requests_max: 2,
        ..StoreConfig::default()
    });
    faults.add(Fault::new(Operation::Put, "", Effect::Block));
    let puts: Vec<_> = (0..5)
        .map(|number| {
            let store = store.clone();
            tokio::spawn(async move { store.put(&format!("{number}"), body("x")).await })
        })
        .collect();
    while faults.blocked() < 2 {
        tokio::task::yield_now().await;
    }
    for _ in 0..100 {
        tokio::task::yield_now().await;
        assert_eq!(faults.count(Operation::Put), 2);
    }
    faults.release();
    for put in puts {
        put.await.unwrap().unwrap();
    }
    assert_eq!(store.stats().limit_waits, 3);
    assert_eq!(store.list("").await.unwrap().len(), 5);
}

#[test]
fn bandwidth_is_paid_for_by_those_who_come_after() {
    let clock = Arc::new(ManualClock::new(Duration::from_secs(7)));
    let bandwidth = Bandwidth {
        bytes_per_second: 1_000,
        paid_until: Mutex::default(),
    };
    let now = || Env::seeded(clock.clone(), 1).monotonic();
    assert_eq!(bandwidth.reserve(2_000, now()), Duration::ZERO);
    assert_eq!(bandwidth.reserve(500, now()), Duration::from_secs(2));
    clock.advance(Duration::from_secs(2));
    assert_eq!(bandwidth.reserve(0, now()), Duration::from_millis(500));
    // What was not used is not saved up.
    clock.advance(Duration::from_secs(60));
    assert_eq!(bandwidth.reserve(1_000, now()), Duration::ZERO);
    assert_eq!(bandwidth.reserve(0, now()), Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn bytes_a_second_are_limited_both_ways() {
    let (store, _) = limited(&StoreConfig {
        bytes_per_second_max: Some(Size(1 << 20)),
        ..StoreConfig::default()
    });
    let began = tokio::time::Instant::now();
    for name in ["a", "b"] {
        store.put(name, vec![7; 3 << 20].into()).await.unwrap();
    }
    store.get("a").await.unwrap();
    store.get("b").await.unwrap();
    // The machine's clock, which decides, hardly moves while the runtime's jumps: the second put waits for 3 s,
    // the first get for 6, the second for 9.
    let waited = began.elapsed();
    assert!(waited > Duration::from_secs(15), "{waited:?}");
    let stats = store.stats();
    assert_eq!((stats.bytes_written, stats.bytes_read), (6 << 20, 6 << 20));
    assert_eq!(stats.limit_waits, 3);
}

#[tokio::test]
async fn deletions_are_answered_one_by_one() {
    let (store, faults) = limited(&StoreConfig {
        attempts_max: 1,
        ..StoreConfig::default()
    });
    let names: Vec<String> = (0..2_500).map(|number| format!("o/{number:04}")).collect();
    for name in &names {
        store.put(name, body("x")).await.unwrap();
    }
    faults.add(Fault::new(Operation::Delete, "o/1234", Effect::Fail));
    let ended = store.delete_all(&names).await;
    assert_eq!(ended.len(), names.len());
    let failed: Vec<usize> = (0..names.len()).filter(|&at| ended[at].is_err()).collect();
    assert_eq!(failed, [1234]);
    let error = ended[1234].as_ref().unwrap_err();
    assert!(error.message().contains("o/1234"), "{error}");
    assert_eq!(store.stats().of(Operation::Delete).sent(), 3);
    assert_eq!(store.list("o").await.unwrap().len(), 1);
    faults.clear();
    assert!(store.delete_all(&names).await.iter().all(Result::is_ok));
    assert_eq!(store.list("o").await.unwrap(), []);
}
