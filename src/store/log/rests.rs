//! Rests of a writer that appends all the time, so that another one can take its log over.
//!
//! A claim must follow the newest record, and whoever claims must have read that. A writer that appends without pause
//! would always have appended another one meanwhile; and whoever is to replace it would wait until it ends, which it
//! may do only when it is replaced. (Engines learn from their catalog that they were, within a heartbeat, and leave
//! their other logs to the new one: those need no rests.)

use std::time::Duration;

use crate::clock::{Env, Moment};

/// Appends without pause, after which there is a rest.
const STREAK_MAX: u32 = 512;
/// How long a rest is, as a multiple of an append: time for a listing, some reads and a claim, also
/// from somewhat farther away.
const REST_APPENDS: u32 = 10;

/// When to rest.
#[derive(Debug, Default)]
pub(super) struct Rests {
    /// Appends since the last pause.
    streak: u32,
    /// How long they took together.
    took: Duration,
    /// When the last one ended.
    ended: Option<Moment>,
}

impl Rests {
    /// Rests before the next append, if that is due.
    pub(super) async fn rest(&mut self, env: &Env) {
        let Some(ended) = self.ended else { return };
        let append = self.took / self.streak.max(1);
        if env.since_at_least(ended) >= append * REST_APPENDS {
            *self = Self::default();
        } else if self.streak >= STREAK_MAX {
            tokio::time::sleep(append * REST_APPENDS).await;
            *self = Self::default();
        }
    }

    /// An append that began at `began` has ended.
    pub(super) fn appended(&mut self, began: Moment, env: &Env) {
        self.streak += 1;
        self.took += env.since_at_least(began);
        self.ended = Some(env.moment());
    }
}
