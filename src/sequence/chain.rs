//! A sequence's chains of samplers, prepared.

use super::rules::in_order;
use crate::params::{ChainStep, Filters, SamplingParams, ThinkingFilters};

/// Chains of samplers, and their lists.
#[derive(Debug, Default)]
pub(super) struct OwnChain {
    pub(super) steps: Option<Vec<ChainStep>>,
    /// What differs while the text thinks.
    pub(super) thinking: Option<InThinking>,
    /// Tokens that XTC never removes, ascending; `None` if those of the base are in force.
    pub(super) protected: Option<Vec<u32>>,
    /// Tokens that end the text, in the order in which they are tried; for infill only.
    pub(super) ends: Vec<u32>,
}

/// How rows are drawn while the text thinks, if thinking has filters of its own.
#[derive(Debug)]
pub(super) struct InThinking {
    params: SamplingParams,
    top_p: Option<f32>,
    pub(super) steps: Option<Vec<ChainStep>>,
}

impl InThinking {
    /// From filters that are not all off.
    fn of(params: &SamplingParams, filters: &ThinkingFilters) -> Self {
        let mut own = params.in_thinking(filters);
        let steps = own.steps();
        own.history = Default::default();
        Self { params: own, top_p: filters.top_p, steps }
    }

    /// The filters at a position. `top_p` is what top-p has decayed to there, for thinking without a top-p of its own.
    pub(super) fn filters(&self, position: u64, top_p: f32) -> Filters {
        Filters { top_p: self.top_p.unwrap_or(top_p), ..self.params.filters(position) }
    }

    /// How many tokens top-k keeps.
    pub(super) fn top_k(&self) -> u32 {
        self.params.top_k
    }
}

impl OwnChain {
    /// Prepares the chains of `params`, and of the filters for thinking; `None` if there is nothing to prepare.
    pub(super) fn of(params: &SamplingParams, thinking: Option<&ThinkingFilters>) -> Option<Box<Self>> {
        let own = &params.samplers.xtc_ignore_token_ids;
        let protected = (!own.is_empty()).then(|| in_order(own.clone()));
        let thinking = thinking.filter(|filters| !filters.is_off()).map(|filters| InThinking::of(params, filters));
        let chain = Self { steps: params.steps(), thinking, protected, ends: Vec::new() };
        let is_there = chain.steps.is_some() || chain.thinking.is_some() || chain.protected.is_some();
        is_there.then(|| Box::new(chain))
    }

    pub(super) fn bytes(&self) -> usize {
        let thinking = self.thinking.as_ref().map_or(0, |thinking| thinking.params.bytes());
        let tokens = self.protected.as_ref().map_or(0, Vec::capacity) + self.ends.capacity();
        let steps: usize = self.chains().map(Vec::capacity).sum();
        size_of::<Self>() + thinking + steps * size_of::<ChainStep>() + tokens * size_of::<u32>()
    }

    /// The chain of ordinary rows, and that of thinking rows.
    fn chains(&self) -> impl Iterator<Item = &Vec<ChainStep>> {
        self.steps.iter().chain(self.thinking.iter().filter_map(|thinking| thinking.steps.as_ref()))
    }

    pub(super) fn has_min_eos_p(&self) -> bool {
        self.chains().flatten().any(|step| matches!(step, ChainStep::MinEosP(_)))
    }

    pub(super) fn has_infill(&self) -> bool {
        self.chains().any(|steps| steps.contains(&ChainStep::Infill))
    }
}
