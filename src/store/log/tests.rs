//! Every case runs over memory and over local disk. Time is paused where delays are waited for.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;

use super::*;
use crate::{
    store::faulty::{Effect, Fault, Faults, Operation},
    types::Epoch,
};

mod aging;
mod following;

struct Fixture {
    store: Store,
    faults: Arc<Faults>,
    _dir: tempfile::TempDir,
}

fn fixtures() -> [Fixture; 2] {
    ["memory", "file"].map(|scheme| {
        let dir = tempfile::tempdir().unwrap();
        let url = match scheme {
            "memory" => "memory:///".to_owned(),
            _ => url::Url::from_directory_path(dir.path()).unwrap().into(),
        };
        let (store, faults) = Store::open(&url).unwrap().with_faults();
        Fixture {
            store,
            faults,
            _dir: dir,
        }
    })
}

impl Fixture {
    fn log(&self) -> Log {
        Log::new(self.store.clone(), "catalog", Env::default())
    }

    /// A writer whose claim has attempt id `claim`.
    async fn writer(&self, claim: u128) -> LogWriter {
        LogWriter::open(self.log(), || claim).await.unwrap().0
    }

    /// Puts a record in place as a request does that arrives late.
    async fn land(&self, record: &Record) {
        let name = layout::log_record("catalog", record.number);
        self.store.put(&name, record.encode()).await.unwrap();
    }
}

