//! Biases on token sequences: `sequence_bias` (Hugging Face `SequenceBiasLogitsProcessor`).
//!
//! Where prompt and output end with all tokens of a sequence but its last, the bias is added to that one's logit; a
//! sequence of one token always. Several that are about the same token add up, in their order.

use super::text::Text;
use crate::params::steering::SequenceBias;
use crate::sampling::adjust::Nudge;

/// Adds what holds after `text` to `nudges`, in the order of the sequences.
pub(super) fn add(biases: &[SequenceBias], text: &Text<'_>, nudges: &mut Vec<Nudge>) {
    nudges.extend(biases.iter().filter_map(|biased| {
        let (&token, before) = biased.token_ids.split_last()?;
        text.ends_with(text.len(), before).then_some(Nudge { token, bias: biased.bias, late: 0.0 })
    }));
}

/// In token order, those of one token added up in their order.
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

/// Tokens that are looked back at.
pub(super) fn reach(biases: &[SequenceBias]) -> usize {
    biases.iter().map(|biased| biased.token_ids.len()).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_hand() {
        let biases = [(&[4][..], 1.0), (&[1, 2, 3], -5.0), (&[2, 3], 0.5), (&[2, 4], 0.25), (&[1, 4], 9.0)];
        let biases = biases.map(|(tokens, bias)| SequenceBias { token_ids: tokens.to_vec(), bias });
        let of = |text: &[u32]| {
            let (kept, ahead) = text.split_at(text.len() / 2);
            let mut nudges = Vec::new();
            add(&biases, &Text::new(kept, ahead), &mut nudges);
            sum(&mut nudges);
            nudges.into_iter().map(|n| (n.token, n.bias)).collect::<Vec<_>>()
        };
        assert_eq!(of(&[]), [(4, 1.0)]);
        assert_eq!(of(&[2]), [(3, 0.5), (4, 1.25)]);
        assert_eq!(of(&[7, 1, 2]), [(3, -4.5), (4, 1.25)]);
        assert_eq!((of(&[2, 1]), reach(&biases)), (vec![(4, 10.0)], 3));
    }
}
