//! Threads for work that blocks: where merges, reads and encoders run, and how they wait for what is asynchronous.
//!
//! [`run`] and [`start`] begin such work. In it, [`wait`] waits for a future and [`send`] for a channel.
//!
//! Under [`Turns`] threads and async tasks take turns, one of all at a time. Who is next follows from a seed, and time
//! passes only when nobody can go on: so a simulation of a whole cluster does the same again from the same seed.

mod turns;

use std::{io, num::NonZero, thread};

use tokio::{
    runtime::Handle,
    sync::mpsc::{Sender, error::SendError},
    task::JoinHandle,
};

pub use turns::Turns;

/// Runs `work` on a thread for work that blocks, of which there are as many as needed. It goes on when nobody waits
/// for it any more.
///
/// # Panics
/// Outside of a runtime.
pub fn run<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    match Turns::current() {
        Some(turns) => turns.run(work),
        None => tokio::task::spawn_blocking(work),
    }
}

/// Starts a thread called `name` for `work`, which may block for as long as it likes.
///
/// # Errors
/// When the machine gives no more threads.
pub fn start(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    match Turns::current() {
        Some(turns) => turns.start(work),
        None => {
            let thread = thread::Builder::new().name(name.to_owned());
            thread.spawn(work).map(drop)
        }
    }
}

/// Waits for `future`, of which `runtime` has the timers. Only for threads that may block.
pub fn wait<F: Future>(runtime: &Handle, future: F) -> F::Output {
    match Turns::current() {
        Some(turns) => turns.wait(future),
        None => runtime.block_on(future),
    }
}

/// Waits until `sender` has room for `value`. Only for threads that may block.
///
/// # Errors
/// When nobody receives any more.
pub fn send<T>(sender: &Sender<T>, value: T) -> Result<(), SendError<T>> {
    match Turns::current() {
        Some(turns) => turns.wait(sender.send(value)),
        None => sender.blocking_send(value),
    }
}

/// How many threads may compute at the same time.
pub fn parallelism() -> usize {
    match Turns::current() {
        Some(_) => 1,
        None => thread::available_parallelism().map_or(1, NonZero::get),
    }
}
