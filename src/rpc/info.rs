//! What this server is and can do.

use crate::backend::BackendInfo;
use crate::limits::Limits;
use crate::metrics::{DataPath, WorkKind};
use crate::params;
use crate::params::presets::Preset;
use crate::proto;
use crate::rpc::ServerSetup;
use crate::sampling::listed::MAX_LISTED;
use crate::sampling::logits::Dtype;
use crate::vocabulary::Vocabulary;

/// The version of this server.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Where streams may lease regions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Offered<'a> {
    /// Whether in shared memory.
    pub(super) regions: bool,
    /// In the memory of this device, if any.
    pub(super) device: Option<&'a str>,
}

/// The answer to `GetServerInfo`.
pub(super) fn server_info(
    backend: &BackendInfo,
    limits: &Limits,
    setup: &ServerSetup,
    offered: Offered<'_>,
) -> proto::GetServerInfoResponse {
    proto::GetServerInfoResponse {
        version: VERSION.to_owned(),
        backend: backend.name.to_owned(),
        device: backend.device.clone(),
        parallelism: saturated(backend.parallelism),
        limits: Some(wire_limits(limits, offered)),
        data_paths: data_paths(offered),
        work_kinds: WorkKind::ALL.map(|kind| kind.name().to_owned()).to_vec(),
        parameters: params::SUPPORTED.map(str::to_owned).to_vec(),
        presets: setup.presets.iter().map(preset).collect(),
        default_params: setup.defaults_written.clone(),
        vocabulary: setup.vocabulary.as_deref().map(vocabulary),
        logits_dtypes: Dtype::ALL.map(|dtype| dtype.name().to_owned()).to_vec(),
        device_uuid: offered.device.unwrap_or_default().to_owned(),
    }
}

fn data_paths(offered: Offered<'_>) -> Vec<String> {
    let all = [
        (DataPath::Inline, true),
        (DataPath::SharedMemory, offered.regions),
        (DataPath::VocabShards, true),
        (DataPath::DeviceMemory, offered.device.is_some()),
    ];
    all.iter().filter(|(_, is)| *is).map(|(path, _)| path.name().to_owned()).collect()
}

fn preset(preset: &Preset) -> proto::Preset {
    let Preset { name, description, written, .. } = preset;
    proto::Preset { name: name.clone(), description: description.clone(), params: written.clone() }
}

fn vocabulary(vocabulary: &Vocabulary) -> proto::Vocabulary {
    proto::Vocabulary {
        tokens: saturated(vocabulary.tokens()),
        texts: saturated(vocabulary.texts()),
        sha256: vocabulary.sha256(),
    }
}

/// The limits in force.
pub(super) fn wire_limits(limits: &Limits, offered: Offered<'_>) -> proto::Limits {
    let of_regions = |limit: usize| if offered.regions { limit } else { 0 };
    let of_device = |limit: usize| if offered.device.is_some() { limit } else { 0 };
    proto::Limits {
        max_vocab_size: limits.max_vocab_size,
        max_message_bytes: limits.max_message_bytes as u64,
        max_steps_in_flight_per_stream: saturated(limits.max_steps_in_flight_per_stream),
        max_sequences_per_stream: saturated(limits.max_sequences_per_stream),
        max_sequences: saturated(limits.max_sequences),
        max_history_tokens: saturated(limits.max_history_tokens),
        max_rows_per_step: saturated(limits.max_rows_per_step),
        max_top_logprobs: limits.max_top_logprobs,
        max_bytes_in_flight: limits.max_bytes_in_flight as u64,
        max_streams: saturated(limits.max_streams),
        max_state_bytes: limits.max_state_bytes as u64,
        max_row_bytes_per_step: limits.max_row_bytes_per_step as u64,
        max_regions_per_stream: saturated(of_regions(limits.max_regions_per_stream)),
        max_bytes_per_region: of_regions(limits.max_bytes_per_region) as u64,
        max_region_bytes: of_regions(limits.max_region_bytes) as u64,
        max_device_region_bytes: of_device(limits.max_device_region_bytes) as u64,
        max_ranks_per_stream: saturated(limits.max_ranks_per_stream),
        max_attached_ranks: saturated(limits.max_attached_ranks),
        max_shards_ahead: saturated(limits.max_shards_ahead),
        max_shard_bytes: limits.max_shard_bytes as u64,
        shard_timeout_ms: u32::try_from(limits.shard_timeout.as_millis()).unwrap_or(u32::MAX),
        max_top_n: saturated(MAX_LISTED),
    }
}

fn saturated(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}
