//! How far a job has come: the parts of its tasks' results that are known, and the tasks still to be run. Pure:
//! `results` reads the parts, and both compactors drive jobs by what this says.
//!
//! A job begins with the tasks of its plan. A split ends a task, and adds its children. When every task has come
//! to its end, the outcomes cover every key once. Where two compactors share a job, each goes by its share of the tasks.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    CompactionJob, CompactionOutcome, Share, Task, TaskChain, TaskOutcome, TaskPart, TaskSplit,
};
use crate::{
    error::{Error, Result},
    types::{Key, KeyRange},
};

/// What is known of a job's results.
#[derive(Clone, Debug)]
pub struct JobProgress {
    job: Arc<CompactionJob>,
    /// The tasks that are asked for.
    share: Share,
    /// The tasks by index: those of the plan, and the children of splits.
    chains: BTreeMap<u32, TaskChain>,
}

impl JobProgress {
    /// A job of which nothing is done.
    pub fn new(job: Arc<CompactionJob>) -> Self {
        Self::of_share(job, Share::ALL)
    }

    /// A job of which nothing is done, and only the tasks of `share` are asked for.
    pub fn of_share(job: Arc<CompactionJob>, share: Share) -> Self {
        let tasks = job.planned_tasks();
        let chains = tasks.map(|task| (task.id.index, TaskChain::new(task)));
        Self {
            chains: chains.collect(),
            share,
            job,
        }
    }

    /// The job.
    pub fn job(&self) -> &Arc<CompactionJob> {
        &self.job
    }

    /// What is known of the task at `index`; `None` when there is no such task, as far as is known.
    pub fn chain(&self, index: u32) -> Option<&TaskChain> {
        self.chains.get(&index)
    }

    /// Takes in a part, if it is the next one of a known task; says whether it was.
    ///
    /// # Errors
    /// `Corrupt`, naming the task, when a part at this position cannot be like that.
    pub fn add(&mut self, part: TaskPart) -> Result<bool> {
        let index = part.task().index;
        let is_next = self.chains.get(&index).is_some_and(|chain| {
            let is_same = chain.task().id == part.task();
            is_same && chain.next_part() == part.part() && chain.rest().is_some()
        });
        if !is_next {
            return Ok(false);
        }
        let children = match &part {
            TaskPart::Outcome(_) => Vec::new(),
            TaskPart::Split(split) => split.children.clone(),
        };
        let is_known = |child: &&Task| self.chains.contains_key(&child.id.index);
        if let Some(known) = children.iter().find(is_known) {
            let (task, child) = (part.task(), known.id);
            return Err(Error::corrupt(format!(
                "task {task} is split into {child}, which is another task"
            )));
        }
        if let Some(chain) = self.chains.get_mut(&index) {
            chain.add(part)?;
        }
        let children = children.into_iter();
        let chains = children.map(|child| (child.id.index, TaskChain::new(child)));
        self.chains.extend(chains);
        Ok(true)
    }

    /// Whether the task at `index` is asked for, is known, and has not come to its end.
    pub fn is_missing(&self, index: u32) -> bool {
        let chain = self.chains.get(&index);
        chain.is_some_and(|chain| chain.rest().is_some() && self.share.has(chain.task()))
    }

    /// The tasks that are asked for and have not come to their end, by index.
    pub fn missing(&self) -> impl Iterator<Item = &Task> {
        let chains = self.chains.values();
        chains
            .filter(|chain| chain.rest().is_some())
            .map(TaskChain::task)
            .filter(|task| self.share.has(task))
    }

    /// Whether every task that is asked for has come to its end.
    pub fn is_complete(&self) -> bool {
        self.missing().next().is_none()
    }

    /// About how many input bytes `task` reads: the inputs that overlap it, shared equally with the other tasks
    /// that they overlap and that are not split.
    pub fn task_bytes(&self, task: &Task) -> u64 {
        let chains = self.chains.values();
        let whole = chains.filter(|chain| chain.split().is_none());
        let ranges: Vec<&KeyRange> = whole.map(|chain| &chain.task().range).collect();
        let inputs = self.job.inputs_in(&task.range);
        let shares = inputs.map(|sst| {
            let ranges = ranges.iter();
            let overlapping = ranges.filter(|range| range.overlaps(&sst.key_min, &sst.key_max));
            sst.bytes / overlapping.count().max(1) as u64
        });
        shares.sum()
    }

    /// The split of the rest of the task at `index` at `cut`, a key inside of it. `None` when nothing is left of it, or
    /// when there are [no numbers](crate::types::TaskId::halves) for its halves.
    pub fn split(&self, index: u32, cut: Key) -> Option<TaskSplit> {
        let chain = self.chains.get(&index)?;
        let rest = chain.rest()?;
        let task = chain.task().id;
        let [left, right] = task.halves()?;
        let before = KeyRange {
            start: rest.start.clone(),
            end: Some(cut.clone()),
        };
        let after = KeyRange {
            start: Some(cut),
            end: rest.end.clone(),
        };
        let children = [(left, before), (right, after)].map(|(id, range)| Task { id, range });
        Some(TaskSplit {
            task,
            part: chain.next_part(),
            children: children.into(),
            range: rest,
        })
    }

    /// The outcomes that are known, in key order.
    pub fn outcomes(&self) -> impl Iterator<Item = &TaskOutcome> {
        let mut outcomes: Vec<&TaskOutcome> = self
            .chains
            .values()
            .flat_map(|chain| chain.outcomes())
            .collect();
        // None, which is less than every key, is the very first.
        outcomes.sort_by(|left, right| left.range.start.cmp(&right.range.start));
        outcomes.into_iter()
    }

    /// What the tasks that are asked for produced.
    ///
    /// # Errors
    /// `Internal`, naming a task, when one of them has not come to its end.
    pub fn into_outcome(self) -> Result<CompactionOutcome> {
        if let Some(task) = self.missing().next() {
            let id = task.id;
            return Err(Error::internal(format!("task {id} has no result")));
        }
        let (share, chains) = (&self.share, self.chains.values());
        let outcomes = self.outcomes();
        let outcomes = outcomes.filter(|outcome| share.has_keys(&outcome.range));
        let splits = chains.filter_map(TaskChain::split);
        let splits = splits.filter(|split| share.has_keys(&split.range));
        Ok(CompactionOutcome {
            parts: outcomes.cloned().collect(),
            splits: splits.cloned().collect(),
        })
    }
}

#[cfg(test)]
mod tests;
