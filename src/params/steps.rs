//! Turns parameters into the steps of a row.

use super::watermark::Watermark;
use super::{ChainStep, FieldError, SamplingParams};

impl SamplingParams {
    /// The steps of a row, in order. `None` if [`Filters`](super::Filters) in their own order are enough: temperature,
    /// top-k, top-p, min-p. Greedy sampling has no steps, because it takes the first token whatever the samplers are.
    #[must_use]
    pub fn steps(&self) -> Option<Vec<ChainStep>> {
        if self.is_greedy() {
            return None;
        }
        let mark = matches!(self.watermark(), Some(Watermark::Synthid(_))).then_some(ChainStep::Tournament);
        let on = self.order().iter().filter_map(|sampler| sampler.step(self));
        let first = on.clone().next().and_then(|step| step.sampler());
        let before = self.samplers.sampler_order.rules().before(first, self.top_k);
        let steps: Vec<ChainStep> = before.into_iter().chain(on).chain(mark).collect();
        let place = |step: &ChainStep| match step {
            ChainStep::Temperature => Some(0),
            ChainStep::TopK => Some(1),
            ChainStep::TopP => Some(2),
            ChainStep::MinP => Some(3),
            _ => None,
        };
        let usual = steps.iter().map(place).is_sorted() && steps.iter().all(|step| place(step).is_some());
        let cuts = |step: &ChainStep| {
            use ChainStep::{DynamicTemperature, Smoothing, Temperature, Tournament};
            !matches!(step, Temperature | DynamicTemperature { .. } | Smoothing { .. } | Tournament)
        };
        (!usual || self.samplers.min_keep > 1 && steps.iter().any(cuts)).then_some(steps)
    }

    /// Checks that the parameters that decide the temperature can be combined.
    pub(super) fn validate_temperatures(&self) -> Result<(), FieldError> {
        if self.samplers.temperature_tokens > 0 && self.temperature == 0.0 {
            let message = "needs a temperature above 0 to start from; set temperature";
            return Err(FieldError::new("temperature_tokens", message));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{EngineOrder, Sampler, SamplerOrder};
    use super::*;
    use crate::params::TypicalRule;

    fn steps(change: impl FnOnce(&mut SamplingParams)) -> Option<Vec<ChainStep>> {
        let mut params = SamplingParams::default();
        change(&mut params);
        assert_eq!(params.validate(9, 9), Ok(()));
        params.steps()
    }

    #[test]
    fn the_usual_filters_in_the_usual_order_need_no_steps() {
        assert_eq!(steps(|_| ()), None);
        assert_eq!(steps(|p| (p.temperature, p.top_k, p.top_p, p.min_p) = (0.5, 9, 0.5, 0.1)), None);
        assert_eq!(steps(|p| (p.temperature, p.samplers.typical_p) = (0.0, 0.5)), None, "greedy");
        let order = SamplerOrder::Engine(EngineOrder::LlamaCpp);
        assert_eq!(steps(|p| (p.top_k, p.top_p, p.samplers.sampler_order) = (9, 0.5, order.clone())), None);
        let last = vec![ChainStep::TopK, ChainStep::Temperature];
        assert_eq!(steps(|p| (p.top_k, p.temperature, p.samplers.sampler_order) = (9, 0.5, order)), Some(last));
        assert_eq!(steps(|p| (p.top_k, p.samplers.min_keep) = (1, 2)), Some(vec![ChainStep::TopK]));
        assert_eq!(steps(|p| (p.temperature, p.samplers.min_keep) = (2.0, 5)), None, "nothing is cut");
        assert_eq!(steps(|p| p.samplers.typical_p = 0.5), Some(vec![ChainStep::TypicalP(TypicalRule::Reached, 0.5)]));
    }

    /// Rows without steps use their filters instead.
    #[test]
    fn filters_are_on_where_their_steps_are() {
        let cuts = [(0, 1.0), (9, 0.5)].into_iter().flat_map(|(k, p)| [0.0, 0.5, 1.0].map(|min_p| (k, p, min_p)));
        for (engine, cuts) in
            EngineOrder::ALL.into_iter().flat_map(|engine| cuts.clone().map(move |cuts| (engine, cuts)))
        {
            let mut params = SamplingParams::default();
            (params.top_k, params.top_p, params.min_p) = cuts;
            params.samplers.sampler_order = SamplerOrder::Engine(engine);
            let filters = params.filters(0);
            let are_on = [filters.top_k > 0, filters.top_p < 1.0, filters.min_p > 0.0];
            let steps = [Sampler::TopK, Sampler::TopP, Sampler::MinP].map(|sampler| sampler.step(&params).is_some());
            assert_eq!(are_on, steps, "{engine:?}: {cuts:?}");
        }
    }
}
