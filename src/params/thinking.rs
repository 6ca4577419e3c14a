//! Separate temperature and truncation while a text thinks. llama.cpp (pull request 25709) and vLLM (52876) have
//! proposals that draw the text after the thinking differently instead: the same idea from the other end.

use super::check::check_filters;
use super::history::HistoryParams;
use super::rare::Rare;
use super::steering::ThinkingBudget;
use super::watermark::Watermark;
use super::{FieldError, Filters, Sampler, SamplingParams};

/// Temperature and truncation while a text thinks. `None`: as in the rest of the text.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ThinkingFilters {
    /// 0: greedy, or 1e-5 ..= 1e5.
    pub temperature: Option<f32>,
    /// 0: off.
    pub top_k: Option<u32>,
    /// 0 ..= 1; 1: off.
    pub top_p: Option<f32>,
    /// 0 ..= 1; 0: off.
    pub min_p: Option<f32>,
}

/// Which of temperature, top-k, top-p and min-p a sequence, or a preset, sets itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GivenFilters {
    /// Temperature.
    pub temperature: bool,
    /// Top-k.
    pub top_k: bool,
    /// Top-p.
    pub top_p: bool,
    /// Min-p.
    pub min_p: bool,
}

impl GivenFilters {
    /// The filters that `set` sets.
    #[must_use]
    pub fn by(set: impl Fn(&mut SamplingParams)) -> Self {
        let over = |(fraction, top_k)| {
            let (temperature, top_p, min_p) = (fraction, fraction, fraction);
            let mut params = SamplingParams { temperature, top_k, top_p, min_p, ..Default::default() };
            set(&mut params);
            params
        };
        let (one, other) = (over((0.0, 0)), over((1.0, 1)));
        Self {
            temperature: one.temperature == other.temperature,
            top_k: one.top_k == other.top_k,
            top_p: one.top_p == other.top_p,
            min_p: one.min_p == other.min_p,
        }
    }
}

impl ThinkingFilters {
    /// These filters without those that are set elsewhere.
    fn without(self, given: GivenFilters) -> Self {
        Self {
            temperature: self.temperature.filter(|_| !given.temperature),
            top_k: self.top_k.filter(|_| !given.top_k),
            top_p: self.top_p.filter(|_| !given.top_p),
            min_p: self.min_p.filter(|_| !given.min_p),
        }
    }

    /// Whether tokens are drawn as in the rest of the text.
    #[must_use]
    pub fn is_off(&self) -> bool {
        *self == Self::default()
    }

    /// Checks every field against its range. `budget` is the number of tokens that may be spent on thinking.
    pub(super) fn validate(&self, budget: u32) -> Result<(), FieldError> {
        let Filters { temperature, top_p, min_p, .. } = Filters::OFF;
        check_filters(
            self.temperature.unwrap_or(temperature),
            self.top_p.unwrap_or(top_p),
            self.min_p.unwrap_or(min_p),
        )?;
        if budget == 0 && !self.is_off() {
            let message = "is 0, so nothing would ever be drawn with temperature, top_k, top_p or min_p of \
                           thinking_budget; set it (4294967295: no limit)";
            return Err(FieldError::new("budget", message));
        }
        Ok(())
    }
}

impl SamplingParams {
    /// The parameters that decide about single rows while the text thinks. They have no lists, and nothing that depends
    /// on other tokens or rows.
    #[must_use]
    pub fn in_thinking(&self, filters: &ThinkingFilters) -> Self {
        let mut samplers = self.samplers.clone();
        if Rare::bytes(&samplers) > 0 {
            (samplers.xtc_ignore_token_ids, samplers.top_p_reset_token_ids, samplers.report) = Default::default();
        }
        Self {
            temperature: filters.temperature.unwrap_or(self.temperature),
            top_k: filters.top_k.unwrap_or(self.top_k),
            top_p: filters.top_p.unwrap_or(self.top_p),
            min_p: filters.min_p.unwrap_or(self.min_p),
            samplers,
            // A watermark may have a step of its own.
            history: HistoryParams { watermark: self.history.watermark.clone(), ..HistoryParams::default() }.into(),
            ..Self::default()
        }
    }

    /// Makes filters that were set without a thinking budget apply while the text thinks, too: they replace those of an
    /// `inherited` budget. So a temperature of 0 is greedy everywhere.
    pub fn give_way(&mut self, inherited: Option<&ThinkingBudget>, given: GivenFilters) {
        let Some(inherited) = inherited.filter(|_| self.history.thinking_budget.is_none()) else { return };
        let filters = inherited.filters.without(given);
        if filters != inherited.filters {
            self.history.thinking_budget = Some(Box::new(ThinkingBudget { filters, ..inherited.clone() }));
        }
    }

