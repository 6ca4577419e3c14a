//! The configuration of a stream: checked once, and in force for all of its steps.

use super::opening::MAX_AT_ONCE;
use super::params::{known_values, merged, unknown_value, with_lists};
use super::rules_cache::RulesCache;
use crate::engine::shards::Owner;
use crate::engine::shards::layout::Layout;
use crate::engine::step::DraftVocabulary;
use crate::error::Error;
use crate::grammar::{CompileDeadline, Flow};
use crate::limits::Limits;
use crate::metrics::MAX_LABEL_BYTES;
use crate::params::{FieldError, MAX_STOP_TOKEN_IDS, SamplingParams, check_tokens};
use crate::permits::Counter;
use crate::proto;
use crate::region::Invitation;
use crate::rpc::ServerSetup;
use crate::rpc::blocking::blocking;
use crate::sampling::logits::Dtype;
use crate::sequence::OpenError;
use crate::sequence::rules::Rules;
use std::sync::Arc;

/// The field that holds a stream's default parameters.
const DEFAULTS: &str = "default_params";
/// The model label of a stream that names no model.
const DEFAULT_MODEL: &str = "default";

/// A stream's configuration.
#[derive(Debug)]
pub(in crate::rpc) struct Config {
    pub(in crate::rpc) model: String,
    pub(super) vocab_size: u32,
    pub(super) dtype: Dtype,
    /// The tokens of the draft model, if its rows have fewer columns than the target's.
    pub(super) draft_vocabulary: Option<Arc<DraftVocabulary>>,
    /// The default parameters, prepared. All sequences without parameters of their own share them, and the others build
    /// on them.
    pub(super) rules: Arc<Rules>,
    /// Rules that sequences with parameters of their own may share.
    pub(super) rules_cache: RulesCache,
    pub(super) limits: Arc<Limits>,
    /// The server's part: its presets and its vocabulary.
    pub(super) setup: Arc<ServerSetup>,
    /// Room for what is remembered of sequences.
    pub(super) state: Arc<Counter>,
    /// The stream's texts that have a grammar, which take turns with those of others.
    pub(in crate::rpc) flow: Arc<Flow>,
    /// Whether the server has regions at all.
    pub(in crate::rpc) has_regions: bool,
    /// The stream's right to regions. The regions end when it is dropped.
    pub(in crate::rpc) invitation: Option<Invitation>,
    /// Which columns each rank has, if rows come in columns.
    pub(in crate::rpc) layout: Option<Layout>,
    /// The group of these ranks. The group ends when this is dropped.
    pub(in crate::rpc) ranks: Option<Owner>,
}

impl Config {
    /// The limit that these rows of one message exceed, if any: its name and value. Together, the rows have `bytes`
    /// bytes.
    pub(in crate::rpc) fn exceeded_by(&self, rows: usize, bytes: usize) -> Option<String> {
        let limits = &self.limits;
        if rows > limits.max_rows_per_step {
            return Some(format!("but max_rows_per_step is {}", limits.max_rows_per_step));
        }
        let limit = limits.max_row_bytes_per_step;
        (bytes > limit)
            .then(|| format!("{bytes} bytes with shared rows counted each time, but max_row_bytes_per_step is {limit}"))
    }
}

/// Checks a configuration. `setup` holds the parameters that the stream leaves absent. The default parameters take
/// their room from `state`. `compile_deadline` belongs to the message that carries the configuration.
///
/// # Errors
/// The field at fault, relative to the message, or too little room.
pub(in crate::rpc) fn config(
    wire: proto::StreamConfig,
    setup: &Arc<ServerSetup>,
    limits: &Arc<Limits>,
    state: Arc<Counter>,
    compile_deadline: &CompileDeadline,
) -> Result<Config, Error> {
    let vocab_size = wire.vocab_size;
    check_vocab_size(vocab_size, limits).map_err(Error::Invalid)?;
    let dtype = dtype("logits_dtype", wire.logits_dtype).map_err(Error::Invalid)?;
    let layout =
        wire.vocab_shards.map(|wire| Layout::new(&wire.columns, vocab_size, dtype, limits.max_ranks_per_stream));
    let layout = layout.transpose().map_err(|e| Error::Invalid(e.within("vocab_shards")))?;
    let draft_vocabulary = draft_vocabulary(wire.draft_vocabulary, vocab_size, &state)?;
    let model = model(wire.model).map_err(Error::Invalid)?;
    check_eos(&wire.eos_token_ids, vocab_size).map_err(Error::Invalid)?;
    let defaults =
        defaults_of(wire.default_params.unwrap_or_default(), setup, vocab_size, limits).map_err(in_default_params)?;
    let rules = prepared(defaults, &wire.eos_token_ids, setup, &state, compile_deadline)?;
    Ok(Config {
        model,
        vocab_size,
        dtype,
        draft_vocabulary,
        rules,
        rules_cache: RulesCache::default(),
        limits: Arc::clone(limits),
        setup: Arc::clone(setup),
        state,
        flow: Arc::default(),
        has_regions: false,
        invitation: None,
        layout,
        ranks: None,
    })
}

