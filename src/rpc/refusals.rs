//! Why requests on the side socket are refused: the code, reason and field of each error, and what it is counted as.

use crate::backend::device_memory::DeviceMemoryError;
use crate::error::{Error, Reason};
use crate::metrics::Lease;
use crate::proto;
use crate::region::{DeviceError, LeaseError, LookUpError};
use tonic::Code;

/// A lease that was refused.
pub(super) struct NotLeased {
    pub(super) error: proto::RegionError,
    /// What the refusal is counted as.
    pub(super) counted: Lease,
}

/// The answer to a `request` that gets no region.
pub(super) fn not_leased(request: &str, error: &LeaseError) -> NotLeased {
    use Code::{FailedPrecondition, InvalidArgument, ResourceExhausted};
    let invalid = Reason::InvalidField.name();
    let (counted, code, reason, field) = match error {
        LeaseError::Size { .. } => (Lease::Invalid, InvalidArgument, invalid, "bytes"),
        LeaseError::TooMany(_) | LeaseError::NoPlace(_) => {
            (Lease::TooManyRegions, ResourceExhausted, "TOO_MANY_REGIONS", "")
        }
        LeaseError::NoRoom(_) => (Lease::RegionBytes, ResourceExhausted, "REGION_BYTES", ""),
        LeaseError::System(_) => (Lease::System, ResourceExhausted, "SYSTEM", ""),
        LeaseError::Ended => (Lease::StreamEnded, FailedPrecondition, "STREAM_ENDED", ""),
        LeaseError::Device(error) => on_device(request, error),
    };
    let field = if field.is_empty() { String::new() } else { format!("{request}.{field}") };
    NotLeased { error: refusal(code, reason, &field, &error.to_string()), counted }
}

fn on_device(request: &str, error: &DeviceError) -> (Lease, Code, &'static str, &'static str) {
    use Code::{FailedPrecondition, Internal, InvalidArgument, ResourceExhausted, Unimplemented};
    let invalid = Reason::InvalidField.name();
    // In a lease, the device has a message of its own.
    let of = |lend: &'static str, lease: &'static str| if request == "lend" { lend } else { lease };
    match error {
        DeviceError::NoDevice => (Lease::WrongDevice, Unimplemented, "NO_DEVICE", of("uuid", "device")),
        DeviceError::WrongDevice { .. } => {
            (Lease::WrongDevice, FailedPrecondition, "WRONG_DEVICE", of("uuid", "device.uuid"))
        }
        DeviceError::NoIpc => (Lease::Invalid, Unimplemented, "NO_DEVICE_IPC", "ipc_handle"),
        DeviceError::HandleSize(_) => (Lease::Invalid, InvalidArgument, invalid, "ipc_handle"),
        DeviceError::NoRoom(_) => (Lease::DeviceRegionBytes, ResourceExhausted, "DEVICE_REGION_BYTES", ""),
        DeviceError::Refused(refused) => {
            let (code, reason, field) = match refused {
                DeviceMemoryError::OutOfMemory(_) => (ResourceExhausted, "DEVICE_MEMORY", ""),
                DeviceMemoryError::Handle(_) => (FailedPrecondition, "IPC_HANDLE", "ipc_handle"),
                DeviceMemoryError::Elsewhere { .. } => (FailedPrecondition, "WRONG_DEVICE", "ipc_handle"),
                DeviceMemoryError::TooShort { .. } => (InvalidArgument, invalid, "bytes"),
                DeviceMemoryError::Driver(_) => (Internal, "DEVICE", ""),
            };
            (Lease::Device, code, reason, field)
        }
    }
}

/// The answer to a `request` that names a region which does not exist.
pub(super) fn not_found(error: LookUpError, request: &str) -> proto::RegionError {
    let (code, reason, field) = match error {
        LookUpError::Unknown { .. } => (Code::NotFound, Reason::UnknownRegion.name(), "region_id"),
        LookUpError::Stale { .. } => (Code::FailedPrecondition, Reason::StaleRegion.name(), "generation"),
    };
    refusal(code, reason, &format!("{request}.{field}"), &error.to_string())
}

/// The answer to a token that admits nobody.
pub(super) fn unknown_token() -> proto::RegionError {
    let message = "is not a valid token: it was used already, is too old, or its stream has ended";
    refusal(Code::PermissionDenied, "UNKNOWN_TOKEN", "hello.token", message)
}

/// The answer to a rank that attaches a region without a descriptor.
pub(super) fn lent() -> proto::RegionError {
    let message = "is a buffer lent by the worker; the server has no descriptor for it";
    refusal(Code::FailedPrecondition, "LENT_REGION", "attach.region_id", message)
}

/// The answer to a rank that asks for anything but to attach.
pub(super) fn not_owner() -> proto::RegionError {
    let message = "a rank may only attach regions; rank 0 leases and releases them";
    refusal(Code::PermissionDenied, "NOT_OWNER", "request", message)
}

/// The answer to a request, or a field of one, that makes no sense.
pub(super) fn invalid(field: &str, message: &str) -> proto::RegionError {
    refusal(Code::InvalidArgument, Reason::InvalidField.name(), field, message)
}

/// The answer to a request that cannot be read, or that asks for something only a newer server may know.
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
