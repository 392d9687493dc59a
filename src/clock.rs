//! Time and randomness, the only sources of either: handed in, so that a test or a simulation decides
//! both.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use rand::{Rng, SeedableRng, rngs::SmallRng};

/// Tells the time.
pub trait Clock: Send + Sync + 'static {
    /// Wall-clock time in milliseconds since the Unix epoch. May jump.
    fn unix_ms(&self) -> u64;
    /// Time since some fixed moment of this process. Never goes back.
    fn monotonic(&self) -> Duration;
}

/// The machine's clocks.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self {
            start: Instant::now(),
        }
    }
}

impl Clock for SystemClock {
    fn unix_ms(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        since.unwrap_or_default().as_millis() as u64
    }

    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }
}

/// A clock that stands still until it is told to move.
#[derive(Debug, Default)]
pub struct ManualClock {
    now: Mutex<Duration>,
}

impl ManualClock {
    /// A clock that starts `since_epoch` after the Unix epoch.
    pub fn new(since_epoch: Duration) -> Self {
        Self {
            now: Mutex::new(since_epoch),
        }
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        *self.now.lock().expect("no panic under this lock") += by;
    }
}

impl Clock for ManualClock {
    fn unix_ms(&self) -> u64 {
        self.monotonic().as_millis() as u64
    }

    fn monotonic(&self) -> Duration {
        *self.now.lock().expect("no panic under this lock")
    }
}

/// Pauses between attempts: each twice as long as the one before, up to a limit.
#[derive(Clone, Debug)]
pub struct Backoff {
    delay: Duration,
    max: Duration,
}

impl Backoff {
    /// The first pause is `min` long, none is longer than `max`.
    pub fn new(min: Duration, max: Duration) -> Self {
        Self { delay: min, max }
    }

    /// For operations on a store or a service that is away: from 50 ms to 10 s.
    pub fn for_outage() -> Self {
        Self::new(Duration::from_millis(50), Duration::from_secs(10))
    }

    /// Waits for the next pause to pass.
    pub async fn pause(&mut self) {
        tokio::time::sleep(self.delay).await;
        self.delay = (self.delay * 2).min(self.max);
    }

    /// Waits for between half of the next pause and all of it, so that those who failed together do not come back
    /// together.
    pub async fn pause_jittered(&mut self, env: &Env) {
        let half = self.delay / 2;
        tokio::time::sleep(half + half.mul_f64(env.chance())).await;
        self.delay = (self.delay * 2).min(self.max);
    }
}

/// A moment, by both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    unix_ms: u64,
    monotonic: Duration,
}

/// How much of something happens a second, lately: what happened longer ago counts less, half as much for
/// each [`Rate::HALF_LIFE`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Rate {
    /// Each amount, halved for every half-life since.
    sum: f64,
    first: Option<Duration>,
    last: Duration,
}

impl Rate {
    /// The time after which an amount counts half.
    pub const HALF_LIFE: Duration = Duration::from_secs(20);

    /// Counts `amount` at `now`, a time of one monotonic clock.
    pub fn add(&mut self, amount: f64, now: Duration) {
        self.sum = self.faded(now) + amount;
        self.first.get_or_insert(now);
        self.last = self.last.max(now);
    }

    /// The rate at `now`; `None` until there has been a second to measure.
    pub fn per_second(&self, now: Duration) -> Option<f64> {
        let age = now.saturating_sub(self.first?).as_secs_f64();
        if age < 1.0 {
            return None;
        }
        // Of a steady rate of one a second so much would be left.
        let half_life = Self::HALF_LIFE.as_secs_f64();
        let steady = half_life / std::f64::consts::LN_2 * (1.0 - (-age / half_life).exp2());
        Some(self.faded(now) / steady)
    }

    fn faded(&self, now: Duration) -> f64 {
        let since = now.saturating_sub(self.last).as_secs_f64();
        self.sum * (-since / Self::HALF_LIFE.as_secs_f64()).exp2()
    }
}

/// A clock and a source of randomness. Cheap to clone.
#[derive(Clone)]
pub struct Env {
    clock: Arc<dyn Clock>,
    random: Arc<Mutex<SmallRng>>,
}

impl std::fmt::Debug for Env {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Env")
    }
}

impl Default for Env {
    /// The machine's clocks, and randomness seeded by the operating system.
    fn default() -> Self {
        Self {
            clock: Arc::new(SystemClock::default()),
            random: Arc::new(Mutex::new(SmallRng::from_os_rng())),
        }
    }
}

impl Env {
    /// `clock`, and randomness that follows from `seed`.
    pub fn seeded(clock: Arc<dyn Clock>, seed: u64) -> Self {
        Self {
            clock,
            random: Arc::new(Mutex::new(SmallRng::seed_from_u64(seed))),
        }
    }

    /// Wall-clock time in milliseconds since the Unix epoch.
    pub fn unix_ms(&self) -> u64 {
        self.clock.unix_ms()
    }

    /// Time since some fixed moment of this process.
    pub fn monotonic(&self) -> Duration {
        self.clock.monotonic()
    }

    /// This moment.
    pub fn moment(&self) -> Moment {
        Moment {
            unix_ms: self.unix_ms(),
            monotonic: self.monotonic(),
        }
    }

    /// Time since `moment`, by the clock that moved more: one of them may stand still while the machine
    /// sleeps, the other may be set back.
    pub fn since(&self, moment: Moment) -> Duration {
        let wall = self.unix_ms().saturating_sub(moment.unix_ms);
        let monotonic = self.monotonic().saturating_sub(moment.monotonic);
        monotonic.max(Duration::from_millis(wall))
    }

    /// Time since `moment` for certain: by the clock that nobody sets.
    pub fn since_at_least(&self, moment: Moment) -> Duration {
        self.monotonic().saturating_sub(moment.monotonic)
    }

    /// A random number from 0 to 1, exclusive.
    pub fn chance(&self) -> f64 {
        f64::from((self.random() >> 96) as u32) / (f64::from(u32::MAX) + 1.0)
    }

    /// 128 random bits.
    pub fn random(&self) -> u128 {
        let mut random = self.random.lock().expect("no panic under this lock");
        random.random()
    }
}

#[cfg(test)]
impl Env {
    /// An environment whose clock follows tokio's, which tests pause, in steps of `tick`.
    pub(crate) fn following_tokio(tick: Duration) -> Self {
        let clock = Arc::new(ManualClock::new(Duration::from_secs(1_700_000_000)));
        let env = Self::seeded(clock.clone(), 7);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(tick).await;
                clock.advance(tick);
            }
        });
        env
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_follows_what_happens_and_forgets() {
        let secs = Duration::from_secs;
        let mut rate = Rate::default();
        assert_eq!(rate.per_second(secs(5)), None);
        for second in 0..200 {
            rate.add(3.0, secs(second));
            if second > 0 {
                let measured = rate.per_second(secs(second + 1)).unwrap();
                assert!((2.5..3.7).contains(&measured), "{second}: {measured}");
            }
        }
        let quiet = rate.per_second(secs(200) + 2 * Rate::HALF_LIFE).unwrap();
        assert!((0.6..0.9).contains(&quiet), "{quiet}");
    }
}
