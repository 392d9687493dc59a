//! Whole clusters in simulated time, from a seed: databases with their engines, compaction nodes and a meta service in
//! one process, while they are killed, suspended and replaced, links and stores fail, and requests are lost. In the end
//! everything is healed; then nothing may be lost, stuck or left behind.
//!
//! A seed repeats itself exactly, threads included. To run so many seeds, from the first on, and to see what one did:
//!
//! ```text
//! SIMULATION_SEEDS=1000 cargo test --test simulation clusters
//! SIMULATION_SEED=7 RUST_LOG=simulation=info,siltstone=debug cargo test --test simulation -- --ignored --nocapture
//! ```

mod chaos;
mod child;
mod cluster;
mod database;
mod host;
mod oracle;
#[path = "../support/mod.rs"]
mod support;
mod told;

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use siltstone::threads::Turns;
use tokio::runtime::Builder;

use self::{cluster::Cluster, told::Told};

/// Seeds that are tried by default.
const SEEDS: u64 = 12;

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().expect(variable))
}

#[test]
fn clusters_survive_whatever_a_seed_makes_up() {
    let seeds = number("SIMULATION_SEEDS").unwrap_or(SEEDS);
    let next = AtomicU64::new(0);
    // As many at once as there are cores.
    let work = || {
        let mut all = Told::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds {
                return all;
            }
            all.add(&child::run(seed));
        }
    };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let all = thread::scope(|scope| {
        let workers: Vec<_> = (0..cores).map(|_| scope.spawn(work)).collect();
        let mut all = Told::default();
        for worker in workers {
            all.add(&worker.join().expect("each seed goes well"));
        }
        all
    });
    println!("{seeds} seeds: {}", all.summary());
    all.check_that_it_was_hard();
}

#[test]
#[cfg(target_os = "linux")]
fn a_seed_repeats_itself() {
    let seed = number("SIMULATION_SEED").unwrap_or(4);
    let (first, second) = (child::run(seed), child::run(seed));
    let mut both = first.events.iter().zip(&second.events);
    assert_eq!(both.find(|(first, second)| first != second), None);
    assert_eq!(first.events.len(), second.events.len());
    assert!(first.events.len() > 100, "{}", first.events.len());
}

/// The cluster that a seed makes up, in a process of its own.
#[test]
#[ignore = "started by the others, with a seed in its environment"]
fn one_cluster() {
    let seed = number("SIMULATION_SEED").expect("SIMULATION_SEED");
    child::limit();
    told::log();
    let mut builder = Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().unwrap();
    let told = Turns::block_on(&runtime, seed, async { Cluster::new(seed).run().await });
    child::tell(&told);
}
