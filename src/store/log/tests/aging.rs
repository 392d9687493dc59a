//! Old records: what an open reads, what is removed and when, and writers that sleep through it.

use std::sync::Mutex;

use super::*;
use crate::clock::Clock;

/// Two clocks that are moved apart.
#[derive(Debug, Default)]
struct TwoClocks(Mutex<(Duration, Duration)>);

impl TwoClocks {
    fn advance(&self, wall: Duration, monotonic: Duration) {
        let mut clocks = self.0.lock().unwrap();
        clocks.0 += wall;
        clocks.1 += monotonic;
    }
}

impl Clock for TwoClocks {
    fn unix_ms(&self) -> u64 {
        self.0.lock().unwrap().0.as_millis() as u64
    }

    fn monotonic(&self) -> Duration {
        self.0.lock().unwrap().1
    }
}

/// A log in memory, its faults, and a clock of its own for each writer.
struct Aging {
    store: Store,
    faults: Arc<Faults>,
    attempt: u128,
}

struct Writer {
    writer: LogWriter,
    clock: Arc<TwoClocks>,
}

impl Aging {
    fn new() -> Self {
        let (store, faults) = Store::open("memory:///").unwrap().with_faults();
        Self {
            store,
            faults,
            attempt: 0,
        }
    }

    fn log(&self, clock: &Arc<TwoClocks>) -> Log {
        let env = Env::seeded(clock.clone(), 1);
        Log::new(self.store.clone(), "catalog", env)
    }

    fn reader(&self) -> Log {
        self.log(&Arc::default())
    }

    async fn writer(&mut self) -> Writer {
        let clock = Arc::default();
        let attempt = self.next();
        let opened = LogWriter::open(self.log(&clock), || attempt).await;
        Writer {
            writer: opened.unwrap().0,
            clock,
        }
    }

    fn next(&mut self) -> u128 {
        self.attempt += 1;
        self.attempt
    }

    async fn append(&mut self, by: &mut Writer, kind: RecordKind, text: &str) -> Result<u64> {
        let attempt = self.next();
        by.writer.append(kind, body(text), attempt).await
    }

    async fn numbers(&self) -> Vec<u64> {
        let mut numbers = self.reader().numbers().await.unwrap();
        numbers.sort();
        numbers
    }
}

const DAY: Duration = Duration::from_secs(86_400);

#[tokio::test]
async fn an_open_reads_one_snapshot_and_the_edits_after_it() {
    let mut log = Aging::new();
    let mut writer = log.writer().await;
    for round in 0..3 {
        for edit in 0..40 {
            let text = format!("{round}/{edit}");
            let edit = log.append(&mut writer, RecordKind::Edit, &text).await;
            edit.unwrap();
        }
        let text = format!("{round}");
        let snapshot = log.append(&mut writer, RecordKind::Snapshot, &text).await;
        snapshot.unwrap();
    }
    for edit in 0..80 {
        let edit = format!("3/{edit}");
        let edit = log.append(&mut writer, RecordKind::Edit, &edit).await;
        edit.unwrap();
    }
    let counts = |faults: &Faults| {
        [Operation::List, Operation::Get].map(|operation| faults.count(operation))
    };
    let before = counts(&log.faults);
    let records = log.reader().read().await.unwrap();
    let after = counts(&log.faults);
    assert_eq!(bodies(&records)[..3], ["2", "3/0", "3/1"]);
    assert_eq!(records.len(), 81);
    assert_eq!((after[0] - before[0], after[1] - before[1]), (1, 81));

    // The edits are read side by side, but not all at once. The newest is number 204.
    let reader = log.reader();
    log.faults
        .add(Fault::new(Operation::Get, "0001", Effect::Block));
    let reading = tokio::spawn(async move { reader.read().await });
    while log.faults.blocked() < REQUESTS_MAX {
        tokio::task::yield_now().await;
    }
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!(log.faults.blocked(), REQUESTS_MAX);
    log.faults.release();
    assert_eq!(reading.await.unwrap().unwrap(), records);
}

