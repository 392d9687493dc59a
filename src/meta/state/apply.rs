//! Carrying out updates. Every entry compares before it changes: what was applied before, or has been
//! overtaken, changes nothing.

use std::sync::Arc;

use super::{Holder, Job, Lease, Phase, State, Task};
use crate::{
    compaction::remote::AttemptId,
    meta::update::{Assigned, Cancelled, Completed, Failed, NewJob, PlanUpdate, Renewed, Requeued},
    types::{JobId, TaskId, Token},
};

impl State {
    /// Carries `update` out. Once more changes nothing more.
    pub fn apply(&mut self, update: &PlanUpdate) {
        update
            .displaced
            .iter()
            .for_each(|&task| self.displace(task));
        update.new.iter().for_each(|entry| self.add(entry));
        update.assigned.iter().for_each(|entry| self.assign(entry));
        update.renewed.iter().for_each(|entry| self.renew(entry));
        update.slowed.iter().for_each(|&attempt| self.slow(attempt));
        update.completed.iter().for_each(|e| self.complete(e));
        update.failed.iter().for_each(|entry| self.fail(entry));
        update.requeued.iter().for_each(|entry| self.requeue(entry));
        update.cancelled.iter().for_each(|entry| self.cancel(entry));
        update.retried.iter().for_each(|&task| self.retry(task));
        update.raised.iter().for_each(|&job| self.raise(job));
        update.released.iter().for_each(|&job| self.release(job));
        if let Some(settings) = &update.settings {
            self.settings = settings.clone();
        }
    }

    fn add(&mut self, new: &NewJob) {
        let id = new.job.job;
        if self.jobs.contains_key(&id) {
            return self.add_tasks(new);
        }
        let job = Job::new(new.job.clone(), new.submitted_ms, self.next_sequence);
        self.next_sequence += 1;
        self.index.add_job(&job);
        for (&index, task) in &job.tasks {
            self.index.add(&job, TaskId { job: id, index }, task);
        }
        self.jobs.insert(id, job);
    }

    /// Adds what a known job lacks, and queues again what had to give way.
    fn add_tasks(&mut self, new: &NewJob) {
        if let Some(job) = self.jobs.get_mut(&new.job.job)
            && job.submission.body.is_empty()
        {
            Arc::make_mut(&mut job.submission).body = new.job.body.clone();
            // Who has tasks of it can be told of them now.
            let holders = job.tasks.values().flat_map(Task::holders);
            let nodes = holders.map(|holder| holder.node.clone());
            self.index.touched.extend(nodes);
        }
        for submitted in &new.job.tasks {
            let index = submitted.index;
            let id = TaskId {
                job: new.job.job,
                index,
            };
            let Some(job) = self.jobs.get_mut(&id.job) else {
                return;
            };
            if job.tasks.contains_key(&index) {
                self.change(id, |task| {
                    matches!(task.phase, Phase::Displaced).then_some(Phase::READY)
                });
                continue;
            }
            job.revision += 1;
            let task = Task {
                revision: job.revision,
                ..Task::new(submitted)
            };
            let submission = Arc::make_mut(&mut job.submission);
            submission.tasks.push(submitted.clone());
            self.index.add(job, id, &task);
            job.tasks.insert(index, task);
        }
    }

    fn release(&mut self, id: JobId) {
        if let Some(job) = self.jobs.remove(&id) {
            self.index.remove_job(&job);
            for (&index, task) in &job.tasks {
                self.index.remove(&job, TaskId { job: id, index }, task);
            }
        }
    }

    fn displace(&mut self, task: TaskId) {
        self.change(task, |task| {
            matches!(task.phase, Phase::Queued { .. }).then_some(Phase::Displaced)
        });
    }

    fn assign(&mut self, entry: &Assigned) {
        let AttemptId { task, token } = entry.attempt;
        self.last_token = self.last_token.max(token);
        let holder = Holder {
            token,
            node: entry.node.clone(),
            session: entry.session,
            hedge: entry.hedge,
            lease: Lease::new(entry.at, self.limits.lease),
        };
        self.change(task, |task| {
            if token <= task.token {
                return None;
            }
            let mut holders = match (&task.phase, entry.hedge) {
                (Phase::Queued { .. }, false) => Vec::new(),
                (Phase::Assigned { holders }, true) if holders.len() == 1 => holders.clone(),
                _ => return None,
            };
            task.token = token;
            task.slow = false;
            holders.push(holder);
            Some(Phase::Assigned { holders })
        });
    }

