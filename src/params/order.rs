//! The order in which a row goes through its samplers.

use super::{EngineOrder, EngineRules, FieldError, Sampler, SamplingParams};

/// The order in which a sequence's rows go through its samplers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SamplerOrder {
    /// The order of an engine.
    Engine(EngineOrder),
    /// A custom list of samplers, each at most once, with the rules of an engine.
    Custom(Vec<Sampler>, EngineOrder),
}

impl Default for SamplerOrder {
    fn default() -> Self {
        Self::Engine(EngineOrder::Croupier)
    }
}

impl SamplerOrder {
    /// The samplers of this order.
    #[must_use]
    pub fn samplers(&self) -> &[Sampler] {
        match self {
            Self::Engine(engine) => engine.samplers(),
            Self::Custom(samplers, _) => samplers,
        }
    }

    /// The engine whose rules apply.
    #[must_use]
    pub fn engine(&self) -> EngineOrder {
        match self {
            Self::Engine(engine) | Self::Custom(_, engine) => *engine,
        }
    }

    /// The rules of that engine.
    #[must_use]
    pub fn rules(&self) -> EngineRules {
        self.engine().rules()
    }

    /// Bytes that the list takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Engine(_) => 0,
            Self::Custom(samplers, _) => samplers.capacity() * size_of::<Sampler>(),
        }
    }
}

/// The name of a parameter that some [`EngineOrder`]s do not have.
const XTC_IGNORED: &str = "xtc_ignore_token_ids";

/// Checks that no sampler is listed twice.
fn check_once(listed: &[Sampler]) -> Result<(), FieldError> {
    for (i, sampler) in listed.iter().enumerate() {
        if listed[..i].contains(sampler) {
            let message = format!("{} is given twice; give it once", sampler.name());
            return Err(FieldError::new(format!("sampler_order[{i}]"), message));
        }
    }
    Ok(())
}

/// The verb and the pronoun for this many things, for use in error messages.
fn are_them(count: usize) -> (&'static str, &'static str) {
    if count == 1 { ("is", "it") } else { ("are", "them") }
}

impl SamplingParams {
    /// The samplers to apply, in order. In some engines the order depends on the parameters:
    ///
    /// - llama.cpp and KoboldCpp have a chain of their own for mirostat, without the filters.
    /// - SGLang applies top-k before top-p if there is a min-p.
    /// - In text-generation-webui, adaptive-p and mirostat draw the token, so that no sampler after them is applied, in
    ///   any order.
    pub(super) fn order(&self) -> &[Sampler] {
        let order = self.samplers.sampler_order.samplers();
        let until = |last| order.iter().position(|&s| s == last).map_or(order, |at| &order[..=at]);
        let engine = self.samplers.sampler_order.engine();
        let is_the_engines = matches!(self.samplers.sampler_order, SamplerOrder::Engine(_));
        if is_the_engines
            && self.samplers.mirostat > 0
            && let Some(samplers) = engine.with_mirostat()
        {
            return samplers;
        }
        match engine {
            EngineOrder::Sglang if is_the_engines && self.min_p > 0.0 => {
                &[Sampler::Temperature, Sampler::TopK, Sampler::TopP, Sampler::MinP]
            }
            EngineOrder::TextGenerationWebui if self.samplers.adaptive_target >= 0.0 => until(Sampler::AdaptiveP),
            EngineOrder::TextGenerationWebui if self.samplers.mirostat > 0 => until(Sampler::Mirostat),
            _ => order,
        }
    }

    /// Checks that every active sampler has a place in the order, so that none is silently left out.
    pub(super) fn validate_order(&self) -> Result<(), FieldError> {
        self.validate_order_ignoring(&self.samplers.xtc_ignore_token_ids)
    }

    /// As `validate_order`, but with the XTC-ignored tokens given. They may come from these parameters or from the
    /// defaults below them.
    ///
    /// # Errors
    /// The field at fault.
    pub fn validate_order_ignoring(&self, xtc_ignored: &[u32]) -> Result<(), FieldError> {
        check_once(self.samplers.sampler_order.samplers())?;
        let missing = self.missing();
        let mut names: Vec<&str> = missing.iter().map(|sampler| sampler.name()).collect();
        let unknown = self.unknown_to_its_engine(xtc_ignored);
        unknown.for_each(|name| {
            // `mirostat 1` adds nothing if `mirostat` has no place at all.
            if !names.iter().any(|missing| name.split(' ').next() == Some(missing)) {
                names.push(name)
            }
        });
        if names.is_empty() || self.temperature == 0.0 {
            return Ok(());
        }
        Err(self.no_place(&missing, &names))
    }

