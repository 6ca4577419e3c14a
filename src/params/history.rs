//! Parameters of the tools that work on a text's history: what may be repeated, and what not. What each does, by
//! formula, stands at its file in [`sequence`](crate::sequence); ranges are checked here.

use super::FieldError;
use super::check::{check_len, check_tokens, in_range};

/// Largest `dry_multiplier`.
pub const MAX_DRY_MULTIPLIER: f32 = 1e4;
/// Largest `dry_base`.
pub const MAX_DRY_BASE: f32 = 1e4;
/// Largest `dry_allowed_length`.
pub const MAX_DRY_ALLOWED_LENGTH: u32 = 1024;
/// Most sequence breakers of DRY.
pub const MAX_DRY_BREAKERS: usize = 1024;
/// Most tokens of one of the token sequences in this file.
pub const MAX_PATTERN_TOKENS: usize = 64;
/// Longest window over a text's last tokens: the longest vocabulary's worth.
pub const MAX_WINDOW: u32 = 1 << 20;

/// Fields of the wire's `SamplingParams` with the same names. [`Default`] is everything off.
#[derive(Debug, Clone, PartialEq)]
pub struct HistoryParams {
    /// 0 ..= 1e4; 0: DRY is off.
    pub dry_multiplier: f32,
    /// 1 ..= 1e4.
    pub dry_base: f32,
    /// Repeats up to here cost nothing, in tokens. 1 ..= 1024.
    pub dry_allowed_length: u32,
    /// How many of the last tokens are looked at. −1: all; 0: DRY is off; at most 2^20.
    pub dry_penalty_last_n: i32,
    /// Token sequences that no repeat reaches across.
    pub dry_sequence_breakers: Vec<Vec<u32>>,
}

impl Default for HistoryParams {
    fn default() -> Self {
        Self {
            dry_multiplier: 0.0,
            dry_base: 1.75,
            dry_allowed_length: 2,
            dry_penalty_last_n: -1,
            dry_sequence_breakers: Vec::new(),
        }
    }
}

impl HistoryParams {
    /// Checks every field against its range.
    ///
    /// # Errors
    /// The first field at fault, with its path relative to the parameters.
    pub fn validate(&self, vocab_size: u32) -> Result<(), FieldError> {
        in_range("dry_multiplier", self.dry_multiplier, 0.0, MAX_DRY_MULTIPLIER, "")?;
        in_range("dry_base", self.dry_base, 1.0, MAX_DRY_BASE, "")?;
        in_range("dry_allowed_length", self.dry_allowed_length, 1, MAX_DRY_ALLOWED_LENGTH, "")?;
        let hint = " (-1: the whole text, 0: off)";
        in_range("dry_penalty_last_n", self.dry_penalty_last_n, -1, MAX_WINDOW as i32, hint)?;
        check_len("dry_sequence_breakers", self.dry_sequence_breakers.len(), MAX_DRY_BREAKERS)?;
        for (i, breaker) in self.dry_sequence_breakers.iter().enumerate() {
            check_pattern(&format!("dry_sequence_breakers[{i}].token_ids"), breaker, vocab_size)?;
        }
        Ok(())
    }

    /// How many of the last tokens DRY looks at; `None`: it is off.
    #[must_use]
    pub fn dry_window(&self) -> Option<usize> {
        let window = usize::try_from(self.dry_penalty_last_n).unwrap_or(usize::MAX);
        (self.dry_multiplier > 0.0 && window > 0).then_some(window)
    }

    /// Bytes that the lists take.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let breakers = &self.dry_sequence_breakers;
        breakers.iter().map(Vec::capacity).sum::<usize>() * size_of::<u32>()
            + breakers.capacity() * size_of::<Vec<u32>>()
    }

    /// Names of the fields, for tests that none is forgotten.
    #[cfg(test)]
    pub(crate) fn field_names() -> Vec<&'static str> {
        // Adding a field stops the compiler here.
        macro_rules! names {
            ($($field:ident),* $(,)?) => {{
                let HistoryParams { $($field: _),* } = Self::default();
                vec![$(stringify!($field)),*]
            }};
        }
        names!(dry_multiplier, dry_base, dry_allowed_length, dry_penalty_last_n, dry_sequence_breakers)
    }
}

/// Checks some tokens in a row: 1 ..= [`MAX_PATTERN_TOKENS`], all in the vocabulary.
fn check_pattern(field: &str, tokens: &[u32], vocab_size: u32) -> Result<(), FieldError> {
    if tokens.is_empty() {
        return Err(FieldError::new(field, "is empty; leave it out or give its tokens"));
    }
    check_len(field, tokens.len(), MAX_PATTERN_TOKENS)?;
    check_tokens(field, tokens, vocab_size)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(change: impl FnOnce(&mut HistoryParams)) -> Option<String> {
        let mut params = HistoryParams::default();
        change(&mut params);
        params.validate(100).err().map(|e| e.field)
    }

    #[test]
    fn each_range_is_checked_and_named() {
        assert_eq!(fault(|_| ()), None);
        type Change = fn(&mut HistoryParams);
        let bad: [(&str, Change); 14] = [
            ("dry_multiplier", |p| p.dry_multiplier = -0.1),
            ("dry_multiplier", |p| p.dry_multiplier = f32::NAN),
            ("dry_multiplier", |p| p.dry_multiplier = 1e5),
            ("dry_base", |p| p.dry_base = 0.99),
            ("dry_base", |p| p.dry_base = f32::NAN),
            ("dry_base", |p| p.dry_base = f32::INFINITY),
            ("dry_allowed_length", |p| p.dry_allowed_length = 0),
            ("dry_allowed_length", |p| p.dry_allowed_length = 1025),
            ("dry_penalty_last_n", |p| p.dry_penalty_last_n = -2),
            ("dry_penalty_last_n", |p| p.dry_penalty_last_n = (1 << 20) + 1),
            ("dry_sequence_breakers", |p| p.dry_sequence_breakers = vec![vec![1]; 1025]),
            ("dry_sequence_breakers[1].token_ids", |p| p.dry_sequence_breakers = vec![vec![1], vec![]]),
            ("dry_sequence_breakers[0].token_ids", |p| p.dry_sequence_breakers = vec![vec![1; 65]]),
            ("dry_sequence_breakers[0].token_ids[1]", |p| p.dry_sequence_breakers = vec![vec![1, 100]]),
        ];
        for (field, change) in bad {
            assert_eq!(fault(change).as_deref(), Some(field));
        }
        let good: [Change; 3] = [
            |p| (p.dry_multiplier, p.dry_base, p.dry_allowed_length, p.dry_penalty_last_n) = (1e4, 1.0, 1024, 1 << 20),
            |p| (p.dry_base, p.dry_allowed_length, p.dry_penalty_last_n) = (1e4, 1, 0),
            |p| p.dry_sequence_breakers = vec![vec![99; 64]; 1024],
        ];
        for (i, change) in good.into_iter().enumerate() {
            assert_eq!(fault(change), None, "{i}");
        }
    }

    #[test]
    fn dry_is_off_without_a_multiplier_or_a_window() {
        let window = |dry_multiplier, dry_penalty_last_n| {
            HistoryParams { dry_multiplier, dry_penalty_last_n, ..HistoryParams::default() }.dry_window()
        };
        assert_eq!((window(0.0, -1), window(1.0, 0)), (None, None));
        assert_eq!((window(1.0, -1), window(1.0, 7)), (Some(usize::MAX), Some(7)));
    }
}
