//! Sees one recorded job through: hand out, prove, commit; or give up.

use std::{
    collections::HashSet,
    panic::AssertUnwindSafe,
    sync::{Arc, atomic::Ordering},
    task::Poll,
};

use futures::{FutureExt, StreamExt, TryStreamExt, stream};

use super::{Inner, JobEnd, TableJobs, lock, slots::Slot};
use crate::{
    clock::Backoff,
    compaction::{
        Claim, CompactionContext, CompactionJob, CompactionOutcome, CompactionReport, Footprint,
        Plan, Share, proof, results,
        split::{Stretch, split},
    },
    error::{Error, ErrorKind, Result, panic_text},
    manifest::{Edit, JobRecord, SstMove, SstRef, Version},
    sst::{SstAccess, SstReader},
    store::layout::{self, ObjectName},
    types::{JobId, KeyRange, SstId, SstMeta, TableId, TaskId},
};

/// Inputs opened at once, to cut a job into tasks.
const OPENS_MAX: usize = 16;

impl Inner {
    /// Commits a trivial move.
    pub(super) async fn move_ssts(&self, table: &TableJobs, plan: &Plan, claim: Claim) -> JobEnd {
        let moves = plan.inputs.iter().map(|sst| SstMove {
            sst: SstRef::from(sst.as_ref()),
            level: plan.level_target,
        });
        let moved: Vec<SstMove> = moves.collect();
        let commit = || {
            table.manifest.commit(|version| {
                let is_due = is_live(version, plan)
                    && has_place(version, plan)
                    && moved.iter().any(|moved| {
                        let sst = version.find(moved.sst);
                        sst.is_some_and(|sst| sst.level != moved.level)
                    });
                Ok(is_due.then(|| Edit {
                    moved: moved.clone(),
                    ..Edit::default()
                }))
            })
        };
        let committed = self.retry(table, commit).await;
        drop(claim);
        if let Err(error) = committed {
            self.could_not_start(table, plan, &error);
            return Err(error);
        }
        lock(&self.stats).ssts_moved += moved.len() as u64;
        let cleared = plan.inputs.iter().filter(|sst| sst.level == 0).count();
        lock(&table.cleared).add(cleared as f64, self.env.monotonic());
        tracing::debug!(
            table = %table.name, window = %plan.window, reason = %plan.reason,
            ssts = moved.len(), level = plan.level_target, "ssts moved"
        );
        Ok(CompactionReport::of_move(plan))
    }

    /// Records the job and sees it through. A plan that no longer fits the version comes to nothing.
    pub(super) async fn record_and_run(
        &self,
        table: &TableJobs,
        plan: &Plan,
        claim: Claim,
        slot: Slot,
    ) -> JobEnd {
        match self.record(table, plan).await {
            Ok(Some(record)) => self.run_job(table, &record, claim, slot).await,
            Ok(None) => Ok(CompactionReport::default()),
            Err(error) => {
                self.could_not_start(table, plan, &error);
                Err(error)
            }
        }
    }

    fn could_not_start(&self, table: &TableJobs, plan: &Plan, error: &Error) {
        if error.kind() == ErrorKind::Fenced || table.cancel.is_cancelled() {
            return;
        }
        self.note_failure(table, error, "compaction job could not be started");
        let reason = error.to_string();
        table.quarantine.add(&plan.input_ids(), &reason, &self.env);
    }

    async fn record(&self, table: &TableJobs, plan: &Plan) -> Result<Option<Arc<JobRecord>>> {
        let tasks = self.retry(table, || self.tasks_of(table, plan)).await?;
        let job = JobId::from_parts(self.env.unix_ms(), self.env.random());
        let record = |version: &Version| JobRecord {
            id: job,
            inputs: plan.input_ids(),
            window: plan.window,
            level_target: plan.level_target,
            retention: plan.retention(version, table.manifest.pins()),
            sst_bytes_target: self.config.sst_bytes_target.0,
            tasks: tasks.clone(),
            created_ms: self.env.unix_ms(),
        };
        let commit = || {
            table.manifest.commit(|version| {
                // Recorded by an append whose answer was lost.
                let is_recorded = version.jobs.contains_key(&job);
                let fits = is_live(version, plan) && has_place(version, plan);
                let is_due = !is_recorded && fits && is_free(version, plan);
                Ok(is_due.then(|| Edit {
                    jobs_started: vec![record(version)],
                    ..Edit::default()
                }))
            })
        };
        let version = self.retry(table, commit).await?;
        let record = version.jobs.get(&job).cloned();
        lock(&self.stats).jobs_started += u64::from(record.is_some());
        tracing::debug!(
            table = %table.name, %job, window = %plan.window, reason = %plan.reason,
            inputs = plan.inputs.len(), bytes = plan.input_bytes(), tasks = tasks.len(),
            is_recorded = record.is_some(), "compaction job recorded"
        );
        Ok(record)
    }

