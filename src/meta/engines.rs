//! Which engines there are, what each has in quarantine, and what it has yet to carry out. Soft: an engine makes
//! itself known by attending, and after a restart of meta all that live are back within a call.
//!
//! Of two openings of engines with one name both live when each has called since the other came. An engine that
//! was opened again is not taken for two: the one before calls no more.

use std::{collections::BTreeMap, time::Duration};

use tracing::{info, warn};

use crate::{
    compaction::{
        QuarantinedSst,
        remote::{Attendance, Orders, RetryOrder},
    },
    error::{Error, Result},
    types::{OwnerId, TableId},
};

/// Leases for which a call counts: none waits for longer than one.
const ATTENDS_FOR_LEASES: u32 = 2;
/// Leases without a call after which an engine is forgotten, if no later one has its name.
const FORGOTTEN_AFTER_LEASES: u32 = 30;
/// Engines of the same name that an engine is told of.
const NAMESAKES_TOLD_MAX: usize = 8;

/// Owner and session.
pub(super) type EngineKey = (OwnerId, u64);

/// An engine that has attended.
#[derive(Clone, Debug)]
pub(super) struct Engine {
    pub attendance: Attendance,
    /// When it last called, on the monotonic clock.
    pub called: Duration,
    /// Whether it is still there, as far as that tells.
    pub attends: bool,
    /// Hosts of others that are there under its name.
    pub namesakes: Vec<String>,
    /// Ordinals of its first call and its last, among those of all.
    calls: (u64, u64),
    orders: Vec<RetryOrder>,
    /// It should be answered at once.
    has_news: bool,
}

/// The engines that have attended, by owner and session.
#[derive(Clone, Debug, Default)]
pub(super) struct Engines {
    engines: BTreeMap<EngineKey, Engine>,
    calls: u64,
    /// Some engine should be answered at once.
    have_news: bool,
    /// When the first of them may have gone.
    sweep_at: Option<Duration>,
}

impl Engines {
    /// Takes note of a call; returns whether operators see anything else than before.
    pub(super) fn attended(&mut self, attendance: Attendance, now: Duration) -> bool {
        self.calls += 1;
        let owner = attendance.owner.clone();
        let key = (owner.clone(), attendance.session);
        let is_changed = match self.engines.get_mut(&key) {
            Some(engine) => {
                let is_same = engine.attends && shows_the_same(&engine.attendance, &attendance);
                let done = attendance.carried_out;
                engine.orders.retain(|order| order.number > done);
                // The answer that told of them may have been lost.
                engine.has_news |= !engine.orders.is_empty();
                self.have_news |= engine.has_news;
                engine.attendance = attendance;
                (engine.called, engine.attends) = (now, true);
                engine.calls.1 = self.calls;
                !is_same
            }
            None => {
                let (host, session) = (&attendance.host, attendance.session);
                info!(%owner, %host, session, "engine arrived");
                // Those that are still there will show it by calling again.
                for other in self.of_mut(&owner) {
                    other.has_news = true;
                }
                self.have_news = true;
                let engine = Engine {
                    attendance,
                    called: now,
                    attends: true,
                    namesakes: Vec::new(),
                    calls: (self.calls, self.calls),
                    orders: Vec::new(),
                    has_news: false,
                };
                self.engines.insert(key, engine);
                self.sweep_at.get_or_insert(now);
                true
            }
        };
        self.find_namesakes(&owner) | is_changed
    }

    /// Has the engines of `owner` that are there try again what they have in quarantine, of `table` or of all
    /// tables. Returns the order's number, and who has it.
    ///
    /// # Errors
    /// `NotFound` when no such engine is there, or none has anything in quarantine.
    pub(super) fn order(
        &mut self,
        owner: &OwnerId,
        table: Option<TableId>,
    ) -> Result<(u64, Vec<EngineKey>)> {
        // Beyond all that they have heard, be it from a service before this one.
        let heard = self.of_mut(owner).map(|engine| engine.last_order()).max();
        let number = heard.unwrap_or_default().saturating_add(1);
        let mut ordered = Vec::new();
        let mut attend = 0;
        for engine in self.of_mut(owner).filter(|engine| engine.attends) {
            attend += 1;
            if engine.may_hold(table) {
                engine.orders.retain(|order| order.table != table);
                engine.orders.push(RetryOrder { number, table });
                engine.has_news = true;
                ordered.push((owner.clone(), engine.attendance.session));
            }
        }
        match (attend, ordered.is_empty(), table) {
            (0, ..) => Err(Error::not_found(format!(
                "no engine of owner {owner} attends"
            ))),
            (_, true, None) => Err(Error::not_found(format!(
                "owner {owner} has nothing in quarantine"
            ))),
            (_, true, Some(table)) => Err(Error::not_found(format!(
                "owner {owner} has nothing of table {table} in quarantine"
            ))),
            (_, false, _) => {
                self.have_news = true;
                Ok((number, ordered))
            }
        }
    }

    /// Whether an engine has said that it has carried out the order `number`.
    pub(super) fn has_carried_out(&self, key: &EngineKey, number: u64) -> bool {
        let engine = self.engines.get(key);
        engine.is_some_and(|engine| engine.attendance.carried_out >= number)
    }

