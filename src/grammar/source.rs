//! What the compiler is given for a grammar, and what it says of that in words about what was written.

use super::{complement, escapes, gbnf, idle, message, place};
use crate::params::grammar::{GrammarKind, GrammarParams};
use llguidance::api::TopLevelGrammar;
use serde_json::Value;

/// A grammar as the compiler reads it.
///
/// # Errors
/// What is wrong with it, if that shows already.
pub(super) fn of(params: &GrammarParams) -> Result<TopLevelGrammar, String> {
    Ok(match params.kind {
        GrammarKind::JsonSchema => TopLevelGrammar::from_json_schema(escapes::of_schema(schema(&params.text)?)),
        GrammarKind::Regex => TopLevelGrammar::from_regex(&params.text),
        GrammarKind::Lark => TopLevelGrammar::from_lark(complement::of_texts(&escapes::of_lark(&params.text))),
        GrammarKind::Gbnf => TopLevelGrammar::from_lark(gbnf::to_lark(&params.text)?),
        GrammarKind::Choices => {
            let texts: Vec<String> = params.choices().map(gbnf::text_of).collect();
            TopLevelGrammar::from_regex(&texts.join("|"))
        }
    })
}

/// A schema without keywords that restrict nothing.
fn schema(text: &str) -> Result<Value, String> {
    let mut schema = serde_json::from_str(text).map_err(|e| format!("is not valid JSON: {e}"))?;
    idle::remove(&mut schema);
    Ok(schema)
}

/// What the compiler says of it.
pub(super) fn told(params: &GrammarParams, error: &impl std::fmt::Display) -> String {
    match params.kind {
        GrammarKind::Regex => message::told_of_expression(error),
        GrammarKind::Gbnf => message::told_of_translation(error),
        GrammarKind::JsonSchema => {
            schema(&params.text).map_or_else(|_| message::told(error), |schema| place::told_by_compiler(&schema, error))
        }
        GrammarKind::Lark | GrammarKind::Choices => message::told(error),
    }
}
