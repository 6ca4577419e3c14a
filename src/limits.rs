//! Every bound of the server, with its default. An error names the limit that was reached.

use crate::params::MAX_VOCAB_SIZE;
use std::time::Duration;

/// The limits in force. The configuration may change each of them. Nothing in the server grows beyond them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Largest vocabulary a stream may have.
    pub max_vocab_size: u32,
    /// Largest request message, in bytes.
    pub max_message_bytes: usize,
    /// Steps of one stream in flight before its next message is read (flow control, not an error).
    pub max_steps_in_flight_per_stream: usize,
    /// Sequences open on one stream.
    pub max_sequences_per_stream: usize,
    /// Sequences open on the server.
    pub max_sequences: usize,
    /// Prompt and output tokens of one sequence.
    pub max_history_tokens: usize,
    /// Bytes of everything that is remembered about sequences, and of streams' default parameters.
    pub max_state_bytes: usize,
    /// Logits rows used by one step, and by one batch.
    pub max_rows_per_step: usize,
    /// Bytes of the logits rows used by one step, and by one batch. A row counts each time it is used.
    pub max_row_bytes_per_step: usize,
    /// The largest `LogprobsParams.top_n`.
    pub max_top_logprobs: u32,
    /// Bytes of messages in flight on the server.
    pub max_bytes_in_flight: usize,
    /// How long a reply waits for its worker to read the replies before it; zero means for ever.
    pub reply_timeout: Duration,
    /// How long a message may take to come. This applies to the first message of a call and to each one that has begun;
    /// zero means for ever.
    pub receive_timeout: Duration,
    /// Steps waiting for the backend.
    pub max_queued_steps: usize,
    /// Decode streams open on the server.
    pub max_streams: usize,
    /// Connections open on the server.
    pub max_connections: usize,
    /// Regions of one stream.
    pub max_regions_per_stream: usize,
    /// Bytes of one region.
    pub max_bytes_per_region: usize,
    /// Bytes of all regions on the server.
    pub max_region_bytes: usize,
    /// Bytes of all regions on the device.
    pub max_device_region_bytes: usize,
    /// Ranks of one stream that hold columns of its vocabulary, including rank 0.
    pub max_ranks_per_stream: usize,
    /// Ranks above 0 that are attached to the server, or about to be.
    pub max_attached_ranks: usize,
    /// Shards of one rank that are announced and not yet answered before its next message is read (flow control, not an
    /// error).
    pub max_shards_ahead: usize,
    /// Bytes of messages with shards that are announced and not yet answered, on the server.
    pub max_shard_bytes: usize,
    /// How long a step waits for its shards.
    pub shard_timeout: Duration,
    /// Distinct model labels in metrics. Further ones count as "other".
    pub max_model_labels: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_vocab_size: MAX_VOCAB_SIZE,
            max_message_bytes: 64 << 20,
            max_steps_in_flight_per_stream: 64,
            max_sequences_per_stream: 16_384,
            max_sequences: 100_000,
            max_history_tokens: 1 << 20,
            max_state_bytes: 4 << 30,
            max_rows_per_step: 4096,
            max_row_bytes_per_step: 64 << 20,
            max_top_logprobs: 20,
            max_bytes_in_flight: 1 << 30,
            reply_timeout: Duration::from_secs(60),
            receive_timeout: Duration::from_secs(60),
            max_queued_steps: 4096,
            max_streams: 256,
            max_connections: 512,
            max_regions_per_stream: 4,
            max_bytes_per_region: 256 << 20,
            max_region_bytes: 512 << 20,
            max_device_region_bytes: 512 << 20,
            max_ranks_per_stream: 64,
            max_attached_ranks: 256,
            max_shards_ahead: 8,
            max_shard_bytes: 256 << 20,
            shard_timeout: Duration::from_secs(5),
            max_model_labels: 16,
        }
    }
}

impl Limits {
    /// Rows in flight on the server: sixteen full steps, so that one can run while others arrive.
    #[must_use]
    pub fn max_rows_in_flight(&self) -> usize {
        self.max_rows_per_step.saturating_mul(16)
    }
}
