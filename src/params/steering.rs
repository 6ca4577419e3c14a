//! Parameters of the tools that forbid, favour or force tokens because of the tokens before them or because of their
//! position. The ranges are checked here.

use super::check::{check_len, check_pattern, check_sequences, check_tokens, in_range};
use super::history::MAX_LOOK_BACK;
use super::{FieldError, MAX_LOGIT_BIAS, ThinkingFilters};

/// Longest n-gram that may be kept from appearing again.
pub const MAX_NGRAM: u32 = 64;
/// Most tokens that are exempt from n-gram bans.
pub const MAX_WHITELIST: usize = 4096;
/// Most biased token sequences.
pub const MAX_SEQUENCE_BIASES: usize = 1024;
/// Most ranges of positions with bans of their own.
pub const MAX_BAN_RANGES: usize = 64;
/// Most tokens banned in one such range.
pub const MAX_BAN_RANGE_TOKENS: usize = 4096;
/// Most tokens of all ranges together. The bound exists because, in a verification, each draft token has its own list
/// of what is banned after it.
pub const MAX_BAN_RANGES_TOKENS: usize = 32_768;
/// Longest pattern whose repetition is detected, in tokens.
pub const MAX_REPEATED_PATTERN: u32 = 256;
/// Most tokens that the repetitions of a pattern may have together.
pub const MAX_REPEATED_TOKENS: u64 = 16_384;
/// Most `other_ends`.
pub const MAX_OTHER_ENDS: usize = 8;
/// Largest factor of the length penalty. The inverse of this is the least.
pub const MAX_LENGTH_FACTOR: f32 = 100.0;

/// Bans n-grams that were there before, so that no n-gram appears twice.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NoRepeatNgram {
    /// Length of the n-grams, in tokens. 0: off, or 1 ..= 64; with 1 no token appears twice.
    pub size: u32,
    /// Only n-grams in this many last tokens count. 0: the maximum, 32,768.
    pub window: u32,
    /// Tokens that may end an n-gram again.
    pub whitelist: Vec<u32>,
    /// Length, in tokens, of the prompt's n-grams that may not appear again, wherever they are in the prompt. 0: off,
    /// or 1 ..= 64.
    pub prompt_size: u32,
}

/// EOS becomes more likely with length.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LengthPenalty {
    /// The length of the output from which EOS becomes more likely.
    pub start: u32,
    /// 0.01 ..= 100; 1: off.
    pub factor: f32,
}

/// A bias on the last token of a sequence, applied after the other tokens of the sequence.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SequenceBias {
    /// 1 ..= 64 tokens.
    pub token_ids: Vec<u32>,
    /// −1e6 ..= 1e6.
    pub bias: f32,
}

/// Tokens banned at some positions of the output.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TokenBanRange {
    /// The tokens.
    pub token_ids: Vec<u32>,
    /// The first position.
    pub start: u32,
    /// The number of positions, at least 1.
    pub length: u32,
}

/// The text ends when it only repeats itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RepetitionDetection {
    /// Longest pattern, in tokens. 0: off; at most 256.
    pub max_pattern_size: u32,
    /// Shortest pattern. 1 ..= `max_pattern_size`.
    pub min_pattern_size: u32,
    /// How many times in a row the pattern must appear. At least 2; `min_count` times `max_pattern_size` is at most
    /// 16,384.
    pub min_count: u32,
}

/// How many tokens a text may spend on thinking, and how its tokens are drawn there. Nothing set: any number of tokens.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ThinkingBudget {
    /// Thinking begins after these tokens.
    pub start_token_ids: Vec<u32>,
    /// Thinking ends with these tokens.
    pub end_token_ids: Vec<u32>,
    /// The number of tokens that each stretch of thinking may have.
    pub budget: u32,
    /// The tokens that are emitted when the budget is spent. Empty: `end_token_ids`.
    pub forced_token_ids: Vec<u32>,
    /// Other token sequences that end the thinking, too.
    pub other_ends: Vec<Vec<u32>>,
    /// Temperature and truncation while the text thinks.
    pub filters: ThinkingFilters,
}

