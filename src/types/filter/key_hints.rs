//! What a filter says about the key: the ranges and points outside of which it holds nowhere.
//!
//! The encoding of a key is that of its columns, one after the other; so keys that begin with given values are the
//! range of those that begin with given bytes. The walk along the key's columns goes on while a column must equal
//! one value, and ends at the first that has bounds, or nothing.

use std::sync::Arc;

use super::leaf::{Kind, Leaf, compare};
use crate::{
    error::Result,
    types::{Comparison, Key, KeyEncoder, KeyRange, TableSchema, TimeRange},
};
use arrow::{
    array::{Array, ArrayRef, AsArray, UInt32Array},
    compute::{cast, take},
    datatypes::{DataType, Field, Int64Type},
};

/// More keys than these are not looked for one by one.
const POINTS_MAX: usize = 1_024;

/// Where rows can be in which a filter holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KeyHints {
    /// Only here.
    pub keys: KeyRange,
    /// Only at these keys, ascending, each once; `None` when they are not known one by one.
    pub points: Option<Vec<Key>>,
    /// Only at these times.
    pub times: Option<TimeRange>,
}

/// What is known of the values of one column.
#[derive(Default)]
struct Known {
    /// One of these, not null.
    values: Option<ArrayRef>,
    lower: Option<Bound>,
    upper: Option<Bound>,
}

struct Bound {
    value: ArrayRef,
    is_inside: bool,
}

pub(super) fn of<'a>(
    conjuncts: impl Iterator<Item = &'a Leaf>,
    schema: &TableSchema,
) -> Result<KeyHints> {
    let key = schema.key_schema();
    let mut known: Vec<Known> = key.fields().iter().map(|_| Known::default()).collect();
    for leaf in conjuncts {
        let at = leaf.column().and_then(|column| key.index_of(column).ok());
        if let Some(at) = at.filter(|&at| !key.field(at).data_type().is_floating()) {
            known[at].learn(leaf)?;
        }
    }
    let time = schema.time().and_then(|at| {
        let name = schema.columns().field(at).name();
        key.index_of(name).ok()
    });
    let prefix = Prefix {
        fields: key.fields(),
        known: &known,
    };
    Ok(KeyHints {
        keys: prefix.range()?,
        points: prefix.points()?,
        times: time.map(|at| known[at].times()).transpose()?.flatten(),
    })
}

