//! Why a text ends, and whether several of its last tokens end it: stop sequences, and loops.
//!
//! A stop sequence (TensorRT-LLM's stop words, mlx-lm's stop sequences) ends the text if the output ends with it, all
//! of it being output. A sequence is compared from its last token back, so most cost a look at one token, and all of
//! them together at most a look at the 4,096 tokens that they may have.

use super::loops::looping;
use super::rules::Rules;
use super::text::TextView;
use crate::sampling::steps::step;

/// Why a sequence ended. The numbers are those of the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum FinishReason {
    /// One of the stream's EOS tokens.
    Eos = 1,
    /// One of its stop tokens.
    StopToken = 2,
    /// Its output has as many tokens as it may have.
    MaxTokens = 3,
    /// Its output only repeats itself.
    Repetition = 4,
    /// Its output ends with one of its stop sequences.
    StopSequence = 5,
}

impl FinishReason {
    /// Name as used in metrics.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Eos => "eos",
            Self::StopToken => "stop_token",
            Self::MaxTokens => "max_tokens",
            Self::Repetition => "repetition",
            Self::StopSequence => "stop_sequence",
        }
    }
}

/// Why the text ends here, if it does. Its last `output` tokens were emitted.
pub(super) fn end(rules: &Rules, text: &TextView<'_>, output: u64) -> Option<FinishReason> {
    let is_last = |stop: &Vec<u32>| {
        let same = |(a, &b)| (step(), a == b).1;
        stop.len() <= text.len()
            && stop.len() as u64 <= output
            && text.back_from(text.len()).zip(stop.iter().rev()).all(same)
    };
    if rules.stop_token_sequences().iter().any(is_last) {
        return Some(FinishReason::StopSequence);
    }
    let detection = rules.params().history.repetition_detection;
    detection.filter(|params| looping(params, text, output)).map(|_| FinishReason::Repetition)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::SamplingParams;
    use crate::params::history::{HistoryParams, MAX_PATTERN_TOKENS, MAX_STOP_SEQUENCES};
    use crate::sampling::steps::steps;
    use proptest::prelude::*;

    fn rules(stop_token_sequences: Vec<Vec<u32>>) -> Rules {
        let history = HistoryParams { stop_token_sequences, ..HistoryParams::default() };
        Rules::new(SamplingParams { history: history.into(), ..SamplingParams::default() }, &[])
    }

    proptest! {
        #[test]
        fn it_is_where_the_output_ends_with_one_of_them(
            stops in prop::collection::vec(prop::collection::vec(0u32..3, 1..5), 0..4),
            text in prop::collection::vec(0u32..3, 0..12),
            cuts in (any::<prop::sample::Index>(), any::<prop::sample::Index>()),
        ) {
            let (kept, prompt) = (cuts.0.index(text.len() + 1), cuts.1.index(text.len() + 1));
            let expected = stops.iter().any(|stop| text[prompt..].ends_with(stop)).then_some(FinishReason::StopSequence);
            let (kept, ahead) = text.split_at(kept);
            prop_assert_eq!(end(&rules(stops), &TextView::new(kept, ahead), (text.len() - prompt) as u64), expected);
        }
    }

    #[test]
    fn most_of_them_cost_a_look() {
        let stops = vec![vec![1; MAX_PATTERN_TOKENS]; MAX_STOP_SEQUENCES];
        let (rules, text) = (rules(stops), [1; 100]);
        let looks = |last, output| steps(|| _ = end(&rules, &TextView::new(&text, &[last]), output));
        assert_eq!(looks(2, 100), MAX_STOP_SEQUENCES);
        assert_eq!(looks(1, 100), MAX_PATTERN_TOKENS, "the first one is it");
        assert_eq!(looks(1, 63), 0, "the output is too short for all");
    }
}
