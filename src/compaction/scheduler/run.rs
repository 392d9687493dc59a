//! Sees one recorded job through: hand out, prove, commit; or give up.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::Poll,
};

use super::{Inner, TableJobs, lock};
use crate::{
    clock::Backoff,
    compaction::{Claim, CompactionContext, CompactionJob, CompactionOutcome, proof, results},
    error::{Error, ErrorKind, Result},
    manifest::{Edit, JobRecord, SstRef},
    store::layout,
    types::{JobId, SstId, TableId},
};

impl Inner {
    /// Runs a recorded job to its end in the manifest.
    pub(super) async fn run_job(
        &self,
        table: &TableJobs,
        record: &JobRecord,
        claim: Claim,
    ) -> Result<()> {
        let outcome = self.outcome_of(table, record).await;
        let result = match outcome {
            Ok((job, outcome)) => self.commit(table, &job, &outcome).await,
            Err(error) => Err(error),
        };
        let ended = match result {
            Ok(()) => Ok(()),
            // The next engine on this root resumes it.
            Err(error) if error.kind() == ErrorKind::Fenced || table.cancel.is_cancelled() => {
                return Err(error);
            }
            Err(error) => {
                self.give_up(table, record, &error).await?;
                if let Err(error) = self.delete_outputs(table, record).await {
                    tracing::warn!(job = %record.id, %error, "outputs of a failed job were not deleted");
                }
                Err(error)
            }
        };
        drop(claim);
        if let Err(error) =
            results::delete_results(&self.store, table.manifest.table(), record.id).await
        {
            tracing::warn!(job = %record.id, %error, "results of an ended job were not deleted");
        }
        ended
    }

    async fn outcome_of(
        &self,
        table: &TableJobs,
        record: &JobRecord,
    ) -> Result<(Arc<CompactionJob>, CompactionOutcome)> {
        let job = self.job_of(table, record);
        let mut entering = Entering(Some(&self.entering));
        let job = Arc::new(job?);
        let mut compactors = self.compactor.subscribe();
        let outcome = loop {
            let compactor = compactors.borrow_and_update().clone();
            let context = CompactionContext {
                cancel: table.cancel.child_token(),
            };
            let mut running = compactor.compact(job.clone(), context);
            // From its first poll on the compactor counts the job itself.
            let first = futures::poll!(&mut running);
            entering.leave();
            if let Poll::Ready(outcome) = first {
                break outcome?;
            }
            // A job that waits for something outside goes to the next compactor; one that runs stays.
            let is_replaced = async {
                while compactors.changed().await.is_ok() {
                    if compactor.waiting().is_some() {
                        return;
                    }
                }
                std::future::pending().await
            };
            tokio::select! {
                outcome = &mut running => break outcome?,
                () = is_replaced => {}
                () = table.cancel.cancelled() => return Err(Error::closed("compaction was stopped")),
            }
        };
        proof::prove(&job, &outcome)?;
        for sst in outcome.outputs() {
            let name = layout::sst(job.table, sst.id);
            let size = self.retry(table, || self.store.size(&name)).await?;
            proof::prove_present(&job, sst, size)?;
        }
        Ok((job, outcome))
    }

    fn job_of(&self, table: &TableJobs, record: &JobRecord) -> Result<CompactionJob> {
        let version = table.manifest.version();
        Ok(CompactionJob {
            id: record.id,
            table: table.manifest.table(),
            store_url: self.store.url().to_owned(),
            schema: version.schema.clone(),
            inputs: version.inputs_of(record)?,
            window: record.window,
            level_target: record.level_target,
            retention: record.retention.clone(),
            sst_bytes_target: record.sst_bytes_target,
            tasks: record.tasks.clone(),
        })
    }