    /// Whether any engine has come to have news since this was asked last.
    pub(super) fn take_have_news(&mut self) -> bool {
        std::mem::take(&mut self.have_news)
    }

    /// Whether an engine that waits should be answered at once.
    pub(super) fn has_news(&self, key: &EngineKey) -> bool {
        self.engines.get(key).is_some_and(|engine| engine.has_news)
    }

    /// What an engine is told now.
    pub(super) fn answer(&mut self, key: &EngineKey) -> Orders {
        let Some(engine) = self.engines.get_mut(key) else {
            return Orders::default();
        };
        engine.has_news = false;
        Orders {
            retries: engine.orders.clone(),
            namesakes: engine.namesakes.clone(),
        }
    }

    /// When to look for engines that have gone.
    pub(super) fn sweep_at(&self) -> Option<Duration> {
        self.sweep_at
    }

    /// Takes note of engines that have gone, and forgets those that have for long or that another has followed;
    /// returns whether there were any.
    pub(super) fn sweep(&mut self, now: Duration, lease: Duration) -> bool {
        if self.sweep_at.is_none_or(|at| now < at) {
            return false;
        }
        let mut gone: Vec<OwnerId> = Vec::new();
        for ((owner, _), engine) in &mut self.engines {
            if engine.attends && now > engine.called + lease * ATTENDS_FOR_LEASES {
                engine.attends = false;
                gone.push(owner.clone());
            }
        }
        let known = self.engines.len();
        let mut latest: BTreeMap<OwnerId, u64> = BTreeMap::new();
        for ((owner, _), engine) in &self.engines {
            let latest = latest.entry(owner.clone()).or_default();
            *latest = engine.calls.1.max(*latest);
        }
        self.engines.retain(|(owner, _), engine| {
            let is_latest = latest.get(owner) == Some(&engine.calls.1);
            let is_old = now > engine.called + lease * FORGOTTEN_AFTER_LEASES;
            engine.attends || (is_latest && !is_old)
        });
        let next = self.engines.values().map(|engine| {
            let leases = match engine.attends {
                true => ATTENDS_FOR_LEASES,
                false => FORGOTTEN_AFTER_LEASES,
            };
            engine.called + lease * leases + Duration::from_millis(1)
        });
        self.sweep_at = next.min();
        for owner in &gone {
            self.find_namesakes(owner);
        }
        !gone.is_empty() || self.engines.len() < known
    }

    /// Every engine that is remembered, by owner and session.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&EngineKey, &Engine)> {
        self.engines.iter()
    }

    fn of_mut(&mut self, owner: &OwnerId) -> impl Iterator<Item = &mut Engine> {
        let all = (owner.clone(), 0)..=(owner.clone(), u64::MAX);
        self.engines.range_mut(all).map(|(_, engine)| engine)
    }

    /// Finds out which engines of `owner` are there beside one another; returns whether that has changed.
    fn find_namesakes(&mut self, owner: &OwnerId) -> bool {
        let there = self.of_mut(owner).filter(|engine| engine.attends);
        let there: Vec<((u64, u64), String)> = there
            .map(|engine| (engine.calls, engine.attendance.host.clone()))
            .collect();
        let mut is_changed = false;
        for engine in self.of_mut(owner) {
            let (first, last) = engine.calls;
            let beside = there.iter().filter(|((other_first, other_last), _)| {
                engine.attends
                    && *other_first != first
                    && last > *other_first
                    && *other_last > first
            });
            let hosts = beside.map(|(_, host)| host.clone());
            let namesakes: Vec<String> = hosts.take(NAMESAKES_TOLD_MAX).collect();
            if engine.namesakes == namesakes {
                continue;
            }
            if !namesakes.is_empty() {
                let (host, hosts) = (&engine.attendance.host, namesakes.join(", "));
                warn!(
                    %owner, %host, %hosts,
                    "several engines use one name, and share its turns: give each a name of its own"
                );
            }
            engine.namesakes = namesakes;
            engine.has_news = true;
            is_changed = true;
        }
        self.have_news |= is_changed;
        is_changed
    }
}

impl Engine {
    /// Number of the latest order that it has, or has had.
    fn last_order(&self) -> u64 {
        let latest = self.orders.last().map_or(0, |order| order.number);
        latest.max(self.attendance.carried_out)
    }

    /// Whether it has, or may have, something of `table` in quarantine.
    fn may_hold(&self, table: Option<TableId>) -> bool {
        let Attendance {
            quarantine,
            left_out,
            ..
        } = &self.attendance;
        let is_of = |sst: &QuarantinedSst| table.is_none_or(|table| sst.table_id == table);
        *left_out > 0 || quarantine.iter().any(is_of)
    }
}

/// Whether operators see the same of both.
fn shows_the_same(known: &Attendance, new: &Attendance) -> bool {
    (&known.host, &known.version, known.left_out) == (&new.host, &new.version, new.left_out)
        && QuarantinedSst::are_as_in(&known.quarantine, &new.quarantine)
}
