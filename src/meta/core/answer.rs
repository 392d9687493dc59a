//! What everybody is answered at the end of a round: those that asked for a change, engines that watch jobs, and
//! nodes, as soon as there is something new for them.

use std::collections::BTreeSet;

use super::{Core, Look, Waiting};
use crate::{
    compaction::remote::{Assignment, AttemptId, JobStatus, NodePoll, PollReply},
    error::Error,
    types::NodeId,
};

/// Job bodies in one reply, in bytes; what does not fit comes with the next.
const REPLY_BYTES_MAX: usize = 32 << 20;

impl Core {
    /// Answers everybody that can be, once the log has what they are told.
    pub(super) fn answer(&mut self) {
        for (answer, result) in self.acks.drain(..) {
            drop(answer.send(result));
        }
        self.answer_watchers();
        self.answer_polls();
        let now = self.now().monotonic;
        let looks = std::mem::take(&mut self.looks).into_iter();
        let (due, waiting) =
            looks.partition(|look| look.seen != self.revision || look.until <= now);
        self.looks = waiting;
        let due: Vec<Look> = due;
        due.into_iter().for_each(|look| (look.read)(Ok(self)));
    }

    fn answer_watchers(&mut self) {
        if self.watchers.is_empty() {
            return;
        }
        let now = self.now().monotonic;
        let watchers = std::mem::take(&mut self.watchers);
        let mut waiting = Vec::new();
        let fleet = self.fleet();
        for watcher in watchers {
            let job = watcher.job;
            let status = match self.state.job(job) {
                None => Err(Error::not_found(format!("job {job} is not known"))),
                // As if it were not: its engine submits it again.
                Some(known) if known.lacks_body() => Err(Error::not_found(format!(
                    "the body of job {job} is not known"
                ))),
                Some(job) if job.revision > watcher.seen || watcher.until <= now => Ok(JobStatus {
                    revision: job.revision,
                    tasks: job.states_since(watcher.seen),
                    jobs_window: fleet.window(&job.submission.owner),
                    nodes: fleet.able(&job.submission.needs),
                }),
                Some(_) => {
                    waiting.push(watcher);
                    continue;
                }
            };
            drop(watcher.answer.send(status));
        }
        drop(fleet);
        self.watchers = waiting;
    }

    fn answer_polls(&mut self) {
        let now = self.now().monotonic;
        let polls = self.polls.iter();
        let due = polls.filter(|(_, waiting)| waiting.until <= now);
        let mut due: BTreeSet<NodeId> = due.map(|(id, _)| id.clone()).collect();
        self.newsworthy.extend(self.state.take_touched());
        for id in std::mem::take(&mut self.newsworthy) {
            let waiting = self.polls.get(&id);
            if waiting.is_some_and(|waiting| self.has_news(&id, waiting)) {
                due.insert(id);
            }
        }
        for id in due {
            if let Some(waiting) = self.polls.remove(&id) {
                let reply = self.reply(&id, &waiting.poll);
                self.registry.answered(&id, now);
                drop(waiting.answer.send(Ok(reply)));
            }
        }
    }

    /// Whether a node that waits would hear something new: a task, or that one is no longer its own, or that it
    /// is to end.
    fn has_news(&self, id: &NodeId, waiting: &Waiting) -> bool {
        let poll = &waiting.poll;
        let (session, running) = (poll.facts.session, &poll.running);
        let is_running = |attempt| running.iter().any(|known| known.attempt == attempt);
        let job = |attempt: AttemptId| self.state.job(attempt.task.job);
        // Without its body a job cannot be handed on.
        let can_say = |attempt| job(attempt).is_some_and(|job| !job.submission.body.is_empty());
        let mut assigned = self.state.assigned_to(id);
        let mut known = running.iter();
        known.any(|known| !self.state.holds(id, session, known.attempt))
            || assigned.any(|(attempt, _)| {
                !is_running(attempt) && can_say(attempt) && self.state.holds(id, session, attempt)
            })
            || self.drains(id, poll)
    }

    /// Whether a node is to be told to end.
    fn drains(&self, id: &NodeId, poll: &NodePoll) -> bool {
        !poll.draining && self.registry.get(id).is_some_and(|node| node.drain)
    }

    fn reply(&self, id: &NodeId, poll: &NodePoll) -> PollReply {
        let session = poll.facts.session;
        let known = running(poll);
        let renewed = known.iter().copied();
        let mut reply = PollReply {
            renewed: renewed
                .filter(|&attempt| self.state.holds(id, session, attempt))
                .collect(),
            acknowledged: poll.finished.iter().map(|report| report.attempt).collect(),
            lease: self.limits.lease,
            drain: self.drains(id, poll),
            ..PollReply::default()
        };
        let kept = poll.kept_jobs();
        let mut bytes = 0;
        for (attempt, task) in self.state.assigned_to(id) {
            if known.contains(&attempt) || !self.state.holds(id, session, attempt) {
                continue;
            }
            let job = attempt.task.job;
            let is_sent = reply.jobs.last().is_some_and(|(last, _)| *last == job);
            if !is_sent && !kept.contains(&job) {
                let Some(found) = self.state.job(job) else {
                    continue;
                };
                let body = &found.submission.body;
                if body.is_empty() {
                    continue;
                }
                bytes += body.len();
                if bytes > REPLY_BYTES_MAX && !reply.jobs.is_empty() {
                    break;
                }
                reply.jobs.push((job, body.clone()));
            }
            reply.assignments.push(Assignment {
                attempt,
                range: task.range.as_deref().cloned(),
                memory: task.memory,
            });
        }
        reply
    }

    /// Answers everybody that the log is away.
    pub(super) fn refuse(&mut self, error: &Error) {
        let error = Error::unavailable(error.message());
        for (answer, _) in self.acks.drain(..) {
            drop(answer.send(Err(error.clone())));
        }
        for watcher in self.watchers.drain(..) {
            drop(watcher.answer.send(Err(error.clone())));
        }
        for waiting in std::mem::take(&mut self.polls).into_values() {
            drop(waiting.answer.send(Err(error.clone())));
        }
        for look in std::mem::take(&mut self.looks) {
            (look.read)(Err(error.clone()));
        }
    }
}

fn running(poll: &NodePoll) -> BTreeSet<AttemptId> {
    poll.running.iter().map(|running| running.attempt).collect()
}
