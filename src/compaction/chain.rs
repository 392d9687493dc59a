//! What is known of one task's result: a chain of parts, each of which begins where the one before ends. Pure.
//!
//! The part at a position is whichever object was there first. So everybody who follows a chain sees the same
//! one, and whoever wants to add a part knows its position and the keys that are left for it.

use super::{Task, TaskOutcome, TaskPart, TaskSplit};
use crate::{
    error::{Error, Result},
    types::KeyRange,
};

/// The parts of a task's result from the first on, as far as they are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskChain {
    task: Task,
    outcomes: Vec<TaskOutcome>,
    split: Option<TaskSplit>,
}

impl TaskChain {
    /// The chain of `task`, with no part.
    pub fn new(task: Task) -> Self {
        Self {
            task,
            outcomes: Vec::new(),
            split: None,
        }
    }

    /// The task.
    pub fn task(&self) -> &Task {
        &self.task
    }

    /// The outcomes, in key order.
    pub fn outcomes(&self) -> &[TaskOutcome] {
        &self.outcomes
    }

    /// How the rest was split, if it was.
    pub fn split(&self) -> Option<&TaskSplit> {
        self.split.as_ref()
    }

    /// Position of the part that is to follow.
    pub fn next_part(&self) -> u32 {
        self.outcomes.len() as u32
    }

    /// The keys that no part covers; `None` when the chain has come to its end.
    pub fn rest(&self) -> Option<KeyRange> {
        if self.split.is_some() {
            return None;
        }
        let range = &self.task.range;
        let Some(last) = self.outcomes.last() else {
            return Some(range.clone());
        };
        (last.range.end != range.end).then(|| KeyRange {
            start: last.range.end.clone(),
            end: range.end.clone(),
        })
    }

    /// Adds the part that follows.
    ///
    /// # Errors
    /// `Corrupt`, naming the task, when it cannot be that.
    pub fn add(&mut self, part: TaskPart) -> Result<()> {
        let (id, next) = (self.task.id, self.next_part());
        let refuse = |what: String| {
            Err(Error::corrupt(format!(
                "part {next} of the result of task {id} {what}"
            )))
        };
        if (part.task(), part.part()) != (id, next) {
            let (task, part) = (part.task(), part.part());
            return refuse(format!("is part {part} of task {task}"));
        }
        let Some(rest) = self.rest() else {
            return refuse("comes after its end".into());
        };
        let range = part.range();
        if range.start != rest.start || range.is_empty() || range.and(&rest) != *range {
            return refuse(format!("covers {range:?}, where {rest:?} is left"));
        }
        match part {
            TaskPart::Outcome(outcome) => self.outcomes.push(outcome),
            TaskPart::Split(split) => {
                if let Some(fault) = fault_of(&split, &rest) {
                    return refuse(fault);
                }
                self.split = Some(split);
            }
        }
        Ok(())
    }
}

/// Why `split` is none of `rest`, if it is not.
fn fault_of(split: &TaskSplit, rest: &KeyRange) -> Option<String> {
    if split.range != *rest {
        return Some(format!("splits {:?}, where {rest:?} is left", split.range));
    }
    let mut start = Some(&rest.start);
    let mut index = split.task.index;
    for child in &split.children {
        let is_next = start == Some(&child.range.start) && !child.range.is_empty();
        if !is_next || child.id.job != split.task.job || child.id.index <= index {
            let (id, range) = (child.id, &child.range);
            return Some(format!("has a child {id} of {range:?} out of place"));
        }
        index = child.id.index;
        // Nothing can begin where the keys end.
        start = child.range.end.is_some().then_some(&child.range.end);
    }
    let end = split.children.last().map(|child| &child.range.end);
    (end != Some(&rest.end)).then(|| format!("has children that do not cover {rest:?}"))
}
