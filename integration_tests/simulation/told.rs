//! What is told of a simulation.

use std::{collections::BTreeMap, fmt, sync::Mutex, time::Duration};

use tokio::time::Instant;
use tracing_subscriber::{
    EnvFilter,
    fmt::{format::Writer, time::FormatTime},
};

/// When the simulation of this process began.
static BEGAN: Mutex<Option<Instant>> = Mutex::new(None);

/// The simulation begins.
pub fn begin(now: Instant) {
    *BEGAN.lock().unwrap() = Some(now);
}

/// Logs what `RUST_LOG` asks for, with the simulation's time.
pub fn log() {
    let logged = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_timer(SimulatedTime);
    logged.init();
}

struct SimulatedTime;

impl FormatTime for SimulatedTime {
    fn format_time(&self, writer: &mut Writer<'_>) -> fmt::Result {
        let began = *BEGAN.lock().unwrap();
        let elapsed = began.map_or(Duration::ZERO, |began| began.elapsed());
        write!(writer, "{:10.3}", elapsed.as_secs_f64())
    }
}

/// What happened in a simulation.
#[derive(Default)]
pub struct Told {
    pub events: Vec<String>,
    pub counts: BTreeMap<String, u64>,
}

impl Told {
    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Self) {
        for (what, count) in &other.counts {
            *self.counts.entry(what.clone()).or_default() += count;
        }
    }

    pub fn summary(&self) -> String {
        let counts = self.counts.iter();
        let counts = counts.map(|(what, count)| format!("{what} {count}"));
        counts.collect::<Vec<_>>().join(", ")
    }

    /// That the seeds together met what they are for.
    pub fn check_that_it_was_hard(&self) {
        let met = [
            "writes",
            "writes in doubt",
            "scans checked",
            "engines killed",
            "engines overtaken",
            "zombies refused",
            "metas killed",
            "metas overtaken",
            "nodes killed",
            "nodes drained",
            "outages",
            "storms",
            "jobs committed",
            "jobs resumed",
            "tasks done on nodes",
            "tasks failed on nodes",
            "objects deleted by nodes",
        ];
        for what in met {
            assert!(
                self.counts.contains_key(what),
                "no {what}: {}",
                self.summary()
            );
        }
    }
}
