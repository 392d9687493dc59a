//! Turns a sorted sequence of batches into a run of uploaded SSTs. Flush and compaction both end here.
//!
//! An SST ends when it has reached its target size, at the next row whose key is another one: all
//! versions of a key lie in one SST, so that the run is disjoint by key.

use arrow::{array::RecordBatch, row::Rows};
use bytes::Bytes;
use tokio::runtime::Handle;

use super::{SstSink, SstSpec, SstWriter};
use crate::{
    error::{Error, Result},
    store::{Store, Upload, layout},
    threads,
    types::{SstId, SstMeta, TableId},
};

/// An SST on its way to the store. Only for threads that may block. Dropped unfinished, it gives up the
/// upload in the background and leaves no object.
pub struct SstUpload {
    /// `None` once finished.
    upload: Option<Upload>,
    handle: Handle,
}

impl SstUpload {
    /// Starts the object of SST `id`; `handle` runs its requests.
    pub fn new(store: &Store, table: TableId, id: SstId, handle: Handle) -> Self {
        Self {
            upload: Some(store.upload(&layout::sst(table, id))),
            handle,
        }
    }

    /// Completes the object. Durable when it returns.
    pub fn finish(mut self) -> Result<()> {
        match self.upload.take() {
            Some(upload) => threads::wait(&self.handle, upload.finish()),
            None => Ok(()),
        }
    }
}

impl SstSink for SstUpload {
    fn append(&mut self, mut piece: Bytes) -> Result<()> {
        let Some(upload) = &mut self.upload else {
            return Err(Error::internal("an sst upload went on after its end"));
        };
        // A row group at once would be sent with all of its parts in flight.
        while !piece.is_empty() {
            let part = piece.split_to(piece.len().min(Upload::PART_BYTES));
            threads::wait(&self.handle, upload.write(part))?;
        }
        Ok(())
    }
}

impl Drop for SstUpload {
    fn drop(&mut self) {
        if let Some(upload) = self.upload.take() {
            self.handle.spawn(async move {
                if let Err(error) = upload.abort().await {
                    tracing::debug!(%error, "an unfinished sst upload could not be aborted");
                }
            });
        }
    }
}

/// Writes the SSTs of a run one after another. Only for threads that may block. Dropped, it leaves no object
/// of the one that it had not ended.
pub struct SstRun<'a> {
    store: &'a Store,
    handle: &'a Handle,
    spec: &'a SstSpec,
    current: Option<SstWriter<SstUpload>>,
}

impl<'a> SstRun<'a> {
    /// SSTs with what `spec` says; `handle` runs their requests.
    pub fn new(store: &'a Store, handle: &'a Handle, spec: &'a SstSpec) -> Self {
        Self {
            store,
            handle,
            spec,
            current: None,
        }
    }

    /// Adds `batch`, sorted and of stored columns, to the current SST, or to a new one called `id`.
    ///
    /// # Errors
    /// Those of the writer and of the store. After an error the run is of no more use.
    pub fn write(&mut self, batch: &RecordBatch, id: SstId) -> Result<()> {
        if batch.num_rows() == 0 {
            return Ok(());
        }
        self.open(|| id)?.write(batch)
    }

    /// Whether the current SST has about its target size.
    pub fn is_full(&self) -> bool {
        let target = self.spec.options.sst_bytes_target;
        let current = self.current.as_ref();
        current.is_some_and(|writer| writer.bytes_estimate() >= target)
    }

    /// Ends the current SST, which is durable then. `None` when it has no rows.
    ///
    /// # Errors
    /// As for [`Self::write`].
    pub fn end(&mut self) -> Result<Option<SstMeta>> {
        let Some(writer) = self.current.take() else {
            return Ok(None);
        };
        let (meta, upload) = writer.finish()?;
        upload.finish()?;
        Ok(Some(meta))
    }

    fn open(&mut self, id: impl FnOnce() -> SstId) -> Result<&mut SstWriter<SstUpload>> {
        let current = &mut self.current;
        if current.is_none() {
            let id = id();
            let upload = SstUpload::new(self.store, self.spec.table, id, self.handle.clone());
            *current = Some(SstWriter::new(self.spec, id, upload)?);
        }
        Ok(current.as_mut().expect("it was just made"))
    }
}

/// How the caller of [`write_run`] takes part in it.
pub struct RunHooks<'a> {
    /// Names the SST at this position of the run, from 0.
    pub id_of: &'a mut dyn FnMut(u32) -> SstId,
    /// Told after each batch how many rows it had.
    pub progress: &'a mut dyn FnMut(u64),
    /// Told of each SST as soon as it is durable.
    pub finished: &'a mut dyn FnMut(&SstMeta),
    /// Asked before each batch whether to stop.
    pub cancelled: &'a dyn Fn() -> bool,
}

/// Writes `batches`, sorted and of stored columns, as SSTs of about
/// [`sst_bytes_target`](super::SstOptions::sst_bytes_target), each durable when this returns. No rows, no
/// SSTs. Blocks: only for threads that may.
///
/// # Errors
/// Those of `batches`, of the writer and of the store; `Closed` when cancelled. SSTs finished before the
/// error stay in the store; [`RunHooks::finished`] was told of them.
pub fn write_run(
    store: &Store,
    handle: &Handle,
    spec: &SstSpec,
    batches: impl Iterator<Item = Result<RecordBatch>>,
    hooks: RunHooks<'_>,
) -> Result<Vec<SstMeta>> {
    let mut run = Run {
        ssts: SstRun::new(store, handle, spec),
        hooks,
        finished: Vec::new(),
    };
    for batch in batches {
        if (run.hooks.cancelled)() {
            return Err(Error::closed(format!(
                "writing ssts of table {}: cancelled",
                spec.table
            )));
        }
        let batch = batch?;
        run.write(&batch)?;
        (run.hooks.progress)(batch.num_rows() as u64);
    }
    run.end_sst()?;
    Ok(run.finished)
}

struct Run<'a, 'h> {
    ssts: SstRun<'a>,
    hooks: RunHooks<'h>,
    finished: Vec<SstMeta>,
}

impl Run<'_, '_> {
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        if batch.num_rows() == 0 {
            return Ok(());
        }
        let keys = self.current()?.encode_keys(batch)?;
        let mut start = 0;
        if self.ssts.is_full() {
            start = leading_repeats(&keys, self.current()?.key_last());
            self.current()?.append(batch, &keys, 0..start)?;
            if start < batch.num_rows() {
                self.end_sst()?;
            }
        }
        self.current()?
            .append(batch, &keys, start..batch.num_rows())
    }

    fn current(&mut self) -> Result<&mut SstWriter<SstUpload>> {
        let number = self.finished.len() as u32;
        self.ssts.open(|| (self.hooks.id_of)(number))
    }

    fn end_sst(&mut self) -> Result<()> {
        if let Some(meta) = self.ssts.end()? {
            (self.hooks.finished)(&meta);
            self.finished.push(meta);
        }
        Ok(())
    }
}

/// How many rows at the head of `keys` have the key `last`.
fn leading_repeats(keys: &Rows, last: Option<&[u8]>) -> usize {
    let repeats = keys.iter().take_while(|key| Some(key.data()) == last);
    repeats.count()
}
