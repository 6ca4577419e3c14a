//! The gRPC status of each error, defined in this one place.

use crate::error::{Error, Refusal};
use crate::params::FieldError;
use std::collections::HashMap;
use std::time::Duration;
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

/// The domain of `google.rpc.ErrorInfo`.
const DOMAIN: &str = "croupier";
/// The metadata key for the encodings that messages may have.
const ACCEPTED: &str = "grpc-accept-encoding";

/// The status of an error, with its details: the field at fault, the reason, and when to try again.
pub(super) fn from_error(error: &Error) -> Status {
    let (code, field, retry) = match error {
        Error::Invalid(field) => (Code::InvalidArgument, Some(field), None),
        Error::Malformed(_) | Error::TooManyItems { .. } => (Code::InvalidArgument, None, None),
        Error::TooLong { .. } => (Code::OutOfRange, None, None),
        Error::Compressed => (Code::Unimplemented, None, None),
        Error::Unimplemented(field) => (Code::Unimplemented, Some(field), None),
        Error::UnknownRegion(field) => (Code::NotFound, Some(field), None),
        Error::StaleRegion(field) => (Code::FailedPrecondition, Some(field), None),
        Error::UnknownShardToken(field) => (Code::PermissionDenied, Some(field), None),
        Error::RankTaken(field) => (Code::AlreadyExists, Some(field), None),
        Error::Refused(refusal) => (Code::ResourceExhausted, None, Some(refusal.retry_after())),
        Error::TooManyCalls(_) => (Code::ResourceExhausted, None, Some(Duration::from_secs(1))),
        Error::Unread(_) | Error::NotReceived(_) => (Code::Aborted, None, None),
        Error::DeadlineExceeded => (Code::DeadlineExceeded, None, None),
        Error::NoToken | Error::WrongToken => (Code::Unauthenticated, None, None),
        Error::Draining | Error::DrainTimeout => (Code::Unavailable, None, Some(Duration::ZERO)),
        Error::EngineStopped => (Code::Unavailable, None, None),
    };
    let mut details = ErrorDetails::with_error_info(error.reason().name(), DOMAIN, HashMap::new());
    if let Some(FieldError { field, message }) = field {
        details.add_bad_request_violation(field, message);
    }
    if retry.is_some() {
        details.set_retry_info(retry);
    }
    let mut status = Status::with_error_details(code, error.to_string(), details);
    if *error == Error::Compressed {
        // gRPC libraries look for the accepted encodings here.
        status.metadata_mut().insert(ACCEPTED, MetadataValue::from_static("identity"));
    }
    status
}

/// When to try a refused step again, in the wire's unit.
pub(super) fn retry_after_ms(refusal: Refusal) -> u32 {
    u32::try_from(refusal.retry_after().as_millis()).unwrap_or(u32::MAX)
}

/// A code's name as gRPC spells it, for metrics.
pub(super) fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}
