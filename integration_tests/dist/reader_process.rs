//! A reader in a process of its own: this very test program, run for the one test `child`, which does what its
//! parent says, line by line. Meanwhile an engine in the parent's process compacts, and deletes without any grace.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::Stdio,
};

use arrow::array::RecordBatch;
use futures::StreamExt;
use siltstone::{
    config::{EngineConfig, Millis},
    engine::{CheckpointKind, Engine, ReaderTable, ScanRequest, ScanStream, Table},
};
use tempfile::{TempDir, tempdir};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::timeout,
};

use crate::{
    cluster::PATIENCE,
    support::{
        Reading, eventually, quiet_config, reading_rows, readings, small_engine, sst_files, url_of,
    },
};

const ROOT: &str = "TEST_READER_ROOT";
const LIFETIME_MS: &str = "TEST_READER_LIFETIME_MS";
const ANSWER: &str = "answer: ";

/// Windows of the table, with an SST each.
const WINDOWS: i64 = 24;
/// Rows of a window.
const ROWS: i64 = 100;
/// A checkpoint of a reader that is not heard of any more ends after a minute.
const LONG: Millis = Millis::secs(60);

/// What the rows of a scan add up to: how many there are, and the least and greatest of their values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    rows: usize,
    values: (i64, i64),
}

impl Seen {
    fn of(batches: &[RecordBatch]) -> Self {
        let rows: Vec<Reading> = batches.iter().flat_map(reading_rows).collect();
        assert!(
            rows.is_sorted_by_key(|row| (row.0, row.1)),
            "rows are out of order"
        );
        let values = || rows.iter().map(|row| row.2.unwrap());
        Self {
            rows: rows.len(),
            values: (values().min().unwrap(), values().max().unwrap()),
        }
    }

    /// Every row of the table, all of this round.
    fn whole(round: i64) -> Self {
        Self {
            rows: (WINDOWS * ROWS) as usize,
            values: (round, round),
        }
    }

    fn parse(text: &str) -> Self {
        let numbers: Vec<i64> = text
            .split(' ')
            .map(|number| number.parse().unwrap())
            .collect();
        Self {
            rows: numbers[0] as usize,
            values: (numbers[1], numbers[2]),
        }
    }
}

impl std::fmt::Display for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {}", self.rows, self.values.0, self.values.1)
    }
}

/// The reader's process, as its parent sees it.
struct ReaderProcess {
    child: Child,
    orders: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl ReaderProcess {
    fn start(root: &Path, lifetime: Millis) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "reader_process::child",
                "--ignored",
                "--nocapture",
            ])
            .env(ROOT, root)
            .env(LIFETIME_MS, lifetime.0.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Self {
            orders: child.stdin.take().unwrap(),
            lines: BufReader::new(child.stdout.take().unwrap()).lines(),
            child,
        }
    }

    /// Has it do something; its answer.
    async fn ask(&mut self, order: &str) -> String {
        let order = format!("{order}\n");
        self.orders.write_all(order.as_bytes()).await.unwrap();
        let answered = timeout(PATIENCE, async {
            loop {
                let line = self.lines.next_line().await.unwrap();
                let line =
                    line.unwrap_or_else(|| panic!("the reader's process ended at {order:?}"));
                if let Some((_, answer)) = line.split_once(ANSWER) {
                    return answer.to_owned();
                }
            }
        });
        answered.await.expect("the reader's process is too slow")
    }

    async fn sees(&mut self, order: &str) -> Seen {
        Seen::parse(&self.ask(order).await)
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "started by other tests, with what it needs in its environment"]
async fn child() {
    let root = std::env::var(ROOT).expect("started by another test");
    let mut config = EngineConfig::new(url_of(Path::new(&root)));
    config.reader.refresh = Millis(20);
    config.reader.checkpoint_lifetime =
        Millis(std::env::var(LIFETIME_MS).unwrap().parse().unwrap());
    // What it has not read yet it must find in the store.
    let reader = Engine::open_reader(config).await.unwrap();
    let table = reader.table("readings").await.unwrap();
    let mut begun: Option<(RecordBatch, ScanStream)> = None;
    // The reader's own work goes on in other threads.
    for order in std::io::stdin().lines() {
        let answer = match order.unwrap().as_str() {
            "begin" => {
                let mut scan = table.scan(ScanRequest::all()).await.unwrap();
                let first = scan.next().await.unwrap().unwrap();
                let rows = first.num_rows();
                begun = Some((first, scan));
                rows.to_string()
            }
            "go on" => {
                let (first, rest) = begun.take().expect("a scan was begun");
                let rest = rest.collect().await.unwrap();
                Seen::of(&[&[first], &rest[..]].concat()).to_string()
            }
            "look" => look(&table).await.to_string(),
            "close" => {
                reader.close().await.unwrap();
                "closed".to_owned()
            }
            other => panic!("what is {other:?}?"),
        };
        let mut stdout = std::io::stdout();
        writeln!(stdout, "{ANSWER}{answer}").unwrap();
        stdout.flush().unwrap();
    }
}

