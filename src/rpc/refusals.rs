//! Why requests on the side socket are refused: code, reason and field of each error, and how it is counted.

use crate::backend::device_memory::DeviceMemoryError;
use crate::error::{Error, Reason};
use crate::metrics::Lease;
use crate::proto;
use crate::region::{DeviceError, LeaseError, LookUpError};
use tonic::Code;

/// How an error is counted.
pub(super) fn outcome(error: &LeaseError) -> Lease {
    match error {
        LeaseError::Size { .. } | LeaseError::Device(DeviceError::HandleSize(_) | DeviceError::NoIpc) => Lease::Invalid,
        LeaseError::TooMany(_) | LeaseError::NoPlace(_) => Lease::TooManyRegions,
        LeaseError::NoRoom(_) => Lease::RegionBytes,
        LeaseError::System(_) => Lease::System,
        LeaseError::Ended => Lease::StreamEnded,
        LeaseError::Device(DeviceError::NoDevice | DeviceError::WrongDevice { .. }) => Lease::WrongDevice,
        LeaseError::Device(DeviceError::NoRoom(_)) => Lease::DeviceRegionBytes,
        LeaseError::Device(DeviceError::Refused(_)) => Lease::Device,
    }
}

/// The answer to `request` that there is no region for.
pub(super) fn not_leased(request: &str, error: &LeaseError) -> proto::RegionError {
    let (code, reason, field) = match error {
        LeaseError::Size { .. } => (Code::InvalidArgument, Reason::InvalidField.name(), "bytes"),
        LeaseError::TooMany(_) | LeaseError::NoPlace(_) => (Code::ResourceExhausted, "TOO_MANY_REGIONS", ""),
        LeaseError::NoRoom(_) => (Code::ResourceExhausted, "REGION_BYTES", ""),
        LeaseError::System(_) => (Code::ResourceExhausted, "SYSTEM", ""),
        LeaseError::Ended => (Code::FailedPrecondition, "STREAM_ENDED", ""),
        LeaseError::Device(error) => on_device(request, error),
    };
    let field = if field.is_empty() { String::new() } else { format!("{request}.{field}") };
    refusal(code, reason, &field, &error.to_string())
}

fn on_device(request: &str, error: &DeviceError) -> (Code, &'static str, &'static str) {
    // A lease says its device in a message of its own.
    let of = |lend: &'static str, lease: &'static str| if request == "lend" { lend } else { lease };
    match error {
        DeviceError::NoDevice => (Code::Unimplemented, "NO_DEVICE", of("uuid", "device")),
        DeviceError::WrongDevice { .. } => (Code::FailedPrecondition, "WRONG_DEVICE", of("uuid", "device.uuid")),
        DeviceError::NoIpc => (Code::Unimplemented, "NO_DEVICE_IPC", "ipc_handle"),
        DeviceError::HandleSize(_) => (Code::InvalidArgument, Reason::InvalidField.name(), "ipc_handle"),
        DeviceError::NoRoom(_) => (Code::ResourceExhausted, "DEVICE_REGION_BYTES", ""),
        DeviceError::Refused(DeviceMemoryError::OutOfMemory(_)) => (Code::ResourceExhausted, "DEVICE_MEMORY", ""),
        DeviceError::Refused(DeviceMemoryError::Handle(_)) => (Code::FailedPrecondition, "IPC_HANDLE", "ipc_handle"),
        DeviceError::Refused(DeviceMemoryError::Elsewhere { .. }) => {
            (Code::FailedPrecondition, "WRONG_DEVICE", "ipc_handle")
        }
        DeviceError::Refused(DeviceMemoryError::TooShort { .. }) => {
            (Code::InvalidArgument, Reason::InvalidField.name(), "bytes")
        }
        DeviceError::Refused(DeviceMemoryError::Driver(_)) => (Code::Internal, "DEVICE", ""),
    }
}

/// The answer to `request` that names a region which is none.
pub(super) fn not_found(error: LookUpError, request: &str) -> proto::RegionError {
    let (code, reason, field) = match error {
        LookUpError::Unknown { .. } => (Code::NotFound, Reason::UnknownRegion.name(), "region_id"),
        LookUpError::Stale { .. } => (Code::FailedPrecondition, Reason::StaleRegion.name(), "generation"),
    };
    refusal(code, reason, &format!("{request}.{field}"), &error.to_string())
}

/// The answer to a token that admits nobody.
pub(super) fn unknown_token() -> proto::RegionError {
    let message = "is not a token that waits: it was used, is too old, or its stream has ended";
    refusal(Code::PermissionDenied, "UNKNOWN_TOKEN", "hello.token", message)
}

/// The answer to a rank that attaches what has no descriptor.
pub(super) fn lent() -> proto::RegionError {
    let message = "is a buffer that its worker lent; the server has no descriptor of it";
    refusal(Code::FailedPrecondition, "LENT_REGION", "attach.region_id", message)
}

/// The answer to a rank that asks for more than to attach.
pub(super) fn not_owner() -> proto::RegionError {
    let message = "a rank may attach regions; rank 0 leases and releases them";
    refusal(Code::PermissionDenied, "NOT_OWNER", "request", message)
}

/// The answer to a request, or a field of one, that makes no sense.
pub(super) fn invalid(field: &str, message: &str) -> proto::RegionError {
    refusal(Code::InvalidArgument, Reason::InvalidField.name(), field, message)
}

/// The answer to what cannot be read, or asks for what a newer server may know.
pub(super) fn unreadable(error: &Error) -> proto::RegionError {
    let (code, field) = match error {
        Error::Unimplemented(field) => (Code::Unimplemented, field.field.as_str()),
        Error::Invalid(field) => (Code::InvalidArgument, field.field.as_str()),
        _ => (Code::InvalidArgument, ""),
    };
    refusal(code, error.reason().name(), field, &error.to_string())
}

/// An answer that refuses.
pub(super) fn refusal(code: Code, reason: &str, field: &str, message: &str) -> proto::RegionError {
    let (reason, field, message) = (reason.to_owned(), field.to_owned(), message.to_owned());
    proto::RegionError { code: code.into(), reason, field, message }
}
