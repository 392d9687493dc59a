//! Deletion of what nobody can need any more. `candidates` decides, purely; `sweep` deletes.
//!
//! An object goes only if no version, running read, checkpoint or live job names it. What was left out of the
//! manifest stays for a grace, so that somebody who looks at a root can still find out what happened.

mod candidates;
mod sweep;

pub use candidates::{obsolete, read, unknown_tables};
pub use sweep::{DroppedSweep, Swept, delete_table, sweep_obsolete};