    /// Key ranges of about equal bytes. Cuts come from the inputs' row groups.
    async fn tasks_of(&self, table: &TableJobs, plan: &Plan) -> Result<Vec<KeyRange>> {
        let target = self.config.task_bytes_target.0;
        if plan.input_bytes() <= target {
            return Ok(vec![KeyRange::ALL]);
        }
        let schema = table.manifest.version().schema.clone();
        let access = SstAccess::by_chunks(&self.store);
        let open = |sst| SstReader::open(&access, &schema, table.manifest.table(), sst);
        let readers = stream::iter(plan.inputs.iter().cloned()).map(open);
        let readers: Vec<SstReader> = readers.buffered(OPENS_MAX).try_collect().await?;
        let groups = readers.iter().flat_map(SstReader::row_group_bounds);
        let stretches = groups.map(|group| Stretch {
            first_key: group.first_key,
            bytes: group.bytes,
        });
        Ok(split(stretches.collect(), target))
    }

    /// Runs a recorded job to its end in the manifest.
    pub(super) async fn run_job(
        &self,
        table: &TableJobs,
        record: &JobRecord,
        claim: Claim,
        slot: Slot,
    ) -> JobEnd {
        let run = async {
            let (job, outcome) = self.outcome_of(table, record, slot).await?;
            self.commit(table, &job, &outcome).await
        };
        // Left in the manifest, a job that panics would be adopted at once, and panic again.
        let result = AssertUnwindSafe(run).catch_unwind().await;
        let result = result.unwrap_or_else(|panic| {
            let text = panic_text(panic.as_ref());
            Err(Error::internal(format!("compaction panicked: {text}")))
        });
        let ended = match result {
            Ok(report) => Ok(report),
            // The next engine on this root resumes it.
            Err(error) if error.kind() == ErrorKind::Fenced || table.cancel.is_cancelled() => {
                self.forget_if_dropped(table, record.id);
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

    /// Tells the compactor of a job that will not be resumed, for its table has been dropped.
    pub(super) fn forget_if_dropped(&self, table: &TableJobs, job: JobId) {
        if table.cancel.is_cancelled() && !self.cancel.is_cancelled() {
            self.compactor.borrow().forget(job);
        }
    }

    async fn outcome_of(
        &self,
        table: &TableJobs,
        record: &JobRecord,
        mut slot: Slot,
    ) -> Result<(Arc<CompactionJob>, CompactionOutcome)> {
        let job = Arc::new(self.job_of(table, record)?);
        let mut compactors = self.compactor.subscribe();
        let outcome = loop {
            let compactor = compactors.borrow_and_update().clone();
            let context = CompactionContext {
                cancel: table.cancel.child_token(),
                share: Share::ALL,
                write_pressure_percent: self.write_pressure(table, &job),
            };
            let mut running = compactor.compact(job.clone(), context);
            // From its first poll on the compactor counts the job itself.
            let first = futures::poll!(&mut running);
            slot.has_entered();
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
                biased;
                outcome = &mut running => break outcome?,
                () = is_replaced => {}
                () = table.cancel.cancelled() => return Err(Error::closed("compaction was stopped")),
            }
        };
        proof::prove(&job, &outcome)?;
        self.prove_objects(table, &job, &outcome).await?;
        Ok((job, outcome))
    }

    /// How far level 0 is on the way from where jobs are made to where writes are slowed down, in percent, if `job`
    /// makes it smaller.
    fn write_pressure(&self, table: &TableJobs, job: &CompactionJob) -> u32 {
        if !job.relieves_level_0() {
            return 0;
        }
        let runs = table.manifest.version().l0_runs_max();
        let (trigger, slowdown) = (self.config.l0_runs_trigger, self.config.l0_runs_slowdown);
        let percent = runs.saturating_sub(trigger) * 100 / slowdown.saturating_sub(trigger).max(1);
        percent.min(100) as u32
    }

    async fn prove_objects(
        &self,
        table: &TableJobs,
        job: &CompactionJob,
        outcome: &CompactionOutcome,
    ) -> Result<()> {
        let access = SstAccess::by_chunks(&self.store);
        let outputs: Vec<Arc<SstMeta>> = outcome.outputs().cloned().map(Arc::new).collect();
        let access = &access;
        let opened = stream::iter(outputs).map(|sst| async move {
            let open = || SstReader::open(access, &job.schema, job.table, sst.clone());
            let opened = self.retry(table, open).await;
            (sst, opened)
        });
        let mut opened = opened.buffered(OPENS_MAX);
        while let Some((sst, opened)) = opened.next().await {
            let opened = match opened {
                Err(error) if error.kind() == ErrorKind::Closed => return Err(error),
                opened => opened.map(|sst| sst.keys_are_unique()),
            };
            proof::prove_object(job, &sst, opened)?;
        }
        Ok(())
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
    ) -> JobEnd {
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
        let cleared = job.inputs.iter().filter(|sst| sst.level == 0).count();
        lock(&table.cleared).add(cleared as f64, self.env.monotonic());
        let inputs = job.inputs.len() as u64;
        Ok(CompactionReport::of_job(inputs, job.input_bytes(), outcome))
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
            .partition(|sst| text.contains(&format!("{sst}.parquet")));
        let held = if named.is_empty() { others } else { named };
        table.quarantine.add(&held, &text, &self.env);
        let edit = Edit {
            jobs_ended: vec![record.id],
            ..Edit::default()
        };
        self.end_job(table, record.id, &edit).await
    }

    pub(super) fn note_failure(&self, table: &TableJobs, error: &Error, what: &str) {
        tracing::warn!(table = %table.name, %error, "{what}");
        let mut stats = lock(&self.stats);
        if let Some(clause) = proof::refused_clause(error) {
            *stats.proof_failures.entry(clause.to_owned()).or_default() += 1;
        }
        *stats
            .jobs_failed
            .entry(error.kind().to_string())
            .or_default() += 1;
        stats.last_error = Some(error.to_string());
    }

    /// Deletes what the finished tasks of a job that was given up have written.
    async fn delete_outputs(&self, table: &TableJobs, record: &JobRecord) -> Result<()> {
        let job = Arc::new(self.job_of(table, record)?);
        let progress = results::load(&self.store, &job).await?;
        for sst in progress.outcomes().flat_map(|outcome| &outcome.outputs) {
            let live = table.manifest.version().find(sst.into()).is_some();
            if !live {
                self.store.delete(&layout::sst(job.table, sst.id)).await?;
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
            biased;
            () = table.cancel.cancelled() => Err(Error::closed("compaction was stopped")),
            result = retried => result,
        }
    }

    pub(super) async fn count_reused(&self, table: TableId, job: JobId) {
        let folder = layout::results(table, job);
        match self.store.list(&folder).await {
            Ok(results) => {
                let names = results.iter().map(|object| layout::parse(&object.name));
                let tasks: HashSet<TaskId> = names
                    .filter_map(|name| match name {
                        Some(ObjectName::Result(_, task, _)) => Some(task),
                        _ => None,
                    })
                    .collect();
                lock(&self.stats).tasks_reused += tasks.len() as u64;
            }
            Err(error) => tracing::warn!(%job, %error, "results of a resumed job cannot be listed"),
        }
    }
}

/// Whether all inputs of `plan` are still there.
fn is_live(version: &Version, plan: &Plan) -> bool {
    let mut inputs = plan.inputs.iter();
    inputs.all(|sst| version.find(sst.as_ref().into()).is_some())
}

/// Whether nothing has come to where the outputs go since the plan was made: an import may have.
fn has_place(version: &Version, plan: &Plan) -> bool {
    let keys = plan.key_range();
    let window = version.windows.get(&plan.window);
    let run = window.and_then(|window| window.levels.get(&plan.level_target));
    let is_input = |sst: &SstMeta| plan.inputs.iter().any(|input| input.id == sst.id);
    let mut run = run.into_iter().flatten();
    run.all(|sst| !keys.overlaps(&sst.key_min, &sst.key_max) || is_input(sst))
}

/// Whether no recorded job is in the way: one that waits to be adopted.
fn is_free(version: &Version, plan: &Plan) -> bool {
    let footprint = plan.footprint();
    version
        .jobs
        .values()
        .all(|job| match version.inputs_of(job) {
            Ok(inputs) => {
                Footprint::new(job.window, &inputs, job.level_target).is_apart(&footprint)
            }
            Err(_) => false,
        })
}
