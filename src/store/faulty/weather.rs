//! Faults by chance: how often requests fail, how often their answers are lost, and how long they take.

use std::time::Duration;

use super::Effect;
use crate::clock::Env;

/// What happens to requests, by chance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weather {
    /// The share of requests that fail and do nothing, from 0 to 1.
    pub fails: f64,
    /// The share of the others that are carried out, but whose answer is lost.
    pub loses_answers: f64,
    /// A request takes a part of this time, before anything else happens to it.
    pub delay_max: Duration,
}

impl Weather {
    /// Nothing fails, and requests take up to 10 ms.
    pub const FAIR: Self = Self {
        fails: 0.0,
        loses_answers: 0.0,
        delay_max: Duration::from_millis(10),
    };

    /// Nothing is carried out.
    pub const CUT: Self = Self {
        fails: 1.0,
        ..Self::FAIR
    };

    /// What happens to one request, and how long it takes.
    pub fn meet(&self, env: &Env) -> (Duration, Option<Effect>) {
        let effect = if env.chance() < self.fails {
            Some(Effect::Fail)
        } else if env.chance() < self.loses_answers {
            Some(Effect::LoseAnswer)
        } else {
            None
        };
        (self.delay_max.mul_f64(env.chance()), effect)
    }
}
