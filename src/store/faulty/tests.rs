//! The script, over a store in memory.

use super::*;
use crate::{error::ErrorKind, store::Created};

fn store() -> (Store, Arc<Faults>) {
    Store::open("memory:///").unwrap().with_faults()
}

fn body(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

#[tokio::test]
async fn faults_match_operation_and_name_and_run_out() {
    let (store, faults) = store();
    faults.add(Fault::new(Operation::Put, "b/", Effect::Fail).times(2));
    store.put("a/1", body("x")).await.unwrap();
    for _ in 0..2 {
        let error = store.put("b/1", body("x")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert_eq!(store.size("b/1").await.unwrap(), None);
    }
    store.put("b/1", body("x")).await.unwrap();
    assert_eq!(faults.count(Operation::Put), 4);
    assert_eq!(faults.count(Operation::Get), 2);

    faults.add(Fault::new(Operation::List, "a", Effect::Fail));
    faults.add(Fault::new(Operation::Delete, "", Effect::Fail));
    assert!(store.list("a").await.unwrap_err().is_unavailable());
    assert!(store.list_folders("a").await.is_err());
    assert_eq!(store.list("b").await.unwrap().len(), 1);
    assert!(store.delete("b/1").await.is_err());
    faults.clear();
    store.delete("b/1").await.unwrap();
    assert_eq!(store.list("b").await.unwrap(), []);
}

#[tokio::test]
async fn lost_answers_and_torn_writes_take_effect() {
    let (store, faults) = store();
    faults.add(Fault::new(Operation::Create, "", Effect::LoseAnswer).times(1));
    assert!(store.create("a", body("mine")).await.is_err());
    assert_eq!(store.get("a").await.unwrap(), "mine");
    assert_eq!(
        store.create("a", body("yours")).await.unwrap(),
        Created::Exists
    );
    for reported in [false, true] {
        let torn = Effect::Truncate { bytes: 2, reported };
        faults.add(Fault::new(Operation::Put, "torn", torn).times(1));
        let put = store.put("torn", body("whole")).await;
        assert_eq!(put.is_err(), reported);
        assert_eq!(store.get("torn").await.unwrap(), "wh");
    }
    let short = Effect::Truncate {
        bytes: 1,
        reported: false,
    };
    faults.add(Fault::new(Operation::Get, "a", short).times(2));
    assert_eq!(store.get("a").await.unwrap(), "m");
    let parts = store.get_ranges("a", &[1..3, 0..1]).await.unwrap();
    assert_eq!(parts, ["i", "m"]);
    assert_eq!(store.get("a").await.unwrap(), "mine");
}

#[tokio::test]
async fn uploads_in_parts_meet_faults_when_completed() {
    let (store, faults) = store();
    let large = Bytes::from(vec![7; 9 << 20]);
    let effects = [
        (Effect::Fail, true, None),
        (Effect::LoseAnswer, true, Some(9 << 20)),
        (
            Effect::Truncate {
                bytes: 5,
                reported: false,
            },
            false,
            Some(5),
        ),
    ];
    for (at, (effect, fails, size)) in effects.into_iter().enumerate() {
        let name = format!("large-{at}");
        faults.add(Fault::new(Operation::Upload, &name, effect));
        let mut upload = store.upload(&name);
        upload.write(large.clone()).await.unwrap();
        assert_eq!(upload.finish().await.is_err(), fails, "{effect:?}");
        assert_eq!(store.size(&name).await.unwrap(), size, "{effect:?}");
    }
    assert_eq!(faults.count(Operation::Upload), 3);
}

#[tokio::test(start_paused = true)]
async fn delays_pass_and_blocks_hold_until_released() {
    let (store, faults) = store();
    let delay = Duration::from_secs(60);
    faults.add(Fault::new(Operation::Put, "a", Effect::Delay(delay)));
    faults.add(Fault::new(Operation::Put, "a", Effect::Block));
    faults.add(Fault::new(Operation::Put, "a", Effect::Fail));
    let put = tokio::spawn({
        let store = store.clone();
        async move { store.put("a", body("x")).await }
    });
    let mut seconds = 0;
    while faults.blocked() == 0 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        seconds += 1;
    }
    assert!(seconds >= 59 && !put.is_finished(), "{seconds}");
    faults.release();
    assert!(put.await.unwrap().is_err());
    assert_eq!(faults.blocked(), 0);
}
