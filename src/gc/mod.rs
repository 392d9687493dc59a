//! Deletion of what nobody can need any more. `candidates` decides, purely, from what `Facts` say; `sweep` gathers
//! the facts and deletes, or has a [`Delegate`] do so; `dry_run` decides from outside and deletes nothing.
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
//!
//! # Why a deletion may come late
//! A [`Delegate`] passes names on, to be deleted by other processes: perhaps after days in a queue, when this engine
//! has long been fenced; perhaps twice, and by several at once. So what is decided must stay right. It does, because
//! what nobody needs once nobody needs ever:
//! * **An SST** has an id of its own, which is not given twice. By the facts no version names it, and no flush, import
//!   or live job is about to; versions get SSTs from these and from nowhere else, so no later version names it, be it
//!   a newer engine's: that one begins with a version that this one knows, or one that came of it, and with the
//!   jobs that it records. Checkpoints and reads that begin later, and clones, which begin with a checkpoint, name
//!   SSTs of later versions.
//! * **The result of a task** is of a job that no version records. Ids of jobs are not given twice, and a job is
//!   recorded before anything of it is written.
//! * **A checkpoint** that has ended has its end in its name; one that is made to last longer is another object.
//! * **A dropped table** does not come back, and neither does its id: nothing that is put into its folder later is
//!   needed, and what checkpoints hold there is not among the names.
//!
//! What is written under such a name later, by a lost attempt, nobody needs either; a deletion that comes before it
//! misses it, and the next sweep finds it. That an object is gone is counted only when it is confirmed; until then it
//! stays a candidate of every sweep.
//!
//! What cannot wait, or is not of a table, the engine deletes itself: checkpoints in the middle of a sweep, records
//! of logs, results of a job that it has just committed, leftovers of opens and of writes.

mod candidates;
mod delegate;
mod dry_run;
mod pending;
mod retries;
mod stats;
mod sweep;
mod swept;
mod verdict;

pub use candidates::{
    Facts, is_named_by_nobody, judge, judge_dropped, judge_leftovers, unknown_tables,
};
pub use delegate::Delegate;
pub use dry_run::{DryRun, DryRunOptions, Judged, dry_run};
pub use pending::{Pending, PendingSsts};
pub use stats::GcStats;
pub use sweep::{Sweeper, Table};
pub use swept::{HeldBack, Swept};
pub use verdict::{Deleted, Kept, Verdict};
