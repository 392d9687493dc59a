//! Where a job is to run: here, on nodes, or on both. Pure: all that it goes by is an argument.
//!
//! Each side has slots that merge so many bytes a second each, as measured, and bytes ahead: what was handed to it and
//! has not ended. A job of some bytes and tasks is done there after
//!
//! ```text
//! queue + max( (ahead + bytes) / (slots × rate),  bytes / (min(tasks, slots) × rate) )
//! ```
//!
//! as soon as the side has worked off everything, or as the job alone allows, whichever is later. From that:
//!
//! 1. Here, merging also takes processor and network from writes and reads: each second of a thread costs as much as
//!    [`LOCAL_PRICE`] seconds of delay, the less the nearer writes are to being held up by level 0. Then nothing counts
//!    but what is done soonest.
//! 2. A split has the first tasks run here and the others on nodes, side by side; the best number is tried out. It must
//!    beat both sides alone by [`SPLIT_GAIN`].
//! 3. The cheapest that is possible is taken. A side that is full or away is none, unless the other is too.
//! 4. A side that has had no job for [`EXPLORE_AFTER_MS`] may have changed: it is taken if it would be the cheapest at
//!    [`EXPLORE_HOPE`] times the better rate of the two.
//!
//! What a job moves over the network is no term of its own. The inputs come from the store and the outputs go there
//! once, on either side, and past every cache; how fast that goes is in the measured rates. What a node needs beyond
//! that, the plan and one small object a task, is in the measured queue time.

use serde::Serialize;

/// Seconds of delay that a second of a thread in the database's process is worth, while no write is held up.
pub const LOCAL_PRICE: f64 = 0.5;
/// Share by which a split must be cheaper than either side: it has two ends to wait for.
pub const SPLIT_GAIN: f64 = 0.2;
/// Milliseconds without a job after which the rate of a side counts as stale.
pub const EXPLORE_AFTER_MS: u64 = 300_000;
/// How many times the better of both rates a stale side is hoped to have.
pub const EXPLORE_HOPE: u64 = 2;

/// Where a job runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// In this process.
    Local,
    /// On nodes.
    Remote,
    /// Some tasks here, the others on nodes.
    Split,
}

impl Side {
    /// The side as one word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Remote => "remote",
            Self::Split => "split",
        }
    }
}

/// Whether a side takes jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SideState {
    /// It does.
    Open,
    /// It has as many as it may have.
    Full,
    /// There is no node that could run it.
    NoNodes,
    /// It cannot be reached.
    Away,
}

/// What a side would need for the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SideCosts {
    /// Whether it takes it.
    pub state: SideState,
    /// Tasks that it runs at once.
    pub slots: u64,
    /// Input bytes that one slot merges in a second.
    pub bytes_per_second: u64,
    /// Input bytes that were handed to it before and have not ended.
    pub bytes_ahead: u64,
    /// From the moment the job is handed to it until a free slot takes it, in milliseconds.
    pub queue_ms: u64,
    /// Since it was given a job last, in milliseconds.
    pub idle_ms: u64,
}

/// All that a decision goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Costs {
    /// Input bytes of the job.
    pub bytes: u64,
    /// Its tasks, of about equal bytes.
    pub tasks: u32,
    /// How near writes are to being held up by level 0, which the job makes smaller: 0 to 100, in percent.
    pub write_pressure_percent: u32,
    /// This process.
    pub local: SideCosts,
    /// The nodes that could run it.
    pub remote: SideCosts,
}

/// Why it was decided so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DecisionReason {
    /// It costs least.
    Cost,
    /// The side has had no job for long: it is measured again.
    Explores,
    /// This process has as many jobs as it may have.
    LocalFull,
    /// The meta service has as many jobs of this engine as it may have.
    RemoteFull,
    /// There is no node that could run it.
    NoNodes,
    /// The meta service cannot be reached.
    Away,
}

impl DecisionReason {
    /// The reason in a word or two.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cost => "cost",
            Self::Explores => "explores",
            Self::LocalFull => "local full",
            Self::RemoteFull => "remote full",
            Self::NoNodes => "no nodes",
            Self::Away => "away",
        }
    }
}

/// What one way of running a job comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Estimate {
    /// Of its tasks, those that run here.
    pub tasks_local: u32,
    /// Until it is done, in milliseconds.
    pub done_ms: u64,
    /// That, and what it takes from the database, in milliseconds.
    pub cost_ms: u64,
}

/// What was decided, and what every way would come to by the measured rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Decision {
    /// Where it runs.
    pub side: Side,
    /// Of its tasks, those that run here: the first ones in key order.
    pub tasks_local: u32,
    /// Why.
    pub reason: DecisionReason,
    /// All of it here.
    pub local: Estimate,
    /// All of it on nodes.
    pub remote: Estimate,
    /// The best split, when there is more than one task.
    pub split: Option<Estimate>,
}

