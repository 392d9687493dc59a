//! The one error type. Its kind says what the caller should do; its message names the object and
//! the numbers. Messages are lower case and carry no full stop, so that they can be chained.

use std::{
    any::Any,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

/// `Result` with Siltstone's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What the caller of a failed operation should do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The call is wrong and will stay wrong: fix it.
    Invalid,
    /// What was asked for does not exist.
    NotFound,
    /// Something needed cannot be reached now, or its answer was lost: try again later.
    Unavailable,
    /// Somebody else was faster: reload, and decide again.
    Conflict,
    /// A newer writer or leader has taken over: stop.
    Fenced,
    /// Stored bytes are damaged or from a newer version; the message names the object.
    Corrupt,
    /// It does not fit into memory, time or a message: make it smaller.
    TooLarge,
    /// The engine or service is shut down.
    Closed,
    /// A bug in Siltstone.
    Internal,
}

impl ErrorKind {
    /// The kind as one lower-case word, for logs and the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::NotFound => "not found",
            Self::Unavailable => "unavailable",
            Self::Conflict => "conflict",
            Self::Fenced => "fenced",
            Self::Corrupt => "corrupt",
            Self::TooLarge => "too large",
            Self::Closed => "closed",
            Self::Internal => "internal",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

type Source = Arc<dyn std::error::Error + Send + Sync>;

/// An error of any Siltstone operation: a [kind](ErrorKind), a message, perhaps a source.
///
/// Cloning is cheap, so that one failed group commit can answer every writer in the group.
#[derive(Clone, Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<Source>,
}

macro_rules! constructors {
    ($($(#[$doc:meta])* $name:ident => $kind:ident;)*) => {
        $($(#[$doc])*
        pub fn $name(message: impl Into<String>) -> Self {
            Self::new(ErrorKind::$kind, message)
        })*
    };
}

impl Error {
    /// An error of `kind` that says `message`.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            source: None,
        }
    }

    constructors! {
        /// An [`ErrorKind::Invalid`] error.
        invalid => Invalid;
        /// An [`ErrorKind::NotFound`] error.
        not_found => NotFound;
        /// An [`ErrorKind::Unavailable`] error.
        unavailable => Unavailable;
        /// An [`ErrorKind::Conflict`] error.
        conflict => Conflict;
        /// An [`ErrorKind::Fenced`] error.
        fenced => Fenced;
        /// An [`ErrorKind::Corrupt`] error.
        corrupt => Corrupt;
        /// An [`ErrorKind::TooLarge`] error.
        too_large => TooLarge;
        /// An [`ErrorKind::Closed`] error.
        closed => Closed;
        /// An [`ErrorKind::Internal`] error.
        internal => Internal;
    }

    /// The same error with what caused it.
    #[must_use]
    pub fn with_source(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// The same error, its message led by what was being done: `"{doing}: {message}"`.
    #[must_use]
    pub fn context(mut self, doing: impl fmt::Display) -> Self {
        self.message = format!("{doing}: {}", self.message);
        self
    }

    /// What the caller should do.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The message without the kind and the source.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Whether waiting and trying again is the remedy.
    pub fn is_unavailable(&self) -> bool {
        self.kind == ErrorKind::Unavailable
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.message)?;
        if let Some(source) = &self.source {
            write!(f, ": {source}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source.as_ref() as _)
    }
}

impl From<arrow::error::ArrowError> for Error {
    fn from(error: arrow::error::ArrowError) -> Self {
        Self::internal("arrow kernel failed").with_source(error)
    }
}

/// Runs `decode`, which works on stored bytes. A panic in it becomes `Corrupt`: decoders of others assert some
/// of what damage can break.
pub(crate) fn guarded<T>(decode: impl FnOnce() -> Result<T>) -> Result<T> {
    let decoded = catch_unwind(AssertUnwindSafe(decode));
    decoded.unwrap_or_else(|panic| {
        let text = panic_text(&*panic);
        Err(Error::corrupt(format!("it does not decode: {text}")))
    })
}

/// What a panic that was caught said.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without a message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_names_kind_context_and_source() {
        let error = Error::corrupt("sst a.parquet: footer is 3 bytes")
            .with_source(std::io::Error::other("short read"))
            .context("compacting job 7");
        assert_eq!(
            error.to_string(),
            "corrupt: compacting job 7: sst a.parquet: footer is 3 bytes: short read"
        );
        assert_eq!(error.kind(), ErrorKind::Corrupt);
    }
}