#[tokio::test]
async fn old_records_are_removed_after_the_grace_and_not_before() {
    let mut log = Aging::new();
    let mut writer = log.writer().await;
    for text in ["a", "b"] {
        log.append(&mut writer, RecordKind::Edit, text)
            .await
            .unwrap();
    }
    log.append(&mut writer, RecordKind::Snapshot, "AB")
        .await
        .unwrap();
    log.append(&mut writer, RecordKind::Edit, "c")
        .await
        .unwrap();
    writer
        .clock
        // A wall clock that is set does not make records older.
        .advance(DAY, GRACE - Duration::from_millis(1));
    writer.writer.trim().await;
    assert_eq!(log.numbers().await, [1, 2, 3, 4, 5]);
    // A crash between the snapshot and the removal changes nothing for a reader.
    let records = log.reader().read().await.unwrap();
    assert_eq!(bodies(&records), ["AB", "c"]);

    // A failure is made up for.
    writer
        .clock
        .advance(Duration::ZERO, Duration::from_millis(1));
    let fail = Fault::new(Operation::Delete, "02.log", Effect::Fail).times(1);
    log.faults.add(fail);
    writer.writer.trim().await;
    writer.clock.advance(GRACE, GRACE);
    writer.writer.trim().await;
    assert_eq!(log.numbers().await, [4, 5]);
    assert_eq!(log.reader().read().await.unwrap(), records);

    // Nothing is asked for as long as there is nothing to remove.
    let before = log.faults.count(Operation::List);
    for _ in 0..3 {
        writer.clock.advance(DAY, DAY);
        writer.writer.trim().await;
    }
    assert_eq!(log.faults.count(Operation::List), before);

    // The next writer knows of none before it opens: the grace begins there.
    log.append(&mut writer, RecordKind::Snapshot, "ABC")
        .await
        .unwrap();
    let mut next = log.writer().await;
    next.clock.advance(GRACE / 2, GRACE / 2);
    next.writer.trim().await;
    assert_eq!(log.numbers().await, [4, 5, 6, 7]);
    next.clock.advance(GRACE / 2, GRACE / 2);
    next.writer.trim().await;
    assert_eq!(log.numbers().await, [6, 7]);
    assert_eq!(bodies(&log.reader().read().await.unwrap()), ["ABC", ""]);
}

/// A writer that was taken over, and sleeps while its successor removes the record that fences it.
async fn overtaken() -> (Aging, Writer) {
    let mut log = Aging::new();
    let mut asleep = log.writer().await;
    log.append(&mut asleep, RecordKind::Edit, "a")
        .await
        .unwrap();
    let mut awake = log.writer().await;
    log.append(&mut awake, RecordKind::Snapshot, "A")
        .await
        .unwrap();
    awake.clock.advance(GRACE, GRACE);
    awake.writer.trim().await;
    assert_eq!(log.numbers().await, [4]);
    (log, asleep)
}

