//! Engines that attend, and operators who wait until an engine has carried out what they ordered. Nothing of it is
//! in the plan log, and so none of it waits for the log.

use std::time::Duration;

use super::{Answer, Core};
use crate::{
    compaction::remote::{Attendance, Orders},
    error::Error,
    meta::{
        admin::{EngineInfo, QuarantineInfo},
        engines::{Engine, EngineKey},
    },
    types::{OwnerId, TableId},
};

/// How long an engine may take to carry out an order, before whoever gave it is told that it has not yet.
const CARRIED_OUT_WITHIN: Duration = Duration::from_secs(5);

/// An engine that waits for an answer.
pub(super) struct Attendant {
    until: Duration,
    answer: Answer<Orders>,
}

/// An operator who waits for engines to carry out an order.
pub(super) struct Ordering {
    owner: OwnerId,
    number: u64,
    engines: Vec<EngineKey>,
    until: Duration,
    answer: Answer<()>,
}

impl Core {
    pub(super) fn take_attendance(
        &mut self,
        attendance: Attendance,
        wait: Duration,
        answer: Answer<Orders>,
    ) {
        let now = self.now().monotonic;
        let key = (attendance.owner.clone(), attendance.session);
        let is_changed = self.engines.attended(attendance.bounded(), now);
        self.revision += u64::from(is_changed);
        let until = now + wait.min(self.limits.lease);
        let older = self.attendants.insert(key, Attendant { until, answer });
        if let Some(older) = older {
            let error = Error::conflict("a newer call of this engine has come");
            drop(older.answer.send(Err(error)));
        }
    }

    pub(super) fn take_order(
        &mut self,
        owner: OwnerId,
        table: Option<TableId>,
        answer: Answer<()>,
    ) {
        match self.engines.order(&owner, table) {
            Err(error) => drop(answer.send(Err(error))),
            Ok((number, engines)) => self.orderings.push(Ordering {
                owner,
                number,
                engines,
                until: self.now().monotonic + CARRIED_OUT_WITHIN,
                answer,
            }),
        }
    }

    /// Answers engines for which there is something, and operators whose orders were carried out.
    pub(super) fn answer_engines(&mut self) {
        let now = self.now().monotonic;
        self.attendants
            .retain(|_, attendant| !attendant.answer.is_closed());
        let engines = &mut self.engines;
        let have_news = engines.take_have_news();
        let due = self.attendants.extract_if(.., |key, attendant| {
            attendant.until <= now || (have_news && engines.has_news(key))
        });
        let due: Vec<_> = due.collect();
        for (key, attendant) in due {
            drop(attendant.answer.send(Ok(engines.answer(&key))));
        }
        let is_over = |ordering: &mut Ordering| {
            let mut ordered = ordering.engines.iter();
            ordering.until <= now
                || ordered.all(|key| engines.has_carried_out(key, ordering.number))
        };
        for ordering in self.orderings.extract_if(.., is_over) {
            let mut ordered = ordering.engines.iter();
            let is_done = ordered.all(|key| engines.has_carried_out(key, ordering.number));
            drop(ordering.answer.send(is_done.then_some(()).ok_or_else(|| {
                let (owner, seconds) = (&ordering.owner, CARRIED_OUT_WITHIN.as_secs());
                Error::unavailable(format!(
                    "owner {owner} has not tried again within {seconds} s; it will when it attends"
                ))
            })));
        }
    }

    /// When somebody has to be answered, or an engine has gone.
    pub(super) fn next_of_engines(&self) -> Option<Duration> {
        let attendants = self.attendants.values().map(|attendant| attendant.until);
        let orderings = self.orderings.iter().map(|ordering| ordering.until);
        let sweep = self.engines.sweep_at().into_iter();
        attendants.chain(orderings).chain(sweep).min()
    }

    /// The engines that have anything in quarantine, by owner.
    pub(in crate::meta) fn quarantine(&self) -> Vec<QuarantineInfo> {
        let now = self.now().monotonic;
        let engines = self.engines.iter().map(|(_, engine)| engine);
        let held = engines.filter(|engine| engine.attendance.quarantined() > 0);
        held.map(|engine| {
            let silent = now.saturating_sub(engine.called);
            let mut ssts = engine.attendance.quarantine.clone();
            for sst in &mut ssts {
                let passed = u64::try_from(silent.as_millis()).unwrap_or(u64::MAX);
                sst.retry_in_ms = sst.retry_in_ms.saturating_sub(passed);
            }
            QuarantineInfo {
                owner: engine.attendance.owner.clone(),
                engine: info(engine, now),
                ssts,
                left_out: engine.attendance.left_out,
            }
        })
        .collect()
    }

    /// Every engine that is remembered, with its owner.
    pub(super) fn engine_infos(&self) -> impl Iterator<Item = (&OwnerId, EngineInfo)> {
        let now = self.now().monotonic;
        let engines = self.engines.iter();
        engines.map(move |((owner, _), engine)| (owner, info(engine, now)))
    }
}

fn info(engine: &Engine, now: Duration) -> EngineInfo {
    let attendance = &engine.attendance;
    EngineInfo {
        session: attendance.session,
        host: attendance.host.clone(),
        version: attendance.version.clone(),
        attends: engine.attends,
        silent: now.saturating_sub(engine.called),
        has_namesakes: !engine.namesakes.is_empty(),
        quarantined: attendance.quarantined(),
    }
}
