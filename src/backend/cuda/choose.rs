//! Finds the device, and checks that it and the driver are recent enough.

use super::OpenError;
use crate::backend::device_memory::is_same_device;
use cudarc::driver::{DriverError, result, sys};
use std::fmt;
use sys::CUdevice_attribute_enum as Attribute;

/// CUDA 12.2, which came with R535: the oldest driver that reads the PTX, and the machine code of the same compiler.
const OLDEST_DRIVER: i32 = 12_020;
/// Ampere.
const OLDEST_CAPABILITY: (i32, i32) = (8, 0);

/// A device, and its names.
#[derive(Debug)]
pub(super) struct Choice {
    pub(super) device: sys::CUdevice,
    /// Compute capability.
    pub(super) capability: (i32, i32),
    name: String,
    pub(super) uuid: String,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}.{}, {})", self.name, self.capability.0, self.capability.1, self.uuid)
    }
}

impl Choice {
    fn of(device: sys::CUdevice) -> Result<Self, DriverError> {
        let capability = (
            attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(device, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        Ok(Self { device, capability, name: result::device::get_name(device)?, uuid: uuid(device)? })
    }
}

/// The device with this index, or with this UUID as nvidia-smi shows it.
pub(super) fn choose(wanted: &str) -> Result<Choice, OpenError> {
    // SAFETY: loading the driver's library runs its initialisers, as every program that uses a GPU does.
    if !unsafe { sys::is_culib_present() } {
        return Err(OpenError::NoDriver);
    }
    result::init().map_err(|error| match error.0 {
        // There is no device, or only a stub library of the driver.
        sys::CUresult::CUDA_ERROR_NO_DEVICE | sys::CUresult::CUDA_ERROR_STUB_LIBRARY => {
            OpenError::NoDevice(error.to_string())
        }
        _ => OpenError::NotStarted(error.to_string()),
    })?;
    let version = driver_version()?;
    if version < OLDEST_DRIVER {
        return Err(OpenError::Unsupported(format!(
            "the driver supports CUDA {}.{}, but 12.2 (R535) or newer is required",
            version / 1000,
            version % 1000 / 10
        )));
    }
    let choice = find(wanted)?;
    if choice.capability < OLDEST_CAPABILITY {
        return Err(OpenError::Unsupported(format!(
            "{choice} is too old; compute capability 8.0 or newer is required"
        )));
    }
    Ok(choice)
}

fn find(wanted: &str) -> Result<Choice, OpenError> {
    let devices = 0..result::device::get_count()?;
    let devices = devices.map(|index| Choice::of(result::device::get(index)?)).collect::<Result<Vec<_>, _>>()?;
    let index = wanted.parse::<usize>();
    let is_wanted =
        |at: usize, device: &Choice| index.as_ref().map_or(is_same_device(&device.uuid, wanted), |&index| index == at);
    if let Some(at) = devices.iter().enumerate().position(|(at, device)| is_wanted(at, device)) {
        return Ok(devices.into_iter().nth(at).expect("it was found there"));
    }
    let list: Vec<String> = devices.iter().enumerate().map(|(at, device)| format!("{at}: {device}")).collect();
    Err(OpenError::NoDevice(format!("there is no device {wanted}; known: {}", list.join(", "))))
}

/// An attribute of a device, from the driver.
pub(super) fn attribute(device: sys::CUdevice, which: Attribute) -> Result<i32, DriverError> {
    // SAFETY: `device` came from the driver.
    unsafe { result::device::get_attribute(device, which) }
}

/// The device's UUID as nvidia-smi spells it. A slice of a card (MIG) has its own, which the older function does not
/// know: that gives the card's UUID, which all its slices share.
fn uuid(device: sys::CUdevice) -> Result<String, DriverError> {
    let (mut own, mut card) = (sys::CUuuid { bytes: [0; 16] }, sys::CUuuid { bytes: [0; 16] });
    // SAFETY: the device came from the driver, which writes a UUID to each place.
    unsafe {
        sys::cuDeviceGetUuid_v2(&raw mut own, device).result()?;
        sys::cuDeviceGetUuid(&raw mut card, device).result()?;
    }
    let hex = |range: std::ops::Range<usize>| own.bytes[range].iter().map(|b| format!("{:02x}", *b as u8)).collect();
    let digits: [String; 5] = [0..4, 4..6, 6..8, 8..10, 10..16].map(hex);
    Ok(format!("{}-{}", if own.bytes == card.bytes { "GPU" } else { "MIG" }, digits.join("-")))
}

fn driver_version() -> Result<i32, DriverError> {
    let mut version = 0;
    // SAFETY: the pointer is to a live integer.
    unsafe { sys::cuDriverGetVersion(&raw mut version) }.result()?;
    Ok(version)
}
