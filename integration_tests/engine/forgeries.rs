//! Wrong outcomes of compaction jobs, each refused by the clause that it breaks: nothing is committed, the inputs
//! stay and are left alone for a while, and an honest attempt succeeds later.

use std::sync::Arc;

use async_trait::async_trait;
use siltstone::{
    clock::Env,
    compaction::{
        Capacity, CompactionContext, CompactionJob, CompactionOutcome, Compactor, LocalCompactor,
        TaskOutcome,
    },
    config::{Bytes, EngineConfig, WalMode},
    engine::{Engine, ScanRequest, Table},
    error::Result,
    store::{Store, layout},
    types::{Key, KeyRange, Seq, SstId, SstMeta},
};

use crate::support::{
    Reading, eventually, one_second_windows, quiet_config, reading_keys, reading_rows, readings,
    readings_schema, scan,
};

/// What a forger does to a job before it is run, and to its outcome afterwards.
#[derive(Clone, Copy)]
enum Forgery {
    Job(fn(&mut CompactionJob)),
    Outcome(fn(&mut CompactionOutcome)),
    /// The object of this output is deleted.
    Missing,
    /// The object of this output becomes shorter.
    Torn,
}

struct Forger {
    honest: LocalCompactor,
    store: Store,
    forgery: Forgery,
}

#[async_trait]
impl Compactor for Forger {
    async fn compact(
        &self,
        job: Arc<CompactionJob>,
        context: CompactionContext,
    ) -> Result<CompactionOutcome> {
        let mut forged = job.as_ref().clone();
        if let Forgery::Job(forge) = self.forgery {
            forge(&mut forged);
        }
        let mut outcome = self.honest.compact(Arc::new(forged), context).await?;
        assert!(outcome.parts.len() >= 4, "{} parts", outcome.parts.len());
        let tasks = outcome.parts.iter().filter(|part| part.part == 0);
        assert!(tasks.count() >= 2);
        let object = layout::sst(job.table, output(&mut outcome).id);
        match self.forgery {
            Forgery::Job(_) => {}
            Forgery::Outcome(forge) => forge(&mut outcome),
            Forgery::Missing => self.store.delete(&object).await?,
            Forgery::Torn => {
                let body = self.store.get(&object).await?;
                self.store.put(&object, body.slice(1..)).await?;
            }
        }
        Ok(outcome)
    }

    fn capacity(&self) -> Capacity {
        self.honest.capacity()
    }

    fn kind(&self) -> &'static str {
        "forger"
    }
}

fn part(outcome: &mut CompactionOutcome) -> &mut TaskOutcome {
    &mut outcome.parts[1]
}

fn output(outcome: &mut CompactionOutcome) -> &mut SstMeta {
    &mut part(outcome).outputs[0]
}

/// Says that a part wrote so many rows more, or fewer, in every place where its rows are written down.
fn claim_rows(outcome: &mut CompactionOutcome, change: i64) {
    let hash = 12_345;
    let part = part(outcome);
    let claim = |rows: &mut u64, sum: &mut u64| {
        *rows = rows.checked_add_signed(change).unwrap();
        *sum = sum.wrapping_add(hash);
    };
    claim(&mut part.written.rows, &mut part.written.hash);
    let sst = &mut part.outputs[0];
    claim(&mut sst.rows, &mut sst.rows_hash);
}

const FORGERIES: &[(&str, &str, Forgery)] = &[
    (
        "a row is lost",
        "balance",
        Forgery::Outcome(|outcome| claim_rows(outcome, -1)),
    ),
    (
        "a row is doubled",
        "balance",
        Forgery::Outcome(|outcome| claim_rows(outcome, 1)),
    ),
    (
        "a row was never read",
        "inputs",
        Forgery::Outcome(|outcome| {
            claim_rows(outcome, -1);
            let part = part(outcome);
            part.read.rows -= 1;
            part.read.hash = part.read.hash.wrapping_add(12_345);
        }),
    ),
    (
        "a hidden row is counted as written",
        "present",
        Forgery::Outcome(|outcome| {
            claim_rows(outcome, 1);
            let part = part(outcome);
            part.shadowed.rows -= 1;
            part.shadowed.hash = part.shadowed.hash.wrapping_sub(12_345);
        }),
    ),
    (
        "hidden rows come back",
        "versions",
        Forgery::Job(|job| job.retention.read_points = (1..3).map(Seq).collect()),
    ),
    (
        "tombstones stay",
        "place",
        Forgery::Job(|job| job.retention.drop_tombstones = false),
    ),
    (
        "rows expire that need not",
        "retention",
        Forgery::Job(|job| job.retention.expiry = Some(10)),
    ),
    (
        "a count is wrong",
        "outputs",
        Forgery::Outcome(|outcome| output(outcome).rows += 1),
    ),
    (
        "a hash is wrong",
        "outputs",
        Forgery::Outcome(|outcome| output(outcome).rows_hash ^= 1),
    ),
    (
        "a number of dropped rows is wrong",
        "balance",
        Forgery::Outcome(|outcome| part(outcome).shadowed.rows += 1),
    ),
    (
        "an output reaches out of its range",
        "place",
        Forgery::Outcome(|outcome| {
            let first = outcome.parts[0].outputs[0].key_min.clone();
            output(outcome).key_min = first;
        }),
    ),
    (
        "an output is of another level",
        "place",
        Forgery::Outcome(|outcome| output(outcome).level = 2),
    ),
    (
        "an output has seqs that no input has",
        "place",
        Forgery::Outcome(|outcome| output(outcome).seq_max.0 += 1_000),
    ),
    (
        "outputs are out of order",
        "place",
        Forgery::Outcome(|outcome| {
            let twin = SstMeta {
                rows: 0,
                rows_hash: 0,
                ..output(outcome).clone()
            };
            part(outcome).outputs.push(twin);
        }),
    ),
    (
        "parts are out of order",
        "tasks",
        Forgery::Outcome(|outcome| outcome.parts.swap(0, 1)),
    ),
    (
        "a part is missing",
        "tasks",
        Forgery::Outcome(|outcome| drop(outcome.parts.remove(1))),
    ),
    (
        "the last part is missing",
        "tasks",
        Forgery::Outcome(|outcome| drop(outcome.parts.pop())),
    ),
    (
        "a part is there twice",
        "tasks",
        Forgery::Outcome(|outcome| {
            let part = part(outcome).clone();
            outcome.parts.insert(1, part);
        }),
    ),
    (
        "there is a gap between parts",
        "tasks",
        Forgery::Outcome(|outcome| {
            let start = part(outcome).range.start.as_ref().map(Key::successor);
            part(outcome).range.start = start;
        }),
    ),
    (
        "parts overlap",
        "tasks",
        Forgery::Outcome(|outcome| {
            part(outcome).range = KeyRange {
                start: None,
                ..part(outcome).range.clone()
            };
        }),
    ),
    (
        "a part is of another task",
        "tasks",
        Forgery::Outcome(|outcome| {
            let own = part(outcome).task;
            let other = outcome.parts.iter().find(|part| part.task != own);
            part(outcome).task = other.unwrap().task;
        }),
    ),
    (
        "a part is of another job",
        "tasks",
        Forgery::Outcome(|outcome| {
            let job = siltstone::types::JobId::from_parts(1, 1);
            part(outcome).task.job = job;
        }),
    ),
    (
        "an output is of another attempt",
        "attempt",
        Forgery::Outcome(|outcome| part(outcome).token.0 += 1),
    ),
    (
        "an output has the name of another",
        "attempt",
        Forgery::Outcome(|outcome| {
            let first = outcome.parts[0].outputs[0].id;
            output(outcome).id = first;
        }),
    ),
    (
        "an output is a flushed sst",
        "attempt",
        Forgery::Outcome(|outcome| output(outcome).id = SstId::flushed(1, 1)),
    ),
    ("an object is missing", "present", Forgery::Missing),
    ("an object is torn", "present", Forgery::Torn),
    (
        "an object has another size",
        "present",
        Forgery::Outcome(|outcome| output(outcome).bytes += 1),
    ),
];

