//! What operators are shown of the core.

use super::{Core, bytes_of};
use crate::meta::{
    admin::{JobInfo, NodeInfo, TaskInfo},
    state::Phase,
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
        let mut jobs: Vec<_> = self.state.jobs().collect();
        jobs.sort_by_key(|(_, job)| job.sequence);
        let info = jobs.into_iter().map(|(id, job)| {
            let tasks = job.tasks.iter().map(|(&index, task)| TaskInfo {
                index,
                bytes: task.bytes,
                state: task.state(),
                attempts: task.attempts,
                last_failure: task.last_failure.clone(),
                progress: match &task.phase {
                    Phase::Assigned { lease, .. } => lease.progress,
                    _ => 0,
                },
            });
            JobInfo {
                job: id,
                owner: job.submission.owner.clone(),
                label: job.submission.label.clone(),
                submitted_ms: job.submitted_ms,
                tasks: tasks.collect(),
            }
        });
        info.collect()
    }
}
