//! Labels of the ways that logits take.

/// Ways for logits to get here, the label `data_path`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataPath {
    /// There are none.
    None,
    /// In the message.
    Inline,
    /// In a region.
    SharedMemory,
    /// In shards, each by one of the ways above.
    VocabShards,
    /// In the message, the largest of each row.
    TopN,
    /// In a region on the device.
    DeviceMemory,
}

/// Values of the label `data_path`, in the order of [`DataPath`].
pub(super) const DATA_PATHS: [&str; 6] = ["none", "inline", "shared_memory", "vocab_shards", "top_n", "device_memory"];

impl DataPath {
    /// Its name, as in server info.
    #[must_use]
    pub fn name(self) -> &'static str {
        DATA_PATHS[self as usize]
    }
}

/// What came of asking for a region, the label `result`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lease {
    /// It was leased.
    Granted,
    /// The request is wrong: a token that is none, a size out of range, a message that makes no sense.
    Invalid,
    /// The stream has as many as it may.
    TooManyRegions,
    /// All regions together have no room.
    RegionBytes,
    /// The system gives no memory.
    System,
    /// The stream ended meanwhile.
    StreamEnded,
    /// The regions on the device have no room together.
    DeviceRegionBytes,
    /// The device has no memory, or does not open what a worker lends.
    Device,
    /// It was to be on a device that this server does not sample on.
    WrongDevice,
}

/// Values of the label `result`, in the order of [`Lease`].
pub(super) const LEASES: [&str; 9] = [
    "granted",
    "invalid",
    "too_many_regions",
    "region_bytes",
    "system",
    "stream_ended",
    "device_region_bytes",
    "device",
    "wrong_device",
];
