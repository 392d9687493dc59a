//! A version: the live SSTs of a table and its jobs, as immutable metadata. `apply` is pure; windows
//! that an edit does not touch are shared between versions.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use super::edit::{Departure, Edit, JobRecord, SstRef};
use crate::{
    error::{Error, Result},
    types::{JobId, KeyRange, RangeDelete, Seq, SstId, SstMeta, TableId, TableSchema, Window},
};

/// The live SSTs of one window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WindowVersion {
    /// Level 0, oldest first: a pile of single-SST runs that may overlap.
    pub l0: Vec<Arc<SstMeta>>,
    /// The higher levels, each one run: sorted and disjoint by key.
    pub levels: BTreeMap<u8, Vec<Arc<SstMeta>>>,
}

impl WindowVersion {
    /// All SSTs of the window.
    pub fn ssts(&self) -> impl Iterator<Item = &Arc<SstMeta>> {
        self.l0.iter().chain(self.levels.values().flatten())
    }

    /// Number of sorted runs.
    pub fn runs(&self) -> usize {
        self.l0.len() + self.levels.len()
    }

    fn is_empty(&self) -> bool {
        self.l0.is_empty() && self.levels.is_empty()
    }

    /// Removes the SSTs that `leaving` names, takes them out of it, and tells `left` of each. One pass, however
    /// many there are.
    fn remove(&mut self, leaving: &mut HashSet<SstId>, mut left: impl FnMut(&SstMeta)) {
        if leaving.is_empty() {
            return;
        }
        let mut stays = |sst: &Arc<SstMeta>| {
            let leaves = leaving.remove(&sst.id);
            if leaves {
                left(sst);
            }
            !leaves
        };
        self.l0.retain(&mut stays);
        self.levels.retain(|_, run| {
            run.retain(&mut stays);
            !run.is_empty()
        });
    }

    /// Adds SSTs, each at its place.
    fn add(&mut self, ssts: &[&Arc<SstMeta>]) {
        let mut touched = BTreeSet::new();
        for &sst in ssts {
            touched.insert(sst.level);
            match sst.level {
                0 => self.l0.push(sst.clone()),
                level => self.levels.entry(level).or_default().push(sst.clone()),
            }
        }
        // What was there is sorted: little more than a pass.
        for level in touched {
            match self.levels.get_mut(&level) {
                Some(run) => run.sort_by(|left, right| left.key_min.cmp(&right.key_min)),
                None => self.l0.sort_by_key(|sst| sst.seq_max),
            }
        }
    }
}

/// An SST that left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Obsolete {
    /// When, in milliseconds since the Unix epoch.
    pub since_ms: u64,
    /// Why.
    pub departure: Departure,
}

/// The state of a table at one moment. Copied on write; shared by everybody who reads it.
#[derive(Clone, Debug, PartialEq)]
pub struct Version {
    /// The table's schema.
    pub schema: TableSchema,
    /// Live SSTs by window; no window is empty.
    pub windows: BTreeMap<Window, Arc<WindowVersion>>,
    /// Every batch up to here is in the SSTs.
    pub flushed_seq: Seq,
    /// Jobs recorded and not yet ended.
    pub jobs: BTreeMap<JobId, Arc<JobRecord>>,
    /// SSTs that left; their objects are still there. Those of other tables are not among them.
    pub obsolete: BTreeMap<SstId, Obsolete>,
    /// Range deletes that may hide rows, by ascending seq.
    pub range_deletes: Vec<RangeDelete>,
    /// Derived: asked for by every write.
    l0_runs_max: usize,
}

impl Version {
    /// An empty table.
    pub fn new(schema: TableSchema) -> Self {
        Self {
            schema,
            windows: BTreeMap::new(),
            flushed_seq: Seq(0),
            jobs: BTreeMap::new(),
            obsolete: BTreeMap::new(),
            range_deletes: Vec::new(),
            l0_runs_max: 0,
        }
    }

    /// What a read needs of it: without jobs, and without what is obsolete.
    #[must_use]
    pub fn for_reading(&self) -> Self {
        Self {
            jobs: BTreeMap::new(),
            obsolete: BTreeMap::new(),
            ..self.clone()
        }
    }