fn check_vocab_size(vocab_size: u32, limits: &Limits) -> Result<(), FieldError> {
    if vocab_size == 0 || vocab_size > limits.max_vocab_size {
        let message = format!("is {vocab_size}, must be in 1 ..= {} (max_vocab_size)", limits.max_vocab_size);
        return Err(FieldError::new("vocab_size", message));
    }
    Ok(())
}

fn check_eos(eos_token_ids: &[u32], vocab_size: u32) -> Result<(), FieldError> {
    if eos_token_ids.len() > MAX_STOP_TOKEN_IDS {
        let message = format!("has {} entries, at most {MAX_STOP_TOKEN_IDS} are allowed", eos_token_ids.len());
        return Err(FieldError::new("eos_token_ids", message));
    }
    check_tokens("eos_token_ids", eos_token_ids, vocab_size)
}

/// The draft model's tokens, with the room that the list takes; `None` where its rows are as long as the target's.
fn draft_vocabulary(
    token_ids: Vec<u32>,
    vocab_size: u32,
    state: &Arc<Counter>,
) -> Result<Option<Arc<DraftVocabulary>>, Error> {
    if token_ids.is_empty() {
        return Ok(None);
    }
    DraftVocabulary::check_len(token_ids.len(), vocab_size).map_err(Error::Invalid)?;
    let (field, bytes) = (DraftVocabulary::FIELD, size_of_val(&*token_ids));
    let no_room = || refused(field, OpenError::no_room(field, bytes, state.limit()));
    let room = state.take(bytes).ok_or_else(no_room)?;
    let vocabulary = blocking(token_ids.len() > MAX_AT_ONCE, || DraftVocabulary::new(token_ids, vocab_size, room));
    Ok(Some(Arc::new(vocabulary.map_err(Error::Invalid)?)))
}

/// The stream's default parameters, merged over the server's.
fn defaults_of(
    wire: proto::SamplingParams,
    setup: &ServerSetup,
    vocab_size: u32,
    limits: &Limits,
) -> Result<SamplingParams, FieldError> {
    let defaults = with_lists(merged(wire, &setup.defaults, &setup.presets)?, &setup.defaults);
    defaults.validate(vocab_size, limits.max_top_logprobs).map_err(|error| {
        let own = setup.defaults.validate(vocab_size, limits.max_top_logprobs).is_err_and(|own| own == error);
        let whose = if own { "; the value is the server's own, from [defaults] in its configuration" } else { "" };
        FieldError { message: error.message + whose, ..error }
    })?;
    Ok(defaults)
}

/// The rules of the default parameters, with the room that they take.
fn prepared(
    defaults: SamplingParams,
    eos_token_ids: &[u32],
    setup: &ServerSetup,
    state: &Arc<Counter>,
    compile_deadline: &CompileDeadline,
) -> Result<Arc<Rules>, Error> {
    let rules = Rules::new(defaults, eos_token_ids).with_vocabulary(setup.vocabulary.clone());
    rules.validate().map_err(in_default_params)?;
    let has_grammar = rules.params().history.grammar.is_some();
    let rules = blocking(has_grammar, || rules.with_grammar(setup.grammars.as_deref(), state, compile_deadline));
    let rules = rules.map_err(|error| refused(DEFAULTS, error))?;
    let bytes = rules.bytes();
    rules.charged(state).ok_or_else(|| refused(DEFAULTS, OpenError::no_room(DEFAULTS, bytes, state.limit())))
}

/// The error when the part of the configuration in this field cannot be prepared: a list, or default parameters with
/// their grammar.
fn refused(field: &'static str, error: OpenError) -> Error {
    match error {
        OpenError::Refused(refusal) => Error::Refused(refusal),
        OpenError::StateLimit { bytes, limit, .. } => {
            Error::Invalid(OpenError::StateLimit { field, bytes, limit }.into())
        }
        error => in_default_params(error.into()),
    }
}

fn in_default_params(error: FieldError) -> Error {
    Error::Invalid(error.within(DEFAULTS))
}

pub(super) fn dtype(field: &str, wire: i32) -> Result<Dtype, FieldError> {
    match proto::LogitsDtype::try_from(wire) {
        Ok(proto::LogitsDtype::F32) => Ok(Dtype::F32),
        Ok(proto::LogitsDtype::F16) => Ok(Dtype::F16),
        Ok(proto::LogitsDtype::Bf16) => Ok(Dtype::Bf16),
        Ok(proto::LogitsDtype::Unspecified) => Err(FieldError::new(
            field,
            format!("is required; use one of {}", known_values(proto::LogitsDtype::as_str_name)),
        )),
        Err(_) => Err(unknown_value(field, wire, proto::LogitsDtype::as_str_name)),
    }
}

/// The model label. It goes into metrics and logs, so it may hold nothing that could break a line there.
fn model(wire: String) -> Result<String, FieldError> {
    if wire.is_empty() {
        return Ok(DEFAULT_MODEL.to_owned());
    }
    if wire.len() > MAX_LABEL_BYTES {
        let message = format!("has {} bytes, at most {MAX_LABEL_BYTES} are allowed", wire.len());
        return Err(FieldError::new("model", message));
    }
    if !wire.bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()) {
        return Err(FieldError::new("model", "must be printable ASCII"));
    }
    Ok(wire)
}
