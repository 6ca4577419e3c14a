//! Opens the text whose next token the row is for, and asks its grammar what is allowed there.

use super::ExplainArgs;
use crate::grammar::fill::{Pending, Wanted};
use crate::grammar::{Ahead, CompileDeadline, Grammars, Mask};
use crate::params::report::ReportParams;
use crate::permits::Counter;
use crate::sequence::Sequence;
use crate::sequence::rules::{LACKS_TEXTS, Rules};
use metrics::Gauge;
use std::fmt::Display;
use std::sync::Arc;

/// The text that the arguments describe. A row has `vocab_size` logits.
pub(super) fn open(args: &ExplainArgs, vocab_size: u32) -> Result<Sequence, String> {
    let in_vocabulary = |name: &str, tokens: &[u32]| match tokens.iter().find(|&&token| token >= vocab_size) {
        Some(token) => {
            Err(format!("--{name}: token {token} must be below {vocab_size}, the number of logits in the row"))
        }
        None => Ok(()),
    };
    in_vocabulary("prompt", &args.prompt)?;
    in_vocabulary("output", &args.output)?;
    in_vocabulary("eos", &args.eos)?;
    in_vocabulary("why-not", &args.why_not)?;
    let mut params = args.params.clone();
    params.samplers.report = Some(Box::new(ReportParams { support_size: true, ..ReportParams::default() }));
    params.validate(vocab_size, args.most_listed).map_err(|error| error.to_string())?;
    let rules = Rules::new(params, &args.eos).with_vocabulary(args.vocabulary.clone());
    rules.validate().map_err(|error| match error.message.as_str() {
        LACKS_TEXTS if error.field == "infill" => lacks_texts("infill", "infill=false"),
        LACKS_TEXTS => lacks_texts(&error.field, "dry_multiplier=0"),
        _ => by_flags(&error),
    })?;
    let sequence = Sequence::open(Arc::new(with_grammar(args, rules)?), args.seed, &args.prompt, &args.output);
    let sequence = sequence.with_grammar_text(&Arc::default(), vocab_size as usize, &args.output);
    let sequence = sequence.map_err(|error| by_flags(&error))?;
    match sequence.finished() {
        Some(reason) => Err(format!("--output: already ends the text ({}); no token follows it", reason.label())),
        None => Ok(sequence),
    }
}

/// The rules with their compiled grammar, if they have one.
fn with_grammar(args: &ExplainArgs, rules: Rules) -> Result<Rules, String> {
    if rules.params().history.grammar.is_some() && args.vocabulary.is_none() {
        return Err(lacks_texts("grammar", "grammar={}"));
    }
    let grammars = args.vocabulary.clone().map(Grammars::new);
    let room = Counter::new(usize::MAX, Gauge::noop());
    let rules = rules.with_grammar(grammars.as_ref(), &room, &CompileDeadline::default());
    rules.map_err(|error| by_flags(&error))
}

/// The error that a parameter needs the texts of tokens. The setting `off` turns it off.
fn lacks_texts(parameter: &str, off: &str) -> String {
    format!("{parameter}: needs the texts of tokens; give --vocabulary, or turn it off with --set {off}")
}

/// An error message that names the flags in place of the wire's fields.
fn by_flags(error: &impl Display) -> String {
    error.to_string().replace("eos_token_ids", "--eos").replace("output_token_ids", "--output")
}

/// The tokens that the text's grammar allows next. `None`: every token.
pub(super) fn mask(sequence: &Sequence) -> Result<Mask, String> {
    let Some(text) = sequence.text() else { return Ok(None) };
    let found = Pending::begin(vec![Wanted::new(text, Ahead::default())]).masks().pop().transpose();
    let found = found.map_err(|mask_error| format!("grammar: {mask_error}"))?;
    Ok(found.and_then(|masks| masks.into_iter().next()).flatten())
}
