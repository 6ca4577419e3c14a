//! Relaxed acceptance (TensorRT-LLM, multi-token prediction in thinking phases): a draft token is accepted if it
//! is among the target's first `top_n` tokens and its probability is at least the largest minus `delta`. Not
//! lossless.
//!
//! It judges the processed distribution, for greedy sequences the one at temperature 1 (see
//! [`Target::relaxed`](super::Target::relaxed)), since a greedy distribution has one token. What follows the
//! accepted tokens is drawn as a plain row.

pub use crate::params::acceptance::Relaxed;
use crate::sampling::distribution::Distribution;

impl Relaxed {
    /// Whether the judged distribution accepts a token.
    #[must_use]
    pub fn accepts(&self, judged: &Distribution, token: u32) -> bool {
        let share = |mass: u64| mass as f64 / judged.total() as f64;
        let most = judged.kept().first().map_or(0.0, |w| share(w.mass));
        let first = judged.kept().iter().take(self.top_n as usize);
        first
            .filter(|w| w.mass > 0)
            .any(|w| w.candidate.token == token && share(w.mass) >= most - f64::from(self.delta))
    }
}
