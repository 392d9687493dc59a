//! The whole of Siltstone as processes: a meta service, compaction nodes and engines, on loopback, on
//! ports that the system picks. Nothing sleeps for a fixed time; everything waits for what it needs to
//! see, for a minute at most.

#[path = "../support/mod.rs"]
mod support;

mod auto;
mod cleanup;
mod cluster;
mod command_line;
mod crashes;
mod ends;
mod engine_process;
mod export;
mod import_export;
mod inspect;
mod leftovers;
mod looks;
mod quarantine;
mod reader_process;
mod remote;
mod steering;
