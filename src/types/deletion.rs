//! What became of an object that somebody else was asked to delete.

use crate::error::Error;

/// What became of an object that somebody else was asked to delete.
#[derive(Clone, Debug)]
pub enum Deletion {
    /// It is gone: it was deleted, or was not there.
    Confirmed,
    /// It may be there, for this reason: try again later.
    Failed(Error),
    /// Nobody could be had to delete it, for this reason in one or two words: delete it yourself.
    Left(&'static str),
}
