//! Sequences to open: checked, built from their texts so far, and counted.

use super::config::Config;
use super::params::{SeedSource, merged};
use super::rules_cache::CacheKey;
use super::samplers;
use crate::blocking_semaphore::BlockingSemaphore;
use crate::engine::step::Open;
use crate::grammar::CompileDeadline;
use crate::message::look::Dropped;
use crate::params::{FieldError, ProposerKind, check_tokens};
use crate::proto;
use crate::rpc::ServerSetup;
use crate::sequence::rules::Rules;
use crate::sequence::table::ChargedSequence;
use crate::sequence::{OpenError, Sequence};
use std::sync::Arc;

/// How many tokens can be read in a few milliseconds.
pub(super) const MAX_AT_ONCE: usize = 1 << 14;

/// The means to open the sequences of one message.
#[derive(Debug)]
pub(in crate::rpc) struct Openings<'m> {
    pub(in crate::rpc) config: &'m Config,
    pub(in crate::rpc) seeds: &'m SeedSource,
    /// Turns at building long sequences, whose memory is counted only once they are built.
    pub(in crate::rpc) building: &'m Arc<BlockingSemaphore>,
    /// The deadline of all their grammars together, because the message keeps its room while they are compiled.
    pub(in crate::rpc) compile_deadline: CompileDeadline,
}

/// Whether sequences take long to open: because of long texts, or because of grammars, which are compiled and then read
/// the texts so far. If not, opening them waits for nothing.
pub(in crate::rpc) fn take_long(wires: &[proto::OpenSequence], config: &Config) -> bool {
    let tokens = |wire: &proto::OpenSequence| {
        wire.prompt_token_ids.len() + wire.output_token_ids.len() + wire.predicted_output_token_ids.len()
    };
    wires.iter().map(tokens).sum::<usize>() > MAX_AT_ONCE || wires.iter().any(|wire| has_grammar(wire, config))
}

/// The same for a stateless batch, before its default parameters are read. These may have a grammar too.
pub(in crate::rpc) fn batch_takes_long(request: &proto::SampleRequest, setup: &ServerSetup) -> bool {
    let tokens = |row: &proto::SampleRow| row.prompt_token_ids.len() + row.output_token_ids.len();
    let params = request.rows.iter().map(|row| row.params.as_ref()).chain([request.default_params.as_ref()]);
    request.rows.iter().map(tokens).sum::<usize>() > MAX_AT_ONCE
        || setup.defaults.history.grammar.is_some()
        || params.flatten().any(asks_for_grammar)
}

fn has_grammar(wire: &proto::OpenSequence, config: &Config) -> bool {
    wire.params.as_ref().is_some_and(asks_for_grammar) || config.rules.params().history.grammar.is_some()
}

/// Parameters that name a preset count, because the preset may have a grammar.
fn asks_for_grammar(own: &proto::SamplingParams) -> bool {
    own.grammar.is_some() || !own.preset.is_empty()
}

/// The tokens of a sequence to open.
struct Texts<'a> {
    prompt: &'a [u32],
    output: &'a [u32],
    predicted: &'a [u32],
}

/// Checks that what is predicted has a use: a proposer that looks for the text's last tokens.
fn check_finds(rules: &Rules) -> Result<(), FieldError> {
    if rules.params().proposer.is_none_or(|proposer| proposer.kind == ProposerKind::Grammar) {
        let message =
            "has no effect without a proposer that looks for earlier tokens; set params.proposer to NGRAM or SUFFIX";
        return Err(FieldError::new(OpenError::PREDICTED, message));
    }
    Ok(())
}