impl Decision {
    /// Why, in a sentence.
    pub fn words(&self) -> String {
        let seconds = |estimate: &Estimate| estimate.done_ms as f64 / 1000.0;
        let (here, there) = (seconds(&self.local), seconds(&self.remote));
        match self.reason {
            DecisionReason::Cost => {
                let split = self.split.map_or(String::new(), |split| {
                    let (tasks, seconds) = (split.tasks_local, seconds(&split));
                    format!(", or {seconds:.1} s with {tasks} tasks here")
                });
                format!("done in {here:.1} s here, {there:.1} s on nodes{split}")
            }
            DecisionReason::Explores => {
                format!(
                    "not used for long, and measured again; by the last measure {here:.1} s here, {there:.1} s on nodes"
                )
            }
            DecisionReason::LocalFull => "this process runs as many jobs as it may".into(),
            DecisionReason::RemoteFull => {
                "the meta service has as many jobs of this engine as it may".into()
            }
            DecisionReason::NoNodes => "there are no compaction nodes that could run it".into(),
            DecisionReason::Away => "the meta service is away".into(),
        }
    }
}

/// Decides where a job runs.
pub fn decide(costs: &Costs) -> Decision {
    let decision = cheapest(costs);
    let (local, remote) = (costs.local, costs.remote);
    let hoped = EXPLORE_HOPE.saturating_mul(local.bytes_per_second.max(remote.bytes_per_second));
    let hopeful = |side: SideCosts| SideCosts {
        bytes_per_second: match side.idle_ms < EXPLORE_AFTER_MS {
            true => side.bytes_per_second,
            false => hoped,
        },
        ..side
    };
    let hoped = cheapest(&Costs {
        local: hopeful(local),
        remote: hopeful(remote),
        ..*costs
    });
    if hoped.side == decision.side {
        return decision;
    }
    Decision {
        side: hoped.side,
        tasks_local: hoped.tasks_local,
        reason: DecisionReason::Explores,
        ..decision
    }
}

/// The cheapest way that is possible.
fn cheapest(costs: &Costs) -> Decision {
    let [local, remote] = [costs.tasks, 0].map(|tasks_local| costs.estimate(tasks_local));
    let splits = (1..costs.tasks).map(|tasks_local| costs.estimate(tasks_local));
    let split = splits.min_by_key(|split| (split.cost_ms, split.tasks_local));
    let decided = |side, reason| Decision {
        side,
        tasks_local: match side {
            Side::Local => costs.tasks,
            Side::Remote => 0,
            Side::Split => split.map_or(0, |split| split.tasks_local),
        },
        reason,
        local,
        remote,
        split,
    };
    use DecisionReason as Reason;
    match (costs.local.state, costs.remote.state) {
        (SideState::Open, SideState::Full) => return decided(Side::Local, Reason::RemoteFull),
        (_, SideState::NoNodes) => return decided(Side::Local, Reason::NoNodes),
        (_, SideState::Away) => return decided(Side::Local, Reason::Away),
        (local, SideState::Open) if local != SideState::Open => {
            return decided(Side::Remote, Reason::LocalFull);
        }
        _ => {}
    }
    let whole = local.cost_ms.min(remote.cost_ms);
    let both_open = costs.remote.state == SideState::Open;
    let enough = whole as f64 * (1.0 - SPLIT_GAIN);
    let side = match split {
        Some(split) if both_open && (split.cost_ms as f64) < enough => Side::Split,
        _ if local.cost_ms <= remote.cost_ms => Side::Local,
        _ => Side::Remote,
    };
    decided(side, Reason::Cost)
}

impl Costs {
    /// What it comes to when the first `tasks_local` tasks run here.
    fn estimate(&self, tasks_local: u32) -> Estimate {
        let tasks = self.tasks.max(1);
        let bytes = self.bytes as f64;
        let bytes_local = bytes * f64::from(tasks_local) / f64::from(tasks);
        let here = self.local.done(bytes_local, tasks_local);
        let there = self.remote.done(bytes - bytes_local, tasks - tasks_local);
        let rest = 1.0 - f64::from(self.write_pressure_percent.min(100)) / 100.0;
        let done = here.max(there);
        let cost = done + rest * LOCAL_PRICE * bytes_local / self.local.rate();
        Estimate {
            tasks_local,
            done_ms: millis(done),
            cost_ms: millis(cost),
        }
    }
}

impl SideCosts {
    fn rate(&self) -> f64 {
        self.bytes_per_second.max(1) as f64
    }

    /// Seconds until `tasks` tasks with `bytes` together are done.
    fn done(&self, bytes: f64, tasks: u32) -> f64 {
        if tasks == 0 {
            return 0.0;
        }
        let slots = self.slots.max(1);
        let together = (self.bytes_ahead as f64 + bytes) / (slots as f64 * self.rate());
        let alone = bytes / (slots.min(tasks.into()) as f64 * self.rate());
        self.queue_ms as f64 / 1000.0 + together.max(alone)
    }
}

fn millis(seconds: f64) -> u64 {
    (seconds * 1000.0).round() as u64
}

#[cfg(test)]
mod tests;
