//! Which objects may be deleted: pure functions over versions and listings.

use std::{collections::HashSet, sync::Arc};

use crate::{
    manifest::Version,
    types::{SstId, TableId},
};

/// SSTs that left the table at least `grace_ms` before `now_ms` (milliseconds since the Unix epoch), and are
/// not deleted yet.
pub fn obsolete(current: &Version, grace_ms: u64, now_ms: u64) -> Vec<SstId> {
    let is_over = |since_ms: u64| since_ms.saturating_add(grace_ms) <= now_ms;
    let obsolete = current.obsolete.iter();
    let over = obsolete.filter(|&(_, &since_ms)| is_over(since_ms));
    over.map(|(&sst, _)| sst).collect()
}

/// SSTs that running reads may read, which hold the versions `pinned`.
pub fn read(pinned: &[Arc<Version>]) -> HashSet<SstId> {
    let ssts = pinned.iter().flat_map(|version| version.ssts());
    ssts.map(|sst| sst.id).collect()
}

/// Tables that have a folder but are not in the catalog: dropped, or never finished being created.
pub fn unknown_tables(folders: &[String], catalog: &HashSet<TableId>) -> Vec<TableId> {
    let tables = folders.iter().filter_map(|folder| folder.parse().ok());
    tables.filter(|table| !catalog.contains(table)).collect()
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::{DataType, Field, Schema};

    use super::*;
    use crate::{
        manifest::{Edit, SstRef},
        types::{Key, Seq, SstMeta, TableOptions, TableSchema, Window},
    };

    fn sst(number: u64) -> Arc<SstMeta> {
        Arc::new(SstMeta {
            id: SstId::flushed(number, 0),
            level: 0,
            window: Window::ALL,
            bytes: 1,
            rows: 1,
            tombstones: 0,
            key_min: Key::default(),
            key_max: Key::default(),
            seq_min: Seq(1),
            seq_max: Seq(1),
            times: None,
            schema_version: 1,
            rows_hash: 0,
            applied_seq: Seq(0),
            home: None,
        })
    }

    #[test]
    fn a_read_and_the_grace_keep_what_left() {
        let columns = Schema::new(vec![Field::new("k", DataType::Int64, false)]);
        let schema =
            TableSchema::new(Arc::new(columns), &["k"], None, TableOptions::default()).unwrap();
        let (a, b) = (sst(1), sst(2));
        let both = Edit {
            added: vec![a.clone(), b.clone()],
            ..Edit::default()
        };
        let full = Arc::new(Version::new(schema).apply(&both).unwrap());
        let leave = |sst: &SstMeta, at_ms| Edit {
            removed: vec![SstRef::from(sst)],
            at_ms,
            ..Edit::default()
        };
        let without_a = Arc::new(full.apply(&leave(&a, 100)).unwrap());
        let empty = without_a.apply(&leave(&b, 200)).unwrap();
        assert_eq!(obsolete(&empty, 50, 149), []);
        assert_eq!(obsolete(&empty, 50, 150), [a.id]);
        assert_eq!(obsolete(&empty, 0, 250), [a.id, b.id]);
        assert_eq!(obsolete(&empty, u64::MAX, u64::MAX - 1), []);
        assert_eq!(read(&[]), HashSet::new());
        assert_eq!(
            read(std::slice::from_ref(&without_a)),
            HashSet::from([b.id])
        );
        assert_eq!(read(&[full, without_a]), HashSet::from([a.id, b.id]));
    }

    #[test]
    fn only_folders_of_tables_count() {
        let [known, unknown] = [1, 2].map(|number| TableId::from_parts(number, 0));
        let folders = [known.to_string(), unknown.to_string(), "notes".into()];
        assert_eq!(unknown_tables(&folders, &HashSet::from([known])), [unknown]);
    }
}