    /// Checks whether these filters can be combined with the other parameters, if XTC ignores these tokens.
    ///
    /// # Errors
    /// The field at fault.
    pub fn validate_thinking(&self, filters: &ThinkingFilters, xtc_ignored: &[u32]) -> Result<(), FieldError> {
        let wrong = |field: &str, message: &str| Err(FieldError::new(format!("thinking_budget.{field}"), message));
        if filters.temperature.is_some() && self.samplers.temperature_tokens > 0 {
            return wrong(
                "temperature",
                "cannot be combined with temperature_tokens, as both set the temperature; turn one of them off",
            );
        }
        let is_dynamic = self.samplers.dynatemp_high > 0.0;
        let is_replaced = is_dynamic && !self.samplers.sampler_order.samplers().contains(&Sampler::DynamicTemperature);
        if is_replaced && filters.temperature.is_some_and(|temperature| temperature != 0.0) {
            let message = "has no effect with dynatemp_high, which replaces it; give 0 for greedy thinking, turn one of \
                           them off, or list both in sampler_order";
            return wrong("temperature", message);
        }
        if filters.top_p.is_some() && self.samplers.top_p_decay < 1.0 {
            return wrong("top_p", "cannot be combined with top_p_decay, as both set top_p; turn one of them off");
        }
        if filters.is_off() {
            return Ok(());
        }
        let own = self.in_thinking(filters);
        if own.is_greedy() && !matches!(self.watermark(), None | Some(Watermark::Kgw(_))) {
            let message = "is greedy, so no token can carry the watermark; set a temperature above 0, or use kgw";
            return wrong("temperature", message);
        }
        let remembers = self.samplers.mirostat > 0 || self.samplers.adaptive_target >= 0.0;
        if remembers && own.is_greedy() != self.is_greedy() {
            let message = "would make only one of thinking and answer greedy, but mirostat and adaptive_target \
                           learn from every token; give both a temperature above 0, or turn these off";
            return wrong("temperature", message);
        }
        own.validate_order_ignoring(xtc_ignored)
            .map_err(|e| FieldError::new("thinking_budget", format!("{} {}", e.field, e.message)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::steering::ThinkingBudget;
    use super::super::watermark::{GumbelParams, KgwParams};
    use super::super::{ChainStep, EngineOrder, Sampler, SamplerOrder};
    use super::*;
    use crate::params::TypicalRule;
    use std::sync::Arc;

    fn params(filters: ThinkingFilters, change: impl FnOnce(&mut SamplingParams)) -> SamplingParams {
        let (start_token_ids, end_token_ids, budget) = (vec![1], vec![2], 9);
        let thinking = ThinkingBudget { start_token_ids, end_token_ids, budget, filters, ..Default::default() };
        let mut params = SamplingParams::default();
        params.history.thinking_budget = Some(Box::new(thinking));
        change(&mut params);
        params
    }

    fn fault(filters: ThinkingFilters, change: impl FnOnce(&mut SamplingParams)) -> Option<String> {
        params(filters, change).validate(9, 9).err().map(|e| e.field)
    }

    const GREEDY: ThinkingFilters = ThinkingFilters { temperature: Some(0.0), top_k: None, top_p: None, min_p: None };
    const HOT: ThinkingFilters = ThinkingFilters { temperature: Some(2.0), ..GREEDY };
    const CUT: ThinkingFilters =
        ThinkingFilters { temperature: None, top_k: Some(3), top_p: Some(0.5), min_p: Some(0.1) };

    #[test]
    fn each_range_is_checked_and_named() {
        let nothing = ThinkingFilters::default();
        for fine in [nothing, GREEDY, HOT, CUT] {
            assert_eq!(fault(fine, |_| ()), None, "{fine:?}");
        }
        for bad in [-1.0, 1e-6, 2e5, f32::NAN, f32::INFINITY] {
            let temperature = ThinkingFilters { temperature: Some(bad), ..nothing };
            assert_eq!(fault(temperature, |_| ()).as_deref(), Some("thinking_budget.temperature"), "{bad}");
            let (top_p, min_p) =
                (ThinkingFilters { top_p: Some(-bad), ..CUT }, ThinkingFilters { min_p: Some(-1.0), ..CUT });
            if bad != 1e-6 && bad != -1.0 {
                assert_eq!(fault(top_p, |_| ()).as_deref(), Some("thinking_budget.top_p"), "{bad}");
            }
            assert_eq!(fault(min_p, |_| ()).as_deref(), Some("thinking_budget.min_p"));
        }
        let spent = |filters| fault(filters, |p| p.history.thinking_budget.as_mut().expect("one").budget = 0);
        assert_eq!([spent(nothing), spent(CUT)], [None, Some("thinking_budget.budget".to_owned())]);
    }

    #[test]
    fn what_cannot_go_together_is_refused_by_name() {
        let (temperature, top_p) = (Some("thinking_budget.temperature"), Some("thinking_budget.top_p"));
        let line = |p: &mut SamplingParams| p.samplers.temperature_tokens = 5;
        assert_eq!((fault(HOT, line).as_deref(), fault(CUT, line)), (temperature, None));
        let decay = |p: &mut SamplingParams| p.samplers.top_p_decay = 0.5;
        assert_eq!((fault(CUT, decay).as_deref(), fault(HOT, decay)), (top_p, None));
        let gumbel = |p: &mut SamplingParams| {
            p.history.watermark = Some(Arc::new(Watermark::Gumbel(GumbelParams::new(1))));
        };
        assert_eq!((fault(GREEDY, gumbel).as_deref(), fault(HOT, gumbel)), (temperature, None));
        let kgw = |p: &mut SamplingParams| {
            p.history.watermark = Some(Arc::new(Watermark::Kgw(KgwParams::default())));
        };
        assert_eq!(fault(GREEDY, kgw), None);
        let learning: [fn(&mut SamplingParams); 2] =
            [|p| p.samplers.mirostat = 2, |p| p.samplers.adaptive_target = 0.5];
        for learns in learning {
            assert_eq!((fault(GREEDY, learns).as_deref(), fault(HOT, learns)), (temperature, None));
            let greedy = |p: &mut SamplingParams| {
                p.temperature = 0.0;
                learns(p);
            };
            assert_eq!((fault(HOT, greedy).as_deref(), fault(GREEDY, greedy)), (temperature, None));
        }
        let dynamic = |p: &mut SamplingParams| p.samplers.dynatemp_high = 2.0;
        let both = |p: &mut SamplingParams| {
            dynamic(p);
            p.samplers.sampler_order = SamplerOrder::Engine(EngineOrder::Exllama);
        };
        assert_eq!(
            (fault(HOT, dynamic).as_deref(), fault(GREEDY, dynamic), fault(HOT, both)),
            (temperature, None, None)
        );
        let listed = |p: &mut SamplingParams| {
            p.samplers.sampler_order =
                SamplerOrder::Custom(vec![Sampler::TopK, Sampler::Temperature], EngineOrder::Croupier);
        };
        assert_eq!((fault(CUT, listed).as_deref(), fault(HOT, listed)), (Some("thinking_budget"), None));
    }

    /// The inherited budget may come from a stream, a preset or the server's file.
    #[test]
    fn own_filters_go_before_those_of_an_inherited_thinking() {
        let all = ThinkingFilters { temperature: Some(2.0), ..CUT };
        let inherited = params(all, |_| ()).history.thinking_budget.clone().expect("one");
        let given = GivenFilters::by(|p| (p.temperature, p.min_p) = (0.0, 0.5));
        assert_eq!(given, GivenFilters { temperature: true, min_p: true, ..GivenFilters::default() });
        let mut own = SamplingParams::default();
        own.give_way(Some(&inherited), given);
        let left = own.history.thinking_budget.clone().expect("what is left of it");
        assert_eq!(left.filters, ThinkingFilters { temperature: None, min_p: None, ..all });
        assert_eq!(ThinkingBudget { filters: all, ..*left }, *inherited);
        let mut nothing = SamplingParams::default();
        nothing.give_way(Some(&inherited), GivenFilters::default());
        assert_eq!(nothing, SamplingParams::default(), "the inherited one is there once");
        let mut thinking = params(HOT, |_| ());
        let before = thinking.clone();
        thinking.give_way(Some(&inherited), given);
        assert_eq!(thinking, before, "a thinking of its own");
    }

    /// Everything else about a row is as in the rest of the text: the other samplers, their order, an engine's rules.
    #[test]
    fn the_rest_is_as_elsewhere() {
        let elsewhere = params(CUT, |p| {
            (p.temperature, p.top_k, p.samplers.typical_p) = (0.25, 7, 0.5);
            p.samplers.sampler_order = SamplerOrder::Engine(EngineOrder::LlamaCpp);
        });
        let own = elsewhere.in_thinking(&CUT);
        let steps = vec![
            ChainStep::TopK,
            ChainStep::TypicalP(TypicalRule::Above, 0.5),
            ChainStep::TopP,
            ChainStep::MinP,
            ChainStep::Temperature,
        ];
        assert_eq!(own.steps(), Some(steps));
        assert_eq!(own.filters(0), Filters { temperature: 0.25, top_k: 3, top_p: 0.5, min_p: 0.1 });
        let exllama = params(ThinkingFilters { temperature: Some(0.005), ..GREEDY }, |p| {
            p.samplers.sampler_order = SamplerOrder::Engine(EngineOrder::Exllama);
        });
        let filters = exllama.history.thinking_budget.as_ref().expect("one").filters;
        assert_eq!(exllama.in_thinking(&filters).filters(0).temperature, 0.0, "its rule");
    }
}