impl NoRepeatNgram {
    pub(super) fn validate(&self, vocab_size: u32) -> Result<(), FieldError> {
        for (field, size) in [("size", self.size), ("prompt_size", self.prompt_size)].into_iter().filter(|x| x.1 != 0) {
            in_range(field, size, 1, MAX_NGRAM, " (or 0: off)")?;
        }
        in_range("window", self.window, 0, MAX_LOOK_BACK, " (0: as many as allowed)")?;
        check_len("whitelist_token_ids", self.whitelist.len(), MAX_WHITELIST)?;
        check_tokens("whitelist_token_ids", &self.whitelist, vocab_size)
    }
}

impl LengthPenalty {
    /// Whether the penalty changes nothing.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.factor == 1.0
    }

    pub(super) fn validate(&self) -> Result<(), FieldError> {
        in_range("factor", self.factor, MAX_LENGTH_FACTOR.recip(), MAX_LENGTH_FACTOR, "")
    }
}

impl SequenceBias {
    pub(super) fn validate(&self, vocab_size: u32) -> Result<(), FieldError> {
        check_pattern("token_ids", &self.token_ids, vocab_size)?;
        in_range("bias", self.bias, -MAX_LOGIT_BIAS, MAX_LOGIT_BIAS, " (to forbid a sequence use bad_words)")
    }
}

impl TokenBanRange {
    pub(super) fn validate(&self, vocab_size: u32) -> Result<(), FieldError> {
        check_len("token_ids", self.token_ids.len(), MAX_BAN_RANGE_TOKENS)?;
        check_tokens("token_ids", &self.token_ids, vocab_size)?;
        if self.length == 0 {
            return Err(FieldError::new("length", "is 0, must be at least 1; leave the range out or give its length"));
        }
        Ok(())
    }

    /// Whether the range includes this position of the output.
    #[must_use]
    pub fn holds_at(&self, position: u64) -> bool {
        let start = u64::from(self.start);
        (start..start + u64::from(self.length)).contains(&position)
    }
}

impl RepetitionDetection {
    pub(super) fn validate(&self) -> Result<(), FieldError> {
        in_range("max_pattern_size", self.max_pattern_size, 0, MAX_REPEATED_PATTERN, " (0: off)")?;
        if self.max_pattern_size == 0 {
            return Ok(());
        }
        in_range("min_pattern_size", self.min_pattern_size, 1, self.max_pattern_size, " (max_pattern_size)")?;
        let most = (MAX_REPEATED_TOKENS / u64::from(self.max_pattern_size)) as u32;
        let hint = format!(" ({MAX_REPEATED_TOKENS} tokens divided by max_pattern_size)");
        in_range("min_count", self.min_count, 2, most, &hint)
    }

    /// The number of last tokens that detection looks at.
    #[must_use]
    pub fn span(&self) -> usize {
        self.max_pattern_size as usize * self.min_count as usize
    }
}

impl ThinkingBudget {
    /// Whether nothing is set. Such a budget turns the stream's budget off.
    #[must_use]
    pub fn is_off(&self) -> bool {
        *self == Self::default()
    }

    pub(super) fn validate(&self, vocab_size: u32) -> Result<(), FieldError> {
        if self.is_off() {
            return Ok(());
        }
        for (field, tokens) in [("start_token_ids", &self.start_token_ids), ("end_token_ids", &self.end_token_ids)] {
            if tokens.is_empty() {
                return Err(FieldError::new(
                    field,
                    "is empty; a budget needs its own start_token_ids and end_token_ids and takes neither from defaults; give both",
                ));
            }
        }
        check_pattern("start_token_ids", &self.start_token_ids, vocab_size)?;
        check_pattern("end_token_ids", &self.end_token_ids, vocab_size)?;
        if !self.forced_token_ids.is_empty() {
            check_pattern("forced_token_ids", &self.forced_token_ids, vocab_size)?;
        }
        check_sequences("other_ends", &self.other_ends, MAX_OTHER_ENDS, vocab_size)?;
        self.filters.validate(self.budget)
    }

    /// All token lists of the budget.
    pub fn lists(&self) -> impl Iterator<Item = &Vec<u32>> {
        [&self.start_token_ids, &self.forced_token_ids].into_iter().chain(self.ends())
    }

    /// All token sequences that end the thinking.
    pub fn ends(&self) -> impl Iterator<Item = &Vec<u32>> {
        std::iter::once(&self.end_token_ids).chain(&self.other_ends)
    }

    /// The tokens that are emitted when the budget is spent.
    #[must_use]
    pub fn forced(&self) -> &[u32] {
        if self.forced_token_ids.is_empty() { &self.end_token_ids } else { &self.forced_token_ids }
    }
}

