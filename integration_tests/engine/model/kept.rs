//! What outlasts the table's changes: checkpoints and clones, each with what it should show; and how a reader sees
//! them, and the table, from beside the engine.

use std::sync::atomic::{AtomicU64, Ordering};

use siltstone::{
    clock::Env,
    engine::{Engine, Reader, ReaderTable, ScanStream},
    error::{ErrorKind, Result},
    types::TableSchema,
};

use super::{
    Case, Check, Rows, compare,
    oracle::Oracle,
    persist, rows_of,
    steps::{Keep, Read},
};

/// More are not made, so that a case stays fast.
const KEPT_MAX: usize = 3;

/// A checkpoint or a clone.
pub struct Kept {
    what: Keep,
    name: String,
    /// The table as it was, and its schema.
    oracle: Oracle,
    schema: TableSchema,
    /// What a checkpoint had expired.
    expiry: i64,
}

impl Case {
    /// Makes another one of the table as it is.
    pub(super) async fn keep(&mut self, what: Keep) {
        if self.kept.len() == KEPT_MAX {
            return;
        }
        self.kept_ever += 1;
        let name = format!("kept {}", self.kept_ever);
        match what {
            Keep::Checkpoint => {
                self.table.create_checkpoint(&name, None).await.unwrap();
            }
            Keep::Clone => {
                self.engine.clone_table("table", &name).await.unwrap();
            }
        }
        self.kept.push(Kept {
            what,
            name,
            oracle: self.oracle.clone(),
            schema: self.table.schema(),
            expiry: self.oracle.expiry(self.now_ms),
        });
    }

    /// Ends a checkpoint, or drops a clone.
    pub(super) async fn release(&mut self, at: usize) {
        if self.kept.is_empty() {
            return;
        }
        let kept = self.kept.remove(at % self.kept.len());
        let released = match kept.what {
            Keep::Checkpoint => persist(|| self.table.delete_checkpoint(&kept.name)).await,
            Keep::Clone => self.engine.drop_table(&kept.name).await,
        };
        match released {
            // It was deleted by an attempt whose answer was lost.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            released => released.unwrap(),
        }
    }

    /// Has clones get SSTs of their own.
    pub(super) async fn compact_clones(&self) {
        for kept in self.kept.iter().filter(|kept| kept.what == Keep::Clone) {
            let clone = self.engine.table(&kept.name).unwrap();
            persist(|| clone.compact()).await.unwrap();
        }
    }

    /// Reads all that is kept.
    pub(super) async fn check_kept(&self, read: &Read) -> Check {
        for kept in &self.kept {
            let request = read.request(&kept.schema);
            let found = match kept.what {
                Keep::Checkpoint => {
                    let view = persist(|| self.table.at_checkpoint(&kept.name)).await;
                    let view = view.unwrap();
                    kept.check_schema(view.schema())?;
                    persist(|| rows(view.scan(request.clone()))).await
                }
                Keep::Clone => {
                    let clone = self.engine.table(&kept.name).unwrap();
                    kept.check_schema(&clone.schema())?;
                    persist(|| rows(clone.scan(request.clone()))).await
                }
            };
            kept.check(self.now_ms, read, "kept", found.unwrap())?;
        }
        Ok(())
    }

    /// Reads all of it, and the table, as another process would.
    pub(super) async fn check_reader(&self, read: &Read) -> Check {
        self.table.flush().await.unwrap();
        let reader = persist(|| self.reader()).await.unwrap();
        let table = persist(|| reader.table("table")).await.unwrap();
        let schema = self.table.schema();
        let wanted = self
            .oracle
            .rows(&schema, self.oracle.expiry(self.now_ms), read);
        let found = read_beside(&table, read, &schema).await;
        compare("reader", read, wanted, found)?;
        for kept in &self.kept {
            let table = match kept.what {
                Keep::Checkpoint => persist(|| reader.table_at("table", &kept.name)).await,
                Keep::Clone => persist(|| reader.table(&kept.name)).await,
            };
            let found = read_beside(&table.unwrap(), read, &kept.schema).await;
            kept.check(self.now_ms, read, "reader of kept", found)?;
        }
        persist(|| reader.close()).await.unwrap();
        Ok(())
    }

    async fn reader(&self) -> Result<Reader> {
        static SEEDS: AtomicU64 = AtomicU64::new(1 << 32);
        let seed = SEEDS.fetch_add(1, Ordering::Relaxed);
        let env = Env::seeded(self.clock.clone(), seed);
        let builder = Engine::reader(self.config.clone()).store(self.store.clone());
        builder.env(env).open().await
    }
}

impl Kept {
    fn check_schema(&self, found: &TableSchema) -> Check {
        let (wanted, found) = (self.schema.columns(), found.columns());
        match wanted == found {
            true => Ok(()),
            false => Err(format!("{} has {found:?}, not {wanted:?}", self.name)),
        }
    }

    fn check(&self, now_ms: u64, read: &Read, what: &str, found: Rows) -> Check {
        let expiry = match self.what {
            Keep::Checkpoint => self.expiry,
            // Its rows go on ageing.
            Keep::Clone => self.oracle.expiry(now_ms),
        };
        let wanted = self.oracle.rows(&self.schema, expiry, read);
        let what = format!("{what} ({:?} {:?})", self.what, self.name);
        compare(&what, read, wanted, found)
    }
}

async fn rows(scan: impl Future<Output = Result<ScanStream>>) -> Result<Rows> {
    Ok(rows_of(&scan.await?.collect().await?))
}

async fn read_beside(table: &ReaderTable, read: &Read, schema: &TableSchema) -> Rows {
    let request = read.request(schema);
    let found = persist(|| rows(table.scan(request.clone()))).await;
    found.unwrap()
}
