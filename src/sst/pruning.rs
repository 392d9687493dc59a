//! Which row groups and pages can hold rows for a filter or a time range, by Parquet's statistics.
//!
//! A file keeps the columns it was written with. They are found by id, whatever they are called now; one that
//! was added since is null throughout; bounds of one that was widened since are cast. Bounds that are cut short
//! are bounds all the same. What is not known, and what the statistics leave out (NaN), may match.

use std::ops::Range;

use arrow::{
    array::{Array, ArrayRef, AsArray, UInt64Array, new_null_array},
    compute::{cast, nullif},
    datatypes::{DataType, FieldRef, Int64Type},
};
use parquet::arrow::arrow_reader::statistics::StatisticsConverter;

use super::{
    fetch::{PagePlace, pages},
    file::{Opened, SstFile},
    rows::RowRanges,
};
use crate::{
    error::Result,
    types::{ColumnBounds, Filter, Node, OP_COLUMN, TimeRange, column_id},
};

/// A filter, and whether tombstones pass it whatever it says.
#[derive(Clone)]
pub(super) struct Pruning {
    pub(super) filter: Filter,
    pub(super) keep_tombstones: bool,
}

impl Pruning {
    /// Which row groups may hold a row that passes.
    pub(super) fn groups(&self, file: &SstFile) -> Result<Vec<bool>> {
        let groups = file.opened.parquet.metadata().num_row_groups();
        let parts: Vec<Range<usize>> = (0..groups).map(|group| group..group + 1).collect();
        let pass = self.evaluate(&|name| {
            let bounds = Column::find(file, name).group_bounds(&file.opened)?;
            Ok((bounds, parts.clone()))
        })?;
        Ok(parts.iter().map(|part| pass.overlaps(part)).collect())
    }

    /// Which rows of `group` lie in pages that may hold one that passes.
    pub(super) fn rows(&self, file: &SstFile, group: usize) -> Result<RowRanges> {
        self.evaluate(&|name| Column::find(file, name).page_bounds(&file.opened, group))
    }

    /// `bounds` are those of a column in some parts, and where these lie.
    fn evaluate(&self, bounds: &BoundsOf<'_>) -> Result<RowRanges> {
        let pass = evaluate(self.filter.root(), bounds)?;
        if !self.keep_tombstones {
            return Ok(pass);
        }
        let (ops, parts) = bounds(OP_COLUMN)?;
        let ops = cast(&ops.max, &DataType::Int64)?;
        let ops = ops.as_primitive::<Int64Type>().iter();
        let holds_some = parts.into_iter().zip(ops.map(|op| op != Some(0)));
        Ok(pass.or(&RowRanges::of(holds_some)))
    }
}

type BoundsOf<'a> = dyn Fn(&str) -> Result<(ColumnBounds, Vec<Range<usize>>)> + 'a;

fn evaluate(node: &Node, bounds: &BoundsOf<'_>) -> Result<RowRanges> {
    let everything = || RowRanges::all(usize::MAX);
    match node {
        Node::Leaf(leaf) => match leaf.column() {
            Some(name) => {
                let (bounds, parts) = bounds(name)?;
                Ok(RowRanges::of(
                    parts.into_iter().zip(leaf.may_match(&bounds)?),
                ))
            }
            None => Ok(everything()),
        },
        Node::And(nodes) => nodes.iter().try_fold(everything(), |pass, node| {
            if pass.is_empty() {
                return Ok(pass);
            }
            Ok(pass.and(&evaluate(node, bounds)?))
        }),
        Node::Or(nodes) => nodes.iter().try_fold(RowRanges::default(), |pass, node| {
            Ok(pass.or(&evaluate(node, bounds)?))
        }),
    }
}

/// Which rows of `group` lie in pages that may hold a time of `times`, and whether all in these do.
pub(super) fn rows_in_time(
    file: &SstFile,
    group: usize,
    times: TimeRange,
) -> Result<(RowRanges, bool)> {
    let all = RowRanges::all(file.opened.group_rows(group));
    let Some(column) = file.schema.time() else {
        return Ok((all, true));
    };
    let column = Column::find(file, file.schema.columns().field(column).name());
    let (bounds, parts) = column.page_bounds(&file.opened, group)?;
    let (mins, maxs) = (
        cast(&bounds.min, &DataType::Int64)?,
        cast(&bounds.max, &DataType::Int64)?,
    );
    let bounds = mins
        .as_primitive::<Int64Type>()
        .iter()
        .zip(maxs.as_primitive::<Int64Type>());
    let mut all_inside = true;
    let wanted: Vec<bool> = bounds
        .map(|bounds| match bounds {
            (Some(min), Some(max)) => {
                let overlaps = times.overlaps(min, max);
                all_inside &= !overlaps || times.covers(min, max);
                overlaps
            }
            _ => {
                all_inside = false;
                true
            }
        })
        .collect();
    Ok((RowRanges::of(parts.into_iter().zip(wanted)), all_inside))
}

/// A column of the table in a file.
struct Column<'a> {
    /// The type that bounds are to have: that of the values, where the column is a dictionary.
    data_type: DataType,
    place: Place<'a>,
}

enum Place<'a> {
    /// It was added later.
    Missing,
    /// It has no statistics that anybody understands.
    Opaque,
    Leaf(usize, &'a FieldRef),
}