    /// Swaps inputs for outputs. A job that has left the manifest is committed already.
    async fn commit(
        &self,
        table: &TableJobs,
        job: &CompactionJob,
        outcome: &CompactionOutcome,
    ) -> Result<()> {
        let edit = Edit {
            removed: job
                .inputs
                .iter()
                .map(|sst| SstRef::from(sst.as_ref()))
                .collect(),
            added: outcome.outputs().cloned().map(Arc::new).collect(),
            jobs_ended: vec![job.id],
            ..Edit::default()
        };
        self.end_job(table, job.id, &edit).await?;
        lock(&self.stats).add_committed(outcome);
        let bytes = outcome.outputs().map(|sst| sst.bytes).sum();
        table.bytes_written.fetch_add(bytes, Ordering::Relaxed);
        table.quarantine.remove(job.inputs.iter().map(|sst| sst.id));
        tracing::debug!(table = %table.name, job = %job.id, outputs = outcome.outputs().count(), "compaction job committed");
        Ok(())
    }

    async fn give_up(&self, table: &TableJobs, record: &JobRecord, error: &Error) -> Result<()> {
        self.note_failure(
            table,
            &error.clone().context(format!("job {}", record.id)),
            "compaction job failed",
        );
        // The one that the error names, if it names one.
        let text = error.to_string();
        let (named, others): (Vec<SstId>, Vec<SstId>) = record
            .inputs
            .iter()
            .partition(|sst| text.contains(&sst.to_string()));
        let held = if named.is_empty() { others } else { named };
        table.quarantine.add(&held, self.env.monotonic());
        let edit = Edit {
            jobs_ended: vec![record.id],
            ..Edit::default()
        };
        self.end_job(table, record.id, &edit).await
    }

    pub(super) fn note_failure(&self, table: &TableJobs, error: &Error, what: &str) {
        tracing::warn!(table = %table.name, %error, "{what}");
        let mut stats = lock(&self.stats);
        *stats
            .jobs_failed
            .entry(error.kind().to_string())
            .or_default() += 1;
        stats.last_error = Some(error.to_string());
    }

    /// Deletes what the finished tasks of a job that was given up have written.
    async fn delete_outputs(&self, table: &TableJobs, record: &JobRecord) -> Result<()> {
        let job = self.job_of(table, record)?;
        for task in results::read_results(&self.store, &job)
            .await?
            .iter()
            .flatten()
        {
            for sst in &task.outputs {
                let live = table.manifest.version().find(sst.into()).is_some();
                if !live {
                    self.store.delete(&layout::sst(job.table, sst.id)).await?;
                }
            }
        }
        Ok(())
    }

    async fn end_job(&self, table: &TableJobs, job: JobId, edit: &Edit) -> Result<()> {
        let commit = || {
            table.manifest.commit(move |version| {
                let is_recorded = version.jobs.contains_key(&job);
                Ok(is_recorded.then(|| edit.clone()))
            })
        };
        self.retry(table, commit).await.map(drop)
    }

    /// Waits out a store that is away.
    async fn retry<T, F: Future<Output = Result<T>>>(
        &self,
        table: &TableJobs,
        mut operation: impl FnMut() -> F,
    ) -> Result<T> {
        let retried = async {
            let mut backoff = Backoff::for_outage();
            loop {
                match operation().await {
                    Err(error) if error.is_unavailable() => {
                        tracing::warn!(table = %table.name, %error, "compaction waits for the store");
                    }
                    result => return result,
                }
                backoff.pause().await;
            }
        };
        tokio::select! {
            () = table.cancel.cancelled() => Err(Error::closed("compaction was stopped")),
            result = retried => result,
        }
    }

    pub(super) async fn count_reused(&self, table: TableId, job: JobId) {
        let folder = layout::results(table, job);
        match self.store.list(&folder).await {
            Ok(results) => lock(&self.stats).tasks_reused += results.len() as u64,
            Err(error) => tracing::warn!(%job, %error, "results of a resumed job cannot be listed"),
        }
    }
}

/// Counts a job as entering until the compactor counts it.
struct Entering<'a>(Option<&'a AtomicUsize>);

impl Entering<'_> {
    fn leave(&mut self) {
        if let Some(entering) = self.0.take() {
            entering.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Entering<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}
