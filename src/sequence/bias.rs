//! Biases on token sequences: `sequence_bias` (Hugging Face `SequenceBiasLogitsProcessor`).
//!
//! If prompt and output end with all tokens of a sequence but its last, the sequence's bias is added to the logit of
//! its last token. A sequence of one token always applies. Several biases on the same token add up, in their order.

use super::patterns::Patterns;
use crate::params::steering::SequenceBias;
use crate::sampling::adjust::Nudge;

/// Adds the biases with these numbers to `nudges`, in their order. `are_late`: they come after the penalties.
pub(super) fn add(biases: &[SequenceBias], numbers: &[u32], are_late: bool, nudges: &mut Vec<Nudge>) {
    nudges.extend(numbers.iter().filter_map(|&number| {
        let biased = &biases[number as usize];
        let (bias, late) = if are_late { (0.0, biased.bias) } else { (biased.bias, 0.0) };
        biased.token_ids.last().map(|&token| Nudge { token, bias, late })
    }));
}

/// Sorts nudges by token and adds up those of the same token, in their order.
pub(super) fn sum(nudges: &mut Vec<Nudge>) {
    nudges.sort_by_key(|nudge| nudge.token);
    nudges.dedup_by(|next, kept| {
        let same = next.token == kept.token;
        if same {
            kept.bias += next.bias;
            kept.late += next.late;
        }
        same
    });
}

/// How many tokens are looked back at, a sequence's last one included.
pub(super) fn reach(biased: Option<&Patterns>) -> usize {
    biased.map_or(0, |biased| biased.longest() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_hand() {
        let biases = [(&[4][..], 1.0), (&[1, 2, 3], -5.0), (&[2, 3], 0.5), (&[2, 4], 0.25), (&[1, 4], 9.0)];
        let biases = biases.map(|(tokens, bias)| SequenceBias { token_ids: tokens.to_vec(), bias });
        let patterns = Patterns::new(biases.iter().map(|biased| biased.token_ids.as_slice()));
        let of = |text: &[u32]| {
            let mut nudges = Vec::new();
            add(&biases, &patterns.holding(patterns.after(text)), false, &mut nudges);
            sum(&mut nudges);
            nudges.into_iter().map(|n| (n.token, n.bias)).collect::<Vec<_>>()
        };
        assert_eq!(of(&[]), [(4, 1.0)]);
        assert_eq!(of(&[2]), [(3, 0.5), (4, 1.25)]);
        assert_eq!(of(&[7, 1, 2]), [(3, -4.5), (4, 1.25)]);
        assert_eq!((of(&[2, 1]), reach(Some(&patterns))), (vec![(4, 10.0)], 3));
    }
}
