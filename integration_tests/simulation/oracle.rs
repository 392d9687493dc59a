//! What a database should hold, as far as that is known: of a write that failed it is not known whether it was made.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::Reading;

/// Time and id.
pub type Key = (i64, Option<i32>);

/// What a key may have; `None` for no row.
type Possible = BTreeSet<Option<Option<i64>>>;

/// A change of rows.
#[derive(Clone, Debug)]
pub enum Change {
    Put(Vec<Reading>),
    Delete(Vec<Key>),
    /// From the first time, inclusive, to the second, exclusive.
    DeleteRange(i64, i64),
}

/// What may be there.
#[derive(Clone, Default)]
pub struct Oracle(BTreeMap<Key, Possible>);

impl Oracle {
    /// `change` was made, for certain.
    pub fn made(&mut self, change: &Change) {
        for (key, value) in self.effects(change) {
            self.0.insert(key, [value].into());
        }
    }

    /// `change` may have been made, or may turn out to be.
    pub fn doubtful(&mut self, change: &Change) {
        for (key, value) in self.effects(change) {
            let possible = self.0.entry(key).or_insert_with(|| [None].into());
            possible.insert(value);
        }
    }

    fn effects(&self, change: &Change) -> Vec<(Key, Option<Option<i64>>)> {
        match change {
            Change::Put(rows) => {
                // Of equal keys the last one counts.
                let last: BTreeMap<Key, Option<i64>> = rows
                    .iter()
                    .map(|&(at, id, value)| ((at, id), value))
                    .collect();
                last.into_iter()
                    .map(|(key, value)| (key, Some(value)))
                    .collect()
            }
            Change::Delete(keys) => keys.iter().map(|&key| (key, None)).collect(),
            Change::DeleteRange(start, end) => {
                let keys = self.0.keys().filter(|(at, _)| (start..end).contains(&at));
                keys.map(|&key| (key, None)).collect()
            }
        }
    }

    /// The first key of which `rows` have something that cannot be, in words.
    pub fn check(&self, rows: &[Reading]) -> Result<(), String> {
        let mut found = BTreeMap::new();
        for &(at, id, value) in rows {
            if found.insert((at, id), value).is_some() {
                return Err(format!("there are two rows of {:?}", (at, id)));
            }
        }
        let nothing = Possible::from([None]);
        let keys: BTreeSet<Key> = self.0.keys().chain(found.keys()).copied().collect();
        for key in keys {
            let (may, has) = (
                self.0.get(&key).unwrap_or(&nothing),
                found.get(&key).copied(),
            );
            if !may.contains(&has) {
                return Err(format!("{key:?} has {has:?}, and may have {may:?}"));
            }
        }
        Ok(())
    }
}
