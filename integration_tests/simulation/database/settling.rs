//! What must hold of a database once all is healed.

use std::time::Duration;

use siltstone::{
    config::CompactionMode,
    engine::{Engine, EngineStats, ScanRequest, Table},
    verify::verify,
};
use tokio::time::{Instant, sleep, timeout};

use super::{Database, Session};
use crate::{
    host::Host,
    support::{reading_rows, try_scan},
};

/// Everything comes to rest within this time: longer than the longest pause between attempts.
const REST: Duration = Duration::from_secs(4 * 3600);

impl Database {
    /// All is healed: everything must be done and tidied up, and nothing lost.
    pub(super) async fn settle(&mut self, session: Session) {
        self.tell("settles");
        let began = Instant::now();
        let Session {
            host,
            engine,
            table,
            snapshots,
        } = session;
        drop(snapshots);
        loop {
            let rest = async {
                table.flush().await?;
                engine.wait_compacted().await
            };
            let rested = timeout(REST, rest).await;
            let stats = engine.stats();
            let rested = rested.unwrap_or_else(|_| panic!("it does not rest: {stats:#?}"));
            rested.unwrap();
            // What failed too often is tried again by itself.
            if stats.compaction.quarantine.is_empty() {
                break;
            }
            assert!(began.elapsed() < REST, "excluded for ever: {stats:#?}");
            sleep(Duration::from_secs(60)).await;
        }
        self.check(&reading_rows(
            &try_scan(&table, ScanRequest::default()).await.unwrap(),
        ));
        self.check_tidy(&host, &engine, &table).await;
        self.count(&engine.stats());
        engine.close().await.unwrap();
        host.kill();
        let session = self.open().await;
        let batch = try_scan(&session.table, ScanRequest::default())
            .await
            .unwrap();
        self.check(&reading_rows(&batch));
        session.engine.close().await.unwrap();
        self.tell("has settled");
    }

    /// Nothing is stored but what is live, and no memory is held.
    async fn check_tidy(&self, host: &Host, engine: &Engine, table: &Table) {
        let began = Instant::now();
        loop {
            sleep(Duration::from_secs(70)).await;
            engine.collect_garbage().await.unwrap();
            let stats = table.stats();
            let names = self.objects.list("").await.unwrap();
            let ssts = names
                .iter()
                .filter(|object| object.name.ends_with(".parquet"))
                .count();
            let results = names
                .iter()
                .filter(|object| object.name.contains("/results/"))
                .count();
            if (ssts as u64, results) == (stats.ssts, 0) {
                break;
            }
            let names: Vec<_> = names.iter().map(|object| &object.name).collect();
            assert!(
                began.elapsed() < REST,
                "left behind: {names:#?}, {stats:#?}"
            );
        }
        let stats = engine.stats();
        assert_eq!(stats.compaction.jobs_running, 0, "{stats:#?}");
        assert_eq!(
            (stats.memtable_bytes, stats.write_bytes_reserved),
            (0, 0),
            "{stats:#?}"
        );
        let report = verify(&host.store(&self.objects), &[], |_| {})
            .await
            .unwrap();
        assert!(report.is_clean(), "{report:#?}");
    }

    /// Counts what an engine did, and that nobody else did what nodes should have done.
    pub(super) fn count(&self, stats: &EngineStats) {
        let compaction = &stats.compaction;
        self.world
            .count("jobs committed", compaction.jobs_committed);
        self.world.count("jobs resumed", compaction.jobs_resumed);
        self.world.count("tasks split", compaction.tasks_split);
        self.world.count(
            "parts reused",
            compaction.parts_reused + compaction.tasks_reused,
        );
        if self.config.compaction.mode == CompactionMode::Remote {
            assert!(compaction.fallbacks.is_empty(), "{compaction:#?}");
            let mut nodes = compaction.nodes.keys();
            assert!(
                nodes.all(|node| node.0.starts_with("node-")),
                "{compaction:#?}"
            );
        }
        assert!(compaction.proof_failures.is_empty(), "{compaction:#?}");
    }
}
