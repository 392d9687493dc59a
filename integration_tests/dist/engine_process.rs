//! An engine in a process of its own, so that it can be killed: this very test program, run for the one
//! test `child` with what it needs in its environment. It prints the number of each batch that was
//! acknowledged; `killed in the middle` means that the parent kills it and believes those lines.

use std::{io::Write, path::Path, process::Stdio};

use futures::stream;
use siltstone::{
    config::{Bytes, CompactionMode, EngineConfig, WalMode},
    engine::{Engine, ImportOptions, Table},
    store::{
        Store,
        faulty::{Effect, Fault, Operation},
    },
    types::{TableOptions, TableSchema},
};
use tokio::{
    io::{AsyncBufReadExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    time::timeout,
};

use crate::{
    cluster::PATIENCE,
    support::{
        flights,
        flights::{Flights, KEY},
        url_of,
    },
};

const ROOT: &str = "TEST_ENGINE_ROOT";
const META: &str = "TEST_ENGINE_META";
const FLIGHTS: &str = "TEST_ENGINE_FLIGHTS";
const LOAD: &str = "TEST_ENGINE_LOAD";
const SKIP: &str = "TEST_ENGINE_SKIP";
const ACKNOWLEDGED: &str = "acknowledged ";

/// Rows of a batch that the process writes.
pub const BATCH_ROWS: usize = 500;

/// What there is to compact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// Small jobs all the time, while rows are written.
    Steady,
    /// The same, with the WAL on the object store.
    SteadyObjectWal,
    /// One job of many tasks, when all is written.
    OneBigJob,
    /// One import, in little memory, of which an acknowledgement tells how many batches it has taken.
    Import,
    /// Flushes whose commits wait for the store for ever.
    CommitsNothing,
}

impl Load {
    /// The configuration of an engine under this load; whoever opens the root after it uses the same.
    pub fn config(self, root: &Path, meta: Option<&str>) -> EngineConfig {
        let mut config = config(root, meta);
        if self == Self::SteadyObjectWal {
            config.wal.mode = WalMode::ObjectStore;
        }
        if self == Self::OneBigJob {
            config.compaction.l0_runs_trigger = 1_000;
            config.compaction.l0_runs_slowdown = 1_500;
            config.compaction.l0_runs_stop = 2_000;
        }
        config
    }

    /// The schema of the table of flights.
    pub fn schema(self, flights: &Flights) -> TableSchema {
        match self {
            Self::Steady | Self::SteadyObjectWal | Self::Import | Self::CommitsNothing => {
                flights.table_schema().unwrap()
            }
            Self::OneBigJob => {
                let columns = flights.rows().schema();
                TableSchema::new(columns, &KEY, Some(KEY[0]), TableOptions::default()).unwrap()
            }
        }
    }
}

fn config(root: &Path, meta: Option<&str>) -> EngineConfig {
    let mut config = EngineConfig::new(url_of(root));
    config.memory.memtable_bytes = Bytes(2 << 20);
    config.compaction.task_bytes_target = Bytes(64 << 10);
    match meta {
        Some(meta) => {
            config.compaction.mode = CompactionMode::Remote;
            config.compaction.remote.meta = vec![meta.to_owned()];
        }
        None => config.compaction.mode = CompactionMode::Local,
    }
    config
}

/// An engine that replays flights as fast as it can, then compacts.
pub struct EngineProcess {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    batches: usize,
}

impl EngineProcess {
    pub fn start(load: Load, root: &Path, meta: Option<&str>, flights: usize) -> Self {
        Self::resume(load, root, meta, flights, 0)
    }

    /// The same, but it writes to the table that is there, from batch `skip` on.
    pub fn resume(
        load: Load,
        root: &Path,
        meta: Option<&str>,
        flights: usize,
        skip: usize,
    ) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args([
                "--exact",
                "engine_process::child",
                "--ignored",
                "--nocapture",
            ])
            .env(ROOT, root)
            .env(LOAD, format!("{load:?}"))
            .env(FLIGHTS, flights.to_string())
            .env(SKIP, skip.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        if let Some(meta) = meta {
            command.env(META, meta);
        }
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self {
            child,
            lines,
            batches: skip,
        }
    }

    /// Waits until `batches` batches are acknowledged.
    pub async fn acknowledges(&mut self, batches: usize) {
        let waited = timeout(PATIENCE, async {
            while self.batches < batches {
                assert!(self.read_line().await, "the engine's process ended early");
            }
        });
        waited.await.expect("the engine's process is too slow");
    }

    /// `kill -9`; returns how many batches were acknowledged.
    pub async fn kill(mut self) -> usize {
        self.child.kill().await.unwrap();
        while self.read_line().await {}
        self.batches
    }

    /// Whether there was another line.
    async fn read_line(&mut self) -> bool {
        let Some(line) = self.lines.next_line().await.unwrap() else {
            return false;
        };
        self.batches = acknowledged(&line).unwrap_or(self.batches);
        true
    }
}

fn acknowledged(line: &str) -> Option<usize> {
    let (_, number) = line.split_once(ACKNOWLEDGED)?;
    number.trim().parse().ok()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "started by other tests, with what it needs in its environment"]
async fn child() {
    let root = std::env::var(ROOT).expect("started by another test");
    let meta = std::env::var(META).ok();
    let rows = std::env::var(FLIGHTS).unwrap().parse().unwrap();
    let load = match std::env::var(LOAD).unwrap().as_str() {
        "Steady" => Load::Steady,
        "SteadyObjectWal" => Load::SteadyObjectWal,
        "Import" => Load::Import,
        "CommitsNothing" => Load::CommitsNothing,
        _ => Load::OneBigJob,
    };
    let config = load.config(Path::new(&root), meta.as_deref());
    let (store, faults) = Store::open(&config.root).unwrap().with_faults();
    let engine = match load {
        Load::CommitsNothing => Engine::builder(config).store(store).open().await,
        _ => Engine::open(config).await,
    };
    let engine = engine.unwrap();
    let flights = flights(rows);
    let skip: usize = std::env::var(SKIP).unwrap().parse().unwrap();
    let table = match engine.tables().is_empty() {
        true => engine.create_table("flights", load.schema(&flights)).await,
        false => engine.table("flights"),
    };
    let table = table.unwrap();
    faults.add(Fault::new(Operation::Create, "manifest", Effect::Block));
    if load == Load::Import {
        import(&table, &flights).await;
    }
    let mut stdout = std::io::stdout();
    let batches = flights.replay(BATCH_ROWS).unwrap().enumerate();
    for (number, batch) in batches.skip(skip) {
        table.write(batch.unwrap()).await.unwrap();
        writeln!(stdout, "{ACKNOWLEDGED}{}", number + 1).unwrap();
        stdout.flush().unwrap();
    }
    table.compact().await.unwrap();
    // Until it is killed.
    std::future::pending::<()>().await;
}

/// Imports every state of every flight, and waits to be killed.
async fn import(table: &Table, flights: &Flights) {
    let taken = flights.replay(BATCH_ROWS).unwrap().enumerate();
    let batches = taken.map(|(number, batch)| {
        println!("{ACKNOWLEDGED}{}", number + 1);
        Ok(batch.unwrap())
    });
    let options = ImportOptions {
        memory_bytes: 256 << 10,
        ..ImportOptions::default()
    };
    table.import(stream::iter(batches), options).await.unwrap();
    std::future::pending::<()>().await;
}
