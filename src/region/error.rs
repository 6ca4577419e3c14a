//! Why there is no region.

use super::DeviceError;
use std::io;

/// Why a region was not leased.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// The request asks for no bytes, or for more than one region may have.
    #[error("is {bytes}, must be in 1 ..= {limit} (max_bytes_per_region)")]
    Size {
        /// How many were asked for.
        bytes: u64,
        /// `Limits.max_bytes_per_region`.
        limit: usize,
    },
    /// The stream has as many regions as it may.
    #[error("the stream already has {0} regions, the most allowed (max_regions_per_stream)")]
    TooMany(usize),
    /// Regions that streams gave up, but that are still read, have all of the server's places.
    #[error(
        "all {0} places for regions are taken, some of them by regions that were given up but are still being read; try again"
    )]
    NoPlace(usize),
    /// The server's regions already take as much memory as they may.
    #[error("the regions of all streams have no room for {0} more bytes (max_region_bytes)")]
    NoRoom(usize),
    /// The system gives no memory.
    #[error("the system cannot provide the memory: {0}")]
    System(#[from] io::Error),
    /// The stream has ended.
    #[error("the stream has ended")]
    Ended,
    /// The region was to be on a device, and could not be.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Why a reference to a region is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LookUpError {
    /// The stream has no such region.
    #[error("no region {id} is leased to this stream; lease one first")]
    Unknown {
        /// The id.
        id: u64,
    },
    /// The id belongs to another region now.
    #[error("is {generation}, but the region now leased under this id has generation {current}")]
    Stale {
        /// The generation sent.
        generation: u64,
        /// The generation in force.
        current: u64,
    },
}
