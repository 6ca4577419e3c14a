//! What a reply reports about how its token was chosen, for those who want to know why.

use super::FieldError;
use super::check::{check_len, check_tokens, in_range};

/// Most tokens that a report lists as tokens that could have been drawn.
pub const MAX_SURVIVING_TOKEN_IDS: u32 = 4096;
/// Most tokens that a report explains.
pub const MAX_WHY_NOT_TOKEN_IDS: usize = 64;

/// The fields of the wire's `ReportParams` with the same names. [`Default`] is off.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReportParams {
    /// Report how many tokens could have been drawn.
    pub support_size: bool,
    /// List at most this many of them. At most 4,096.
    pub max_surviving_token_ids: u32,
    /// Report the entropy of the distribution that was drawn from, and that of the logits as sent.
    pub entropy: bool,
    /// Report for each of these tokens which sampler or rule removed it.
    pub why_not_token_ids: Vec<u32>,
}

impl ReportParams {
    /// Whether nothing is requested.
    #[must_use]
    pub fn is_off(&self) -> bool {
        *self == Self::default()
    }

    /// Checks every field against its range.
    ///
    /// # Errors
    /// The first field at fault, with its path relative to these parameters.
    pub fn validate(&self, vocab_size: u32) -> Result<(), FieldError> {
        in_range("max_surviving_token_ids", self.max_surviving_token_ids, 0, MAX_SURVIVING_TOKEN_IDS, "")?;
        check_len("why_not_token_ids", self.why_not_token_ids.len(), MAX_WHY_NOT_TOKEN_IDS)?;
        check_tokens("why_not_token_ids", &self.why_not_token_ids, vocab_size)
    }

    /// Bytes that it takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.why_not_token_ids.capacity() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_list_has_a_bound() {
        let field = |report: ReportParams| report.validate(100).err().map(|e| e.field);
        let many = |n| ReportParams { why_not_token_ids: vec![1; n], ..ReportParams::default() };
        assert_eq!(field(many(MAX_WHY_NOT_TOKEN_IDS)), None);
        assert_eq!(field(many(MAX_WHY_NOT_TOKEN_IDS + 1)).as_deref(), Some("why_not_token_ids"));
        let outside = ReportParams { why_not_token_ids: vec![1, 100], ..ReportParams::default() };
        assert_eq!(field(outside).as_deref(), Some("why_not_token_ids[1]"));
        let listed = |max_surviving_token_ids| ReportParams { max_surviving_token_ids, ..ReportParams::default() };
        assert_eq!(field(listed(MAX_SURVIVING_TOKEN_IDS)), None);
        assert_eq!(field(listed(MAX_SURVIVING_TOKEN_IDS + 1)).as_deref(), Some("max_surviving_token_ids"));
    }
}