impl Known {
    fn learn(&mut self, leaf: &Leaf) -> Result<()> {
        match &leaf.0 {
            Kind::In {
                values,
                negated: false,
                ..
            } => {
                self.values.get_or_insert_with(|| values.clone());
            }
            Kind::Compare {
                comparison,
                literal,
                ..
            } => {
                let bound = |is_inside| Bound {
                    value: literal.clone(),
                    is_inside,
                };
                match comparison {
                    Comparison::Eq => self.values = Some(literal.clone()),
                    Comparison::Lt => tighten(&mut self.upper, bound(false), Comparison::Lt)?,
                    Comparison::LtEq => tighten(&mut self.upper, bound(true), Comparison::Lt)?,
                    Comparison::Gt => tighten(&mut self.lower, bound(false), Comparison::Gt)?,
                    Comparison::GtEq => tighten(&mut self.lower, bound(true), Comparison::Gt)?,
                    Comparison::NotEq => {}
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The times that it leaves, of the time column.
    fn times(&self) -> Result<Option<TimeRange>> {
        let raw = |values: &ArrayRef| -> Result<Vec<i64>> {
            let raw = cast(values, &DataType::Int64)?;
            Ok(raw.as_primitive::<Int64Type>().values().to_vec())
        };
        // The greatest time is inside where it is the end.
        let after = |time: i64| time.saturating_add(1);
        let (mut start, mut end) = (i64::MIN, i64::MAX);
        if let Some(values) = &self.values {
            let values = raw(values)?;
            start = values.iter().copied().min().unwrap_or(start);
            end = values.iter().copied().max().map_or(end, after);
        }
        if let Some(bound) = &self.lower {
            start = start.max(raw(&bound.value)?[0]);
        }
        if let Some(bound) = &self.upper {
            let value = raw(&bound.value)?[0];
            end = end.min(if bound.is_inside { after(value) } else { value });
        }
        let is_known = self.values.is_some() || self.lower.is_some() || self.upper.is_some();
        Ok(is_known.then_some(TimeRange { start, end }))
    }
}

/// Has `bound` take the place of `known`, if it is `tighter` or there is none.
fn tighten(known: &mut Option<Bound>, bound: Bound, tighter: Comparison) -> Result<()> {
    let is_tighter = match known {
        Some(known) => compare(&bound.value, tighter, &known.value)?.value(0),
        None => true,
    };
    if is_tighter {
        *known = Some(bound);
    }
    Ok(())
}

/// The key's columns, with what is known of each.
struct Prefix<'a> {
    fields: &'a [Arc<Field>],
    known: &'a [Known],
}

impl Prefix<'_> {
    fn range(&self) -> Result<KeyRange> {
        let mut values: Vec<ArrayRef> = Vec::new();
        for known in self.known {
            match &known.values {
                Some(one) if one.len() == 1 => values.push(one.clone()),
                _ => break,
            }
        }
        let whole = self.encode(&values)?;
        let next = self.known.get(values.len());
        let bound = |bound: &Option<Bound>| -> Result<Option<(Key, bool)>> {
            let Some(bound) = bound else { return Ok(None) };
            let mut values = values.clone();
            values.push(bound.value.clone());
            Ok(Some((self.encode(&values)?, bound.is_inside)))
        };
        let lower = next.map(|known| bound(&known.lower)).transpose()?.flatten();
        let upper = next.map(|known| bound(&known.upper)).transpose()?.flatten();
        Ok(KeyRange {
            start: match lower {
                Some((key, true)) => Some(key),
                Some((key, false)) => after_prefix(&key).or(Some(key)),
                None => Some(whole.clone()),
            }
            .filter(|key| !key.0.is_empty()),
            end: match upper {
                Some((key, true)) => after_prefix(&key),
                Some((key, false)) => Some(key),
                None => after_prefix(&whole),
            },
        })
    }

    /// The keys, where each of the columns must be one of some values.
    fn points(&self) -> Result<Option<Vec<Key>>> {
        let known = self.known.iter().map(|known| known.values.as_ref());
        let Some(columns) = known.collect::<Option<Vec<&ArrayRef>>>() else {
            return Ok(None);
        };
        let mut counts = columns.iter().map(|values| values.len());
        let count = counts.try_fold(1usize, |product, count| product.checked_mul(count));
        let Some(count) = count.filter(|&count| count <= POINTS_MAX) else {
            return Ok(None);
        };
        let mut period = count;
        let mut product = Vec::new();
        for values in columns {
            period /= values.len();
            let at = (0..count).map(|point| (point / period % values.len()) as u32);
            product.push(take(values, &UInt32Array::from_iter_values(at), None)?);
        }
        let mut points = self.encode_all(&product)?;
        points.sort_unstable();
        points.dedup();
        Ok(Some(points))
    }

    /// How keys begin that begin with `values`, one value a column.
    fn encode(&self, values: &[ArrayRef]) -> Result<Key> {
        if values.is_empty() {
            return Ok(Key::default());
        }
        Ok(self.encode_all(values)?.swap_remove(0))
    }

    fn encode_all(&self, columns: &[ArrayRef]) -> Result<Vec<Key>> {
        let fields = &self.fields[..columns.len()];
        let positions: Vec<usize> = (0..columns.len()).collect();
        let encoder = KeyEncoder::new(fields, &positions)?;
        let typed = columns.iter().zip(fields);
        let typed = typed.map(|(values, field)| Ok(cast(values, field.data_type())?));
        encoder.encode_columns(&typed.collect::<Result<Vec<_>>>()?)
    }
}

/// The least key above all that begin with `prefix`; `None` when there is none.
fn after_prefix(prefix: &Key) -> Option<Key> {
    let end = prefix.0.iter().rposition(|&byte| byte != u8::MAX)?;
    let mut bytes = prefix.0[..=end].to_vec();
    bytes[end] += 1;
    Some(Key(bytes.into()))
}
