//! Carrying out updates. Every entry compares before it changes: what was applied before, or has been
//! overtaken, changes nothing.

use super::{Job, Lease, Phase, State, Task};
use crate::{
    compaction::remote::AttemptId,
    meta::update::{Assigned, Completed, Failed, NewJob, PlanUpdate, Renewed, Requeued},
    types::{JobId, TaskId},
};

impl State {
    /// Carries `update` out. Once more changes nothing more.
    pub fn apply(&mut self, update: &PlanUpdate) {
        update.new.iter().for_each(|entry| self.add(entry));
        update.assigned.iter().for_each(|entry| self.assign(entry));
        update.renewed.iter().for_each(|entry| self.renew(entry));
        update.completed.iter().for_each(|e| self.complete(e));
        update.failed.iter().for_each(|entry| self.fail(entry));
        update.requeued.iter().for_each(|entry| self.requeue(entry));
        update.released.iter().for_each(|&job| self.release(job));
    }

    fn add(&mut self, new: &NewJob) {
        let id = new.job.job;
        if self.jobs.contains_key(&id) {
            return;
        }
        let job = Job::new(new.job.clone(), new.submitted_ms, self.next_sequence);
        self.next_sequence += 1;
        for (&index, task) in &job.tasks {
            self.index.add(&job, TaskId { job: id, index }, &task.phase);
        }
        self.jobs.insert(id, job);
    }

    fn release(&mut self, id: JobId) {
        if let Some(job) = self.jobs.remove(&id) {
            for (&index, task) in &job.tasks {
                self.index
                    .remove(&job, TaskId { job: id, index }, &task.phase);
            }
        }
    }

    fn assign(&mut self, entry: &Assigned) {
        let AttemptId { task, token } = entry.attempt;
        self.last_token = self.last_token.max(token);
        let lease = Lease {
            ends: entry.at + self.limits.lease,
            progress: 0,
            moved: entry.at,
        };
        self.change(task, |task| {
            let is_next = matches!(task.phase, Phase::Queued { .. }) && token > task.token;
            is_next.then(|| {
                task.token = token;
                Phase::Assigned {
                    node: entry.node.clone(),
                    session: entry.session,
                    lease,
                }
            })
        });
    }

    fn renew(&mut self, entry: &Renewed) {
        let length = self.limits.lease;
        let job = self.jobs.get_mut(&entry.attempt.task.job);
        let task = job.and_then(|job| job.tasks.get_mut(&entry.attempt.task.index));
        if let Some(task) = task.filter(|task| task.token == entry.attempt.token)
            && let Phase::Assigned { lease, .. } = &mut task.phase
        {
            if lease.progress != entry.progress {
                lease.progress = entry.progress;
                lease.moved = entry.at;
            }
            lease.ends = lease.ends.max(entry.at + length);
        }
    }

    fn complete(&mut self, entry: &Completed) {
        self.change(entry.task, |task| {
            let is_first = !matches!(task.phase, Phase::Done { .. });
            is_first.then(|| Phase::Done {
                node: entry.node.clone(),
            })
        });
    }

    fn fail(&mut self, entry: &Failed) {
        self.change(entry.attempt.task, |task| {
            is_current(task, entry.attempt).then(|| {
                task.attempts = entry.attempts;
                task.last_failure = Some(entry.message.clone());
                Phase::Failed {
                    kind: entry.kind,
                    message: entry.message.clone(),
                }
            })
        });
    }

    fn requeue(&mut self, entry: &Requeued) {
        self.change(entry.attempt.task, |task| {
            is_current(task, entry.attempt).then(|| {
                task.attempts = entry.attempts;
                task.last_failure = Some(entry.reason.clone());
                task.avoid.retain(|_, until| *until > entry.ready_at);
                task.avoid.extend(entry.avoid.clone());
                Phase::Queued {
                    ready_at: entry.ready_at,
                }
            })
        });
    }

    /// The one door through which a task changes its phase: keeps index and revision.
    fn change(&mut self, id: TaskId, next: impl FnOnce(&mut Task) -> Option<Phase>) {
        let Some(job) = self.jobs.get_mut(&id.job) else {
            return;
        };
        let Some(task) = job.tasks.get_mut(&id.index) else {
            return;
        };
        let Some(phase) = next(task) else {
            return;
        };
        let before = std::mem::replace(&mut task.phase, phase.clone());
        job.revision += 1;
        self.index.remove(job, id, &before);
        self.index.add(job, id, &phase);
    }
}

fn is_current(task: &Task, attempt: AttemptId) -> bool {
    task.token == attempt.token && matches!(task.phase, Phase::Assigned { .. })
}
