//! Parameters of the proposers inside the sidecar and of the advice on draft length.

use super::FieldError;
use super::check::in_range;

/// Most draft tokens that are proposed, or advised, at once.
pub const MAX_DRAFT_TOKENS: u32 = 64;
/// Longest match that a proposer compares.
pub const MAX_MATCH: u32 = 64;
/// Largest cost of proposing one token, in target steps.
pub const MAX_DRAFT_COST: f32 = 10.0;
/// Largest cost of one more target row, in target steps.
pub const MAX_VERIFY_COST: f32 = 1.0;

/// How draft tokens are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProposerKind {
    /// Prompt lookup: the tokens that followed an earlier occurrence of the text's last tokens.
    Ngram,
    /// Suffix matching: the tokens that followed most often, as long as they are likely enough.
    Suffix,
    /// Jump-forward: the tokens that the text's grammar forces next.
    Grammar,
}

impl ProposerKind {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Ngram, Self::Suffix, Self::Grammar];

    /// The name that metrics use.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Ngram => "ngram",
            Self::Suffix => "suffix",
            Self::Grammar => "grammar",
        }
    }
}

/// A proposer inside the sidecar: [`speculative::propose`](crate::speculative::propose).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ProposerParams {
    /// How draft tokens are found.
    pub kind: ProposerKind,
    /// Most draft tokens of one draft. 1 ..= 64.
    pub max_draft_tokens: u32,
    /// Shortest match that counts, in tokens. 1 ..= `max_match`. The grammar proposer uses neither.
    pub min_match: u32,
    /// Longest match that is distinguished from longer ones, in tokens. 1 ..= 64.
    pub max_match: u32,
    /// Suffix matching stops before the probability of the whole draft falls below this. 0 ..= 1. Prompt lookup does
    /// not use it.
    pub min_token_prob: f32,
}

impl ProposerParams {
    /// The defaults of a kind.
    /// *Prompt lookup*: matches from 5 tokens down to 2. 5 is vLLM's `prompt_lookup_max` where none is given; 2 is the
    /// `max_matching_ngram_size` of transformers. (vLLM's `prompt_lookup_min` is 5 too, so it proposes on fewer steps.
    /// Transformers goes down to 1, so it proposes on nearly all steps, mostly wrongly.)
    ///
    /// *Suffix matching*: matches from 24 tokens, vLLM's `suffix_decoding_max_tree_depth`, down to 1, and
    /// `suffix_decoding_min_token_prob` 0.1, as in vLLM and Arctic Inference.
    #[must_use]
    pub fn new(kind: ProposerKind) -> Self {
        let (min_match, max_match) = match kind {
            ProposerKind::Ngram => (2, 5),
            ProposerKind::Suffix => (1, 24),
            ProposerKind::Grammar => (1, 1),
        };
        Self { kind, max_draft_tokens: 8, min_match, max_match, min_token_prob: 0.1 }
    }

    /// Checks every field against its range.
    ///
    /// # Errors
    /// The first field at fault, with its path relative to these parameters.
    pub fn validate(&self) -> Result<(), FieldError> {
        in_range("max_draft_tokens", self.max_draft_tokens, 1, MAX_DRAFT_TOKENS, "")?;
        in_range("max_match", self.max_match, 1, MAX_MATCH, "")?;
        in_range("min_match", self.min_match, 1, self.max_match, " (max_match)")?;
        in_range("min_token_prob", self.min_token_prob, 0.0, 1.0, "")
    }
}

/// What the advice on draft length needs to know about the worker: [`speculative::advice`](crate::speculative::advice).
/// Costs are in target steps. One target step is the time of a step that verifies nothing, with the worker's usual
/// batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DraftLengthParams {
    /// Time to propose one token. 0 ..= 10; 0 for proposers inside the sidecar.
    pub draft_cost: f32,
    /// Time that one more target row adds. 0 ..= 1; 0: the target is limited by reading its weights.
    pub verify_cost: f32,
    /// The largest draft length to advise. 1 ..= 64.
    pub max_draft_tokens: u32,
}

