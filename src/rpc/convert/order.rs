//! The order of samplers.

use super::params::unknown_value;
use crate::params::{EngineOrder, FieldError, Sampler, SamplerOrder, SamplingParams};
use crate::proto;

/// The order of `wire`, or else that of `defaults`; not yet checked against what is on.
pub(super) fn order(wire: &proto::SamplingParams, defaults: &SamplingParams) -> Result<SamplerOrder, FieldError> {
    let engine = engine(wire.engine_order)?;
    match engine {
        Some(_) if !wire.sampler_order.is_empty() => {
            Err(FieldError::new("engine_order", "cannot be given together with sampler_order; leave one out"))
        }
        Some(engine) => Ok(SamplerOrder::Engine(engine)),
        None if wire.sampler_order.is_empty() => Ok(defaults.sampler_order.clone()),
        None => {
            let samplers = wire.sampler_order.iter().enumerate();
            let samplers = samplers.map(|(i, &value)| sampler(&format!("sampler_order[{i}]"), value));
            Ok(SamplerOrder::Custom(samplers.collect::<Result<_, _>>()?))
        }
    }
}

fn engine(value: i32) -> Result<Option<EngineOrder>, FieldError> {
    use proto::EngineOrder as Wire;
    Ok(match Wire::try_from(value).map_err(|_| unknown_value("engine_order", value))? {
        Wire::Unspecified => None,
        Wire::Croupier => Some(EngineOrder::Croupier),
        Wire::LlamaCpp => Some(EngineOrder::LlamaCpp),
        Wire::Vllm => Some(EngineOrder::Vllm),
        Wire::Transformers => Some(EngineOrder::Transformers),
        Wire::TextGenerationWebui => Some(EngineOrder::TextGenerationWebui),
        Wire::Exllama => Some(EngineOrder::Exllama),
    })
}

fn sampler(field: &str, value: i32) -> Result<Sampler, FieldError> {
    use proto::SamplerKind as Wire;
    Ok(match Wire::try_from(value).map_err(|_| unknown_value(field, value))? {
        Wire::Unspecified => return Err(FieldError::new(field, "is unspecified; name a sampler")),
        Wire::Temperature => Sampler::Temperature,
        Wire::Smoothing => Sampler::Smoothing,
        Wire::TopNSigma => Sampler::TopNSigma,
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
    })
}