async fn look(table: &ReaderTable) -> Seen {
    table.refresh().await.unwrap();
    let scan = table.scan(ScanRequest::all()).await.unwrap();
    Seen::of(&scan.collect().await.unwrap())
}

/// An engine that deletes without a grace, and its table, in which every row is of round 0.
async fn first_round() -> (TempDir, Engine, Table) {
    let dir = tempdir().unwrap();
    let mut config = quiet_config(&url_of(dir.path()));
    config.gc.grace = Millis(0);
    let (engine, table) = small_engine(config).await;
    write(&table, 0).await;
    (dir, engine, table)
}

/// Every row anew.
async fn write(table: &Table, round: i64) {
    let rows = (0..WINDOWS * ROWS).map(|at| (at * 1_000 / ROWS, Some(1), Some(round)));
    table
        .write(readings(&rows.collect::<Vec<_>>()))
        .await
        .unwrap();
    table.flush().await.unwrap();
}

/// Waits until so many SSTs are obsolete and there, because checkpoints hold them, and no others.
async fn holds(table: &Table, ssts: u64) {
    eventually("what is obsolete and not held is deleted", || async {
        let stats = table.stats();
        (stats.obsolete_ssts, stats.obsolete_ssts_held) == (ssts, ssts)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn another_process_reads_on_while_an_engine_compacts_and_deletes() {
    let (dir, engine, table) = first_round().await;
    let first = sst_files(dir.path(), &table);
    assert_eq!(first.len() as i64, WINDOWS);
    let mut reader = ReaderProcess::start(dir.path(), LONG);
    let rows: usize = reader.ask("begin").await.parse().unwrap();
    assert!(rows < (WINDOWS * ROWS) as usize / 4, "{rows} rows at once");
    let held = table.checkpoints().await.unwrap();
    let is_readers = |kind| kind == CheckpointKind::Reader;
    assert!(held.len() == 1 && is_readers(held[0].kind), "{held:?}");

    // All that the scan needs is replaced, and would be gone.
    write(&table, 1).await;
    table.compact().await.unwrap();
    engine.collect_garbage().await.unwrap();
    let are_there = |ssts: &[PathBuf]| ssts.iter().filter(|sst| sst.exists()).count();
    assert_eq!(are_there(&first), first.len());
    assert!(table.stats().obsolete_ssts_held >= first.len() as u64);
    assert_eq!(reader.sees("go on").await, Seen::whole(0));

    // It follows, and lets go of what it does not read any more.
    assert_eq!(reader.sees("look").await, Seen::whole(1));
    holds(&table, 0).await;
    assert_eq!(are_there(&first), 0);

    // All at the same time.
    let mut last = 1;
    for round in 2..7 {
        let compacted = async {
            write(&table, round).await;
            table.compact().await.unwrap();
            engine.collect_garbage().await.unwrap();
        };
        let looked = async {
            for _ in 0..3 {
                let seen = reader.sees("look").await;
                let of_round = seen.values.0;
                assert!(
                    (last..=round).contains(&of_round),
                    "{seen} after round {last}"
                );
                assert_eq!(seen, Seen::whole(of_round));
                last = of_round;
            }
        };
        tokio::join!(compacted, looked);
    }
    assert_eq!(reader.sees("look").await, Seen::whole(6));
    assert_eq!(reader.ask("close").await, "closed");
    assert_eq!(table.checkpoints().await.unwrap(), []);
    holds(&table, 0).await;
    engine.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_reader_held_is_deleted_in_the_end() {
    let (dir, engine, table) = first_round().await;
    let first = sst_files(dir.path(), &table);
    let mut reader = ReaderProcess::start(dir.path(), Millis::secs(3));
    reader.ask("begin").await;
    reader.child.kill().await.unwrap();
    assert_eq!(table.checkpoints().await.unwrap().len(), 1);
    write(&table, 1).await;
    table.compact().await.unwrap();
    holds(&table, 0).await;
    assert!(first.iter().all(|sst| !sst.exists()));
    engine.close().await.unwrap();
}
