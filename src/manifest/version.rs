//! A version: the live SSTs of a table and its jobs, as immutable metadata. `apply` is pure; windows
//! that an edit does not touch are shared between versions.

use std::{collections::BTreeMap, sync::Arc};

use super::edit::{Edit, JobRecord, SstRef};
use crate::{
    error::{Error, Result},
    types::{JobId, KeyRange, RangeDelete, Seq, SstId, SstMeta, TableSchema, Window},
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

    fn remove(&mut self, id: SstId) -> Option<Arc<SstMeta>> {
        if let Some(at) = self.l0.iter().position(|sst| sst.id == id) {
            return Some(self.l0.remove(at));
        }
        for (&level, run) in &mut self.levels {
            if let Some(at) = run.iter().position(|sst| sst.id == id) {
                let removed = run.remove(at);
                if run.is_empty() {
                    self.levels.remove(&level);
                }
                return Some(removed);
            }
        }
        None
    }

    fn add(&mut self, sst: Arc<SstMeta>) {
        if sst.level == 0 {
            let at = self
                .l0
                .partition_point(|other| other.seq_max <= sst.seq_max);
            self.l0.insert(at, sst);
        } else {
            let run = self.levels.entry(sst.level).or_default();
            let at = run.partition_point(|other| other.key_min <= sst.key_min);
            run.insert(at, sst);
        }
    }
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
    /// SSTs that left, and when, in milliseconds since the Unix epoch; their objects are still there.
    pub obsolete: BTreeMap<SstId, u64>,
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

    /// All live SSTs.
    pub fn ssts(&self) -> impl Iterator<Item = &Arc<SstMeta>> {
        self.windows.values().flat_map(|window| window.ssts())
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
        let find = |&id| {
            let live = self.find(SstRef {
                window: job.window,
                id,
            });
            live.cloned()
                .ok_or_else(|| Error::internal(format!("input {id} of job {} is not live", job.id)))
        };
        job.inputs.iter().map(find).collect()
    }

    /// Whether data older than `seq_max` that can hold a key of `keys` lives in `window` outside of
    /// `inputs`: then a merge of `inputs` must keep its tombstones.
    pub fn older_data_remains(
        &self,
        window: Window,
        keys: &KeyRange,
        seq_max: Seq,
        inputs: &[SstId],
    ) -> bool {
        let Some(window) = self.windows.get(&window) else {
            return false;
        };
        window.ssts().any(|sst| {
            !inputs.contains(&sst.id)
                && sst.seq_min < seq_max
                && keys.overlaps(&sst.key_min, &sst.key_max)
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
        for &sst in &edit.removed {
            next.remove(sst)?;
            next.obsolete.insert(sst.id, edit.at_ms);
        }
        for sst in &edit.added {
            next.add(sst.clone())?;
        }
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

    fn remove(&mut self, sst: SstRef) -> Result<()> {
        let gone = || Error::conflict(format!("sst {} to be removed is not live", sst.id));
        let window = self.windows.get_mut(&sst.window).ok_or_else(gone)?;
        let window = Arc::make_mut(window);
        window.remove(sst.id).ok_or_else(gone)?;
        if window.is_empty() {
            self.windows.remove(&sst.window);
        }
        Ok(())
    }

    fn add(&mut self, sst: Arc<SstMeta>) -> Result<()> {
        if self.find(sst.as_ref().into()).is_some() || self.obsolete.contains_key(&sst.id) {
            return Err(Error::conflict(format!("sst {} was added before", sst.id)));
        }
        let window = self.windows.entry(sst.window).or_default();
        Arc::make_mut(window).add(sst);
        Ok(())
    }
}
