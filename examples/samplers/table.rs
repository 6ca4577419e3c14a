//! The table.

use crate::support::screen::{Style, grouped, readable};
use croupier::sampling::distribution::Distribution;
use croupier::sampling::entropy::{entropy, entropy_term};

/// Number of most likely tokens that are shown.
const SHOWN: usize = 3;
/// Width of a token's text.
const PIECE: usize = 9;
/// Width of the bar for probability 1.
const BAR: usize = 8;

/// A line of the table: what a sampler left.
pub(crate) struct Line {
    name: &'static str,
    survivors: usize,
    /// In bits.
    entropy: f64,
    draws: u32,
    /// Tokens with their probabilities.
    likeliest: Vec<(u32, f64)>,
}

/// The names of the columns.
pub(crate) fn head() -> String {
    format!("{:27} {:>9} {:>7}  {:PIECE$}  likeliest tokens", "sampler", "left", "entropy", "draws")
}

/// A token's text for its column, with visible spaces.
pub(crate) fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes).replace(' ', "_");
    readable(text.as_bytes()).chars().take(PIECE).collect()
}

impl Line {
    pub(crate) fn new(name: &'static str, left: &Distribution, draws: u32) -> Self {
        let total = left.total();
        let term = |w: &croupier::sampling::filters::Weighted| entropy_term(left.exponent(w.candidate.logit), w.mass);
        let terms = left.kept().iter().map(term).sum();
        let probability = |mass: u64| mass as f64 / total as f64;
        let first = left.kept().iter().take(SHOWN);
        Self {
            name,
            survivors: left.kept().len(),
            entropy: entropy(terms, total) / std::f64::consts::LN_2,
            draws,
            likeliest: first.map(|w| (w.candidate.token, probability(w.mass))).collect(),
        }
    }

    pub(crate) fn show(&self, style: Style, piece: impl Fn(u32) -> String) -> String {
        let likeliest = self.likeliest.iter().map(|&(token, p)| {
            let bar = "▇".repeat((p * BAR as f64).round() as usize);
            format!("{:PIECE$} {p:.3} {}", piece(token), style.dim(&format!("{bar:BAR$}")))
        });
        let likeliest: Vec<String> = likeliest.collect();
        let (survivors, entropy) = (grouped(self.survivors as u64), self.entropy);
        let draws = piece(self.draws);
        format!("{:27} {survivors:>9} {entropy:7.2}  {draws:PIECE$}  {}", self.name, likeliest.join(" ").trim_end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_fits_its_column_and_is_harmless() {
        assert_eq!(shown(b" fox"), "_fox");
        assert_eq!(shown(b"\x1b[2J incomprehensible"), "[2J_incom");
        assert!(shown(&[0xFF]).chars().count() == 1);
    }
}
