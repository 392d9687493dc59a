//! Each seed runs in a process of its own, in which nothing is random: neither the order of hash maps nor what the
//! runtime draws.

use std::{
    env,
    process::{Command, abort},
    thread,
    time::Duration,
};

use crate::told::Told;

/// In real time: whoever never waits keeps simulated time from passing.
const LIMIT: Duration = Duration::from_secs(900);
const EVENT: &str = "event: ";
const COUNT: &str = "count: ";

/// What happens in the cluster that `seed` makes up.
pub fn run(seed: u64) -> Told {
    let child = Command::new(env::current_exe().unwrap())
        .args(["--ignored", "--exact", "one_cluster", "--nocapture"])
        .env("SIMULATION_SEED", seed.to_string())
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&child.stdout);
    if !child.status.success() {
        let log = String::from_utf8_lossy(&child.stderr);
        panic!(
            "SIMULATION_SEED={seed} fails ({}):\n{log}\n{output}",
            child.status
        );
    }
    let mut told = Told::default();
    for line in output.lines() {
        if let Some(event) = line.strip_prefix(EVENT) {
            told.events.push(event.to_owned());
        } else if let Some((what, count)) = line
            .strip_prefix(COUNT)
            .and_then(|line| line.split_once('='))
        {
            told.counts.insert(what.to_owned(), count.parse().unwrap());
        }
    }
    assert!(
        !told.events.is_empty(),
        "seed {seed} says nothing:\n{output}"
    );
    told
}

/// Has this process end although its simulation does not.
pub fn limit() {
    thread::spawn(|| {
        thread::sleep(LIMIT);
        eprintln!("it does not end within {LIMIT:?}: somebody may go round in circles");
        abort();
    });
}

/// Tells it to the process that started this one.
pub fn tell(told: &Told) {
    for event in &told.events {
        println!("{EVENT}{event}");
    }
    for (what, count) in &told.counts {
        println!("{COUNT}{what}={count}");
    }
}

/// What the operating system says when it is asked for randomness: the standard library asks here. Those who run
/// seeds need none, and those who run one must always hear the same.
#[cfg(target_os = "linux")]
#[unsafe(no_mangle)]
unsafe extern "C" fn getrandom(buffer: *mut u8, length: usize, _flags: u32) -> isize {
    // SAFETY: whoever asks owns so many bytes there.
    unsafe { buffer.write_bytes(7, length) };
    length as isize
}
