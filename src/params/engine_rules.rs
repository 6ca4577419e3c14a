//! What engines do differently from this project, apart from the order of their samplers. Which engine has which rules is
//! in [`EngineOrder::rules`](super::EngineOrder::rules).

use super::{ChainStep, Sampler};

/// What an engine does differently from this project, apart from its order.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct EngineRules {
    /// The samplers see only this many of the most likely tokens. 0: all.
    pub at_most: u32,
    /// Top-k also keeps tokens that are equal to the last token that it keeps ...
    pub top_k_ties: bool,
    /// ... except with a top-k of 1, which is greedy.
    pub top_1_is_greedy: bool,
    /// Min-p keeps only tokens above its threshold, and is off at 1.
    pub min_p_above: bool,
    /// When typical-p has kept enough tokens.
    pub typical: TypicalRule,
    /// Which tokens tail-free sampling looks at and keeps.
    pub tfs: TfsRule,
    /// What XTC does.
    pub xtc: XtcRule,
    /// Lower temperatures are raised to this one, except for 0.
    pub least_temperature: f32,
    /// Lower temperatures are greedy. The bound is an f64, because the engine compares in f64: the f32 nearest to 0.01
    /// is below 0.01.
    pub greedy_below: f64,
    /// DRY's penalty is subtracted after the penalties are applied.
    pub dry_is_late: bool,
    /// DRY also penalises breakers, and does nothing until more than its allowed length of tokens follows the last of
    /// them.
    pub dry_of_koboldcpp: bool,
    /// Frequency and presence penalties also count the prompt, unless `penalties_count_prompt` says otherwise.
    pub penalties_count_prompt: bool,
    /// Frequency and presence penalties are subtracted before the repetition penalty divides, unless
    /// `subtract_penalties_first` says otherwise.
    pub subtract_penalties_first: bool,
    /// Biases are added after the penalties, unless `bias_after_penalties` says otherwise.
    pub bias_after_penalties: bool,
}

/// When typical-p has kept enough tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TypicalRule {
    /// When they reach its share.
    #[default]
    Reached,
    /// When they have more than its share.
    Above,
    /// When they reach its share; tokens that are as far from the entropy as the last one are kept too.
    Ties,
}

/// Which tokens tail-free sampling looks at, and how many of them it keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TfsRule {
    /// It looks at the tokens that are left.
    #[default]
    Left,
    /// It looks at the whole vocabulary. Tokens that are not left count as masses of 0.
    WithRemoved,
    /// It looks at the tokens that are left, and keeps one fewer.
    OneFewer,
}

/// What XTC does to top choices. See [`xtc`](crate::sampling::samplers::xtc).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct XtcRule {
    /// It lowers them by its average effect at every position, instead of removing them at random ones.
    pub expected: bool,
    /// It does nothing if one of them is a token of `xtc_ignore_token_ids`, instead of sparing those.
    pub unless_ignored: bool,
}

impl XtcRule {
    /// Top choices are lowered, except for ignored ones.
    pub const EXPECTED: Self = Self { expected: true, unless_ignored: false };
}

impl EngineRules {
    /// The step before all samplers. `None`: there is none, or the `first` sampler leaves no more tokens than it would.
    #[must_use]
    pub fn before(&self, first: Option<Sampler>, top_k: u32) -> Option<ChainStep> {
        let is_less = first == Some(Sampler::TopK) && (1..=self.at_most).contains(&top_k);
        (self.at_most > 0 && !is_less).then_some(ChainStep::AtMost(self.at_most))
    }

    /// The step of top-k.
    #[must_use]
    pub fn top_k(&self, top_k: u32) -> ChainStep {
        let is_greedy = self.top_1_is_greedy && top_k == 1;
        if self.top_k_ties && !is_greedy { ChainStep::TopKTies } else { ChainStep::TopK }
    }

    /// The step of min-p, if it is on.
    #[must_use]
    pub fn min_p(&self, min_p: f32) -> Option<ChainStep> {
        match self.min_p_above {
            true => (min_p > 0.0 && min_p < 1.0).then_some(ChainStep::MinPAbove),
            false => (min_p > 0.0).then_some(ChainStep::MinP),
        }
    }

    /// The temperature that the engine uses for this one.
    #[must_use]
    pub fn temperature(&self, temperature: f32) -> f32 {
        if f64::from(temperature) < self.greedy_below { 0.0 } else { self.raised(temperature) }
    }

    /// The temperature that the engine uses for this one, if it changes from one temperature to another over the text.
    #[must_use]
    pub fn raised(&self, temperature: f32) -> f32 {
        if temperature > 0.0 { temperature.max(self.least_temperature) } else { temperature }
    }
}

#[cfg(test)]
mod tests {
    use super::super::EngineOrder;
    use super::*;

    #[test]
    fn a_top_k_of_one_is_greedy_in_tensorrt_llm_alone() {
        let steps = |engine: EngineOrder| [1, 2].map(|top_k| engine.rules().top_k(top_k));
        assert_eq!(steps(EngineOrder::TensorrtLlm), [ChainStep::TopK, ChainStep::TopKTies]);
        assert_eq!(steps(EngineOrder::Transformers), [ChainStep::TopKTies; 2]);
        assert_eq!(steps(EngineOrder::Vllm), [ChainStep::TopK; 2]);
    }
}