    fn renew(&mut self, entry: &Renewed) {
        let length = self.limits.lease;
        let AttemptId { task, token } = entry.attempt;
        let job = self.jobs.get_mut(&task.job);
        let task = job.and_then(|job| job.tasks.get_mut(&task.index));
        let Some(Phase::Assigned { holders }) = task.map(|task| &mut task.phase) else {
            return;
        };
        let held = holders.iter_mut().find(|holder| holder.token == token);
        if let Some(Holder { lease, .. }) = held {
            if lease.progress != entry.progress {
                lease.progress = entry.progress;
                lease.moved = entry.at;
            }
            lease.ends = lease.ends.max(entry.at + length);
        }
    }

    fn slow(&mut self, attempt: AttemptId) {
        self.change(attempt.task, |task| {
            let is_news = task.token == attempt.token && holds(task, task.token) && !task.slow;
            is_news.then(|| {
                task.slow = true;
                task.phase.clone()
            })
        });
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
        self.change(entry.task, |task| {
            let is_current = match entry.token {
                // No attempt has failed: there is no node for it.
                Token(0) => matches!(task.phase, Phase::Queued { .. }),
                token => holds(task, token),
            };
            is_current.then(|| {
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
            let token = entry.attempt.token;
            let others = task.holders().iter().filter(|holder| holder.token != token);
            let holders: Vec<Holder> = others.cloned().collect();
            holds(task, token).then(|| {
                task.attempts = entry.attempts;
                task.outages = entry.outages;
                task.last_failure = Some(entry.reason.clone());
                task.avoid.retain(|_, until| *until > entry.ready_at);
                task.avoid.extend(entry.avoid.clone());
                match holders.is_empty() {
                    true => Phase::Queued {
                        ready_at: entry.ready_at,
                    },
                    false => Phase::Assigned { holders },
                }
            })
        });
    }

    fn cancel(&mut self, entry: &Cancelled) {
        self.change(entry.task, |task| {
            let is_wanted = task.phase.is_open() || matches!(task.phase, Phase::Displaced);
            is_wanted.then(|| Phase::Cancelled {
                reason: entry.reason.clone(),
            })
        });
    }

    fn retry(&mut self, task: TaskId) {
        self.change(task, |task| {
            let has_ended = matches!(task.phase, Phase::Failed { .. } | Phase::Cancelled { .. });
            has_ended.then(|| {
                task.attempts = 0;
                task.avoid.clear();
                Phase::READY
            })
        });
    }

    fn raise(&mut self, id: JobId) {
        let Some(job) = self.jobs.get_mut(&id).filter(|job| !job.raised) else {
            return;
        };
        let tasks = job.tasks.iter();
        let ids = tasks.map(|(&index, task)| (TaskId { job: id, index }, task));
        for (id, task) in ids.clone() {
            self.index.remove(job, id, task);
        }
        let mut raised = job.clone();
        raised.raised = true;
        raised.revision += 1;
        for (id, task) in ids {
            self.index.add(&raised, id, task);
        }
        *job = raised;
    }

    /// The one door through which a task changes its phase: keeps index and revision.
    fn change(&mut self, id: TaskId, next: impl FnOnce(&mut Task) -> Option<Phase>) {
        let Some(job) = self.jobs.get_mut(&id.job) else {
            return;
        };
        let Some(mut task) = job.tasks.remove(&id.index) else {
            return;
        };
        self.index.remove(job, id, &task);
        if let Some(phase) = next(&mut task) {
            job.revision += 1;
            task.phase = phase;
            task.revision = job.revision;
        }
        self.index.add(job, id, &task);
        job.tasks.insert(id.index, task);
    }
}

fn holds(task: &Task, token: Token) -> bool {
    let mut holders = task.holders().iter();
    holders.any(|holder| holder.token == token)
}
