//! For tests: jobs over real SSTs of a small table, and what must come out of them.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use arrow::{
    array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch, UInt8Array, UInt64Array},
    datatypes::{DataType, Field, Int64Type, Schema},
};
use tokio::runtime::Handle;

use super::{CompactionJob, CompactionOutcome, Task};
use crate::{
    sst::{ReadRequest, RunHooks, SstAccess, SstOptions, SstReader, SstSpec, write_run},
    store::Store,
    types::{
        JobId, Key, KeyRange, Retention, Seq, SstId, SstMeta, TableId, TableOptions, TableSchema,
        Window,
    },
};

/// A row of the table: key, seq, value; no value for a delete.
pub(crate) type Row = (i64, u64, Option<i64>);

/// Inputs of a job.
pub(crate) struct Bench {
    pub(crate) store: Store,
    pub(crate) schema: TableSchema,
    pub(crate) inputs: Vec<Arc<SstMeta>>,
    rows: Vec<Row>,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let columns = Schema::new(vec![
            Field::new("k", DataType::Int64, false),
            Field::new("v", DataType::Int64, true),
        ]);
        let schema = TableSchema::new(columns.into(), &["k"], None, TableOptions::default());
        Self {
            store: Store::open("memory:///").unwrap(),
            schema: schema.unwrap(),
            inputs: Vec::new(),
            rows: Vec::new(),
        }
    }

    /// Three inputs of level 0 with 40,000 keys: all are written, half of them again, some are deleted.
    pub(crate) async fn overlapping() -> Self {
        let mut bench = Self::new();
        bench
            .write((0..40_000).map(|key| (key, 1, Some(key))))
            .await;
        bench
            .write((0..40_000).step_by(2).map(|key| (key, 2, Some(-key))))
            .await;
        bench
            .write((0..40_000).step_by(7).map(|key| (key, 3, None)))
            .await;
        bench
    }

    /// Writes an SST of level 0.
    pub(crate) async fn write(&mut self, rows: impl Iterator<Item = Row>) -> Arc<SstMeta> {
        let rows: Vec<Row> = rows.collect();
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.0))),
            Arc::new(rows.iter().map(|row| row.2).collect::<Int64Array>()),
            Arc::new(UInt64Array::from_iter_values(rows.iter().map(|row| row.1))),
            Arc::new(UInt8Array::from_iter_values(
                rows.iter().map(|row| u8::from(row.2.is_none())),
            )),
        ];
        let batch = RecordBatch::try_new(self.schema.stored().clone(), columns).unwrap();
        let spec = SstSpec {
            schema: self.schema.clone(),
            table: table(),
            level: 0,
            window: Window::ALL,
            applied_seq: Seq(0),
            options: SstOptions {
                row_group_rows: 5_000,
                page_rows: 500,
                ..SstOptions::default()
            },
        };
        let (store, number) = (self.store.clone(), self.inputs.len() as u128);
        let write = move || {
            let hooks = RunHooks {
                id_of: &mut |_| SstId::flushed(1, number),
                progress: &mut |_| {},
                finished: &mut |_| {},
                cancelled: &|| false,
            };
            write_run(
                &store,
                &Handle::current(),
                &spec,
                [Ok(batch)].into_iter(),
                hooks,
            )
        };
        let written = tokio::task::spawn_blocking(write).await.unwrap().unwrap();
        let [sst] = &written[..] else {
            panic!("{written:?}");
        };
        let sst = Arc::new(sst.clone());
        self.inputs.push(sst.clone());
        self.rows.extend(rows);
        sst
    }

    /// An SST of one row that is nowhere, with `key` at about `number`.
    pub(crate) fn sst(&self, number: usize, key: Key) -> SstMeta {
        SstMeta {
            id: SstId::flushed(1, number as u128),
            key_min: key.clone(),
            key_max: key,
            ..self.inputs[0].as_ref().clone()
        }
    }

    /// A job that merges all inputs into SSTs of about 8,192 rows, cut into tasks at `cuts`.
    pub(crate) fn job(&self, cuts: &[i64]) -> Arc<CompactionJob> {
        let starts = std::iter::once(None).chain(cuts.iter().map(|&key| Some(self.key(key))));
        let ends = cuts.iter().map(|&key| Some(self.key(key))).chain([None]);
        let ranges = starts.zip(ends).map(|(start, end)| KeyRange { start, end });
        Arc::new(CompactionJob {
            id: JobId::from_parts(1, 1),
            table: table(),
            store_url: "memory:///".into(),
            schema: self.schema.clone(),
            inputs: self.inputs.clone(),
            window: Window::ALL,
            level_target: 1,
            retention: Retention {
                drop_tombstones: true,
                ..Retention::default()
            },
            sst_bytes_target: 1_000,
            tasks: ranges.collect(),
        })
    }

    pub(crate) fn key(&self, key: i64) -> Key {
        let batch = RecordBatch::try_new(
            Arc::new(self.schema.columns().project(&[0]).unwrap()),
            vec![Arc::new(Int64Array::from(vec![key])) as ArrayRef],
        );
        let keys = self.schema.key_encoder().encode(&batch.unwrap()).unwrap();
        Key::from(keys.row(0).data())
    }

    /// The rows of `outcome`'s outputs, in their order.
    pub(crate) async fn written(&self, outcome: &CompactionOutcome) -> Vec<(i64, i64)> {
        let access = SstAccess::by_chunks(&self.store);
        let mut rows = Vec::new();
        for sst in outcome.outputs() {
            let sst = Arc::new(sst.clone());
            let reader = SstReader::open(&access, &self.schema, table(), sst).await;
            let reader = reader.unwrap();
            let handle = Handle::current();
            let read = move || {
                let source = reader.source(&ReadRequest::default(), handle).unwrap();
                source.collect::<crate::error::Result<Vec<RecordBatch>>>()
            };
            let batches = tokio::task::spawn_blocking(read).await.unwrap().unwrap();
            for batch in batches {
                let column = |at: usize| batch.column(at).as_primitive::<Int64Type>();
                assert_eq!(batch.column(1).null_count(), 0, "a tombstone was kept");
                let keys = column(0).values().iter().copied();
                rows.extend(keys.zip(column(1).values().iter().copied()));
            }
        }
        rows
    }

    /// What must be left of the rows: of each key the newest, unless that is a delete.
    pub(crate) fn merged(&self) -> Vec<(i64, i64)> {
        let mut newest: BTreeMap<i64, (u64, Option<i64>)> = BTreeMap::new();
        for &(key, seq, value) in &self.rows {
            let entry = newest.entry(key).or_insert((seq, value));
            if seq > entry.0 {
                *entry = (seq, value);
            }
        }
        let rows = newest.into_iter();
        rows.filter_map(|(key, (_, value))| Some((key, value?)))
            .collect()
    }

    /// Names of the compacted SSTs in the store.
    pub(crate) async fn outputs(&self) -> Vec<SstId> {
        let objects = self.store.list(&crate::store::layout::ssts(table())).await;
        let names = objects.unwrap().into_iter();
        let ids = names.filter_map(|object| crate::store::layout::parse_sst(&object.name));
        let mut ids: Vec<SstId> = ids
            .filter(|id| matches!(id, SstId::Compacted { .. }))
            .collect();
        ids.sort();
        ids
    }
}

pub(crate) fn table() -> TableId {
    TableId::from_parts(1, 1)
}

/// The only task of a job.
pub(crate) fn only_task(job: &CompactionJob) -> Task {
    assert_eq!(job.tasks.len(), 1);
    job.task(0).unwrap()
}

/// Waits until `holds`.
pub(crate) async fn until(holds: impl Fn() -> bool) {
    let waited = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(60), waited).await;
    waited.expect("a minute was not enough");
}
