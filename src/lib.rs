//! Siltstone is an embeddable LSM storage engine for time-series and event data. Rows go in and come out
//! as Arrow record batches, lie as sorted Parquet files on any object store, and are merged either in the
//! database process or on a fleet of separate compaction nodes.
//!
//! # The story of a write
//!
//! 1. [`Table::write`](engine::Table::write) checks the batch against the table's
//!    [schema](types::TableSchema), and waits if memory is full or compaction is behind.
//! 2. The batch takes a [seq](types::Seq) and is appended to the [`wal`], which makes it durable together
//!    with its neighbours.
//! 3. It enters the [`memtable`], sorted, and becomes visible when all before it are.
//! 4. A full memtable is frozen. The flusher cuts it by time window, [merges](merge) the versions of each
//!    key, and writes one [`sst`] a window: Parquet, streamed to the [`store`].
//! 5. One edit of the [`manifest`] makes the SSTs live, as level 0 of their windows, and the WAL is
//!    released.
//! 6. When a window has too many level-0 runs, the planner of [`compaction`] makes a plan. The scheduler
//!    claims its inputs, cuts it into tasks, and records it in the manifest as a job.
//! 7. The [`Compactor`](compaction::Compactor) runs the tasks: here, or through the [`meta`] service on
//!    [nodes](node), which talk over [`rpc`]. Both call [`compaction::execute()`].
//! 8. Each task leaves its outcome as objects, part by part; of each the first valid one is final.
//! 9. The engine checks the [proof](compaction::proof) that no row was lost, and swaps inputs for outputs
//!    in one edit. Only the engine ever commits.
//! 10. Scans that began before go on reading what they began with.
//!
//! # Where to look
//!
//! | module | owns |
//! |---|---|
//! | [`engine`] | tables, memory budget, flushes, scans, back-pressure |
//! | [`types`], [`error`], [`config`], [`clock`] | the vocabulary that all others share |
//! | [`store`] | objects, their names, the numbered log |
//! | [`wal`], [`memtable`], [`sst`], [`merge`] | a row's stations, and the one merge they share |
//! | [`manifest`] | versions, edits, the one door for commits |
//! | [`compaction`] | plan, job, task, outcome; planner, scheduler, execution, proof |
//! | [`gc`] | what may be deleted, and the deleting |
//! | [`verify`] | whether what is stored is whole |
//! | `threads` | where work that blocks runs, and how it waits; how simulations have it take turns |
//! | [`meta`], [`node`], [`rpc`] | the control plane, its workers, and the wire between them |
//!
//! `compose` puts engine and control plane together, as the configuration says: [`Engine::open`].
#![warn(missing_docs)]

#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
pub mod clock;
pub mod compaction;
mod compose;
pub mod config;
pub mod engine;
pub mod error;
pub mod gc;
#[cfg(test)]
mod golden;
pub mod manifest;
pub mod memtable;
pub mod merge;
pub mod meta;
mod metrics;
pub mod node;
mod proto;
pub mod rpc;
pub mod sst;
pub mod store;
#[doc(hidden)]
pub mod threads;
pub mod types;
pub mod verify;
pub mod wal;

pub use config::EngineConfig;
pub use engine::{Engine, Reader, ScanRequest, ScanStream, Table};
pub use error::{Error, ErrorKind, Result};
pub use types::{KeyRange, TableOptions, TableSchema, TimeRange, WriteMode};