    /// All live SSTs.
    pub fn ssts(&self) -> impl Iterator<Item = &Arc<SstMeta>> {
        self.windows.values().flat_map(|window| window.ssts())
    }

    /// Whether every SST of `other` is live in this one, too.
    pub fn has_all_of(&self, other: &Version) -> bool {
        other.windows.iter().all(|(at, theirs)| {
            let Some(ours) = self.windows.get(at) else {
                return false;
            };
            Arc::ptr_eq(ours, theirs) || {
                let ours: HashSet<SstId> = ours.ssts().map(|sst| sst.id).collect();
                theirs.ssts().all(|sst| ours.contains(&sst.id))
            }
        })
    }

    /// Whether an SST of it is in the folder of `home`, another table.
    pub fn names_home(&self, home: TableId) -> bool {
        self.ssts().any(|sst| sst.home == Some(home))
    }

    /// Its SSTs by the table in whose folder they are, given its own: for each of these a version that has
    /// these SSTs only, as their home names them.
    pub fn by_home(&self, own: TableId) -> BTreeMap<TableId, Self> {
        let empty = || Self {
            windows: BTreeMap::new(),
            ..self.for_reading()
        };
        let mut homes: BTreeMap<TableId, Self> = BTreeMap::new();
        for (&at, window) in &self.windows {
            let mut ssts: BTreeMap<TableId, Vec<Arc<SstMeta>>> = BTreeMap::new();
            for sst in window.ssts() {
                let of_home = SstMeta {
                    home: None,
                    ..sst.as_ref().clone()
                };
                let home = ssts.entry(sst.home_in(own)).or_default();
                home.push(Arc::new(of_home));
            }
            for (home, ssts) in ssts {
                let mut window = WindowVersion::default();
                window.add(&ssts.iter().collect::<Vec<_>>());
                let home = homes.entry(home).or_insert_with(empty);
                home.windows.insert(at, Arc::new(window));
            }
        }
        homes
    }

    /// The live SST that `sst` names.
    pub fn find(&self, sst: SstRef) -> Option<&Arc<SstMeta>> {
        let window = self.windows.get(&sst.window)?;
        window.ssts().find(|live| live.id == sst.id)
    }

    /// Level-0 runs of the window that has most of them.
    pub fn l0_runs_max(&self) -> usize {
        self.l0_runs_max
    }

    /// The inputs of a recorded job.
    ///
    /// # Errors
    /// `Internal` when one is not live: [`invariants`](super::invariants) exclude it.
    pub fn inputs_of(&self, job: &JobRecord) -> Result<Vec<Arc<SstMeta>>> {
        let wanted: HashSet<SstId> = job.inputs.iter().copied().collect();
        let window = self.windows.get(&job.window);
        let live = window.into_iter().flat_map(|window| window.ssts());
        let live: HashMap<SstId, &Arc<SstMeta>> = live
            .filter(|sst| wanted.contains(&sst.id))
            .map(|sst| (sst.id, sst))
            .collect();
        let find = |id| {
            let live = live.get(id).copied().cloned();
            live.ok_or_else(|| Error::internal(format!("input {id} of job {} is not live", job.id)))
        };
        job.inputs.iter().map(find).collect()
    }

    /// Whether data older than `seq_max` that can hold a key of `keys` at a time in `window` lives outside of
    /// `inputs`: then a merge of `inputs` must keep its tombstones.
    pub fn older_data_remains(
        &self,
        window: Window,
        keys: &KeyRange,
        seq_max: Seq,
        inputs: &[SstId],
    ) -> bool {
        let inputs: HashSet<SstId> = inputs.iter().copied().collect();
        // Another window only where their width was changed.
        let overlapping = self
            .windows
            .iter()
            .filter(|(other, _)| other.overlaps(window));
        let mut ssts = overlapping.flat_map(|(_, ssts)| ssts.ssts());
        ssts.any(|sst| {
            sst.seq_min < seq_max
                && keys.overlaps(&sst.key_min, &sst.key_max)
                && !inputs.contains(&sst.id)
        })
    }

