//! For tests: jobs without inputs, and a runner whose tasks only write their result objects.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use arrow::datatypes::{DataType, Field, Schema};
use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

use super::TaskRunner;
use crate::{
    compaction::{
        Attempt, CompactionJob, RowSum, Task, TaskOutcome, TaskPart,
        cleanup::{CleanupJob, clean},
    },
    error::{Error, Result},
    store::{Store, layout},
    types::{JobId, KeyRange, Retention, TableId, TableOptions, TableSchema, Window},
};

/// A store in memory, under the URL that the jobs name.
pub(crate) fn memory() -> Store {
    Store::open("memory:///").unwrap()
}

/// Name of the result object of a job's task.
pub(crate) fn result_name(job: &CompactionJob, index: u32) -> String {
    layout::result(job.table, job.task_id(index), 0)
}

/// A job of `tasks` tasks.
pub(crate) fn job(number: u128, tasks: usize) -> Arc<CompactionJob> {
    let columns = Schema::new(vec![Field::new("k", DataType::Int64, false)]);
    let schema = TableSchema::new(columns.into(), &["k"], None, TableOptions::default());
    Arc::new(CompactionJob {
        id: JobId::from_parts(1, number),
        table: TableId::from_parts(1, 1),
        store_url: "memory:///".into(),
        schema: schema.unwrap(),
        inputs: vec![],
        window: Window::ALL,
        level_target: 1,
        retention: Retention::default(),
        sst_bytes_target: 1 << 20,
        tasks: vec![KeyRange::ALL; tasks],
    })
}

/// What [`Writer::ran`] says in place of a task's index for a cleanup job.
pub(crate) const CLEANED: u32 = u32::MAX;

/// Writes a task's result object, or cleans up, unless told to wait or fail; remembers who ran what.
pub(crate) struct Writer {
    pub store: Store,
    /// Lets held tasks go on.
    pub hold: CancellationToken,
    /// Tasks that run only once `hold` is cancelled.
    held: Vec<u32>,
    /// Tasks that fail.
    pub fail: Mutex<BTreeMap<u32, Error>>,
    ran: Mutex<Vec<(u32, String)>>,
}

impl Writer {
    pub fn new(store: &Store, held: &[u32]) -> Arc<Self> {
        Arc::new(Self {
            store: store.clone(),
            hold: CancellationToken::new(),
            held: held.to_vec(),
            fail: Mutex::default(),
            ran: Mutex::default(),
        })
    }

    pub fn ran(&self) -> Vec<(u32, String)> {
        self.ran.lock().unwrap().clone()
    }

    pub fn runs_of(&self, index: u32) -> usize {
        self.ran().iter().filter(|(ran, _)| *ran == index).count()
    }
}

#[async_trait]
impl TaskRunner for Writer {
    async fn run(&self, job: Arc<CompactionJob>, task: Task, attempt: Attempt) -> Result<()> {
        let index = task.id.index;
        let ran = (index, attempt.node.0.clone());
        self.ran.lock().unwrap().push(ran);
        if let Some(error) = self.fail.lock().unwrap().get(&index) {
            return Err(error.clone());
        }
        if self.held.contains(&index) {
            tokio::select! {
                biased;
                () = self.hold.cancelled() => {}
                () = attempt.cancel.cancelled() => return Err(Error::closed("cancelled")),
            }
        }
        let outcome = TaskPart::Outcome(TaskOutcome {
            task: task.id,
            part: 0,
            range: task.range,
            token: attempt.token,
            node: attempt.node,
            outputs: vec![],
            read: RowSum::new(u64::from(index), 1),
            written: RowSum::new(u64::from(index), 1),
            shadowed: RowSum::default(),
            deleted: RowSum::default(),
            combined: RowSum::default(),
            expired: RowSum::default(),
            range_deleted: RowSum::default(),
            bytes_read: 0,
            elapsed_ms: 0,
        });
        let name = result_name(&job, index);
        self.store.create(&name, outcome.encode()).await.map(drop)
    }

    async fn clean(&self, job: Arc<CleanupJob>, attempt: Attempt) -> Result<()> {
        let ran = (CLEANED, attempt.node.0.clone());
        self.ran.lock().unwrap().push(ran);
        if self.held.contains(&CLEANED) {
            tokio::select! {
                biased;
                () = self.hold.cancelled() => {}
                () = attempt.cancel.cancelled() => return Err(Error::closed("cancelled")),
            }
        }
        clean(&job, &attempt, &self.store).await
    }
}
