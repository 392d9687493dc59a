//! Turns: threads that block and the tasks of one runtime, one of all at a time.
//!
//! All tasks run on one thread, that of a runtime of tokio's kind `current_thread`. A task of it, the *host*, gives
//! turns to the threads that can go on, and stands still, with the whole runtime, until the thread waits or ends.

use std::{
    any::Any,
    cell::RefCell,
    io,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    pin::pin,
    sync::{Arc, Condvar, Mutex, MutexGuard},
    task::{Context, Poll, Wake, Waker},
    thread,
};

use rand::{Rng, SeedableRng, rngs::SmallRng};
use tokio::{
    runtime::{Handle, Runtime},
    sync::{Notify, oneshot},
    task::JoinHandle,
};

thread_local! {
    /// What this thread takes part in; a thread for work that blocks has a player, that of the runtime none.
    static HERE: RefCell<Option<(Turns, Option<Arc<Player>>)>> = const { RefCell::new(None) };
}

/// Hands out the turns.
#[derive(Clone)]
pub struct Turns {
    table: Arc<Table>,
    runtime: Handle,
}

struct Table {
    seats: Mutex<Seats>,
    changed: Notify,
}

struct Seats {
    /// Those who have not ended.
    all: Vec<Arc<Player>>,
    /// Those of them who can go on.
    ready: Vec<Arc<Player>>,
    random: SmallRng,
}

impl Table {
    fn seats(&self) -> MutexGuard<'_, Seats> {
        self.seats.lock().expect("no panic under this lock")
    }
}

/// A thread for work that blocks.
struct Player {
    table: Arc<Table>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    has_turn: bool,
    is_ready: bool,
    has_ended: bool,
    /// Nobody will wake it any more: it is to unwind.
    is_over: bool,
}

/// The panic of a thread that was waiting when all was over.
struct Over;

impl Turns {
    /// Runs `main` on `runtime`, where threads for work that blocks take turns in an order that follows from `seed`.
    /// Those that still wait when it ends are unwound.
    ///
    /// # Panics
    /// When the runtime has several threads.
    pub fn block_on<F: Future>(runtime: &Runtime, seed: u64, main: F) -> F::Output {
        let flavor = runtime.handle().runtime_flavor();
        assert_eq!(flavor, tokio::runtime::RuntimeFlavor::CurrentThread);
        let seats = Seats {
            all: Vec::new(),
            ready: Vec::new(),
            random: SmallRng::seed_from_u64(seed),
        };
        let turns = Self {
            table: Arc::new(Table {
                seats: Mutex::new(seats),
                changed: Notify::new(),
            }),
            runtime: runtime.handle().clone(),
        };
        let _here = Here::enter(turns.clone(), None);
        let host = runtime.spawn(turns.clone().host());
        let ended = catch_unwind(AssertUnwindSafe(|| runtime.block_on(main)));
        host.abort();
        turns.end();
        ended.unwrap_or_else(|panic| resume_unwind(panic))
    }

    pub(super) fn current() -> Option<Self> {
        HERE.with_borrow(|here| here.as_ref().map(|(turns, _)| turns.clone()))
    }

