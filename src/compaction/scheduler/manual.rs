//! Compaction on request: brings a range of a table into its resting shape, and reports.

use std::{collections::HashSet, sync::Arc};

use futures::{StreamExt, stream::FuturesUnordered};

use super::{Inner, JobEnd, TICK, TableJobs};
use crate::{
    compaction::{
        Claimed, CompactionReport,
        planner::{CompactRange, PlannerConfig},
    },
    error::{Error, Result},
    types::Seq,
};

impl Inner {
    /// Runs jobs until every window of the range is one run of all that was flushed before. A job that fails
    /// does not keep the others from running.
    ///
    /// # Errors
    /// Why the first job that failed did; `Closed`.
    pub(super) async fn compact(
        self: &Arc<Self>,
        table: &Arc<TableJobs>,
        range: &CompactRange,
    ) -> Result<CompactionReport> {
        let started = self.env.monotonic();
        let goal = table.manifest.version().flushed_seq;
        let config = PlannerConfig::from(&self.config);
        // What expires later than now is not asked for.
        let pins = table.manifest.pins();
        let mut report = CompactionReport::default();
        let mut failed = HashSet::new();
        let mut failure = None;
        let mut jobs = FuturesUnordered::new();
        loop {
            let mut ended = self.ended.subscribe();
            let (claimed, none) = (table.claims.claimed(), Claimed::default());
            let planned =
                |claimed| table.planned_manually(&config, (range, goal), (claimed, &failed, &pins));
            let plans = planned(&claimed);
            // What others have under way may be part of the range.
            if jobs.is_empty() && plans.is_empty() && planned(&none).is_empty() {
                break;
            }
            for plan in plans {
                if plan.moves || self.has_room(&plan) {
                    let inputs = plan.input_ids();
                    let job = self.start(table, plan);
                    jobs.extend(job.map(|job| async move { (inputs, job.await) }));
                }
            }
            tokio::select! {
                // First what our own jobs have to say.
                biased;
                () = table.cancel.cancelled() => return Err(Error::closed("compaction was stopped")),
                Some((inputs, end)) = jobs.next() => {
                    let end: JobEnd = end.unwrap_or_else(|_| Err(Error::closed("compaction was stopped")));
                    match end {
                        Ok(done) => report.add(done),
                        Err(error) => {
                            failed.extend(inputs);
                            failure.get_or_insert(error);
                        }
                    }
                }
                _ = ended.changed() => {}
                () = tokio::time::sleep(TICK) => {}
            }
        }
        report.elapsed = self.env.monotonic() - started;
        report.skipped = skipped(table, range, goal);
        failure.map_or(Ok(report), Err)
    }
}

/// SSTs of the range that have not become part of one run, after all that could be done.
fn skipped(table: &TableJobs, range: &CompactRange, goal: Seq) -> Vec<(String, String)> {
    let version = table.manifest.version();
    let windows = version.windows.iter();
    let meant = windows.filter(|(window, _)| range.covers(**window));
    let stray = meant.flat_map(|(_, ssts)| {
        let deepest = ssts.levels.keys().next_back().copied().unwrap_or(0);
        ssts.ssts().filter(move |sst| {
            let is_meant = sst.seq_min <= goal && range.keys.overlaps(&sst.key_min, &sst.key_max);
            is_meant && (sst.level == 0 || sst.level < deepest)
        })
    });
    let why = "what it must be merged with is more than one job may take";
    stray.map(|sst| (sst.id.to_string(), why.into())).collect()
}
