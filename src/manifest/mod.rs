//! The manifest: which SSTs a table consists of, and which compaction jobs are under way.
//!
//! A [`Version`] is the immutable answer at one moment; an [`Edit`] is a change to it; a [`Manifest`]
//! is the one door through which edits become durable, a numbered log under an epoch. The [`Catalog`]
//! is the same for the list of tables. [`checkpoints`] are versions that somebody holds: what they name is
//! not deleted. [`invariants`] holds what every version must satisfy; [`inspect`] describes what is stored
//! for people.

mod catalog;
mod checkpoint;
pub mod checkpoints;
mod codec;
mod commit;
mod edit;
mod follow;
pub mod hidden;
pub mod inspect;
pub mod invariants;
mod pins;
mod shape;
#[cfg(test)]
mod tests;
mod version;

pub use catalog::{Catalog, WalIdentity};
pub use checkpoint::{Checkpoint, CheckpointInfo, CheckpointKind, Purpose};
pub use commit::Manifest;
pub use edit::{Departure, Edit, JobRecord, SstMove, SstRef};
pub use follow::{CatalogFollower, ManifestFollower};
pub use pins::{Pin, Pins};
pub use shape::{LevelShape, Shape, WindowShape};
pub use version::{Obsolete, Version, WindowVersion};
