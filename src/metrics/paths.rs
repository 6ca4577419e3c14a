//! Labels of the ways that logits take.

use super::labelled::labelled;

labelled! {
    /// Ways for logits to get here, the label `data_path`.
    pub enum DataPath {
        /// There are none.
        None = "none",
        /// In the message.
        Inline = "inline",
        /// In a region.
        SharedMemory = "shared_memory",
        /// In shards, each by one of the ways above.
        VocabShards = "vocab_shards",
        /// In the message, the largest of each row.
        TopN = "top_n",
        /// In a region on the device.
        DeviceMemory = "device_memory",
    }
}

labelled! {
    /// What came of asking for a region, the label `result`.
    pub enum Lease {
        /// It was leased.
        Granted = "granted",
        /// The request is wrong: a token that is none, a size out of range, a message that makes no sense.
        Invalid = "invalid",
        /// The stream has as many as it may.
        TooManyRegions = "too_many_regions",
        /// All regions together have no room.
        RegionBytes = "region_bytes",
        /// The system gives no memory.
        System = "system",
        /// The stream ended meanwhile.
        StreamEnded = "stream_ended",
        /// The regions on the device have no room together.
        DeviceRegionBytes = "device_region_bytes",
        /// The device has no memory, or does not open what a worker lends.
        Device = "device",
        /// It was to be on a device that this server does not sample on.
        WrongDevice = "wrong_device",
    }
}