fn body(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn bodies(records: &[Record]) -> Vec<String> {
    let texts = records.iter();
    texts
        .map(|record| String::from_utf8(record.body.to_vec()).unwrap())
        .collect()
}

#[tokio::test]
async fn what_was_appended_is_read_from_the_newest_snapshot_on() {
    for fixture in fixtures() {
        assert_eq!(fixture.log().read().await.unwrap(), []);
        let mut writer = fixture.writer(1).await;
        assert_eq!((writer.epoch(), writer.last()), (Epoch(1), 1));
        for (attempt, kind, text) in [
            (2, RecordKind::Edit, "a"),
            (3, RecordKind::Snapshot, "A"),
            (4, RecordKind::Edit, "b"),
            (5, RecordKind::Snapshot, "AB"),
            (6, RecordKind::Edit, "c"),
        ] {
            let number = writer.append(kind, body(text), attempt).await.unwrap();
            assert_eq!(number, attempt as u64);
        }
        let records = fixture.log().read().await.unwrap();
        assert_eq!(bodies(&records), ["AB", "c"]);
        assert_eq!(records[0].kind, RecordKind::Snapshot);
        assert_eq!((records[1].number, records[1].attempt), (6, 6));
        assert_eq!(fixture.log().read_after(5).await.unwrap(), records[1..]);
        assert_eq!(fixture.log().read_after(6).await.unwrap(), []);

        let (second, before) = LogWriter::open(fixture.log(), || 7).await.unwrap();
        assert_eq!((second.epoch(), second.last()), (Epoch(2), 7));
        assert_eq!(before, records);
    }
}

#[tokio::test]
async fn an_older_writer_is_fenced_for_good() {
    for fixture in fixtures() {
        let mut older = fixture.writer(1).await;
        older.append(RecordKind::Edit, body("a"), 2).await.unwrap();
        let mut newer = fixture.writer(3).await;
        for attempt in 4..7 {
            let error = older.append(RecordKind::Edit, body("late"), attempt).await;
            let error = error.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
            assert!(error.message().contains("00000000000000000003.log"));
            newer
                .append(RecordKind::Edit, body("b"), attempt)
                .await
                .unwrap();
        }
        let records = fixture.log().read().await.unwrap();
        assert_eq!(bodies(&records), ["", "a", "", "b", "b", "b"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn racing_writers_put_exactly_one_record_at_each_number() {
    for fixture in fixtures() {
        let race = |task: u128| {
            let log = fixture.log();
            async move {
                let mut id = task << 64;
                let mut next_id = move || {
                    id += 1;
                    id
                };
                let mut writer = loop {
                    match LogWriter::open(log.clone(), &mut next_id).await {
                        Ok((writer, _)) => break writer,
                        Err(error) => assert_eq!(error.kind(), ErrorKind::Conflict),
                    }
                };
                let mut committed = Vec::new();
                loop {
                    let attempt = next_id();
                    match writer.append(RecordKind::Edit, Bytes::new(), attempt).await {
                        Ok(number) => committed.push((number, attempt)),
                        Err(error) => break assert_eq!(error.kind(), ErrorKind::Fenced),
                    }
                    if committed.len() == 5 {
                        break;
                    }
                    tokio::task::yield_now().await;
                }
                (writer.epoch(), committed)
            }
        };
        let tasks: Vec<_> = (1..=12).map(|task| tokio::spawn(race(task))).collect();
        let mut committed = BTreeMap::new();
        let mut epochs = Vec::new();
        for task in tasks {
            let (epoch, appended) = task.await.unwrap();
            epochs.push(epoch);
            committed.extend(
                appended
                    .into_iter()
                    .map(|(n, attempt)| (n, (epoch, attempt))),
            );
        }
        let records = fixture.log().read().await.unwrap();
        let found: BTreeMap<_, _> = records
            .iter()
            .filter(|record| record.kind == RecordKind::Edit)
            .map(|record| (record.number, (record.epoch, record.attempt)))
            .collect();
        assert_eq!(found, committed);
        assert!(records.is_sorted_by_key(|record| record.epoch));
        epochs.sort();
        epochs.dedup();
        assert_eq!(epochs.len(), 12, "no two writers share an epoch");
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_is_looked_up_before_it_is_believed_or_retried() {
    for fixture in fixtures() {
        let mut writer = fixture.writer(1).await;
        let creates = fixture.faults.count(Operation::Create);
        // Written, but not told: found by its attempt id, at once.
        let lost = Fault::new(Operation::Create, "catalog/", Effect::LoseAnswer).times(1);
        fixture.faults.add(lost);
        let number = writer.append(RecordKind::Edit, body("a"), 2).await;
        assert_eq!(number.unwrap(), 2);
        assert_eq!(fixture.faults.count(Operation::Create), creates + 1);
        // Written, and not even the look-up answers: the second try meets our own record.
        let lost = Fault::new(Operation::Create, "catalog/", Effect::LoseAnswer).times(1);
        fixture.faults.add(lost);
        fixture
            .faults
            .add(Fault::new(Operation::Get, "catalog/", Effect::Fail).times(1));
        let number = writer.append(RecordKind::Edit, body("b"), 3).await;
        assert_eq!(number.unwrap(), 3);
        // Not written: tried again.
        fixture
            .faults
            .add(Fault::new(Operation::Create, "catalog/", Effect::Fail).times(3));
        let number = writer.append(RecordKind::Edit, body("c"), 4).await;
        assert_eq!(number.unwrap(), 4);
        let records = fixture.log().read().await.unwrap();
        assert_eq!(bodies(&records), ["", "a", "b", "c"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_log_is_taken_over_from_a_writer_that_never_rests() {
    for fixture in fixtures() {
        let env = Env::following_tokio(Duration::from_millis(1));
        for operation in [Operation::Create, Operation::Get, Operation::List] {
            let delay = Effect::Delay(Duration::from_millis(10));
            fixture.faults.add(Fault::new(operation, "", delay));
        }
        let log = Log::new(fixture.store.clone(), "catalog", env.clone());
        let (old, _) = LogWriter::open(log.clone(), || env.random()).await.unwrap();
        let mut old = old.resting();
        let appending = tokio::spawn(async move {
            for attempt in 0.. {
                if let Err(error) = old.append(RecordKind::Edit, body("old"), attempt).await {
                    return (old.last(), error);
                }
            }
            unreachable!("it is overtaken");
        });
        let (new, records) = LogWriter::open(log, || env.random()).await.unwrap();
        let (last, error) = appending.await.unwrap();
        assert_eq!(error.kind(), ErrorKind::Fenced);
        assert_eq!(new.last(), last + 1);
        let numbers: Vec<u64> = records.iter().map(|record| record.number).collect();
        assert_eq!(numbers, (1..=last).collect::<Vec<_>>());
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_unavailable_and_the_next_append_settles() {
    for fixture in fixtures() {
        let mut writer = fixture.writer(1).await;
        let creates = fixture.faults.count(Operation::Create);
        let fail = Fault::new(Operation::Create, "", Effect::Fail);
        fixture.faults.add(fail);
        let error = writer.append(RecordKind::Edit, body("never"), 2).await;
        let error = error.unwrap_err();
        assert!(error.is_unavailable());
        assert!(error.message().contains("catalog/00000000000000000002.log"));
        let tried = fixture.faults.count(Operation::Create) - creates;
        assert_eq!(tried, u64::from(APPEND_ATTEMPTS_MAX));
        fixture.faults.clear();
        // It is not there: the next append takes its number.
        let number = writer.append(RecordKind::Edit, body("a"), 3).await;
        assert_eq!(number.unwrap(), 2);

        // It is there, although every answer was lost.
        for operation in [Operation::Create, Operation::Get] {
            fixture
                .faults
                .add(Fault::new(operation, "", Effect::LoseAnswer));
        }
        let error = writer.append(RecordKind::Edit, body("b"), 4).await;
        assert!(error.unwrap_err().is_unavailable());
        // While nothing answers, nothing is settled.
        let error = writer.append(RecordKind::Edit, body("x"), 5).await;
        assert!(error.unwrap_err().is_unavailable());
        fixture.faults.clear();
        let error = writer.append(RecordKind::Edit, body("c"), 6).await;
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Conflict);
        assert_eq!(bodies(&writer.catch_up().await.unwrap()), ["b"]);
        assert_eq!(writer.last(), 3);
        let number = writer.append(RecordKind::Edit, body("c"), 7).await;
        assert_eq!(number.unwrap(), 4);
        let records = fixture.log().read().await.unwrap();
        assert_eq!(bodies(&records), ["", "a", "b", "c"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_arrives_late_is_known_as_ours() {
    for fixture in fixtures() {
        let mut writer = fixture.writer(1).await;
        let late = |number, attempt| Record {
            number,
            kind: RecordKind::Edit,
            epoch: Epoch(1),
            attempt,
            base: 1,
            body: body("late"),
        };
        // It lands between the look-up and the next create.
        fixture
            .faults
            .add(Fault::new(Operation::Create, "", Effect::Fail));
        let error = writer.append(RecordKind::Edit, body("late"), 2).await;
        assert!(error.unwrap_err().is_unavailable());
        fixture.faults.clear();
        fixture
            .faults
            .add(Fault::new(Operation::Create, "", Effect::Block));
        let land = async {
            while fixture.faults.blocked() == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            fixture.land(&late(2, 2)).await;
            fixture.faults.release();
        };
        let (error, ()) = tokio::join!(writer.append(RecordKind::Edit, body("a"), 3), land);
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
        assert!(error.message().contains("ours after all"), "{error}");
        assert_eq!(bodies(&writer.catch_up().await.unwrap()), ["late"]);
        let number = writer.append(RecordKind::Edit, body("a"), 4).await;
        assert_eq!(number.unwrap(), 3);

        // It lands after another append has given up, too.
        fixture
            .faults
            .add(Fault::new(Operation::Create, "", Effect::Fail));
        for attempt in [5, 6] {
            let error = writer.append(RecordKind::Edit, body("late"), attempt).await;
            assert!(error.unwrap_err().is_unavailable());
        }
        fixture.faults.clear();
        fixture.land(&late(4, 5)).await;
        let error = writer.append(RecordKind::Edit, body("b"), 7).await;
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Conflict);
        writer.catch_up().await.unwrap();
        let number = writer.append(RecordKind::Edit, body("b"), 8).await;
        assert_eq!(number.unwrap(), 5);
    }
}

#[tokio::test(start_paused = true)]
async fn an_append_given_up_by_its_caller_is_settled() {
    for fixture in fixtures() {
        let mut writer = fixture.writer(1).await;
        let hour = Duration::from_secs(3600);
        fixture
            .faults
            .add(Fault::new(Operation::Create, "", Effect::LoseAnswer));
        fixture
            .faults
            .add(Fault::new(Operation::Get, "", Effect::Delay(hour)));
        let append = writer.append(RecordKind::Edit, body("a"), 2);
        assert!(tokio::time::timeout(hour / 2, append).await.is_err());
        fixture.faults.clear();
        let error = writer.append(RecordKind::Edit, body("b"), 3).await;
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Conflict);
        assert_eq!(bodies(&writer.catch_up().await.unwrap()), ["a"]);
        let number = writer.append(RecordKind::Edit, body("b"), 4).await;
        assert_eq!(number.unwrap(), 3);
        let records = fixture.log().read().await.unwrap();
        assert_eq!(bodies(&records), ["", "a", "b"]);
    }
}

/// Whoever finds its own record after all must not step over what a newer writer has put behind it.
#[tokio::test]
async fn an_append_in_doubt_does_not_lead_past_a_takeover() {
    for fixture in fixtures() {
        let mut old = fixture.writer(1).await;
        let lost = [Operation::Create, Operation::Get];
        for (operation, effect) in lost.into_iter().zip([Effect::LoseAnswer, Effect::Fail]) {
            fixture.faults.add(Fault::new(operation, "", effect));
        }
        let error = old.append(RecordKind::Edit, body("a"), 2).await;
        assert!(error.unwrap_err().is_unavailable());
        fixture.faults.clear();
        let mut new = fixture.writer(100).await;
        new.append(RecordKind::Edit, body("c"), 101).await.unwrap();
        let error = old.append(RecordKind::Edit, body("b"), 3).await;
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Conflict);
        for _ in 0..2 {
            let error = old.catch_up().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Fenced);
        }
        let number = new.append(RecordKind::Edit, body("d"), 102).await.unwrap();
        assert_eq!(number, 5);
        let records = fixture.log().read().await.unwrap();
        assert_eq!(bodies(&records), ["", "a", "", "c", "d"]);
    }
}

#[tokio::test]
async fn damage_is_corrupt_and_names_the_object() {
    for fixture in fixtures() {
        let mut writer = fixture.writer(1).await;
        for attempt in 2..5 {
            writer
                .append(RecordKind::Edit, body("edit"), attempt)
                .await
                .unwrap();
        }
        let name = layout::log_record("catalog", 3);
        let good = fixture.store.get(&name).await.unwrap();
        let mut bad = Vec::new();
        bad.extend((0..good.len()).map(|length| good.slice(..length)));
        bad.extend((0..good.len()).map(|at| {
            let mut bytes = good.to_vec();
            bytes[at] ^= 0x10;
            bytes.into()
        }));
        bad.push(Bytes::from([&good[..], b"x"].concat()));
        for bytes in bad {
            fixture.store.put(&name, bytes.clone()).await.unwrap();
            let error = fixture.log().read().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            assert!(error.message().contains(&name), "{error}");
            let error = LogWriter::open(fixture.log(), || 9).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        }
        let mut newer = good.to_vec();
        newer[8] = 2;
        fixture.store.put(&name, newer.into()).await.unwrap();
        let error = fixture.log().read().await.unwrap_err();
        assert!(error.message().contains("format version 2"), "{error}");
        assert!(error.message().contains(&name), "{error}");

        fixture.store.delete(&name).await.unwrap();
        let error = fixture.log().read().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.message().contains(&name), "{error}");
        fixture.store.put(&name, good).await.unwrap();
        fixture.log().read().await.unwrap();
        fixture
            .store
            .delete(&layout::log_record("catalog", 1))
            .await
            .unwrap();
        let error = fixture.log().read().await.unwrap_err();
        assert!(error.message().contains("01.log is missing"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_torn_record_of_our_own_is_corrupt_not_unavailable() {
    for fixture in fixtures() {
        let mut writer = fixture.writer(1).await;
        let torn = Effect::Truncate {
            bytes: 17,
            reported: true,
        };
        fixture.faults.add(Fault::new(Operation::Create, "", torn));
        let error = writer.append(RecordKind::Edit, body("torn"), 2).await;
        let error = error.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.message().contains("00000000000000000002.log"));
    }
}

#[test]
fn version_1_stays_readable() {
    let record = Record {
        number: 7,
        kind: RecordKind::Edit,
        epoch: Epoch(3),
        attempt: 0x0123_4567_89ab_cdef_0011_2233_4455_6677,
        base: 5,
        body: body("the body"),
    };
    let golden = crate::golden::check("log-record-v1.bin", &record.encode());
    assert_eq!(Record::decode("golden", 7, &golden).unwrap(), record);
}
