//! The engine from outside: real data there and back, promises, bad input, kinds of stores.

#[path = "../support/mod.rs"]
mod support;

mod alter;
mod bad_input;
mod caches;
mod checkpoints;
mod clones;
mod conformance;
mod damage;
mod deletion;
mod documentation;
mod durability;
mod durability_edges;
mod edges;
mod expiry;
mod faults;
mod findings;
mod forgeries;
mod imports;
mod model;
mod planners;
mod pressure;

mod range_deletes;
mod reader;
mod roundtrip;
mod s3_server;
mod scans;
mod semantics;
mod snapshots;
mod stats;
mod stores;
mod verify;
mod wal_identity;
mod windows;