#[cfg(test)]
mod tests {
    use super::super::history::HistoryParams;
    use super::*;

    fn fault(change: impl FnOnce(&mut HistoryParams)) -> Option<String> {
        let mut params = HistoryParams::default();
        change(&mut params);
        params.validate(100).err().map(|e| e.field)
    }

    #[test]
    fn each_range_is_checked_and_named() {
        let ngram = |size, window, whitelist: &[u32]| {
            let ngram = NoRepeatNgram { size, window, whitelist: whitelist.to_vec(), prompt_size: 0 };
            fault(|p| p.no_repeat_ngram = Some(Box::new(ngram)))
        };
        for size in [65, u32::MAX] {
            assert_eq!(ngram(size, 0, &[]).as_deref(), Some("no_repeat_ngram.size"));
            let of_prompt = NoRepeatNgram { prompt_size: size, ..NoRepeatNgram::default() };
            let found = fault(|p| p.no_repeat_ngram = Some(Box::new(of_prompt)));
            assert_eq!(found.as_deref(), Some("no_repeat_ngram.prompt_size"));
        }
        assert_eq!(ngram(2, (1 << 15) + 1, &[]).as_deref(), Some("no_repeat_ngram.window"));
        assert_eq!(ngram(2, 0, &[1, 100]).as_deref(), Some("no_repeat_ngram.whitelist_token_ids[1]"));
        assert_eq!(ngram(2, 0, &[1; 4097]).as_deref(), Some("no_repeat_ngram.whitelist_token_ids"));
        assert_eq!((ngram(0, 0, &[]), ngram(1, 0, &[]), ngram(64, 1 << 15, &[99; 4096])), (None, None, None));
        for factor in [0.0, -1.0, f32::NAN, 101.0, f32::INFINITY] {
            let found = fault(|p| p.length_penalty = Some(LengthPenalty { start: 1, factor }));
            assert_eq!(found.as_deref(), Some("length_penalty.factor"));
        }
        assert_eq!(fault(|p| p.length_penalty = Some(LengthPenalty { start: u32::MAX, factor: 0.01 })), None);
        let bias = |token_ids: &[u32], bias| {
            let biased = SequenceBias { token_ids: token_ids.to_vec(), bias };
            fault(|p| p.sequence_bias = vec![SequenceBias { token_ids: vec![1], bias: 0.0 }, biased])
        };
        assert_eq!(bias(&[], 1.0).as_deref(), Some("sequence_bias[1].token_ids"));
        assert_eq!(bias(&[1, 100], 1.0).as_deref(), Some("sequence_bias[1].token_ids[1]"));
        assert_eq!(bias(&[1; 65], 1.0).as_deref(), Some("sequence_bias[1].token_ids"));
        for wrong in [f32::NAN, f32::INFINITY, 2e6] {
            assert_eq!(bias(&[1], wrong).as_deref(), Some("sequence_bias[1].bias"));
        }
        assert_eq!(bias(&[1; 64], -1e6), None);
        assert_eq!(fault(|p| p.sequence_bias = vec![Default::default(); 1025]).as_deref(), Some("sequence_bias"));
        let range = |token_ids: &[u32], length| {
            let range = TokenBanRange { token_ids: token_ids.to_vec(), start: u32::MAX, length };
            fault(|p| p.token_ban_ranges = vec![range])
        };
        assert_eq!(range(&[1], 0).as_deref(), Some("token_ban_ranges[0].length"));
        assert_eq!(range(&[100], 1).as_deref(), Some("token_ban_ranges[0].token_ids[0]"));
        assert_eq!(range(&[1; 4097], 1).as_deref(), Some("token_ban_ranges[0].token_ids"));
        assert_eq!(range(&[1], u32::MAX), None);
        assert_eq!(fault(|p| p.token_ban_ranges = vec![Default::default(); 65]).as_deref(), Some("token_ban_ranges"));
        assert_eq!(fault(|p| p.forced_first_token = Some(100)).as_deref(), Some("forced_first_token"));
        assert_eq!(fault(|p| p.forced_last_token = Some(100)).as_deref(), Some("forced_last_token"));
    }

