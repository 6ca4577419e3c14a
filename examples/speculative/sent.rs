//! A worker that draws its draft tokens itself and sends the distributions.

use crate::support::ngram::NgramModel;
use croupier::proto::SparseDraft;

/// Number of candidates for a token: the `top_k` of every lane, and of what the worker draws from and sends.
pub(crate) const CANDIDATES: usize = 64;

/// Draws draft tokens from a model. It is honest if it draws at the temperature that it claims.
#[derive(Debug)]
pub(crate) struct Drafter {
    pub(crate) model: NgramModel,
    /// The temperature of the distribution that is sent ...
    pub(crate) claimed: f64,
    /// ... and the temperature of the distribution that is drawn from.
    pub(crate) drawn: f64,
    /// State of the random numbers.
    pub(crate) random: u64,
}

impl Drafter {
    /// A draft of at most `length` tokens after `context`, and the distributions it claims to come from. It stops after
    /// `end`, and where the model has never seen the context.
    pub(crate) fn draft(&mut self, context: &[u32], length: usize, end: u32) -> (Vec<u32>, SparseDraft) {
        let mut text = context.to_vec();
        let mut sent = SparseDraft::default();
        while text.len() - context.len() < length && (text.len() == context.len() || text.last() != Some(&end)) {
            let candidates = self.candidates(&text);
            if candidates.is_empty() {
                break;
            }
            let claimed = at_temperature(&candidates, self.claimed);
            let drawn = at_temperature(&candidates, self.drawn);
            let at = pick(&drawn, self.uniform());
            text.push(candidates[at].0);
            sent.counts.push(candidates.len() as u32);
            sent.token_ids.extend(candidates.iter().map(|candidate| candidate.0));
            sent.probs.extend(claimed.iter().map(|&p| p as f32));
        }
        (text.split_off(context.len()), sent)
    }

    /// The most likely tokens that the model has seen after `context`, and their logprobs.
    fn candidates(&self, context: &[u32]) -> Vec<(u32, f32)> {
        let mut seen = Vec::new();
        self.model.patches(context, &mut seen);
        seen.sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        seen.truncate(CANDIDATES);
        seen
    }

    /// The next number in [0, 1): SplitMix64 (Steele, Lea, Flood 2014).
    fn uniform(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.random;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((bits ^ (bits >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Probabilities of the candidates, the most likely first.
fn at_temperature(candidates: &[(u32, f32)], temperature: f64) -> Vec<f64> {
    let most = candidates.first().map_or(0.0, |candidate| f64::from(candidate.1));
    let weight = |&(_, logprob): &(u32, f32)| ((f64::from(logprob) - most) / temperature).exp();
    let weights: Vec<f64> = candidates.iter().map(weight).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / sum).collect()
}

/// The index that `uniform` falls on.
fn pick(probs: &[f64], uniform: f64) -> usize {
    let mut left = uniform;
    let falls = |p: &f64| {
        left -= p;
        left < 0.0
    };
    probs.iter().position(falls).unwrap_or(probs.len() - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drafter(claimed: f64, drawn: f64) -> Drafter {
        // After 1, 2 follows three times and 3 once. After both, 9 follows, which is the end.
        let tokens: Vec<u32> = [1, 2, 9].repeat(3).into_iter().chain([1, 3, 9]).collect();
        Drafter { model: NgramModel::train(&tokens, 2, 10), claimed, drawn, random: 1 }
    }

    /// How often the draft after 1 begins with 2, and the claimed probability of that.
    fn begins_with_2(mut drafter: Drafter) -> (f64, f64) {
        let mut claimed = 0.0;
        let mut begins = || {
            let (draft, sent) = drafter.draft(&[1], 1, 9);
            let at = sent.token_ids.iter().position(|&token| token == 2).expect("a candidate");
            claimed = f64::from(sent.probs[at]);
            draft == [2]
        };
        let count = (0..10_000).filter(|_| begins()).count();
        (count as f64 / 1e4, claimed)
    }

    #[test]
    fn an_honest_drafter_draws_what_it_claims_and_a_broken_one_does_not() {
        for temperature in [0.5, 1.0, 2.0] {
            let (observed, claimed) = begins_with_2(drafter(temperature, temperature));
            assert!((observed - claimed).abs() < 0.02, "at {temperature}: {observed}, claimed {claimed}");
        }
        let (observed, claimed) = begins_with_2(drafter(1.0, 0.3));
        assert!(observed > claimed + 0.1, "{observed}, claimed {claimed}");
    }

    #[test]
    fn a_draft_has_a_distribution_for_each_token_and_stops_at_the_end() {
        let (draft, sent) = drafter(1.0, 1.0).draft(&[1], 5, 9);
        assert_eq!((draft.len(), draft.last()), (2, Some(&9)));
        let ends = sent.counts.iter().scan(0, |end, &count| {
            *end += count as usize;
            Some(*end)
        });
        let mut start = 0;
        for (end, token) in ends.zip(&draft) {
            assert!(sent.token_ids[start..end].contains(token));
            assert!((sent.probs[start..end].iter().sum::<f32>() - 1.0).abs() < 1e-5);
            start = end;
        }
        assert_eq!((start, sent.probs.len()), (sent.token_ids.len(), start));
    }
}
