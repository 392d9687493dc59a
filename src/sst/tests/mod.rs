//! SSTs written, read back, and damaged.

mod damage;
mod kinds;
mod oracle;
mod reading;
mod selecting;
mod types;

use std::sync::Arc;

use arrow::{
    array::{
        ArrayRef, AsArray, Float64Array, Int64Array, RecordBatch, StringArray,
        TimestampMillisecondArray, UInt8Array, UInt64Array,
    },
    compute::concat_batches,
    datatypes::{DataType, Field, Int64Type, Schema, TimeUnit},
};
use tokio::runtime::{Handle, Runtime};

use super::*;
use crate::{
    error::{Error, ErrorKind, Result},
    store::{Store, layout},
    types::{
        Key, KeyRange, RowSum, Seq, SstId, SstMeta, TableId, TableOptions, TableSchema, TimeRange,
        Window, WriteMode, row_hash,
    },
};

/// A store in memory, a runtime for its requests, and the table under test.
struct Bench {
    runtime: Runtime,
    store: Store,
    table: TableId,
    spec: SstSpec,
}

/// `host`, `at` (the key), `value`, `id`.
fn metrics_schema(mode: WriteMode) -> TableSchema {
    let time = DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into()));
    let columns = Schema::new(vec![
        Field::new("host", DataType::Utf8, false),
        Field::new("at", time, false),
        Field::new("value", DataType::Float64, true),
        Field::new("id", DataType::Int64, true),
    ]);
    let options = TableOptions {
        write_mode: mode,
        window: std::time::Duration::from_secs(3_600).into(),
        ..TableOptions::default()
    };
    TableSchema::new(Arc::new(columns), &["host", "at"], Some("at"), options).unwrap()
}

/// A row of the metrics table: host, time, seq, op; its id is its position.
type Metric = (usize, i64, u64, u8);

fn metrics(schema: &TableSchema, rows: &[Metric]) -> RecordBatch {
    let columns: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from_iter_values(
            rows.iter().map(|row| format!("host{:03}", row.0)),
        )),
        Arc::new(
            TimestampMillisecondArray::from_iter_values(rows.iter().map(|row| row.1))
                .with_timezone("UTC"),
        ),
        Arc::new(Float64Array::from_iter_values(
            rows.iter().map(|row| row.1 as f64 / 7.0),
        )),
        Arc::new(Int64Array::from_iter_values(0..rows.len() as i64)),
        Arc::new(UInt64Array::from_iter_values(rows.iter().map(|row| row.2))),
        Arc::new(UInt8Array::from_iter_values(rows.iter().map(|row| row.3))),
    ];
    RecordBatch::try_new(schema.stored().clone(), columns).unwrap()
}

/// `hosts` hosts with `times` times each, all at seq 7.
fn grid(hosts: usize, times: i64) -> Vec<Metric> {
    let hosts = (0..hosts).flat_map(|host| (0..times).map(move |time| (host, time, 7, 0)));
    hosts.collect()
}

fn flushed(n: u32) -> SstId {
    SstId::flushed(1_700_000_000_000, u128::from(n))
}

impl Bench {
    fn new(schema: TableSchema) -> Self {
        Self {
            runtime: Runtime::new().unwrap(),
            store: Store::open("memory:///").unwrap(),
            table: TableId::from_parts(1, 2),
            spec: SstSpec {
                schema,
                table: TableId::from_parts(1, 2),
                level: 0,
                window: Window::new(0, 3_600_000),
                applied_seq: Seq(0),
                options: SstOptions {
                    row_group_rows: 1_000,
                    page_rows: 100,
                    ..SstOptions::default()
                },
            },
        }
    }

    fn metrics(mode: WriteMode) -> Self {
        Self::new(metrics_schema(mode))
    }

    fn handle(&self) -> Handle {
        self.runtime.handle().clone()
    }

    /// Writes `batch` in batches of `rows` rows.
    fn write(&self, batch: &RecordBatch, rows: usize) -> Result<Vec<SstMeta>> {
        let starts = (0..batch.num_rows()).step_by(rows);
        let batches =
            starts.map(|start| Ok(batch.slice(start, rows.min(batch.num_rows() - start))));
        write_run(
            &self.store,
            &self.handle(),
            &self.spec,
            batches,
            RunHooks {
                id_of: &mut flushed,
                progress: &mut |_| {},
                finished: &mut |_| {},
                cancelled: &|| false,
            },
        )
    }

    fn write_one(&self, batch: &RecordBatch) -> Arc<SstMeta> {
        let mut metas = self.write(batch, 300).unwrap();
        assert_eq!(metas.len(), 1);
        Arc::new(metas.remove(0))
    }

    fn object(&self, meta: &SstMeta) -> Vec<u8> {
        let name = layout::sst(self.table, meta.id);
        self.runtime.block_on(self.store.get(&name)).unwrap().into()
    }

    fn put(&self, meta: &SstMeta, bytes: Vec<u8>) {
        let name = layout::sst(self.table, meta.id);
        self.runtime
            .block_on(self.store.put(&name, bytes.into()))
            .unwrap();
    }

    fn open(&self, meta: &Arc<SstMeta>) -> Result<SstReader> {
        self.open_as(&self.spec.schema, meta)
    }

    fn open_as(&self, schema: &TableSchema, meta: &Arc<SstMeta>) -> Result<SstReader> {
        self.open_through(&self.by_pages(), schema, meta)
    }

    /// With counters of its own.
    fn by_pages(&self) -> SstAccess {
        SstAccess::by_pages(&self.store, Arc::default())
    }

    fn open_through(
        &self,
        access: &SstAccess,
        schema: &TableSchema,
        meta: &Arc<SstMeta>,
    ) -> Result<SstReader> {
        let open = SstReader::open(access, schema, self.table, meta.clone());
        self.runtime.block_on(open)
    }

    fn read(&self, reader: &SstReader, request: &ReadRequest) -> Result<RecordBatch> {
        let source = reader.source(request, self.handle())?;
        let schema = source.schema().clone();
        let batches = source.collect::<Result<Vec<_>>>()?;
        Ok(concat_batches(&schema, &batches)?)
    }

    fn read_all(&self, meta: &Arc<SstMeta>) -> Result<RecordBatch> {
        self.read(&self.open(meta)?, &ReadRequest::default())
    }

    fn key(&self, host: usize, time: i64) -> Key {
        let batch = metrics(&self.spec.schema, &[(host, time, 0, 0)]);
        let keys = self.spec.schema.key_encoder().encode(&batch).unwrap();
        Key::from(keys.row(0).data())
    }
}

fn ids(batch: &RecordBatch) -> Vec<i64> {
    let ids = batch.column_by_name("id").unwrap();
    ids.as_primitive::<Int64Type>().values().to_vec()
}

fn kind<T>(result: Result<T>) -> (ErrorKind, String) {
    let error: Error = result.err().expect("it was to fail");
    (error.kind(), error.to_string())
}
