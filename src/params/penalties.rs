//! Penalties, and in which order they come. What they do to a logit is in
//! [`sampling::adjust`](crate::sampling::adjust).

use super::SamplingParams;

/// The penalties of a sequence at one position. Sources: repetition penalty, Keskar et al. 2019 (CTRL); frequency and
/// presence penalty, OpenAI API; encoder repetition penalty, Hugging Face transformers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Penalties {
    /// Divides positive logits and multiplies the others, for tokens in the prompt or the output. 1: off.
    pub repetition: f32,
    /// Subtracted once per occurrence in the output, and per occurrence in the prompt where [the prompt
    /// counts](SamplingParams::counts_prompt). 0: off.
    pub frequency: f32,
    /// Subtracted once if the token has at least one occurrence that counts. 0: off.
    pub presence: f32,
    /// Multiplies positive logits and divides the others, for tokens in the prompt. 1: off.
    pub encoder: f32,
    /// How the first three penalties fall off with distance.
    pub decay: Decay,
    /// For tokens that end the text: this factor times the absolute value of the token's logit is added to the logit.
    /// 0: off.
    pub length: f32,
    /// Frequency and presence penalties are subtracted before the others multiply and divide. Set only where both kinds
    /// are on.
    pub subtract_first: bool,
}

/// How penalties fall off with the distance of a token's latest occurrence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decay {
    /// The place of the row's token in the text, modulo 2^16. Places are numbered from 1.
    pub place: u16,
    /// Penalties have their full strength up to this distance.
    pub last_n: u16,
    /// The number of tokens, beyond `last_n`, over which the strength falls off. 0: off. `last_n + decay_n` is at most
    /// 65,535.
    pub decay_n: u16,
}

impl Decay {
    /// Full strength everywhere.
    pub const OFF: Decay = Decay { place: 0, last_n: 0, decay_n: 0 };

    /// The share of a penalty that is left for a token whose latest occurrence is at this place, modulo 2^16. 0 ..= 1.
    #[must_use]
    #[inline]
    pub fn strength(&self, latest: u16) -> f32 {
        let over = self.place.wrapping_sub(latest).saturating_sub(self.last_n);
        (1.0 - f32::from(over) / (f32::from(self.decay_n) + 1.0)).max(0.0)
    }
}

impl Penalties {
    /// No penalty.
    pub const OFF: Penalties = Penalties {
        repetition: 1.0,
        frequency: 0.0,
        presence: 0.0,
        encoder: 1.0,
        decay: Decay::OFF,
        length: 0.0,
        subtract_first: false,
    };

    /// Whether every penalty is off, so that history does not matter.
    #[must_use]
    pub fn is_off(&self) -> bool {
        *self == Self::OFF
    }
}

impl SamplingParams {
    /// Whether there is a frequency or presence penalty that also counts tokens of the prompt. The parameters decide,
    /// or else the rules of the order's engine.
    #[must_use]
    pub fn counts_prompt(&self) -> bool {
        let by_engine = || self.samplers.sampler_order.rules().penalties_count_prompt;
        let is_on = self.frequency_penalty != 0.0 || self.presence_penalty != 0.0;
        is_on && self.history.penalties_count_prompt.unwrap_or_else(by_engine)
    }

    /// Whether biases are added after the penalties. The parameters decide, or else the rules of the order's engine.
    #[must_use]
    pub fn biases_late(&self) -> bool {
        let by_engine = || self.samplers.sampler_order.rules().bias_after_penalties;
        self.history.bias_after_penalties.unwrap_or_else(by_engine)
    }

    /// All penalties that do not depend on the position, at full strength. Which come first is for the parameters to
    /// decide, or else for the rules of the order's engine.
    #[must_use]
    pub fn penalties(&self) -> Penalties {
        let scales = self.repetition_penalty != 1.0 || self.history.encoder_repetition_penalty != 1.0;
        let subtracts = self.frequency_penalty != 0.0 || self.presence_penalty != 0.0;
        let by_engine = || self.samplers.sampler_order.rules().subtract_penalties_first;
        let subtract_first = scales && subtracts && self.history.subtract_penalties_first.unwrap_or_else(by_engine);
        Penalties {
            subtract_first,
            repetition: self.repetition_penalty,
            frequency: self.frequency_penalty,
            presence: self.presence_penalty,
            encoder: self.history.encoder_repetition_penalty,
            decay: Decay::OFF,
            length: 0.0,
        }
    }
}