impl DraftLengthParams {
    /// The defaults for a worker whose draft model takes `draft_cost` per token.
    #[must_use]
    pub fn new(draft_cost: f32) -> Self {
        Self { draft_cost, verify_cost: 0.0, max_draft_tokens: 16 }
    }

    /// These parameters, or `None`, which means no advice, if they allow no draft tokens.
    #[must_use]
    pub fn or_none(self) -> Option<Self> {
        (self.max_draft_tokens > 0).then_some(self)
    }

    /// Checks every field against its range.
    ///
    /// # Errors
    /// The first field at fault, with its path relative to these parameters.
    pub fn validate(&self) -> Result<(), FieldError> {
        in_range("draft_cost", self.draft_cost, 0.0, MAX_DRAFT_COST, "")?;
        in_range("verify_cost", self.verify_cost, 0.0, MAX_VERIFY_COST, "")?;
        in_range("max_draft_tokens", self.max_draft_tokens, 1, MAX_DRAFT_TOKENS, "")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid() {
        for kind in ProposerKind::ALL {
            assert_eq!(ProposerParams::new(kind).validate(), Ok(()), "{}", kind.label());
        }
        assert_eq!(DraftLengthParams::new(0.1).validate(), Ok(()));
    }

    #[test]
    fn each_range_of_a_proposer_is_checked_and_named() {
        type Change = fn(&mut ProposerParams);
        let bad: [(&str, Change); 9] = [
            ("max_draft_tokens", |p| p.max_draft_tokens = 0),
            ("max_draft_tokens", |p| p.max_draft_tokens = 65),
            ("max_match", |p| p.max_match = 0),
            ("max_match", |p| p.max_match = 65),
            ("min_match", |p| p.min_match = 0),
            ("min_match", |p| (p.min_match, p.max_match) = (3, 2)),
            ("min_token_prob", |p| p.min_token_prob = -0.1),
            ("min_token_prob", |p| p.min_token_prob = 1.1),
            ("min_token_prob", |p| p.min_token_prob = f32::NAN),
        ];
        for (field, change) in bad {
            let mut params = ProposerParams::new(ProposerKind::Suffix);
            change(&mut params);
            assert_eq!(params.validate().expect_err("a mistake").field, field, "{params:?}");
        }
        for (least, most) in [(1, 1), (64, 64), (1, 64)] {
            let params =
                ProposerParams { min_match: least, max_match: most, ..ProposerParams::new(ProposerKind::Ngram) };
            assert_eq!(params.validate(), Ok(()));
        }
    }

    #[test]
    fn each_range_of_the_advice_is_checked_and_named() {
        type Change = fn(&mut DraftLengthParams);
        let bad: [(&str, Change); 6] = [
            ("draft_cost", |p| p.draft_cost = -0.1),
            ("draft_cost", |p| p.draft_cost = f32::NAN),
            ("draft_cost", |p| p.draft_cost = 10.5),
            ("verify_cost", |p| p.verify_cost = 1.5),
            ("max_draft_tokens", |p| p.max_draft_tokens = 0),
            ("max_draft_tokens", |p| p.max_draft_tokens = 65),
        ];
        for (field, change) in bad {
            let mut params = DraftLengthParams::new(0.0);
            change(&mut params);
            assert_eq!(params.validate().expect_err("a mistake").field, field, "{params:?}");
        }
    }

    #[test]
    fn an_error_says_what_would_be_right() {
        let params = ProposerParams { min_match: 7, ..ProposerParams::new(ProposerKind::Ngram) };
        let error = params.validate().expect_err("a mistake").within("params.proposer");
        assert_eq!(error.to_string(), "params.proposer.min_match: is 7, must be in 1 ..= 5 (max_match)");
    }
}