impl<'a> Column<'a> {
    fn find(file: &'a SstFile, name: &str) -> Self {
        let opaque = |data_type| Self {
            data_type,
            place: Place::Opaque,
        };
        let Ok(field) = file.schema.stored().field_with_name(name) else {
            return opaque(DataType::Null);
        };
        let data_type = match field.data_type() {
            DataType::Dictionary(_, values) => values.as_ref().clone(),
            other => other.clone(),
        };
        let parquet = &file.opened.parquet;
        let id = column_id(field);
        let fields = parquet.schema().fields().iter();
        let Some((root, there)) = fields.enumerate().find(|(_, there)| column_id(there) == id)
        else {
            return Self {
                data_type,
                place: Place::Missing,
            };
        };
        let columns = parquet.parquet_schema();
        let mut leaves = 0..columns.num_columns();
        match leaves.find(|&leaf| columns.get_column_root_idx(leaf) == root) {
            Some(leaf) if !data_type.is_nested() => Self {
                data_type,
                place: Place::Leaf(leaf, there),
            },
            _ => opaque(data_type),
        }
    }

    fn group_bounds(&self, opened: &Opened) -> Result<ColumnBounds> {
        let metadata = opened.parquet.metadata();
        let rows: Vec<u64> = (0..metadata.num_row_groups())
            .map(|group| opened.group_rows(group) as u64)
            .collect();
        let statistics = |converter: StatisticsConverter<'_>| {
            let groups = || metadata.row_groups().iter();
            Some(Statistics {
                min: converter.row_group_mins(groups()).ok()?,
                max: converter.row_group_maxes(groups()).ok()?,
                nulls: converter.row_group_null_counts(groups()).ok()?,
            })
        };
        Ok(self.bounds(opened, rows, statistics, |part| part))
    }

    /// Bounds of the column's pages in `group`, and which rows each has; of all of `group` where pages are not
    /// known.
    fn page_bounds(
        &self,
        opened: &Opened,
        group: usize,
    ) -> Result<(ColumnBounds, Vec<Range<usize>>)> {
        let metadata = opened.parquet.metadata();
        let own_pages = match self.place {
            Place::Leaf(leaf, _) => pages(opened, group, leaf),
            _ => None,
        };
        let parts: Vec<Range<usize>> = match own_pages {
            Some((_, pages)) => pages
                .into_iter()
                .map(|PagePlace { rows, .. }| rows)
                .collect(),
            None => std::iter::once(0..opened.group_rows(group)).collect(),
        };
        let rows = parts.iter().map(|part| part.len() as u64).collect();
        let statistics = |converter: StatisticsConverter<'_>| {
            let (columns, offsets) = match (metadata.column_index(), metadata.offset_index()) {
                (Some(columns), Some(offsets)) if opened.index.is_some() => (columns, offsets),
                _ => {
                    let groups = || [metadata.row_group(group)];
                    return Some(Statistics {
                        min: converter.row_group_mins(groups()).ok()?,
                        max: converter.row_group_maxes(groups()).ok()?,
                        nulls: converter.row_group_null_counts(groups()).ok()?,
                    });
                }
            };
            let group = [group];
            Some(Statistics {
                min: converter.data_page_mins(columns, offsets, &group).ok()?,
                max: converter.data_page_maxes(columns, offsets, &group).ok()?,
                nulls: converter
                    .data_page_null_counts(columns, offsets, &group)
                    .ok()?,
            })
        };
        Ok((self.bounds(opened, rows, statistics, |_| group), parts))
    }

    /// Bounds of parts with `rows` rows, of which `group_of` says the row group.
    fn bounds(
        &self,
        opened: &Opened,
        rows: Vec<u64>,
        statistics: impl FnOnce(StatisticsConverter<'_>) -> Option<Statistics>,
        group_of: impl Fn(usize) -> usize,
    ) -> ColumnBounds {
        let (leaf, field) = match self.place {
            Place::Missing => return ColumnBounds::all_null(&self.data_type, rows),
            Place::Opaque => return self.unknown(rows),
            Place::Leaf(leaf, field) => (leaf, field),
        };
        let columns = opened.parquet.parquet_schema();
        let statistics = StatisticsConverter::from_column_index(leaf, field, columns)
            .ok()
            .map(|converter| converter.with_missing_null_counts_as_zero(false))
            .and_then(statistics)
            .filter(|found| found.min.len() == rows.len() && found.max.len() == rows.len());
        let Some(Statistics { min, max, nulls }) = statistics else {
            return self.unknown(rows);
        };
        let may_hold_nan = |part: usize| match &opened.index {
            Some(index) => index.groups[group_of(part)].chunks[leaf].may_hold_nan,
            None => true,
        };
        let max = match self.data_type.is_floating() {
            // NaN is above all numbers: where it can be, there is no upper bound.
            true => {
                let open = (0..rows.len()).map(|part| Some(may_hold_nan(part)));
                let open = open.collect();
                nullif(&max, &open).unwrap_or_else(|_| new_null_array(&self.data_type, rows.len()))
            }
            false => max,
        };
        let typed = |values: ArrayRef| {
            cast(&values, &self.data_type)
                .unwrap_or_else(|_| new_null_array(&self.data_type, rows.len()))
        };
        let is_known = nulls.null_count() == 0 && nulls.len() == rows.len();
        ColumnBounds {
            min: typed(min),
            max: typed(max),
            nulls: is_known.then(|| nulls.values().to_vec()),
            rows,
            may_have_nan: false,
        }
    }

    fn unknown(&self, rows: Vec<u64>) -> ColumnBounds {
        let unknown = new_null_array(&self.data_type, rows.len());
        ColumnBounds {
            min: unknown.clone(),
            max: unknown,
            nulls: None,
            rows,
            may_have_nan: true,
        }
    }
}

/// As the file has them.
struct Statistics {
    min: ArrayRef,
    max: ArrayRef,
    nulls: UInt64Array,
}