fn config() -> EngineConfig {
    let mut config = quiet_config("memory:///");
    config.wal.mode = WalMode::None;
    // Tasks and parts, from small inputs.
    config.compaction.task_bytes_target = Bytes(8 << 10);
    config.compaction.sst_bytes_target = Bytes(1_000);
    config
}

/// Three level-0 runs, the first of which has every key, and one of deletes that meet no row; all in one window.
async fn fill(table: &Table) {
    for run in 0..3i64 {
        let keys = (300 * run..1_000).flat_map(|at| (0..60).map(move |id| (at, Some(id))));
        let rows: Vec<Reading> = keys.map(|(at, id)| (at, id, Some(at * run))).collect();
        table.write(readings(&rows)).await.unwrap();
        table.flush().await.unwrap();
    }
    let keys: Vec<_> = (0..1_000).map(|at| (at, Some(99))).collect();
    table.delete(reading_keys(&keys)).await.unwrap();
    table.flush().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_outcome_is_refused_by_the_clause_it_breaks() {
    let store = Store::open("memory:///").unwrap();
    let engine = Engine::builder(config()).store(store.clone()).open();
    let engine = engine.await.unwrap();
    let schema = readings_schema(one_second_windows());
    let table = engine.create_table("readings", schema).await.unwrap();
    fill(&table).await;
    let folder = layout::table(table.stats().id);
    let objects = async |part: &str| {
        let objects = store.list(&format!("{folder}/{part}")).await.unwrap();
        objects.len()
    };
    let before = reading_rows(&scan(&table, ScanRequest::all()).await);
    assert_eq!(before.len(), 60_000);
    for &(what, clause, forgery) in FORGERIES {
        let honest = LocalCompactor::new(store.clone(), &config().compaction, Env::default());
        engine.set_compactor(Some(Arc::new(Forger {
            honest,
            store: store.clone(),
            forgery,
        })));
        let error = table.compact().await.unwrap_err().to_string();
        let refused = format!("proof clause {clause} fails");
        assert!(error.contains(&refused), "{what}: {error}");
        eventually("the job is given up", async || table.stats().jobs == 0).await;
        let stats = table.stats();
        assert_eq!(
            stats.ssts_by_level.get(&0),
            Some(&4),
            "{what}: the inputs stay"
        );
        let compaction = engine.stats().compaction;
        assert_eq!(compaction.ssts_quarantined, 4, "{what}");
        eventually("what the refused job wrote is deleted", async || {
            objects("sst").await == 4 && objects("results").await == 0
        })
        .await;
    }
    assert_eq!(
        reading_rows(&scan(&table, ScanRequest::all()).await),
        before
    );
    let counted = engine.stats().compaction.proof_failures;
    for clause in FORGERIES.iter().map(|(_, clause, _)| *clause) {
        let forged = FORGERIES.iter().filter(|forgery| forgery.1 == clause);
        // What is left alone may have been tried once more by itself.
        assert!(counted[clause] >= forged.count() as u64, "{counted:?}");
    }
    // The next attempt is another job, and an honest one succeeds.
    engine.set_compactor(None);
    table.compact().await.unwrap();
    assert_eq!(engine.stats().compaction.ssts_quarantined, 0);
    assert_eq!(
        reading_rows(&scan(&table, ScanRequest::all()).await),
        before
    );
    engine.close().await.unwrap();
}
