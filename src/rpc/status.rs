//! Errors as gRPC statuses, and back. Kind and message survive: the kind travels in the trailer
//! `siltstone-error`. A status without it was made on the way, by a proxy, a broken connection or another
//! service at the address, and says that the call may be repeated. Only a message over the limit of size
//! will stay so.

use tonic::{Code, Status, metadata::MetadataValue};

use crate::error::{Error, ErrorKind};

const TRAILER: &str = "siltstone-error";

const KINDS: [(ErrorKind, Code); 9] = [
    (ErrorKind::Invalid, Code::InvalidArgument),
    (ErrorKind::NotFound, Code::NotFound),
    (ErrorKind::Unavailable, Code::Unavailable),
    (ErrorKind::Conflict, Code::Aborted),
    (ErrorKind::Fenced, Code::FailedPrecondition),
    (ErrorKind::Corrupt, Code::DataLoss),
    (ErrorKind::TooLarge, Code::ResourceExhausted),
    (ErrorKind::Closed, Code::Cancelled),
    (ErrorKind::Internal, Code::Internal),
];

/// `error` as a status. Sources become part of the message.
pub(super) fn to_status(error: &Error) -> Status {
    let kind = error.kind();
    let code = KINDS.iter().find(|(known, _)| *known == kind);
    let code = code.map_or(Code::Unknown, |(_, code)| *code);
    let text = error.to_string();
    let lead = format!("{kind}: ");
    let mut status = Status::new(code, text.strip_prefix(&lead).unwrap_or(&text));
    let word = MetadataValue::from_static(kind.as_str());
    status.metadata_mut().insert(TRAILER, word);
    status
}

/// `status`, answered or made by the transport while `address` was called, as an error.
pub(super) fn from_status(address: &str, status: Status) -> Error {
    let word = status.metadata().get(TRAILER);
    let word = word.and_then(|word| word.to_str().ok());
    if let Some(word) = word {
        let kind = KINDS.iter().find(|(kind, _)| kind.as_str() == word);
        let kind = kind.map_or(ErrorKind::Internal, |(kind, _)| *kind);
        return Error::new(kind, status.message());
    }
    let message = format!("meta {address}: {}", status.message());
    let error = match status.code() {
        // The decoder's word for a message over the limit. `TooLarge` would be taken for a full queue, and
        // waited out.
        Code::OutOfRange => Error::invalid(message),
        _ => Error::unavailable(message),
    };
    error.with_source(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kind_and_message_survive() {
        for (kind, code) in KINDS {
            let status = to_status(&Error::new(kind, "job 7: it broke"));
            assert_eq!(status.code(), code);
            let error = from_status("http://m:1", status);
            assert_eq!((error.kind(), error.message()), (kind, "job 7: it broke"));
        }
    }

    #[test]
    fn what_the_way_made_may_be_repeated() {
        for code in [
            Code::Unknown,
            Code::Internal,
            Code::Unavailable,
            // Another service, behind a load balancer.
            Code::Unimplemented,
            Code::InvalidArgument,
            Code::NotFound,
        ] {
            let error = from_status("http://m:1", Status::new(code, "reset"));
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            assert!(error.message().contains("http://m:1"), "{error}");
        }
        let error = from_status("http://m:1", Status::new(Code::OutOfRange, "too large"));
        assert_eq!(error.kind(), ErrorKind::Invalid, "it will not fit later");
    }
}