    /// The version after `edit`.
    ///
    /// # Errors
    /// `Conflict`, naming what does not fit: an SST to remove is not live, one to add is live already, a
    /// job to end is not recorded, or one to start is.
    pub fn apply(&self, edit: &Edit) -> Result<Self> {
        let mut next = self.clone();
        if let Some(schema) = &edit.schema {
            next.schema = schema.clone();
        }
        for job in &edit.jobs_ended {
            if next.jobs.remove(job).is_none() {
                return Err(Error::conflict(format!("job {job} is not recorded")));
            }
        }
        // All of them leave before one arrives: a move may free the place for another.
        let moved = edit.moved.iter().map(|moved| {
            let sst = self.find(moved.sst).ok_or_else(|| gone(moved.sst.id))?;
            Ok(Arc::new(SstMeta {
                level: moved.level,
                ..sst.as_ref().clone()
            }))
        });
        let moved: Vec<Arc<SstMeta>> = moved.collect::<Result<_>>()?;
        next.swap_ssts(edit, &moved)?;
        for job in &edit.jobs_started {
            if next.jobs.insert(job.id, Arc::new(job.clone())).is_some() {
                return Err(Error::conflict(format!(
                    "job {} is recorded already",
                    job.id
                )));
            }
        }
        if let Some(seq) = edit.flushed_seq {
            next.flushed_seq = next.flushed_seq.max(seq);
        }
        for sst in &edit.deleted {
            next.obsolete.remove(sst);
        }
        next.range_deletes
            .retain(|delete| !edit.range_deletes_ended.contains(&delete.seq));
        for delete in &edit.range_deletes {
            if next
                .range_deletes
                .last()
                .is_some_and(|last| last.seq >= delete.seq)
            {
                return Err(Error::conflict(format!(
                    "range delete at seq {} does not come last",
                    delete.seq
                )));
            }
            next.range_deletes.push(*delete);
        }
        next.l0_runs_max = next
            .windows
            .values()
            .map(|window| window.l0.len())
            .max()
            .unwrap_or(0);
        Ok(next)
    }

    /// Takes the SSTs out that the edit removes, in those that it adds, and to their places those that have
    /// `moved`. Each window that it touches is copied and gone through once.
    fn swap_ssts(&mut self, edit: &Edit, moved: &[Arc<SstMeta>]) -> Result<()> {
        let mut windows: BTreeMap<Window, WindowEdit<'_>> = BTreeMap::new();
        for sst in &edit.removed {
            let window = windows.entry(sst.window).or_default();
            if !window.leaving.insert(sst.id) {
                return Err(gone(sst.id));
            }
            let obsolete = Obsolete {
                since_ms: edit.at_ms,
                departure: edit.departure,
            };
            self.obsolete.insert(sst.id, obsolete);
        }
        for sst in moved {
            let window = windows.entry(sst.window).or_default();
            if !window.leaving.insert(sst.id) {
                return Err(gone(sst.id));
            }
            window.added.push(sst);
        }
        for sst in &edit.added {
            let window = windows.entry(sst.window).or_default();
            if !window.arriving.insert(sst.id) || self.obsolete.contains_key(&sst.id) {
                return Err(added_before(sst.id));
            }
            window.added.push(sst);
        }
        for (at, mut change) in windows {
            let mut window = self.windows.remove(&at).unwrap_or_default();
            let ssts = Arc::make_mut(&mut window);
            if let Some(sst) = ssts.ssts().find(|sst| change.arriving.contains(&sst.id)) {
                return Err(added_before(sst.id));
            }
            let obsolete = &mut self.obsolete;
            ssts.remove(&mut change.leaving, |sst| {
                // Not this table's to delete.
                if sst.home.is_some() {
                    obsolete.remove(&sst.id);
                }
            });
            if let Some(&id) = change.leaving.iter().next() {
                return Err(gone(id));
            }
            ssts.add(&change.added);
            if !ssts.is_empty() {
                self.windows.insert(at, window);
            }
        }
        Ok(())
    }
}

/// What an edit does to one window.
#[derive(Default)]
struct WindowEdit<'a> {
    leaving: HashSet<SstId>,
    arriving: HashSet<SstId>,
    added: Vec<&'a Arc<SstMeta>>,
}

fn gone(sst: SstId) -> Error {
    Error::conflict(format!("sst {sst} to be removed is not live"))
}

fn added_before(sst: SstId) -> Error {
    Error::conflict(format!("sst {sst} was added before"))
}