    pub(super) fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let (told, ended) = oneshot::channel::<thread::Result<T>>();
        let started = self.start(move || {
            let _ = told.send(catch_unwind(AssertUnwindSafe(work)));
        });
        self.runtime.spawn(async move {
            started.expect("the machine gives another thread");
            let ended = ended.await.expect("the thread tells how it ended");
            ended.unwrap_or_else(|panic| resume_unwind(panic))
        })
    }

    pub(super) fn start(&self, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let player = Arc::new(Player {
            table: self.table.clone(),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let (turns, own) = (self.clone(), player.clone());
        let thread = thread::Builder::new().name("in-turns".into());
        thread.spawn(move || {
            let is_over = own.await_turn();
            let runtime = turns.runtime.clone();
            // Its clock is the one that stands still.
            let _inside = runtime.enter();
            let _here = Here::enter(turns, Some(own.clone()));
            if !is_over {
                let _ = catch_unwind(AssertUnwindSafe(work));
            }
            own.end();
        })?;
        self.table.seats().all.push(player.clone());
        player.wake();
        Ok(())
    }

    pub(super) fn wait<F: Future>(&self, future: F) -> F::Output {
        let player = HERE.with_borrow(|here| here.as_ref().and_then(|(_, player)| player.clone()));
        let player = player.expect("a task does not block");
        let waker = Waker::from(player.clone());
        let mut future = pin!(future);
        loop {
            let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
            if let Poll::Ready(output) = polled {
                return output;
            }
            if player.pass() && !thread::panicking() {
                resume_unwind(Box::new(Over) as Box<dyn Any + Send>);
            }
        }
    }

    /// Gives turns for as long as there is anybody.
    async fn host(self) {
        loop {
            let next = {
                let seats = &mut *self.table.seats();
                let ready = seats.ready.len();
                (ready > 0).then(|| seats.ready.swap_remove(seats.random.random_range(0..ready)))
            };
            match next {
                Some(player) => {
                    player.give_turn();
                    tokio::task::yield_now().await;
                }
                None => self.table.changed.notified().await,
            }
        }
    }

    /// Unwinds those that still wait.
    fn end(&self) {
        loop {
            let Some(player) = self.table.seats().all.pop() else {
                return;
            };
            player.state().is_over = true;
            player.give_turn();
        }
    }
}

impl Player {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under this lock")
    }

    /// By the host: has it run until it waits or ends.
    fn give_turn(&self) {
        let mut state = self.state();
        if state.has_ended {
            return;
        }
        state.is_ready = false;
        state.has_turn = true;
        self.changed.notify_all();
        let waited = self.changed.wait_while(state, |state| state.has_turn);
        drop(waited.expect("no panic under this lock"));
    }

    /// By its thread: lets others go on until it has the turn again; whether all is over.
    fn pass(&self) -> bool {
        self.state().has_turn = false;
        self.changed.notify_all();
        self.await_turn()
    }

    fn await_turn(&self) -> bool {
        let waited = self
            .changed
            .wait_while(self.state(), |state| !state.has_turn);
        waited.expect("no panic under this lock").is_over
    }

    fn end(&self) {
        let all = &mut self.table.seats().all;
        all.retain(|other| !std::ptr::eq(Arc::as_ptr(other), self));
        let mut state = self.state();
        state.has_turn = false;
        state.has_ended = true;
        self.changed.notify_all();
    }
}

impl Wake for Player {
    fn wake(self: Arc<Self>) {
        let mut state = self.state();
        if state.is_ready || state.has_ended {
            return;
        }
        state.is_ready = true;
        drop(state);
        let table = self.table.clone();
        table.seats().ready.push(self);
        table.changed.notify_one();
    }
}

/// That this thread takes part, for as long as it lives.
struct Here;

impl Here {
    fn enter(turns: Turns, player: Option<Arc<Player>>) -> Self {
        HERE.set(Some((turns, player)));
        Self
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        HERE.set(None);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::{sync::mpsc, time::Instant};

    use super::{super::*, *};

    fn runtime() -> Runtime {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_time().start_paused(true).build().unwrap()
    }

    /// What three threads and a task say, which wait for each other and for time.
    fn said(seed: u64) -> Vec<String> {
        Turns::block_on(&runtime(), seed, async {
            let (told, mut heard) = mpsc::channel(1);
            let handle = Handle::current();
            let began = Instant::now();
            for thread in 0..3 {
                let (told, handle) = (told.clone(), handle.clone());
                drop(run(move || {
                    for at in 0..5 {
                        let pause = Duration::from_millis(10 * (thread + at % 2));
                        wait(&handle, tokio::time::sleep(pause));
                        let said = format!("{thread}.{at} {:?}", began.elapsed());
                        send(&told, said).unwrap();
                    }
                }));
            }
            drop(told);
            let mut said = Vec::new();
            while let Some(next) = heard.recv().await {
                said.push(next);
            }
            said
        })
    }

    #[test]
    fn a_seed_repeats_itself_and_seeds_differ() {
        let first = said(1);
        assert_eq!(first.len(), 15);
        assert!(first.last().unwrap().starts_with("2.4 120ms"), "{first:?}");
        assert_eq!(first, said(1));
        assert!((2..20).any(|seed| said(seed) != first));
    }

    #[test]
    fn a_panic_reaches_who_waits_for_the_thread() {
        let ended = Turns::block_on(&runtime(), 1, async {
            run(|| {
                if parallelism() == 1 {
                    panic!("as it should")
                }
            })
            .await
        });
        assert!(ended.unwrap_err().is_panic());
    }

    #[test]
    fn who_still_waits_at_the_end_is_unwound() {
        struct Unwound(std::sync::mpsc::Sender<()>);
        impl Drop for Unwound {
            fn drop(&mut self) {
                self.0.send(()).unwrap();
            }
        }
        let (told, heard) = std::sync::mpsc::channel();
        Turns::block_on(&runtime(), 1, async {
            let (handle, unwound) = (Handle::current(), Unwound(told));
            drop(run(move || {
                let _unwound = unwound;
                wait(&handle, std::future::pending::<()>());
            }));
            tokio::time::sleep(Duration::from_secs(1)).await;
        });
        heard.recv_timeout(Duration::from_secs(10)).unwrap();
    }
}
