//! Watermark parameters.

use super::params::unknown_value;
use crate::params::FieldError;
use crate::params::watermark::{GumbelParams, KgwParams, SeedingScheme, SynthidParams, Watermark};
use crate::proto;
use std::sync::Arc;

/// The watermark of `wire`, or that of `defaults` if `wire` has none. Ranges are not checked yet.
///
/// # Errors
/// The field at fault.
pub(super) fn merged(
    wire: Option<proto::WatermarkParams>,
    defaults: Option<&Arc<Watermark>>,
) -> Result<Option<Arc<Watermark>>, FieldError> {
    let Some(wire) = wire else { return Ok(defaults.cloned()) };
    let mark = wire.scheme.map(watermark).transpose().map_err(|e| e.within("watermark"))?;
    // A watermark that equals the default is stored only once, as the default.
    let is_default = |mark: &Watermark| defaults.filter(|default| ***default == *mark).cloned();
    Ok(mark.map(|mark| is_default(&mark).unwrap_or_else(|| Arc::new(mark))))
}

fn watermark(wire: proto::watermark_params::Scheme) -> Result<Watermark, FieldError> {
    use proto::watermark_params::Scheme;
    Ok(match wire {
        Scheme::Kgw(wire) => Watermark::Kgw(kgw(&wire).map_err(|e| e.within("kgw"))?),
        Scheme::Synthid(wire) => Watermark::Synthid(synthid(wire)),
        Scheme::Gumbel(wire) => Watermark::Gumbel(gumbel(&wire).map_err(|e| e.within("gumbel"))?),
    })
}

fn kgw(wire: &proto::KgwParams) -> Result<KgwParams, FieldError> {
    use proto::SeedingScheme as Wire;
    let unknown = || unknown_value("seeding_scheme", wire.seeding_scheme, Wire::as_str_name);
    let scheme = match Wire::try_from(wire.seeding_scheme).map_err(|_| unknown())? {
        Wire::Unspecified | Wire::Lefthash => SeedingScheme::Lefthash,
        Wire::Selfhash => SeedingScheme::Selfhash,
    };
    let default = KgwParams::with_scheme(scheme);
    Ok(KgwParams {
        hashing_key: wire.hashing_key.unwrap_or(default.hashing_key),
        greenlist_ratio: wire.greenlist_ratio.unwrap_or(default.greenlist_ratio),
        bias: wire.bias.unwrap_or(default.bias),
        context_width: wire.context_width.unwrap_or(default.context_width),
        ..default
    })
}

fn synthid(wire: proto::SynthidParams) -> SynthidParams {
    let default = SynthidParams::new(wire.keys);
    SynthidParams {
        ngram_len: wire.ngram_len.unwrap_or(default.ngram_len),
        context_history_size: wire.context_history_size.unwrap_or(default.context_history_size),
        sampling_table_size: wire.sampling_table_size.unwrap_or(default.sampling_table_size),
        sampling_table_seed: wire.sampling_table_seed.unwrap_or(default.sampling_table_seed),
        skip_first_ngram_calls: wire.skip_first_ngram_calls,
        ..default
    }
}

fn gumbel(wire: &proto::GumbelParams) -> Result<GumbelParams, FieldError> {
    let default = GumbelParams::new(wire.key.ok_or_else(|| FieldError::new("key", "is required"))?);
    Ok(GumbelParams {
        context_width: wire.context_width.unwrap_or(default.context_width),
        context_history_size: wire.context_history_size.unwrap_or(default.context_history_size),
        ..default
    })
}