#[tokio::test]
async fn a_writer_that_slept_does_not_believe_in_a_removed_record() {
    // Whichever of the clocks tells it.
    for (wall, monotonic) in [(DAY, Duration::ZERO), (Duration::ZERO, DAY)] {
        for kind in [RecordKind::Edit, RecordKind::Snapshot] {
            let (mut log, mut asleep) = overtaken().await;
            asleep.clock.advance(wall, monotonic);
            for _ in 0..2 {
                let error = log.append(&mut asleep, kind, "late").await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
                assert!(error.message().contains("04.log"), "{error}");
            }
            assert_eq!(bodies(&log.reader().read().await.unwrap()), ["A"]);
            // Nor does it believe so when the answer to its append was lost first.
            let (mut log, mut asleep) = overtaken().await;
            asleep.clock.advance(wall, monotonic);
            let lost = Fault::new(Operation::Create, "", Effect::LoseAnswer).times(1);
            log.faults.add(lost);
            let error = log.append(&mut asleep, kind, "late").await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
        }
        // Asking, or catching up, it finds out as well.
        let (_log, mut asleep) = overtaken().await;
        asleep.clock.advance(wall, monotonic);
        let error = asleep.writer.check_leads().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
        let error = asleep.writer.catch_up().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn while_a_listing_fails_a_writer_that_slept_believes_nothing() {
    let (mut log, mut asleep) = overtaken().await;
    asleep.clock.advance(DAY, DAY);
    log.faults
        .add(Fault::new(Operation::List, "", Effect::Fail));
    for _ in 0..2 {
        let error = log.append(&mut asleep, RecordKind::Edit, "late").await;
        assert!(error.unwrap_err().is_unavailable());
    }
    log.faults.clear();
    let error = log.append(&mut asleep, RecordKind::Edit, "late").await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Fenced);
}

#[tokio::test]
async fn a_writer_that_slept_and_still_leads_goes_on() {
    let mut log = Aging::new();
    let mut writer = log.writer().await;
    for text in ["a", "b"] {
        writer.clock.advance(DAY, Duration::ZERO);
        let lists = log.faults.count(Operation::List);
        log.append(&mut writer, RecordKind::Edit, text)
            .await
            .unwrap();
        assert_eq!(log.faults.count(Operation::List), lists + 1);
        writer.writer.check_leads().await.unwrap();
        // Now it knows the tail.
        log.append(&mut writer, RecordKind::Edit, "-")
            .await
            .unwrap();
        assert_eq!(log.faults.count(Operation::List), lists + 1);
    }
    let records = log.reader().read().await.unwrap();
    assert_eq!(bodies(&records), ["", "a", "-", "b", "-"]);
}

#[tokio::test]
async fn an_opener_that_slept_between_reading_and_claiming_reads_again() {
    let mut log = Aging::new();
    let mut old = log.writer().await;
    log.append(&mut old, RecordKind::Edit, "a").await.unwrap();
    let clock = Arc::<TwoClocks>::default();
    let opener = log.log(&clock);
    log.faults
        .add(Fault::new(Operation::Create, "03.log", Effect::Block).times(1));
    let opening = tokio::spawn(LogWriter::open(opener, {
        let mut attempt = 900;
        move || {
            attempt += 1;
            attempt
        }
    }));
    while log.faults.blocked() == 0 {
        tokio::task::yield_now().await;
    }
    // Meanwhile others take over, go on, and remove what the opener's claim would have met.
    let mut other = log.writer().await;
    log.append(&mut other, RecordKind::Snapshot, "A")
        .await
        .unwrap();
    other.clock.advance(GRACE, GRACE);
    other.writer.trim().await;
    clock.advance(DAY, DAY);
    log.faults.release();
    let (mut opened, records) = opening.await.unwrap().unwrap();
    assert_eq!((opened.epoch(), opened.last()), (Epoch(3), 5));
    assert_eq!(bodies(&records), ["A"]);
    let number = opened.append(RecordKind::Edit, body("b"), 77).await;
    assert_eq!(number.unwrap(), 6);
    let error = log.append(&mut other, RecordKind::Edit, "late").await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Fenced);
    assert_eq!(bodies(&log.reader().read().await.unwrap()), ["A", "", "b"]);
}

#[tokio::test]
async fn a_reader_whose_records_are_removed_begins_again() {
    let mut log = Aging::new();
    let mut writer = log.writer().await;
    log.append(&mut writer, RecordKind::Edit, "a")
        .await
        .unwrap();
    log.faults
        .add(Fault::new(Operation::Get, "01.log", Effect::Block).times(1));
    let reader = log.reader();
    let reading = tokio::spawn(async move { reader.read().await });
    while log.faults.blocked() == 0 {
        tokio::task::yield_now().await;
    }
    log.append(&mut writer, RecordKind::Snapshot, "A")
        .await
        .unwrap();
    writer.clock.advance(GRACE, GRACE);
    writer.writer.trim().await;
    assert_eq!(log.numbers().await, [3]);
    log.faults.release();
    assert_eq!(bodies(&reading.await.unwrap().unwrap()), ["A"]);
}
