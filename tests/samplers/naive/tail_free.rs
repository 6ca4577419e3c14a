//! The definitions of tail-free sampling. Engines have three.

use super::Naive;

impl Naive {
    pub(super) fn tail_free(&mut self, z: f64) {
        let p = self.probabilities();
        let order = self.by(|t| p[t]);
        if order.len() < 3 {
            return;
        }
        let first: Vec<f64> = order.windows(2).map(|w| p[w[0]] - p[w[1]]).collect();
        let second: Vec<f64> = first.windows(2).map(|w| (w[0] - w[1]).abs()).collect();
        let total: f64 = second.iter().sum();
        let (mut sum, mut kept) = (0.0, 1);
        for d in second {
            sum += d / total;
            if !self.at_least(z, sum) {
                break;
            }
            kept += 1;
        }
        self.keep_first(&order, kept);
    }

    /// As in KoboldCpp: the tokens before the place at which the sum exceeds z. The first place does not count.
    pub(super) fn tail_free_of_kobold(&mut self, z: f64) {
        let p = self.probabilities();
        let order = self.by(|t| p[t]);
        let second = order.windows(3).map(|w| ((p[w[0]] - p[w[1]]) - (p[w[1]] - p[w[2]])).abs());
        let second: Vec<f64> = second.collect();
        let total: f64 = second.iter().sum();
        let mut sum = 0.0;
        for (place, d) in second.into_iter().enumerate() {
            sum += d / total;
            if !self.at_least(z, sum) && place >= 1 {
                return self.keep_first(&order, place);
            }
        }
        // With two places, the second completes the sum. With one place, that is the first, which ends nothing.
    }

    /// Over the whole vocabulary, as in text-generation-webui and Aphrodite: tokens that are not left have a probability of 0. The very
    /// last token is removed.
    pub(super) fn tail_free_of_all(&mut self, p: &[f64], z: f64) {
        let mut falling = p.to_vec();
        falling.sort_by(|a, b| b.total_cmp(a));
        let second: Vec<f64> = falling.windows(3).map(|w| (w[0] - 2.0 * w[1] + w[2]).abs()).collect();
        let total: f64 = second.iter().sum();
        let shares = second.iter().scan(0.0, |sum, d| {
            *sum += d / total;
            Some(*sum)
        });
        let flat = shares.collect::<Vec<_>>().into_iter().position(|share| !self.at_least(z, share));
        let order = self.by(|t| p[t]);
        self.keep_first(&order, 1 + flat.unwrap_or(second.len()));
    }
}
