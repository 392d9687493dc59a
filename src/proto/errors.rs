//! Error kinds on the wire and in the plan log.

use super::generated as pb;
use crate::error::ErrorKind;

impl From<ErrorKind> for pb::ErrorKind {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Invalid => Self::Invalid,
            ErrorKind::NotFound => Self::NotFound,
            ErrorKind::Unavailable => Self::Unavailable,
            ErrorKind::Conflict => Self::Conflict,
            ErrorKind::Fenced => Self::Fenced,
            ErrorKind::Corrupt => Self::Corrupt,
            ErrorKind::TooLarge => Self::TooLarge,
            ErrorKind::Closed => Self::Closed,
            ErrorKind::Internal => Self::Internal,
        }
    }
}

impl From<pb::ErrorKind> for ErrorKind {
    /// A kind that this version does not know counts as internal: nobody can be told what to do.
    fn from(kind: pb::ErrorKind) -> Self {
        match kind {
            pb::ErrorKind::Invalid => Self::Invalid,
            pb::ErrorKind::NotFound => Self::NotFound,
            pb::ErrorKind::Unavailable => Self::Unavailable,
            pb::ErrorKind::Conflict => Self::Conflict,
            pb::ErrorKind::Fenced => Self::Fenced,
            pb::ErrorKind::Corrupt => Self::Corrupt,
            pb::ErrorKind::TooLarge => Self::TooLarge,
            pb::ErrorKind::Closed => Self::Closed,
            pb::ErrorKind::Internal | pb::ErrorKind::Unspecified => Self::Internal,
        }
    }
}
