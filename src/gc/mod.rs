//! Deletion of what nobody can need any more. `candidates` decides, purely, from what `Facts` say; `sweep` gathers
//! the facts and deletes; `dry_run` decides from outside and deletes nothing.
//!
//! An object is deleted only if no version, running read, checkpoint or live job names it, and nobody is about to
//! name it: [`is_named_by_nobody`] is that sentence. What has left the table stays for a grace, so that somebody
//! who looks at a root can still find out what happened.
//!
//! # Why it is safe without any grace
//! Facts are gathered in this order, and each step needs those before it:
//! 1. **The objects are listed.** Nothing that comes later can be deleted.
//! 2. **This engine still leads** the root. So no newer one had begun when the listing was made, and every object on
//!    it is one that this engine, those before it, or attempts at their jobs have written. What older engines had not
//!    committed by the time this one opened they never will.
//! 3. **[`Pending`] SSTs**: those that flushes and imports of this engine are about to commit. An SST is pending from
//!    before its upload begins until its commit is known to have been made, or not to be made ever: if that never
//!    becomes known, for as long as the engine lives. So of the SSTs listed, those that are not pending are in the
//!    version already, or will be in none.
//! 4. **The version.** The task of a job writes outputs only once the job is recorded, and an output enters the
//!    version in the edit that ends its job: one that is listed belongs to a job that the version records, or is in
//!    the version, or has been in it, or never will be.
//! 5. **Checkpoints.** One that is put later, and holds, names SSTs of this version or a newer one only:
//!    [`manifest::checkpoints`](crate::manifest::checkpoints) has the argument.
//! 6. **Versions before it that reads hold.** A read that begins later begins with this version or a newer one: what
//!    has left never comes back.
//!
//! A lost attempt at a job that has ended may still write outputs, or a result: the next sweep finds them.

mod candidates;
mod dry_run;
mod pending;
mod retries;
mod stats;
mod sweep;
mod verdict;

pub use candidates::{
    Facts, is_named_by_nobody, judge, judge_dropped, judge_leftovers, unknown_tables,
};
pub use dry_run::{DryRun, DryRunOptions, Judged, dry_run};
pub use pending::{Pending, PendingSsts};
pub use stats::GcStats;
pub use sweep::{HeldBack, Sweeper, Swept, Table};
pub use verdict::{Deleted, Kept, Verdict};
