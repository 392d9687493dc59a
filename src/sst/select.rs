//! Which rows of which row groups can be wanted, before any of them is read.
//!
//! Keys and points choose blocks by the index's marks; times and the filter choose row groups by their
//! statistics, then pages by the page index. What is chosen so may hold more than was asked for: [`Selected`]
//! says what must still be tested, row by row.

use std::sync::Arc;

use super::{
    file::{Block, SstFile},
    pruning::{self, Pruning},
    rows::RowRanges,
    source::ReadRequest,
};
use crate::{
    error::Result,
    types::{Filter, Key, KeyRange, TimeRange},
};

/// What a source looks for.
pub(super) struct Selector {
    pub(super) keys: KeyRange,
    pub(super) points: Option<Arc<[Key]>>,
    pub(super) times: Option<TimeRange>,
    pub(super) pruning: Option<Pruning>,
}

/// The rows of a row group that can be wanted.
#[derive(Debug)]
pub(super) struct Selected {
    pub(super) group: usize,
    pub(super) rows: RowRanges,
    /// Rows that may have other keys than those asked for.
    pub(super) unsure_keys: RowRanges,
    /// Whether some may have other times.
    pub(super) unsure_times: bool,
}

impl Selector {
    pub(super) fn new(file: &SstFile, request: &ReadRequest) -> Self {
        let pruning = |filter: &Filter| Pruning {
            filter: filter.clone(),
            keep_tombstones: request.keep_tombstones && file.meta.tombstones > 0,
        };
        Self {
            keys: request.keys.clone(),
            points: request.points.clone(),
            times: request.times.filter(|_| file.schema.time().is_some()),
            pruning: request.filter.as_ref().map(pruning),
        }
    }

    /// The row groups that can hold a wanted row, by the keys in the footer and by their statistics.
    pub(super) fn groups(&self, file: &SstFile) -> Result<Vec<usize>> {
        let opened = &file.opened;
        let pass = self.pruning.as_ref();
        let pass = pass.map(|pruning| pruning.groups(file)).transpose()?;
        let keys = &opened.footer.row_group_keys;
        let wanted = (0..keys.len()).filter(|&group| {
            let next = keys.get(group + 1);
            let whole = Block {
                rows: 0..opened.group_rows(group),
                first: &keys[group],
                last: next.unwrap_or(&file.meta.key_max),
                last_inside: next.is_none() || !opened.keys_are_unique(),
            };
            pass.as_ref().is_none_or(|pass| pass[group]) && self.may_hold_key(&whole)
        });
        Ok(wanted.collect())
    }

    /// The rows of `group`.
    pub(super) fn rows(&self, file: &SstFile, group: usize) -> Result<Selected> {
        let blocks: Vec<Block<'_>> = file.blocks(group).collect();
        let wanted = blocks
            .iter()
            .map(|block| (block.rows.clone(), self.may_hold_key(block)));
        let mut rows = RowRanges::of(wanted);
        let unsure = blocks
            .iter()
            .map(|block| (block.rows.clone(), !self.holds_only_wanted(block)));
        let unsure = RowRanges::of(unsure);
        let mut unsure_times = false;
        if let Some(times) = self.times {
            let (in_time, all_inside) = pruning::rows_in_time(file, group, times)?;
            rows = rows.and(&in_time);
            unsure_times = !all_inside;
        }
        if let Some(pruning) = &self.pruning {
            rows = rows.and(&pruning.rows(file, group)?);
        }
        Ok(Selected {
            group,
            unsure_keys: unsure.and(&rows),
            unsure_times,
            rows,
        })
    }

    fn may_hold_key(&self, block: &Block<'_>) -> bool {
        let (start, end) = (self.keys.start.as_ref(), self.keys.end.as_ref());
        let is_before = |key: &Key| match block.last_inside {
            true => block.last < key,
            false => block.last <= key,
        };
        if start.is_some_and(is_before) || end.is_some_and(|end| block.first >= end) {
            return false;
        }
        self.points.as_ref().is_none_or(|points| {
            let next = points.partition_point(|point| point < block.first);
            points
                .get(next)
                .is_some_and(|point| match block.last_inside {
                    true => point <= block.last,
                    false => point < block.last,
                })
        })
    }

    fn holds_only_wanted(&self, block: &Block<'_>) -> bool {
        let ends_inside = match &self.keys.end {
            None => true,
            Some(end) if block.last_inside => block.last < end,
            Some(end) => block.last <= end,
        };
        self.points.is_none() && ends_inside && self.keys.contains(&block.first.0)
    }
}