    #[test]
    fn each_range_of_what_looks_at_the_whole_text_is_checked() {
        let detection = |max_pattern_size, min_pattern_size, min_count| {
            let detection = RepetitionDetection { max_pattern_size, min_pattern_size, min_count };
            fault(|p| p.repetition_detection = Some(detection))
        };
        assert_eq!(detection(257, 1, 2).as_deref(), Some("repetition_detection.max_pattern_size"));
        assert_eq!(detection(4, 5, 2).as_deref(), Some("repetition_detection.min_pattern_size"));
        assert_eq!(detection(4, 0, 2).as_deref(), Some("repetition_detection.min_pattern_size"));
        for count in [0, 1, 65, u32::MAX] {
            assert_eq!(detection(256, 1, count).as_deref(), Some("repetition_detection.min_count"));
        }
        assert_eq!((detection(256, 256, 64), detection(1, 1, 16_384), detection(0, 0, 0)), (None, None, None));
        let thinking = |start: &[u32], end: &[u32], forced: &[u32]| {
            let (start, end, forced) = (start.to_vec(), end.to_vec(), forced.to_vec());
            let budget = ThinkingBudget {
                start_token_ids: start,
                end_token_ids: end,
                forced_token_ids: forced,
                ..Default::default()
            };
            fault(|p| p.thinking_budget = Some(Box::new(budget)))
        };
        let others = |other_ends: Vec<Vec<u32>>| {
            let (start_token_ids, end_token_ids) = (vec![1], vec![2]);
            let budget = ThinkingBudget { start_token_ids, end_token_ids, other_ends, ..Default::default() };
            fault(|p| p.thinking_budget = Some(Box::new(budget)))
        };
        assert_eq!(others(vec![vec![3], vec![4, 5]]), None);
        assert_eq!(others(vec![vec![3]; 9]).as_deref(), Some("thinking_budget.other_ends"));
        assert_eq!(others(vec![vec![3], vec![]]).as_deref(), Some("thinking_budget.other_ends[1].token_ids"));
        assert_eq!(others(vec![vec![3, 100]]).as_deref(), Some("thinking_budget.other_ends[0].token_ids[1]"));
        assert_eq!(thinking(&[], &[1], &[]).as_deref(), Some("thinking_budget.start_token_ids"));
        assert_eq!(thinking(&[1], &[], &[]).as_deref(), Some("thinking_budget.end_token_ids"));
        assert_eq!(thinking(&[1], &[100], &[]).as_deref(), Some("thinking_budget.end_token_ids[0]"));
        assert_eq!(thinking(&[1], &[2], &[3; 65]).as_deref(), Some("thinking_budget.forced_token_ids"));
        assert_eq!((thinking(&[1], &[2], &[]), thinking(&[1; 64], &[2; 64], &[3; 64])), (None, None));
    }

    #[test]
    fn a_range_holds_where_it_says() {
        let range = TokenBanRange { token_ids: vec![1], start: 2, length: 3 };
        assert_eq!((0..8).filter(|&at| range.holds_at(at)).collect::<Vec<_>>(), [2, 3, 4]);
        let last = TokenBanRange { start: u32::MAX, length: u32::MAX, ..range };
        assert!(last.holds_at(u64::from(u32::MAX)) && !last.holds_at(u64::from(u32::MAX) * 2));
    }

    const TOKENS: usize = 100;

    fn of_ngram(whitelist: Vec<u32>) -> usize {
        let ngram = NoRepeatNgram { whitelist, ..NoRepeatNgram::default() };
        HistoryParams { no_repeat_ngram: Some(Box::new(ngram)), ..HistoryParams::default() }.bytes()
    }

    fn of_thinking(change: impl FnOnce(&mut ThinkingBudget)) -> usize {
        let mut thinking = ThinkingBudget { other_ends: vec![Vec::new()], ..ThinkingBudget::default() };
        change(&mut thinking);
        HistoryParams { thinking_budget: Some(Box::new(thinking)), ..HistoryParams::default() }.bytes()
    }

    #[test]
    fn each_list_counts_as_memory() {
        let tokens = || vec![1; TOKENS];
        assert_eq!(of_ngram(tokens()), of_ngram(Vec::new()) + TOKENS * size_of::<u32>());
        let none = of_thinking(|_| ());
        for with in [
            of_thinking(|thinking| thinking.start_token_ids = tokens()),
            of_thinking(|thinking| thinking.end_token_ids = tokens()),
            of_thinking(|thinking| thinking.forced_token_ids = tokens()),
            of_thinking(|thinking| thinking.other_ends[0] = tokens()),
        ] {
            assert_eq!(with, none + TOKENS * size_of::<u32>());
        }
    }
}