impl Openings<'_> {
    /// A sequence to open, checked and built. It takes its room here, when its memory is allocated, so that sequences
    /// of waiting steps are bounded too. If something of the wire message was `dropped`, no sequence is built: it
    /// would be sampled as if it had not asked for that.
    pub(in crate::rpc) fn open(&self, wire: proto::OpenSequence, dropped: Option<Dropped>) -> Open {
        let sequence_id = wire.sequence_id;
        let sequence = match dropped {
            Some(Dropped::Unknown(field)) => Err(OpenError::Unimplemented(field)),
            Some(Dropped::Together(field)) => Err(OpenError::Invalid(field)),
            None => self.sequence(wire),
        };
        Open { sequence_id, sequence }
    }

    fn sequence(&self, wire: proto::OpenSequence) -> Result<ChargedSequence, OpenError> {
        let (config, prompt, output) = (self.config, wire.prompt_token_ids, wire.output_token_ids);
        let predicted = wire.predicted_output_token_ids;
        let (tokens, limit) = (prompt.len() + output.len(), config.limits.max_history_tokens);
        if tokens > limit {
            return Err(OpenError::HistoryLimit { predicted: false, tokens, limit });
        }
        check_tokens("prompt_token_ids", &prompt, config.vocab_size)?;
        check_tokens("output_token_ids", &output, config.vocab_size)?;
        if predicted.len() > limit {
            return Err(OpenError::HistoryLimit { predicted: true, tokens: predicted.len(), limit });
        }
        check_tokens(OpenError::PREDICTED, &predicted, config.vocab_size)?;
        let (rules, seed) = self.rules(wire.params.unwrap_or_default())?;
        if !predicted.is_empty() {
            check_finds(&rules)?;
        }
        let charged = self.built(rules, seed, &Texts { prompt: &prompt, output: &output, predicted: &predicted })?;
        // This is outside the turn: a grammar may read for long, and then only the caller who asked for it should wait.
        charged.then(|sequence| {
            let sequence = sequence.with_grammar_text(&config.flow, config.vocab_size as usize, &output)?;
            let Some(wire) = wire.sampler_state else { return Ok(sequence) };
            let state = samplers::state(wire).and_then(|state| sequence.with_sampler_state(state));
            state.map_err(|e| e.within("sampler_state"))
        })
    }

    /// The stream's own rules if the sequence asks for nothing else. Otherwise the rules of another sequence that asks
    /// for the same, if there is one; or else new rules over the stream's, so that the stream's lists are neither
    /// checked nor kept a second time.
    fn rules(&self, mut wire: proto::SamplingParams) -> Result<(Arc<Rules>, Option<u64>), OpenError> {
        let config = self.config;
        let defaults = config.rules.params();
        let seed = wire.seed.take().or(defaults.seed);
        if wire == proto::SamplingParams::default() {
            return Ok((Arc::clone(&config.rules), seed));
        }
        let asked = CacheKey::of(&wire);
        if let Some(rules) = asked.as_ref().and_then(|asked| config.rules_cache.find(asked)) {
            return Ok((rules, seed));
        }
        let rules = self.own_rules(wire)?;
        asked.into_iter().for_each(|asked| config.rules_cache.add(asked, &rules));
        Ok((rules, seed))
    }

    /// New rules over the stream's, with the room that they take.
    fn own_rules(&self, wire: proto::SamplingParams) -> Result<Arc<Rules>, OpenError> {
        let config = self.config;
        let params = merged(wire, config.rules.params(), &config.setup.presets).map_err(|e| e.within("params"))?;
        let limits = &config.limits;
        params.validate(config.vocab_size, limits.max_top_logprobs).map_err(|e| e.within("params"))?;
        let rules = Rules::over(&config.rules, params);
        rules.validate().map_err(|e| e.within("params"))?;
        let rules = rules.with_grammar(config.setup.grammars.as_deref(), &config.state, &self.compile_deadline);
        let rules = rules.map_err(|error| match error {
            OpenError::Invalid(field) => OpenError::Invalid(field.within("params")),
            error => error,
        })?;
        let (bytes, limit) = (rules.bytes() + config.rules.held(), config.state.limit());
        rules.charged(&config.state).ok_or_else(|| OpenError::no_room("params", bytes, limit))
    }

    /// A sequence with its texts so far and its room. Long sequences take turns, because otherwise each call could
    /// build one before any of them is counted.
    fn built(&self, rules: Arc<Rules>, seed: Option<u64>, texts: &Texts<'_>) -> Result<ChargedSequence, OpenError> {
        let &Texts { prompt, output, predicted } = texts;
        let _turn = (prompt.len() + output.len() + predicted.len() > MAX_AT_ONCE).then(|| self.building.take());
        let sequence = Sequence::predicted(rules, seed.unwrap_or_else(|| self.seeds.next()), prompt, output, predicted);
        ChargedSequence::new(sequence.within(self.config.limits.max_history_tokens), &self.config.state)
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::config;
    use super::*;
    use crate::error::Refusal;
    use crate::grammar::Grammars;
    use crate::permits::Counter;
    use crate::vocabulary::Vocabulary;
    use metrics::Gauge;
    use std::time::{Duration, Instant};

    fn configured(room: usize) -> Config {
        configured_with(room, proto::SamplingParams::default())
    }

    fn configured_with(room: usize, default_params: proto::SamplingParams) -> Config {
        let wire = proto::StreamConfig {
            vocab_size: 100,
            logits_dtype: proto::LogitsDtype::F32.into(),
            eos_token_ids: vec![0],
            default_params: Some(default_params),
            ..proto::StreamConfig::default()
        };
        let vocabulary = Arc::new(Vocabulary::new(&[None, Some(b"a".to_vec())], b""));
        let grammars = Some(Arc::new(Grammars::new(Arc::clone(&vocabulary))));
        let setup = ServerSetup { grammars, vocabulary: Some(vocabulary), ..ServerSetup::default() };
        let room = Counter::new(room, Gauge::noop());
        config(wire, &Arc::new(setup), &Arc::default(), room, &CompileDeadline::default()).expect("it is right")
    }

    fn openings<'m>(config: &'m Config, seeds: &'m SeedSource, building: &'m Arc<BlockingSemaphore>) -> Openings<'m> {
        Openings { config, seeds, building, compile_deadline: CompileDeadline::default() }
    }

    fn text(tokens: usize) -> proto::OpenSequence {
        proto::OpenSequence { prompt_token_ids: vec![1; tokens], ..proto::OpenSequence::default() }
    }

    #[test]
    fn long_texts_take_turns_at_being_built_and_short_ones_wait_for_nobody() {
        let (config, seeds, building) = (configured(usize::MAX), SeedSource::default(), BlockingSemaphore::new(1));
        let openings = openings(&config, &seeds, &building);
        let turn = building.take();
        std::thread::scope(|scope| {
            let long = scope.spawn(|| openings.open(text(MAX_AT_ONCE + 1), None));
            let counted = config.state.used();
            let short = openings.open(text(MAX_AT_ONCE), None);
            assert!(short.sequence.is_ok() && config.state.used() > counted);
            std::thread::sleep(Duration::from_millis(200));
            assert!(!long.is_finished(), "it has no turn");
            drop(turn);
            assert!(long.join().expect("no panic").sequence.is_ok());
        });
        assert!(building.take_until(Instant::now()).is_some());
    }

    /// Without sharing, each sequence would have its own rules, a kilobyte and more.
    #[test]
    fn sequences_that_ask_for_the_same_share_their_rules() {
        let (config, seeds, building) = (configured(usize::MAX), SeedSource::default(), BlockingSemaphore::new(1));
        let openings = openings(&config, &seeds, &building);
        let empty = config.state.used();
        let asking = |temperature: f32, seed: u64| {
            let params =
                proto::SamplingParams { temperature: Some(temperature), seed: Some(seed), ..Default::default() };
            let wire = proto::OpenSequence { params: Some(params), ..text(1) };
            openings.open(wire, None).sequence.expect("it is right")
        };
        let taken = |open: &dyn Fn() -> ChargedSequence| {
            let before = config.state.used();
            (open(), config.state.used() - before)
        };
        let (first, own) = taken(&|| asking(0.5, 1));
        let (second, shared) = taken(&|| asking(0.5, 2));
        let (third, other) = taken(&|| asking(0.7, 1));
        assert!(own == other && shared + 200 < own, "{own}, {shared}, {other}");
        // Numbers that are equal but differ in their bits may be different rules.
        let (zero, of_zero) = taken(&|| asking(0.0, 1));
        let (minus, of_minus) = taken(&|| asking(-0.0, 1));
        assert_eq!((of_zero, of_minus), (own, own));
        // Lists are not kept for comparison.
        let banned = proto::SamplingParams { banned_token_ids: vec![3; 1000], ..Default::default() };
        assert_eq!(CacheKey::of(&banned), None);
        drop((first, second, third, zero, minus));
        assert_eq!(config.state.used(), empty, "nobody has them any more");
        let (_kept, again) = taken(&|| asking(0.5, 3));
        assert_eq!(again, own);
    }

    #[test]
    fn a_text_without_room_gives_its_turn_back() {
        let (config, seeds, building) = (configured(1 << 20), SeedSource::default(), BlockingSemaphore::new(1));
        let openings = openings(&config, &seeds, &building);
        let _full = config.state.take(config.state.limit() - config.state.used()).expect("the rest");
        for _ in 0..3 {
            let Open { sequence, .. } = openings.open(text(MAX_AT_ONCE + 1), None);
            assert!(matches!(sequence, Err(OpenError::Refused(Refusal::StateBytes))), "{sequence:?}");
            assert!(building.take_until(Instant::now()).is_some());
        }
    }

    /// If each opening prepared them, 512 tokens would take 6 KB for each opening.
    #[test]
    fn what_a_default_grammar_begins_behind_is_there_once() {
        let taken_by_one = |start_sequences: Vec<proto::TokenSequence>| {
            let kind = Some(proto::grammar_params::Kind::Regex("a+".to_owned()));
            let grammar =
                Some(proto::GrammarParams { kind, start_token_ids: vec![99], start_sequences, start_position: 0 });
            let default = proto::SamplingParams { grammar, ..Default::default() };
            let config = configured_with(usize::MAX, default);
            let (seeds, building) = (SeedSource::default(), BlockingSemaphore::new(1));
            let own = proto::SamplingParams { temperature: Some(0.5), ..Default::default() };
            let (openings, before) = (openings(&config, &seeds, &building), config.state.used());
            let open = openings.open(proto::OpenSequence { params: Some(own), ..text(1) }, None);
            assert!(open.sequence.is_ok());
            config.state.used() - before
        };
        let long = (1..9).map(|first| proto::TokenSequence { token_ids: (first..first + 64).collect() }).collect();
        let (few, many) = (taken_by_one(vec![]), taken_by_one(long));
        assert!(many < few + 4096, "{many}, {few}");
    }

    #[test]
    fn the_grammars_of_a_message_have_one_time_to_wait() {
        let (config, seeds, building) = (configured(usize::MAX), SeedSource::default(), BlockingSemaphore::new(1));
        let matching = |regex: &str| {
            let kind = Some(proto::grammar_params::Kind::Regex(regex.to_owned()));
            let grammar = Some(proto::GrammarParams { kind, ..proto::GrammarParams::default() });
            let params = Some(proto::SamplingParams { grammar, ..proto::SamplingParams::default() });
            proto::OpenSequence { params, ..text(1) }
        };
        let mut openings = openings(&config, &seeds, &building);
        assert!(openings.open(matching("a"), None).sequence.is_ok());
        openings.compile_deadline = CompileDeadline::over();
        let late = openings.open(matching("aa"), None).sequence;
        assert!(matches!(late, Err(OpenError::Refused(Refusal::GrammarsBusy))), "{late:?}");
        assert!(openings.open(matching("a"), None).sequence.is_ok(), "it is there");
        assert!(openings.open(text(1), None).sequence.is_ok());
    }
}