    /// The active samplers that have no place in the order.
    fn missing(&self) -> Vec<Sampler> {
        let (order, listed) = (self.order(), self.samplers.sampler_order.samplers());
        // Dynamic temperature takes the place of temperature if it has no place of its own.
        let has = |sampler: &Sampler| {
            let may_replace = *sampler == Sampler::DynamicTemperature && !listed.contains(sampler);
            order.contains(sampler) || may_replace && order.contains(&Sampler::Temperature)
        };
        Sampler::ALL.into_iter().filter(|s| s.step(self).is_some() && !has(s)).collect()
    }

    /// The error if these samplers have no place. `names` are these samplers and the parameters that the engine does
    /// not have.
    fn no_place(&self, missing: &[Sampler], names: &[&str]) -> FieldError {
        let (are, them) = are_them(names.len());
        let lacks = format!("has no place for {}, which {are} on", names.join(", "));
        if let SamplerOrder::Engine(engine) = self.samplers.sampler_order {
            // A sequence that gives no such tokens inherits those of its stream, so leaving them out of the sequence is
            // not enough.
            let off = if names == [XTC_IGNORED] {
                "leave it out, also in default_params".to_owned()
            } else {
                format!("turn {them} off")
            };
            let fix = format!("or give your own order in sampler_order, which keeps the rules of {}", engine.name());
            return FieldError::new("engine_order", format!("{lacks}; {off}, {fix}"));
        }
        // Samplers behind the one that draws the token are reported first; other missing ones are reported once that is
        // fixed.
        let message =
            self.behind_the_last(missing).unwrap_or_else(|| format!("{lacks}; add {them} or turn {them} off"));
        FieldError::new("sampler_order", message)
    }

    /// The error if some of the missing samplers are listed behind the sampler that draws the token.
    fn behind_the_last(&self, missing: &[Sampler]) -> Option<String> {
        let (order, listed) = (self.order(), self.samplers.sampler_order.samplers());
        let is_behind = |sampler: &&Sampler| listed.contains(sampler) && !order.contains(sampler);
        let behind: Vec<&str> = missing.iter().filter(is_behind).map(|sampler| sampler.name()).collect();
        let last = order.last().filter(|_| !behind.is_empty())?.name();
        let (are, them) = are_them(behind.len());
        let fix = format!("put {them} before {last} or turn {them} off");
        Some(format!("lists {}, which {are} on, after {last}, which draws the token; {fix}", behind.join(", ")))
    }

