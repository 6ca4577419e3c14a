//! Label values for the ways that logits and regions take.

use super::labelled::labelled;

labelled! {
    /// How logits reach the server, the label `data_path`.
    pub enum DataPath {
        /// There are no logits.
        None = "none",
        /// In the message.
        Inline = "inline",
        /// In a region.
        SharedMemory = "shared_memory",
        /// In shards, each of which comes in one of the ways above.
        VocabShards = "vocab_shards",
        /// In the message, only the largest logits of each row.
        TopN = "top_n",
        /// In a region on the device.
        DeviceMemory = "device_memory",
    }
}

labelled! {
    /// The result of a request for a region, the label `result`.
    pub enum Lease {
        /// A region was leased.
        Granted = "granted",
        /// The request is wrong: its token is invalid, a size is out of range, or the message makes no sense.
        Invalid = "invalid",
        /// The stream has as many regions as it may.
        TooManyRegions = "too_many_regions",
        /// There is no room within the limit on all regions together.
        RegionBytes = "region_bytes",
        /// The system gives no memory.
        System = "system",
        /// The stream ended meanwhile.
        StreamEnded = "stream_ended",
        /// There is no room within the limit on all regions on the device together.
        DeviceRegionBytes = "device_region_bytes",
        /// The device has no memory, or does not open what a worker lends.
        Device = "device",
        /// The region was to be on a device that this server does not sample on.
        WrongDevice = "wrong_device",
    }
}
