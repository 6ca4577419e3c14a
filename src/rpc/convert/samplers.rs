//! Parameters of the samplers, and their order.

use super::params::unknown_value;
use super::report;
use crate::params::chain::SamplerParams;
use crate::params::state::{Average, SamplerState};
use crate::params::{EngineOrder, FieldError, Sampler, SamplerOrder};
use crate::proto;
use std::mem::take;

/// The fields of `wire` merged over `defaults`, without the token lists of `defaults`. The lists of `wire` are moved
/// out of it. Ranges are not checked yet.
pub(super) fn merged(wire: &mut proto::SamplingParams, defaults: &SamplerParams) -> Result<SamplerParams, FieldError> {
    Ok(SamplerParams {
        dynatemp_low: wire.dynatemp_low.unwrap_or(defaults.dynatemp_low),
        dynatemp_high: wire.dynatemp_high.unwrap_or(defaults.dynatemp_high),
        dynatemp_exponent: wire.dynatemp_exponent.unwrap_or(defaults.dynatemp_exponent),
        temperature_end: wire.temperature_end.unwrap_or(defaults.temperature_end),
        temperature_tokens: wire.temperature_tokens.unwrap_or(defaults.temperature_tokens),
        smoothing_factor: wire.smoothing_factor.unwrap_or(defaults.smoothing_factor),
        smoothing_curve: wire.smoothing_curve.unwrap_or(defaults.smoothing_curve),
        typical_p: wire.typical_p.unwrap_or(defaults.typical_p),
        tfs: wire.tfs.unwrap_or(defaults.tfs),
        top_a: wire.top_a.unwrap_or(defaults.top_a),
        top_n_sigma: wire.top_n_sigma.unwrap_or(defaults.top_n_sigma),
        epsilon_cutoff: wire.epsilon_cutoff.unwrap_or(defaults.epsilon_cutoff),
        eta_cutoff: wire.eta_cutoff.unwrap_or(defaults.eta_cutoff),
        min_k: wire.min_k.unwrap_or(defaults.min_k),
        min_k_tau: wire.min_k_tau.unwrap_or(defaults.min_k_tau),
        top_h: wire.top_h.unwrap_or(defaults.top_h),
        xtc_probability: wire.xtc_probability.unwrap_or(defaults.xtc_probability),
        xtc_threshold: wire.xtc_threshold.unwrap_or(defaults.xtc_threshold),
        xtc_expected: wire.xtc_expected.or(defaults.xtc_expected),
        min_keep: wire.min_keep.unwrap_or(defaults.min_keep),
        mirostat: wire.mirostat.unwrap_or(defaults.mirostat),
        mirostat_tau: wire.mirostat_tau.unwrap_or(defaults.mirostat_tau),
        mirostat_eta: wire.mirostat_eta.unwrap_or(defaults.mirostat_eta),
        adaptive_target: wire.adaptive_target.unwrap_or(defaults.adaptive_target),
        adaptive_decay: wire.adaptive_decay.unwrap_or(defaults.adaptive_decay),
        top_p_decay: wire.top_p_decay.unwrap_or(defaults.top_p_decay),
        top_p_min: wire.top_p_min.unwrap_or(defaults.top_p_min),
        top_p_reset_token_ids: take(&mut wire.top_p_reset_token_ids),
        p_less: wire.p_less.unwrap_or(defaults.p_less),
        p_less_norm: wire.p_less_norm.unwrap_or(defaults.p_less_norm),
        infill: wire.infill.unwrap_or(defaults.infill),
        min_eos_p: wire.min_eos_p.unwrap_or(defaults.min_eos_p),
        skew: wire.skew.unwrap_or(defaults.skew),
        report: wire.report.take().map(report::params),
        return_sampler_state: wire.return_sampler_state.unwrap_or(defaults.return_sampler_state),
        xtc_ignore_token_ids: take(&mut wire.xtc_ignore_token_ids),
        sampler_order: order(wire, defaults)?,
    })
}

/// The order of `wire`, or that of `defaults` if `wire` gives none. Not checked yet against the samplers that are on.
fn order(wire: &proto::SamplingParams, defaults: &SamplerParams) -> Result<SamplerOrder, FieldError> {
    let engine = engine(wire.engine_order)?;
    if wire.sampler_order.is_empty() {
        return Ok(engine.map_or_else(|| defaults.sampler_order.clone(), SamplerOrder::Engine));
    }
    let (len, most) = (wire.sampler_order.len(), Sampler::ALL.len());
    if len > most {
        return Err(FieldError::new("sampler_order", format!("has {len} entries, at most {most} are allowed")));
    }
    let samplers = wire.sampler_order.iter().enumerate();
    let samplers = samplers.map(|(i, &value)| sampler(&format!("sampler_order[{i}]"), value));
    let rules = engine.unwrap_or_else(|| defaults.sampler_order.engine());
    Ok(SamplerOrder::Custom(samplers.collect::<Result<_, _>>()?, rules))
}