    /// Active parameters that the engine does not have, although it has the sampler that they belong to.
    fn unknown_to_its_engine(&self, xtc_ignored: &[u32]) -> impl Iterator<Item = &'static str> {
        use EngineOrder::*;
        let s = &self.samplers;
        let engine = match s.sampler_order {
            SamplerOrder::Engine(engine) => engine,
            SamplerOrder::Custom(..) => Croupier,
        };
        // Each parameter is listed with the engines that have it.
        let parameters: [(_, _, &[EngineOrder]); 8] = [
            ("dynatemp_high", s.dynatemp_high > 0.0, &[LlamaCpp, TextGenerationWebui, Exllama, KoboldCpp]),
            ("temperature_tokens", s.temperature_tokens > 0, &[]),
            (
                "smoothing_curve",
                s.smoothing_factor > 0.0 && s.smoothing_curve != 1.0,
                &[TextGenerationWebui, KoboldCpp],
            ),
            ("top_p_decay", s.top_p_decay < 1.0, &[TensorrtLlm]),
            ("xtc_expected", s.xtc_probability > 0.0 && s.xtc_expected == Some(true), &[Exllama, ExllamaV3]),
            (
                XTC_IGNORED,
                s.xtc_probability > 0.0 && !xtc_ignored.is_empty(),
                &[TextGenerationWebui, Exllama, ExllamaV3, Mlx],
            ),
            ("mirostat 1", s.mirostat == 1, &[LlamaCpp, KoboldCpp]),
            ("min_keep", s.min_keep > 1, &[LlamaCpp, Transformers]),
        ];
        let unknown = move |(_, is_on, engines): &(_, bool, &[EngineOrder])| {
            *is_on && engine != Croupier && !engines.contains(&engine)
        };
        parameters.into_iter().filter(unknown).map(|(name, ..)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sampler_that_is_on_needs_a_place() {
        let at_fault = |change: fn(&mut SamplingParams)| {
            let mut params = SamplingParams::default();
            change(&mut params);
            params.validate(9, 9).map_err(|e| e.to_string())
        };
        let of = SamplerOrder::Engine;
        let lacks = |name, engine| {
            let fix =
                format!("turn it off, or give your own order in sampler_order, which keeps the rules of {engine}");
            format!("engine_order: has no place for {name}, which is on; {fix}")
        };
        assert_eq!(
            at_fault(|p| (p.samplers.tfs, p.samplers.sampler_order) = (0.5, SamplerOrder::Engine(EngineOrder::Vllm))),
            Err(lacks("tfs", "vllm"))
        );
        assert_eq!(
            at_fault(|p| {
                (p.samplers.tfs, p.samplers.top_a, p.samplers.min_keep) = (0.5, 0.5, 2);
                p.samplers.sampler_order = SamplerOrder::Engine(EngineOrder::Vllm);
            }),
            Err(lacks("tfs, top_a, min_keep", "vllm").replace("is on; turn it", "are on; turn them")),
            "all of them"
        );
        assert_eq!(
            at_fault(|p| (p.top_k, p.samplers.sampler_order) =
                (5, SamplerOrder::Custom(vec![Sampler::Temperature], EngineOrder::Croupier))),
            Err("sampler_order: has no place for top_k, which is on; add it or turn it off".to_owned())
        );
        assert_eq!(
            at_fault(|p| p.samplers.sampler_order =
                SamplerOrder::Custom(vec![Sampler::TopK, Sampler::TopK], EngineOrder::Croupier)),
            Err("sampler_order[1]: top_k is given twice; give it once".to_owned())
        );
        assert_eq!(
            at_fault(|p| p.samplers.sampler_order = SamplerOrder::Custom(vec![], EngineOrder::Croupier)),
            Ok(()),
            "nothing is on"
        );
        assert_eq!(
            at_fault(|p| {
                (p.top_k, p.samplers.mirostat) = (40, 2);
                p.samplers.sampler_order = SamplerOrder::Engine(EngineOrder::LlamaCpp);
            }),
            Err(lacks("top_k", "llama_cpp")),
            "llama.cpp's mirostat takes the place of its filters"
        );
        // A sampler after the one that draws the token is never applied. It must be reported, not silently ignored.
        let behind = |order: Vec<Sampler>| {
            let mut params = SamplingParams { temperature: 2.0, top_k: 40, ..SamplingParams::default() };
            (params.samplers.mirostat, params.samplers.dynatemp_high) = (2, 0.5);
            params.samplers.sampler_order = SamplerOrder::Custom(order, EngineOrder::TextGenerationWebui);
            params.validate(9, 9).map_err(|e| e.to_string())
        };
        use Sampler::{DynamicTemperature, Mirostat, Temperature, TopK};
        let fix = "on, after mirostat, which draws the token; put";
        assert_eq!(
            behind(vec![TopK, Temperature, Mirostat, DynamicTemperature]),
            Err(format!("sampler_order: lists dynatemp_high, which is {fix} it before mirostat or turn it off"))
        );
        assert_eq!(
            behind(vec![Temperature, Mirostat, DynamicTemperature, TopK]),
            Err(format!(
                "sampler_order: lists top_k, dynatemp_high, which are {fix} them before mirostat or turn them off"
            ))
        );
        assert_eq!(
            behind(vec![Temperature, Mirostat, DynamicTemperature]),
            Err(format!("sampler_order: lists dynatemp_high, which is {fix} it before mirostat or turn it off")),
            "and of top_k next time"
        );
        assert_eq!(
            behind(vec![TopK, Temperature, Mirostat, TopK]),
            Err("sampler_order[3]: top_k is given twice; give it once".to_owned())
        );
        assert_eq!(behind(vec![TopK, Temperature, DynamicTemperature, Mirostat]), Ok(()));
        assert_eq!(behind(vec![TopK, Temperature, Mirostat]), Ok(()), "it takes temperature's place");
        for engine in [EngineOrder::LlamaCpp, EngineOrder::Transformers, EngineOrder::TextGenerationWebui] {
            assert!(of(engine).samplers().contains(&Sampler::TypicalP));
        }
    }
}
