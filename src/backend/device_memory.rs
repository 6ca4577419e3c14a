//! What a backend offers of its device's memory, so that a worker's logits can stay there.

use crate::sampling::logits::Foreign;
use std::os::fd::OwnedFd;

/// Bytes of a legacy IPC handle (`CU_IPC_HANDLE_SIZE`).
pub const IPC_HANDLE_BYTES: usize = 64;

/// Memory that a worker writes on the device; it is given up when this is dropped, which may wait for the device.
pub type OnDevice = Box<dyn Foreign + Send>;

/// Memory made here.
#[derive(Debug)]
pub struct Allocated {
    /// The memory, zeros at first.
    pub memory: OnDevice,
    /// What another process maps it by.
    pub descriptor: OwnedFd,
}

/// Memory that another process lends.
#[derive(Debug, Clone, Copy)]
pub struct Lent {
    /// Of the allocation that it lies in.
    pub handle: [u8; IPC_HANDLE_BYTES],
    /// Where in that allocation it begins.
    pub offset: u64,
    /// Its length.
    pub bytes: usize,
}

/// Why there is no memory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceMemoryError {
    /// The device has no room.
    #[error("the device is out of memory: {0}")]
    OutOfMemory(String),
    /// The handle cannot be opened here.
    #[error(
        "cannot be opened: {0}; it must be memory from cudaMalloc that another process still has, in the same \
         PID namespace with a different process id"
    )]
    Handle(String),
    /// It is memory of another device.
    #[error("the memory is on another GPU than the server's, which is {own}; nothing is copied between GPUs")]
    Elsewhere {
        /// The server's.
        own: String,
    },
    /// The allocation ends before.
    #[error("{bytes} bytes from offset {offset} would end beyond the allocation's {len} bytes")]
    TooShort {
        /// [`Lent::offset`].
        offset: u64,
        /// [`Lent::bytes`].
        bytes: usize,
        /// What the allocation has.
        len: usize,
    },
    /// The driver fails otherwise.
    #[error("the driver failed: {0}")]
    Driver(String),
}

/// Whether two UUIDs are of one device. The digits say it: not every library spells a slice of a card with "MIG-".
#[must_use]
pub fn is_same_device(one: &str, other: &str) -> bool {
    let is_kind = |kind: &&str| kind.eq_ignore_ascii_case("GPU-") || kind.eq_ignore_ascii_case("MIG-");
    let digits = |uuid: &str| uuid[uuid.get(..4).filter(is_kind).map_or(0, str::len)..].to_ascii_lowercase();
    digits(one) == digits(other)
}

/// The memory of one device, from any thread.
pub trait DeviceMemory: std::fmt::Debug + Send + Sync {
    /// Which device, as `nvidia-smi -L` shows it.
    fn uuid(&self) -> &str;

    /// Sizes are multiples of this many bytes.
    fn granularity(&self) -> usize;

    /// Makes memory of `bytes` bytes, a multiple of the granularity.
    ///
    /// # Errors
    /// [`DeviceMemoryError`]; nothing is kept then.
    fn allocate(&self, bytes: usize) -> Result<Allocated, DeviceMemoryError>;

    /// Opens memory that another process lends.
    ///
    /// # Errors
    /// [`DeviceMemoryError`]; nothing is kept then.
    fn open(&self, lent: &Lent) -> Result<OnDevice, DeviceMemoryError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digits_say_which_device() {
        let digits = "deadbeef-1234-1234-1234-0123456789ab";
        let own = format!("MIG-{digits}");
        for same in [own.clone(), format!("GPU-{digits}"), format!("mig-{}", digits.to_uppercase()), digits.to_owned()]
        {
            assert!(is_same_device(&same, &own), "{same}");
        }
        for other in [format!("CPU-{digits}"), "MIG-".to_owned(), "GPU-deadbeef".to_owned(), "\u{e9}\u{e9}".to_owned()]
        {
            assert!(!is_same_device(&other, &own), "{other}");
        }
    }
}
