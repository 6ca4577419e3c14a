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
}

/// Values of the label `data_path`, in the order of [`DataPath`].
pub(super) const DATA_PATHS: [&str; 5] = ["none", "inline", "shared_memory", "vocab_shards", "top_n"];

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
}

/// Values of the label `result`, in the order of [`Lease`].
pub(super) const LEASES: [&str; 6] =
    ["granted", "invalid", "too_many_regions", "region_bytes", "system", "stream_ended"];
