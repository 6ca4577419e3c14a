//! Dynamic (entropy) temperature: llama.cpp `llama_sampler_temp_ext`, text-generation-webui `dynamic_temperature`.
//!
//! `T = low + (high - low) * (H / ln n)^exponent`, `H` the entropy of the `n` candidates at the temperature so far. A
//! single candidate gets `low` (with exponent 0 every row gets `high`). llama.cpp takes a centre and a range:
//! `low = max(0, temperature - range)`, `high = temperature + range`. Where `low` is below 1e-5 the temperature is at
//! least that.

use crate::params::MIN_TEMPERATURE;

/// The temperature.
#[must_use]
pub fn dynamic(entropy: f64, candidates: usize, low: f32, high: f32, exponent: f32) -> f64 {
    let most = libm::log(candidates as f64);
    // Masses are rounded, so the entropy of equal ones may be a little more than ln n.
    let share = if most > 0.0 { (entropy / most).clamp(0.0, 1.0) } else { 0.0 };
    let (low, high) = (f64::from(low), f64::from(high));
    (low + (high - low) * libm::pow(share, f64::from(exponent))).max(f64::from(MIN_TEMPERATURE))
}