fn engine(value: i32) -> Result<Option<EngineOrder>, FieldError> {
    use proto::EngineOrder as Wire;
    Ok(match Wire::try_from(value).map_err(|_| unknown_value("engine_order", value, Wire::as_str_name))? {
        Wire::Unspecified => None,
        Wire::Croupier => Some(EngineOrder::Croupier),
        Wire::LlamaCpp => Some(EngineOrder::LlamaCpp),
        Wire::Vllm => Some(EngineOrder::Vllm),
        Wire::Transformers => Some(EngineOrder::Transformers),
        Wire::TextGenerationWebui => Some(EngineOrder::TextGenerationWebui),
        Wire::Exllama => Some(EngineOrder::Exllama),
        Wire::Sglang => Some(EngineOrder::Sglang),
        Wire::KoboldCpp => Some(EngineOrder::KoboldCpp),
        Wire::ExllamaV3 => Some(EngineOrder::ExllamaV3),
        Wire::Mlx => Some(EngineOrder::Mlx),
        Wire::TensorrtLlm => Some(EngineOrder::TensorrtLlm),
        Wire::MistralRs => Some(EngineOrder::MistralRs),
    })
}

fn sampler(field: &str, value: i32) -> Result<Sampler, FieldError> {
    use proto::SamplerKind as Wire;
    Ok(match Wire::try_from(value).map_err(|_| unknown_value(field, value, Wire::as_str_name))? {
        Wire::Unspecified => return Err(FieldError::new(field, "is unspecified; name a sampler")),
        Wire::Temperature => Sampler::Temperature,
        Wire::DynamicTemperature => Sampler::DynamicTemperature,
        Wire::Smoothing => Sampler::Smoothing,
        Wire::TopNSigma => Sampler::TopNSigma,
        Wire::MinK => Sampler::MinK,
        Wire::TopH => Sampler::TopH,
        Wire::TopK => Sampler::TopK,
        Wire::TopP => Sampler::TopP,
        Wire::MinP => Sampler::MinP,
        Wire::TypicalP => Sampler::TypicalP,
        Wire::Tfs => Sampler::Tfs,
        Wire::TopA => Sampler::TopA,
        Wire::EpsilonCutoff => Sampler::EpsilonCutoff,
        Wire::EtaCutoff => Sampler::EtaCutoff,
        Wire::Xtc => Sampler::Xtc,
        Wire::PLess => Sampler::PLess,
        Wire::Mirostat => Sampler::Mirostat,
        Wire::AdaptiveP => Sampler::AdaptiveP,
        Wire::Skew => Sampler::Skew,
        Wire::Infill => Sampler::Infill,
        Wire::MinEosP => Sampler::MinEosP,
    })
}

/// A sampler in its wire form.
pub(super) fn kind(sampler: Sampler) -> proto::SamplerKind {
    use proto::SamplerKind as Wire;
    match sampler {
        Sampler::Temperature => Wire::Temperature,
        Sampler::DynamicTemperature => Wire::DynamicTemperature,
        Sampler::Smoothing => Wire::Smoothing,
        Sampler::TopNSigma => Wire::TopNSigma,
        Sampler::MinK => Wire::MinK,
        Sampler::TopH => Wire::TopH,
        Sampler::TopK => Wire::TopK,
        Sampler::TopP => Wire::TopP,
        Sampler::MinP => Wire::MinP,
        Sampler::TypicalP => Wire::TypicalP,
        Sampler::Tfs => Wire::Tfs,
        Sampler::TopA => Wire::TopA,
        Sampler::EpsilonCutoff => Wire::EpsilonCutoff,
        Sampler::EtaCutoff => Wire::EtaCutoff,
        Sampler::Xtc => Wire::Xtc,
        Sampler::PLess => Wire::PLess,
        Sampler::Mirostat => Wire::Mirostat,
        Sampler::AdaptiveP => Wire::AdaptiveP,
        Sampler::Skew => Wire::Skew,
        Sampler::Infill => Wire::Infill,
        Sampler::MinEosP => Wire::MinEosP,
    }
}

/// What samplers remembered. Ranges are not checked yet.
///
/// # Errors
/// A part of adaptive-p's average without the other.
pub(super) fn state(wire: proto::SamplerState) -> Result<SamplerState, FieldError> {
    let adaptive = match (wire.adaptive_sum, wire.adaptive_weight) {
        (Some(sum), Some(weight)) => Some(Average { sum, weight }),
        (None, None) => None,
        (None, _) => return Err(FieldError::new("adaptive_sum", "is required with adaptive_weight")),
        (_, None) => return Err(FieldError::new("adaptive_weight", "is required with adaptive_sum")),
    };
    Ok(SamplerState { mirostat_mu: wire.mirostat_mu, adaptive })
}

/// The same state in its wire form.
pub(super) fn wire_state(state: SamplerState) -> proto::SamplerState {
    let SamplerState { mirostat_mu, adaptive } = state;
    let (adaptive_sum, adaptive_weight) = adaptive.map(|average| (average.sum, average.weight)).unzip();
    proto::SamplerState { mirostat_mu, adaptive_sum, adaptive_weight }
}
