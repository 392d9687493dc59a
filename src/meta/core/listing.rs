//! What operators are shown of the core.

use std::{collections::BTreeMap, time::Duration};

use super::{Core, bytes_of};
use crate::{
    meta::{
        admin::{JobInfo, NodeInfo, OwnerInfo, TaskInfo},
        state::{Phase, Task},
        stats::MetaStats,
    },
    types::OwnerId,
};

impl Core {
    /// Every node that is remembered.
    pub(in crate::meta) fn nodes(&self) -> Vec<NodeInfo> {
        let now = self.now().monotonic;
        let nodes = self.registry.iter().map(|(id, node)| NodeInfo {
            facts: node.facts.clone(),
            state: node.state(now, self.limits.lease),
            slots_free: node.slots_free,
            tasks: self.state.assigned_to(id).count(),
            bytes: bytes_of(self.state.assigned_to(id).map(|(_, task)| task)),
            silent: now.saturating_sub(node.polled),
        });
        nodes.collect()
    }

    /// Every job, in the order of submission.
    pub(in crate::meta) fn jobs(&self) -> Vec<JobInfo> {
        let fleet = self.fleet();
        let mut jobs: Vec<_> = self.state.jobs().collect();
        jobs.sort_by_key(|(_, job)| job.sequence);
        let info = jobs.into_iter().map(|(id, job)| JobInfo {
            job: id,
            owner: job.submission.owner.clone(),
            table: job.submission.table,
            pressure: job.pressure(),
            label: job.submission.label.clone(),
            submitted_ms: job.submitted_ms,
            done_estimate: fleet.done_estimate(job),
            tasks: job
                .tasks
                .iter()
                .map(|(&index, task)| info(index, task))
                .collect(),
        });
        info.collect()
    }

    /// Every owner that has jobs or an engine, or for which something is set.
    pub(in crate::meta) fn owners(&self) -> Vec<OwnerInfo> {
        let (settings, now_ms) = (self.state.settings(), self.now().unix_ms);
        let fleet = self.fleet();
        let set = settings.weights.keys().chain(&settings.paused_owners);
        let with_jobs = self.state.owners().map(|(owner, _)| owner);
        let new = |owner: &OwnerId| OwnerInfo {
            owner: owner.clone(),
            weight: settings.weight(owner),
            paused: settings.paused_owners.contains(owner),
            paused_tables: Default::default(),
            jobs: 0,
            queued: 0,
            running: 0,
            oldest_wait: Duration::ZERO,
            jobs_window: fleet.window(owner),
            engines: Vec::new(),
        };
        let with_engines = self.engines.iter().map(|((owner, _), _)| owner);
        let mut owners: BTreeMap<&OwnerId, OwnerInfo> = set
            .chain(with_jobs)
            .chain(with_engines)
            .map(|owner| (owner, new(owner)))
            .collect();
        for (_, job) in self.state.jobs() {
            let submission = &job.submission;
            let Some(info) = owners.get_mut(&submission.owner) else {
                continue;
            };
            info.jobs += 1;
            if settings.paused_tables.contains(&submission.table) {
                info.paused_tables.insert(submission.table);
            }
            let count =
                |is: fn(&Phase) -> bool| job.tasks.values().filter(|task| is(&task.phase)).count();
            let queued = count(|phase| matches!(phase, Phase::Queued { .. }));
            info.queued += queued;
            info.running += count(|phase| matches!(phase, Phase::Assigned { .. }));
            if queued > 0 {
                let wait = Duration::from_millis(now_ms.saturating_sub(job.submitted_ms));
                info.oldest_wait = info.oldest_wait.max(wait);
            }
        }
        for (owner, engine) in self.engine_infos() {
            if let Some(info) = owners.get_mut(owner) {
                info.engines.push(engine);
            }
        }
        owners.into_values().collect()
    }
}

impl Core {
    /// Everything in numbers.
    pub(in crate::meta) fn stats(&self) -> MetaStats {
        let now = self.now();
        let mut stats = MetaStats {
            owners: self.state.owners().count() as u64,
            jobs: self.state.jobs().count() as u64,
            log_away: self.log_away,
            events: self.events.clone(),
            ..MetaStats::default()
        };
        for (_, node) in self.registry.iter() {
            let state = node.state(now.monotonic, self.limits.lease);
            *stats.nodes.entry(state.as_str()).or_default() += 1;
        }
        for (_, engine) in self.engines.iter().filter(|(_, engine)| engine.attends) {
            stats.engines += 1;
            let held = engine.attendance.quarantined();
            stats.ssts_quarantined = stats.ssts_quarantined.saturating_add(held);
        }
        for (id, node) in self.takers(now) {
            stats.slots += u64::from(node.facts.slots);
            stats.memory_bytes = stats.memory_bytes.saturating_add(node.facts.memory_bytes);
            for (_, task) in self.state.assigned_to(id) {
                stats.slots_used += 1;
                stats.memory_used = stats.memory_used.saturating_add(task.memory);
            }
        }
        let mut work = Duration::ZERO;
        for (_, job) in self.state.jobs() {
            let mut waits = false;
            for task in job.tasks.values() {
                *stats.tasks.entry(task.phase.as_str()).or_default() += 1;
                if matches!(task.phase, Phase::Queued { .. }) {
                    waits = true;
                    stats.queued_bytes = stats.queued_bytes.saturating_add(task.bytes);
                    let expected = self.speed.expected(task.bytes);
                    work = work.saturating_add(expected.unwrap_or_default());
                }
            }
            if waits {
                let wait = Duration::from_millis(now.unix_ms.saturating_sub(job.submitted_ms));
                stats.oldest_wait = stats.oldest_wait.max(wait);
            }
        }
        let slots = u32::try_from(stats.slots).unwrap_or(u32::MAX);
        let is_known = self.speed.expected(0).is_some();
        stats.clear_estimate = is_known.then(|| work.checked_div(slots)).flatten();
        stats
    }
}

/// The task at `index` of its job.
pub(super) fn info(index: u32, task: &Task) -> TaskInfo {
    let holders = task.holders();
    TaskInfo {
        index,
        bytes: task.bytes,
        state: task.state(),
        attempts: task.attempts,
        last_failure: task.last_failure.clone(),
        progress: holders.last().map_or(0, |holder| holder.lease.progress),
        nodes: holders.iter().map(|holder| holder.node.clone()).collect(),
    }
}
